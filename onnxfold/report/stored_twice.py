"""Weights that a model stores more than once, and other tools store once."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import onnx_ir as ir

from onnxfold.graph.equality import numbers_key, same_tensor
from onnxfold.graph.traversal import all_graphs

_Named: TypeAlias = tuple[str, ir.TensorProtocol]

LEAST_SHARE = 0.02  # the least share of all weights in the copies
_SMALLEST = 0.001  # the least share of all weights in a weight that is examined
_COMPARED = 64  # elements at the start of a weight, which differ in nearly all unequal ones


def stored_twice(model: ir.Model) -> list[dict[str, Any]]:
    """Return the weights with equal numbers, the most bytes first: their names and sizes.

    ``share`` is the copies' share of all weights, at least :data:`LEAST_SHARE`.
    """
    tensors: dict[object, _Named] = {}
    for graph in all_graphs(model):
        for name, value in graph.initializers.items():
            if value.const_value is not None and value.const_value.dtype is not ir.DataType.STRING:
                tensors.setdefault(_place(value.const_value), (name, value.const_value))
    total = sum(tensor.nbytes for _, tensor in tensors.values())
    large = [named for named in tensors.values() if named[1].nbytes > _SMALLEST * total]
    found = []
    for group in _equal(large):
        nbytes = group[0][1].nbytes
        share = (len(group) - 1) * nbytes / total
        if share > LEAST_SHARE:
            names = [name for name, _ in group]
            found.append({"weights": names, "bytes": nbytes, "share": round(share, 4)})
    return sorted(found, key=lambda row: -row["share"])


def _place(tensor: ir.TensorProtocol) -> object:
    """Return the place where a tensor is stored; two tensors at one place are stored once."""
    if isinstance(tensor, ir.ExternalTensor):
        return (tensor.path, tensor.offset)
    return id(tensor)


def _equal(tensors: Iterable[_Named]) -> Iterator[list[_Named]]:
    """Yield groups of several tensors with equal numbers."""
    alike: dict[object, list[list[_Named]]] = {}
    for name, tensor in tensors:
        start = numbers_key(tensor.numpy().reshape(-1)[:_COMPARED])
        groups = alike.setdefault((tensor.dtype, tuple(tensor.shape.numpy()), start), [])
        same = next((group for group in groups if same_tensor(group[0][1], tensor)), None)
        if same is None:
            groups.append([(name, tensor)])
        else:
            same.append((name, tensor))
    for groups in alike.values():
        yield from (group for group in groups if len(group) > 1)
