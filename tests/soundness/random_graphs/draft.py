"""A model under construction: names, constants, weights and nodes, in any opset and float type."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from onnxfold.operators.bodies import Setting, function
from tests.operators.sample import Array

__all__ = ["TYPES", "B", "Body", "Draft", "H", "RandomGraph", "T"]

B, T, H = 2, 4, 3
TYPES = (TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_OPSETS = (12, 13, 15, 17, 18, 20, 21, 22, 23, 24)


@dataclass(slots=True)
class RandomGraph:
    """A model, inputs for it, and its ingredients.

    ``operators`` are evaluators of operators for which onnx has none, or a wrong one.
    """

    model: onnx.ModelProto
    feeds: dict[str, Array]
    made: Counter[str]
    operators: tuple[type, ...] = ()


@dataclass(slots=True)
class Body:
    """One graph under construction: the main graph, or the body of a control flow operator.

    A stream is a [B, T, C] value that norms read; hidden is a [B, T, H] value that writers read.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


class Draft:
    """Makes the nodes of one random model; a family of operators is a subclass of it."""

    def __init__(self, rng: random.Random, opset: int | None = None):
        self.rng = rng
        self.numbers = np.random.default_rng(rng.getrandbits(32))
        self.opset = rng.choice(_OPSETS) if opset is None else opset
        self.C = rng.choice((2, 4, 6))
        self.dtype: int = rng.choices(TYPES, (60, 15, 15, 10))[0]
        self.symbolic = rng.random() < 0.5
        self.count = 0
        self.made: Counter[str] = Counter()
        self.main = self.body = Body()
        self.weights: dict[tuple[int, ...], list[str]] = {}
        self.inputs: dict[str, tuple[int, list[Any]]] = {}
        self.feeds: dict[str, Array] = {}
        self.functions: dict[str, onnx.FunctionProto] = {}
        self.domains: set[str] = set()

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
        self.domains |= {made.domain} - {""}
        return names

    def own(self, name: str, axis: int) -> None:
        """Give the model the body of one of onnxfold's functions, for calls of one axis."""
        if name not in self.functions:
            setting = Setting(ir.DataType(self.dtype), -axis)
            body = function(name, self.opset, setting)
            self.functions[name] = ir.to_proto(body)

    def input(self, name: str, array: Array, dims: list[Any] | None = None) -> str:
        """An input of the model with the array to feed it."""
        if array.dtype.kind == "f":
            array = self.floats(array)
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.inputs[name] = (element, list(array.shape) if dims is None else dims)
        self.feeds[name] = array
        return name

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

    def parameter(self, array: Array, stem: str) -> str:
        """A constant of the model's type without other readers."""
        return self.initializer(self.floats(array), stem)

    def weight(self, *shape: int) -> str:
        """A weight: new or one that others read too; sometimes after an operator of constants."""
        known = self.weights.setdefault(shape, [])
        if known and self.chance(0.25):
            self.made["shared weight"] += 1
            return self.rng.choice(known)
        array = self.floats(self.numbers.standard_normal(shape) + 0.3)
        if shape and self.chance(0.1):
            array = self.floats(array - array.mean(axis=-1, keepdims=True))
        name = self._stored(array)
        if self.body is self.main:
            known.append(name)
        return name

    def _stored(self, array: Array) -> str:
        kind = self.rng.random()
        if kind < 0.15:
            self.made["Constant node"] += 1
            return self.node("Constant", value=numpy_helper.from_array(array))
        if kind < 0.2:
            self.made["weight behind Identity"] += 1
            return self.node("Identity", self.initializer(array, "w"))
        if kind < 0.28 and array.ndim >= 2:
            self.made["weight behind Transpose"] += 1
            perm = self.rng.sample(range(array.ndim), array.ndim)
            stored = np.ascontiguousarray(np.transpose(array, np.argsort(perm)))
            return self.node("Transpose", self.initializer(stored, "w"), perm=perm)
        if kind < 0.32:
            self.made["weight behind Cast"] += 1
            return self.node("Cast", self.initializer(array, "w"), to=self.dtype)
        if kind < 0.36:
            self.made["weight behind Unsqueeze"] += 1
            return self.squeeze(self.unsqueeze(self.initializer(array, "w"), 0), 0)
        if kind < 0.38 and self.body is self.main:
            self.made["overridable weight"] += 1
            name = self.initializer(array, "w")
            self.inputs[name] = (self.dtype, list(array.shape))
            return name
        if kind < 0.44 and array.ndim == 2 and self.opset >= 19:
            self.made["quantised weight"] += 1
            return self._quantised(array)
        return self.initializer(array, "w")

    def _quantised(self, array: Array) -> str:
        steps = np.clip(np.round(array.astype(np.float32) / 0.02), -127, 127).astype(np.int8)
        step = self.initializer(np.array(0.02, np.float32), "step")
        wide = self.node("DequantizeLinear", self.initializer(steps, "q"), step)
        return wide if self.dtype == TensorProto.FLOAT else self.node("Cast", wide, to=self.dtype)

    def with_axes(self, op_type: str, x: str, axes: list[int], since: int, **rest: Any) -> str:
        if self.opset < since:
            return self.node(op_type, x, axes=axes, **rest)
        return self.node(op_type, x, self.ints(*axes), **rest)

    def unsqueeze(self, x: str, axis: int) -> str:
        return self.with_axes("Unsqueeze", x, [axis], 13)

    def squeeze(self, x: str, axis: int) -> str:
        return self.with_axes("Squeeze", x, [axis], 13)

    def mean(self, x: str, *axes: int, keepdims: int = 1) -> str:
        return self.with_axes("ReduceMean", x, list(axes), 18, keepdims=keepdims)

    def total(self, x: str, *axes: int) -> str:
        return self.with_axes("ReduceSum", x, list(axes), 13, keepdims=1)

    def swap(self, x: str) -> str:
        return self.node("Transpose", x, perm=[0, 2, 1])

    def stream(self) -> str:
        return self.rng.choice(self.body.streams[-4:])

    def split(self, x: str, axis: int, count: int = 2) -> list[str]:
        rest = {"num_outputs": count} if self.opset >= 18 else {}
        return self.nodes("Split", x, outputs=count, axis=axis, **rest)

    def finished(self, operators: tuple[type, ...] = ()) -> RandomGraph:
        """The model of everything that was made."""
        inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in self.inputs.items()]
        outputs = [
            helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(self.main.outputs)
        ]
        graph = helper.make_graph(
            self.main.nodes, "random", inputs, outputs, self.main.initializers
        )
        imports = [helper.make_opsetid("", self.opset)]
        domains = self.domains | {function.domain for function in self.functions.values()}
        imports += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
        model = helper.make_model(
            graph,
            opset_imports=imports,
            ir_version=10 if self.functions else 9,
            functions=list(self.functions.values()),
        )
        return RandomGraph(model, self.feeds, self.made, operators)
