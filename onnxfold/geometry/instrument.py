"""A copy of the model whose outputs are a few sums per row of every norm.

For each vector x that a norm reads or writes, the outputs are sum x, x.a, x.b and sum x^2, computed
in float64 from the model's own values: a float32 sum of d terms may err by d/2 units in its last
place, which exceeds the mean of a nearly centered vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.graph import AxisBlock, Dim, ModelInfo, Shape
from onnxfold.graph.edit import Editor, add_last, set_outputs
from onnxfold.norms import EpsilonMode, NormKind, NormSite
from onnxfold.norms.completed import reported_kind
from onnxfold.recognition import find_norms

COLUMNS = ("sum", "along_a", "along_b", "sum_of_squares")
_SIDES = ("before", "after")


@dataclass(frozen=True, slots=True)
class MeasuredNorm:
    """One norm: its outputs in the instrumented model, and the facts needed to evaluate them.

    ``outputs`` are the names of the tables of its input and output, [rows..., 4] in the order of
    :data:`COLUMNS`; ``row_dims`` the dims of the rows, if they are the input's.
    """

    name: str
    kind: str
    size: int
    subtracts_mean: bool
    epsilon: float
    epsilon_mode: EpsilonMode
    factor: float
    outputs: tuple[str, str]
    row_dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Instrumented:
    """The instrumented model, its norms in topological order, and those left out with a reason."""

    model: ir.Model
    norms: tuple[MeasuredNorm, ...]
    refused: tuple[tuple[str, str], ...]


def control_vectors(size: int, seed: int) -> npt.NDArray[np.float64]:
    """Return the random vectors a and b, [size, 2]: |a| = sqrt(size) like |1|, |b| another length.

    Both have normal elements, the same for all norms of one size.
    """
    vectors = np.random.default_rng([seed, size]).standard_normal((size, 2))
    vectors[:, 0] *= np.sqrt(size) / np.linalg.norm(vectors[:, 0])
    vectors[:, 1] *= 3.0
    return vectors


def instrument(info: ModelInfo, seed: int) -> Instrumented:
    """Return a copy of a model with the sums of its norms' vectors as its only outputs."""
    edit = Editor(info, copy=True)
    norms: list[MeasuredNorm] = []
    refused: list[tuple[str, str]] = []
    outputs: list[ir.Value] = []
    tables: dict[int, ir.Value] = {}
    for site in find_norms(info):
        layout = _row_layout(info, site)
        if isinstance(layout, str):
            refused.append((site.name, layout))
            continue
        table = tables.get(site.size) or tables.setdefault(
            site.size, _directions(edit, site.size, seed)
        )
        values = zip(_SIDES, (site.input, site.output), strict=True)
        prefix = f"onnxfold.measure.{len(norms)}"
        built = [
            _Sums(edit, layout, table, f"{prefix}.{side}").of(edit.value(value))
            for side, value in values
        ]
        outputs += built
        norms.append(_measured(info, site, layout, (str(built[0].name), str(built[1].name))))
    set_outputs(edit.model.graph, outputs)
    return Instrumented(edit.model, tuple(norms), tuple(refused))


def _measured(
    info: ModelInfo, site: NormSite, layout: "_RowLayout", outputs: tuple[str, str]
) -> MeasuredNorm:
    return MeasuredNorm(
        name=site.name,
        kind=reported_kind(info, site),
        size=site.size,
        subtracts_mean=site.subtracts_mean,
        epsilon=site.epsilon,
        epsilon_mode=site.epsilon_mode,
        factor=site.factor,
        outputs=outputs,
        row_dims=layout.row_dims,
    )


@dataclass(frozen=True, slots=True)
class _Digit:
    """A part of an axis: its size, -1 for Reshape to infer it, None for the axis unchanged."""

    axis: int
    size: int | None
    normalised: bool
    dim: Dim


@dataclass(frozen=True, slots=True)
class _RowLayout:
    """The digits of x in order, and the size of its rows."""

    digits: tuple[_Digit, ...]
    size: int

    @property
    def splits(self) -> bool:
        return any(digit.size is not None for digit in self.digits)

    @property
    def order(self) -> tuple[int, ...]:
        """The digits with the normalized ones last."""
        return tuple(sorted(range(len(self.digits)), key=lambda i: self.digits[i].normalised))

    @property
    def row_dims(self) -> tuple[Dim, ...]:
        return tuple(digit.dim for digit in self.digits if not digit.normalised)


def _row_layout(info: ModelInfo, site: NormSite) -> _RowLayout | str:
    """Return the layout of a norm's rows in its input, or why they cannot be measured."""
    if site.kind is NormKind.DYT:
        return "it works on each element by itself, not on vectors"
    if site.last.graph is not info.model.graph:
        return "it stands in the body of a Loop, Scan or If, whose values do not leave it"
    shape = info.shape(site.input)
    if not site.size or shape is None:
        return (
            "the size of its rows is not known" if site.refusal is None else site.refusal.sentence
        )
    if not _alike(shape, info.shape(site.output)):
        return "what it writes is not known to have the shape of what it reads"
    blocks: dict[int, list[AxisBlock]] = {axis: [] for axis in range(len(shape))}
    for block in site.fiber.blocks:
        blocks[block.axis].append(block)
    if any(len(parts) > 1 for parts in blocks.values()):
        return "its rows take several parts of one axis"
    digits = [digit for axis, dim in enumerate(shape) for digit in _digits(axis, blocks[axis], dim)]
    if sum(digit.size == -1 for digit in digits) > 1:
        return "the sizes of two of its axes are not known"
    return _RowLayout(tuple(digits), site.size)


def _alike(first: Shape, second: Shape | None) -> bool:
    if second is None or len(first) != len(second):
        return False
    pairs = zip(first, second, strict=True)
    return all(a == b or not isinstance(a, int) or not isinstance(b, int) for a, b in pairs)


def _digits(axis: int, blocks: Sequence[AxisBlock], dim: Dim) -> list[_Digit]:
    if not blocks:
        return [_Digit(axis, None, False, dim)]
    (block,) = blocks
    if block.whole:
        return [_Digit(axis, None, True, dim)]
    parts = [_Digit(axis, block.outer or -1, False, block.outer)]
    parts.append(_Digit(axis, block.size, True, block.size))
    if block.inner != 1:
        parts.append(_Digit(axis, block.inner, False, block.inner))
    return parts


def _directions(edit: Editor, size: int, seed: int) -> ir.Value:
    """Return the initializer [size, 3] with 1, a and b as columns."""
    array = np.column_stack([np.ones(size), control_vectors(size, seed)])
    return edit.new_weight(ir.tensor(array), f"onnxfold.measure.directions.{size}")


class _Sums:
    """Builds the nodes from one value to the table of its sums, at the end of the graph."""

    def __init__(self, edit: Editor, layout: _RowLayout, directions: ir.Value, name: str):
        self._edit, self._layout = edit, layout
        self._directions, self._name = directions, name
        self._old_axes = edit.info.opset < 18

    def of(self, value: ir.Value) -> ir.Value:
        rows = self._rows(value)
        if value.dtype is not ir.DataType.DOUBLE:
            rows = self._node("Cast", [rows], "wide", to=ir.DataType.DOUBLE.value)
        along = self._node("MatMul", [rows, self._directions], "along")
        if self._old_axes:
            squares = self._node("ReduceSumSquare", [rows], "squares", axes=[-1], keepdims=1)
        else:
            last = self._integers([-1], "last")
            squares = self._node("ReduceSumSquare", [rows, last], "squares", keepdims=1)
        table = self._node("Concat", [along, squares], "table", axis=-1)
        table.type = ir.TensorType(ir.DataType.DOUBLE)
        return table

    def _rows(self, x: ir.Value) -> ir.Value:
        """Return x with the elements of a row along its last axis, the other axes unchanged."""
        layout = self._layout
        if layout.splits:
            x = self._node("Reshape", [x, self._digit_sizes(x)], "digits")
        if layout.order != tuple(range(len(layout.order))):
            x = self._node("Transpose", [x], "ordered", perm=list(layout.order))
        if sum(digit.normalised for digit in layout.digits) != 1:
            kept = [0] * len(layout.row_dims)
            shape = self._integers([*kept, layout.size], "row_shape")
            x = self._node("Reshape", [x, shape], "rows")
        return x

    def _digit_sizes(self, x: ir.Value) -> ir.Value:
        shape = self._node("Shape", [x], "shape")
        sizes = []
        for number, digit in enumerate(self._layout.digits):
            if digit.size is None:
                axis = self._integers([digit.axis], f"axis{number}")
                sizes.append(self._node("Gather", [shape, axis], f"size{number}", axis=0))
            else:
                sizes.append(self._integers([digit.size], f"size{number}"))
        return self._node("Concat", sizes, "digit_sizes", axis=0)

    def _integers(self, numbers: list[int], name: str) -> ir.Value:
        array = np.array(numbers, dtype=np.int64)
        return self._edit.new_weight(ir.tensor(array), f"{self._name}.{name}")

    def _node(
        self, op: str, inputs: list[ir.Value], name: str, **attributes: int | list[int]
    ) -> ir.Value:
        label = self._edit.unused(f"{self._name}.{name}")
        node = ir.node(op, inputs, attributes=attributes, name=label)
        node.outputs[0].name = label
        add_last(self._edit.model.graph, node)
        return node.outputs[0]
