"""Inputs that hold the keys and values of earlier tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.inputs.roles import arrivals
from onnxfold.operators.families.attention import Attention
from onnxfold.operators.families.rules import transfer_of
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.shapes import infer


@dataclass(frozen=True, slots=True)
class Caches:
    """Requirements of attention operators on inputs that they join to their keys and values.

    sizes: elements of a head, by input. room: the number of tokens for which sliding caches must
    have room; for a cache that is not full, ONNX Runtime returns uninitialized memory. single:
    whether only one sequence is possible, because its GroupQueryAttention accepts several tokens
    after a cache only for a batch of one.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    room: int = 0
    single: bool = False


def find_caches(model: ir.Model) -> Caches:
    """Return the requirements of attention operators on a model's inputs, after inference."""
    if not any(isinstance(transfer_of(node), Attention) for node in ModelInfo(model).nodes()):
        return Caches()
    view = infer(model.clone())
    sizes: dict[str, int] = {}
    room, single = 0, False
    for value in view.model.graph.inputs:
        for arrival in arrivals(view.model, value):
            node, keeper = arrival.node, transfer_of(arrival.node)
            if not isinstance(keeper, Attention) or arrival.index not in keeper.caches:
                continue
            size = keeper.cached_size(view, node)
            sizes |= {} if size is None else {str(value.name): size}
            if node.attributes.get_int("sliding_window_cache", 0):
                room = max(room, node.attributes.get_int("local_window_size", 0))
            single = single or row_of(node).family is Family.GROUP_QUERY_ATTENTION
    return Caches(sizes, room, single)
