"""Norms of one operator without gamma and beta, and what follows: n * gamma + beta."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, operator
from onnxfold.graph.array_types import Array
from onnxfold.graph.operands import only_reader
from onnxfold.norms.operators import WITHOUT_AFFINE
from onnxfold.norms.site import NormForm, NormSite


def with_affine(view: ModelInfo, site: NormSite) -> NormSite:
    """Return a norm of one operator that multiplies, and then adds, one number per channel.

    The same site results as of a norm that is spelled out.
    """
    if site.form is not NormForm.OP or site.last.op_type not in WITHOUT_AFFINE:
        return site
    product = _with_constant(view, site, site.output, "Mul")
    if product is None:
        return site
    node, gamma = product
    found = replace(
        site,
        form=NormForm.DECOMPOSED,
        output=node.outputs[0],
        nodes=(*site.nodes, node),
        gamma=gamma,
    )
    total = _with_constant(view, site, found.output, "Add")
    if total is None:
        return found
    node, beta = total
    return replace(found, output=node.outputs[0], nodes=(*found.nodes, node), beta=beta)


def _with_constant(
    view: ModelInfo, site: NormSite, value: ir.Value, op_type: str
) -> tuple[ir.Node, Array] | None:
    """Return the only reader of a value, and the constant along the norm's axes that it applies."""
    node = only_reader(value)
    if node is None or operator(node) != op_type or node.graph is not site.last.graph:
        return None
    array = view.wide_array(node.inputs[1 - list(node.inputs).index(value)])
    shape, rank = view.shape(value), view.rank(node.outputs[0])
    if array is None or shape is None or rank != len(shape) or not np.all(np.isfinite(array)):
        return None
    offset = len(shape) - array.ndim
    along = all(n == 1 or axis + offset in site.fiber.axes for axis, n in enumerate(array.shape))
    return (node, array) if along else None
