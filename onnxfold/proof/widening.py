"""Whether the numbers of a stored constant reach a computation with more bits unchanged.

The roundings of an edit are then larger than all others of the model, as for a half float cast to
float32. No table of operators is consulted: a node is run on numbers with no more bits than the
constant, and may return numbers with more. Numbers that are rounded back to the type of the
constant, by operators that read nothing else but constants, were not computed with more bits: to
the rest of the model they are the result of one operator in that type, as a norm with Casts is.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import digits
from onnxfold.proof.cone import Unprovable
from onnxfold.proof.draws import ERRORS, Drawing
from onnxfold.proof.leaf import MAY_BE_FLOATS
from onnxfold.proof.region import Region
from onnxfold.proof.sizes import SAMPLINGS, Drawn


class Widening:
    """Facts about the rewritten model; ``region_of`` returns the region of one node."""

    def __init__(self, after: ModelInfo, region_of: Callable[[ir.Value], Region]):
        self._after, self._region_of = after, region_of
        self._known: dict[ir.Value, ir.Value | None] = {}
        self._rounds: dict[object, bool] = {}
        outputs = (value for node in after.nodes() for value in node.outputs)
        self._most = max((digits(value.dtype) for value in outputs), default=0)

    def reader_of(self, value: ir.Value, dtype: ir.DataType) -> ir.Value | None:
        """Return a value computed in a wider type from the numbers of a constant, or None.

        If a node cannot be tested, its results are assumed to contain them.
        """
        if not 0 < digits(dtype) < self._most:
            return None
        if value not in self._known:
            self._known[value] = self._found(value, dtype)
        return self._known[value]

    def _found(self, value: ir.Value, dtype: ir.DataType) -> ir.Value | None:
        waiting, seen = [value], {value}
        while waiting:
            for node in (use.node for use in waiting.pop().uses()):
                first = node.outputs[0]
                if digits(first.dtype) > digits(dtype):
                    if not self._comes_back(node, dtype):
                        return first
                    continue
                if first in seen or self._rounds_to(first, dtype):
                    continue
                outputs = [output for output in node.outputs if output.dtype in MAY_BE_FLOATS]
                waiting += outputs
                seen.update(outputs)
        return None

    def _comes_back(self, start: ir.Node, dtype: ir.DataType) -> bool:
        """Whether what is computed of a node's results alone is rounded to ``dtype``, all of it."""
        queue, wide = self._after.queue(), set[ir.Value]()
        queue.add(start)
        for node in queue:
            others = [value for value in node.inputs if value is not None and value not in wide]
            alone = node is start or all(map(self._after.is_constant, others))
            if not alone or node.graph is not start.graph:
                return False
            for output in node.outputs:
                if digits(output.dtype) <= digits(dtype):
                    continue
                if self._after.is_output(output):
                    return False
                wide.add(output)
                for reader in self._after.readers(output):
                    queue.add(reader.node)
        return True

    def _rounds_to(self, output: ir.Value, dtype: ir.DataType) -> bool:
        """Whether the operator of a value needs more bits than its operands have, and so rounds."""
        try:
            region = self._region_of(output)
        except Unprovable:
            return False
        key = (region.key, dtype)
        if key not in self._rounds:
            self._rounds[key] = _rounds(region, dtype)
        return self._rounds[key]


@np.errstate(all="ignore")
def _rounds(region: Region, dtype: ir.DataType) -> bool:
    for numbers in SAMPLINGS:
        sizes, rng = region.sizes(numbers), np.random.default_rng(0)
        try:
            old, new = Drawing(region, sizes).draw(rng, 1.0)
            given = dict(zip(new, _rounded(new.values(), dtype), strict=True))
            _, found = region.outputs(old, given)
        except ERRORS:
            continue
        return not all(np.array_equal(a, found, equal_nan=True) for a in _rounded([found], dtype))
    return False


def _rounded(arrays: Iterable[Drawn], dtype: ir.DataType) -> Iterator[Drawn]:
    for array in arrays:
        floats = array.dtype.kind == "f"
        yield array.astype(dtype.numpy()).astype(np.float64) if floats else array
