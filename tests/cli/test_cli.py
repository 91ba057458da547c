"""The command line: exit codes, one line of error, output for machines and people."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold import api
from onnxfold.cli import application
from onnxfold.pipeline.finalize import METADATA_KEY
from tests.builders import model_of, post_norm_model, pre_norm_model
from tests.cli.command import Cli


def test_optimize_writes_and_says_what_it_did(
    model: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # room for notes
    assert cli("optimize", model, "-o", model.with_name("fast.onnx")) == 0
    said = cli.readouterr().out
    assert "proved: 2 norms" in said
    assert (
        "--target ort or --norm-form op folds the norm that stays" in said
    )  # the width of a table
    assert "checked: max error" in said
    assert model.with_name("fast.onnx").exists()


def test_inspect_json_keeps_its_contract(model: Path, cli: Cli) -> None:
    assert cli("inspect", model, "--json") == 0
    document = json.loads(cli.readouterr().out)
    assert set(document) >= {"schema", "model", "norms", "summary"}
    assert document["schema"] == 1
    assert set(document["model"]) == {"opset", "nodes", "parameters"}
    assert set(document["norms"][0]) >= {
        *("name", "kind", "form", "input", "output", "axes", "size", "epsilon"),
        *("foldable", "action", "reason", "writers"),
    }
    assert set(document["summary"]) >= {
        *("norms", "layer_norms", "foldable", "algorithm1", "algorithm1_embed_centred"),
        *("inserted_centerings", "split_bytes", "gamma_fused", "beta_fused"),
    }


def test_what_a_paper_counts_is_counted_where_asked(model: Path, cli: Cli) -> None:
    counts = ("algorithm1", "algorithm1_embed_centred", "d2")
    for asked in ([], ["--paper"]):
        assert cli("inspect", model, "--json", *asked) == 0
        summary = json.loads(cli.readouterr().out)["summary"]
        assert all((summary[count] is not None) == bool(asked) for count in counts)
    assert cli("inspect", model, "--paper") == 0
    assert "Algorithm 1, " in cli.readouterr().out


def test_the_report_holds_inspection_proof_verification_and_output(model: Path, cli: Cli) -> None:
    out, report = model.with_name("fast.onnx"), model.with_name("report.json")
    assert cli("optimize", model, "-o", out, "--report", report) == 0
    document = json.loads(report.read_text())
    assert document["inspect"]["schema"] == 1
    assert document["proof"]["passed"] is True
    assert document["verification"]["passed"] is True
    assert {"max_abs_error", "noise_ratio", "outputs"} <= set(document["verification"])
    assert {"path", "bytes", "functions", "target"} <= set(document["output"])
    assert document["timing_s"]["verify"] > 0


def test_verify_tells_equal_from_different(model: Path, cli: Cli) -> None:
    fast = model.with_name("fast.onnx")
    cli("-q", "optimize", model, "-o", fast)
    assert cli("verify", model, fast) == 0
    other = onnx.load(model)
    weight = next(w for w in other.graph.initializer if w.name == "down0")
    spoiled = onnx.numpy_helper.to_array(weight) * np.float32(1.001)
    weight.CopyFrom(onnx.numpy_helper.from_array(spoiled, "down0"))
    onnx.save(other, model.with_name("other.onnx"))
    cli.readouterr()
    assert cli("verify", model, model.with_name("other.onnx"), "--json") == 1
    assert json.loads(cli.readouterr().out)["passed"] is False


def test_fail_if_unchanged_exits_1(tmp_path: Path, cli: Cli) -> None:
    onnx.save(post_norm_model(), tmp_path / "m.onnx")
    words = ("optimize", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "--target", "onnx")
    assert cli("-q", *words) == 0
    (tmp_path / "o.onnx").unlink()
    assert cli(*words, "--fail-if-unchanged") == 1
    assert not (tmp_path / "o.onnx").exists()


class _AskedError(Exception):
    """Ends a command when it calls the Python function."""


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (("optimize", "m.onnx", "-o", "o.onnx"), {"progress"}),
        (("convert", "m.onnx", "-o", "o.onnx", "--to", "rms"), {"progress", "to"}),
        (("inspect", "m.onnx"), {"nodes", "paper"}),
        (("tune", "m.onnx", "-o", "o.onnx"), {"progress"}),
        (("rotate", "m.onnx", "-o", "o.onnx", "--to", "int8"), {"to"}),
    ],
)
def test_a_command_without_options_asks_for_the_defaults_of_the_python_function(
    words: tuple[str, ...], others: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typer has lists where Python has tuples, None where an option has two flags, and so on."""
    asked: dict[str, object] = {}

    def ask(*_: object, **keywords: object) -> None:
        asked.update(keywords)
        raise _AskedError

    function = getattr(api, words[0])
    monkeypatch.setattr(api, words[0], ask)
    with contextlib.suppress(_AskedError):
        application.app([*words], standalone_mode=False)
    defaults = {p.name: p.default for p in inspect.signature(function).parameters.values()}
    assert {"seed", "target", "precision"} & set(asked)
    same = {name: _listed(defaults[name]) for name in asked if name not in others}
    assert {name: _listed(value) for name, value in asked.items() if name not in others} == same


def _listed(value: object) -> object:
    """Return a name as the list of one: Python takes either for precisions."""
    return (value,) if value == "fp32" else value


def test_force_replaces_the_input_safely(model: Path, cli: Cli) -> None:
    before = model.read_bytes()
    assert cli("-q", "optimize", model, "-o", model, "--force") == 0
    assert model.read_bytes() != before
    assert METADATA_KEY in {entry.key for entry in onnx.load(model).metadata_props}


@pytest.mark.parametrize(
    ("words", "says"),
    [(("a.onnx", "-o", "b.onnx"), "given twice"), (("-o", "-"), "not to standard output")],
)
def test_an_output_that_cannot_be_meant_is_bad_usage(
    model: Path, words: tuple[str, ...], says: str, cli: Cli
) -> None:
    assert cli("optimize", model, *words) == 2
    assert says in cli.readouterr().err


@pytest.mark.parametrize("before", [True, False])
def test_quiet_stands_before_or_behind_the_command(model: Path, before: bool, cli: Cli) -> None:
    words = ["optimize", model, model.with_name("fast.onnx")]
    words = ["-q", *words] if before else [*words, "-q"]
    assert cli(*words) == 0
    captured = cli.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert model.with_name("fast.onnx").exists()


def test_verbose_and_quiet_exclude_each_other(model: Path, cli: Cli) -> None:
    assert cli("inspect", model, "-q", "-v") == 2


def test_a_check_that_is_asked_for_and_forbidden_is_bad_usage(
    model: Path, capfd: pytest.CaptureFixture[str], cli: Cli
) -> None:
    out = model.with_name("out.onnx")
    assert cli("optimize", model, "-o", out, "--no-check", "--check", "3") == 2
    assert "--no-check and --check exclude one another" in capfd.readouterr().err
    assert not out.exists()
    assert cli("optimize", model, "-o", out, "--no-check") == 0


def test_optimize_prints_its_report_for_machines(model: Path, cli: Cli) -> None:
    assert cli("optimize", model, model.with_name("fast.onnx"), "--json") == 0
    document = json.loads(cli.readouterr().out)
    assert document["inspect"]["summary"]["foldable"] == 3
    assert document["output"]["path"].endswith("fast.onnx")


def test_every_report_that_is_asked_for_is_written(model: Path, cli: Cli) -> None:
    reports = [model.with_name("r.json"), model.with_name("r.html")]
    words = [word for report in reports for word in ("--report", report)]
    assert cli("optimize", model, model.with_name("fast.onnx"), *words) == 0
    assert all(report.stat().st_size for report in reports)


def test_a_log_has_one_line_for_each_stage(model: Path, cli: Cli) -> None:
    assert cli("optimize", model, model.with_name("fast.onnx")) == 0
    lines = cli.readouterr().out.splitlines()
    for doing in ("reading the model", "proving the result", "writing the weights", "comparing"):
        assert sum(line.startswith(doing) for line in lines) == 1


def test_no_line_is_wrapped_where_nobody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    model = pre_norm_model()
    long = "x" * 150
    next(node for node in model.graph.node if node.op_type == "LayerNormalization").name = long
    onnx.save(model, tmp_path / "m.onnx")
    monkeypatch.delenv("COLUMNS", raising=False)
    assert cli("inspect", tmp_path / "m.onnx") == 0
    assert long in cli.readouterr().out


def test_reasons_are_tallied_and_norms_are_listed_on_demand(tmp_path: Path, cli: Cli) -> None:
    onnx.save(post_norm_model(), tmp_path / "m.onnx")
    assert cli("optimize", tmp_path / "m.onnx", "--dry-run") == 0
    said = cli.readouterr().out
    assert "1 norm stays (affine_norm_output): " in said
    assert "weights centered, or why not" not in said
    assert cli("optimize", tmp_path / "m.onnx", "--dry-run", "-v") == 0
    assert "weights centered, or why not" in cli.readouterr().out


def test_a_model_without_norms_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    relu = onnx.helper.make_node("Relu", ["x"], ["y"])
    kind = (onnx.TensorProto.FLOAT, ["batch", 4])
    onnx.save(model_of([relu], {"x": kind}, {"y": kind}, {}), tmp_path / "m.onnx")
    assert cli("inspect", tmp_path / "m.onnx") == 0
    assert cli.readouterr().out == "no norms: nothing to fold\n"
    fast = tmp_path / "fast.onnx"
    monkeypatch.setenv("COLUMNS", "300")  # room for the path
    assert cli("optimize", tmp_path / "m.onnx", fast) == 0
    assert cli.readouterr().out.splitlines()[-2:] == [
        "no norms: nothing to fold",
        f"wrote {fast}, {fast.stat().st_size} bytes, unchanged",
    ]
    assert fast.read_bytes() == (tmp_path / "m.onnx").read_bytes()


def test_an_exclusion_that_matches_nothing_is_told_once(model: Path, cli: Cli) -> None:
    warning = "warning: --exclude 'nonsense' matches the name of no norm"
    words = ("optimize", model, model.with_name("fast.onnx"), "--exclude")
    assert cli(*words, "nonsense") == 0
    assert cli.readouterr().out.splitlines().count(warning) == 1
    assert cli("inspect", model, "--exclude", "nonsense", "--json") == 0
    assert json.loads(cli.readouterr().out)["unmatched_exclude"] == "nonsense"
    name = find_name(model)
    assert cli(*words, name) == 0
    assert "warning" not in cli.readouterr().out


def find_name(model: Path) -> str:
    first = onnxfold.inspect(model)["norms"][0]
    return re.escape(first["name"])


def test_verify_prints_json_for_machines_and_nothing_when_quiet(model: Path, cli: Cli) -> None:
    assert cli("verify", model, model, "--json") == 0
    assert json.loads(cli.readouterr().out)["passed"] is True
    assert cli("verify", model, model, "-q") == 0
    captured = cli.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_bench_prints_nothing_but_json_for_machines(model: Path, cli: Cli) -> None:
    assert cli("bench", model, "--rounds", "1", "--json") == 0
    assert json.loads(cli.readouterr().out)["rounds"] == 1


def test_a_report_takes_a_name_that_is_no_utf_8(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = model.rename(tmp_path / os.fsdecode(b"\xff.onnx"))
    assert cli("optimize", odd, "--dry-run", "--report", "r.html") == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "\\udcff.onnx" in page.replace("<wbr>", "")


def test_diff_prints_what_differs_and_json_has_all(model: Path, cli: Cli) -> None:
    fast = model.with_name("fast.onnx")
    assert cli("-v", "optimize", model, fast) == 0
    told = cli.readouterr().out
    assert cli("-v", "diff", model, fast) == 0
    assert cli.readouterr().out in told
    assert cli("diff", model, fast) == 0
    table = cli.readouterr().out
    assert "LayerNorm" in table
    assert "MatMul " not in table
    assert cli("diff", model, fast, "--json", "--no-sessions") == 0
    document = json.loads(cli.readouterr().out)
    assert document["after"]["norms"] == {"layer_norm": 1, "rms_norm": 2}
    assert "session_operators" not in document["after"]
    assert cli("diff", fast, fast) == 0
    assert "the same operators" in cli.readouterr().out


def test_nodes_are_listed_and_set_side_by_side(tmp_path: Path, cli: Cli) -> None:
    """Every line by hand: one node of each kind of change, and a weight of each."""
    onnx.save(
        _chain(("Relu", "x", "h"), ("MatMul", "h W", "p"), ("Neg", "p", "y")), tmp_path / "a.onnx"
    )
    other = _chain(("Abs", "x", "h"), ("MatMul", "h V", "q"), ("Neg", "q", "y"), weight="V")
    onnx.save(other, tmp_path / "b.onnx")
    assert cli("inspect", tmp_path / "a.onnx", "--nodes") == 0
    assert cli.readouterr().out.splitlines()[:3] == [
        "Relu n0: x -> h float [2]",
        "MatMul n1: h, W -> p float [2]",
        "Neg n2: p -> y float [2]",
    ]
    assert cli("diff", tmp_path / "a.onnx", tmp_path / "b.onnx", "--nodes") == 0
    told = [line for line in cli.readouterr().out.splitlines() if line[0] in "-+~"]
    assert told == [
        "- MatMul n1: h, W -> p float [2]",
        "- weight W: float [2, 2]",
        "+ MatMul n1: h, V -> q float [2]",
        "+ weight V: float [2, 2]",
        "~ Abs n0: Relu -> Abs",
        "~ Neg n2: input p -> q",
        "~ weight shared: other numbers",
    ]


def _chain(*nodes: tuple[str, str, str], weight: str = "W") -> onnx.ModelProto:
    made = [
        onnx.helper.make_node(op_type, read.split(), [written], f"n{number}")
        for number, (op_type, read, written) in enumerate(nodes)
    ]
    names = {weight: np.eye(2, dtype=np.float32), "shared": np.array(len(weight + nodes[0][0]))}
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in names.items()]
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    graph = onnx.helper.make_graph(made, "chain", ends[:1], ends[1:], weights)
    imports = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_a_report_names_the_options_that_were_given(model: Path, cli: Cli) -> None:
    fast = model.with_name("fast.onnx")
    words = ("--json", "--target", "ort", "--inputs", "ids:1,4", "--exclude", "nothing", "--force")
    assert cli("optimize", model, fast, *words) == 0
    told = json.loads(cli.readouterr().out)["run"]
    assert told["options"] == {"target": "ort", "inputs": "ids:1,4", "exclude": "nothing"}
    assert told["input"]["bytes"] == model.stat().st_size
    assert told["versions"]["onnxfold"] == onnxfold.__version__
