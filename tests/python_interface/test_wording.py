"""Sentences are written with flags; Python shows them with arguments."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

import onnxfold
from onnxfold import options, wording
from onnxfold.checkpoint.folding import fold_checkpoint
from onnxfold.errors import OnnxfoldError, UsageError
from onnxfold.serving.settings import ServeSettings
from onnxfold.wording import naming_flags, worded
from tests.cli.command import Cli

_SOURCES = Path(onnxfold.__file__).parent
# Of the command line alone, and of other programs.
_COMMANDS = ("cli", "serving", "wording.py")
_OF_COMMANDS = {"measured", "report", "model-repository", "no-config"}
_OF_STYLES = {"lane", "lanes"}


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ("--device cuda is for --target ort", "device='cuda' is for target='ort'"),
        ("--defer-means waits: add --defer all", "defer_means=True waits: add defer='all'"),
        ("say --rows, or --max-error 0.5", "say rows=, or max_error=0.5"),
        ("--ray 'head:1': refused", "ray='head:1': refused"),
        ("give --tokenizer FILE)", "give tokenizer=FILE)"),
        ("leave it out (--no-check)", "leave it out (check=None)"),
        ("--inputs ids:file.npy", "inputs={'ids': array}"),
        ("--inputs ids:... or not", "inputs={'ids': (...)} or not"),
        ("give another, or --force", "give another, or force=True"),
        ("`--fold always` folds", "`fold='always'` folds"),
        ("pip install --upgrade onnx", "pip install --upgrade onnx"),
        ("node 'x--target' of a/--force", "node 'x--target' of a/--force"),
        ("a -- b", "a -- b"),
    ],
)
def test_flags_become_arguments(flags: str, arguments: str) -> None:
    assert worded(flags) == arguments
    assert worded(worded(flags)) == arguments
    error = pickle.loads(pickle.dumps(UsageError(flags)))  # noqa: S301 - our own
    assert str(error) == arguments
    with naming_flags():
        assert worded(flags) == str(error) == flags
        assert worded(arguments) == arguments
    assert str(error) == arguments
    assert error.sentence == flags


def test_the_choices_are_those_of_the_options() -> None:
    kinds = [kind for kind in vars(options).values() if isinstance(kind, type)]
    members = {str(m) for kind in kinds if issubclass(kind, StrEnum) for m in kind}
    assert members == wording.CHOICES


def _sentences() -> Iterator[tuple[Path, str]]:
    """Yield the texts of the package, as far as they are written down, without docstrings."""
    for path in sorted(_SOURCES.rglob("*.py")):
        if path.relative_to(_SOURCES).parts[0] in _COMMANDS or path.stem.endswith("_commands"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        told = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        for node in ast.walk(tree):
            text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if text and id(node) not in told:
                yield path, node.value


def _arguments() -> dict[str, object]:
    functions = [getattr(onnxfold, name) for name in onnxfold.__all__]
    functions = [f for f in functions if inspect.isfunction(f)] + [fold_checkpoint, ServeSettings]
    found: dict[str, object] = {}
    for function in functions:
        found |= {p.name: p.default for p in inspect.signature(function).parameters.values()}
    return found


def test_every_flag_of_a_sentence_is_an_argument_of_a_function() -> None:
    arguments, seen = _arguments(), set()
    for path, text in _sentences():
        for found in wording._FLAG.finditer(text):
            if found["flag"] in _OF_COMMANDS | _OF_STYLES:
                continue
            name, _, value = worded(f"--{found['flag']}").partition("=")
            assert name in arguments, f"{path}: {text!r}"
            assert (value == "True") == (arguments[name] is False), f"{path}: {text!r}"
            seen.add(name)
    assert {"target", "fold", "inputs", "check", "exclude", "force"} <= seen


def test_the_command_line_names_flags_and_python_arguments(tmp_path: Path, cli: Cli) -> None:
    """One sentence, written once."""
    digits = Path(__file__).parents[2] / "models" / "digits_vit" / "digits_vit.onnx"
    words = ("optimize", digits, "-o", tmp_path / "o.onnx", "--device", "cuda")
    assert cli(*words) == 2
    said = cli.readouterr().err
    assert said.startswith("onnxfold: --device cuda is for --target ort; ")
    with pytest.raises(OnnxfoldError) as caught:
        onnxfold.optimize(digits, tmp_path / "o.onnx", device="cuda")
    assert str(caught.value).startswith("device='cuda' is for target='ort'; ")
    assert not re.search("--[a-z]", str(caught.value))
