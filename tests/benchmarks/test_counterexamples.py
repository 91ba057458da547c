"""Norms that are left, folded all the same: the outputs differ, and no gamma would do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from benchmarks.counterexamples import counterexamples, nearest_gamma
from benchmarks.rows import RESULTS, read
from tests.sessions import executed

_RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.mark.parametrize(
    ("recipe", "codes"),
    [
        ("bert-base", {"affine_norm_output"}),
        ("convnext-t", {"grouped_convolution", "exact_reader"}),
        ("swin-t", {"affine_norm_output", "concat_along_fiber"}),
        ("gpt2", set[str]()),
    ],
)
def test_a_norm_that_is_left_changes_the_outputs_where_it_folds(
    recipe: str, codes: set[str]
) -> None:
    rows = counterexamples(_RECIPES / f"{recipe}.onnx")
    assert {row.code for row in rows} == codes
    for row in rows:
        assert row.changed > 3e-5  # float32 rounds these outputs by some 1e-6
        assert row.mean > 0.01
        assert (row.gamma is not None) == (row.code == "affine_norm_output")


def test_only_a_gamma_of_equal_elements_keeps_means_of_zero() -> None:
    rng = np.random.default_rng(0)
    assert nearest_gamma(np.full(8, 3.0)) < 1e-12
    assert nearest_gamma(1 + rng.random(8)) > 0.05


def test_every_recipe_and_reason_has_its_numbers() -> None:
    """But for a norm of constants, which no session executes."""
    known = {(row["recipe"], row["code"]) for row in read(RESULTS / "counterexamples.csv")}
    left = {(row["recipe"], row["code"]) for row in read(RESULTS / "recipes_left.csv")}
    assert left - known == {("deberta-v2", "not_worth")}
    for row in read(RESULTS / "families.csv"):
        codes = {each.split()[1] for each in row["left"].split("; ") if each}
        assert {(row["recipe"], code) for code in codes} <= known


def test_a_session_executes_no_norm_of_constants(tmp_path: Path) -> None:
    path = _RECIPES / "deberta-v2.onnx"
    norms = onnxfold.inspect(path, target="kernels")["norms"]
    (left,) = (norm for norm in norms if (norm["reason"] or {}).get("code") == "not_worth")
    assert left["input"] in {weight.name for weight in onnx.load(path).graph.initializer}
    run = [node for node in executed(path, tmp_path).graph.node if "Norm" in node.op_type]
    assert len(run) == len(norms) - 1
