"""Known defects of files that converters write: those worth a note, and those never allowed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.check.common_values import tensor_types
from onnxfold.check.pieces import reads_of
from onnxfold.errors import ModelError, VerificationError
from onnxfold.graph import node_label
from onnxfold.graph.constants import HALVES
from onnxfold.model_io import show
from onnxfold.model_io.load import Source
from onnxfold.runtime.sessions import session_operators

_SQUARES, _MEANS = frozenset({"Mul", "Pow"}), frozenset({"ReduceMean", "ReduceSum"})
_QUANTIZED_FORMS = frozenset({"Conv", "Gemm", "MatMul"})
# A converter that clips stores the same number in place of every larger one.
_CLIPPED = 0.5


def check_order(path: Path) -> None:
    """Raise VerificationError for a file whose nodes read results of later ones."""
    model = onnx.load(path, load_external_data=False)
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        found = _early(nodes)
        if found is not None:
            node, name = found
            raise VerificationError(
                f"{show(path)}: its nodes are not in order: '{node.name or node.output[0]}' "
                f"({node.op_type}) reads '{name}', which a later one computes; sort them (optimize "
                "does), for runtimes may refuse the file"
            )


def _early(nodes: Sequence[onnx.NodeProto]) -> tuple[onnx.NodeProto, str] | None:
    """Return the first node that reads the result of a later one, and the name of that result."""
    waiting = {name for node in nodes for name in node.output if name}
    for node in nodes:
        for name in reads_of(node):
            if name in waiting:
                return node, name
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                found = _early(body.node)
                if found is not None:
                    return found
        waiting.difference_update(node.output)
    return None


def traps(original: Source, changed: Source) -> tuple[str, ...]:
    """Return notes on frequent defects in a file like the changed one.

    They do not decide the verdict.
    """
    found = (
        _half_norms(changed.model),
        _new_clips(original.model, changed.model),
        _clipped_weights(original.model, changed.model),
        _unfused(changed),
    )
    return tuple(sentence for sentence in found if sentence is not None)


def _half_norms(model: ir.Model) -> str | None:
    """Describe decomposed norms whose squares are summed in float16."""
    types = tensor_types(model)
    found = [
        node
        for node in model.graph
        if node.op_type in _MEANS
        and (square := node.inputs[0]) is not None
        and types.get(str(square.name)) == np.float16
        and _is_square(square.producer())
    ]
    if not found:
        return None
    return (
        f"{len(found)} norms in pieces square in float16, the first in '{node_label(found[0])}': "
        "numbers beyond 255 overflow there; keep these nodes in float32, or fuse the norms first"
    )


def _is_square(node: ir.Node | None) -> bool:
    if node is None or node.op_type not in _SQUARES:
        return False
    return node.op_type == "Pow" or node.inputs[0] is node.inputs[1]


def _new_clips(original: ir.Model, changed: ir.Model) -> str | None:
    before, after = (
        {node_label(node): node for node in model.graph if node.op_type == "Clip"}
        for model in (original, changed)
    )
    new = [name for name in after if name not in before]
    if not new or len(after) <= len(before):
        return None
    return f"{len(new)} Clip are new, the first '{new[0]}': they cut off numbers"


def _clipped_weights(original: ir.Model, changed: ir.Model) -> str | None:
    """Describe float16 weights with a smaller largest number than in the original."""
    clipped = []
    for name, value in changed.graph.initializers.items():
        before = original.graph.initializers.get(name)
        if value.dtype not in HALVES or before is None or before.dtype in HALVES:
            continue
        largest, kept = _largest(before), _largest(value)
        if kept < _CLIPPED * largest:
            clipped.append(f"'{name}' from {largest:.3g} to {kept:.3g}")
    return f"{len(clipped)} weights were clipped, the first {clipped[0]}" if clipped else None


def _largest(value: ir.Value) -> float:
    if value.const_value is None:
        return 0.0
    array = value.const_value.numpy()
    return max(abs(float(array.max(initial=0))), abs(float(array.min(initial=0))))


def _unfused(changed: Source) -> str | None:
    """Describe operators between Q and DQ nodes that a CPU session computes in float.

    A file that does not load gets no note.
    """
    nodes = [node for node in changed.model.graph if node.op_type in _QUANTIZED_FORMS]
    quantized = [node for node in nodes if _is_dequantized(node.inputs[0])]
    if not quantized or changed.path is None:
        return None
    try:
        session = session_operators(changed.path)
    except ModelError:
        return None
    if session is None:
        return None
    in_float = sum(session.get(name, 0) for name in _QUANTIZED_FORMS)
    stay = in_float - (len(nodes) - len(quantized))
    if stay <= 0:
        return None
    return (
        f"{stay} of {len(quantized)} {', '.join(sorted(_QUANTIZED_FORMS))} between QuantizeLinear "
        "and DequantizeLinear are computed in float by a CPU session: it has no integer operator "
        "for them"
    )


def _is_dequantized(value: ir.Value | None) -> bool:
    """Whether a value was stored as integers by a node of the graph, as activations are."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return False
    return node.inputs[0].producer() is not None
