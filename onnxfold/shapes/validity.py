"""Validity of a model by the rules of its operators, as onnx itself checks them."""

import sys
from collections.abc import Iterable
from math import prod

import onnx
import onnx_ir as ir

from onnxfold.graph.constants import whole_node
from onnxfold.shapes.equivalents import shape_equivalent
from onnxfold.shapes.inference import skeleton

# Errors that Python and onnx raise for a model that its operators do not allow.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    ir.serde.SerdeError,
)


def complaint(model: ir.Model) -> str | None:
    """Return how a model breaks the rules of its operators, or None.

    Each node is checked against its schema, then types and shapes against each other. A missing
    formality, such as the shape of an input, is not a fault; a tensor larger than any memory is
    one.
    """
    try:
        plain = skeleton(model)
        home = onnx.GraphProto()
        opset = model.opset_imports.get("", 1)
        nodes = model.graph.all_nodes()
        replaced = [whole_node(n) for n in nodes if shape_equivalent(n, home, opset) is not None]
        _check_nodes([*replaced, *plain.graph.node], plain.opset_import, plain.ir_version)
        for function in plain.functions:
            _check_nodes(function.node, function.opset_import, plain.ir_version)
        onnx.shape_inference.infer_shapes(plain, check_type=True, strict_mode=True, data_prop=True)
        _check_sizes(model)
    except MALFORMED as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return lines[0].strip() if lines else type(error).__name__
    return None


def _check_sizes(model: ir.Model) -> None:
    made = (value for node in model.graph.all_nodes() for value in node.outputs)
    for value in (*model.graph.inputs, *made):
        known = [dim for dim in value.shape or () if isinstance(dim, int)]
        if prod(known) > sys.maxsize // 8:
            raise ValueError(f"'{value.name}' has the dimensions {known}, which exceed any memory")


def _check_nodes(
    nodes: Iterable[onnx.NodeProto], imports: Iterable[onnx.OperatorSetIdProto], ir_version: int
) -> None:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = ir_version
    versions = {entry.domain: entry.version for entry in imports}
    for node in nodes:
        if not onnx.defs.has(node.op_type, node.domain):
            continue
        version = versions.get(node.domain, 1)
        if not onnx.defs.has(node.op_type, version, node.domain):
            # ONNX Runtime knew some operators before they were standard.
            version = onnx.defs.get_schema(node.op_type, node.domain).since_version
        context.opset_imports = {**versions, node.domain: version}
        onnx.checker.check_node(node, context)
