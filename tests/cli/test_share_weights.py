"""--share-weights from the command line and from Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfold
from onnxfold.cli.application import main
from tests.builders import pre_norm_model


def _external(folder: Path) -> Path:
    path = folder / "in.onnx"
    onnx.save(pre_norm_model(), path, save_as_external_data=True, location="in.data",
              size_threshold=64)  # fmt: skip
    return path


def _outputs(path: Path) -> list[np.ndarray]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {}
    for given in session.get_inputs():
        shape = [dim if isinstance(dim, int) else 3 for dim in given.shape]
        if given.type == "tensor(int64)":
            feeds[given.name] = np.ones(shape, np.int64)
        else:
            feeds[given.name] = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32)
            feeds[given.name] = feeds[given.name].reshape(shape)
    return session.run(None, feeds)


def test_the_model_that_shares_computes_what_the_whole_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _external(tmp_path)
    shared, whole = tmp_path / "shared.onnx", tmp_path / "whole.onnx"
    words = ["onnxfold", "optimize", str(source), "-o", str(shared), "--share-weights"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"which needs {tmp_path / 'in.data'} beside it" in said
    onnxfold.optimize(source, whole)
    for given, expected in zip(_outputs(shared), _outputs(whole), strict=True):
        np.testing.assert_array_equal(given, expected)
    onnx.checker.check_model(shared)
    written = (tmp_path / "shared.onnx.data").stat().st_size
    assert 0 < written < (tmp_path / "whole.onnx.data").stat().st_size


def test_a_second_run_on_it_writes_no_weights(tmp_path: Path) -> None:
    first = onnxfold.optimize(_external(tmp_path), tmp_path / "a.onnx", share_weights=True)
    assert first.report["output"]["shared_data"] == [str(tmp_path / "in.data")]
    second = onnxfold.optimize(first.model, tmp_path / "b.onnx", share_weights=True)
    assert not second.changed
    assert second.report["output"]["data_files"] == []
    assert len(second.report["output"]["shared_data"]) == 2
    onnxfold.optimize(tmp_path / "b.onnx", tmp_path / "c.onnx")
    for given, expected in zip(
        _outputs(tmp_path / "c.onnx"), _outputs(tmp_path / "a.onnx"), strict=True
    ):
        np.testing.assert_array_equal(given, expected)


def test_it_is_refused_before_any_work_where_it_cannot_be(tmp_path: Path) -> None:
    source = _external(tmp_path)
    (tmp_path / "sub").mkdir()
    refused = "only from the folder of the input's data"
    with pytest.raises(onnxfold.UsageError, match=refused):
        onnxfold.optimize(source, tmp_path / "sub" / "out.onnx", share_weights=True)
    with pytest.raises(onnxfold.UsageError, match="must not have"):
        onnxfold.optimize(
            source, tmp_path / "out.onnx", share_weights=True, save_as_external_data=False
        )
    with pytest.raises(onnxfold.UsageError, match="read from a file"):
        onnxfold.optimize(pre_norm_model(), tmp_path / "out.onnx", share_weights=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.data", "in.onnx", "sub"]
