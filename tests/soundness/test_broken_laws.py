"""The property can fail: a law that is wrong in one respect is caught on some sample."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir
import pytest

from onnxfold.graph import AxisBlock, Fiber, GraphView, whole_axes
from onnxfold.refusal import Refusal
from onnxfold.zero_mean import laws
from onnxfold.zero_mean.law import Carried, Family, Law, Pulled, ZeroMean
from onnxfold.zero_mean.laws import LAWS, attention, elementwise, layout, linear, reduce
from tests.soundness.law_property import check_sample
from tests.soundness.sample import Draw
from tests.soundness.samplers import SAMPLERS

_SAMPLES = 600
Pushed = tuple[tuple[int, Fiber], ...] | None


@dataclass(frozen=True)
class _Broken:
    """Answers as the family of the table does, but for what a subclass changes."""

    right: Family

    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        return self.right.pull(view, node, output, fiber)

    def push(self, view: GraphView, node: ir.Node, index: int, fiber: Fiber) -> Pushed:
        return self.right.push(view, node, index, fiber)


class FirstOperandOnly(_Broken):
    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        pulled = self.right.pull(view, node, output, fiber)
        return Carried(pulled.inputs[:1]) if isinstance(pulled, Carried) else pulled


class LastOperandOnly(_Broken):
    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        pulled = self.right.pull(view, node, output, fiber)
        return Carried(pulled.inputs[-1:]) if isinstance(pulled, Carried) else pulled


class WithoutGuard(_Broken):
    """Carries the same fiber of the first operand where the law refuses."""

    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        pulled = self.right.pull(view, node, output, fiber)
        fits = view.rank(node.inputs[0]) == view.rank(node.outputs[output])
        return Carried(((0, fiber),)) if isinstance(pulled, Refusal) and fits else pulled


class AxisOffByOne(_Broken):
    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        pulled = self.right.pull(view, node, output, fiber)
        if not isinstance(pulled, Carried) or len(pulled.inputs) != 1:
            return pulled
        index, inner = pulled.inputs[0]
        rank = view.rank(node.inputs[index]) or 0
        turned = whole_axes(
            view.shape(node.inputs[index]) or (), [(a + 1) % rank for a in inner.axes]
        )
        return pulled if turned is None else Carried(((index, turned),))


class OtherOperand(_Broken):
    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        pulled = self.right.pull(view, node, output, fiber)
        if not isinstance(pulled, Carried) or len(pulled.inputs) != 1:
            return pulled
        index, inner = pulled.inputs[0]
        same = len(node.inputs) > 1 and view.rank(node.inputs[0]) == view.rank(node.inputs[1])
        return Carried(((1 - index, inner),)) if same and index < 2 else pulled


class EmptyFibers(_Broken):
    """Takes no notice of the fiber: sets of one element everywhere."""

    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        pulled = self.right.pull(view, node, output, fiber)
        if not isinstance(pulled, Carried):
            return pulled
        return Carried(tuple((index, Fiber(())) for index, _ in pulled.inputs))


class NeverSeen(_Broken):
    def push(self, view: GraphView, node: ir.Node, index: int, fiber: Fiber) -> Pushed:
        return ()


class AlwaysZeroMean(_Broken):
    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        return ZeroMean()


class InversePermutation(_Broken):
    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        perm = node.attributes.get_ints("perm", None)
        if perm is None:
            return self.right.pull(view, node, output, fiber)
        return Carried(((0, fiber.moved({perm[axis]: axis for axis in range(len(perm))})),))


class MatMulWithoutBatchGuard(_Broken):
    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        rank = view.rank(node.outputs[0]) or 0
        ranks = {view.rank(operand) for operand in node.inputs}
        whole = ranks == {rank} and fiber.whole and rank - 1 in fiber.axes
        return Carried(((1, fiber),)) if whole else self.right.pull(view, node, output, fiber)


class WithoutTransposition(_Broken):
    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        pulled = self.right.pull(view, node, output, fiber)
        if not isinstance(pulled, Carried):
            return pulled
        return Carried(tuple((i, fiber if i < 2 else inner) for i, inner in pulled.inputs))


class WithoutGroupGuard(_Broken):
    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        groups = node.attributes.get_int("group", 1)
        if groups == 1 or fiber.axes != (1,):
            return self.right.pull(view, node, output, fiber)
        return Carried(((1, fiber.moved({1: 0})),))


class ResizeBySizes(_Broken):
    """Looks at sizes alone: a scale of 1.1 keeps a size of 4 and moves its elements."""

    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        touched = layout.sizes_changed(view, node)
        if touched is None or set(touched) & set(fiber.axes):
            return self.right.pull(view, node, output, fiber)
        return Carried(((0, fiber),))


class PadByFill(_Broken):
    """Pads with any value."""

    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        touched = layout.sizes_changed(view, node)
        if touched is None or set(touched) & set(fiber.axes):
            return self.right.pull(view, node, output, fiber)
        return Carried(((0, fiber),))


class SoftmaxAnotherAxis(_Broken):
    def push(self, view: GraphView, node: ir.Node, index: int, fiber: Fiber) -> Pushed:
        shape = view.shape(node.inputs[0]) or ()
        other = whole_axes(shape, (node.attributes.get_int("axis", -1) - 1,)) if shape else None
        return () if other is not None and fiber.covers(other) else None


class SoftmaxOfAnyOpset(_Broken):
    """Forgets that before opset 13 all axes from ``axis`` on were normalised together."""

    def push(self, view: GraphView, node: ir.Node, index: int, fiber: Fiber) -> Pushed:
        shape = view.shape(node.inputs[0]) or ()
        seen = whole_axes(shape, (node.attributes.get_int("axis", 1 if view.opset < 13 else -1),))
        return () if seen is not None and fiber.covers(seen) else None


class ReduceKeepsDims(_Broken):
    """Numbers the axes as if keepdims were 1."""

    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        right = self.right.pull(view, node, output, fiber)
        return Carried(((0, fiber),)) if isinstance(right, Carried) else right


class AcrossHeads(_Broken):
    """Takes the whole hidden axis for one head."""

    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        pulled = self.right.pull(view, node, output, fiber)
        shape = view.shape(node.inputs[2])
        if not isinstance(pulled, Refusal) or shape is None or len(shape) != 3:
            return pulled
        same = fiber.axes == (2,) and shape == view.shape(node.outputs[0])
        return Carried(((2, fiber),)) if same else pulled


class QueriesToo(_Broken):
    """Takes attention for linear in its queries."""

    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        pulled = self.right.pull(view, node, output, fiber)
        if not isinstance(pulled, Carried) or view.rank(node.inputs[0]) != 3:
            return pulled
        return Carried((*pulled.inputs, (0, fiber)))


class WithoutJoinedInputs(_Broken):
    """Does not look for a bias or for earlier values."""

    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        if not isinstance(self.right, attention.Attention):
            return self.right.pull(view, node, output, fiber)
        return replace(self.right, adds=()).pull(view, node, output, fiber)


class HeadsOfTheQueries(_Broken):
    """Takes the place in all heads of the output for the place in the fewer heads of V."""

    def pull(self, view: GraphView, node: ir.Node, output: int, fiber: Fiber) -> Pulled:
        pulled = self.right.pull(view, node, output, fiber)
        shape = view.shape(node.inputs[2]) or ()
        if not isinstance(pulled, Carried) or len(shape) != 3 or not isinstance(shape[2], int):
            return pulled
        digits = [(b.inner * 2, b.size) for b in fiber.blocks]
        if any(shape[2] % (inner * size) for inner, size in digits):
            return pulled
        blocks = [AxisBlock(2, i, n, shape[2] // (i * n)) for i, n in digits]
        return Carried(((2, Fiber.of(blocks)),))


MUTANTS: list[tuple[str, type[_Broken]]] = [
    ("Add", FirstOperandOnly),
    ("Add", EmptyFibers),
    ("Sub", LastOperandOnly),
    ("Neg", AxisOffByOne),
    ("Neg", NeverSeen),
    ("Identity", AlwaysZeroMean),
    ("Cast", WithoutGuard),
    ("CastLike", WithoutGuard),
    ("Dropout", WithoutGuard),
    ("Mul", WithoutGuard),
    ("Mul", EmptyFibers),
    ("Div", WithoutGuard),
    ("Div", OtherOperand),
    ("Where", FirstOperandOnly),
    ("Where", NeverSeen),
    ("Transpose", InversePermutation),
    ("Reshape", WithoutGuard),
    ("Flatten", AxisOffByOne),
    ("Expand", EmptyFibers),
    ("Expand", AxisOffByOne),
    ("Split", WithoutGuard),
    ("CumSum", WithoutGuard),
    ("Slice", WithoutGuard),
    ("Gather", WithoutGuard),
    ("Gather", AxisOffByOne),
    ("GatherND", WithoutGuard),
    ("GatherND", AxisOffByOne),
    ("Concat", WithoutGuard),
    ("Concat", FirstOperandOnly),
    ("Tile", WithoutGuard),
    ("Pad", PadByFill),
    ("MatMul", OtherOperand),
    ("MatMul", MatMulWithoutBatchGuard),
    ("FusedMatMul", WithoutTransposition),
    ("TransposeMatMul", WithoutTransposition),
    ("BiasAdd", FirstOperandOnly),
    ("Attention", AcrossHeads),
    ("Attention", WithoutJoinedInputs),
    ("Attention", QueriesToo),
    ("MultiHeadAttention", AcrossHeads),
    ("MultiHeadAttention", WithoutJoinedInputs),
    ("MultiHeadAttention", QueriesToo),
    ("GroupQueryAttention", AcrossHeads),
    ("GroupQueryAttention", HeadsOfTheQueries),
    ("Gemm", WithoutTransposition),
    ("Gemm", FirstOperandOnly),
    ("Conv", WithoutGroupGuard),
    ("Conv", FirstOperandOnly),
    ("Conv", WithoutTransposition),
    ("ConvTranspose", WithoutGroupGuard),
    ("ConvTranspose", AxisOffByOne),
    ("Einsum", OtherOperand),
    ("Einsum", AxisOffByOne),
    ("ReduceMean", ReduceKeepsDims),
    ("ReduceSum", AxisOffByOne),
    ("AveragePool", WithoutGuard),
    ("Resize", ResizeBySizes),
    ("Softmax", SoftmaxAnotherAxis),
    ("Softmax", SoftmaxOfAnyOpset),
    ("LogSoftmax", NeverSeen),
    ("Center", AlwaysZeroMean),
    ("Center", NeverSeen),
]

# A family with no mutant of its own would be a family whose test was never seen to fail.
_WITHOUT_MUTANT = {reduce.Blind: "reads no element, so that nothing it says can be wrong"}


def _lines() -> Iterator[tuple[Law, type[_Broken]]]:
    by_name = {law.op_type: law for law in LAWS}
    for op_type, mutant in MUTANTS:
        yield by_name[op_type], mutant


@pytest.mark.parametrize(
    ("law", "mutant"),
    list(_lines()),
    ids=lambda item: getattr(item, "op_type", None) or item.__name__,
)
def test_a_broken_law_is_caught(
    law: Law, mutant: type[_Broken], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(law, family=mutant(law.family))
    monkeypatch.setitem(laws._BY_OPERATOR, law.key, broken)
    assert _caught(law)


def _caught(law: Law) -> bool:
    """Whether some sample contradicts what the table now says."""
    for seed in range(_SAMPLES):
        draw = Draw(random.Random(seed))  # noqa: S311 # no secret
        try:
            check_sample(SAMPLERS[law.key](draw), draw)
        except AssertionError:
            return True
    return False


def test_every_family_has_a_mutant() -> None:
    families = {type(law.family) for law in LAWS}
    mutated = {type(law.family) for law, _ in _lines()}
    assert families - mutated == set(_WITHOUT_MUTANT)
    assert {elementwise.Scaled, layout.Pad, linear.Convolution} <= mutated


def test_a_value_that_is_read_is_not_taken_for_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mutant of Blind: the table calling an operator blind that is not."""
    law = Law("Neg", reduce.Blind(), "")
    monkeypatch.setitem(laws._BY_OPERATOR, law.key, law)
    assert _caught(law)
