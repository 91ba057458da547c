"""What a model calls its parts is text, wherever a command prints or writes it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import onnx
import pytest

import onnxfold.cli
from onnxfold.cli import application
from onnxfold.cli.plain_console import PlainConsole
from onnxfold.errors import InvariantError
from tests.builders import post_norm_model, pre_norm_model
from tests.cli.command import Cli

# Clears the screen, forges a line, opens a link, turns the direction, is markup of Rich.
_EVIL = "\x1b[2J\nproved: all\r\x9b31m\x1b]8;;http://x\x07\u202e[/red]:smile:\x00"


def disguised(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model all of whose names hold what a terminal would obey."""

    def named(name: str) -> str:
        return f"{name}{_EVIL.replace(chr(0), '')}" if name else name

    graph = proto.graph
    for number, node in enumerate(graph.node):
        node.name = named(node.name or f"node{number}")
        node.input[:] = map(named, node.input)
        node.output[:] = map(named, node.output)
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = named(value.name)
    graph.name = named(graph.name)
    return proto


def visible(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("make", [pre_norm_model, post_norm_model])
def test_no_command_prints_what_a_terminal_obeys(
    tmp_path: Path, make: object, capfd: pytest.CaptureFixture[str], cli: Cli
) -> None:
    assert callable(make)
    model, fast, wrong = (tmp_path / f"{name}\x1b[31m.onnx" for name in ("m", "fast", "wrong"))
    onnx.save(disguised(make()), model)
    broken = disguised(make())
    broken.graph.node[0].op_type = "Nothing\x1b[31m"
    broken.graph.node[0].input.append("gone\x1b[31m")
    onnx.save(broken, wrong)
    page, document = tmp_path / "report.html", tmp_path / "report.json"
    commands: list[tuple[str | Path, ...]] = [
        ("inspect", model),
        ("inspect", model, "--nodes"),
        ("optimize", model, fast, "--report", page, "--report", document, "-v"),
        ("-q", "optimize", model, fast, "--exclude", "nothing\x1b\\[31m"),
        ("optimize", model, "--dry-run", "-v", "--exclude", "."),
        ("convert", model, "--to", "crms", "--dry-run", "-v"),
        ("diff", model, fast, "--nodes", "-v"),
        ("verify", model, fast),
        ("bench", model, fast, "--rounds", "1"),
        ("measure", model, "--report", tmp_path / "measured.json"),
        ("explain", "code\x1b[31m"),
        ("optimize", wrong, "-o", tmp_path / "o.onnx"),
        ("optimize", wrong, "-o", tmp_path / "o.onnx", "-v"),
        ("optimize", model, "-o", tmp_path / "o.onnx", "--inputs", "x\x1b[31m:1,2"),
        ("inspect", tmp_path / "no\x1b[31m.onnx"),
        ("plot", tmp_path / "measured.json", "-o", tmp_path / "figures"),
    ]
    for words in commands:
        code = cli(*words)
        said = capfd.readouterr()
        assert visible(said.out), words
        assert visible(said.err), words
        assert "proved: all\n" not in said.out + said.err, words
        refuses = words[0] == "explain" or wrong in words or words[-1] == "x\x1b[31m:1,2"
        assert (code != 0) == (refuses or "no\x1b[31m" in str(words[-1])), (words, said)
    assert visible(page.read_text(encoding="utf-8"))
    assert "\\x1b[2J\\nproved: all" in page.read_text(encoding="utf-8")
    for path in (document, tmp_path / "measured.json"):
        assert visible(path.read_text(encoding="utf-8"))
    norms = json.loads(document.read_text(encoding="utf-8"))["inspect"]["norms"]
    assert all("\x1b[2J\nproved: all" in norm["name"] for norm in norms)


def test_a_defect_is_told_without_what_a_terminal_obeys(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cli: Cli
) -> None:
    def defective(*_: object, **__: object) -> None:
        raise RuntimeError(_EVIL)

    monkeypatch.setattr("onnxfold.api.inspect", defective)
    for words in (("inspect", model), ("-v", "inspect", model)):
        assert cli(*words) == 3
        said = capfd.readouterr().err
        assert visible(said)
        assert ("Traceback" in said) == (words[0] == "-v")


def test_the_console_prints_nothing_that_it_cannot_read() -> None:
    with pytest.raises(InvariantError, match="a dict is printed"):
        PlainConsole(width=80).print({"a": "\x1b"})


def test_commands_print_in_one_place_alone() -> None:
    folder = Path(onnxfold.cli.__file__).parent
    alone = {"terminal.py", "plain_console.py", "serve.py"}
    for path in folder.glob("*.py"):
        calls = {
            f"{node.value.id}.{node.attr}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        printing = {"typer.echo", "typer.secho", "sys.stdout", "sys.stderr", "os.write"}
        assert path.name in alone or not calls & printing, path
    assert application.terminal.say is not None
