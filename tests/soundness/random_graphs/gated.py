"""Random residual streams whose blocks end in gates: a value moves where nobody sees it."""

from __future__ import annotations

import random

from tests.soundness.random_graphs.draft import RandomGraph
from tests.soundness.random_graphs.streams import Streams

__all__ = ["GATES", "gated_graph"]

# How a block writes into the stream: what may be centred and what may not, after the norm it reads.
GATES = ("plain", "relu", "row", "channel", "own", "mask", "scaled")


def gated_graph(rng: random.Random) -> RandomGraph:
    """A model of one stream, of several norms, of which the first may fold for a move."""
    return _Gated(rng).make()


class _Gated(Streams):
    def make(self) -> RandomGraph:
        self.declare()
        self.body.hidden.append("x")
        self.write()
        for _ in range(self.rng.choice((1, 2, 2, 3))):
            self.block()
            if self.chance(0.25):
                self.rng.choice((self.carry, self.read, self.leave))()
        self.finish()
        self.forget_unread()
        return self.finished()

    def block(self) -> None:
        """stream + gate(f(norm(stream))), where the gate is any of ``GATES``."""
        x = self.stream()
        h = self.read_linear(self.norm(x))
        kind = self.rng.choice(GATES)
        self.made[f"gate {kind}"] += 1
        written = getattr(self, f"gate_{kind}")(self.write_matmul(h), h)
        self.body.streams.append(self.node("Add", *self.rng.sample([x, written], 2)))

    def gate_plain(self, y: str, h: str) -> str:
        return y

    def gate_relu(self, y: str, h: str) -> str:
        return self.node("Relu", y)

    def gate_row(self, y: str, h: str) -> str:
        return self.node("Mul", *self.rng.sample([y, "gate"], 2))

    def gate_channel(self, y: str, h: str) -> str:
        gate = self.node("Sigmoid", self.write_matmul(h))
        return self.node("Mul", *self.rng.sample([y, gate], 2))

    def gate_own(self, y: str, h: str) -> str:
        return self.node("Mul", y, self.node("Sigmoid", y))

    def gate_mask(self, y: str, h: str) -> str:
        return self.node("Where", "mask", y, self.stream())

    def gate_scaled(self, y: str, h: str) -> str:
        return self.node("Mul", y, self.weight(self.C))
