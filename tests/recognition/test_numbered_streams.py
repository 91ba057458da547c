"""Which norms read one stream: by what a reader of the graph would say."""

from __future__ import annotations

import onnx
import pytest

from onnxfold import model_io
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.recognition import find_norms, streams
from tests.builders import chain_model, post_norm_model, pre_norm_model


def numbers(model: onnx.ModelProto) -> list[int]:
    info = prepare(model_io.from_proto(model)).info
    return streams(info, find_norms(info))


@pytest.mark.parametrize("blocks", [1, 5])
def test_the_norms_of_a_pre_norm_model_read_one_stream(blocks: int) -> None:
    assert numbers(pre_norm_model(blocks)) == [0] * (blocks + 1)


def test_each_norm_of_a_post_norm_model_ends_a_stream() -> None:
    found = numbers(post_norm_model())
    assert found == list(range(len(found)))
    assert len(found) > 1


def test_a_norm_on_a_branch_reads_a_stream_of_its_own() -> None:
    """Twice the norm of a chain: the second one reads a linear layer after the first."""
    model = chain_model()
    norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    second = onnx.NodeProto()
    second.CopyFrom(norm)
    second.input[0], second.output[0], second.name = "y", "z", "second"
    model.graph.node.append(second)
    model.graph.output[0].name = "z"
    assert numbers(model) == [0, 1]
