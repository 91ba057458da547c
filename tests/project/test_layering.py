"""Imports go one way, and importing the package is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

import onnxfold

_ROOT = Path(onnxfold.__file__).parent

# A part may import the parts listed before it.
_ORDER = (
    "wording",
    "errors",
    "native",
    "refusal",
    "target",
    "option_checks",
    "options",
    "model_io",
    "operators",
    "graph",
    "shapes",
    "operators/families",
    "norms",
    "recognition",
    "weights",
    "streams",
    "targets",
    "inputs",
    "fleet",
    "runtime",
    "check",
    "proof",
    "passes",
    "report",
    "pipeline",
    "geometry",
    "tuning",
    "api",
    "checkpoint",
    "torch",
    "flax",
    "keras",
    "serving",
    "cli",
    "geometry/measure_commands",
    "checkpoint/checkpoint_commands",
    "serving/serve_commands",
    "__main__",
)
# Parts that are pure mathematics.
_WITHOUT_ONNX = (
    "streams/mincut.py",
    "graph/channels.py",
    "graph/dims.py",
    "graph/fiber.py",
    "weights/means.py",
)


def _modules() -> list[Path]:
    return sorted(_ROOT.rglob("*.py"))


def _part(path: Path) -> str:
    return _part_of(path.relative_to(_ROOT).with_suffix("").parts)


def _part_of(names: Sequence[str]) -> str:
    """Return the longest part that contains a module.

    The table is data, its families know the graph. The proof of a pass stands behind the proofs.
    """
    pair = "/".join(names[:2])
    return pair if pair in _ORDER else names[0]


def _imported(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (module, line) of every import, within functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            module = node.module or ""
            if module == "onnxfold":
                yield from ((f"onnxfold.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield module, node.lineno
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)


def test_a_part_imports_only_what_stands_before_it() -> None:
    wrong = []
    for path in _modules():
        part = _part(path)
        if part == "__init__":
            continue  # lazy: it names the parts, and loads one when it is asked for
        assert part in _ORDER, f"'{part}' has no place in the order of parts"
        allowed = {*_ORDER[: _ORDER.index(part) + 1], "__version__"}
        for module, line in _imported(path):
            names = module.split(".")
            if names[0] == "onnxfold" and len(names) > 1 and _part_of(names[1:]) not in allowed:
                wrong.append(f"{path.relative_to(_ROOT)}:{line} imports {module}")
    assert not wrong


def test_every_part_of_the_order_exists() -> None:
    assert set(_ORDER) == {_part(path) for path in _modules()} - {"__init__"}


@pytest.mark.parametrize("name", _WITHOUT_ONNX)
def test_pure_mathematics_imports_no_onnx(name: str) -> None:
    roots = {module.split(".")[0] for module, _ in _imported(_ROOT / name)}
    assert not roots & {"onnx", "onnx_ir", "onnxruntime"}


def test_only_model_io_and_its_callers_write_files() -> None:
    """The one part that knows how models are written is model_io."""
    for path in _modules():
        if _part(path) == "model_io":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                call = (node.value.id, node.attr)
                assert call not in {("ir", "save"), ("onnx", "save"), ("os", "replace")}, path


@pytest.mark.parametrize("package", ["torch", "onnxruntime", "numpy", "onnx", "onnx_ir", "scipy"])
def test_importing_the_package_loads_nothing_heavy(package: str) -> None:
    code = f"import sys, onnxfold; sys.exit({package!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False)  # our own code
    assert done.returncode == 0, f"import onnxfold loads {package}"


def test_folding_a_model_loads_no_runtime_and_no_proof() -> None:
    code = (
        "import sys, onnxfold.pipeline, onnxfold.report.document\n"
        "sys.exit(bool({'torch', 'onnxruntime', 'onnxfold.proof.walker'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)  # our own code
    assert done.returncode == 0


# One name for one role in every pass, every family of operators or every command.
_ROLES = {"__init__", "apply", "decide", "plan", "prove", "folding", "options", "bench", "walk"}
_LONGEST = 80


def test_no_two_modules_have_one_name() -> None:
    """A kernel of the float64 interpreter has the name of its family of operators."""
    seen: dict[str, Path] = {}
    for path in _modules():
        if path.stem in _ROLES or "kernels" in path.parts:
            continue
        assert path.stem not in seen, f"{path} and {seen[path.stem]}"
        seen[path.stem] = path


def test_no_two_public_classes_have_one_name() -> None:
    seen: dict[str, Path] = {}
    for path in _modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert node.name not in seen, f"{node.name}: {path} and {seen[node.name]}"
                seen[node.name] = path


def test_no_pass_imports_another_or_the_proof() -> None:
    """What passes share is below them: targets, streams, the laws of operators, passes/*.py."""
    passes = {path.name for path in (_ROOT / "passes").iterdir() if path.is_dir()}
    for path in (_ROOT / "passes").rglob("*/*.py"):
        own = path.relative_to(_ROOT / "passes").parts[0]
        for module, line in _imported(path):
            names = module.split(".")
            assert names[:2] != ["onnxfold", "proof"], f"{path}:{line} imports {module}"
            if names[:2] == ["onnxfold", "passes"] and len(names) > 2:
                assert names[2] not in passes - {own}, f"{path}:{line} imports {module}"


_LARGEST_CLOSURE = 10_000


def test_no_pass_recognizes_norms() -> None:
    """A pass reads facts (onnxfold.graph.model_info), and does not name who finds them."""
    for path in (_ROOT / "passes").rglob("*/*.py"):
        for module, line in _imported(path):
            assert not module.startswith("onnxfold.recognition"), f"{path}:{line} imports {module}"


def test_no_pass_reaches_many_lines() -> None:
    """A pass can be read with all that it imports, and what that imports.

    The rows of operators do not count: the package adds them to the table, which passes ask.
    """
    lines = {path: len(path.read_text().splitlines()) for path in _modules()}
    for folder in (path for path in (_ROOT / "passes").iterdir() if path.is_dir()):
        reached = sum(lines[path] for path in _closure(folder.glob("*.py")))
        assert reached <= _LARGEST_CLOSURE, f"{folder.name} reaches {reached} lines"


def _closure(paths: Iterable[Path]) -> set[Path]:
    """Return the modules that some modules import, those too, in functions as well."""
    found, waiting = set[Path](), list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _named_modules(path)
    return found


def _named_modules(path: Path) -> Iterator[Path]:
    """Yield the modules that imports name: the module itself, or the one of a name in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onnxfold."):
            for alias in node.names:
                yield from _module_of(f"{node.module}.{alias.name}") or _module_of(f"{node.module}")


def _module_of(name: str) -> list[Path]:
    """Return the file of a module or package, if there is one of that name."""
    stem = _ROOT.joinpath(*name.split(".")[1:])
    return [each for each in (stem.with_suffix(".py"), stem / "__init__.py") if each.exists()]


def test_no_function_is_long() -> None:
    """A command of typer declares each of its options as a parameter; its body alone counts."""
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.body[0].lineno + 1
                assert lines <= _LONGEST, f"{path}: {node.name} has {lines} lines"
