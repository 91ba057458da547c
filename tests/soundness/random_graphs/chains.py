"""Random chains after a norm: linear layers, operators that a scale passes or must not pass."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.soundness.random_graphs.draft import H, RandomGraph, T
from tests.soundness.random_graphs.streams import Streams

__all__ = ["CROSSINGS", "chain_graph"]

# What a row's scale passes, alone or with another part, and what ends it.
CROSSINGS = (
    "relu", "leaky", "absolute", "negative", "heads", "merged", "turned", "table", "again", "layer",
    "product", "product", "sum", "joined", "bias", "silu", "residual", "read",
)  # fmt: skip


def chain_graph(rng: random.Random) -> RandomGraph:
    """A model of one or several norms that layers read, at times in the body of an If or a loop."""
    return _Chains(rng).make()


class _Chains(Streams):
    def make(self) -> RandomGraph:
        self.declare()
        self.body.hidden.append("x")
        self.write()
        for _ in range(self.rng.choice((1, 1, 2))):
            self.body.hidden.append(self.chain(self.stream()))
        if self.chance(0.3):
            self.rng.choice((self.nest_if, self.nest_loop, self.nest_scan))()
        self.finish()
        self.forget_unread()
        return self.finished()

    def fill(self, hidden: Sequence[str]) -> str:
        """Fill a body with a chain of its own."""
        self.body.hidden = list(hidden)
        self.write()
        return self.chain(self.stream())

    def chain(self, x: str) -> str:
        """[B, T, C] -> [B, T, H]."""
        y = self.norm_rms(x) if self.chance(0.7) else self.layer_norm(x, (self.C,))
        parts = [self._layer(y, self.C) for _ in range(self.rng.choice((1, 2, 2)))]
        for _ in range(self.rng.randint(1, 4)):
            kind = self.rng.choice(CROSSINGS)
            self.made[f"chain {kind}"] += 1
            where = self.rng.randrange(len(parts))
            parts[where] = getattr(self, f"cross_{kind}")(parts[where], parts[where - 1], x)
        return self._layer(self.node("Concat", *parts, axis=-1), self.C * len(parts), H)

    def _layer(self, y: str, width: int, to: int = 0) -> str:
        out = to or self.C
        if self.chance(0.3):
            rows = self.node("Reshape", y, self.ints(-1, width))
            inputs = [rows, self.weight(width, out), self.weight(out)]
            product = self.node("Gemm", *inputs[: self.rng.randint(2, 3)])
            return self.node("Reshape", product, self.ints(-1, T, out))
        return self.node("MatMul", y, self.weight(width, out))

    def cross_relu(self, y: str, *_: str) -> str:
        return self.node("Relu", y)

    def cross_leaky(self, y: str, *_: str) -> str:
        return self.node("LeakyRelu", y, alpha=0.25)

    def cross_absolute(self, y: str, *_: str) -> str:
        return self.node("Abs", y)

    def cross_negative(self, y: str, *_: str) -> str:
        return self.node("Neg", y)

    def cross_heads(self, y: str, *_: str) -> str:
        heads = self.node("Reshape", y, self.ints(0, 0, 2, self.C // 2))
        turned = self.node("Transpose", heads, perm=[0, 2, 1, 3])
        if self.chance(0.5):  # one table for all heads
            turned = self.node("Mul", turned, self.weight(T, self.C // 2))
        back = self.node("Transpose", turned, perm=[0, 2, 1, 3])
        return self.node("Reshape", back, self.ints(0, 0, self.C))

    def cross_merged(self, y: str, *_: str) -> str:
        rows = self.node("Relu", self.node("Reshape", y, self.ints(-1, self.C)))
        return self.node("Reshape", rows, self.ints(-1, T, self.C))

    def cross_turned(self, y: str, *_: str) -> str:
        low, high = self.split(y, 2)
        return self.node("Concat", self.node("Neg", high), low, axis=-1)

    def cross_table(self, y: str, *_: str) -> str:
        factor = self.rng.choice((self.weight(T, self.C), "gate"))
        return self.node("Mul", *self.rng.sample([y, factor], 2))

    def cross_again(self, y: str, *_: str) -> str:
        return self.norm_rms(y)

    def cross_layer(self, y: str, *_: str) -> str:
        return self._layer(y, self.C)

    def cross_product(self, y: str, other: str, *_: str) -> str:
        return self.node("Mul", y, other)

    def cross_sum(self, y: str, other: str, *_: str) -> str:
        return self.node("Add", y, other)

    def cross_joined(self, y: str, other: str, *_: str) -> str:
        return self.split(self.node("Concat", y, other, axis=-1), 2)[0]

    def cross_bias(self, y: str, *_: str) -> str:
        return self.node("Add", *self.rng.sample([y, self.weight(self.C)], 2))

    def cross_silu(self, y: str, *_: str) -> str:
        return self.node("Mul", y, self.node("Sigmoid", y))

    def cross_residual(self, y: str, _: str, x: str) -> str:
        return self.node("Add", x, y)

    def cross_read(self, y: str, *_: str) -> str:
        self.body.hidden.append(self.node("MatMul", y, self.weight(self.C, H)))
        return y
