"""x - mean(x), as Sub and ReduceMean or a call of ours: read only by a norm, or bare.

A LayerNorm ignores the shift: LN(x - mean(x)) = LN(x), one norm of x.
"""

from dataclasses import replace

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, node_label
from onnxfold.graph.operands import is_read_once, producer_of
from onnxfold.norms import CENTRINGS, NORMS, BareCentring
from onnxfold.norms.site import NormForm, NormKind, NormSite
from onnxfold.norms.subtracted_mean import mean_subtracted_by
from onnxfold.operators.families.reduce import Centring
from onnxfold.operators.families.rules import transfer_of


@CENTRINGS.found_by
def find_centrings(info: ModelInfo) -> tuple[BareCentring, ...]:
    """Return every subtraction of a mean from an activation that no norm contains, in order."""
    taken = {node for site in NORMS.of(info) for node in site.nodes}
    found = []
    for node in info.nodes():
        if node in taken or not node.outputs or info.is_dead(node):
            continue
        nodes, fiber = subtraction(info, node) or ((), None)
        x = node.inputs[0] if nodes else None
        if x is None or fiber is None or info.tensor(x) is not None:
            continue
        name = node_label(node)
        found.append(BareCentring(name, x, node.outputs[0], fiber, fiber.size, nodes))
    return tuple(found)


def with_subtraction(view: ModelInfo, site: NormSite) -> NormSite:
    """Return a LayerNorm extended by the upstream subtraction of its mean, unless shared."""
    node = producer_of(site.input)
    plain = site.kind is NormKind.LAYER_NORM and not site.escaping and site.refusal is None
    if node is None or not plain or not _is_read_within(site):
        return site
    found = subtraction(view, node)
    alone = found is not None and all(is_read_once(each.outputs[0]) for each in found[0][:-1])
    x = None if not alone or found is None else node.inputs[0]
    if x is None or found is None or found[1] != site.fiber:
        return site
    # An operator has no value x - mean(x) inside that its own root could read instead.
    nodes = (*found[0], *site.nodes)
    return replace(site, input=x, nodes=nodes, form=NormForm.DECOMPOSED)


def subtraction(view: ModelInfo, node: ir.Node) -> tuple[tuple[ir.Node, ...], Fiber] | None:
    """Return the nodes of x - mean(x), with the result last, and the fiber of the mean."""
    transfer = transfer_of(node)
    if isinstance(transfer, Centring):
        fiber = transfer.fiber(view, node)
        return None if fiber is None else ((node,), fiber)
    found = mean_subtracted_by(view, node)
    return None if found is None else ((found[0], node), found[1])


def _is_read_within(site: NormSite) -> bool:
    """Whether the norm is the only reader of its input."""
    inside = all(use.node in site.nodes for use in site.input.uses())
    return inside and not site.input.is_graph_output()
