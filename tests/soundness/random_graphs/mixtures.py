"""Random residual streams of experts, of BatchNormalizations, and of joined and parted layers."""

from __future__ import annotations

import random

import numpy as np
from onnx import TensorProto

from tests.soundness.random_graphs.draft import H, RandomGraph, T
from tests.soundness.random_graphs.streams import Streams

__all__ = ["BLOCKS", "mixture_graph"]

# What a block does between the norm that it reads and the stream that it writes.
BLOCKS = (
    "experts", "codes of experts", "mixed by hand", "batch norm", "batch norm of a norm",
    "batch norm written", "joined layers", "joined inputs", "joined norms", "parted norm",
)  # fmt: skip
_MS = "com.microsoft"
_BIASED = 0.6


def mixture_graph(rng: random.Random) -> RandomGraph:
    """A model of one or two streams, whose blocks are any of ``BLOCKS``."""
    return _Mixtures(rng).make()


class _Mixtures(Streams):
    def make(self) -> RandomGraph:
        self.declare()
        self.body.hidden.append("x")
        self.write()
        for _ in range(self.rng.choice((1, 2, 2, 3))):
            x = self.stream()
            kind = self.rng.choice(BLOCKS)
            self.made[f"block {kind}"] += 1
            written = getattr(self, f"block_{kind.replace(' ', '_')}")(x)
            residual = self.chance(0.6)
            self.body.streams.append(
                self.node("Add", *self.rng.sample([x, written], 2)) if residual else written
            )
            if self.chance(0.25):
                self.rng.choice((self.carry, self.read, self.leave))()
        self.finish()
        self.forget_unread()
        return self.finished()

    # Experts

    def block_experts(self, x: str) -> str:
        """MoE, gated within a weight, by a third one, or not at all."""
        y, count, inner = self.norm(x), self.rng.choice((1, 2, 3)), self.rng.choice((2, 3))
        name = self.rng.choice(("relu", "silu", "identity", "swiglu"))
        out = 2 * inner if name == "swiglu" else inner
        shapes = [(count, out, self.C), (count, self.C, inner)]
        if name != "swiglu" and self.chance(0.3):
            shapes.append((count, inner, self.C))
        operands = []
        for shape in shapes:
            operands += [self.weight(*shape), self.biases(shape)]
        more = {"swiglu_fusion": 1} if name == "swiglu" else {}
        return self.mixed("MoE", y, operands, count, activation_type=name, **more)

    def block_codes_of_experts(self, x: str) -> str:
        """QMoE: 8 bits and a scale for each row."""
        y, count, inner = self.norm(x), self.rng.choice((1, 2, 3)), self.rng.choice((2, 4))
        operands = []
        for shape in ((count, inner, self.C), (count, self.C, inner)):
            codes = self.numbers.integers(0, 256, shape, np.uint8)
            operands.append(self.initializer(codes, "codes"))
            operands.append(self.parameter(self.numbers.uniform(0.01, 0.02, shape[:2]), "steps"))
            operands.append(self.biases(shape))
        return self.mixed(
            "QMoE", y, operands, count, activation_type="silu", expert_weight_bits=8,
            weights_prepacked=0,
        )  # fmt: skip

    def biases(self, shape: tuple[int, ...]) -> str:
        return self.weight(*shape[:2]) if self.chance(_BIASED) else ""

    def mixed(
        self, op_type: str, y: str, operands: list[str], count: int, **attributes: int | str
    ) -> str:
        rows = self.node("Reshape", y, self.ints(-1, self.C))
        router = self.node("MatMul", rows, self.weight(self.C, count))
        while not operands[-1]:
            operands.pop()
        # A rounding more or less would pick another expert.
        best = self.rng.randint(1, count) if self.dtype == TensorProto.DOUBLE else count
        return self.node(op_type, y, router, *operands, domain=_MS, k=best, **attributes)

    def block_mixed_by_hand(self, x: str) -> str:
        """Every expert as one of a batch of products, weighed and added up."""
        y, count = self.unsqueeze(self.norm(x), 1), self.rng.choice((2, 3))
        h = self.node("MatMul", y, self.weight(count, self.C, H))
        if self.chance(_BIASED):
            h = self.node("Add", h, self.weight(count, 1, H))
        y = self.node("MatMul", self.node("Relu", h), self.weight(count, H, self.C))
        if self.chance(_BIASED):
            y = self.node("Add", y, self.weight(count, 1, self.C))
        return self.squeeze(self.total(self.node("Mul", y, self.weight(count, 1, 1)), 1), 1)

    # BatchNormalization

    def block_batch_norm(self, x: str) -> str:
        """After an activation, before a layer, which another reader may see as well."""
        h = self.node("Relu", self.read_linear(self.norm(x)))
        y = self.swap(self.normalized(self.swap(h), H))
        if self.chance(0.1):
            self.body.outputs.append(y)
        return self.write_matmul(y) if self.chance(0.7) else self.write_conv(y)

    def block_batch_norm_of_a_norm(self, x: str) -> str:
        y = self.normalized(self.swap(self.norm(x)), self.C)
        inputs = [y, self.weight(H, self.C, 1), self.weight(H)]
        h = self.node("Conv", *inputs[: self.rng.randint(2, 3)])
        return self.write_matmul(self.node("Relu", self.swap(h)))

    def block_batch_norm_written(self, x: str) -> str:
        """Along channels, after a layer or a gate, or along tokens, which it leaves apart."""
        h = self.read_linear(self.norm(x))
        if self.chance(0.3):
            y = self.normalized(self.write_matmul(h), T)  # [B, T, C]: tokens are its channels
            self.body.outputs.append(self.layer_norm(y, (self.C,)))
            return y
        y = self.normalized(self.swap(self.write_conv(h)), self.C)
        return self.swap(y)

    def normalized(self, x: str, size: int) -> str:
        arrays = [self.numbers.standard_normal(size) for _ in range(3)]
        operands = [self.parameter(array, "bn") for array in arrays]
        variance = self.parameter(0.5 + self.numbers.random(size), "bn")
        return self.node("BatchNormalization", x, *operands, variance)

    # Concat and Split along the channels

    def block_joined_layers(self, x: str) -> str:
        """Two layers of one hidden value, or of two, whose results are one row of the stream."""
        h = self.read_linear(self.norm(x))
        other = self.rng.choice((h, h, self.rng.choice(self.body.hidden)))
        return self.joined(h, other)

    def joined(self, first: str, second: str) -> str:
        half = self.C // 2
        biased = self.chance(0.5)
        parts = []
        for h, size in ((first, half), (second, self.C - half)):
            y = self.node("MatMul", h, self.weight(H, size))
            parts.append(self.node("Add", y, self.weight(size)) if biased else y)
        return self.node("Concat", *parts, axis=-1)

    def block_joined_inputs(self, x: str) -> str:
        """A norm and what is not normalized, read by one layer."""
        values = self.rng.sample([self.norm(x), self.rng.choice(self.body.hidden)], 2)
        return self.from_wide(self.node("Concat", *values, axis=2), self.C + H)

    def block_joined_norms(self, x: str) -> str:
        values = [self.norm(x), self.norm(self.stream())]
        return self.from_wide(self.node("Concat", *values, axis=-1), 2 * self.C)

    def from_wide(self, y: str, size: int) -> str:
        h = self.node("MatMul", y, self.weight(size, H))
        h = self.node("Add", h, self.weight(H)) if self.chance(_BIASED) else h
        return self.write_matmul(self.node("Relu", h))

    def block_parted_norm(self, x: str) -> str:
        """Halves of a norm, each read by a layer; at times by an activation."""
        parts = self.split(self.norm(x), -1)
        if self.chance(0.15):
            self.body.outputs.append(self.node("Sigmoid", parts[1]))
        halves = [self.node("MatMul", part, self.weight(self.C // 2, H)) for part in parts]
        if self.chance(_BIASED):
            halves = [self.node("Add", half, self.weight(H)) for half in halves]
        return self.write_matmul(self.node("Relu", self.node("Add", *halves)))
