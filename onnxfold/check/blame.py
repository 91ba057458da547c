"""Find the nodes of a converted model that cause its error.

These are the nodes whose results err by themselves and would make the original's outputs wrong
(`onnxfold.check.local_errors`). Finally the changed model is run with the right value in place,
which must reduce its error: a value that merely has the same name does not.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
import onnx_ir as ir

from onnxfold.check.budget import distance
from onnxfold.check.common_values import (
    Common,
    between,
    is_of_file,
    stands_for,
    stored_weights,
    tensor_types,
)
from onnxfold.check.local_errors import Contribution, LocalErrors, results
from onnxfold.check.reference import Array
from onnxfold.check.runners import Feeds, OnnxRuntime, Outputs, suited
from onnxfold.graph import node_label, operator
from onnxfold.model_io.load import Source

# A contribution from this share of the whole error on explains it.
_EXPLAINS = 0.25
# The most nodes to name, and the least share of the largest contribution that each has.
_NAMED, _NEAR_LARGEST = 3, 0.5
# The share of its contribution that must disappear once a value is right.
_RELIEF = 0.25
# From this error on, a value is wrong in any precision: int4 leaves an error of 0.1 in a weight,
# int8 0.01.
_BROKEN = 0.5
# A node that is wrong by itself counts from this share of a budget on.
_COUNTS = 0.02


@dataclass(frozen=True, slots=True)
class Blame:
    """A node at fault: its name in the original, as converters exclude it, and in the changed file.

    value: the result that shows the error. error_in, error_out: the largest relative error among
    its inputs, and the error of the result. alone: the error of the original's outputs with this
    one wrong. by_itself: its error when all its inputs are right, or the error of a weight copy
    that it stores. among: the number of nodes of the original that it replaces, if the file fuses
    them.
    """

    node: str
    operator: str
    value: str
    error_in: float
    error_out: float
    changed_node: str
    alone: float
    by_itself: float
    among: int = 1

    @property
    def fault(self) -> str:
        """Describe a node that `broken` returns in one sentence."""
        return (
            f"node '{self.node}' is wrong by itself: '{self.value}' errs by {self.by_itself:.2g} "
            f"although all its inputs are right ('{self.changed_node}')"
        )


def blame(
    original: Source,
    changed: Source,
    feeds: Sequence[Feeds],
    truths: Sequence[Outputs],
    engine: OnnxRuntime | None = None,
) -> tuple[Blame, ...]:
    """Return the nodes that explain most of the error, at most three and possibly none.

    Only the worst sample is examined. Raises CannotRun if ONNX Runtime cannot run one of the two.
    """
    comparison = _of_worst(original, changed, feeds, truths, engine or OnnxRuntime())
    found = comparison.contributions(enough=_EXPLAINS * comparison.whole)
    relieved = cache(lambda one: _is_relieved(comparison, one))
    by_size = sorted((one for one in found if one.alone > 0), key=lambda one: -one.alone)
    largest = next((one.alone for one in by_size if relieved(one)), 0.0)
    near = sorted((one for one in by_size if one.alone >= _NEAR_LARGEST * largest), key=_place)
    guilty = (one for one in near if relieved(one))
    return _described(comparison, list(islice(guilty, _NAMED)))


def broken(
    original: Source,
    changed: Source,
    feeds: Sequence[Feeds],
    truths: Sequence[Outputs],
    allowed: float,
    engine: OnnxRuntime | None = None,
) -> tuple[Blame, ...]:
    """Return nodes whose errors no precision explains: half of their values or more are wrong.

    Each causes at least a quarter of the error, and a fiftieth of the ``allowed`` relative error.
    The outputs may still be within budget, for example if the fault is in one of many layers.
    Raises as `blame` does.
    """
    comparison = _of_worst(original, changed, feeds, truths, engine or OnnxRuntime())
    least = max(_COUNTS * allowed, _EXPLAINS * comparison.whole)
    found = [one for one in comparison.contributions() if one.alone > 0 and one.alone >= least]
    found = [one for one in sorted(found, key=_place) if _is_relieved(comparison, one)]
    described = _described(comparison, found)
    return tuple(one for one in described if one.by_itself >= _BROKEN)[:_NAMED]


def _place(found: Contribution) -> int:
    return found.place


def rank(
    original: Source,
    changed: Source,
    feeds: Sequence[Feeds],
    truths: Sequence[Outputs],
    engine: OnnxRuntime | None = None,
) -> list[str]:
    """Return names of nodes of the original by their contribution to the error, largest first."""
    comparison = _of_worst(original, changed, feeds, truths, engine or OnnxRuntime())
    found = sorted(comparison.contributions(), key=lambda one: (-one.alone, one.place))
    named = (_node(comparison, one.common)[0] for one in found if one.alone > 0)
    return list(dict.fromkeys(map(node_label, named)))


def _of_worst(
    original: Source,
    changed: Source,
    feeds: Sequence[Feeds],
    truths: Sequence[Outputs],
    engine: OnnxRuntime,
) -> LocalErrors:
    """Compare the models on the sample whose outputs err most."""
    outputs = engine.run(changed, [suited(f, changed.model) for f in feeds], optimize=False)
    errors = [
        max(distance(truth[name], output[name]) for name in truth)
        for truth, output in zip(truths, outputs, strict=True)
    ]
    worst = int(np.argmax(errors))
    return LocalErrors(original.model, changed.model, feeds[worst], truths[worst], engine)


def _is_relieved(comparison: LocalErrors, one: Contribution) -> bool:
    """Whether the changed model errs less with this value right; errors add up as squares."""
    whole = comparison.whole
    if math.isinf(whole):  # several may overflow
        return True
    relief = _RELIEF * min(one.alone, whole)
    return comparison.error_without(one.common) ** 2 <= whole**2 - relief**2


def _described(comparison: LocalErrors, found: Sequence[Contribution]) -> tuple[Blame, ...]:
    operands = {one.common.name: comparison.operands(one.common) for one in found}
    common = {c.name: c for one in found for c in (one.common, *operands[one.common.name])}
    true, changed = comparison.true([*common]), comparison.as_changed([*common.values()])
    errors = {name: distance(true[name], changed[name]) for name in common}
    blamed = []
    for one in found:
        node, among = _node(comparison, one.common)
        read = [operand.name for operand in operands[one.common.name]]
        known = {name: true[name] for name in (one.common.name, *read)}
        changed_node, by_itself = _changed_node(comparison, one, known)
        blamed.append(
            Blame(
                node=node_label(node),
                operator=operator(node),
                value=one.common.name,
                error_in=max((errors[name] for name in read), default=0.0),
                error_out=errors[one.common.name],
                changed_node=node_label(changed_node),
                alone=one.alone,
                by_itself=by_itself,
                among=among,
            )
        )
    return tuple(blamed)


def _node(comparison: LocalErrors, common: Common) -> tuple[ir.Node, int]:
    """Return the node of the original at fault, and how many nodes it represents.

    Among several, it is one that the changed model dropped: a missing operator whose last node is
    kept, as in a fusion.
    """
    values = results(comparison.original)
    nodes = between(values[common.name], {values[c.name] for c in comparison.common}).nodes
    nodes = tuple(node for node in nodes if stands_for(node) is not None) or nodes
    own, kept = (
        Counter(filter(None, map(stands_for, each)))
        for each in (nodes, comparison.between(common).nodes)
    )
    dropped = own - kept
    if dropped and stands_for(nodes[-1]) in kept:
        return next(node for node in nodes if stands_for(node) in dropped), 1
    return nodes[-1], len(nodes)


def _changed_node(
    comparison: LocalErrors, found: Contribution, true: Outputs
) -> tuple[ir.Node, float]:
    """Return the node at fault in the file (the one that stores a wrong value) and its error.

    It is known by its result, which is called like the value and something.
    """
    every = comparison.between(found.common).nodes
    nodes = tuple(filter(is_of_file, every)) or every
    stored = comparison.read(found.common)
    stored |= {name: right for name, right in true.items() if name != found.common.name}
    types = tensor_types(comparison.changed)
    copies: dict[str, tuple[ir.Node, Array]] = {}
    for node in nodes:
        for value in map(str, (v.name for v in node.outputs)):
            called = max(filter(value.startswith, stored), key=len, default=None)
            if called is not None and value in types and value != found.common.changed:
                copies[value] = node, stored[called]
    values = comparison.locally([found.common], true, list(copies))
    at_fault, most = nodes[-1], found.local / 2
    for name, (node, right) in copies.items():
        same_kind = (
            right.shape == values[name].shape and right.dtype.kind == values[name].dtype.kind
        )
        if same_kind and distance(right, values[name]) >= most:
            at_fault, most = node, distance(right, values[name])
    for node in nodes:
        for right, kept in stored_weights(comparison.changed, comparison.original, node):
            error = distance(right, kept)
            if error >= most:
                at_fault, most = node, error
    return at_fault, max(found.local, most)
