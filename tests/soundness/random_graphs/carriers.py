"""Carriers: what passes streams on, and what looks like it and does not."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.soundness.random_graphs.draft import Draft, T

__all__ = ["KINDS", "Carriers"]

KINDS = (
    "add", "add", "sub", "sum", "scale", "divide", "neg", "cast", "cast_like", "dropout", "where",
    "transpose", "reshape", "flatten", "slices", "gather", "gather_nd", "attention", "mixing",
    "reduce", "reduce_sum", "tile", "pad", "cumsum", "pool", "resize", "square", "affine",
    "joined", "minus_mean", "center", "self_product", "triangle", "unknown_shape", "runtime_scale",
    "counts", "relu", "einsum", "squeezed", "global_pool",
)  # fmt: skip


class Carriers(Draft):
    """Makes [B, T, C] values from [B, T, C] values."""

    def carry(self) -> None:
        x, y = self.stream(), self.stream()
        kind = self.rng.choice(KINDS)
        self.made[f"carrier {kind}"] += 1
        self.body.streams.append(getattr(self, f"carry_{kind}")(x, y))

    def carry_add(self, x: str, y: str) -> str:
        return self.node("Add", x, y)

    def carry_sub(self, x: str, y: str) -> str:
        return self.node("Sub", x, y)

    def carry_sum(self, x: str, y: str) -> str:
        return self.node(self.rng.choice(("Sum", "Mean")), x, y, self.stream())

    def carry_scale(self, x: str, y: str) -> str:
        shape = self.rng.choice(((), (1,), (T, 1), (self.C,)))
        pair = [x, self.weight(*shape)]
        return self.node("Mul", *self.rng.sample(pair, 2))

    def carry_divide(self, x: str, y: str) -> str:
        return self.node("Div", x, self.scalar(self.rng.choice((2.0, -0.5))))

    def carry_neg(self, x: str, y: str) -> str:
        return self.node(self.rng.choice(("Neg", "Identity")), x)

    def carry_cast(self, x: str, y: str) -> str:
        return self.node("Cast", x, to=self.dtype)

    def carry_dropout(self, x: str, y: str) -> str:
        return self.node("Dropout", x)

    def carry_where(self, x: str, y: str) -> str:
        other = y if self.chance(0.6) else self.scalar(0.0)
        return self.node("Where", "mask", *self.rng.sample([x, other], 2))

    def carry_transpose(self, x: str, y: str) -> str:
        return self.swap(self.node("Add", self.swap(x), self.swap(y)))

    def carry_reshape(self, x: str, y: str) -> str:
        heads = self.node("Reshape", x, self.ints(0, 0, 2, self.C // 2))
        if self.chance(0.5):
            heads = self.node("Transpose", heads, perm=[0, 2, 1, 3])
            heads = self.node("Transpose", heads, perm=[0, 2, 1, 3])
        if self.chance(0.3):
            heads = self.node("Mul", heads, self.weight(2, 1))
        return self.node("Reshape", heads, self.ints(0, 0, self.C))

    def carry_slices(self, x: str, y: str) -> str:
        """A class token before the rest, or the stream backwards."""
        if self.chance(0.3):
            return self.node("Slice", x, self.ints(-1), self.ints(-9), self.ints(1), self.ints(-1))
        first = self.node("Slice", x, self.ints(0), self.ints(1), self.ints(1))
        rest = self.node("Slice", y, self.ints(1), self.ints(T), self.ints(1))
        return self.node("Concat", first, rest, axis=self.rng.choice((1, -2)))

    def carry_gather(self, x: str, y: str) -> str:
        return self.node("Gather", x, self.ints(*self.rng.choices(range(T), k=T)), axis=1)

    def probabilities(self) -> str:
        scores = self.node("MatMul", self.body.hidden[-1], self.swap(self.body.hidden[0]))
        return self.node("Softmax", scores, axis=2)

    def carry_attention(self, x: str, y: str) -> str:
        return self.node("MatMul", self.probabilities(), x)

    def carry_mixing(self, x: str, y: str) -> str:
        return self.node("MatMul", self.weight(T, T), x)

    def carry_reduce(self, x: str, y: str) -> str:
        pooled = self.mean(x, 1)
        if self.chance(0.4):
            return self.node("Expand", pooled, self.ints(1, T, 1))
        return self.node("Add", y, pooled)

    def carry_tile(self, x: str, y: str) -> str:
        tiled = self.node("Tile", x, self.ints(1, 2, 1))
        return self.node("Slice", tiled, self.ints(T), self.ints(2 * T), self.ints(1))

    def carry_pad(self, x: str, y: str) -> str:
        fill = [self.scalar(self.rng.choice((0.0, 0.0, 1.0)))]
        pads = self.ints(0, 1, 0, 0, 0, 0)
        padded = self.node("Pad", x, pads, *fill[: self.rng.randint(0, 1)])
        return self.node("Slice", padded, self.ints(0), self.ints(T), self.ints(1))

    def carry_cumsum(self, x: str, y: str) -> str:
        return self.node("CumSum", x, self.initializer(np.array(1, dtype=np.int64), "axis"))

    def carry_pool(self, x: str, y: str) -> str:
        pooled = self.node("AveragePool", self.swap(x), kernel_shape=[2], pads=[0, 1])
        return self.swap(pooled)

    def carry_resize(self, x: str, y: str) -> str:
        scales = self.initializer(np.array([1, 1, 2], np.float32), "scales")
        roi = self.initializer(np.zeros(0, np.float32), "roi")
        larger = self.node("Resize", self.swap(x), roi, scales, mode="linear")
        return self.swap(self.node("Slice", larger, self.ints(0), self.ints(T), self.ints(2)))

    def carry_square(self, x: str, y: str) -> str:
        return self.node("Mul", x, y)

    def carry_affine(self, x: str, y: str) -> str:
        """LayerScale: varies along the fiber."""
        return self.node("Add", self.node("Mul", x, self.weight(self.C)), self.weight(self.C))

    def carry_joined(self, x: str, y: str) -> str:
        """Along the fiber and back: sets mix."""
        half = self.C // 2
        parts = [
            self.node("Slice", value, self.ints(start), self.ints(start + half), self.ints(2))
            for value, start in ((x, half), (y, 0))
        ]
        return self.node("Concat", *parts, axis=2)

    def carry_minus_mean(self, x: str, y: str) -> str:
        return self.node("Sub", x, self.mean(x, self.rng.choice((-1, 1))))

    def carry_self_product(self, x: str, y: str) -> str:
        """A value on both sides of a product, one side of which is carried."""
        W = self.weight(self.C, self.C)
        return self.node("MatMul", x, self.node("MatMul", W, W))

    def carry_cast_like(self, x: str, y: str) -> str:
        if self.opset < 15:
            return self.carry_cast(x, y)
        return self.node("CastLike", x, y)

    def carry_flatten(self, x: str, y: str) -> str:
        rows = self.node("Flatten", x, axis=2)
        if self.chance(0.4):
            rows = self.node("Mul", rows, self.scalar(0.5))
        return self.node("Reshape", rows, self.ints(-1, T, self.C))

    def carry_gather_nd(self, x: str, y: str) -> str:
        token = self.node("GatherND", x, "tokens", batch_dims=1)
        return self.node("Add", self.unsqueeze(token, 1), y)

    def carry_reduce_sum(self, x: str, y: str) -> str:
        return self.node("Add", y, self.total(x, 1))

    def carry_center(self, x: str, y: str) -> str:
        """A centering that is there already, as onnxfold writes it."""
        if self.opset < 13 and self.dtype == TensorProto.BFLOAT16:
            return self.carry_minus_mean(x, y)
        self.own("Center", -1)
        return self.node("Center", x, domain="onnxfold", axis=-1)

    def carry_triangle(self, x: str, y: str) -> str:
        if self.opset < 14:
            return self.node("Abs", x)
        return self.node("Trilu", x)

    def carry_unknown_shape(self, x: str, y: str) -> str:
        """A shape that only the input tells."""
        return self.node("Add", x, self.node("Reshape", y, "shape"))

    def carry_runtime_scale(self, x: str, y: str) -> str:
        return self.node("Mul", x, self.rng.choice(("gate", "gamma_in")))

    def carry_counts(self, x: str, y: str) -> str:
        counts = self.node("Cast", self.unsqueeze("ids", 2), to=self.dtype)
        return self.node("Add", x, counts)

    def carry_relu(self, x: str, y: str) -> str:
        return self.node("Relu", x)

    def carry_einsum(self, x: str, y: str) -> str:
        W = self.weight(self.C, self.C)
        if self.chance(0.5):
            return self.node("Einsum", self.probabilities(), x, equation="bij,bjk->bik")
        return self.node("Einsum", x, W, equation="btc,cd->btd")

    def carry_squeezed(self, x: str, y: str) -> str:
        axis = self.rng.choice((0, 2, 3))
        return self.squeeze(self.node("Neg", self.unsqueeze(x, axis)), axis)

    def carry_global_pool(self, x: str, y: str) -> str:
        return self.node("Add", y, self.swap(self.node("GlobalAveragePool", self.swap(x))))
