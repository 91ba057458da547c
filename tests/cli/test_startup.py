"""The command starts quickly without changing what it computes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

_MODEL = Path(__file__).parents[2] / "models" / "digits_vit" / "digits_vit.onnx"

_PROGRAM = """
import sys
from onnxfold.cli.guard import start_quickly
start_quickly()
from onnxfold.cli.application import app
app(["-q", *sys.argv[1:], "--json"], standalone_mode=False)
print("sympy.core" in sys.modules, file=sys.stderr)
import onnx_ir as ir
print(ir.SymbolicDim("N") + 1, "sympy.core" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["inspect"], ["optimize", "-o", "out.onnx"]])
def test_a_command_that_does_no_symbolic_arithmetic_imports_no_sympy(
    words: list[str], tmp_path: Path
) -> None:
    """Neither to read a model, nor to make inputs of an open size for its check."""
    command = [sys.executable, "-c", _PROGRAM, *words, str(_MODEL)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.splitlines() == ["False", "N + 1 True"]
    assert '"schema": 1' in done.stdout


_UNCHECKED = """
import sys
from onnxfold.cli.application import app
app(["-q", "optimize", sys.argv[1], "-o", sys.argv[2], "--no-check"], standalone_mode=False)
parts = {f"onnxfold.{part}" for part in sys.argv[3:]}
print(sorted(parts & set(sys.modules)))
"""


def test_a_command_without_a_check_imports_nothing_that_checks(tmp_path: Path) -> None:
    parts = ["proof.walker", "check.compare", "check.reference", "inputs", "runtime"]
    assert all(importlib.util.find_spec(f"onnxfold.{part}") for part in parts)
    command = [sys.executable, "-c", _UNCHECKED, str(_MODEL), str(tmp_path / "out.onnx"), *parts]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]"]
    assert (tmp_path / "out.onnx").exists()


def test_importing_the_package_leaves_the_imports_of_a_process_alone() -> None:
    program = "import sys, gc; before = (list(sys.meta_path), gc.get_threshold()); "
    program += "import onnxfold.api, onnxfold.cli.application; "
    program += "assert before == (sys.meta_path, gc.get_threshold())"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_waits_for_a_command_imports_no_command() -> None:
    program = "import sys, onnxfold.__main__, onnxfold.cli.guard; "
    program += "print(sorted({'typer', 'onnx', 'onnxfold.cli.application'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.split() == [b"[]"]


_LONG = """
import gc, sys
from importlib.util import _LazyModule
from onnxfold.cli.guard import go_on_as_usual, start_quickly
before = list(sys.meta_path), gc.get_threshold()
start_quickly()
import onnx_ir
assert type(sys.modules["onnx_ir._symbolic_shapes"]) is _LazyModule
go_on_as_usual()
assert before == (sys.meta_path, gc.get_threshold())
assert not any(type(module) is _LazyModule for module in sys.modules.values())
go_on_as_usual()
"""


def test_a_command_that_goes_on_for_long_has_nothing_deferred() -> None:
    """Python loads a deferred module twice when two threads ask for it first."""
    subprocess.run([sys.executable, "-c", _LONG], check=True)


_CYCLE = """
import sys
from onnxfold.cli.guard import go_on_as_usual, start_quickly

class Node:
    def __del__(self):
        print("collected")

node = Node()
node.itself = node
start_quickly()
if sys.argv[1] == "long":
    go_on_as_usual()
"""


def test_a_command_does_not_look_for_garbage_when_it_ends() -> None:
    said = {
        kind: subprocess.run(
            [sys.executable, "-c", _CYCLE, kind], check=True, capture_output=True, text=True
        ).stdout
        for kind in ("short", "long")
    }
    assert said == {"short": "", "long": "collected\n"}
