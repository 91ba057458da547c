"""x - mean(x), as Sub and ReduceMean or a call of ours, read only by a norm.

A LayerNorm ignores the shift: LN(x - mean(x)) = LN(x), one norm of x.
"""

from dataclasses import replace

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, keeps_dims, operator, whole_axes
from onnxfold.graph.operands import is_read_once, producer_of
from onnxfold.norms.site import NormForm, NormKind, NormSite
from onnxfold.operators.families.reduce import Centring
from onnxfold.operators.families.rules import transfer_of


def mean_subtracted_by(view: ModelInfo, node: ir.Node) -> tuple[ir.Node, Fiber] | None:
    """Return the ReduceMean whose result a Sub subtracts from its input, and its fiber."""
    if operator(node) != "Sub":
        return None
    x, mean = node.inputs
    reducer = producer_of(mean)
    if x is None or reducer is None or operator(reducer) != "ReduceMean":
        return None
    if reducer.inputs[0] is not x or not keeps_dims(reducer):
        return None
    shape, axes = view.shape(x), view.axes(reducer)
    fiber = whole_axes(shape, [axis % len(shape) for axis in axes]) if shape and axes else None
    return None if fiber is None else (reducer, fiber)


def cast_of_centred(view: ModelInfo, site: NormSite) -> ir.Node | None:
    """Return the Cast that a norm reads if it converts x - mean(x) over the norm's fiber."""
    cast = producer_of(site.input)
    if cast is None or operator(cast) != "Cast":
        return None
    centring = producer_of(cast.inputs[0])
    found = None if centring is None else mean_subtracted_by(view, centring)
    return cast if found is not None and found[1] == site.fiber else None


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
    nodes = (*found[0], *site.nodes)
    centred = site.centred or (site.input,)
    return replace(site, input=x, nodes=nodes, form=NormForm.DECOMPOSED, centred=centred)


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
