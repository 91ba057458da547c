"""Deferred files taken back: every architecture and target, by way of files on a disk."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.target import Target
from tests.lanes import some
from tests.passes.deferral.architectures import ARCHITECTURES
from tests.passes.deferral.test_layer_norms import layer_norm_model

BOUND = 1e-12  # of one file against another with the same weights, both in float64


def _summary(report: dict[str, Any]) -> dict[str, Any]:
    assert "left_out" not in report
    summary: dict[str, Any] = report["inspect"]["summary"]
    return summary


def _same(name: str, first: Path, second: Path) -> None:
    """Compare two files on random rows, one of them zeros, one large."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 5)).astype(np.float32)
    x[0, 1], x[1, 2] = 0, 1e4 * x[1, 2]
    feeds = {"x": x, "p": rng.integers(0, 9, (2, 5))} if ARCHITECTURES[name].rope else {"x": x}
    a, b = (run(ir.load(f), feeds, precision=Precision.FLOAT64)["y"] for f in (first, second))
    assert np.abs(a - b).max() <= BOUND * np.abs(a).max()


@pytest.mark.parametrize(("name", "target"), some(product(ARCHITECTURES, Target), each=4))
def test_an_architecture_is_taken_back_from_its_file(
    name: str, target: Target, tmp_path: Path
) -> None:
    """Deferring what was taken back comes to the same plan, and a second run changes nothing."""
    given, deferred, back, again = (tmp_path / f"{n}.onnx" for n in ("m", "deferred", "b", "a"))
    ir.save(ARCHITECTURES[name].model(18, 1e-5, "float"), given)
    first = onnxfold.optimize(given, deferred, target=target, defer="all", check=None)
    taken = onnxfold.optimize(deferred, back, target=target, check=0)
    made, found = _summary(first.report), _summary(taken.report)
    assert found["reinstated"] == made["deferred"] > 0
    _same(name, deferred, back)
    assert onnxfold.inspect(back)["deferred_before"] == []
    assert not onnxfold.optimize(ir.load(back), target=target, check=None).changed
    second = onnxfold.optimize(back, again, target=target, defer="all", check=None)
    assert _summary(second.report)["deferred"] == made["deferred"]
    plans = [[len(norm.cancelled) for norm in result.plan.deferred] for result in (first, second)]
    assert plans[0] == plans[1]
    _same(name, deferred, again)


@pytest.mark.parametrize("other", [Target.ONNX, Target.ORT])
@pytest.mark.parametrize("name", ["Gemma 3", "OPT"])
def test_calls_of_kernels_are_taken_back_for_other_targets(
    name: str, other: Target, tmp_path: Path
) -> None:
    given, deferred, back = (tmp_path / f"{n}.onnx" for n in ("m", "deferred", "b"))
    ir.save(ARCHITECTURES[name].model(18, 1e-5, "float"), given)
    first = onnxfold.optimize(given, deferred, target="kernels", defer="all", check=None)
    assert any("Row" in key[1] for key in ir.load(deferred).functions)
    taken = onnxfold.optimize(deferred, back, target=other, check=0)
    assert _summary(taken.report)["reinstated"] == _summary(first.report)["deferred"]
    assert not ir.load(back).functions
    _same(name, deferred, back)


@pytest.mark.parametrize("way", [{"defer": "all"}, {"exclude": "."}], ids=["all", "excluded"])
@pytest.mark.parametrize("name", ["Qwen3", "T5"])
def test_calls_that_stay_are_left_as_they_are(
    name: str, way: dict[str, str], tmp_path: Path
) -> None:
    """Among them are calls that add a residual, which are not norms to be split and fused again."""
    given, deferred = tmp_path / "m.onnx", tmp_path / "deferred.onnx"
    ir.save(ARCHITECTURES[name].model(18, 1e-5, "float"), given)
    onnxfold.optimize(given, deferred, target="kernels", defer="all", check=None)
    assert any(node.op_type == "AddScaledRowScaleWithSum" for node in ir.load(deferred).graph)
    assert not onnxfold.optimize(ir.load(deferred), target="kernels", check=None, **way).changed


@pytest.mark.parametrize("target", Target)
def test_a_layer_norm_that_keeps_its_mean_is_taken_back_with_stored_weights(
    target: Target, tmp_path: Path
) -> None:
    """The means of its readers' weights are 0 but for roundings, by which the proof goes."""
    deferred, back = tmp_path / "deferred.onnx", tmp_path / "b.onnx"
    model = layer_norm_model(dtype="float")
    first = onnxfold.optimize(model, target=target, defer="all", defer_means=True, check=None)
    assert first.report["inspect"]["summary"]["deferred_layer_norms"] == 1
    ir.save(first.model, deferred)
    taken = onnxfold.optimize(deferred, back, target=target, check=0)
    assert _summary(taken.report)["reinstated"] == 1
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 6)).astype(np.float32)}
    a, b = (run(ir.load(f), x, precision=Precision.FLOAT64)["y"] for f in (deferred, back))
    # mean(x) times the means of 12 weights that were rounded to 24 bits, s of the order of 1
    assert np.abs(a - b).max() <= 12 * 2.0**-24 * np.abs(a).max()


def test_weights_that_see_the_mean_keep_it_deferred(tmp_path: Path) -> None:
    """With nonzero mean they would change the result of a LayerNorm."""
    given = layer_norm_model(dtype="float")
    model = onnxfold.optimize(given, defer="all", defer_means=True, check=None).model
    weight = next(v for n, v in model.graph.initializers.items() if n.endswith(".centred"))
    assert weight.const_value is not None
    moved = weight.const_value.numpy() + np.float32(0.25)
    weight.const_value = ir.tensor(moved, name=weight.name)
    taken = onnxfold.optimize(model, check=0)
    assert [left["name"] for left in taken.report["left_out"]] == ["reinstating"]
    assert taken.report["inspect"]["summary"]["reinstated"] == 0
