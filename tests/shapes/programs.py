"""Random models that compute sizes, with runs of them, to test inferred shapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfold.shapes.named_sizes import SymbolicShape
from tests.operators.sample import Array

__all__ = ["RUNS", "Program", "sized"]

_SYMBOLS = {"n": (3, 1, 2), "m": (5, 2, 1)}
_INPUTS: dict[str, SymbolicShape] = {"x": ("n", "m", 4), "z": ("m", 4), "w": (1, 4), "t": (4, 1)}
RUNS = [dict(zip(_SYMBOLS, sizes, strict=True)) for sizes in zip(*_SYMBOLS.values(), strict=True)]


def sized(shape: SymbolicShape, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in shape)


class Program:
    """Operators on shapes and sizes, put together at random; every one runs for all sizes."""

    def __init__(self, rng: random.Random, opset: int) -> None:
        self._rng, self._opset = rng, opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.runs: list[dict[str, Array]] = [
            {name: np.ones(sized(shape, sizes), np.float32) for name, shape in _INPUTS.items()}
            for sizes in RUNS
        ]
        self._tensors, self._vectors = list(_INPUTS), [self._constant([1])]
        for _ in range(14):
            make = rng.choice((*_OF_VECTORS, *_OF_TENSORS))
            if self._ran(make(self)):
                (self._vectors if make in _OF_VECTORS else self._tensors).append(self._last)
            if rng.random() < 0.2 and self._ran(self._compare()) and self._ran(self._choose()):
                self._vectors.append(self._last)

    @property
    def _last(self) -> str:
        return self.nodes[-1].output[0]

    def model(self) -> ir.Model:
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in _INPUTS.items()
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        outputs = [helper.make_empty_tensor_value_info(self._tensors[-1])]
        graph = helper.make_graph(self.nodes, "program", inputs, outputs, weights)
        imports = [helper.make_opsetid("", self._opset)]
        return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))

    def _constant(self, numbers: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(numbers, np.int64)
        return name

    def _number(self, low: int = -2, high: int = 4) -> int:
        return self._rng.randint(low, high)

    def _vector(self, count: int | None = None) -> str:
        """Return a vector; with a count, one of so many sizes."""
        fit = [v for v in self._vectors if count is None or self._in_first_run(v).size == count]
        return self._rng.choice(fit or [self._constant([1] * (count or 1))])

    def _in_first_run(self, name: str) -> Array:
        return self.constants[name] if name in self.constants else self.runs[0][name]

    def _tensor(self) -> str:
        return self._rng.choice(self._tensors)

    def _node(self, op_type: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op_type, inputs, [f"v{len(self.nodes)}"], **attributes)

    def _ran(self, node: onnx.NodeProto) -> bool:
        operands = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(node.input)]
        results = [helper.make_empty_tensor_value_info(node.output[0])]
        graph = helper.make_graph([node], "step", operands, results)
        imports = [helper.make_opsetid("", self._opset)]
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))
        if node.op_type == "Slice" and self._begins_before(node):
            return False  # with nothing in numpy, with the first element in ONNX
        if node.op_type == "Reshape" and self._in_first_run(node.input[1]).min(initial=0) < -1:
            return False  # which numpy takes, unlike ONNX
        try:
            given = [{**run, **self.constants} for run in self.runs]
            found = [
                evaluator.run(None, {name: run[name] for name in node.input})[0] for run in given
            ]
        except (RuntimeError, RuntimeWarning, ValueError, IndexError, TypeError):
            return False
        if any(array.size > 5000 for array in found) or any(array.ndim > 5 for array in found):
            return False
        for run, array in zip(self.runs, found, strict=True):
            run[node.output[0]] = np.asarray(array)
        self.nodes.append(node)
        return True

    def _begins_before(self, node: onnx.NodeProto) -> bool:
        if len(node.input) < 5 or self.constants[node.input[4]][0] > 0:
            return False
        data, start = self._in_first_run(node.input[0]), self.constants[node.input[1]][0]
        return bool(start < -data.size)

    def shape(self) -> onnx.NodeProto:
        bounds: dict[str, int] = {}
        if self._opset >= 15 and self._rng.random() < 0.5:
            bounds = {"start": self._number(-2, 1), "end": self._number(-1, 3)}
        return self._node("Shape", self._tensor(), **bounds)

    def size(self) -> onnx.NodeProto:
        return self._node("Size", self._tensor())

    def gather(self) -> onnx.NodeProto:
        places = [self._number(-2, 2) for _ in range(self._rng.randint(1, 2))]
        index = self._constant(places if self._rng.random() < 0.5 else places[0])
        return self._node("Gather", self._vector(), index)

    def slice(self) -> onnx.NodeProto:
        start, end, step = self._number(), self._number(), self._rng.choice((1, 1, 2, -1))
        if self._opset < 10:
            return self._node("Slice", self._vector(), starts=[start], ends=[end])
        bounds = [[start], [end], [0], [step]][: self._rng.choice((2, 3, 4, 4))]
        return self._node("Slice", self._vector(), *map(self._constant, bounds))

    def concat(self) -> onnx.NodeProto:
        parts = [self._vector() for _ in range(self._rng.randint(1, 2))]
        if self._rng.random() < 0.6:
            parts.append(self._constant([self._number(-1, 4)]))
        return self._node("Concat", *parts, axis=0)

    def arithmetic(self) -> onnx.NodeProto:
        other = self._constant([self._number(-1, 4)])
        operands = [self._vector(), self._vector() if self._rng.random() < 0.4 else other]
        self._rng.shuffle(operands)
        return self._node(self._rng.choice(("Add", "Sub", "Mul", "Div")), *operands)

    def _compare(self) -> onnx.NodeProto:
        vector = self._vector()
        count = self._in_first_run(vector).size
        other = self._vector(count) if self._rng.random() < 0.4 else self._constant([-1] * count)
        return self._node("Equal", *self._rng.sample((vector, other), 2))

    def _choose(self) -> onnx.NodeProto:
        """Choose by what was compared last: mostly of one of the two, as exporters do."""
        compared = self.nodes[-1]
        count = self._in_first_run(compared.output[0]).size
        either = [compared.input[0], self._vector(count)]
        return self._node("Where", compared.output[0], *self._rng.sample(either, 2))

    def product(self) -> onnx.NodeProto:
        return self._node("ReduceProd", self._vector(), keepdims=1)

    def largest(self) -> onnx.NodeProto:
        vector = self._vector()
        return self._node("Max", vector, self._vector(self._in_first_run(vector).size))

    def reshape(self) -> onnx.NodeProto:
        return self._node("Reshape", self._tensor(), self._vector())

    def flatten(self) -> onnx.NodeProto:
        target = self._rng.choice(([-1], [0, -1], [-1, 4], [0, 0, -1], [-1, 2, 2], [0, 0, 2, 2]))
        return self._node("Reshape", self._tensor(), self._constant(target))

    def expand(self) -> onnx.NodeProto:
        return self._node("Expand", self._tensor(), self._vector())

    def fill(self) -> onnx.NodeProto:
        return self._node("ConstantOfShape", self._vector())

    def range(self) -> onnx.NodeProto:
        """Count to a size, mostly from zero and in steps of one, as exporters count positions."""
        sizes = [v for v in self._vectors if self._in_first_run(v).ndim == 0]
        start, step = self._rng.choice((0, 0, 0, 1)), self._rng.choice((1, 1, 1, 2))
        limit = self._rng.choice(sizes or [self._constant(3)])
        return self._node("Range", self._constant(start), limit, self._constant(step))

    def cut(self) -> onnx.NodeProto:
        """Cut a tensor up to a size, as exporters cut tables of positions, or otherwise."""
        tensor = self._rng.choice(("t", self._tensor()))
        sizes = [v for v in self._vectors if self._in_first_run(v).shape == (1,)]
        size = self._rng.choice(sizes[1:] or sizes)
        rank = self.runs[0][tensor].ndim
        if self._opset < 10 or not rank:
            return self._node("Identity", tensor)
        start = self._constant([self._rng.choice((0, 0, 0, 1, -1))])
        places = [start, size, self._constant([self._number(-rank, rank - 1)])]
        steps = (
            [self._constant([self._rng.choice((1, 1, 2, -1))])] if self._rng.random() < 0.5 else []
        )
        return self._node("Slice", tensor, *places, *steps)

    def tile(self) -> onnx.NodeProto:
        tensor = self._tensor()
        return self._node("Tile", tensor, self._vector(self.runs[0][tensor].ndim))

    def add(self) -> onnx.NodeProto:
        return self._node("Add", self._tensor(), self._tensor())

    def multiply(self) -> onnx.NodeProto:
        return self._node("MatMul", self._tensor(), self._tensor())

    def transpose(self) -> onnx.NodeProto:
        tensor = self._tensor()
        order = list(range(self.runs[0][tensor].ndim))
        self._rng.shuffle(order)
        given = {"perm": order} if order and self._rng.random() < 0.7 else {}
        return self._node("Transpose", tensor, **given)

    def unsqueeze(self) -> onnx.NodeProto:
        count = self._rng.randint(1, 2)
        if self._opset < 13:
            # onnx's evaluator reads other axes one after the other; test_shapes.py tries them.
            return self._node(
                "Unsqueeze", self._tensor(), axes=sorted(self._rng.sample(range(3), count))
            )
        axes = self._rng.sample(range(-2, 2), count)
        return self._node("Unsqueeze", self._tensor(), self._constant(axes))

    def reduce(self) -> onnx.NodeProto:
        axes = [] if self._rng.random() < 0.3 else [self._number(-2, 1)]
        keepdims = self._rng.randint(0, 1)
        return self._node(
            "ReduceMean", self._tensor(), **({"axes": axes} if axes else {}), keepdims=keepdims
        )


_Step = Callable[[Program], onnx.NodeProto]
_OF_VECTORS: tuple[_Step, ...] = (
    Program.shape,
    Program.size,
    Program.gather,
    Program.slice,
    Program.concat,
    Program.arithmetic,
    Program.product,
    Program.largest,
)
_OF_TENSORS: tuple[_Step, ...] = (
    Program.reshape,
    Program.flatten,
    Program.expand,
    Program.fill,
    Program.range,
    Program.cut,
    Program.tile,
    Program.add,
    Program.multiply,
    Program.transpose,
    Program.unsqueeze,
    Program.reduce,
)
