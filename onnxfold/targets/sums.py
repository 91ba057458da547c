"""Sum instead of Add upstream of a LayerNorm, for ONNX Runtime on CPUs.

A session fuses Add and LayerNormalization into SkipLayerNormalization. Up to ONNX Runtime 1.29 it
is faster than the two; from 1.30 on it is five to eight times as slow
(benchmarks/results/skip_norms.csv). Sum is as fast as Add, adds the same numbers, and is not fused.
In float16 a session has a SkipLayerNormalization but no Sum, and inserts Casts around it.
"""

from collections.abc import Iterable

import onnx_ir as ir

from onnxfold.graph import ModelInfo, operator
from onnxfold.graph.edit import replace_node
from onnxfold.graph.operands import operands
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.options import Device, Options
from onnxfold.refusal import RefusalCode
from onnxfold.target import Target
from onnxfold.targets.costs import costs_of, work
from onnxfold.targets.installed import onnxruntime_version

SLOW_SINCE = (1, 30)

_BROADCASTS_SINCE = 8
_HAS_SUM = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_JOINED_AXES = 3
_KINDS = (NormKind.LAYER_NORM, NormKind.RMS_NORM)


def slow_additions(model: ir.Model, settings: Options) -> tuple[ir.Node, ...]:
    """Return the additions whose fusion is slow in the installed or the newest ONNX Runtime."""
    if not settings.target.traits.contrib or settings.device is not Device.CPU:
        return ()
    slow = onnxruntime_version() >= SLOW_SINCE
    return fused_additions(ModelInfo(model)) if slow else ()


def fused_additions(view: ModelInfo) -> tuple[ir.Node, ...]:
    """Return the additions that a session would fuse with a downstream norm."""
    if view.opset < _BROADCASTS_SINCE:
        return ()
    sites = [site for site in NORMS.of(view) if site.kind in _KINDS and _is_one_operator(site)]
    # The addition in a spelled-out norm, its beta, becomes part of LayerNormalization.
    parts = {node for site in sites for node in site.nodes}
    found = dict.fromkeys(_fused(site.input, set(site.nodes)) for site in sites)
    apart = (node for node in found if node is not None and node not in parts)
    return tuple(node for node in apart if _is_faster_apart(view, node))


def joined_into(view: ModelInfo, total: ir.Node) -> int:
    """Count the additions fused with the norm after ``total``, also one of a bias before."""
    return 1 + any(_adds_vector(view, value.producer()) for value in operands(total))


def saved_apart(view: ModelInfo, additions: Iterable[ir.Node]) -> int:
    """Return the picoseconds saved by additions that a session does not fuse with norms."""
    costs = costs_of(Target.ORT)
    saved = 0
    for node in additions:
        done = work(view.shape(node.outputs[0]), 1)
        saved += costs.kept_apart(done) - costs.more(joined_into(view, node), done)
    return saved


def _is_faster_apart(view: ModelInfo, addition: ir.Node) -> bool:
    """Whether an addition is so large that a separate operator costs less than the fused one.

    A session fuses none of an unknown rank, since the fusion requires three axes.
    """
    return view.rank(addition.outputs[0]) is not None and saved_apart(view, [addition]) > 0


def joined_additions(view: ModelInfo, site: NormSite) -> int:
    """Count the additions that a session fuses with a downstream LayerNorm.

    It fuses an addition of two tensors of three axes and equal shape, and one of a bias before it.
    """
    total = _fused(site.input, set(site.nodes))
    shapes = [] if total is None else [view.shape(value) for value in total.inputs]
    if total is None or shapes[0] != shapes[1] or len(shapes[0] or ()) != _JOINED_AXES:
        return 0
    return joined_into(view, total)


def _adds_vector(view: ModelInfo, node: ir.Node | None) -> bool:
    """Whether a node adds a constant vector to a value that only it reads."""
    if node is None or operator(node) != "Add" or len(list(node.outputs[0].uses())) != 1:
        return False
    return any(view.tensor(value) is not None and view.rank(value) == 1 for value in node.inputs)


def replace_by_sums(additions: Iterable[ir.Node]) -> None:
    """Replace each Add by Sum, which computes the same."""
    for addition in additions:
        _replace(addition)


def _is_one_operator(site: NormSite) -> bool:
    """Whether a session can fuse a norm: no caller replaces its constants or reads its parts."""
    code = None if site.refusal is None else site.refusal.code
    return code is not RefusalCode.OVERRIDABLE_INITIALIZER and not site.escaping


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
