"""Random models of streams: writers, carriers, norms and readers in any order."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import onnx

from tests.soundness.random_graphs.bodies import Bodies
from tests.soundness.random_graphs.draft import B, H, RandomGraph, T

__all__ = ["Streams", "stream_graph"]


def stream_graph(rng: random.Random) -> RandomGraph:
    """A model of one or several streams that are written, passed on and normalized."""
    return Streams(rng).make()


class Streams(Bodies):
    """The steps of such a model."""

    def make(self) -> RandomGraph:
        self.declare()
        self.body.hidden.append("x")
        for _ in range(self.rng.choice((1, 1, 2))):
            self.write()
        for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3, 5, 8))):
            self.step()
        self.finish()
        self.forget_unread()
        return self.finished()

    def declare(self) -> None:
        batch = "batch" if self.symbolic else B
        self.input("x", self.numbers.standard_normal((B, T, H)), [batch, T, H])
        self.input("ids", self.numbers.integers(0, 5, (B, T)), [batch, T])
        self.input("mask", self.numbers.random((T, 1)) < 0.5)
        self.input("flag", np.array(self.chance(0.5)))
        self.input("gate", self.numbers.standard_normal((B, T, 1)), [batch, T, 1])
        self.input("gamma_in", 1 + self.numbers.random(self.C))
        self.input("shape", np.array([B, T, self.C]))
        self.input("tokens", self.numbers.integers(0, T, (B, 1)), [batch, 1])

    def step(self) -> None:
        actions = (self.write, self.carry, self.normalise, self.read, self.nest, self.leave)
        self.rng.choices(actions, (20, 42, 20, 9, 6, 3))[0]()

    def finish(self) -> None:
        """Let the last streams be normalized, and every end be an output."""
        self.normalise()
        self.body.outputs.append(self.body.hidden[-1])
        read = {name for node in self.body.nodes for name in node.input}
        for stream in list(self.body.streams):
            if stream in read or stream in self.body.outputs:
                continue
            if self.chance(0.15):
                self.made["stream is an output"] += 1
                self.body.outputs.append(stream)
            else:
                self.body.outputs.append(self.norm(stream))

    def forget_unread(self) -> None:
        """Leave out inputs that nothing reads, but for x."""
        read = {"x"} | set(_read_names(self.main.nodes))
        weights = {tensor.name for tensor in self.main.initializers}
        self.inputs = {name: kind for name, kind in self.inputs.items() if name in read | weights}
        self.feeds = {name: array for name, array in self.feeds.items() if name in self.inputs}


def _read_names(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    names: list[str] = []
    for node in nodes:
        names += node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names += _read_names(attribute.g.node)
    return names
