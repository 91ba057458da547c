"""Means that are subtracted from a sum and are of one summand: they are taken from that.

    (v + a) - mean(a)  =  (v - mean(a)) + a  =  v + (a - mean(a))

Dueling heads are written so, value + advantage - advantage.mean(1).unsqueeze(1).expand(..), whose
mean becomes one ReduceMean; a - mean(a) moves into the weights before it.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from math import prod

import onnx_ir as ir

from onnxfold.graph import FLOATS, Dim, ModelInfo, Shape, operator
from onnxfold.graph.edit import sweep
from onnxfold.graph.operands import is_read_once, only_reader, operand, operands, producer_of
from onnxfold.passes.split_skip_norms import Builder, SkipNormCall

_ROUNDED = 1e-6  # 1/n is rounded to float32 before it is multiplied by n
_AXES_ARE_INPUTS_SINCE = 18
_FACTORS = {"ReduceMean": 1.0, "ReduceSum": None}  # None: as many as there are elements
_SUMS = ("Add", "Sub")
_OF_MEANS = ("Div", "Expand", "Mul", "ReduceMean", "ReduceSum", "Unsqueeze")


@dataclass(frozen=True, slots=True)
class _Term:
    """A summand, and whether it is subtracted."""

    value: ir.Value
    negative: bool

    def within(self, node: ir.Node, index: int) -> "_Term":
        """Return it as a term of what an Add or Sub computes of the sum that it belongs to."""
        return replace(self, negative=self.negative != (index == 1 and node.op_type == "Sub"))


@dataclass(frozen=True, slots=True)
class _Mean:
    """mean(x) as a value that broadcasts against x; ``plain``: as one ReduceMean."""

    x: ir.Value
    value: ir.Value
    axes: tuple[int, ...]
    plain: bool


def subtract_from_summands(view: ModelInfo) -> int:
    """Rewrite such sums in a typed working copy, in place; return how many."""
    reductions = [node for node in view.nodes() if operator(node) in _FACTORS]
    means = [mean for node in reductions if (mean := _mean(view, node)) is not None]
    builder = Builder(view.model)
    # The last first: what a rewritten sum reads is then in the model still.
    return sum([_rewrite(builder, mean) for mean in reversed(means)])


def _mean(view: ModelInfo, reduction: ir.Node) -> _Mean | None:
    """Return the mean that a reduction begins, as it is when it is added or subtracted."""
    x, shape = operand(reduction, 0), view.shape(operand(reduction, 0))
    axes = view.axes(reduction)
    if x is None or x.dtype not in FLOATS or not shape or not axes:
        return None
    places = tuple(sorted(axis % len(shape) for axis in axes))
    factor = _FACTORS[reduction.op_type] or _count([shape[axis] for axis in places])
    value = reduction.outputs[0]
    while (node := only_reader(value)) is not None and node.op_type not in _SUMS:
        own = _factor(view, node, value)
        early = operator(node) == "Expand" and not _fits(view.shape(value), shape, places)
        if factor is None or own is None or early:
            return None
        factor, value = factor * own, node.outputs[0]
    if factor is None or abs(factor - 1) > _ROUNDED or not _fits(view.shape(value), shape, places):
        return None
    return _Mean(x, value, places, value is reduction.outputs[0] and factor == 1.0)


def _count(sizes: Sequence[Dim]) -> float | None:
    known = [size for size in sizes if isinstance(size, int)]
    return float(prod(known)) if len(known) == len(sizes) else None


def _factor(view: ModelInfo, node: ir.Node, value: ir.Value) -> float | None:
    """Return the number by which an operator multiplies a mean; None for other operators."""
    if operator(node) in ("Expand", "Unsqueeze"):
        return 1.0 if node.inputs[0] is value else None
    if operator(node) not in ("Div", "Mul"):
        return None
    at = list(node.inputs).index(value)
    number = view.scalar(node.inputs[1 - at])
    if not number or (operator(node) == "Div" and at == 1):
        return None
    return number if operator(node) == "Mul" else 1 / number


def _fits(found: Shape | None, shape: Shape, places: Sequence[int]) -> bool:
    """Whether a shape is that of a mean over some places, or of it repeated along them."""
    if found is None or len(found) != len(shape):
        return False
    pairs = enumerate(zip(found, shape, strict=True))
    return all(a is not None and (a == b or (at in places and a == 1)) for at, (a, b) in pairs)


def _rewrite(builder: Builder, mean: _Mean) -> bool:
    """Subtract a mean from x, before others are added; return False where that is done."""
    root = only_reader(mean.value)
    if root is None or not _is_sum(root):
        return False
    if mean.plain and root.op_type == "Sub" and root.inputs[0] is mean.x:
        return False
    own, others, below = _Term(mean.value, negative=False), list[_Term](), mean.value
    while True:
        at = list(root.inputs).index(below)
        beside = [term.within(root, 1 - at) for term in _terms(root.inputs[1 - at])]
        own, others = own.within(root, at), [term.within(root, at) for term in others]
        others = [*others, *beside] if at == 0 else [*beside, *others]
        x = next((each for each in others if each.value is mean.x), None)
        if x is not None and x.negative != own.negative:
            break
        below, above = root.outputs[0], only_reader(root.outputs[0])
        if above is None or not _is_sum(above) or not is_read_once(below):
            return False
        root = above
    _spell(builder.at(root), mean, others, others.index(x))
    return True


def _is_sum(node: ir.Node) -> bool:
    return operator(node) in _SUMS and None not in node.inputs


def _terms(value: ir.Value | None) -> Iterator[_Term]:
    """Yield the summands of a value, as far as nothing else reads the sums of them."""
    waiting = [] if value is None else [_Term(value, negative=False)]
    while waiting:
        term = waiting.pop()
        node = producer_of(term.value)
        if node is None or not _is_sum(node) or not is_read_once(term.value):
            yield term
            continue
        first, second = operands(node)
        waiting += [replace(term, value=second).within(node, 1), replace(term, value=first)]


def _spell(call: SkipNormCall, mean: _Mean, terms: list[_Term], place: int) -> None:
    """Write the sum of the terms with x - mean(x) in the place of x."""
    subtracted = mean.value
    if not mean.plain and call.opset < _AXES_ARE_INPUTS_SINCE:
        (subtracted,) = call.emit("ReduceMean", (mean.x,), axes=mean.axes, keepdims=1)
    elif not mean.plain:
        axes = call.integers(*mean.axes)
        (subtracted,) = call.emit("ReduceMean", (mean.x, axes), keepdims=1)
    (centred,) = call.emit("Sub", (mean.x, subtracted))
    made = [replace(term, value=centred) if at == place else term for at, term in enumerate(terms)]
    first, *rest = sorted(made, key=lambda term: term.negative)
    total = call.emit("Neg", (first.value,))[0] if first.negative else first.value
    for term in rest:
        (total,) = call.emit("Sub" if term.negative else "Add", (total, term.value))
    old = list(_between(call.node, {mean.x, *(term.value for term in terms)}))
    call.finish({0: total})
    sweep(reversed(old))


def _between(root: ir.Node, ends: Set[ir.Value]) -> Iterator[ir.Node]:
    """Yield the sums and the mean that a root reads, up to some values; readers first."""
    waiting = operands(root)
    while waiting:
        value = waiting.pop()
        node = producer_of(value)
        if node is not None and value not in ends and operator(node) in (*_SUMS, *_OF_MEANS):
            yield node
            waiting += operands(node)
