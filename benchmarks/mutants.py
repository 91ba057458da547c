"""Mutants of the code that decides and proves, and whether a test notices.

    python -m benchmarks.mutants --count 300 --seed 0 [--jobs 2] [--keep mutants.csv]

A mutant is a copy of the tree with one decision turned around: a comparison, an `and` or `or`, a
`not`.  The tests run on it, those nearest to the changed module first, until one fails (the mutant
is killed) or all have passed (it survives: a test is missing, or the decision decides nothing).
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import onnxfold
from benchmarks.rows import write

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("operators", "passes", "proof", "norms")
# Every suite that sees what these parts decide; the nearest are moved to the front.
SUITES = (
    "tests/operators",
    "tests/norms",
    "tests/passes",
    "tests/proof",
    "tests/refusal",
    "tests/pipeline",
    "tests/soundness",
    "tests/models/test_recipes.py",
    "tests/check",
)
_TIMEOUT_S = 1800
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
# An editable install answers for the package before sys.path does.
_START = (
    "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'Editable' not in repr(f)];"
    "sys.path.insert(0, '.'); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One decision of one module, and what it becomes."""

    module: str
    line: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said of a mutant; ``test`` is the one that killed it."""

    module: str
    line: int
    before: str
    after: str
    killed: bool
    test: str


def turned(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a decision may be turned into."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[index] = _TURNED[type(operator)]()
            yield other
    elif isinstance(node, ast.BoolOp):
        other = copy.deepcopy(node)
        other.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield other
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


class _Swap(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def decisions(path: Path) -> int:
    """Return how many mutants a module has."""
    return sum(len(list(turned(node))) for node in ast.walk(ast.parse(path.read_text())))


def mutant_of(path: Path, number: int) -> tuple[Mutant, str]:
    """Return one mutant of a module, and its source."""
    tree = ast.parse(path.read_text())
    pairs = [(node, new) for node in ast.walk(tree) for new in turned(node)]
    old, new = pairs[number]
    words = ast.unparse(old), ast.unparse(new)
    place = Mutant(str(path.relative_to(ROOT)), getattr(old, "lineno", 0), *words)
    return place, ast.unparse(_Swap(old, new).visit(tree))


def suites_of(module: str) -> list[str]:
    """Return all suites, the ones that mirror the module's folder first."""
    folder = Path("tests") / Path(module).relative_to("onnxfold").parent
    near = [str(place) for place in (folder, *folder.parents) if (ROOT / place).is_dir()]
    near = [place for place in near if place not in ("tests", ".")]
    return list(dict.fromkeys((*near, *SUITES)))


def judge(mutant: Mutant, source: str) -> Verdict:
    """Run the tests on a copy of the tree that holds the mutant."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        hidden = shutil.ignore_patterns(".*", "build", "__pycache__", "_native")
        shutil.copytree(ROOT, tree, ignore=hidden, symlinks=True)
        for place in onnxfold.__path__:
            built = Path(place) / "_native"
            if built.is_dir():
                shutil.copytree(built, tree / "onnxfold" / "_native", dirs_exist_ok=True)
        (tree / mutant.module).write_text(source)
        test = _first_failure(tree, suites_of(mutant.module))
    fields = (mutant.module, mutant.line, mutant.before, mutant.after)
    return Verdict(*fields, test is not None, test or "")


def _first_failure(tree: Path, suites: Sequence[str]) -> str | None:
    """Return the test that fails, None where all pass; a run without end is a failure too."""
    command = [sys.executable, "-c", _START, "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    environment = os.environ | {"HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".hypothesis")}
    for suite in suites:
        try:
            done = subprocess.run(
                [*command, suite],
                cwd=tree,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{suite}: no end"
        if done.returncode:
            named = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ER"))]
            return named[0].split(" - ")[0] if named else f"{suite}: exit {done.returncode}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=20, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--keep", type=Path, help="write the verdicts to this CSV file")
    options = parser.parse_args()
    paths = sorted(path for part in PARTS for path in (ROOT / "onnxfold" / part).rglob("*.py"))
    every = [(path, number) for path in paths for number in range(decisions(path))]
    order = np.random.default_rng(options.seed).permutation(len(every))
    chosen = [every[index] for index in order[: options.count]]
    verdicts = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for verdict in pool.map(lambda place: judge(*mutant_of(*place)), chosen):
            verdicts.append(verdict)
            mark = "killed  " if verdict.killed else "SURVIVES"
            place = f"{verdict.module}:{verdict.line}"
            print(
                f"{mark} {place}: {verdict.before} -> {verdict.after}  {verdict.test}", flush=True
            )
    killed = sum(verdict.killed for verdict in verdicts)
    print(f"{killed} of {len(verdicts)} killed ({len(every)} possible, seed {options.seed})")
    if options.keep:
        write(options.keep, verdicts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
