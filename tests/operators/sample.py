"""One node with its operands: as a model for the analysis, as a function for the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfold.graph import Dim, ModelInfo
from onnxfold.shapes import infer

__all__ = ["Array", "Dims", "Draw", "Operand", "Sample"]

Array = npt.NDArray[Any]
Dims = tuple[int | str, ...]
Function = Callable[[list[Array | None], dict[str, Any]], list[Array]]

_SIZES = (1, 2, 2, 3, 3, 4, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of the node; ``moves`` where the oracle may change it (a float, no structure)."""

    array: Array
    dims: Dims
    constant: bool
    moves: bool


@dataclass(slots=True)
class Draw:
    """Random choices; ``size_of`` records the size of each symbolic dimension."""

    rng: random.Random
    size_of: dict[str, int] = field(default_factory=dict)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, items: Sequence[Any]) -> Any:
        return items[self.rng.randrange(len(items))]

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def dim(self, symbolic: float = 0.25, sizes: Sequence[int] = _SIZES) -> int | str:
        size = int(self.pick(sizes))
        if not self.chance(symbolic):
            return size
        symbol = f"s{len(self.size_of)}"
        self.size_of[symbol] = size
        return symbol

    def dims(self, low: int, high: int, symbolic: float = 0.25) -> Dims:
        return tuple(self.dim(symbolic) for _ in range(self.number(low, high)))

    def static(self, dims: Dims) -> tuple[int, ...]:
        return tuple(self.size_of[dim] if isinstance(dim, str) else dim for dim in dims)

    def axis(self, rank: int) -> int:
        """An axis as it may be written: from either end."""
        axis = self.number(0, rank - 1)
        return axis - rank if self.chance(0.5) else axis

    def normal(self, shape: Sequence[int]) -> Array:
        generator = np.random.default_rng(self.rng.getrandbits(32))
        return generator.standard_normal(tuple(shape)) + 0.5

    def floats(self, dims: Dims, constant: float = 0.3) -> Operand:
        array = self.normal(self.static(dims))
        if self.chance(constant):
            return Operand(array, self.static(dims), constant=True, moves=True)
        return Operand(array, dims, constant=False, moves=True)

    def narrower(self, dims: Dims) -> Dims:
        """Dimensions that broadcast to ``dims``: ones here and there, leading axes left out."""
        ones = tuple(1 if self.chance(0.35) else dim for dim in dims)
        return ones[self.number(0, len(ones)) :] if self.chance(0.35) else ones

    def sample(
        self,
        op_type: str,
        opset: int,
        operands: Sequence[Operand | None],
        attributes: dict[str, Any],
        **more: Any,
    ) -> Sample:
        return Sample(op_type, opset, tuple(operands), attributes, self.size_of, **more)

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        rest, result = list(items), []
        while rest:
            result.append(rest.pop(self.rng.randrange(len(rest))))
        return result


def fixed(array: Array, *, constant: bool = True) -> Operand:
    """An operand that says how, not what: axes, shapes, indices, masks."""
    return Operand(array, tuple(array.shape), constant=constant, moves=False)


@dataclass(frozen=True, slots=True)
class Sample:
    """A node, its operands and the opset; ``function`` if onnx has no evaluator for it."""

    op_type: str
    opset: int
    operands: tuple[Operand | None, ...]
    attributes: dict[str, Any]
    size_of: dict[str, int]
    outputs: int = 1
    domain: str = ""
    function: Function | None = None
    output_dims: tuple[int | str | None, ...] | None = None
    tolerance: float = 1e-10

    def view(self) -> ModelInfo:
        names = self._names()
        node = helper.make_node(
            self.op_type,
            names,
            [f"y{k}" for k in range(self.outputs)],
            name="node",
            domain=self.domain,
            **self.attributes,
        )
        inputs, initializers = [], []
        for name, operand in zip(names, self.operands, strict=True):
            if operand is None:
                continue
            if operand.constant:
                initializers.append(numpy_helper.from_array(operand.array, name))
            else:
                element = helper.np_dtype_to_tensor_dtype(operand.array.dtype)
                inputs.append(helper.make_tensor_value_info(name, element, operand.dims))
        declared = None if self.output_dims is None else list(self.output_dims)
        outputs = [
            helper.make_tensor_value_info(f"y{k}", self._output_type(), declared)
            if declared is not None
            else helper.make_empty_tensor_value_info(f"y{k}")
            for k in range(self.outputs)
        ]
        graph = helper.make_graph([node], "sample", inputs, outputs, initializers)
        imports = [helper.make_opsetid("", self.opset)]
        if self.domain:
            imports.append(helper.make_opsetid(self.domain, 1))
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return infer(ir.from_proto(model))

    def _output_type(self) -> int:
        return int(self.attributes.get("to", TensorProto.DOUBLE))

    def _names(self) -> list[str]:
        return ["" if o is None else f"x{k}" for k, o in enumerate(self.operands)]

    def arrays(self) -> list[Array | None]:
        return [None if operand is None else operand.array for operand in self.operands]

    def evaluator(self) -> Callable[[list[Array | None]], list[Array]]:
        """Return the node as a function of its operands, in float64."""
        function, attributes = self.function, self.attributes
        if function is not None:
            return lambda arrays: function(arrays, attributes)[: self.outputs]
        names = self._names()
        outputs = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.op_type, names, outputs, **self.attributes)
        # In a model: a node by itself is evaluated as one of the newest opset.
        operands = [helper.make_empty_tensor_value_info(name) for name in names if name]
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph([node], "sample", operands, results)
        imports = [helper.make_opsetid("", self.opset)]
        session = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))

        def run(arrays: list[Array | None]) -> list[Array]:
            feeds = {name: a for name, a in zip(names, arrays, strict=True) if a is not None}
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                return [np.asarray(result) for result in session.run(None, feeds)]

        return run

    def resolved(self, dim: Dim) -> int | None:
        """The size that a dimension of the view has in this sample, where that is known."""
        if isinstance(dim, int):
            return dim
        return None if dim is None else self.size_of.get(dim)


_ = onnx  # the evaluator's registry is filled by importing the package
