"""Random attention: joined projections cut apart, with biases, factors and rotary embeddings."""

from __future__ import annotations

import random

import numpy as np
from onnx import TensorProto

from tests.soundness.random_graphs.draft import RandomGraph, T
from tests.soundness.random_graphs.streams import Streams

__all__ = ["STEPS", "projection_graph"]

STEPS = (
    "bias", "bias", "difference", "number", "number", "factors", "heads", "rotary", "rotary",
    "turned", "read", "integers", "norm", "norm", "norm",
)  # fmt: skip


def projection_graph(rng: random.Random) -> RandomGraph:
    """A model of one or several streams that attention reads, by linear layers of its own."""
    return _Projections(rng).make()


class _Projections(Streams):
    def make(self) -> RandomGraph:
        self.declare()
        self.body.hidden.append("x")
        self.write()
        for _ in range(self.rng.choice((1, 1, 2))):
            source = self.norm(self.stream()) if self.chance(0.7) else self.stream()
            self.body.streams.append(self.attend(source))
            if self.chance(0.3):
                self.step()
        self.finish()
        self.forget_unread()
        return self.finished()

    def attend(self, y: str) -> str:
        whole = self.joined(y)
        if self.chance(0.1):
            self.made["the whole is read"] += 1
            self.body.outputs.append(self.node(self.rng.choice(("Relu", "Identity")), whole))
        parts = self.parts(whole)
        if self.chance(0.4):
            self.made["a bias of every part"] += 1
            parts = [self.dress_bias(part) for part in parts]
        q, k, v = (self.dressed(part) for part in parts)
        scores = self.node("MatMul", q, self.swap(k))
        if self.chance(0.4):
            scores = self.node(self.rng.choice(("Mul", "Div")), scores, self.scalar(self.C**0.5))
        if self.chance(0.5):
            scores = self.node("Softmax", scores, axis=2)
        return self.node("MatMul", scores, v)

    def joined(self, y: str) -> str:
        """[B, T, C] -> [B, T, 3 C]."""
        kind = self.rng.choice(("matmul", "matmul", "gemm", "conv"))
        wide = 3 * self.C
        if kind == "gemm":
            rows = self.node("Reshape", y, self.ints(-1, self.C))
            inputs = [rows, self.weight(self.C, wide), self.weight(wide)]
            product = self.node("Gemm", *inputs[: self.rng.randint(2, 3)])
            return self.node("Reshape", product, self.ints(-1, T, wide))
        if kind == "conv":
            inputs = [self.swap(y), self.weight(wide, self.C, 1), self.weight(wide)]
            return self.swap(self.node("Conv", *inputs[: self.rng.randint(2, 3)]))
        product = self.node("MatMul", y, self.weight(self.C, wide))
        return self.node("Add", product, self.weight(wide)) if self.chance(0.5) else product

    def parts(self, whole: str) -> list[str]:
        kind = self.rng.choice(("Split", "Slice", "Slice", "Gather", "Split of an axis"))
        self.made[f"parts by {kind}"] += 1
        if kind == "Split":
            return self.split(whole, self.rng.choice((2, -1)), 3)
        if kind == "Slice":
            return [self._slice(whole, number) for number in range(3)]
        stacked = self.node("Reshape", whole, self.ints(0, 0, 3, self.C))
        stacked = self.node("Transpose", stacked, perm=[2, 0, 1, 3])
        if kind == "Gather":
            numbers = (self.initializer(np.array(i, np.int64), "number") for i in range(3))
            return [self.node("Gather", stacked, number, axis=0) for number in numbers]
        return [self.squeeze(part, 0) for part in self.split(stacked, 0, 3)]

    def _slice(self, whole: str, number: int) -> str:
        start, end = number * self.C, (number + 1) * self.C
        if number == 2 and self.chance(0.5):
            end = 1 << 62
        if number == 1 and self.chance(0.1):
            self.made["parts that overlap"] += 1
            start, end = start - 1, end - 1
        bounds = [self.ints(start), self.ints(end), self.ints(self.rng.choice((2, -1)))]
        return self.node("Slice", whole, *bounds, *[self.ints(1)] * self.rng.randint(0, 1))

    def dressed(self, part: str) -> str:
        for _ in range(self.rng.choice((0, 1, 1, 2, 3))):
            kind = self.rng.choice(STEPS)
            if kind == "integers" and self.dtype != TensorProto.DOUBLE:
                continue  # a rounding more or less would be another integer
            self.made[f"part with {kind}"] += 1
            part = getattr(self, f"dress_{kind}")(part)
        return part

    def dress_bias(self, x: str) -> str:
        bias = self.weight(self.C) if self.chance(0.8) else self.scalar(0.5)
        return self.node("Add", *self.rng.sample([x, bias], 2))

    def dress_difference(self, x: str) -> str:
        return self.node("Sub", x, self.weight(self.C))

    def dress_number(self, x: str) -> str:
        return self.node(self.rng.choice(("Mul", "Div")), x, self.scalar(self.C**0.5))

    def dress_factors(self, x: str) -> str:
        return self.node("Mul", *self.rng.sample([x, self.weight(self.C)], 2))

    def dress_heads(self, x: str) -> str:
        heads = self.node("Reshape", x, self.ints(0, 0, 2, self.C // 2))
        kind = self.rng.choice(("Mul", "Add", "turn"))
        if kind == "turn":
            heads = self.node("Transpose", heads, perm=[0, 2, 1, 3])
            heads = self.node("Mul", heads, self.scalar(0.5))
            heads = self.node("Transpose", heads, perm=[0, 2, 1, 3])
        else:
            shape = self.rng.choice(((2, 1), (2, self.C // 2), (self.C // 2,)))
            heads = self.node(kind, heads, self.weight(*shape))
        return self.node("Reshape", heads, self.ints(0, 0, self.C))

    def dress_rotary(self, x: str) -> str:
        """x * cos + turned(x) * sin; at times an angle is added, and the factors stay."""
        angles = [self.weight(T, self.C), self.weight(T, self.C)]
        if self.chance(0.3):
            angles[0] = "gate"
        add = self.chance(0.1)
        first = self.node("Add" if add else "Mul", x, angles[0])
        return self.node("Add", first, self.node("Mul", self._turned(x), angles[1]))

    def _turned(self, x: str) -> str:
        half = self.C // 2
        if self.chance(0.3):
            low, high = self.split(x, 2)
        else:
            bounds = ((0, half), (half, self.C))
            low, high = (
                self.node("Slice", x, self.ints(a), self.ints(b), self.ints(-1)) for a, b in bounds
            )
        other = self.node("Neg" if self.chance(0.9) else "Abs", high)
        return self.node("Concat", other, low, axis=-1)

    def dress_turned(self, x: str) -> str:
        return self.node("Neg", x)

    def dress_read(self, x: str) -> str:
        self.body.outputs.append(self.node("Sigmoid", x))
        return x

    def dress_norm(self, x: str) -> str:
        """A norm of queries or keys, over all channels or per head."""
        return self.grouped(x) if self.chance(0.4) else self.layer_norm(x, (self.C,))

    def dress_integers(self, x: str) -> str:
        return self.node("Cast", self.node("Cast", x, to=TensorProto.INT64), to=self.dtype)
