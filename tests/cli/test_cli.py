"""The command line: exit codes, one line of error, output for machines and people."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.cli import application
from onnxfold.cli.options import FoldOptions
from onnxfold.options import Options
from onnxfold.passes.lower.finalize import METADATA_KEY
from tests.builders import model_of, post_norm_model, pre_norm_model


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["onnxfold", *(str(word) for word in words)])
    try:
        application.main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def test_optimize_writes_and_says_what_it_did(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "optimize", model, "-o", model.with_name("fast.onnx")) == 0
    said = capsys.readouterr().out
    assert "3 of 3 LayerNorms fold to RMSNorm" in said
    assert "proved: 3 norms" in said
    assert "checked: max error" in said
    assert model.with_name("fast.onnx").exists()


def test_quiet_says_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "-q", "optimize", model, "-o", model.with_name("fast.onnx")) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_inspect_json_keeps_its_contract(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "inspect", model, "--json") == 0
    document = json.loads(capsys.readouterr().out)
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


def test_the_report_holds_inspection_proof_verification_and_output(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, report = model.with_name("fast.onnx"), model.with_name("report.json")
    assert run(monkeypatch, "optimize", model, "-o", out, "--report", report) == 0
    document = json.loads(report.read_text())
    assert document["inspect"]["schema"] == 1
    assert document["proof"]["passed"] is True
    assert document["verification"]["passed"] is True
    assert {"max_abs_error", "noise_ratio", "outputs"} <= set(document["verification"])
    assert {"path", "bytes", "functions", "target"} <= set(document["output"])
    assert document["timing_s"]["verify"] > 0


def test_verify_tells_equal_from_different(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = model.with_name("fast.onnx")
    run(monkeypatch, "-q", "optimize", model, "-o", fast)
    assert run(monkeypatch, "verify", model, fast) == 0
    other = onnx.load(model)
    weight = next(w for w in other.graph.initializer if w.name == "down0")
    spoiled = onnx.numpy_helper.to_array(weight) * np.float32(1.001)
    weight.CopyFrom(onnx.numpy_helper.from_array(spoiled, "down0"))
    onnx.save(other, model.with_name("other.onnx"))
    capsys.readouterr()
    assert run(monkeypatch, "verify", model, model.with_name("other.onnx"), "--json") == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_fail_if_unchanged_exits_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(post_norm_model(), tmp_path / "m.onnx")
    words = ("optimize", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "--target", "onnx")
    assert run(monkeypatch, "-q", *words) == 0
    (tmp_path / "o.onnx").unlink()
    assert run(monkeypatch, *words, "--fail-if-unchanged") == 1
    assert not (tmp_path / "o.onnx").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("optimize", "missing.onnx", "-o", "out.onnx"), 3, "missing.onnx"),
        (("optimize", "model.onnx"), 2, "-o OUT"),
        (("optimize", "model.onnx", "-o", "model.onnx"), 2, "--force"),
        (("optimize", "model.onnx", "-o", "no/such/folder/out.onnx"), 3, "no/such/folder"),
        (("optimize", "garbage.onnx", "-o", "out.onnx"), 3, "garbage.onnx"),
        (("optimize", "empty.onnx", "-o", "out.onnx"), 3, "empty.onnx"),
        (("optimize", "truncated.onnx", "-o", "out.onnx"), 3, "truncated.onnx"),
        (("optimize", "model.onnx", "-o", "out.onnx", "--inputs", "nothing:1,2"), 2, "nothing"),
        (("optimize", "model.onnx", "-o", "out.onnx", "--inputs", "ids"), 2, "ids"),
        (("optimize", "model.onnx", "--dry-run", "--inputs", "w:1"), 2, "names 'w'"),
        (("optimize", "model.onnx", "--dry-run", "--inputs", "ids:1,2,3"), 2, "'ids' has rank 2"),
        (("optimize", "model.onnx", "-o", "out.onnx", "--exclude", "("), 2, "--exclude"),
        (("optimize", "model.onnx", "-o", "out.onnx", "--report", "r.txt"), 2, ".json or .html"),
        (("optimize", "model.onnx", "-o", "out.json", "--report", "out.json"), 2, "name another"),
        (("optimize", "model.onnx", "--dry-run", "--report", "folder.json"), 3, "is a directory"),
        (("optimize", "model.onnx", "-o", "out.onnx", "--seed", "-1"), 2, "seed"),
        (("optimize", "model.onnx", "-o", "out.onnx", "--memory", "inf"), 2, "memory"),
        (("optimize", "model.onnx", "-o", "out.onnx", "--range-limit", "nan"), 2, "range_limit"),
        (("convert", "model.onnx", "-o", "out.onnx", "--to", "rms", "--rtol", "-1"), 2, "rtol"),
        (("optimize", "model.onnx", "-o", "nowhere/"), 3, "nowhere/: it is a directory"),
        (("convert", "model.onnx", "nowhere/.", "--to", "rms"), 3, "it is a directory"),
        (("optimize", "model.onnx", "--dry-run", "--report", "r.json/"), 3, "it is a directory"),
        (("measure", "model.onnx", "--resume", "state/"), 3, "it is a directory"),
        (("checkpoint", "folder.json", "--dry-run", "--report", "r.json/"), 3, "a directory"),
        (("inspect", "missing.onnx"), 3, "missing.onnx"),
        (("measure", "model.onnx", "--data", "data.npz", "--seed", "-1"), 2, "seed"),
        (("measure", "model.onnx", "--data", "data.npz", "--plot", "data.npz"), 3, "not a folder"),
        (("measure", "model.onnx", "--data", "data.npz", "--workers", "100000"), 2, "--workers"),
        (("bench", "model.onnx", "--threads", "100000"), 2, "--threads must be"),
        (("bench", "model.onnx", "--seed", "-1"), 2, "seed"),
        (("verify", "model.onnx", "model.onnx", "--seed", "-1"), 2, "seed"),
        (("verify", "model.onnx", "missing.onnx"), 3, "missing.onnx"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    folder = model.parent
    monkeypatch.chdir(folder)
    (folder / "garbage.onnx").write_bytes(b"this is not a model\n" * 9)
    (folder / "empty.onnx").touch()
    (folder / "folder.json").mkdir()
    np.savez(folder / "data.npz", ids=np.zeros((1, 4), np.int64))
    (folder / "truncated.onnx").write_bytes(model.read_bytes()[:-200])
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run(monkeypatch, *words) == code
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("onnxfold: ")
    assert says in lines[0]
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before


@pytest.mark.parametrize("command", ["optimize", "convert", "bench", "serve", "measure", "plot"])
def test_the_line_of_usage_has_no_bracket_in_a_bracket(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, command, "--help") == 0
    (usage,) = (line for line in capsys.readouterr().out.splitlines() if "Usage" in line)
    assert not re.search(r"[\[{][^\]}]*[\[{]|\.\.\.\W+\.", usage)


@pytest.mark.parametrize("file", ["missing", "garbage"])
@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "{}.onnx"),
        ("verify", "model.onnx", "model.onnx", "--inputs", "ids:{}.npy"),
        ("verify", "model.onnx", "model.onnx", "--inputs", "{}.npz"),
        ("measure", "model.onnx", "--data", "{}.npz"),
        ("optimize", "model.onnx", "--dry-run", "--json", "--measured", "{}.json"),
        ("plot", "{}.json", "-o", "figures"),
    ],
    ids=lambda words: words[-2].lstrip("-"),
)
def test_files_that_are_missing_or_damaged_exit_3(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    file: str,
) -> None:
    monkeypatch.chdir(model.parent)
    for suffix in ("onnx", "npy", "npz", "json"):
        Path(f"garbage.{suffix}").write_bytes(b"neither of all\n" * 9)
    assert run(monkeypatch, *(word.format(file) for word in words)) == 3
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("onnxfold: ")
    assert file in line


def test_whether_a_file_can_be_read_is_told_by_what_reads_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may read everything
    assert run(monkeypatch, "inspect", model) == 0

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "model.onnx")

    monkeypatch.setattr("onnxfold.api.inspect", denied)
    assert run(monkeypatch, "inspect", model) == 3
    said = capfd.readouterr().err
    assert said == "onnxfold: model.onnx: Permission denied; choose another path\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--plot", "there/new"), "no writable folder 'there'"),
        (("--report", "there.json"), "the file is not writable"),
        (("--resume", "there/state"), "no writable folder 'there'"),
    ],
)
def test_where_a_measurement_cannot_be_written_is_told_before_it_begins(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(model.parent)
    Path("there").mkdir()
    Path("there.json").touch()
    monkeypatch.setattr("os.access", lambda path, _: not str(path).startswith("there"))
    assert run(monkeypatch, "measure", model, "--rows", "4", *words) == 3
    said = capfd.readouterr()
    assert "norms over" not in said.out
    assert says in said.err.splitlines()[-1]


def test_unknown_options_exit_2(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "optimize", model, "--nonsense") == 2
    assert run(monkeypatch, "optimize", model, "-o", "x", "--target", "tpu") == 2


def test_the_old_name_of_a_target_exits_2_with_the_new_one(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "optimize", model, "-o", "x", "--target", "portable") == 2
    said = capfd.readouterr().err
    assert said == "onnxfold: the target 'portable' is called 'kernels' now\n"


def test_the_defaults_are_those_of_the_python_interface() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(Options)}
    given = FoldOptions().keywords()
    assert given == {name: defaults[name] for name in given}
    only_here = {
        "change_readers",
        "convert_to",
        "device",
        "dry_run",
        "force",
        "multiple_of",
        "noise_limit",
        "share_weights",
        "shift",
        "target",
    }  # not of every command
    assert set(defaults) - set(given) == only_here


def test_force_replaces_the_input_safely(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = model.read_bytes()
    assert run(monkeypatch, "-q", "optimize", model, "-o", model, "--force") == 0
    assert model.read_bytes() != before
    assert METADATA_KEY in {entry.key for entry in onnx.load(model).metadata_props}


def test_optimize_takes_its_output_as_the_second_word(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = model.with_name("fast.onnx")
    assert run(monkeypatch, "optimize", model, fast, "-q") == 0
    assert fast.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [(("a.onnx", "-o", "b.onnx"), "given twice"), (("-o", "-"), "not to standard output")],
)
def test_an_output_that_cannot_be_meant_is_bad_usage(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    says: str,
) -> None:
    assert run(monkeypatch, "optimize", model, *words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("before", [True, False])
def test_quiet_stands_before_or_behind_the_command(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], before: bool
) -> None:
    words = ["optimize", model, model.with_name("fast.onnx")]
    words = ["-q", *words] if before else [*words, "-q"]
    assert run(monkeypatch, *words) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_verbose_and_quiet_exclude_each_other(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "inspect", model, "-q", "-v") == 2


def test_a_check_that_is_asked_for_and_forbidden_is_bad_usage(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = model.with_name("out.onnx")
    assert run(monkeypatch, "optimize", model, "-o", out, "--no-check", "--check", "3") == 2
    assert "--no-check and --check exclude one another" in capfd.readouterr().err
    assert not out.exists()
    assert run(monkeypatch, "optimize", model, "-o", out, "--no-check") == 0


def test_optimize_prints_its_report_for_machines(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "optimize", model, model.with_name("fast.onnx"), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inspect"]["summary"]["foldable"] == 3
    assert document["output"]["path"].endswith("fast.onnx")


def test_every_report_that_is_asked_for_is_written(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = [model.with_name("r.json"), model.with_name("r.html")]
    words = [word for report in reports for word in ("--report", report)]
    assert run(monkeypatch, "optimize", model, model.with_name("fast.onnx"), *words) == 0
    assert all(report.stat().st_size for report in reports)


def test_a_log_has_one_line_for_each_stage(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "optimize", model, model.with_name("fast.onnx")) == 0
    lines = capsys.readouterr().out.splitlines()
    for doing in ("reading the model", "proving the result", "writing the weights", "comparing"):
        assert sum(line.startswith(doing) for line in lines) == 1


def test_no_line_is_wrapped_where_nobody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = pre_norm_model()
    long = "x" * 150
    next(node for node in model.graph.node if node.op_type == "LayerNormalization").name = long
    onnx.save(model, tmp_path / "m.onnx")
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(monkeypatch, "inspect", tmp_path / "m.onnx") == 0
    assert long in capsys.readouterr().out


def test_reasons_are_tallied_and_norms_are_listed_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(post_norm_model(), tmp_path / "m.onnx")
    assert run(monkeypatch, "optimize", tmp_path / "m.onnx", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "x affine_norm_output: " in said
    assert "weights centred, or why not" not in said
    assert run(monkeypatch, "optimize", tmp_path / "m.onnx", "--dry-run", "-v") == 0
    assert "weights centred, or why not" in capsys.readouterr().out


def test_a_model_without_norms_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    relu = onnx.helper.make_node("Relu", ["x"], ["y"])
    kind = (onnx.TensorProto.FLOAT, ["batch", 4])
    onnx.save(model_of([relu], {"x": kind}, {"y": kind}, {}), tmp_path / "m.onnx")
    assert run(monkeypatch, "inspect", tmp_path / "m.onnx") == 0
    assert capsys.readouterr().out == "no norms\n"
    fast = tmp_path / "fast.onnx"
    assert run(monkeypatch, "optimize", tmp_path / "m.onnx", fast) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "no norms",
        f"wrote {fast}, {fast.stat().st_size} bytes, unchanged",
    ]
    assert fast.read_bytes() == (tmp_path / "m.onnx").read_bytes()


def test_an_exclusion_that_matches_nothing_is_told_once(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = "warning: --exclude 'nonsense' matches the name of no norm"
    words = ("optimize", model, model.with_name("fast.onnx"), "--exclude")
    assert run(monkeypatch, *words, "nonsense") == 0
    assert capsys.readouterr().out.splitlines().count(warning) == 1
    assert run(monkeypatch, "inspect", model, "--exclude", "nonsense", "--json") == 0
    assert json.loads(capsys.readouterr().out)["unmatched_exclude"] == "nonsense"
    name = find_name(model)
    assert run(monkeypatch, *words, name) == 0
    assert "warning" not in capsys.readouterr().out


def find_name(model: Path) -> str:
    first = onnxfold.inspect(model)["norms"][0]
    return re.escape(first["name"])


def test_verify_prints_json_for_machines_and_nothing_when_quiet(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "verify", model, model, "--json") == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert run(monkeypatch, "verify", model, model, "-q") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_bench_prints_nothing_but_json_for_machines(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "bench", model, "--rounds", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 1


def test_a_report_takes_a_name_that_is_no_utf_8(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = model.rename(tmp_path / os.fsdecode(b"\xff.onnx"))
    assert run(monkeypatch, "optimize", odd, "--dry-run", "--report", "r.html") == 0
    assert "\\udcff.onnx" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_diff_prints_what_differs_and_json_has_all(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = model.with_name("fast.onnx")
    assert run(monkeypatch, "optimize", model, fast) == 0
    told = capsys.readouterr().out
    assert run(monkeypatch, "diff", model, fast) == 0
    table = capsys.readouterr().out
    assert table in told
    assert "LayerNorm" in table
    assert "MatMul " not in table
    assert run(monkeypatch, "diff", model, fast, "--json", "--no-sessions") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["after"]["norms"] == {"rms_norm": 3}
    assert "session_operators" not in document["after"]
    assert run(monkeypatch, "diff", fast, fast) == 0
    assert "the same operators" in capsys.readouterr().out


def test_nodes_are_listed_and_set_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line by hand: one node of each kind of change, and a weight of each."""
    onnx.save(
        _chain(("Relu", "x", "h"), ("MatMul", "h W", "p"), ("Neg", "p", "y")), tmp_path / "a.onnx"
    )
    other = _chain(("Abs", "x", "h"), ("MatMul", "h V", "q"), ("Neg", "q", "y"), weight="V")
    onnx.save(other, tmp_path / "b.onnx")
    assert run(monkeypatch, "inspect", tmp_path / "a.onnx", "--nodes") == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "Relu n0: x -> h float [2]",
        "MatMul n1: h, W -> p float [2]",
        "Neg n2: p -> y float [2]",
    ]
    assert run(monkeypatch, "diff", tmp_path / "a.onnx", tmp_path / "b.onnx", "--nodes") == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line[0] in "-+~"]
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


def test_a_report_names_the_options_that_were_given(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = model.with_name("fast.onnx")
    words = ("--json", "--target", "ort", "--inputs", "ids:1,4", "--exclude", "nothing", "--force")
    assert run(monkeypatch, "optimize", model, fast, *words) == 0
    told = json.loads(capsys.readouterr().out)["run"]
    assert told["options"] == {"target": "ort", "inputs": "ids:1,4", "exclude": "nothing"}
    assert told["input"]["bytes"] == model.stat().st_size
    assert told["versions"]["onnxfold"] == onnxfold.__version__
