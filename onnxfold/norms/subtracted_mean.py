"""x - mean(x), as Sub and ReduceMean: by itself, or read by a norm after a Cast."""

import onnx_ir as ir

from onnxfold.graph import Fiber, ModelInfo, keeps_dims, operator, whole_axes
from onnxfold.graph.operands import producer_of
from onnxfold.norms.site import NormSite


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
