"""The property can fail: a law that is wrong in one respect is caught on some sample."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, whole_axes
from onnxfold.operators.families import attention, layout, reduce
from onnxfold.operators.families.transfer import Backward, Carried, Forward, ZeroMean
from onnxfold.operators.row import Operator
from onnxfold.operators.table import find
from onnxfold.refusal import Refusal
from tests.operators.law_property import check_sample
from tests.operators.mutants import ROLES, Broken, Watched
from tests.operators.rows import LAWS, name_of, transfer_for, with_transfer
from tests.operators.sample import Draw
from tests.operators.samplers import SAMPLERS

_SAMPLES = 600
# What must be noticed at least: for an operator that reads no elements every answer is right,
# except that its non-float results have mean 0 along some fiber.
_LEAST: dict[type, tuple[str, ...]] = {reduce.ReadsNoElements: ("AlwaysZeroMean",)}
# Where a broken law happens to be right, with the reason.
_SHAPES = "refuses for lack of shapes alone, which the numbers have"
_RIGHT_ANYWAY = {
    ("Neg", "WithoutGuard"): _SHAPES,
    ("Identity", "WithoutGuard"): _SHAPES,
    ("Expand", "WithoutGuard"): _SHAPES,
    ("GlobalAveragePool", "WithoutGuard"): "its refused fibers lie on axes that it leaves at 1",
    ("Center", "WithoutGuard"): "x - mean(x) is linear, so that any centring commutes with it",
}
_UNCHANGED = 40  # samples on which a mutant says what the law says: it is none of this line


def _renamed(fiber: Fiber, axis_of: dict[int, int]) -> Fiber:
    return Fiber.of(replace(block, axis=axis_of[block.axis]) for block in fiber.blocks)


class LastOperandOnly(Broken):
    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        origin = self.right.backward(view, node, output, fiber)
        return Carried(origin.inputs[-1:]) if isinstance(origin, Carried) else origin


class EmptyFibers(Broken):
    """Takes no notice of the fiber: sets of one element everywhere."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        origin = self.right.backward(view, node, output, fiber)
        if not isinstance(origin, Carried):
            return origin
        return Carried(tuple((index, Fiber(())) for index, _ in origin.inputs))


class InversePermutation(Broken):
    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        perm = node.attributes.get_ints("perm", None)
        if perm is None:
            return self.right.backward(view, node, output, fiber)
        return Carried(((0, _renamed(fiber, {perm[axis]: axis for axis in range(len(perm))})),))


class MatMulWithoutBatchGuard(Broken):
    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        rank = view.rank(node.outputs[0]) or 0
        ranks = {view.rank(operand) for operand in node.inputs}
        whole = ranks == {rank} and fiber.whole and rank - 1 in fiber.axes
        return Carried(((1, fiber),)) if whole else self.right.backward(view, node, output, fiber)


class WithoutTransposition(Broken):
    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        origin = self.right.backward(view, node, output, fiber)
        if not isinstance(origin, Carried):
            return origin
        return Carried(tuple((i, fiber if i < 2 else inner) for i, inner in origin.inputs))


class WithoutGroupGuard(Broken):
    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        groups = node.attributes.get_int("group", 1)
        if groups == 1 or fiber.axes != (1,):
            return self.right.backward(view, node, output, fiber)
        return Carried(((1, _renamed(fiber, {1: 0})),))


class ResizeBySizes(Broken):
    """Looks at sizes alone: a scale of 1.1 keeps a size of 4 and moves its elements."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        touched = layout.sizes_changed(view, node)
        if touched is None or set(touched) & set(fiber.axes):
            return self.right.backward(view, node, output, fiber)
        return Carried(((0, fiber),))


class AnyFilling(Broken):
    """Takes ones for zeros."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        return ZeroMean()


class PadByFill(Broken):
    """Pads with any value."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        touched = layout.sizes_changed(view, node)
        if touched is None or set(touched) & set(fiber.axes):
            return self.right.backward(view, node, output, fiber)
        return Carried(((0, fiber),))


class SliceBySize(Broken):
    """Looks at how much is taken alone: 2 of 4 from the second on cut both pairs."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        right = self.right.backward(view, node, output, fiber)
        shape = view.shape(node.inputs[0])
        if not isinstance(right, Refusal) or shape is None:
            return right
        digits = [(block, shape[block.axis], block.inner * block.size) for block in fiber.blocks]
        blocks = [
            AxisBlock(block.axis, block.inner, block.size, size // period)
            for block, size, period in digits
            if isinstance(size, int) and size % period == 0
        ]
        return Carried(((0, Fiber.of(blocks)),)) if len(blocks) == len(digits) else right


class SoftmaxAnotherAxis(Broken):
    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        shape = view.shape(node.inputs[0]) or ()
        other = whole_axes(shape, (node.attributes.get_int("axis", -1) - 1,)) if shape else None
        return () if other is not None and fiber.covers(other) else None


class SoftmaxOfAnyOpset(Broken):
    """Forgets that before opset 13 all axes from ``axis`` on were normalized together."""

    def forward(self, view: ModelInfo, node: ir.Node, index: int, fiber: Fiber) -> Forward:
        shape = view.shape(node.inputs[0]) or ()
        seen = whole_axes(shape, (node.attributes.get_int("axis", 1 if view.opset < 13 else -1),))
        return () if seen is not None and fiber.covers(seen) else None


class ReduceKeepsDims(Broken):
    """Numbers the axes as if keepdims were 1."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        right = self.right.backward(view, node, output, fiber)
        return Carried(((0, fiber),)) if isinstance(right, Carried) else right


class AcrossHeads(Broken):
    """Takes the whole hidden axis for one head."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        origin = self.right.backward(view, node, output, fiber)
        shape = view.shape(node.inputs[2])
        if not isinstance(origin, Refusal) or shape is None or len(shape) != 3:
            return origin
        same = fiber.axes == (2,) and shape == view.shape(node.outputs[0])
        return Carried(((2, fiber),)) if same else origin


class QueriesToo(Broken):
    """Takes attention for linear in its queries."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        origin = self.right.backward(view, node, output, fiber)
        if not isinstance(origin, Carried) or view.rank(node.inputs[0]) != 3:
            return origin
        return Carried((*origin.inputs, (0, fiber)))


class WithoutJoinedInputs(Broken):
    """Does not look for a bias or for earlier values."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        if not isinstance(self.right, attention.Attention):
            return self.right.backward(view, node, output, fiber)
        blind = replace(self.right, caches=(-1, -1), biases=())
        return blind.backward(view, node, output, fiber)


class HeadsOfTheQueries(Broken):
    """Takes the place in all heads of the output for the place in the fewer heads of V."""

    def backward(self, view: ModelInfo, node: ir.Node, output: int, fiber: Fiber) -> Backward:
        origin = self.right.backward(view, node, output, fiber)
        shape = view.shape(node.inputs[2]) or ()
        if not isinstance(origin, Carried) or len(shape) != 3 or not isinstance(shape[2], int):
            return origin
        digits = [(b.inner * 2, b.size) for b in fiber.blocks]
        if any(shape[2] % (inner * size) for inner, size in digits):
            return origin
        blocks = [AxisBlock(2, i, n, shape[2] // (i * n)) for i, n in digits]
        return Carried(((2, Fiber.of(blocks)),))


# Mistakes of one family alone; mutants.py has those of every line.
MUTANTS: list[tuple[str, type[Broken]]] = [
    ("Add", EmptyFibers),
    ("Sub", LastOperandOnly),
    ("Mul", EmptyFibers),
    ("Transpose", InversePermutation),
    ("Expand", EmptyFibers),
    ("ConstantOfShape", AnyFilling),
    ("Pad", PadByFill),
    ("Slice", SliceBySize),
    ("MatMul", MatMulWithoutBatchGuard),
    ("FusedMatMul", WithoutTransposition),
    ("TransposeMatMul", WithoutTransposition),
    ("Attention", AcrossHeads),
    ("Attention", WithoutJoinedInputs),
    ("Attention", QueriesToo),
    ("MultiHeadAttention", AcrossHeads),
    ("MultiHeadAttention", WithoutJoinedInputs),
    ("MultiHeadAttention", QueriesToo),
    ("GroupQueryAttention", AcrossHeads),
    ("GroupQueryAttention", HeadsOfTheQueries),
    ("Gemm", WithoutTransposition),
    ("Conv", WithoutGroupGuard),
    ("Conv", WithoutTransposition),
    ("ConvTranspose", WithoutGroupGuard),
    ("DeformConv", WithoutGroupGuard),
    ("DeformConv", WithoutTransposition),
    ("ReduceMean", ReduceKeepsDims),
    ("Resize", ResizeBySizes),
    ("Softmax", SoftmaxAnotherAxis),
    ("Softmax", SoftmaxOfAnyOpset),
]


def _lines() -> Iterator[tuple[Operator, type[Broken]]]:
    by_name = {law.op_type: law for law in LAWS}
    for op_type, mutant in MUTANTS:
        yield by_name[op_type], mutant


@pytest.mark.parametrize(
    ("law", "mutant"),
    list(_lines()),
    ids=lambda item: getattr(item, "op_type", None) or item.__name__,
)
def test_a_broken_law_is_caught(
    law: Operator, mutant: type[Broken], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_transfer(monkeypatch, law, mutant(transfer_for(law)))
    assert _caught(law)


def _caught(law: Operator) -> bool:
    """Whether some sample contradicts what the table now says."""
    return any(_contradicted(law, seed) for seed in range(_SAMPLES))


def _contradicted(law: Operator, seed: int) -> bool:
    draw = Draw(random.Random(seed))  # noqa: S311 # no secret
    try:
        check_sample(SAMPLERS[law.key](draw), draw)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("law", LAWS, ids=name_of)
def test_every_line_that_is_wrong_in_one_role_is_caught(
    law: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new line is broken here by itself: as a writer, carrier, zero mean and reader."""
    caught, missed = [], []
    for mutant in ROLES:
        watched = Watched(transfer_for(law), mutant(transfer_for(law)))
        with_transfer(monkeypatch, law, watched)
        for seed in range(_SAMPLES):
            if _contradicted(law, seed):
                caught.append(mutant.__name__)
                break
            if seed >= _UNCHANGED and not watched.differed:
                break  # says what the law says
        else:
            missed.append(mutant.__name__)
    assert not {name for name in missed if (law.op_type, name) not in _RIGHT_ANYWAY}
    assert set(_LEAST.get(type(transfer_for(law)), ("AlwaysZeroMean", "NeverSeen"))) <= set(caught)


def test_a_value_that_is_read_is_not_taken_for_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table says of an operator that it reads no elements, and it does."""
    law = find("", "Neg")
    with_transfer(monkeypatch, law, reduce.ReadsNoElements())
    assert _caught(law)
