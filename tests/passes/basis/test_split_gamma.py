"""Gammas that are split between a norm and the layers after it: exact, and better before int8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxfold
from models.outlier_twins import gamma_twin
from onnxfold.errors import UsageError
from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.split_gamma import GammaSplit, SplitPlan, apply, decide
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline.basis_passes import observe
from onnxfold.pipeline.proofs import of_split_gammas
from tests.builders import Array, post_norm_model, pre_norm_model
from tests.passes.basis.wide_streams import FEEDS, WIDTH, WORDS, Builder
from tests.soundness.float64 import evaluate, relative_error

DIGITS = Path("models/digits_vit/digits_vit.onnx")
VISIBLE, ROUNDING = 1e-3, 1e-13


def queries_keys_values(kind: str = "layer") -> onnx.ModelProto:
    """A norm that three layers read, one of them behind a Reshape; one gamma is 30."""
    b = Builder(1.0)
    x = b.node("Gather", [b.weight("table", WORDS, WIDTH), "ids"], "x")
    n = b.norm(kind, x, "n")
    b.weights["n.gamma"][3] = 30
    for name in ("q", "k"):
        b.node("MatMul", [n, b.weight(f"{name}.W", WIDTH, 4)], name)
    rows = b.node("Reshape", [n, b.constant("rows", [-1, WIDTH], np.int64)], "flat")
    v = b.node("Gemm", [rows, b.weight("v.W", 4, WIDTH)], "v.flat", transB=1)
    shaped = b.node("Reshape", [v, b.constant("back", [2, -1, 4], np.int64)], "v")
    assert shaped
    return b.model({"q": 4, "k": 4, "v": 4})


def split(model: Any, **options: Any) -> onnxfold.Result:
    return onnxfold.optimize(model, **{"split_gamma": "auto", "norm_form": "layer", **options})


def stored(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("kind", ["layer", "layer pieces", "rms pieces"])
def test_all_readers_take_the_same_powers_of_two(kind: str) -> None:
    model = queries_keys_values(kind)
    result = split(model)
    assert result.proof is not None
    assert result.proof.split_gammas == 1
    (norm,) = result.report["split_gammas"]["norms"]
    assert sorted(norm["weights"]) == ["k.W", "q.W", "v.W"]
    assert norm["error_after"] < 0.5 * norm["error_before"]
    before, after = stored(model), stored(result.model)
    s = before["n.gamma"] / after["n.gamma"]
    assert np.array_equal(np.log2(s), np.round(np.log2(s)))
    assert len(set(s)) > 1
    for name, axes in (("q.W", s[:, None]), ("k.W", s[:, None]), ("v.W", s[None])):
        assert np.array_equal(after[name], before[name] * axes)
    assert relative_error(evaluate(model, FEEDS), evaluate(result.model, FEEDS)) < ROUNDING


def test_without_outliers_nothing_changes() -> None:
    result = split(pre_norm_model())
    assert not result.changed
    reasons = {row["code"] for row in result.report["split_gammas"]["refusals"]}
    assert reasons == {"not_worth"}


def test_a_twin_with_large_gammas_gets_them_split() -> None:
    twin = gamma_twin(pre_norm_model())
    result = split(twin)
    rows = result.report["split_gammas"]["norms"]
    assert [row["norm"] for row in rows] == ["n0", "n1", "final"]
    assert all(row["error_after"] < 0.6 * row["error_before"] for row in rows)
    assert relative_error(evaluate(twin, FEEDS), evaluate(result.model, FEEDS)) < ROUNDING


def test_a_post_norm_that_the_residual_reads_is_named() -> None:
    reasons = split(post_norm_model()).report["split_gammas"]["refusals"]
    assert any("post-norm's residual" in row["sentence"] for row in reasons)


def test_the_report_says_what_the_choice_is_by() -> None:
    model = queries_keys_values()
    assert split(model).report["split_gammas"]["by"] == "2 drawn inputs"
    bound = split(model, check=None).report["split_gammas"]
    assert bound["by"] == "the bound |n| <= sqrt(d)"
    assert bound["norms"][0]["error_before"] is None


def test_data_that_make_norms_infinite_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "inf.npz", images=np.full((2, 1, 8, 8), np.inf, np.float32))
    result = split(DIGITS, split_gamma=0.5, data=tmp_path / "inf.npz", check=0)
    reasons = result.report["split_gammas"]["refusals"]
    assert {row["code"] for row in reasons} == {"non_finite_weight"}
    assert reasons[0]["sentence"].endswith("gives inf or NaN on these inputs")
    assert not result.changed


def test_an_exponent_is_that_of_every_norm() -> None:
    (norm,) = split(queries_keys_values(), split_gamma=0.75).report["split_gammas"]["norms"]
    assert norm["exponent"] == 0.75


@pytest.mark.parametrize("chosen", ["on", -0.1, 1.5, "nan"])
def test_what_is_no_split_is_refused(chosen: object) -> None:
    with pytest.raises(UsageError, match="split_gamma= takes auto, off"):
        split(queries_keys_values(), split_gamma=chosen)


def test_a_rotation_leaves_no_gamma_to_split() -> None:
    with pytest.raises(UsageError, match="moves all of gamma"):
        split(queries_keys_values(), rotate="hadamard")


def without_weight(each: GammaSplit) -> GammaSplit:
    return replace(each, weight_places=each.weight_places[1:])


def without_beta(each: GammaSplit) -> GammaSplit:
    return replace(each, norm_places=each.norm_places[:1])


def without_gamma(each: GammaSplit) -> GammaSplit:
    return replace(each, norm_places=each.norm_places[1:])


@pytest.mark.parametrize("change", [without_weight, without_beta, without_gamma])
def test_a_forgotten_part_is_seen_and_refused(
    change: Callable[[GammaSplit], GammaSplit],
) -> None:
    model = queries_keys_values()
    before = prepare(ir.from_proto(model)).info
    settings = Settings(split_gamma=0.5)
    for changed, wrong in ((change, True), (lambda each: each, False)):
        plan = SplitPlan(tuple(map(changed, decide(before, settings, observe).splits)))
        edit = Editor(before, copy=True)
        apply(edit, plan, settings)
        shown = of_split_gammas(before, ModelInfo(edit.model), plan)
        off = relative_error(evaluate(model, FEEDS), evaluate(ir.to_proto(edit.model), FEEDS))
        assert bool(shown.failures) == wrong
        assert (off > VISIBLE) == wrong
