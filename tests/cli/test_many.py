"""optimize on many models: where results go, what is never replaced, one report, the worst code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfold import fleet
from onnxfold.cli import terminal
from onnxfold.cli.optimize import print_many, run_many
from onnxfold.errors import CommandInterruptedError, ModelError, UsageError
from onnxfold.fleet import Errand, FleetRow, errands, spread
from onnxfold.model_io.report_files import is_ours
from tests.builders import chain_model, model_of, post_norm_model, pre_norm_model
from tests.cli.command import Cli, run

_QUICK = ("--fold", "always", "--no-check")


def unfoldable() -> onnx.ModelProto:
    kind = (onnx.TensorProto.FLOAT, ["batch", 4])
    return model_of([onnx.helper.make_node("Relu", ["x"], ["y"])], {"x": kind}, {"y": kind}, {})


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models, one of them damaged, in the folder in which the command runs."""
    (tmp_path / "zoo" / "deep" / "er").mkdir(parents=True)
    onnx.save(pre_norm_model(), tmp_path / "zoo" / "a.onnx")
    onnx.save(post_norm_model(), tmp_path / "zoo" / "deep" / "er" / "b.onnx")
    (tmp_path / "zoo" / "deep" / "broken.onnx").write_bytes(b"no model")
    (tmp_path / "zoo" / "notes.txt").write_text("mine")
    onnx.save(chain_model(), tmp_path / "c.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return tmp_path


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command for each model here, which imports nothing again."""

    def done(command: Sequence[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            code = run(monkeypatch, *command[3:])  # after python -m onnxfold
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    monkeypatch.setattr(fleet.subprocess, "run", done)


def all_files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_files_and_a_folder_go_into_a_folder_and_one_failure_stops_none(
    zoo: Path, cli: Cli
) -> None:
    before = all_files(zoo)
    words = ("optimize", "c.onnx", "zoo", "--output-dir", "out", "--jobs", "2", *_QUICK)
    assert cli(*words, "--report", "r.json") == 3
    captured = cli.readouterr()
    after = all_files(zoo)
    report = json.loads(after.pop("r.json"))
    made = {"out/c.onnx", "out/a.onnx", "out/deep/er/b.onnx"}
    assert set(after) == set(before) | made
    assert all(after[name] == content for name, content in before.items())
    assert [(row["model"], row["exit_code"]) for row in report["models"]] == [
        ("c.onnx", 0), ("zoo/a.onnx", 0), ("zoo/deep/broken.onnx", 3), ("zoo/deep/er/b.onnx", 0),
    ]  # fmt: skip
    assert report["models"][1]["report"]["inspect"]["summary"]["folded"] == 3
    assert "report" not in report["models"][2]
    lines = captured.out.splitlines()
    assert lines[-1] == "4 models: 2 written, 1 failed, 1 unchanged"
    assert sum(line.startswith("failed: zoo/deep/broken.onnx: ") for line in lines) == 1
    assert sum(" of 4: " in line for line in lines) == 4
    # All of them are ours now, and may be replaced.
    assert all(is_ours(zoo / name) for name in made)
    assert cli(*words) == 3


@pytest.mark.usefixtures("in_this_process")
def test_json_is_one_object_with_a_report_for_each_model(zoo: Path, cli: Cli) -> None:
    words = ("optimize", "c.onnx", "zoo/a.onnx", "--output-dir", "out", "--json", *_QUICK)
    assert cli(*words) == 0
    rows = json.loads(cli.readouterr().out)["models"]
    assert [row["output"] for row in rows] == ["out/c.onnx", "out/a.onnx"]
    assert all(row["report"]["output"]["path"].endswith(row["output"]) for row in rows)
    assert all(row["report"]["run"]["options"]["fold"] == "always" for row in rows)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", ["out/c.onnx", "out/c.onnx.data"])
def test_what_is_not_ours_stays_and_the_others_are_written(zoo: Path, name: str, cli: Cli) -> None:
    (zoo / "out").mkdir()
    (zoo / name).write_bytes(b"precious")
    (zoo / "out" / "mine.txt").write_text("mine")
    extern = ("--save-as-external-data",)
    words = ("optimize", "c.onnx", "zoo/a.onnx", "--output-dir", "out", *_QUICK, *extern)
    code = cli(*words)
    said = cli.readouterr().out
    assert (zoo / name).read_bytes() == b"precious"
    assert (zoo / "out" / "mine.txt").read_text() == "mine"
    assert is_ours(zoo / "out" / "a.onnx")
    if name == "out/c.onnx":
        assert code == 2
        assert "out/c.onnx: it exists, and onnxfold did not write it" in said
        assert cli(*words, "--force") == 0
        assert is_ours(zoo / "out" / "c.onnx")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("zoo",), "'zoo' is a folder: name a folder for the results (--output-dir DIR)"),
        (("a.onnx", "b.onnx", "c.onnx"), "3 paths are given: name a folder for the results"),
        (("c.onnx", "--output-dir", "out", "-o", "o.onnx"), "leave one out"),
        (("zoo", "--output-dir", "zoo"), "it contains no .onnx file"),
        (("c.onnx", "--output-dir", "."), "'c.onnx' is a model; name a folder of its own"),
        (("c.onnx", "--output-dir", "c.onnx"), "c.onnx: it is a file; name a folder"),
        (("c.onnx", "x/c.onnx", "--output-dir", "out"), "would both be written to 'out/c.onnx'"),
        (("c.onnx", "--output-dir", "out", "--report", "r.html"), "is a .json file"),
        (("c.onnx", "--output-dir", "out", "--measured", "m.json"), "is about one model"),
        (("c.onnx", "--output-dir", "out", "--ray", "local", "--jobs", "2"), "leave one out"),
        (("c.onnx", "-o", "o.onnx", "--ray", "local"), "--ray is for several models"),
        (("c.onnx", "--output-dir", "out", "--jobs", "100000"), "--jobs must be"),
        (("empty", "--output-dir", "out"), "empty: it contains no .onnx file"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_nothing_is_written(
    zoo: Path, words: tuple[str, ...], sentence: str, cli: Cli
) -> None:
    (zoo / "empty").mkdir()
    (zoo / "x").mkdir()
    (zoo / "x" / "c.onnx").write_bytes((zoo / "c.onnx").read_bytes())
    before = all_files(zoo)
    assert cli("optimize", *words) == 2
    captured = cli.readouterr()
    assert sentence in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""
    assert all_files(zoo) == before
    assert not (zoo / "out").exists()


@pytest.mark.usefixtures("in_this_process")
def test_results_within_the_folder_are_no_models_of_the_next_run(zoo: Path, cli: Cli) -> None:
    (zoo / "zoo" / "deep" / "broken.onnx").unlink()
    words = ("-q", "optimize", "zoo", "--output-dir", "zoo/folded", *_QUICK)
    assert cli(*words) == 0
    made = all_files(zoo / "zoo" / "folded")
    assert set(made) == {"a.onnx", "deep/er/b.onnx"}
    assert cli(*words) == 0
    assert all_files(zoo / "zoo" / "folded").keys() == made.keys()


@pytest.mark.usefixtures("in_this_process")
def test_a_dry_run_of_a_folder_writes_nothing(zoo: Path, cli: Cli) -> None:
    before = all_files(zoo)
    assert cli("optimize", "zoo", "c.onnx", "--dry-run", "--fold", "always") == 3
    assert "4 models: 3 planned, 1 failed" in cli.readouterr().out
    assert all_files(zoo) == before


def test_a_result_without_a_name_stands_beside_the_model(zoo: Path, cli: Cli) -> None:
    assert cli("optimize", "c.onnx", *_QUICK) == 0
    assert is_ours(zoo / "c.folded.onnx")
    assert cli("optimize", "c.onnx", *_QUICK) == 0
    (zoo / "c.folded.onnx").write_bytes(b"precious")
    cli.readouterr()
    assert cli("optimize", "c.onnx", *_QUICK) == 2
    assert "onnxfold did not write it" in cli.readouterr().err
    assert (zoo / "c.folded.onnx").read_bytes() == b"precious"


def test_two_names_are_in_and_out_and_the_refusal_names_the_way_to_several(
    zoo: Path, cli: Cli
) -> None:
    assert cli("optimize", "c.onnx", "zoo/a.onnx", *_QUICK) == 2
    assert "--output-dir DIR takes several models" in cli.readouterr().err
    assert cli("optimize", "c.onnx", "new.onnx", *_QUICK) == 0
    assert is_ours(zoo / "new.onnx")


def test_the_table_fits_80_columns_and_is_plain(
    zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = {"folded": 3, "layer_norms": 4}
    sides = {
        "before": {"session_operators": {"Add": 1300}},
        "after": {"session_operators": {"Add": 1200}},
    }
    report = {"inspect": {"summary": summary}, "before_after": sides, "changed": True}
    long = "/".join(["a_folder_of_models"] * 6)
    rows = [
        FleetRow(f"{long}/encoder.onnx", "o.onnx", {"report": report, "warnings": ["warning: w"]}),
        FleetRow("b.onnx", "p.onnx", error="there is no file", exit_code=3),
    ]
    monkeypatch.setenv("COLUMNS", "80")
    print_many(terminal.console(terminal.Verbosity.NORMAL), rows, full=False, dry_run=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[:3] == [
        "model                                   LayerNorms fold  session nodes   result",
        "a_folder_of_models…encoder.onnx         3 of 4           1,300 -> 1,200  written",
        "b.onnx                                  -                -               failed",
    ]
    assert "…" in lines[3]
    assert lines[-2:] == ["failed: b.onnx: there is no file", "2 models: 1 written, 1 failed"]


def _work(model: Path, output: Path | None) -> Mapping[str, Any]:
    if model.stem == "bad":
        raise ModelError("no good")
    if model.stem == "defect":
        raise RuntimeError("a defect")
    assert output is not None
    output.write_text(model.name)
    return {"name": model.name}


@pytest.mark.parametrize("way", [{}, {"jobs": 3}, {"ray": "local"}])
def test_every_way_to_spread_work_gives_the_same_rows(
    tmp_path: Path, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "ray" in way:
        pytest.importorskip("ray", reason="needs ray (make test-training installs it)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Ray's workers load this module
    monkeypatch.chdir(tmp_path)
    todo = [
        Errand(Path(f"{n}.onnx"), Path("out", f"{n}.onnx")) for n in ("a", "bad", "defect", "b")
    ]
    rows = {row.model: row for row in spread(_work, todo, **way)}
    assert {name: row.exit_code for name, row in rows.items()} == {
        "a.onnx": 0, "bad.onnx": 3, "defect.onnx": 3, "b.onnx": 0,
    }  # fmt: skip
    assert rows["b.onnx"].found == {"name": "b.onnx"}
    assert rows["bad.onnx"].error == "no good"
    assert rows["defect.onnx"].error == "internal error, RuntimeError: a defect"
    assert (tmp_path / "out" / "a.onnx").read_text() == "a.onnx"


def test_a_model_that_is_given_twice_is_done_once(zoo: Path) -> None:
    todo = errands([Path("zoo"), Path("zoo/a.onnx"), Path("zoo")], Path("out"))
    assert len(todo) == 3
    (zoo / "other").mkdir()
    (zoo / "other" / "c.onnx").write_bytes(b"")
    with pytest.raises(UsageError, match="both be written"):
        errands([Path("c.onnx"), Path("other")], Path("out"))


def test_an_interrupt_says_how_many_models_were_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(model: Path, output: Path | None) -> Mapping[str, Any]:
        if model.stem == "b":
            raise KeyboardInterrupt
        return {}

    todo = [Errand(tmp_path / f"{name}.onnx", None) for name in "abc"]
    with pytest.raises(CommandInterruptedError, match="interrupted, 1 of 3 models were done"):
        run_many(interrupted, todo, lambda _: "", lines=False)
