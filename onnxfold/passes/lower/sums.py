"""Sum in the place of Add in front of a LayerNorm, for ONNX Runtime on CPUs.

A session makes SkipLayerNormalization of Add and LayerNormalization.  Up to ONNX Runtime 1.29 it is
faster than the two; from 1.30 on it takes five to eight times as long
(benchmarks/results/skip_norms.csv).  Sum takes as long as Add, adds the same numbers, and is left
alone.  In float16 a session has a SkipLayerNormalization but no Sum, around which it puts Casts.
"""

from collections.abc import Iterable

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import replace_node
from onnxfold.norms import NormKind, NormSite, find_norms
from onnxfold.refusal import RefusalCode

SLOW_SINCE = (1, 30)

_BROADCASTS_SINCE = 8
_HAS_SUM = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_KINDS = (NormKind.LAYER_NORM, NormKind.RMS_NORM)


def fused_additions(view: ModelInfo) -> tuple[ir.Node, ...]:
    """Return the additions between norms that a session would fuse with the norm behind them."""
    if view.opset < _BROADCASTS_SINCE:
        return ()
    sites = [site for site in find_norms(view) if site.kind in _KINDS and not _is_of_defaults(site)]
    # An addition in a norm that is spelled out, its beta, becomes part of LayerNormalization.
    parts = {node for site in sites for node in site.nodes}
    found = dict.fromkeys(_fused(site.input, set(site.nodes)) for site in sites)
    return tuple(node for node in found if node is not None and node not in parts)


def replace_by_sums(additions: Iterable[ir.Node]) -> None:
    """Put Sum, which computes the same, in the place of each Add."""
    for addition in additions:
        _replace(addition)


def _is_of_defaults(site: NormSite) -> bool:
    """Whether callers may replace a norm's constants, so that no session fuses it."""
    code = None if site.refusal is None else site.refusal.code
    return code is RefusalCode.OVERRIDABLE_INITIALIZER


def _fused(value: ir.Value, norm: set[ir.Node]) -> ir.Node | None:
    """Return the addition of two tensors that only the nodes of a norm read, or None."""
    node = value.producer()
    if node is None or (node.domain, node.op_type) != ("", "Add") or value.is_graph_output():
        return None
    if value.dtype not in _HAS_SUM:
        return None
    return node if all(use.node in norm for use in value.uses()) else None


def _replace(addition: ir.Node) -> None:
    value = addition.outputs[0]
    total = ir.node("Sum", addition.inputs, name=addition.name, doc_string=addition.doc_string)
    total.metadata_props.update(addition.metadata_props)
    new = total.outputs[0]
    new.name, new.shape, new.type = value.name, value.shape, value.type
    new.metadata_props.update(value.metadata_props)
    replace_node(addition, [total], {0: new})
