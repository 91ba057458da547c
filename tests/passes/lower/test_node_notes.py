"""What exporters note at nodes: once in the result, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.passes.lower.opset import SOURCE_KEY
from tests.builders import post_norm_model, pre_norm_model
from tests.sessions import executed, outputs

TRACE = 'File "/home/someone/model.py", line 7, in forward\n' * 40
DIGITS = Path(__file__).resolve().parents[3] / "models" / "digits_vit" / "digits_vit.onnx"


def noted(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model as torch writes it: with a trace at each node."""
    for number, node in enumerate(proto.graph.node):
        node.name = node.name or f"node_{number}"
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=f"{node.name}\n{TRACE}")
        node.metadata_props.add(key="namespace", value=f"model/{node.name}")
        node.doc_string = "a node"
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        value.metadata_props.add(key="pkg.torch.onnx.original_node_name", value=value.name)
        value.doc_string = "a value"
    proto.graph.metadata_props.add(key="pkg.torch.export.graph_signature", value=TRACE)
    proto.graph.doc_string = "a graph"
    proto.metadata_props.add(key="author", value="someone")
    proto.doc_string = "a model"
    return proto


def notes(proto: onnx.ModelProto) -> int:
    return sum(len(entry.value) for node in proto.graph.node for entry in node.metadata_props)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("make", [pre_norm_model, post_norm_model])
def test_a_note_is_in_the_result_once_and_new_nodes_name_their_source(
    make: object, target: str
) -> None:
    assert callable(make)
    original = noted(make())
    folded = onnxfold.optimize(original, target=target, check=None).model
    traces = [
        entry.value
        for node in folded.graph.node
        for entry in node.metadata_props
        if entry.key == "pkg.torch.onnx.stack_trace"
    ]
    assert len(traces) == len(set(traces))
    names = {node.name for node in original.graph.node}
    sources = [
        entry.value
        for node in folded.graph.node
        for entry in node.metadata_props
        if entry.key == SOURCE_KEY
    ]
    assert set(sources) <= names
    assert bool(sources) == (target == "onnx" and make is pre_norm_model)
    assert notes(folded) <= notes(original) + sum(map(len, sources))
    again = onnxfold.optimize(folded, target=target, check=None)
    assert not again.changed


def test_a_model_without_notes_gets_none() -> None:
    folded = onnxfold.optimize(pre_norm_model(), check=None).model
    assert not any(node.metadata_props for node in folded.graph.node)


@pytest.mark.parametrize(
    ("target", "external"), [("onnx", None), ("ort", True), ("kernels", None), ("kernels", True)]
)
def test_notes_are_left_out_where_that_is_asked(
    tmp_path: Path, target: str, external: bool | None
) -> None:
    original = noted(pre_norm_model())
    onnx.save(original, tmp_path / "in.onnx")
    result = onnxfold.optimize(
        tmp_path / "in.onnx",
        tmp_path / "out.onnx",
        target=target,
        strip_metadata=True,
        save_as_external_data=external,
    )
    assert result.verification is not None
    folded = onnx.load(tmp_path / "out.onnx")
    parts = (folded.graph, *folded.graph.node, *folded.graph.input, *folded.graph.output,
             *folded.graph.value_info, *folded.functions)  # fmt: skip
    assert not any(part.metadata_props or part.doc_string for part in parts)
    assert {entry.key for entry in folded.metadata_props} == {"author", "onnxfold"}
    assert folded.doc_string == "a model"
    plain = tmp_path / "plain.onnx"
    onnxfold.optimize(tmp_path / "in.onnx", plain, target=target, check=None)
    assert [n.op_type for n in onnx.load(plain).graph.node] == [
        n.op_type for n in folded.graph.node
    ]


def test_a_model_in_which_nothing_else_changes_is_stripped_too(tmp_path: Path) -> None:
    onnxfold.optimize(noted(pre_norm_model()), tmp_path / "fast.onnx")
    result = onnxfold.optimize(tmp_path / "fast.onnx", tmp_path / "small.onnx", strip_metadata=True)
    assert result.changed
    assert notes(onnx.load(tmp_path / "fast.onnx")) > 0
    assert notes(onnx.load(tmp_path / "small.onnx")) == 0
    again = onnxfold.optimize(tmp_path / "small.onnx", tmp_path / "again.onnx", strip_metadata=True)
    assert not again.changed
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "small.onnx").read_bytes()


def test_equal_constants_of_new_nodes_are_one_and_sessions_fuse_all_the_same(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.onnx"
    onnxfold.optimize(DIGITS, out)
    constants = [
        (tuple(node.attribute[0].t.dims), node.attribute[0].t.raw_data)
        for node in onnx.load(out).graph.node
        if node.op_type == "Constant"
    ]
    assert len(constants) == len(set(constants)) == 3
    assert out.stat().st_size < DIGITS.stat().st_size
    operators = [node.op_type for node in executed(out, tmp_path).graph.node]
    assert operators.count("SimplifiedLayerNormalization") == 9
    assert not {"Pow", "ReduceMean", "Sqrt"} & set(operators)
    (logits,) = outputs(out, {"images": np.zeros((3, 1, 8, 8), np.float32)})
    assert np.isfinite(logits).all()
