"""Words and files that a command refuses: exit codes, and one line that tells why."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import Cli


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("optimize", "missing.onnx", "-o", "out.onnx"), 3, "missing.onnx"),
        (("convert", "model.onnx", "--to", "rms"), 2, "-o OUT"),
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
    cli: Cli,
) -> None:
    folder = model.parent
    monkeypatch.chdir(folder)
    (folder / "garbage.onnx").write_bytes(b"this is not a model\n" * 9)
    (folder / "empty.onnx").touch()
    (folder / "folder.json").mkdir()
    np.savez(folder / "data.npz", ids=np.zeros((1, 4), np.int64))
    (folder / "truncated.onnx").write_bytes(model.read_bytes()[:-200])
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert cli(*words) == code
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("onnxfold: ")
    assert says in lines[0]
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before


@pytest.mark.parametrize("command", ["optimize", "convert", "bench", "serve", "measure", "plot"])
def test_the_line_of_usage_has_no_bracket_in_a_bracket(command: str, cli: Cli) -> None:
    assert cli(command, "--help") == 0
    (usage,) = (line for line in cli.readouterr().out.splitlines() if "Usage" in line)
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
    cli: Cli,
) -> None:
    monkeypatch.chdir(model.parent)
    for suffix in ("onnx", "npy", "npz", "json"):
        Path(f"garbage.{suffix}").write_bytes(b"neither of all\n" * 9)
    assert cli(*(word.format(file) for word in words)) == 3
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("onnxfold: ")
    assert file in line


def test_whether_a_file_can_be_read_is_told_by_what_reads_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cli: Cli
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may read everything
    assert cli("inspect", model) == 0

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "model.onnx")

    monkeypatch.setattr("onnxfold.api.inspect", denied)
    assert cli("inspect", model) == 3
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
    cli: Cli,
) -> None:
    monkeypatch.chdir(model.parent)
    Path("there").mkdir()
    Path("there.json").touch()
    monkeypatch.setattr("os.access", lambda path, _: not str(path).startswith("there"))
    assert cli("measure", model, "--rows", "4", *words) == 3
    said = capfd.readouterr()
    assert "norms over" not in said.out
    assert says in said.err.splitlines()[-1]


def test_unknown_options_exit_2(model: Path, cli: Cli) -> None:
    assert cli("optimize", model, "--nonsense") == 2


def test_an_unknown_target_exits_2_with_those_that_there_are(
    model: Path, capfd: pytest.CaptureFixture[str], cli: Cli
) -> None:
    assert cli("optimize", model, "-o", "x", "--target", "tpu") == 2
    said = capfd.readouterr().err
    assert said == "onnxfold: there is no target 'tpu'; there are onnx, ort, kernels\n"
