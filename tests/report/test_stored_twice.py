"""Weights that are stored more than once are found by their numbers, whatever their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper
from onnx_ir.passes.common import DeduplicateHashedInitializersPass

import onnxfold
from onnxfold import model_io
from onnxfold.report import sentences
from onnxfold.report.document import stored_twice
from tests.builders import model_of

_WIDTH = 64


def _model(weights: dict[str, npt.NDArray[np.float32]]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", name], [f"y{number}"])
        for number, name in enumerate(weights)
    ]
    kind = (TensorProto.FLOAT, ["batch", _WIDTH])
    return model_of(nodes, {"x": kind}, {f"y{n}": kind for n in range(len(weights))}, weights)


def _weights(*names: str) -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((_WIDTH, _WIDTH)).astype(np.float32) for name in names}


def test_equal_weights_are_named_with_their_share_and_the_way_out(tmp_path: Path) -> None:
    weights = _weights("embedding", "a", "head")
    weights["head"] = weights["embedding"].copy()
    for external in (False, True):
        path = tmp_path / f"{external}.onnx"
        onnx.save_model(_model(weights), path, save_as_external_data=external, size_threshold=0)
        (found,) = stored_twice(model_io.load(path))
        assert found["weights"] == ["embedding", "head"]
        assert found["bytes"] == 4 * _WIDTH**2
        assert abs(found["share"] - 1 / 3) < 1e-3
    document = onnxfold.inspect(tmp_path / "True.onnx")
    assert document["stored_twice"] == [found]
    told = sentences.twice(document["stored_twice"])
    assert told is not None
    assert told.startswith("'embedding' and 'head' are equal and stored twice, 33% of all weights")
    assert DeduplicateHashedInitializersPass.__name__ in told
    model = ir.load(tmp_path / "True.onnx")
    DeduplicateHashedInitializersPass()(model)
    assert stored_twice(model) == []


def test_weights_that_differ_in_their_last_number_are_two() -> None:
    weights = _weights("a", "b")
    weights["b"] = weights["a"].copy()
    weights["b"][-1, -1] += 1
    assert stored_twice(model_io.from_proto(_model(weights))) == []


def test_one_place_in_a_data_file_is_one_weight(tmp_path: Path) -> None:
    weights = _weights("a", "b")
    weights["b"] = weights["a"].copy()
    onnx.save_model(_model(weights), tmp_path / "m.onnx", save_as_external_data=True,
                    size_threshold=0)  # fmt: skip
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert len(stored_twice(model_io.load(tmp_path / "m.onnx"))) == 1
    first, second = proto.graph.initializer
    del second.external_data[:]
    second.external_data.extend(first.external_data)
    (tmp_path / "tied.onnx").write_bytes(proto.SerializeToString())
    assert stored_twice(model_io.load(tmp_path / "tied.onnx")) == []


def test_copies_of_little_are_not_told() -> None:
    weights = _weights(*(f"w{number}" for number in range(60)))
    weights["w1"] = weights["w0"].copy()
    assert stored_twice(model_io.from_proto(_model(weights))) == []
