"""Find the defect in the model that made a stage fail."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod

import onnx
import onnx_ir as ir

from onnxfold import model_io
from onnxfold.errors import InvariantError, ModelError, UsageError, escaped
from onnxfold.graph import node_label, operator
from onnxfold.graph.constants import whole_node
from onnxfold.graph.operands import operands
from onnxfold.model_io.load import Source
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.shapes.equivalents import shape_equivalent
from onnxfold.shapes.inference import skeleton

_PLACES = ("node '", "value '", "loops ", "opset ", "function ")
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


@contextmanager
def error_context(source: Source) -> Iterator[None]:
    """Name the fault of an invalid ONNX model if a stage fails on it.

    Raises ModelError then; an error on a valid model is a defect and is passed on. A message about
    a part of the model is prefixed with the name of the file.
    """
    label = "the model" if source.path is None else model_io.show(source.path)
    try:
        yield
    except (ModelError, UsageError) as error:
        if str(error).startswith(_PLACES):
            raise type(error)(f"{label}: {error}") from error
        raise
    except (*MALFORMED, InvariantError) as error:
        reason = complaint(source.model) or _complaint_of_copy(source.model) or _attribute(error)
        if reason is None:
            raise
        sentence = f"{label}: not valid ONNX: {escaped(reason)}"
        raise ModelError(sentence) from error


def _complaint_of_copy(model: ir.Model) -> str | None:
    """Return the fault of a model that shows once functions and skip-norms are split."""
    try:
        return complaint(prepare(model).model)
    except MALFORMED:
        return None


def _attribute(error: Exception) -> str | None:
    """Return onnx-ir's message about an attribute of the wrong type, which no schema excludes."""
    sentence = str(error)
    return sentence if isinstance(error, TypeError) and sentence.startswith("Attribute '") else None


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
        _check_scales(model)
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


def _check_scales(model: ir.Model) -> None:
    """Check what onnx 1.23 does not: the scale and bias of a norm must fit its axes."""
    for node in model.graph.all_nodes():
        x = node.inputs[0] if operator(node) == "LayerNormalization" else None
        if x is None or x.shape is None:
            continue
        sizes = x.shape[node.attributes.get_int("axis", -1) :]
        for part in operands(node)[1:]:
            shape = () if part.shape is None else tuple(part.shape)
            pairs = zip(reversed(shape), reversed(sizes), strict=False)
            if any(a not in (1, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)):
                fault = f"has shape {list(shape)} for axes of {list(sizes)}"
                raise ValueError(f"'{part.name}' of {node_label(node)} {fault}")


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
