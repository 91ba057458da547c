"""Whether a test reads all elements in which the models differ, if indices select them.

Random indices reach a few rows of a table; rows that no test reads may be anything. Every node that
reads integers derived from drawn numbers is run on positions instead of numbers, and all positions
along an axis must come out. A router picks experts by drawn numbers that are none: each expert is
changed by itself, and the result must change. The lengths of a recurrent layer pick steps, and each
step reads all channels and all weights.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference import run_nodes
from onnxfold.operators.row import MIXTURES, Layer
from onnxfold.operators.table import row_of
from onnxfold.proof.sizes import Drawn

# A node, an operand, and the axis along which positions come out, or None for experts.
_Read: TypeAlias = tuple[ir.Node, ir.Value, int | None]
READ_NO_NUMBERS = frozenset({"Shape", "Size"})
_W, _R, _B, _LENGTHS, _P = 1, 2, 3, 4, 7  # inputs of a recurrent layer
_CHANNELS = 2  # the axis of its X, in either layout


class Coverage:
    """The reads of some nodes that may skip elements in which two models differ.

    ``differing``: axes along which values differ; ``drawn``: the random values.
    """

    def __init__(
        self,
        model: ir.Model,
        nodes: Sequence[ir.Node],
        differing: Mapping[ir.Value, Collection[int]],
        drawn: Collection[ir.Value],
    ):
        self._model, self._nodes, self._drawn = model, nodes, drawn
        self._differing = {value: axes for value, axes in differing.items() if axes}
        self._reads: list[_Read] | None = None if self._differing else []

    def partly_read(self, computed: Mapping[ir.Value, Drawn]) -> ir.Node | None:
        """Return a node that skips elements along an axis in which values differ, or None.

        Raises as ``run_nodes`` does.
        """
        if self._reads is None:  # which they are depends on types and ranks alone
            self._reads = list(self._found(computed))
        for node, value, axis in self._reads:
            if axis is None:
                whole = _reads_every_expert(self._model, node, computed, value)
            else:
                whole = _reads_all(self._model, node, computed, value, axis)
            if not whole:
                return node
        return None

    def _found(self, computed: Mapping[ir.Value, Drawn]) -> Iterator[_Read]:
        axes, random = dict(self._differing), set(self._drawn)
        for node in self._nodes:
            read = [value for value in node.inputs if value is not None]
            chooses = any(value in random and _is_index(value, computed[value]) for value in read)
            for value in read:
                if chooses:
                    yield from ((node, value, axis) for axis in axes.get(value, ()))
                if row_of(node).layer in MIXTURES and 0 in axes.get(value, ()):
                    yield node, value, None
            if any(value in axes for value in read):
                axes.update({v: range(np.ndim(computed[v])) for v in node.outputs if v in computed})
            if node.op_type not in READ_NO_NUMBERS and any(value in random for value in read):
                random.update(v for v in node.outputs if v in computed)


def lengths_read(nodes: Iterable[ir.Node]) -> set[ir.Value | None]:
    """Return the integers that are numbers of steps: in 0 steps nothing would be computed."""
    recurrent = (node for node in nodes if row_of(node).layer is Layer.RECURRENT)
    return {value for node in recurrent for value in node.inputs[_LENGTHS : _LENGTHS + 1]}


def _is_index(value: ir.Value, array: Drawn) -> bool:
    """Whether a value may select the elements that are read."""
    return value.dtype.is_integer() if value.dtype is not None else array.dtype.kind in "iu"


def _reads_all(
    model: ir.Model, node: ir.Node, computed: Mapping[ir.Value, Drawn], value: ir.Value, axis: int
) -> bool:
    """Whether every position along an axis of an operand appears in the first outputs."""
    array = computed[value]
    size = array.shape[axis]
    if size == 1:
        return True
    if _is_read_in_each_step(node, value, axis):
        steps = max(int(computed[each].max()) for each in lengths_read([node]) if each is not None)
        return steps > (value is node.inputs[_R])  # the first step has no state before it
    column = np.arange(1.0, size + 1).reshape(size, *(1,) * (array.ndim - 1 - axis))
    given = {each: computed[each] for each in node.inputs if each is not None}
    given[value] = np.ascontiguousarray(np.broadcast_to(column, array.shape))
    found = run_nodes(model, [node], given)[node.outputs[0]]
    return bool(np.isin(column, found).all())


def _is_read_in_each_step(node: ir.Node, value: ir.Value, axis: int) -> bool:
    """Whether every step of a recurrent layer with lengths reads all of an axis."""
    if row_of(node).layer is not Layer.RECURRENT or list(node.inputs).count(value) > 1:
        return False
    weights = [node.inputs[at] for at in (_W, _R, _B, _P) if at < len(node.inputs)]
    return value in weights or (value is node.inputs[0] and axis == _CHANNELS)


def _reads_every_expert(
    model: ir.Model, node: ir.Node, computed: Mapping[ir.Value, Drawn], value: ir.Value
) -> bool:
    """Whether each of the experts of an operand changes the result."""
    given = {each: computed[each] for each in node.inputs if each is not None}
    result = node.outputs[0]
    before = run_nodes(model, [node], given)[result]
    for expert in range(len(computed[value])):
        changed = computed[value].copy()
        changed[expert] += 1
        after = run_nodes(model, [node], {**given, value: changed})[result]
        if np.array_equal(before, after):
            return False
    return True
