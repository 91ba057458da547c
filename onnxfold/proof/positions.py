"""Integers of a region that may be positions along an axis.

A test on shorter tensors shows nothing about the elements from such a position on. No table of
operators is consulted: every number of an attribute and of a constant may be one.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from onnxfold.proof.sizes import Drawn

_LEAST = 5  # every test reaches these positions
_BEYOND = 2**31 - 1  # to the end, not a position
_FEW = 64
_NUMBERS = frozenset({ir.AttributeType.INT, ir.AttributeType.FLOAT})
_LISTS = frozenset({ir.AttributeType.INTS, ir.AttributeType.FLOATS})


def positions(
    nodes: Iterable[ir.Node], constants: Iterable[Drawn], *, floats: bool = False
) -> frozenset[int]:
    """Return what may be a position; from floating-point numbers only on request."""
    attributes = (array for node in nodes for array in _attributes(node))
    arrays = [array for array in (*attributes, *constants) if array.dtype.kind in "iuf"]
    read = [array for array in arrays if array.dtype.kind != "f" or (floats and array.size <= _FEW)]
    return frozenset(number for array in read for number in _whole(array))


def _attributes(node: ir.Node) -> Iterator[Drawn]:
    for attribute in node.attributes.values():
        if attribute.type in _NUMBERS:
            yield np.array([attribute.value])
        elif attribute.type in _LISTS:
            yield np.array(attribute.value)
        elif attribute.type is ir.AttributeType.TENSOR:
            yield attribute.as_tensor().numpy()


def _whole(array: Drawn) -> Iterator[int]:
    sizes = np.unique(np.abs(array.astype(np.float64)))
    sizes = sizes[(sizes >= _LEAST) & (sizes < _BEYOND) & (sizes == np.floor(sizes))]
    return map(int, sizes)
