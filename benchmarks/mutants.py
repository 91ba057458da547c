"""Mutants of the code that decides and proves, and whether a test notices.

    python -m benchmarks.mutants --count 300 --seed 0 [--each 50]

A mutant has one decision turned around: a comparison, an `and` or `or`, a `not`.  The tests are
collected once, in one process.  A child of it first notes which functions of the mutated parts each
test runs, kept in build/mutants; of a test with many parameters `--each` of them are taken.  Each
mutant is then a child that has the code of one function replaced, and runs the tests that run this
function, those of the folder that mirrors its module first and the quick before the slow, until one
fails (the mutant is killed) or all have passed (it survives: a test is missing, or the decision
decides nothing).  Limits are of processor time, which a busy machine does not shorten.  What is
decided while a module is imported is not tried, for the child has imported it.  The verdicts are
rows of benchmarks/results/mutants.csv, where a survivor is tried again and the others are not.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import pytest

from benchmarks.rows import RESULTS, read, replace

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("operators", "passes", "proof", "norms")
# Every suite that sees what these parts decide; the quick and near first.
SUITES = (
    "tests/norms",
    "tests/operators",
    "tests/proof",
    "tests/passes",
    "tests/refusal",
    "tests/pipeline",
    "tests/soundness",
    "tests/check",
    "tests/models/test_recipes.py",
)
KNOWN = ROOT / "build" / "mutants" / "functions.jsonl"
# Of a test that is too long with so many parameters, the others are not tried.
_SLOW = 2
# Far above what the tests need on the code as it is.
_LIMIT_S, _LIMIT_TIMES = 60, 10
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


@dataclass(frozen=True, slots=True)
class Mutant:
    """One decision of one module, what it becomes, and the code objects that change."""

    module: str
    line: int
    before: str
    after: str
    codes: dict[CodeType, CodeType]

    @property
    def place(self) -> tuple[str, int, str, str]:
        return self.module, self.line, self.before, self.after

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.before} -> {self.after} "


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said of a mutant; ``why`` is the test that killed it, or why none can."""

    module: str
    line: int
    before: str
    after: str
    seed: int
    verdict: str
    why: str


def turned(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a decision may be turned into."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            other = copy.copy(node)
            other.ops = [*node.ops]
            other.ops[index] = _TURNED[type(operator)]()
            yield other
    elif isinstance(node, ast.BoolOp):
        other = copy.copy(node)
        other.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield other
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


class _Swap(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def mutants_of(path: Path) -> Iterator[Callable[[], Mutant]]:
    """Yield a maker of each mutant of a module."""
    source = path.read_text()
    pairs = [(node, new) for node in ast.walk(ast.parse(source)) for new in turned(node)]
    for number in range(len(pairs)):
        yield partial(_mutant, path, source, number)


def _mutant(path: Path, source: str, number: int) -> Mutant:
    tree = ast.parse(source)
    old, new = [(node, new) for node in ast.walk(tree) for new in turned(node)][number]
    words = old.lineno, ast.unparse(old), ast.unparse(new)  # type: ignore[attr-defined]
    before = compile(source, str(path), "exec", dont_inherit=True)
    after = compile(_Swap(old, new).visit(tree), str(path), "exec", dont_inherit=True)
    return Mutant(str(path).removeprefix(f"{ROOT}/"), *words, dict(_changed(before, after)))


def _changed(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the code objects of functions, methods and lambdas that differ, the outermost first."""
    if before != after:
        yield before, after
        inner = [code for code in before.co_consts if isinstance(code, CodeType)]
        others = [code for code in after.co_consts if isinstance(code, CodeType)]
        for one, other in zip(inner, others, strict=True):
            yield from _changed(one, other)


def put_in(codes: dict[CodeType, CodeType]) -> int:
    """Give every living function its new code; return how many there are."""
    living = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
    changed = [function for function in living if function.__code__ in codes]
    for function in changed:
        function.__code__ = codes[function.__code__]
    return len(changed)


class Tester:
    """A pytest plugin that does its own loop over the collected tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._items: dict[str, pytest.Item] = {}
        self._outcomes: set[str] = set()
        self._trusted: set[str] = set()
        self._seconds: dict[str, float] = {}
        self._tests: dict[str, set[str]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Note what the tests run, then judge the mutants."""
        self._items = {item.nodeid: item for item in session.items}
        in_a_child(lambda: self._note(spread(session.items, self._options.each)), 36_000)
        self._read()
        print(f"{len(self._seconds)} tests of {sum(self._seconds.values()):.0f} s", flush=True)
        kept = read(self._options.keep) if self._options.keep.exists() else []
        settled = {_place(row) for row in kept if row["verdict"] != "survives"}
        for mutant in sample(self._options.count, self._options.seed):
            if mutant.place not in settled:
                self._judge(mutant)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._outcomes.add(report.outcome)

    def _run(self, item: pytest.Item) -> set[str]:
        """Run one test; return the outcomes of its parts."""
        self._outcomes.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._outcomes

    def _note(self, items: Iterable[pytest.Item]) -> str:
        """Write for each test its processor time, and the functions of the parts that it runs."""
        KNOWN.parent.mkdir(parents=True, exist_ok=True)
        done = {row["test"] for row in known()}
        signal.signal(signal.SIGPROF, _too_long)
        roots = tuple(str(ROOT / "onnxfold" / part) + os.sep for part in PARTS)
        slow: dict[str, int] = {}
        for item in items:
            name, test = item.nodeid, _test(item.nodeid)
            if name in done or slow.get(test, 0) == _SLOW:
                continue
            seen: set[CodeType] = set()
            start = time.process_time()
            sys.settrace(lambda frame, _event, _arg, seen=seen: seen.add(frame.f_code))  # type: ignore[misc]
            signal.setitimer(signal.ITIMER_PROF, self._options.longest)
            passed = self._run(item) == {"passed"}
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.settrace(None)
            ours = [code for code in seen if code.co_filename.startswith(roots)]
            row = {
                "test": name,
                "seconds": round(time.process_time() - start, 3),
                "functions": sorted(map(_name, ours)) if passed else [],
            }
            slow[test] = slow.get(test, 0) + ("skipped" in self._outcomes)
            with KNOWN.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return ""

    def _read(self) -> None:
        for row in known():
            if row["functions"] and row["test"] in self._items:
                self._seconds[row["test"]] = row["seconds"]
                for name in row["functions"]:
                    self._tests.setdefault(name, set()).add(row["test"])

    def _judge(self, mutant: Mutant) -> None:
        order, seconds = self._order(mutant)
        limit = _LIMIT_S + _LIMIT_TIMES * seconds
        said = in_a_child(lambda: self._first_failure(mutant, order), int(limit))
        if said in self._items and said not in self._trusted:
            if in_a_child(lambda: "".join(self._run(self._items[said])), int(limit)) != "passed":
                raise AssertionError(f"{said} fails on the code as it is")
            self._trusted.add(said)
        verdict = {"": "survives", "import": "at import"}.get(said, "killed")
        print(f"{verdict:9} {mutant} {said} ({len(order)} tests)", flush=True)
        row = Verdict(*mutant.place, self._options.seed, verdict, said)
        replace(self._options.keep, row, _place)

    def _order(self, mutant: Mutant) -> tuple[list[str], float]:
        """Return the tests of a mutant, and what they cost; other parameters of them come last."""
        near = str(Path("tests") / Path(mutant.module).relative_to("onnxfold").parent) + "/"
        kind = f"[{[*mutant.codes][-1].co_qualname.partition('.')[0]}]"
        found = set().union(*(self._tests.get(_name(code), set()) for code in mutant.codes))
        like = {_test(name): self._seconds[name] for name in found}
        cost = {name: self._seconds.get(name, like.get(_test(name), 0)) for name in self._items}
        order = sorted(
            (name for name in self._items if _test(name) in like),
            key=lambda name: (
                name not in found,
                not name.startswith(near),
                kind not in name,
                cost[name],
            ),
        )
        chosen = {name: cost[name] for name in order}
        sums = accumulate(chosen.values())
        order = order[: sum(each <= self._options.budget for each in sums)]
        return order, sum(chosen[name] for name in order)

    def _first_failure(self, mutant: Mutant, order: Iterable[str]) -> str:
        if not put_in(mutant.codes):
            return "import"
        return next((name for name in order if "failed" in self._run(self._items[name])), "")


def _test(name: str) -> str:
    return name.partition("[")[0]


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    pytest.skip("too long for each mutant")


def known() -> list[dict[str, Any]]:
    """Return what is noted of the tests."""
    return [json.loads(row) for row in KNOWN.read_text().splitlines()] if KNOWN.exists() else []


def _place(row: dict[str, str]) -> tuple[str, int, str, str]:
    return row["module"], int(row["line"]), row["before"], row["after"]


def _name(code: CodeType) -> str:
    return f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}:{code.co_firstlineno}"


def in_a_child(work: Callable[[], str], limit_s: int) -> str:
    """Return what a forked process says, or how it ended without a word."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        try:
            os.write(writer, work().encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    said = b""
    while part := os.read(reader, 1 << 16):
        said += part
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return said.decode() if not status else f"no end, or a crash: status {status}"


def spread(items: Iterable[pytest.Item], each: int) -> list[pytest.Item]:
    """Return at most so many parameters of each test, evenly spread, in the order of the tests."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_test(item.nodeid), []).append(item)
    return [group[k] for group in groups.values() for k in _places(len(group), each)]


def _places(count: int, most: int) -> list[int]:
    return sorted({int(place) for place in np.linspace(0, count - 1, min(count, most))})


def sample(count: int, seed: int) -> Iterator[Mutant]:
    """Yield mutants of the parts, drawn without putting back."""
    paths = sorted(path for part in PARTS for path in (ROOT / "onnxfold" / part).rglob("*.py"))
    every = [make for path in paths for make in mutants_of(path)]
    for index in np.random.default_rng(seed).permutation(len(every))[:count]:
        yield every[index]()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=20, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--each", type=int, default=50, help="how many parameters of one test")
    parser.add_argument("--longest", type=float, default=10, help="seconds of one test")
    parser.add_argument("--budget", type=float, default=600, help="seconds of tests of a mutant")
    parser.add_argument("--suites", nargs="*", default=SUITES, help="the tests to take")
    parser.add_argument("--keep", type=Path, default=RESULTS / "mutants.csv", help="the verdicts")
    options = parser.parse_args()
    flags = ["-q", "-s", "-p", "no:cacheprovider", "--graphs", "100"]
    return int(pytest.main([*flags, *options.suites], plugins=[Tester(options)]))


if __name__ == "__main__":
    sys.exit(main())
