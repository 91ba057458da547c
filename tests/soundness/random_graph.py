"""Random models: several streams, writers and carriers of every kind, readers of every kind.

A stream is a [B, T, C] value that norms read; hidden is a [B, T, H] value that writers read.  All
floats are of one type.  What a graph holds is counted in ``made``, so that a test can tell that
every kind of thing did occur.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.soundness.sample import Array

__all__ = ["RandomGraph", "random_graph"]

B, T, H = 2, 4, 3
_OPSETS = (12, 13, 17, 18, 21, 23)


@dataclass(slots=True)
class RandomGraph:
    """A model, inputs for it, and what it is made of."""

    model: onnx.ModelProto
    feeds: dict[str, Array]
    made: Counter[str]


@dataclass(slots=True)
class Body:
    """One graph under construction: the main graph, or a branch of an If."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def random_graph(seed: int) -> RandomGraph:
    """Return the model of a seed."""
    return _Maker(random.Random(seed)).make()  # noqa: S311 # no secret


class _Maker:
    def __init__(self, rng: random.Random):
        self.rng = rng
        self.numbers = np.random.default_rng(rng.getrandbits(32))
        self.opset = rng.choice(_OPSETS)
        self.C = rng.choice((2, 4, 6))
        self.dtype = TensorProto.DOUBLE if rng.random() < 0.8 else TensorProto.FLOAT
        self.symbolic = rng.random() < 0.5
        self.count = 0
        self.made: Counter[str] = Counter()
        self.body = Body()
        self.weights: dict[tuple[int, ...], list[str]] = {}
        self.shared: list[str] = []

    # Names, constants and nodes

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def node(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        return self.nodes(op_type, *inputs, outputs=outputs, **attributes)[0]

    def nodes(self, op_type: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        names = [self.name(op_type.lower()) for _ in range(outputs)]
        made = helper.make_node(op_type, inputs, names, name=f"n_{names[0]}", **attributes)
        self.body.nodes.append(made)
        return names

    def ints(self, *values: int) -> str:
        return self.initializer(np.array(values, dtype=np.int64), "ints")

    def initializer(self, array: Array, stem: str) -> str:
        name = self.name(stem)
        self.body.initializers.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, array: Array) -> Array:
        return array.astype(helper.tensor_dtype_to_np_dtype(self.dtype))

    def scalar(self, value: float) -> str:
        return self.initializer(self.floats(np.array(value)), "scalar")

    def weight(self, *shape: int) -> str:
        """A weight: new or one that others read too; at times behind an operator of constants."""
        known = self.weights.setdefault(shape, [])
        if known and self.chance(0.25):
            self.made["shared weight"] += 1
            name = self.rng.choice(known)
            self.shared.append(name)
            return name
        array = self.floats(self.numbers.standard_normal(shape) + 0.3)
        if shape and self.chance(0.1):
            array = self.floats(array - array.mean(axis=-1, keepdims=True))
        name = self._stored(array)
        if self.body is self.main:
            known.append(name)
        return name

    def _stored(self, array: Array) -> str:
        kind = self.rng.random()
        if kind < 0.2:
            self.made["Constant node"] += 1
            return self.node("Constant", value=numpy_helper.from_array(array))
        if kind < 0.3:
            self.made["weight behind Identity"] += 1
            return self.node("Identity", self.initializer(array, "w"))
        if kind < 0.4 and array.ndim >= 2:
            self.made["weight behind Transpose"] += 1
            perm = self.rng.sample(range(array.ndim), array.ndim)
            stored = np.ascontiguousarray(np.transpose(array, np.argsort(perm)))
            return self.node("Transpose", self.initializer(stored, "w"), perm=perm)
        if kind < 0.45:
            self.made["weight behind Cast"] += 1
            return self.node("Cast", self.initializer(array, "w"), to=self.dtype)
        if kind < 0.5:
            self.made["weight behind Unsqueeze"] += 1
            return self.squeeze(self.unsqueeze(self.initializer(array, "w"), 0), 0)
        return self.initializer(array, "w")

    def with_axes(self, op_type: str, x: str, axes: list[int], since: int, **rest: Any) -> str:
        if self.opset < since:
            return self.node(op_type, x, axes=axes, **rest)
        return self.node(op_type, x, self.ints(*axes), **rest)

    def unsqueeze(self, x: str, axis: int) -> str:
        return self.with_axes("Unsqueeze", x, [axis], 13)

    def squeeze(self, x: str, axis: int) -> str:
        return self.with_axes("Squeeze", x, [axis], 13)

    def mean(self, x: str, axis: int, keepdims: int = 1) -> str:
        return self.with_axes("ReduceMean", x, [axis], 18, keepdims=keepdims)

    def swap(self, x: str) -> str:
        return self.node("Transpose", x, perm=[0, 2, 1])

    # The model

    def make(self) -> RandomGraph:
        self.main = self.body
        self.body.hidden.append("x")
        for _ in range(self.rng.randint(1, 3)):
            self.write()
        for _ in range(self.rng.randint(3, 14)):
            self.step()
        self.finish()
        batch: Any = "batch" if self.symbolic else B
        inputs = [
            helper.make_tensor_value_info("x", self.dtype, [batch, T, H]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, [batch, T]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, [T, 1]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ]
        outputs = [
            helper.make_tensor_value_info(name, self.dtype, None)
            for name in dict.fromkeys(self.body.outputs)
        ]
        graph = helper.make_graph(
            self.body.nodes, "random", inputs, outputs, self.body.initializers
        )
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=9)
        feeds = {
            "x": self.floats(self.numbers.standard_normal((B, T, H))),
            "ids": self.numbers.integers(0, 5, (B, T)),
            "mask": self.numbers.random((T, 1)) < 0.5,
            "flag": np.array(self.chance(0.5)),
        }
        return RandomGraph(model, feeds, self.made)

    def step(self) -> None:
        choices = [
            (0.20, self.write),
            (0.38, self.carry),
            (0.24, self.normalise),
            (0.08, self.read),
            (0.03, self.read_weight),
            (0.03, self.branch),
            (0.04, self.leave),
        ]
        draw = self.rng.random()
        for probability, action in choices:
            draw -= probability
            if draw < 0:
                action()
                return

    def finish(self) -> None:
        """Let the last streams be normalised, and every end be an output."""
        for _ in range(self.rng.randint(1, 2)):
            self.normalise()
        self.body.outputs.append(self.body.hidden[-1])
        read = {name for node in self.body.nodes for name in node.input}
        for stream in self.body.streams:
            if stream not in read:
                if self.chance(0.15):
                    self.made["stream is an output"] += 1
                    self.body.outputs.append(stream)
                else:
                    self.body.outputs.append(self.norm(stream))

    def stream(self) -> str:
        return self.rng.choice(self.body.streams[-4:])

    def leave(self) -> None:
        self.made["stream is an output"] += 1
        self.body.outputs.append(self.stream())

    # Writers

    def write(self) -> None:
        h = self.rng.choice(self.body.hidden[-3:])
        kinds = [
            "matmul", "matmul", "gemm", "conv", "conv_transpose", "table", "left", "einsum",
            "position", "bias", "split_writer",
        ]  # fmt: skip
        kind = self.rng.choice(kinds)
        if kind in ("position", "bias") and not self.body.streams:
            kind = "matmul"
        self.made[f"writer {kind}"] += 1
        new = getattr(self, f"write_{kind}")(h)
        if self.body.streams and self.chance(0.6):
            new = self.node("Add", *self.rng.sample([self.stream(), new], 2))
        self.body.streams.append(new)

    def write_matmul(self, h: str) -> str:
        y = self.node("MatMul", h, self.weight(H, self.C))
        return self.node("Add", y, self.weight(self.C)) if self.chance(0.6) else y

    def write_gemm(self, h: str) -> str:
        rows = self.node("Reshape", h, self.ints(-1, H))
        flags: dict[str, Any] = {}
        if self.chance(0.3):
            rows, flags["transA"] = self.node("Transpose", rows, perm=[1, 0]), 1
        if self.chance(0.5):
            flags["transB"] = 1
        for name in ("alpha", "beta"):
            if self.chance(0.4):
                flags[name] = self.rng.choice((0.5, -2.0))
        W = self.weight(self.C, H) if "transB" in flags else self.weight(H, self.C)
        bias = [self.weight(*self.rng.choice(((self.C,), (1, self.C), (1,))))]
        y = self.node("Gemm", rows, W, *bias[: self.rng.randint(0, 1)], **flags)
        return self.node("Reshape", y, self.ints(-1, T, self.C))

    def write_conv(self, h: str) -> str:
        k = self.rng.choice((1, 3))
        inputs = [self.swap(h), self.weight(self.C, H, k), self.weight(self.C)]
        y = self.node("Conv", *inputs[: self.rng.randint(2, 3)], pads=[k // 2, k // 2])
        return self.swap(y)

    def write_conv_transpose(self, h: str) -> str:
        inputs = [self.swap(h), self.weight(H, self.C, 1), self.weight(self.C)]
        return self.swap(self.node("ConvTranspose", *inputs[: self.rng.randint(2, 3)]))

    def write_table(self, h: str) -> str:
        if self.chance(0.3):
            table = self.node("Transpose", self.weight(self.C, 5), perm=[1, 0])
        else:
            table = self.weight(5, self.C)
        return self.node("Gather", table, "ids", axis=0)

    def write_left(self, h: str) -> str:
        return self.swap(self.node("MatMul", self.weight(self.C, H), self.swap(h)))

    def write_einsum(self, h: str) -> str:
        return self.node("Einsum", h, self.weight(H, self.C), equation="bth,hc->btc")

    def write_position(self, h: str) -> str:
        return self.node("Add", self.stream(), self.weight(T, self.C))

    def write_bias(self, h: str) -> str:
        shape = self.rng.choice(((self.C,), (1, self.C), (1, 1, self.C), (T, 1), (1,)))
        return self.node("Add", self.stream(), self.weight(*shape))

    def write_split_writer(self, h: str) -> str:
        """Queries and keys from one product; the parts are cut off the fiber, or along it."""
        if self.chance(0.5):
            y = self.node("MatMul", h, self.weight(H, 2 * self.C))
            parts = self.split(y, -1)
        else:
            wide = self.node("Concat", h, h, axis=1)
            parts = self.split(self.node("MatMul", wide, self.weight(H, self.C)), 1)
        if self.chance(0.4):
            self.made["part of a Split is an output"] += 1
            self.body.outputs.append(parts[1])
        elif self.chance(0.5):
            self.body.streams.append(parts[1])
        return parts[0]

    def split(self, x: str, axis: int) -> list[str]:
        rest = {"num_outputs": 2} if self.opset >= 18 else {}
        return self.nodes("Split", x, outputs=2, axis=axis, **rest)

    # Carriers

    def carry(self) -> None:
        x, y = self.stream(), self.stream()
        kinds = [
            "add", "add", "sub", "sum", "scale", "divide", "neg", "cast", "dropout", "where",
            "transpose", "reshape", "slices", "gather", "attention", "mixing", "reduce", "tile",
            "pad", "cumsum", "pool", "resize", "square", "affine", "joined", "minus_mean",
            "self_product",
        ]  # fmt: skip
        kind = self.rng.choice(kinds)
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
        """A value that stands on both sides of a product, of which one side is carried."""
        W = self.weight(self.C, self.C)
        return self.node("MatMul", x, self.node("MatMul", W, W))

    # Norms and other readers

    def normalise(self) -> None:
        normed = self.norm(self.stream())
        if self.chance(0.25):
            self.body.streams.append(normed)
        if self.chance(0.85):
            h = self.node("MatMul", normed, self.weight(self.C, H))
            self.body.hidden.append(self.node("Relu", h) if self.chance(0.5) else h)

    def norm(self, x: str) -> str:
        if self.chance(0.12):
            self.made["norm of another fiber"] += 1
            return self.swap(self.layer_norm(self.swap(x), T))
        if self.chance(0.12):
            self.made["norm over two axes"] += 1
            return self.layer_norm(x, self.C, wide=True)
        return self.layer_norm(x, self.C)

    def layer_norm(self, x: str, size: int, *, wide: bool = False) -> str:
        shape = (T, size) if wide else (size,)
        if self.opset < 17 or self.chance(0.3):
            return self.spelled_norm(x, size, wide=wide)
        self.made["norm as an op"] += 1
        gamma = np.ones(shape) if self.chance(0.3) else 1 + self.numbers.random(shape)
        inputs = [x, self.initializer(self.floats(gamma), "gamma")]
        if self.chance(0.6):
            beta = self.numbers.random(shape) if self.chance(0.7) else np.zeros(shape)
            inputs.append(self.initializer(self.floats(beta), "beta"))
        return self.node("LayerNormalization", *inputs, axis=-2 if wide else -1, epsilon=2.0**-10)

    def spelled_norm(self, x: str, size: int, *, wide: bool) -> str:
        self.made["norm spelled out"] += 1
        axes = [-2, -1] if wide else [-1]
        mean = self.with_axes("ReduceMean", x, axes, 18, keepdims=1)
        centred = self.node("Sub", x, mean)
        square = self.node("Pow", centred, self.scalar(2.0))
        variance = self.with_axes("ReduceMean", square, axes, 18, keepdims=1)
        root = self.node("Sqrt", self.node("Add", variance, self.scalar(2.0**-10)))
        y = self.node("Div", centred, root)
        if self.chance(0.7):
            y = self.node(
                "Mul", y, self.initializer(self.floats(1 + self.numbers.random(size)), "gamma")
            )
        if self.chance(0.6):
            y = self.node(
                "Add", y, self.initializer(self.floats(self.numbers.random(size)), "beta")
            )
        if self.chance(0.08):
            self.made["statistics are read"] += 1
            leak = self.rng.choice((mean, centred, variance))
            self.body.outputs.append(self.node("Relu", leak))
        return y

    def read(self) -> None:
        """A reader that must see the original value, or one that does not see a shift."""
        x = self.stream()
        kind = self.rng.choice(("relu", "matmul", "softmax", "shape"))
        self.made[f"reader {kind}"] += 1
        if kind == "relu":
            y = self.node("Sigmoid", x)
        elif kind == "matmul":
            self.body.hidden.append(self.node("MatMul", x, self.weight(self.C, H)))
            return
        elif kind == "softmax":
            y = self.node("Softmax", x, axis=2)
        else:
            count = self.node("Cast", self.node("Size", x), to=self.dtype)
            y = self.node("Mul", self.scalar(0.01), count)
        self.body.outputs.append(y)

    def read_weight(self) -> None:
        """An exact reader of a weight: a tied table."""
        if self.body is not self.main:
            return
        known = [name for names in self.weights.values() for name in names]
        if known:
            self.made["exact reader of a weight"] += 1
            self.body.outputs.append(self.node("Tanh", self.rng.choice(known)))

    def branch(self) -> None:
        """An If whose branches hold writers and norms of their own, and read the outer graph."""
        if self.body is not self.main:
            return
        self.made["If"] += 1
        graphs = []
        for stem in ("then", "else"):
            self.body = Body(hidden=list(self.main.hidden[-2:]))
            if self.chance(0.5):
                self.body.streams.append(self.rng.choice(self.main.streams))
            for _ in range(self.rng.randint(1, 2)):
                self.write()
            for _ in range(self.rng.randint(1, 3)):
                self.rng.choice((self.carry, self.normalise, self.write))()
            self.normalise()
            if len(self.body.hidden) < 3:
                h = self.node("MatMul", self.norm(self.stream()), self.weight(self.C, H))
                self.body.hidden.append(h)
            result = helper.make_tensor_value_info(self.body.hidden[-1], self.dtype, None)
            graphs.append(
                helper.make_graph(self.body.nodes, stem, [], [result], self.body.initializers)
            )
        self.body = self.main
        y = self.node("If", "flag", then_branch=graphs[0], else_branch=graphs[1])
        self.body.hidden.append(self.node("Reshape", y, self.ints(-1, T, H)))
