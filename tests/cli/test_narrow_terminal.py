"""What commands print at 80 columns and into a pipe: whole words, stages once, quiet ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import onnx
import pytest

from onnxfold.cli import terminal
from onnxfold.cli.terminal import Verbosity
from onnxfold.report.fitted_tables import broken, shortened
from onnxfold.runtime import doctor
from tests.builders import post_norm_model, pre_norm_model
from tests.cli.command import Cli, run
from tests.tuning.forked import forked_jobs

_LONG = "/model/encoder/layers.{}/self_attention_block/output/LayerNorm/{}"
_CUT = "/mod…norm/LayerNorm"


# What they find is the same at every call, and takes the most of the time of `doctor`.
_TESTED = cache(doctor.self_test)


def torchscript(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Name nodes as torch.onnx.export does: each longer than a terminal is wide."""
    for number, node in enumerate(proto.graph.node):
        node.name = _LONG.format(number, node.op_type)
    return proto


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(torchscript(pre_norm_model(1)), tmp_path / "m.onnx")
    onnx.save(torchscript(post_norm_model()), tmp_path / "post.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "self_test", _TESTED)
    return tmp_path


def said(
    words: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    assert run(monkeypatch, *words) == 0, words
    return capsys.readouterr().out.splitlines()


def parts(lines: Sequence[str]) -> set[str]:
    """Return all parts between spaces or the separators of a name."""
    return {part for line in lines for part in re.split(r"[\s/._:,;()'\"]+", line)}


_TABLES = [
    ("inspect", "m.onnx"),
    ("inspect", "post.onnx"),
    ("measure", "m.onnx", "--rows", "2"),
    ("bench", "m.onnx", "m.onnx", "--rounds", "2"),
    ("optimize", "m.onnx", "-o", "out.onnx", "--fold", "always"),
    ("explain",),
    ("explain", "graph_output"),
    ("doctor",),
]


@pytest.mark.parametrize("words", _TABLES, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize("verbose", [False, True])
def test_no_word_is_cut_at_80_columns(
    files: Path,
    words: tuple[str, ...],
    verbose: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("onnxfold.runtime.bench.is_apart", lambda *_: False)
    monkeypatch.setenv("COLUMNS", "80")
    words = (*words, "-v") if verbose else words
    narrow = said(words, monkeypatch, capsys)
    # A path that is cut in two cannot be copied.
    assert all(len(line) <= 80 for line in narrow if str(files) not in line)
    narrow = [line.removesuffix("\\") for line in narrow]  # of a command over two lines
    monkeypatch.setenv("COLUMNS", "5000")
    whole = parts(said(words, monkeypatch, capsys))
    # Without enough room, reasons are listed by code.
    for part in parts([line for line in narrow if "inspect has the reasons" not in line]):
        if "…" in part:
            assert not verbose
        elif not any(character.isdigit() for character in part):  # times and numbers differ
            assert part in whole, part


def test_names_are_whole_in_a_pipe_and_by_request(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = _LONG.format(1, "LayerNormalization")
    for words in (("inspect", "m.onnx"), ("measure", "m.onnx", "--rows", "2")):
        monkeypatch.delenv("COLUMNS", raising=False)
        assert name in "\n".join(said(words, monkeypatch, capsys))
        monkeypatch.setenv("COLUMNS", "80")
        lines = said(words, monkeypatch, capsys)
        assert name not in "\n".join(lines)
        assert any("…" in line for line in lines)
        column = [
            line[:30].split("  ")[0].strip() for line in said((*words, "-v"), monkeypatch, capsys)
        ]
        assert name in "".join(column)


@pytest.mark.parametrize("watched", [True, False])
def test_a_message_ends_its_lines_between_words_on_a_terminal_alone(
    watched: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: watched)
    terminal.tell("the folder /a/path/longer/than/a/line/is is missing; create it first", err=True)
    told = capsys.readouterr().err.splitlines()
    assert told == (
        ["the folder", "/a/path/longer/than/a/line/is", "is missing; create it first"]
        if watched
        else ["the folder /a/path/longer/than/a/line/is is missing; create it first"]
    )


def test_a_name_is_broken_between_its_parts_alone() -> None:
    assert broken("the norm '/encoder/layer.0/LayerNorm'", 12) == [
        "the norm '/",
        "encoder/",
        "layer.0/",
        "LayerNorm'",
    ]
    assert broken("three words here", 20) == ["three words here"]
    assert shortened("/encoder/layer.0/LayerNorm", 12) == "…layer.0…"


def test_the_stages_of_optimize_appear_once_each(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(
        ("optimize", "m.onnx", "-o", "o.onnx", "--fold", "always", "-v"), monkeypatch, capsys
    )
    stages = [line.partition(": ")[0] for line in lines if re.fullmatch(r"[\w ]+: [\d.]+ s", line)]
    assert stages == [
        "reading the model",
        "finding norms and planning",
        "counting operators",
        "rewriting the graph",
        "proving the result from its weights",
        "writing the weights",
        "comparing with a float64 run",
        "counting what sessions execute",
        "timing the longer session",
    ]


def test_a_stage_of_another_attempt_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress(Verbosity.NORMAL, Path("m.onnx")) as listen:
        for stage in ("analyse", "prove", "verify", "analyse", "prove", "verify"):
            listen(stage, 0.0)
            listen(stage, 1.0)
    lines = [line.rpartition(": ")[0] for line in capsys.readouterr().out.splitlines()]
    once = [terminal._DOINGS[stage] for stage in ("analyse", "prove", "verify")]
    assert lines == [*once, *(f"again: {doing}" for doing in once)]


_QUIET = [
    *_TABLES,
    ("convert", "m.onnx", "-o", "c.onnx", "--to", "rms"),
    ("diff", "m.onnx", "post.onnx", "--nodes"),
    ("verify", "m.onnx", "m.onnx"),
    ("plot", "r.json", "-o", "figures"),
    ("tune", "m.onnx", "-o", "t.onnx", "--chain", "fold-ort"),
]


@pytest.mark.parametrize("words", _QUIET, ids=lambda words: " ".join(words[:2]))
def test_quiet_means_the_same_with_every_command(
    files: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    forked_jobs(monkeypatch)
    if words[0] == "plot":
        assert cli("measure", "m.onnx", "--report", "r.json") == 0
    cli.readouterr()
    for order in (("-q", *words), (*words, "-q")):
        assert cli(*order) == 0
        captured = cli.readouterr()
        assert captured.out == ""
        assert all(
            line.startswith(("onnxfold: ", "no --data: ")) for line in captured.err.splitlines()
        )


@pytest.mark.parametrize("words", [("inspect", "m.onnx"), ("bench", "m.onnx", "--rounds", "1")])
def test_a_quiet_command_still_prints_json(
    files: Path,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said((*words, "-q", "--json"), monkeypatch, capsys)[0] == "{"


_COMMANDS = ("optimize", "tune", "convert", "inspect", "explain", "diff", "measure", "plot")
_MORE = ("rotate", "verify", "bench", "checkpoint", "serve", "triton", "doctor", "lib-path")


@pytest.mark.parametrize("command", ["", *_COMMANDS, *_MORE])
def test_no_flag_looks_as_if_it_took_a_value(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = said((*([command] if command else []), "--help"), monkeypatch, capsys)
    assert all("bool" not in line.lower() for line in lines)
    assert all(len(line) <= 80 for line in lines)
    assert not any("…" in line for line in lines)  # no name of an option is cut


def test_help_lists_every_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(said(("--help",), monkeypatch, capsys))
    told = re.search(r"Exit codes: (.*?)\. ", text)
    assert told is not None
    codes = {int(number) for number in re.findall(r"(?:^|; )\s*(\d+) ", told[1])}
    assert codes == {0, 1, 2, 3, 130, 141}
