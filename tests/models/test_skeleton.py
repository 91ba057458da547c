"""Models without their weights: one file that comes along, and can be filled elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models.skeleton import fill, is_skeleton, main, strip
from onnxfold.graph.equality import numbers_key
from tests.model_io.files import linear, rich_model, run, save, typed_weights, weight

FORMS: list[tuple[str, ...]] = [(), ("in.data",), ("in.0", "in.1")]


@pytest.mark.parametrize("data", FORMS, ids=["embedded", "external", "shards"])
def test_a_skeleton_is_one_file_that_is_filled_elsewhere(
    tmp_path: Path, data: tuple[str, ...]
) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", *data)
    strip(source, tmp_path / "bones.onnx")
    assert is_skeleton(tmp_path / "bones.onnx")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(tmp_path / "bones.onnx", elsewhere)
    fill(elsewhere / "bones.onnx", elsewhere / "full.onnx")
    (elsewhere / "bones.onnx").unlink()
    full = run(elsewhere / "full.onnx")
    assert full.shape == run(source).shape
    assert np.isfinite(full).all()


@pytest.mark.parametrize("data", FORMS, ids=["embedded", "external", "shards"])
def test_small_tensors_and_integers_keep_their_numbers(
    tmp_path: Path, data: tuple[str, ...]
) -> None:
    proto = linear(*typed_weights(), weight("large", 200, 200), weight("small", 5))
    source = save(proto, tmp_path / "in.onnx", *data)
    strip(source, tmp_path / "bones.onnx")
    skeleton = onnx.load(tmp_path / "bones.onnx", load_external_data=False)
    original = {tensor.name: tensor for tensor in onnx.load(source).graph.initializer}
    gone = set()
    for tensor in skeleton.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            gone.add(tensor.name)
            continue
        kept = numbers_key(onnx.numpy_helper.to_array(tensor))
        assert kept == numbers_key(onnx.numpy_helper.to_array(original[tensor.name]))
    assert "large" in gone
    assert "small" not in gone


def test_a_skeleton_does_not_replace_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = save(rich_model(), tmp_path / "in.onnx", "in.data")
    before = source.read_bytes()
    assert main(["strip", str(source), "-o", str(source)]) == 3
    assert "is the model itself" in capsys.readouterr().err
    assert source.read_bytes() == before
    assert ort.InferenceSession(source, providers=["CPUExecutionProvider"]).get_inputs()
