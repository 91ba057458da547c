"""What `optimize` says in the end: what was done and checked, where it is, and what comes next."""

from __future__ import annotations

import copy
import io
import re
import shlex
import subprocess
import sys
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
from onnxfold.report.printed import print_norms
from onnxfold.report.printed_result import print_result
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
        "the norms do 75% fewer additions",
        "a session of ONNX Runtime executes 112 nodes, 130 before",
        "proved: 9 norms",
        "checked: max error",
        "wrote ",
        f"next: onnxfold bench {DIGITS}",
        "file: 187 nodes, 139 before; the six of an RMSNorm become one in a session",
    )
    assert places == sorted(places)
    assert len(said.splitlines()) <= 15
    assert "BERT" not in said


def test_the_next_command_can_be_copied_and_no_path_or_number_is_cut(
    digits: dict[str, Any],
) -> None:
    path, data = f"{'long/' * 10}my fast.onnx", f"{'long/' * 10}my fast.onnx.data"
    written = digits["output"] | {"path": path, "data": data, "data_files": [data]}
    written |= {"bytes": 123_456_789}
    said = _said(digits | {"output": written}, Path("models") / ("m" * 40))
    assert "wrote " + path + " and\n" + data + ",\n123,456,789 bytes\n" in said
    command = said.partition("next: ")[2].partition("\nfile: ")[0]
    assert command.count(" \\\n  ") == 1
    words = shlex.split(command.replace("\\\n", ""))  # as a shell reads it
    assert words == ["onnxfold", "bench", f"models/{'m' * 40}", path]
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_timing_that_would_be_refused_is_not_recommended(
    digits: dict[str, Any], side: str
) -> None:
    counted = copy.deepcopy(digits["before_after"])
    counted[side] |= {"session_operators": None, "session_refusal": "ONNX Runtime cannot load it"}
    said = _said(digits | {"before_after": counted}, DIGITS)
    assert f"{side}: ONNX Runtime cannot load it" in said
    assert "next:" not in said


_GOLDEN = """\
9 of 9 LayerNorms fold to RMSNorm; 9 gammas and 9 betas move into the next
linear layers
the norms do 75% fewer additions
a session of ONNX Runtime executes 112 nodes, 130 before
proved: 9 norms on zero-mean inputs, 20 centered weights seen by no other reader
checked: max error E against a float64 run, R times the original's own
rounding error (2 samples, onnxruntime V CPUExecutionProvider)
wrote out.onnx, B bytes
note: if quantize_static comes next, --norm-form op is better; for onnx2torch,
layer
next: onnxfold bench digits_vit.onnx out.onnx
file: 187 nodes, 139 before; the six of an RMSNorm become one in a session
"""
_VARYING = {
    r"max error \S+": "max error E",
    r"\S+ times the original": "R times the original",
    r"onnxruntime \d\S*": "onnxruntime V",
    r"[\d,]+ bytes": "B bytes",
}


def _masked(text: str) -> str:
    for pattern, letter in _VARYING.items():
        text = re.sub(pattern, letter, text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def test_the_summary_of_the_shipped_model_is_this(digits: dict[str, Any]) -> None:
    written = digits["output"] | {"path": "out.onnx"}
    report = digits | {"output": written}
    said = _masked(_said(report, Path("digits_vit.onnx")))
    joined = [" ".join(text.split()) for text in (said, _GOLDEN)]
    assert joined[0] == joined[1]
    assert said.count("\n") == _GOLDEN.count("\n")
    console = Console(file=io.StringIO(), width=10_000)
    print_result(console, report, verbose=False, source=Path("digits_vit.onnx"))
    piped = console.file.getvalue()  # type: ignore[attr-defined]
    assert len(piped.splitlines()) == 9  # a sentence is a line
    assert [" ".join(_masked(piped).split())] == joined[1:]


_SMALL = ("gpt2", "bert-base", "deberta-v2", "qwen3-small", "swin-t", "whisper-tiny-encoder")


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_fifteen_lines_hold_a_warning_beside_all_kinds_of_reasons(
    target: str, tmp_path: Path
) -> None:
    path = tmp_path / "convnext.onnx"
    model = onnx.load(ROOT / "tests" / "recipes" / "convnext-t.onnx")
    for weight in model.graph.initializer:
        if weight.name.endswith("layernorm.weight"):
            array = onnx.numpy_helper.to_array(weight).copy()
            array[0] *= 300
            weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, path)
    options = {"target": target, "fuse_affine": "always", "check": 1}
    report = onnxfold.optimize(path, tmp_path / "out.onnx", **options).report
    report["output"] |= {"path": "out.onnx", "data": None, "data_files": []}
    assert report["inspect"]["range_warnings"]
    said = _said(report, Path("m.onnx"))
    assert len(said.splitlines()) <= 15
    _order(said, "4 scales and biases move", "stay", "proved", "checked: ", "wrote ", "next: ")


@pytest.mark.slow
@pytest.mark.parametrize("name", _SMALL)
def test_fifteen_lines_say_what_became_of_a_foreign_model(name: str, tmp_path: Path) -> None:
    """The first is about the norms, and unchanged ones have their reasons."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    words = [sys.executable, "-m", "models", name, "--small", "-o", str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True, cwd=ROOT)
    model = tmp_path / f"{name}.onnx"
    report = onnxfold.optimize(model, tmp_path / "out.onnx").report
    report["output"] |= {"path": "out.onnx", "data": None, "data_files": []}
    lines = _said(report, Path("m.onnx")).splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 80
    assert re.match(r"\d+ of \d+ LayerNorms fold|there is no LayerNorm", lines[0])
    rows = report["inspect"]["norms"]
    stay = [p for row in rows for p in row["affine"] if not row[f"{p}_fused"]]
    said = " ".join(" ".join(lines).split())
    assert not stay or " stay (" in said or " stays (" in said
    heads = map(sentences.without_sentence, sentences.reasons(report["inspect"]))
    assert all(head in said for head in heads)


def _row(name: str, kind: str, code: str, **more: object) -> dict[str, Any]:
    reason = {"code": code, "sentence": f"{name} is so", "nodes": [name]}
    return {
        "name": name, "kind": kind, "size": 8, "action": "keep", "foldable": False,
        "reason": reason, "deferral": None, "writers": [], "affine": [], "affine_reason": None,
        "moves_by_rounding": False, **more,
    }  # fmt: skip


_SUMMARY = {"layer_norms": 1, "folded": 0, "inserted_centerings": 0, "split_bytes": 0}


def test_norms_that_nobody_would_fold_are_one_line() -> None:
    """As cosine attention's of queries and keys; a LayerNorm that stays has its own reason."""
    rows = [_row(f"q{number}", "l2_norm", "not_centred_norm") for number in range(24)]
    rows += [_row("r", "rms_norm", "already_rms"), _row("n", "layer_norm", "not_centred_norm")]
    document = {"norms": rows, "summary": _SUMMARY}
    for full in (False, True):
        console = Console(file=io.StringIO(), width=200)
        print_norms(console, document, full=full)
        said = console.file.getvalue()  # type: ignore[attr-defined]
        assert "24 L2 norms and 1 RMSNorm have no mean to subtract" in said
        assert "1 norm stays (not_centred_norm): n is so (norm 'n')" in said
        assert ("q23" in said) == full
        assert ("q0 is so" in said) is False


def test_scales_that_stay_have_their_reason() -> None:
    reason = {"code": "quantised", "sentence": "MatMul 'm' is quantised", "nodes": ["m"]}
    document = {
        "norms": [_row("n", "layer_norm", "activation")],
        "summary": _SUMMARY,
        "scales_kept": [{"output": f"s{number}", "reason": reason} for number in range(3)],
    }
    assert sentences.reasons(document) == [
        "1 norm stays (activation): n is so (norm 'n')",
        "3 scales stay (quantised): MatMul 'm' is quantised",
    ]


def test_what_has_no_room_is_counted() -> None:
    codes = (
        "activation",
        "graph_input",
        "unknown_op",
        "spatial_norm",
        "quantised",
        "dynamic_fiber",
    )
    rows = [_row(f"norm{number}", "layer_norm", code) for number, code in enumerate(codes)]
    for row in rows:
        row["reason"]["sentence"] = "word " * 60 + "end"
    report = {"inspect": {"norms": rows, "summary": _SUMMARY}, "timing_s": {}}
    said = _said(report, Path("my model.onnx"))
    assert len(said.splitlines()) <= 15
    for row in rows:
        assert f"1 norm stays ({row['reason']['code']})" in " ".join(said.split())
    assert said.rstrip().endswith(": onnxfold inspect has the reasons")
    assert "word …" in " ".join(said.split())
    assert "end" not in said
    assert said.count("end") != _said(report, verbose=True).count("end") == len(codes)


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
    console = Console(file=io.StringIO(), width=80)
    print_norms(console, report["inspect"])
    said = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert all(line in said for line in stay)
    brief = " ".join(_said(report).split())
    assert all(sentences.without_sentence(line) in brief for line in stay)


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
    assert line.startswith("1 gamma stays (")


def test_one_line_counts_what_stays_for_one_reason() -> None:
    reason = {"code": "exact_reader", "sentence": "Add 'a' must see it", "nodes": ["a"]}
    row = {"name": "n", "affine": ["gamma", "beta"], "gamma_fused": True, "beta_fused": False}
    rows = [row | {"affine_reason": reason}, row | {"affine_reason": reason, "name": "m"}]
    (line,) = sentences.staying(rows)
    assert line == "2 betas stay (exact_reader): Add 'a' must see it (norm 'n')"


def test_long_names_lose_their_middle_on_a_narrow_terminal_alone() -> None:
    name = "/encoder/layer.0/attention/output/LayerNorm/LayerNormalization"
    assert shortened(name, 12) == "…layer.0…"
    assert shortened(name, 21) == "…layer.0…output…"
    assert shortened(f"'{name}', and 2 more", 30) == "'/encoder/layer.0…output…', and 2 more"
    assert shortened("model.layers.11.self_attn.o_proj.weight", 21) == "model.layers.11…"
    assert shortened("val" * 9, 12) == "valva…valval"
    assert shortened("encoderdecoder.attentionoutput", 12) == "encod…coder…"
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
