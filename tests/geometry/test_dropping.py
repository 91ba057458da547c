"""``optimize --drop-means``: measured, declared, within a budget, and only when asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

import onnxfold
from onnxfold.check.runners import OnnxRuntime
from onnxfold.cli.application import app
from onnxfold.errors import UsageError, VerificationError
from onnxfold.geometry.small_means import DroppedMean
from onnxfold.graph import ModelInfo
from onnxfold.model_io.load import open_source
from onnxfold.passes.base import NormsPlan
from onnxfold.passes.dropping import prove
from tests.builders import model_of, pre_norm_model

D = 16
EPSILON = 1e-5
Array = np.ndarray[Any, Any]


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    made = {
        "W": rng.normal(size=(D, D)) / 4,
        "g": rng.normal(1, 0.5, size=D),
        "b": rng.normal(size=D),
        "V": rng.normal(size=(D, D)),
    }
    return {name: array.astype(np.float32) for name, array in made.items()}


def model() -> onnx.ModelProto:
    """y = (LN_big(relu(x W)) + LN_small(x)) V, of which no norm folds."""
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("LayerNormalization", ["r", "g", "b"], ["n"], name="big"),
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["m"], name="small"),
        helper.make_node("Add", ["n", "m"], ["s"]),
        helper.make_node("MatMul", ["s", "V"], ["y"]),
    ]
    x, y = ((onnx.TensorProto.FLOAT, ["N", D]) for _ in range(2))
    return model_of(nodes, {"x": x}, {"y": y}, weights(), opset=18)


def rows(mean: float = 0.002, count: int = 64) -> Array:
    x = np.random.default_rng(1).normal(size=(count, D))
    x -= x.mean(1, keepdims=True)
    return (x + mean).astype(np.float32)


def data(folder: Path, x: Array) -> Path:
    np.savez(folder / "data.npz", x=x)
    return folder / "data.npz"


def normed(x: Array, *, subtract: bool) -> Array:
    """Return what a norm gives in float64, with gamma and beta."""
    w = weights()
    x = x - x.mean(1, keepdims=True) if subtract else x
    scale = np.sqrt((x**2).mean(1, keepdims=True) + np.float64(np.float32(EPSILON)))
    return np.asarray(x / scale * w["g"].astype(float) + w["b"].astype(float))


def expected(x: Array) -> Array:
    """Return what the model computes once the mean of `small` is dropped."""
    w, x = weights(), x.astype(np.float64)
    r = np.maximum(x @ w["W"].astype(float), 0)
    summed = normed(r, subtract=True) + normed(x, subtract=False)
    return np.asarray(summed @ w["V"].astype(float))


def metadata(made: onnx.ModelProto) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        next(entry.value for entry in made.metadata_props if entry.key == "onnxfold")
    )
    return found


def run(made: onnx.ModelProto, x: Array) -> Array:
    source = open_source(made)
    (outputs,) = OnnxRuntime(("CPUExecutionProvider",)).run(source, [{"x": x}], optimize=True)
    return np.asarray(outputs["y"])


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_a_small_mean_is_dropped_and_declared(tmp_path: Path, target: str) -> None:
    x = rows()
    given = {"drop_means": 0.05, "data": data(tmp_path, x), "target": target, "fold": "always"}
    result = onnxfold.optimize(model(), **given)
    kinds = {node.op_type for node in result.model.graph.node}
    assert ("LayerNormalization" in kinds) != (target == "kernels")
    if target != "kernels":
        assert [n.name for n in result.model.graph.node if n.op_type == "LayerNormalization"] == [
            "big"
        ]
        found, wanted = run(result.model, x), expected(x)
        assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    said = metadata(result.model)
    assert said["inexact"] == {
        "dropped_means": 1,
        "largest_of_length": 0.05,
        "error_budget": 0.01,
    }
    document = result.report["inexact"]
    by_name = {norm["name"]: norm for norm in document["norms"]}
    x64 = x.astype(np.float64)
    share = np.abs(x64.sum(1)) / np.sqrt(D) / np.linalg.norm(x64, axis=1)
    assert by_name["small"]["of_length"] == pytest.approx(share.max(), rel=1e-6)
    assert by_name["small"]["reason"] is None
    assert 0 < by_name["small"]["error"] < 0.05
    assert "of the length" in by_name["big"]["reason"]
    assert document["verification"]["passed"]
    again = onnxfold.optimize(result.model, fold="always", target=target)
    assert not again.changed or metadata(again.model)["inexact"] == said["inexact"]


def test_nothing_is_dropped_without_being_asked(tmp_path: Path) -> None:
    result = onnxfold.optimize(model(), fold="always")
    assert "inexact" not in result.report
    assert [n.op_type for n in result.model.graph.node].count("LayerNormalization") == 2
    shifted = onnxfold.optimize(
        model(), fold="always", drop_means=0.05, data=data(tmp_path, rows(mean=1.0))
    )
    assert all(norm["reason"] for norm in shifted.report["inexact"]["norms"])
    assert not shifted.changed
    assert not any("inexact" in entry.value for entry in shifted.model.metadata_props)


def test_what_folds_exactly_folds_and_is_not_among_them(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 32, size=(40, 6)).astype(np.int64)
    np.savez(tmp_path / "ids.npz", ids=ids)
    exact = onnxfold.optimize(pre_norm_model(), fold="always")
    given = {"drop_means": 0.5, "data": tmp_path / "ids.npz", "fold": "always"}
    result = onnxfold.optimize(pre_norm_model(), **given)
    assert exact.report["inspect"]["summary"]["folded"] > 0
    assert result.report["inspect"]["summary"] == exact.report["inspect"]["summary"]
    assert result.report["inexact"]["norms"] == []
    assert result.model.SerializeToString() == exact.model.SerializeToString()


def test_the_budget_holds_or_nothing_is_written(tmp_path: Path) -> None:
    given = {"drop_means": 1.0, "data": data(tmp_path, rows(mean=0.3)), "fold": "always"}
    with pytest.raises(VerificationError, match="error budget is exceeded, nothing was written"):
        onnxfold.optimize(model(), tmp_path / "out.onnx", **given)
    assert not (tmp_path / "out.onnx").exists()
    result = onnxfold.optimize(model(), tmp_path / "out.onnx", **given, max_error=2.0)
    assert metadata(onnx.load(tmp_path / "out.onnx"))["inexact"]["dropped_means"] == 2
    assert result.report["inexact"]["verification"]["budget"] == {"relative": 2.0}


def test_zero_rows_and_excluded_norms_stay(tmp_path: Path) -> None:
    x = rows()
    x[3] = 0
    given = {"drop_means": 0.05, "data": data(tmp_path, x), "fold": "always"}
    result = onnxfold.optimize(model(), **given)
    reasons = {n["name"]: n["reason"] for n in result.report["inexact"]["norms"]}
    assert reasons["small"] == "some of the vectors that it reads are zeros or not finite"
    given["data"] = data(tmp_path, rows())
    excluded = onnxfold.optimize(model(), **given, exclude="small")
    reasons = {n["name"]: n["reason"] for n in excluded.report["inexact"]["norms"]}
    assert reasons["small"] == "excluded by name"


def test_the_command_prints_every_norm(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    words = ["optimize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx")]
    words += ["--fold", "always", "--drop-means", "0.05", "--data", str(data(tmp_path, rows()))]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    told = " ".join(done.output.split())
    assert "inexact: 1 of 2 LayerNorms that stayed are RMSNorms now" in told
    assert "small: mean up to 0.0" in told
    assert "big: mean up to 0." in told
    assert metadata(onnx.load(tmp_path / "o.onnx"))["inexact"]["dropped_means"] == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drop_means": 0.1}, "add data="),
        ({"data": "x.npz"}, "add one of them"),
        ({"drop_means": -0.1, "data": "x.npz"}, "drop_means must be 0 or more"),
        ({"drop_means": 0.1, "data": "x.npz", "dry_run": True}, "drop_means= excludes dry_run="),
        ({"drop_means": 0.1, "data": "x.npz", "share_weights": True}, "excludes share_weights="),
        ({"drop_means": 0.1, "data": "x.npz", "check": None}, "leave check=None out"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        onnxfold.optimize(model(), **options)


def test_no_proof_holds_of_it() -> None:
    info = ModelInfo(open_source(model()).model)
    assert prove(info, info, NormsPlan()).failures
    assert DroppedMean("a", None, None, None).reason is None
