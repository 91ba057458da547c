"""benchmarks.runtimes gives runtimes models of fixed sizes, and inputs as they read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks import runtimes
from onnxfold import model_io


def test_sizes_are_fixed_and_inputs_written_in_the_order_of_the_model(tmp_path: Path) -> None:
    def of(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "sequence", 8])

    nodes = [helper.make_node("Add", ["b", "a"], ["y"])]
    graph = helper.make_graph(nodes, "g", [of("b"), of("a")], [of("y")])
    onnx.save(helper.make_model(graph), tmp_path / "symbolic.onnx")
    feeds = {name: np.full((1, 4, 8), value, np.float32) for value, name in enumerate("ab")}
    shapes = {name: list(array.shape) for name, array in feeds.items()}
    runtimes.fixed(tmp_path / "symbolic.onnx", shapes, tmp_path / "fixed.onnx")
    model = model_io.load(tmp_path / "fixed.onnx")
    values = [*model.graph.inputs, *model.graph.outputs]
    assert [value.shape for value in values] == [[1, 4, 8]] * 3
    given = runtimes.described(model, feeds, tmp_path)
    assert [each["name"] for each in given] == ["b", "a"]
    read = np.fromfile(given[0]["file"], given[0]["dtype"]).reshape(given[0]["shape"])
    np.testing.assert_array_equal(read, feeds["b"])
