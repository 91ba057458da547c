"""RMSNorms in operators, for what no operator takes: an epsilon that float32 cannot hold."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.graph.constants import weight_value
from onnxfold.graph.operands import producer_of
from onnxfold.norms.site import NormForm, NormSite

_AXES_ARE_INPUTS_SINCE = 18


def wide_epsilon(site: NormSite) -> bool:
    """Whether epsilon fits no attribute, which are float32."""
    rounded = float(np.float32(site.epsilon))
    spelled = site.form is NormForm.DECOMPOSED
    return site.input.dtype is ir.DataType.DOUBLE and spelled and rounded != site.epsilon


def spelled_rms(
    site: NormSite, x: ir.Value, opset: int
) -> tuple[list[ir.Node], tuple[ir.Value, ...]]:
    """Return x / sqrt(mean(x * x) + epsilon) along the norm's axes, in the type of x.

    The reciprocal stands first: else ONNX Runtime's transformers optimizer raises TypeError.
    """
    square = ir.node("Mul", [x, x])
    epsilon = weight_value(f"{x.name}.epsilon", np.array(site.epsilon, np.float64))
    mean, axes = reduced("ReduceMean", square.outputs[0], site.fiber.axes, opset, str(x.name))
    shifted = ir.node("Add", [mean.outputs[0], epsilon])
    root = ir.node("Sqrt", [shifted.outputs[0]])
    inverse = ir.node("Reciprocal", [root.outputs[0]])
    nodes = [square, mean, shifted, root, inverse, ir.node("Mul", [inverse.outputs[0], x])]
    dims = enumerate(tuple(site.input.shape or ()))
    rows = [1 if axis in site.fiber.axes else dim for axis, dim in dims]
    for node in nodes[1:5]:
        node.outputs[0].shape = ir.Shape(rows)
    return nodes, (epsilon, *axes)


def reduced(
    op_type: str, x: ir.Value, axes: Sequence[int], opset: int, name: str
) -> tuple[ir.Node, tuple[ir.Value, ...]]:
    """Return a reduction along axes, which stay with size 1, and its constants."""
    if opset < _AXES_ARE_INPUTS_SINCE:
        return ir.node(op_type, [x], {"axes": list(axes), "keepdims": 1}), ()
    constant = weight_value(f"{name}.axes", np.array(axes, np.int64))
    return ir.node(op_type, [x, constant], {"keepdims": 1}), (constant,)


def mean_has_one_reader(site: NormSite, centred: ir.Value) -> bool:
    """Whether the norm looks at x only through ``centred``, so that no mean is left without it.

    A second subtraction, or a variance E[x^2] - E[x]^2, would stay as it is.
    """
    centring = centred.producer()
    mean = None if centring is None else centring.inputs[1]
    own, before, waiting = set(site.nodes), {centring}, [mean]
    values = {site.input}
    while waiting:
        value = waiting.pop()
        node = producer_of(value)
        if value is not None and node in own and node not in before:
            before.add(node)
            values.add(value)
            waiting += node.inputs
    return all(use.node in before for value in values for use in value.uses() if use.node in own)
