"""One module changes graphs; all other modules call it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import onnxfold

_ROOT = Path(onnxfold.__file__).parent
_MUTATORS = frozenset(
    {
        "insert_after",
        "insert_before",
        "register_initializer",
        "replace_all_uses_with",
        "replace_input_with",
        "replace_nodes_and_values",
        "resize_inputs",
        "resize_outputs",
    }
)
_EDITOR = "graph/edit.py"


def _calls(path: Path) -> list[str]:
    return [
        f"{path.name}:{node.lineno} calls {node.func.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _MUTATORS
    ]


@pytest.mark.parametrize("path", sorted(_ROOT.rglob("*.py")), ids=lambda p: str(p.name))
def test_only_the_editor_changes_graphs(path: Path) -> None:
    if str(path.relative_to(_ROOT)) != _EDITOR:
        assert not _calls(path)


def test_the_editor_is_what_this_looks_for() -> None:
    found = " ".join(_calls(_ROOT / "graph" / "edit.py"))
    assert all(name in found for name in ("insert_before", "replace_input_with"))
