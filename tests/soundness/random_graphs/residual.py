"""Random transformers: a residual stream in full, whose basis may change, or one that may not.

Beside what reads a stream in models (norms, heads of attention, gated products, a tied head, a
linear probe), at times something that sees its size or its channels.
"""

from __future__ import annotations

import random

from tests.soundness.random_graphs.draft import B, H, RandomGraph, T
from tests.soundness.random_graphs.streams import Streams

__all__ = ["residual_graph"]

_ODDITIES = ("probe", "seen", "gated", "carried", "cut", "output", "stepped")


def residual_graph(rng: random.Random) -> RandomGraph:
    """A model of one residual stream of blocks that read norms of it."""
    return _Residual(rng).make()


class _Residual(Streams):
    def make(self) -> RandomGraph:
        self.C = self.rng.choice((4, 6, 8))
        self.kind = self.rng.choice(("layer", "layer", "rms", "rms", "gemma", "bare", "mixed"))
        self.usual = self.chance(0.7)
        self.made[f"residual of {self.kind}"] += 1
        self.declare()
        self.body.hidden.append("x")
        x = self.start()
        for _ in range(self.rng.choice((1, 1, 2, 2, 3))):
            x = self.odd(self.block(x)) if self.chance(0.15) else self.block(x)
            self.body.streams.append(x)
        self.body.outputs.append(self.head(self.norm(x)))
        self.forget_unread()
        return self.finished()

    def weight(self, *shape: int) -> str:
        if not self.usual:
            return super().weight(*shape)
        return self.parameter(self.numbers.standard_normal(shape), "w")

    def read_linear(self, y: str) -> str:
        return self.projected(y, H) if self.usual else super().read_linear(y)

    def start(self) -> str:
        """The stream's first value: words and places, a product, or an input of the model."""
        self.tied = self.weight(5, self.C)
        kind = self.rng.choices(("words", "product", "input"), (60, 35, 5))[0]
        self.made[f"stream of {kind}"] += 1
        if kind == "input":
            return self.input("stream", self.numbers.standard_normal((B, T, self.C)))
        if kind == "product":
            return self.write_matmul("x")
        x = self.node("Gather", self.tied, "ids", axis=0)
        x = self.node("Mul", x, self.scalar(self.C**0.5)) if self.chance(0.3) else x
        return self.node("Add", x, self.weight(T, self.C)) if self.chance(0.5) else x

    def norm(self, x: str) -> str:
        kind = self.rng.choice(("layer", "rms", "bare")) if self.kind == "mixed" else self.kind
        if kind == "layer":
            return self.layer_norm(x, (self.C,))
        if kind == "rms":
            return self.norm_rms(x)
        n = self._divided(x, self.mean(self._squared(x), -1))
        if kind == "bare":
            return n
        one = self.node("Add", self.parameter(self.numbers.random(self.C), "w"), self.scalar(1.0))
        return self.node("Mul", n, one)

    def block(self, x: str) -> str:
        n = self.norm(x)
        d = self.rng.choice((self.attention, self.layers, self.gated_layers))(n)
        if self.chance(0.06):
            self.made["norm of a block's result"] += 1
            d = self.norm(d)
        total = self.node("Add", *self.rng.sample([x, d], 2))
        return self.norm(total) if self.chance(0.04) else total

    def layers(self, n: str) -> str:
        h = self.node(self.rng.choice(("Relu", "Tanh")), self.read_linear(n))
        return self.write_scaled(h) if self.chance(0.2) else self.write_matmul(h)

    def gated_layers(self, n: str) -> str:
        gate = self.node("Sigmoid", self.read_linear(n))
        return self.write_matmul(self.node("Mul", gate, self.read_linear(n)))

    def projected(self, n: str, width: int) -> str:
        y = self.node("MatMul", n, self.weight(self.C, width))
        return self.node("Add", y, self.weight(width)) if self.chance(0.4) else y

    def attention(self, n: str) -> str:
        """Scores of every head times values of as many heads, or of one."""
        heads, size = 2, self.C // 2
        groups = 1 if self.chance(0.3) else heads
        q = self.heads(self.projected(n, self.C), heads)
        k, v = (self.heads(self.projected(n, groups * size), groups) for _ in range(2))
        turned = self.node("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.node("Softmax", self.node("MatMul", q, turned), axis=3)
        mixed = self.node("Transpose", self.node("MatMul", scores, v), perm=[0, 2, 1, 3])
        rows = self.node("Reshape", mixed, self.ints(0, 0, self.C))
        return self.projected(rows, self.C)

    def heads(self, y: str, count: int) -> str:
        shape = self.ints(0, 0, count, self.C // 2)
        return self.node("Transpose", self.node("Reshape", y, shape), perm=[0, 2, 1, 3])

    def head(self, n: str) -> str:
        if self.chance(0.3):
            self.made["tied head"] += 1
            return self.node("MatMul", n, self.node("Transpose", self.tied, perm=[1, 0]))
        return self.read_linear(n)

    def odd(self, x: str) -> str:
        """Something else that reads the stream, or a carrier of it."""
        kind = self.rng.choice(_ODDITIES)
        self.made[f"residual {kind}"] += 1
        if kind == "probe":
            self.body.outputs.append(self.node("MatMul", x, self.weight(self.C, 3)))
        elif kind == "seen":
            self.body.outputs.append(self.node("Sigmoid", x))
        elif kind == "gated":
            return self.node("Mul", x, self.rng.choice(("gate", self.weight(self.C))))
        elif kind == "cut":
            tail = self.node("Slice", x, self.ints(1), self.ints(T), self.ints(1))
            return self.node("Pad", tail, self.ints(0, 1, 0, 0, 0, 0))
        elif kind == "output":
            self.body.outputs.append(x)
        elif kind == "stepped":
            self.body.streams.append(x)
            self.step()
        else:
            self.body.streams.append(x)
            self.carry()
            return self.body.streams[-1]
        return x
