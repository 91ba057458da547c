"""The default domain at a newer version; metadata of nodes.

Source: the operators' changelog of ONNX, opset 13 to 23. An operator that is not listed here may
have changed its meaning, so a model with it is refused.
"""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.errors import UsageError
from onnxfold.graph import node_label
from onnxfold.graph.edit import add_constant, set_input
from onnxfold.graph.traversal import all_graphs, all_nodes
from onnxfold.operators.functions import DOMAIN
from onnxfold.operators.new_nodes import weight_value

_OLDEST = 13
# Between these versions they gained types, or attributes with the old behavior as default.
_SAME = frozenset(
    "Acos Acosh Add And Asin Asinh Atan Atanh Cast CastLike Clip Constant ConstantOfShape Conv "
    "ConvTranspose Cos Cosh CumSum DeformConv DequantizeLinear Det Div Dropout Elu Equal EyeLike "
    "Flatten GRU Gemm GlobalAveragePool GlobalMaxPool GreaterOrEqual HardSigmoid HardSwish "
    "Identity If InstanceNormalization IsInf IsNaN LSTM LeakyRelu LessOrEqual Loop LpNormalization "
    "MaxPool Mish Mod Mul Pad PRelu Pow QuantizeLinear RNN Relu Reshape Round Scan ScatterElements "
    "ScatterND Selu Shape "
    "Sin Sinh Size Softplus Softsign Squeeze Sub Tan ThresholdedRelu Transpose Unsqueeze "
    "Where".split()
)
_REDUCTIONS = frozenset(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSumSquare".split()
)


def raise_opset(model: ir.Model, version: int) -> None:
    """Bring the default domain of a working copy to ``version``, where it is older.

    Raises UsageError if an operator may have another meaning there.
    """
    old = model.graph.opset_imports.get("", 1)
    if old >= version:
        return
    nodes = [node for node in all_nodes(model) if not node.domain]
    if old < _OLDEST:
        raise UsageError(f"opset {old} is too old for {_wants(version)}")
    foreign = [key for key in model.functions if key[0] != DOMAIN]
    if foreign:
        raise UsageError(f"function {foreign[0]} is of an older opset than {_wants(version)}")
    changed = [node for node in nodes if not _is_same(node, old, version)]
    for node in changed:
        _convert(node, old, version)
    model.graph.opset_imports[""] = version


def _wants(version: int) -> str:
    return (
        f"--norm-form op, which is {version} or newer; convert the model first, with "
        "onnx.version_converter, or choose another form"
    )


def _is_same(node: ir.Node, old: int, version: int) -> bool:
    try:
        before, after = (onnx.defs.get_schema(node.op_type, each) for each in (old, version))
    except onnx.defs.SchemaError:
        return node.op_type == "SimplifiedLayerNormalization"  # ONNX Runtime's, without versions
    if node.op_type == "BatchNormalization" and len(node.outputs) == 1:
        return True  # with more outputs than y it trained up to opset 13
    return before.since_version == after.since_version or node.op_type in _SAME


def _convert(node: ir.Node, old: int, version: int) -> None:
    if node.op_type in _REDUCTIONS:
        _give_axes(node)
    elif node.op_type == "Split":
        if len(node.inputs) < 2 and "num_outputs" not in node.attributes:
            node.attributes.add(ir.AttrInt64("num_outputs", len(node.outputs)))
    else:
        raise UsageError(
            f"node '{node_label(node)}': {node.op_type} of opset {old} may mean something else at "
            f"the opset of {_wants(version)}"
        )


def _give_axes(node: ir.Node) -> None:
    """Turn the attribute ``axes`` into an input, as reductions have it from opset 18 on."""
    attribute = node.attributes.pop("axes", None)
    graph = node.graph
    if attribute is None or not isinstance(graph, ir.Graph):
        return
    name = f"{node.outputs[0].name}.axes"
    axes = weight_value(name, np.array(attribute.as_ints(), np.int64))
    add_constant(graph, axes)
    set_input(node, 1, axes)


SOURCE_KEY = "onnxfold.source"


def name_sources(model: ir.Model, original: ir.Model) -> None:
    """Replace a note at new nodes that share it with an original node by that node's name.

    Exporters record the source location of a node, in kilobytes. The note stays at the node that
    computes the original result; the others that a pass created from it get a short one.
    """
    homes: dict[frozenset[tuple[str, str]], dict[str, str]] = {}
    for node in all_nodes(original):
        if node.metadata_props:
            home = homes.setdefault(_note(node), {})
            for output in node.outputs:
                home[output.name or ""] = node.name or output.name or ""
    for node in all_nodes(model):
        home = homes.get(_note(node), {}) if node.metadata_props else {}
        if not home or set(node.metadata_props) == {SOURCE_KEY}:
            continue
        if not any(output.name in home for output in node.outputs):
            node.metadata_props.clear()
            node.metadata_props[SOURCE_KEY] = next(iter(home.values()))


def strip_notes(model: ir.Model) -> ir.Model:
    """Return a model without notes on its parts, the same object if there are none.

    These are the metadata and doc strings of graphs, functions, nodes and values. Notes on the
    model itself and on weights stay.
    """
    if not any(part.metadata_props or part.doc_string for part in _noted(model)):
        return model
    stripped = model.clone()
    stripped.meta.update(model.meta)
    for part in _noted(stripped):
        part.metadata_props.clear()
        part.doc_string = None
    return stripped


def _note(node: ir.Node) -> frozenset[tuple[str, str]]:
    return frozenset(node.metadata_props.items())


def _noted(model: ir.Model) -> Iterator[ir.Graph | ir.Function | ir.Node | ir.Value]:
    tops: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for top in tops:
        for graph in (top, *top.subgraphs()):
            yield graph
            yield from graph.inputs
            for node in graph:
                yield node
                yield from node.outputs
    yield from (value for graph in all_graphs(model) for value in graph.initializers.values())
