"""Norms: operators, contrib forms and spellings, over any axes, and what reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from tests.soundness.random_graphs.draft import Draft, H, T

__all__ = ["Norms"]

EPSILON = 2.0**-10
_MICROSOFT = "com.microsoft"
_OTHERS = (
    "rms", "rms", "l2", "mean_variance", "dyt", "instance", "group", "skip", "skip", "skip_rms",
    "embedding", "batch_axis", "skip_group",
)  # fmt: skip


class Norms(Draft):
    """Makes normalized [B, T, C] values from [B, T, C] values, and hidden ones from those."""

    def normalise(self) -> None:
        normed = self.norm(self.stream())
        if self.chance(0.25):
            self.body.streams.append(normed)
        if self.chance(0.85):
            h = self.read_linear(self.passed(normed) if self.chance(0.3) else normed)
            self.body.hidden.append(self.node("Relu", h) if self.chance(0.5) else h)

    def norm(self, x: str) -> str:
        draw = self.rng.random()
        if draw < 0.08:
            self.made["norm of another fiber"] += 1
            return self.swap(self.layer_norm(self.swap(x), (T,)))
        if draw < 0.16:
            self.made["norm over two axes"] += 1
            return self.layer_norm(x, (T, self.C))
        if draw < 0.28:
            self.made["norm of groups"] += 1
            return self.grouped(x)
        if draw < 0.50:
            kind = self.rng.choice(_OTHERS)
            self.made[f"norm {kind}"] += 1
            return str(getattr(self, f"norm_{kind}")(x))
        return self.layer_norm(x, (self.C,))

    # LayerNorm

    def layer_norm(self, x: str, shape: tuple[int, ...]) -> str:
        if self.opset < 17 or self.chance(0.4):
            return self.spelled(x, shape)
        self.made["norm as an op"] += 1
        inputs = [x, self.gamma(shape)]
        if self.chance(0.6):
            inputs.append(self.beta(shape))
        count = 1
        if self.chance(0.06):
            self.made["statistics are outputs"] += 1
            count = self.rng.choice((2, 3))
        outputs = self.nodes(
            "LayerNormalization", *inputs, outputs=count, axis=-len(shape), epsilon=EPSILON
        )
        if count > 1:
            self.body.outputs.append(outputs[-1])
        return outputs[0]

    def gamma(self, shape: tuple[int, ...]) -> str:
        own = self.dtype == self.inputs["gamma_in"][0]
        if own and shape == (self.C,) and self.chance(0.08):
            self.made["gamma at run time"] += 1
            return self.node("Neg", "gamma_in") if self.chance(0.5) else "gamma_in"
        numbers = np.ones(shape) if self.chance(0.3) else 1 + self.numbers.random(shape)
        return self.parameter(numbers, "gamma")

    def beta(self, shape: tuple[int, ...]) -> str:
        numbers = self.numbers.random(shape) if self.chance(0.7) else np.zeros(shape)
        return self.parameter(numbers, "beta")

    def spelled(self, x: str, shape: tuple[int, ...]) -> str:
        """One of the spellings that exporters write, with gamma and beta or without."""
        self.made["norm spelled out"] += 1
        if self.dtype not in (TensorProto.DOUBLE, TensorProto.FLOAT) and self.chance(0.4):
            return self._widely(x, shape)
        axes = list(range(-len(shape), 0))
        mean = self._mean(x, axes)
        centred = self.node("Sub", x, mean)
        deviated = self.node("Sub", x, mean) if self.chance(0.15) else centred
        variance = self._mean(self._squared(deviated), axes)
        if self.chance(0.08):
            self.made["norm with E[x^2] - mean^2"] += 1
            variance = self.node("Sub", self._mean(self._squared(x), axes), self._squared(mean))
        y = self._affine(self._divided(centred, variance), shape)
        if self.chance(0.08):
            self.made["statistics are read"] += 1
            leak = self.rng.choice((mean, centred, variance))
            self.body.outputs.append(self.node("Sigmoid", leak))
        return y

    def _widely(self, x: str, shape: tuple[int, ...]) -> str:
        """Statistics in float32 between two Casts, as exporters write for half precision."""
        self.made["norm between Casts"] += 1
        narrow, self.dtype = self.dtype, TensorProto.FLOAT
        axes = list(range(-len(shape), 0))
        wide = self.node("Cast", x, to=self.dtype)
        centred = self.node("Sub", wide, self.mean(wide, *axes))
        y = self._divided(centred, self.mean(self._squared(centred), *axes))
        inside = self.chance(0.5)
        y = self._affine(y, shape) if inside else y
        self.dtype = narrow
        y = self.node("Cast", y, to=self.dtype)
        return y if inside else self._affine(y, shape)

    def _mean(self, x: str, axes: list[int]) -> str:
        if len(axes) == 1 and axes[0] == -1 and self.chance(0.1):
            self.made["mean as a sum"] += 1
            return self.node("Div", self.total(x, -1), self.scalar(float(self.C)))
        return self.mean(x, *axes)

    def _squared(self, x: str) -> str:
        if self.chance(0.3):
            return self.node("Mul", x, x)
        return self.node("Pow", x, self.scalar(2.0))

    def _divided(self, centred: str, variance: str) -> str:
        if self.chance(0.06):
            self.made["epsilon outside of the root"] += 1
            root = self.node("Add", self.node("Sqrt", variance), self.scalar(EPSILON))
            return self.node("Div", centred, root)
        epsilon = self.scalar(self.rng.choice((EPSILON, EPSILON, 1e-3)))
        moved = self.node("Add", *self.rng.sample([variance, epsilon], 2))
        kind = self.rng.random()
        if kind < 0.15:
            inverse = self.node("Pow", moved, self.scalar(-0.5))
        else:
            inverse = self.node("Sqrt", moved)
            if kind < 0.65:
                return self.node("Div", centred, inverse)
            if kind < 0.8:
                inverse = self.node("Div", self.scalar(1.0), inverse)
            else:
                inverse = self.node("Reciprocal", inverse)
        return self.node("Mul", *self.rng.sample([centred, inverse], 2))

    def _affine(self, y: str, shape: tuple[int, ...]) -> str:
        last = shape[-1:] if self.chance(0.7) else shape
        if self.chance(0.7):
            y = self.node("Mul", *self.rng.sample([y, self.gamma(last)], 2))
        if self.chance(0.6):
            y = self.node("Add", *self.rng.sample([y, self.beta(last)], 2))
        return y

    def grouped(self, x: str) -> str:
        """A norm per head: blocks of the channels."""
        heads = self.C // 2 if self.C > 2 and self.chance(0.7) else 1
        shape = self.ints(0, 0, heads, self.C // heads)
        y = self.layer_norm(self.node("Reshape", x, shape), (self.C // heads,))
        return self.node("Reshape", y, self.ints(0, 0, self.C))

    # Norms that keep the mean, and norms of another form

    def norm_rms(self, x: str) -> str:
        if self.opset >= 23 and self.chance(0.5):
            return self.node("RMSNormalization", x, self.gamma((self.C,)), epsilon=EPSILON)
        if self.chance(0.4):
            return self._simplified(x)
        square = self.mean(self._squared(x), -1)
        return self._affine(self._divided(x, square), (self.C,))

    def _simplified(self, x: str) -> str:
        return self.node(
            "SimplifiedLayerNormalization", x, self.gamma((self.C,)), axis=-1, epsilon=EPSILON,
            stash_type=1,
        )  # fmt: skip

    def norm_l2(self, x: str) -> str:
        return self.node("LpNormalization", x, axis=-1, p=2)

    def norm_mean_variance(self, x: str) -> str:
        if self.opset < 13:
            return self.spelled(x, (self.C,))
        return self.node("MeanVarianceNormalization", x, axes=[2])

    def norm_dyt(self, x: str) -> str:
        y = self.node("Tanh", self.node("Mul", x, self.scalar(0.5)))
        return self._affine(y, (self.C,))

    def norm_instance(self, x: str) -> str:
        scale, bias = self.gamma((self.C,)), self.parameter(np.ones(self.C), "beta")
        y = self.node("InstanceNormalization", self.swap(x), scale, bias, epsilon=EPSILON)
        return self.swap(y)

    def norm_group(self, x: str) -> str:
        """GroupNormalization of vectors, or of images where it is not a fold."""
        if self.opset < 18:
            return self.grouped(x)
        groups = self.rng.choice((1, 2))
        size = groups if self.opset < 21 else self.C
        parts = [self.parameter(1 + self.numbers.random(size), "gamma"),
                 self.parameter(self.numbers.random(size), "beta")]  # fmt: skip
        rest = {"num_groups": groups, "epsilon": EPSILON}
        if self.chance(0.3):
            return self.swap(self.node("GroupNormalization", self.swap(x), *parts, **rest))
        rows = self.node("Reshape", x, self.ints(-1, self.C))
        y = self.node("GroupNormalization", rows, *parts, **rest)
        return self.node("Reshape", y, self.ints(-1, T, self.C))

    def norm_batch_axis(self, x: str) -> str:
        """Along an axis whose size is not known where the batch is symbolic."""
        if self.body is not self.main:
            return self.spelled(x, (self.C,))
        y = self.node("Transpose", x, perm=[1, 2, 0])
        centred = self.node("Sub", y, self.mean(y, -1))
        variance = self.mean(self._squared(centred), -1)
        return self.node("Transpose", self._divided(centred, variance), perm=[2, 0, 1])

    # Fused forms of ONNX Runtime

    def norm_skip(self, x: str) -> str:
        inputs = [x, self.stream(), self.gamma((self.C,)), self.beta((self.C,))]
        if self.chance(0.4):
            inputs.append(self.weight(self.C))
        return self._skip("SkipLayerNormalization", inputs)

    def norm_skip_rms(self, x: str) -> str:
        inputs = [x, self.stream(), self.gamma((self.C,)), self.weight(self.C)]
        return self._skip("SkipSimplifiedLayerNormalization", inputs[: self.rng.randint(3, 4)])

    def _skip(self, op_type: str, inputs: list[str]) -> str:
        normed, _, _, total = self.nodes(
            op_type, *inputs, outputs=4, domain=_MICROSOFT, epsilon=EPSILON
        )
        if self.chance(0.5):
            self.body.streams.append(total)
        return normed

    def norm_embedding(self, x: str) -> str:
        """EmbedLayerNormalization: the stream is made inside."""
        ids = self.node("Cast", "ids", to=TensorProto.INT32)
        tables = [self.weight(5, self.C), self.weight(T, self.C), self.weight(5, self.C)]
        inputs = [ids, ids, *tables, self.gamma((self.C,)), self.beta((self.C,))]
        if self.chance(0.4):
            inputs[1] = inputs[4] = ""
        normed, _, total = self.nodes(
            "EmbedLayerNormalization", *inputs, outputs=3, domain=_MICROSOFT, epsilon=EPSILON
        )
        if self.chance(0.4):
            self.body.streams.append(total)
        return normed

    def norm_skip_group(self, x: str) -> str:
        """SkipGroupNorm, channels last, of vectors: one pixel per sample."""
        shape = self.ints(-1, 1, 1, self.C)
        images = [self.node("Reshape", value, shape) for value in (x, self.stream())]
        parts = [self.parameter(1 + self.numbers.random(self.C), "gamma"),
                 self.parameter(self.numbers.random(self.C), "beta")]  # fmt: skip
        rest: dict[str, Any] = {
            "domain": _MICROSOFT, "channels_last": 1, "epsilon": EPSILON, "activation": 0,
            "groups": self.rng.choice((1, 2)),
        }  # fmt: skip
        if self.chance(0.5):
            inputs = [images[0], *parts, images[1]]
            y, _ = self.nodes("SkipGroupNorm", *inputs, outputs=2, **rest)
        else:
            y = self.node("GroupNorm", images[0], *parts, **rest)
        return self.node("Reshape", y, self.ints(-1, T, self.C))

    # What reads a norm: gamma and beta move into it where it is linear

    def passed(self, y: str) -> str:
        """Layouts after a norm, through which gamma and beta pass or do not."""
        kind = self.rng.choice(
            ("heads", "slice", "pad", "scale", "concat", "mean", "cast", "split")
        )
        self.made[f"passed {kind}"] += 1
        if kind == "heads":
            heads = self.node("Reshape", y, self.ints(0, 0, 2, self.C // 2))
            perm = [0, 2, 1, 3] if self.chance(0.5) else [0, 1, 3, 2]
            heads = self.node("Transpose", self.node("Transpose", heads, perm=perm), perm=perm)
            return self.node("Reshape", heads, self.ints(0, 0, self.C))
        if kind == "slice":
            start, end, step = (0, 9, 1) if self.chance(0.5) else (-1, -99, -1)
            axis = self.rng.choice((1, 2))
            return self.node("Slice", y, *(self.ints(n) for n in (start, end, axis, step)))
        if kind == "pad":
            padded = self.node("Pad", y, self.ints(0, 1, 0, 0, 0, 0))
            return self.node("Slice", padded, self.ints(0), self.ints(T), self.ints(1))
        if kind == "scale":
            return self.node("Mul", y, self.rng.choice(("gate", self.scalar(0.5))))
        if kind == "concat":
            halves = self.split(y, 1)
            return self.node("Concat", *halves[::-1], axis=1)
        if kind == "mean":
            return self.node("Expand", self.mean(y, 1), self.ints(1, T, 1))
        if kind == "split":
            return self.node("Concat", *self.split(y, 2)[::-1], axis=2)
        return self.node("Cast", y, to=self.dtype)

    def read_linear(self, y: str) -> str:
        """A linear layer [B, T, C] -> [B, T, H] with a bias or without."""
        kind = self.rng.choice(("matmul", "matmul", "gemm", "conv", "fused", "einsum", "dynamic"))
        self.made[f"read by {kind}"] += 1
        if kind == "gemm":
            rows = self.node("Reshape", y, self.ints(-1, self.C))
            inputs = [rows, self.weight(self.C, H), self.weight(H)]
            flags = {"alpha": 0.5, "beta": -2.0} if self.chance(0.3) else {}
            out = self.node("Gemm", *inputs[: self.rng.randint(2, 3)], **flags)
            return self.node("Reshape", out, self.ints(-1, T, H))
        if kind == "conv":
            k = self.rng.choice((1, 3))
            inputs = [self.swap(y), self.weight(H, self.C, k), self.weight(H)]
            pads = [k // 2, k // 2]
            return self.swap(self.node("Conv", *inputs[: self.rng.randint(2, 3)], pads=pads))
        if kind == "fused":
            W = self.weight(H, self.C)
            return self.node("FusedMatMul", y, W, domain=_MICROSOFT, transB=1, alpha=0.5)
        if kind == "einsum":
            return self.node("Einsum", y, self.weight(self.C, H), equation="btc,ch->bth")
        if kind == "dynamic":
            W = self.node("Mul", self.weight(self.C, H), self.mean("gamma_in", 0))
            return self.node("MatMul", y, W)
        out = self.node("MatMul", y, self.weight(self.C, H))
        if self.chance(0.6):
            out = self.node("Add", *self.rng.sample([out, self.weight(H)], 2))
        if self.chance(0.2):
            out = self.node("Mul", out, self.rng.choice((self.scalar(0.25), self.weight(H))))
        return out
