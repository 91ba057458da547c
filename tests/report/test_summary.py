"""What `optimize` says in the end: what was done and checked, where it is, and what comes next."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

import onnxfold
from onnxfold.report import sentences
from onnxfold.report.fitted_tables import shortened
from onnxfold.report.printed import print_norms, print_result
from tests.builders import model_of, post_norm_model

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "models" / "digits_vit" / "digits_vit.onnx"
_WIDTH = 8


def _said(report: dict[str, Any], source: Path | None = None, *, verbose: bool = False) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_result(console, report, verbose=verbose, source=source)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def _order(text: str, *wanted: str) -> list[int]:
    joined = " ".join(text.split())
    places = [joined.find(words) for words in wanted]
    assert -1 not in places, [w for w, at in zip(wanted, places, strict=True) if at < 0]
    return places


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return onnxfold.optimize(DIGITS, tmp_path_factory.mktemp("digits") / "my fast.onnx").report


def test_the_summary_has_fifteen_lines_and_ends_with_the_nodes_of_the_file(
    digits: dict[str, Any],
) -> None:
    said = _said(digits, DIGITS)
    places = _order(
        said,
        "9 of 9 LayerNorms fold to RMSNorm",
        "proved: 9 norms",
        "checked: max error",
        "a session of ONNX Runtime executes 112 nodes, 130 before",
        "the norms do 75% fewer additions",
        "wrote ",
        f"next: onnxfold bench {DIGITS} '",
        "the six operators of an RMSNorm become one in a session",
    )
    assert places == sorted(places)
    assert len(said.splitlines()) <= 15
    assert "BERT" not in said


def test_the_whole_table_is_for_those_who_ask(digits: dict[str, Any]) -> None:
    assert "session: Add" not in _said(digits)
    verbose = _said(digits, verbose=True)
    assert "bytes that norms read and write" in verbose
    assert "nodes of a session" in verbose


def test_nothing_is_proposed_where_nothing_changed(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    kind = (TensorProto.FLOAT, ["batch", 4])
    onnx.save(model_of([relu], {"x": kind}, {"y": kind}, {}), tmp_path / "m.onnx")
    report = onnxfold.optimize(tmp_path / "m.onnx", tmp_path / "fast.onnx").report
    assert "next:" not in _said(report, tmp_path / "m.onnx")


def test_gammas_and_betas_that_stay_have_their_reason_once(tmp_path: Path) -> None:
    onnx.save(post_norm_model(), tmp_path / "m.onnx")
    report = onnxfold.optimize(tmp_path / "m.onnx", dry_run=True).report
    stay = sentences.staying(report["inspect"]["norms"])
    codes = {row["affine_reason"]["code"] for row in report["inspect"]["norms"]
             if row["affine_reason"]}  # fmt: skip
    assert codes
    assert len(stay) == len(codes)
    said = " ".join(_said(report).split())
    assert all(line in said for line in stay)


def test_a_gamma_that_is_computed_says_why_it_stays() -> None:
    """As Nemotron's, which are weight + 1."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Mul", ["gate", "g"], ["gamma"]),
        helper.make_node("LayerNormalization", ["h", "gamma"], ["n"]),
        helper.make_node("MatMul", ["n", "V"], ["y"]),
    ]
    kind = (TensorProto.FLOAT, ["batch", _WIDTH])
    weights = {
        name: rng.standard_normal(shape).astype("f")
        for name, shape in {"W": (_WIDTH, _WIDTH), "V": (_WIDTH, _WIDTH), "g": (_WIDTH,)}.items()
    }
    inputs = {"x": kind, "gate": (TensorProto.FLOAT, [_WIDTH])}
    model = model_of(nodes, inputs, {"y": kind}, weights, opset=17)
    (line,) = sentences.staying(onnxfold.inspect(model)["norms"])
    assert line.startswith("1 gamma stays: ")


def test_one_line_counts_what_stays_for_one_reason() -> None:
    reason = {"code": "exact_reader", "sentence": "Add 'a' must see it", "nodes": ["a"]}
    row = {"name": "n", "affine": ["gamma", "beta"], "gamma_fused": True, "beta_fused": False}
    rows = [row | {"affine_reason": reason}, row | {"affine_reason": reason, "name": "m"}]
    assert sentences.staying(rows) == ["2 betas stay: exact_reader: Add 'a' must see it (norm 'n')"]


def test_long_names_lose_their_middle_on_a_narrow_terminal_alone() -> None:
    name = "/encoder/layer.0/attention/output/LayerNorm/LayerNormalization"
    assert shortened(name, 21) == "/encoder/l…malization"
    assert shortened(f"{name} and 2 more", 21) == "/encoder/l…malization and 2 more"
    assert shortened("short", 21) == "short"
    norm = {
        "name": name, "kind": "layer_norm", "size": 768, "action": "rms", "foldable": True,
        "reason": None, "deferral": None, "writers": [name, name, name], "affine": [],
        "affine_reason": None, "moves_by_rounding": False,
    }  # fmt: skip
    summary = {"layer_norms": 1, "folded": 1, "inserted_centerings": 0, "split_bytes": 0}
    document = {"norms": [norm], "summary": summary}
    for width, full, whole in ((80, False, False), (80, True, True), (10_000, False, True)):
        console = Console(file=io.StringIO(), width=width)
        print_norms(console, document, full=full)
        said = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("…" in said) != whole
        assert all(len(line) <= width for line in said.splitlines())
        assert (name in said.replace("\n", "")) == (width > 80)
