"""A part of the sets of a fiber, followed through operators: q among q, k and v, as in Persimmon.

With M the mask of a part, P_M x = x - M mean(x) centers only the sets of the part. It commutes with
every operator that commutes with P and with M, that is, one that carries the part's digits in order
as it carries channels. An operator that cuts, such as Slice, Split and Gather, satisfies P cut(x) =
cut(P_M x), with M the part of x that it keeps, and ignores everything outside of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo
from onnxfold.graph.channels import Channels
from onnxfold.operators import facets
from onnxfold.operators.families.cut_parts import AxisPart, cut_of
from onnxfold.operators.families.rules import digit_behind, elements_of, keeps_order, transfer_of
from onnxfold.operators.families.transfer import Backward, Carried, Forward, Transfer, broken
from onnxfold.operators.row import Elements, Family
from onnxfold.operators.table import row_of


def backward(
    view: ModelInfo, transfer: Transfer, node: ir.Node, output: int, fiber: Fiber
) -> Backward:
    """Return how an output, centered along a fiber or a part of it, depends on the inputs."""
    origin = transfer.backward(view, node, output, fiber.every)
    part = fiber.part
    if part is None or not isinstance(origin, Carried):
        return origin
    if not _passes(view, node, part.digits):
        return broken(node, fiber)
    carried = []
    for index, inner in origin.inputs:
        back = partial(_digit_before, view, transfer, node, output, index)
        placed = Channels(part.digits).mapped(back)
        if placed is None:
            return broken(node, fiber)
        carried.append((index, inner.within(placed.digits, part.chosen)))
    return Carried(tuple(carried))


def forward(
    view: ModelInfo, transfer: Transfer, node: ir.Node, index: int, fiber: Fiber
) -> Forward:
    """Name the outputs reached by a shift of an input along a fiber, or a part of its sets."""
    outputs = transfer.forward(view, node, index, fiber.every)
    part = fiber.part
    if part is None or outputs is None:
        return outputs
    cuts = [cut_of(view, output) for output in node.outputs] if index == 0 else []
    axes = {digit.axis for digit in part.digits}
    if any(cut is not None and cut.axis in axes for cut in cuts):
        return _behind_cuts(outputs, cuts, fiber)
    if outputs and not _passes(view, node, part.digits):
        return None
    reached = []
    for output, outer in outputs:
        placed = Channels(part.digits).mapped(partial(digit_behind, view, node, index, output))
        if placed is None:
            return None
        reached.append((output, outer.within(placed.digits, part.chosen)))
    return tuple(reached)


def before_cut(view: ModelInfo, value: ir.Value, fiber: Fiber) -> Fiber | None:
    """Return which sets of the source a value cut from it has, or None if unknown."""
    cut, node = cut_of(view, value), value.producer()
    if cut is None or node is None or not fiber.blocks or cut.length == cut.total:
        return None
    blocks = _before(view, node, fiber, cut)
    run = None if blocks is None else _run(cut, blocks)
    if blocks is None or run is None:
        return None
    chosen = [number in run.numbers for number in range(run.digit.size)]
    if fiber.part is not None:
        if fiber.part.digits != run.own:
            return None
        chosen[run.numbers.start : run.numbers.stop] = fiber.part.chosen
    return Fiber.of(blocks).within([run.digit], chosen)


@dataclass(frozen=True, slots=True)
class _Run:
    """The digit of the source's axis that identifies the sets of a cut, and its range.

    ``own``: the digit after the cut.
    """

    digit: AxisBlock
    numbers: range

    @property
    def own(self) -> tuple[AxisBlock, ...]:
        return (replace(self.digit, size=len(self.numbers)),)


def _run(cut: AxisPart, blocks: Iterable[AxisBlock]) -> _Run | None:
    """Return the run of sets that a cut keeps; None if it starts or ends within one."""
    period = max((b.inner * b.size for b in blocks if b.axis == cut.axis), default=1)
    if any(place % period for place in (cut.start, cut.length, cut.total)):
        return None
    start, length, total = (n // period for n in (cut.start, cut.length, cut.total))
    return _Run(AxisBlock(cut.axis, period, total, 1), range(start, start + length))


def _before(view: ModelInfo, node: ir.Node, fiber: Fiber, cut: AxisPart) -> list[AxisBlock] | None:
    """Return the blocks of a fiber in the source of a cut."""
    transfer = transfer_of(node)
    if row_of(node).family is Family.GATHER and transfer is not None:  # it omits the axis
        origin = transfer.backward(view, node, 0, fiber.every)
        return list(origin.inputs[0][1].blocks) if isinstance(origin, Carried) else None
    runs = ((block, block.inner * block.size) for block in fiber.blocks)
    return [replace(b, outer=cut.total // n) if b.axis == cut.axis else b for b, n in runs]


def _behind_cuts(
    outputs: tuple[tuple[int, Fiber], ...], cuts: list[AxisPart | None], fiber: Fiber
) -> Forward:
    """Return which outputs contain some sets of a part, and which sets of theirs.

    None if unknown.
    """
    reached = []
    for output, outer in outputs:
        cut, part = cuts[output], fiber.part
        run = None if cut is None else _run(cut, fiber.blocks)
        if run is None or part is None or part.digits != (run.digit,):
            return None
        chosen = part.chosen[run.numbers.start : run.numbers.stop]
        if any(chosen):
            reached.append((output, outer.within(run.own, chosen)))
    return tuple(reached)


def _passes(view: ModelInfo, node: ir.Node, digits: Iterable[AxisBlock]) -> bool:
    """Whether a node keeps elements with different digits apart, and in order."""
    row = row_of(node)
    if not facets.passes_scale(row) or elements_of(view, node)[0] > Elements.LINEAR:
        return False
    if facets.scales_every_output(row):
        rank = view.rank(node.inputs[0])
        axis = node.attributes.get_int("axis", 0)
        return rank is not None and axis % rank not in {digit.axis for digit in digits}
    return all(keeps_order(view, node, Fiber((digit,))) for digit in digits)


def _digit_before(
    view: ModelInfo, transfer: Transfer, node: ir.Node, output: int, index: int, digit: Fiber
) -> Fiber | None:
    origin = transfer.backward(view, node, output, digit)
    found = dict(origin.inputs) if isinstance(origin, Carried) else {}
    return found.get(index)
