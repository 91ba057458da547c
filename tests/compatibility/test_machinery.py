"""The parts of the matrix: the truth, the bound, the workers' deaths, and the page."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.compatibility import page
from tests.compatibility.environments import CACHE, Environment, UnavailableError, ready
from tests.compatibility.matrix import DEFAULT, ORIGINAL, Cell, Row, come_apart, failures, judge
from tests.compatibility.subjects import SUBJECTS, TOOLS
from tests.compatibility.truth import relative_error, truth
from tests.compatibility.work import answers

_WORKER = """
import json, os, sys, time
for line in open(sys.argv[1]):
    job = json.loads(line)
    if job["do"] == "die":
        os.abort()
    if job["do"] == "leave":
        sys.exit("library not found")
    if job["do"] == "hang":
        time.sleep(600)
    print(json.dumps({"outcome": "ok", "was": job["do"]}), flush=True)
"""
_ROW = Row(
    date="2026-01-01",
    subject="OpenVINO",
    version="1",
    architecture="vit",
    opset=18,
    target=ORIGINAL,
    outcome="same",
    error=1e-7,
    noise_ratio=1.0,
    rows_ratio=1.0,
    facts="",
    time=None,
    text="",
)


def norm_then_linear(dtype: type = np.float32) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = {
        name: rng.standard_normal(shape).astype(dtype)
        for name, shape in {"g": (8,), "b": (8,), "w": (8, 4)}.items()
    }
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], epsilon=1e-3),
        helper.make_node("Cast", ["n"], ["c"], to=kind),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "norm",
        [helper.make_tensor_value_info("x", kind, [3, 8])],
        [helper.make_tensor_value_info("y", kind, [3, 4])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return model, {**weights, "x": rng.standard_normal((3, 8)).astype(dtype)}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_truth_is_computed_in_float64(dtype: type) -> None:
    model, values = norm_then_linear(dtype)
    (found,) = truth(model, {"x": values["x"]})
    x, g, b, w = (values[name].astype(np.float64) for name in "xgbw")
    deviation = x - x.mean(1, keepdims=True)
    # The attribute is a float32.
    scaled = deviation / np.sqrt((deviation**2).mean(1, keepdims=True) + np.float32(1e-3))
    expected = (scaled * g + b) @ w
    # Some twenty roundings of numbers below 8, whose sums are below 32.
    assert np.abs(found - expected).max() < 20 * 32 * 2.0**-53


@pytest.mark.parametrize("wrong", [np.full((2, 2), np.nan), np.zeros((2, 3)), np.zeros(4)])
def test_nan_and_other_shapes_are_infinitely_wrong(wrong: np.ndarray) -> None:
    assert relative_error([wrong], [np.ones((2, 2))]) == float("inf")


def test_an_error_is_relative_to_the_largest_output() -> None:
    assert relative_error([np.array([4.0, 1.5])], [np.array([4.0, 1.0])]) == 0.5 / 4


def test_an_output_that_is_missing_is_no_agreement() -> None:
    with pytest.raises(ValueError, match="zip"):
        relative_error([], [np.ones(1)])


@pytest.mark.parametrize(
    ("cell", "outcome"),
    [
        (Cell("ok", error=1.0, rows_error=2.0), "same"),
        (Cell("ok", error=1.001, rows_error=0.0), "wrong"),
        (Cell("ok", error=0.0, rows_error=2.001), "wrong"),
        (Cell("ok", error=float("inf"), rows_error=0.0), "wrong"),
        (Cell("refused"), "refused"),
        (Cell("crashed"), "crashed"),
    ],
)
def test_a_cell_is_judged_by_its_bound(cell: Cell, outcome: str) -> None:
    assert judge(cell, bound=1.0, rows_bound=2.0) == outcome


def test_only_what_is_taken_as_the_original_counts() -> None:
    ours = replace(_ROW, target=DEFAULT)
    for outcome in ("wrong", "refused", "crashed", "late", "not made"):
        lost = replace(ours, outcome=outcome)
        assert failures([_ROW, ours]) == []
        assert failures([_ROW, lost]) == [lost]
        assert failures([replace(_ROW, outcome="refused"), lost]) == []
        assert failures([replace(_ROW, opset=23), lost]) == []


def test_a_norm_comes_apart_where_the_original_has_more_in_one_operator() -> None:
    theirs = replace(_ROW, facts='{"norms": 5}')
    fewer, equal = (replace(_ROW, target=DEFAULT, facts=f'{{"norms": {n}}}') for n in (4, 5))
    assert come_apart([theirs, equal]) == []
    assert come_apart([theirs, fewer]) == [(fewer, 5, 4)]
    assert come_apart([replace(theirs, opset=23), fewer]) == []
    shown = page.text([theirs, fewer])
    assert "**5 to 4**" not in shown  # the column is of tools, and OpenVINO runs files
    assert "| OpenVINO | vit 18: 5 to 4 |" in shown


def test_a_worker_that_dies_costs_one_job() -> None:
    command = [sys.executable, "-c", _WORKER]
    jobs = [{"do": what} for what in ("first", "die", "leave", "last")]
    first, died, left, last = answers(command, jobs, {})
    assert [first["was"], last["was"]] == ["first", "last"]
    assert (died["outcome"], left["outcome"]) == ("crashed", "crashed")
    assert died["text"].startswith("SIGABRT")
    assert left["text"] == "exit code 1; library not found"


def test_a_worker_that_hangs_is_ended() -> None:
    jobs = [{"do": "hang"}, {"do": "next"}]
    late, following = answers([sys.executable, "-c", _WORKER], jobs, {}, limit_s=5.0)
    assert late == {"outcome": "late", "text": "no answer within 5 s"}
    assert following["was"] == "next"


def test_an_environment_without_its_program_says_so() -> None:
    with pytest.raises(UnavailableError, match="no-such-program is not installed"):
        ready(Environment("none", (), programs=("no-such-program",)))
    assert not (CACHE / "environments" / "none").exists()


def test_rows_are_kept_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    refused = replace(_ROW, target=DEFAULT, outcome="refused", error=None, text='no, "never"')
    page.keep([_ROW, refused], path)
    assert page.kept(path) == [_ROW, refused]
    again = replace(refused, outcome="same", error=2e-7, text="")
    page.keep([again], path)
    assert page.kept(path) == [_ROW, again]


def test_the_page_counts_what_is_lost_and_what_has_no_environment() -> None:
    lost = replace(_ROW, target=DEFAULT, outcome="wrong", error=3.0, noise_ratio=3e7)
    none = replace(_ROW, subject="IREE", outcome="unavailable", error=None, text="no such wheel")
    shown = page.text([_ROW, lost, none])
    lines = {line.split(" | ")[0]: line for line in reversed(shown.splitlines())}
    assert "| 1 of 1 | **0 of 1** |" in lines["| OpenVINO"]
    assert "no environment: no such wheel" in lines["| IREE"]
    assert "not run" in lines["| tract"]
    assert "| OpenVINO | wrong | vit 18 | error 3, 3e+07 times |" in shown


def test_the_page_is_fresh() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(page.kept()), (
        "run: python -m tests.compatibility.page"
    )


def test_every_subject_has_its_worker() -> None:
    folder = Path(__file__).parent / "workers"
    sources = {
        name: (folder / name).read_text() for name in ("tools.py", "runtimes.py", "worker.js")
    }
    for subject in SUBJECTS.values():
        where = "tools.py" if subject in TOOLS else "runtimes.py"
        defined = f"def {subject.function}(" in sources[where]
        assert defined or f"{subject.function}:" in sources["worker.js"], subject.name
