"""One module changes graphs; all other modules call it."""

from __future__ import annotations

import ast
from pathlib import Path

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
        f"{path.relative_to(_ROOT)}:{node.lineno} calls {node.func.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _MUTATORS
    ]


def test_only_the_editor_changes_graphs() -> None:
    others = (path for path in _ROOT.rglob("*.py") if path != _ROOT / _EDITOR)
    assert not [call for path in others for call in _calls(path)]


def test_the_editor_is_what_this_looks_for() -> None:
    found = " ".join(_calls(_ROOT / _EDITOR))
    assert all(name in found for name in ("insert_before", "replace_input_with"))
