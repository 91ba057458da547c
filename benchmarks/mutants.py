"""Mutants of the code that decides and proves, and whether a test notices.

    python -m benchmarks.mutants --count 10 --seed 0
    python -m benchmarks.mutants --count 300 --seed 0 --each 50 --budget 600 --suites tests/passes

A mutant has one decision turned around: a comparison, an `and` or `or`, a `not`. The tests are
collected once, in one process. A child of it first notes for each test the decisions that a mutant
would have come out otherwise (`a <= b` for `a < b` where both are equal, `or` for `and` where the
`and` is false), for no other test can kill that mutant; this is kept in build/mutants for these
sources, and of a test with many parameters `--each` of them are taken. The tests are in the folders
that mirror the modules of the sample; more with ``--suites``. Each mutant is then a child with the
code of one function replaced, which runs its tests, the mirroring folder first and the quick before
the slow, until one fails (the mutant is killed) or all have passed (it survives: a test is missing,
or the decision decides nothing). Limits are of processor time, which a busy machine does not
shorten. What is decided while a module is imported is not tried, for the child has imported it. The
verdicts are rows of benchmarks/results/mutants.csv, with the commit at which each was seen; a
survivor is tried again and the others are not.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from benchmarks.decisions import ROOT, Functions, Mutant, Noted, living, modules, put_in, sample
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, read, replace

KNOWN = ROOT / "build" / "mutants"
# Far above what the tests need on the code as it is.
_LIMIT_S, _LIMIT_TIMES = 60, 10


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said of a mutant; ``why`` is the test that killed it, or why none can."""

    module: str
    line: int
    before: str
    after: str
    seed: int
    commit: str
    verdict: str
    why: str


class Tester:
    """A pytest plugin that does its own loop over the collected tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._items: dict[str, pytest.Item] = {}
        self._outcomes: set[str] = set()
        self._trusted: set[str] = set()
        self._seconds: dict[str, float] = {}
        self._tests: dict[int, set[str]] = {}
        self._functions: Functions = {}
        self._caches: list[_lru_cache_wrapper[Any]] = []
        self._commit = _commit()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Note what the tests run, then judge the mutants."""
        self._items = {item.nodeid: item for item in session.items}
        for path in modules():  # Of one imported by a test alone nothing would be living.
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        self._functions = living()
        caches = [one for one in gc.get_objects() if type(one) is _lru_cache_wrapper]
        self._caches = [one for one in caches if one.__module__.startswith("onnxfold.")]
        gc.freeze()  # A child that looks through all of it would copy it.
        in_a_child(lambda: self._note(spread(session.items, self._options.each)), 36_000)
        self._read()
        print(f"{len(self._seconds)} tests of {sum(self._seconds.values()):.0f} s", flush=True)
        kept = read(self._options.keep) if self._options.keep.exists() else []
        settled = {_place(row) for row in kept if row["verdict"] != "survives"}
        for mutant in sample(self._options.count, self._options.seed):
            if mutant.place not in settled and mutant.module.startswith(self._options.modules):
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
        """Write for each test its processor time, and the decisions that it decides."""
        KNOWN.mkdir(parents=True, exist_ok=True)
        done = {row["test"] for row in known()}
        signal.signal(signal.SIGPROF, _too_long)
        noted = Noted()
        noted.put_in(modules(), self._functions)
        spent: dict[str, float] = {}
        for item in items:
            name, test = item.nodeid, _test(item.nodeid)
            if name in done or spent.get(test, 0) > 2 * self._options.longest:
                continue
            for one in self._caches:
                one.cache_clear()
            noted.take()
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, self._options.longest)
            passed = self._run(item) == {"passed"}
            signal.setitimer(signal.ITIMER_PROF, 0)
            seconds = round(time.process_time() - start, 3)
            row = {"test": name, "seconds": seconds, "decisions": noted.take() if passed else []}
            spent[test] = spent.get(test, 0) + seconds
            with _noted().open("a") as file:
                file.write(json.dumps(row) + "\n")
        return ""

    def _read(self) -> None:
        for row in known():
            if row["decisions"] and row["test"] in self._items:
                self._seconds[row["test"]] = row["seconds"]
                for number in row["decisions"]:
                    self._tests.setdefault(number, set()).add(row["test"])

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
        row = Verdict(*mutant.place, self._options.seed, self._commit, verdict, said)
        replace(self._options.keep, row, _place)

    def _order(self, mutant: Mutant) -> tuple[list[str], float]:
        """Return the tests of a mutant, the likely and the quick first, and what they cost."""
        near = f"{mirrored(mutant.module)}/"
        kind = f"[{[*mutant.codes][-1].co_qualname.partition('.')[0]}]"
        order = sorted(
            self._tests.get(mutant.number, ()),
            key=lambda name: (not name.startswith(near), kind not in name, self._seconds[name]),
        )
        order = turn_by_turn(order)
        sums = accumulate(self._seconds[name] for name in order)
        order = order[: sum(each <= self._options.budget for each in sums)]
        return order, sum(self._seconds[name] for name in order)

    def _first_failure(self, mutant: Mutant, order: Iterable[str]) -> str:
        if not put_in(mutant.codes, self._functions):
            return "import"
        return next((name for name in order if "failed" in self._run(self._items[name])), "")


def turn_by_turn(names: Iterable[str]) -> list[str]:
    """Return names of tests in their order, but the first parameters of all tests first."""
    counts: Counter[str] = Counter()
    turns: list[tuple[int, str]] = []
    for name in names:
        turns.append((counts[_test(name)], name))
        counts[_test(name)] += 1
    return [name for _, name in sorted(turns, key=lambda turn: turn[0])]


def mirrored(module: str) -> str:
    """Return the folder of tests that mirrors the folder of a module, or the next above it."""
    folder = "tests" / Path(module).relative_to("onnxfold").parent
    return str(next(each for each in (folder, *folder.parents) if (ROOT / each).is_dir()))


def _test(name: str) -> str:
    return name.partition("[")[0]


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    pytest.skip("too long for each mutant")


def known() -> list[dict[str, Any]]:
    """Return what is noted of the tests for these sources."""
    path = _noted()
    return [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []


def _noted() -> Path:
    sources = b"".join(path.read_bytes() for path in modules())
    return KNOWN / f"{hashlib.sha256(sources).hexdigest()[:12]}.jsonl"


def _commit() -> str:
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _place(row: dict[str, str]) -> tuple[str, int, str, str]:
    return row["module"], int(row["line"]), row["before"], row["after"]


def in_a_child(work: Callable[[], str], limit_s: int) -> str:
    """Return what a forked process says, or how it ended without a word.

    Raises:
        RuntimeError: The work raised an exception.

    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        code = 2
        try:
            os.write(writer, work().encode())
            code = 0
        except Exception:  # of the child, which the parent raises with its traceback
            os.write(writer, traceback.format_exc().encode())
            code = 1
        finally:
            os._exit(code)
    os.close(writer)
    said = b""
    while part := os.read(reader, 1 << 16):
        said += part
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == 1:
        raise RuntimeError(said.decode())
    return said.decode() if not status else f"no end, or a crash: status {status}"


def spread(items: Iterable[pytest.Item], each: int) -> list[pytest.Item]:
    """Return at most so many parameters of each test, evenly spread, in the order of the tests."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_test(item.nodeid), []).append(item)
    return [group[k] for group in groups.values() for k in _places(len(group), each)]


def _places(count: int, most: int) -> list[int]:
    return sorted({int(place) for place in np.linspace(0, count - 1, min(count, most))})


def main() -> int:
    options = arguments(
        __doc__,
        {
            "--count": 20,
            "--seed": 0,
            "--modules": {"nargs": "+", "default": [""], "help": "what their paths begin with"},
            "--each": {"type": int, "default": 3, "help": "how many parameters of one test"},
            "--longest": {"type": float, "default": 4, "help": "seconds of a test; of all twice"},
            "--budget": {"type": float, "default": 60, "help": "seconds of tests of a mutant"},
            "--suites": {"nargs": "*", "help": "the tests to take, not the folders alone"},
            "--keep": {"type": Path, "default": RESULTS / "mutants.csv", "help": "the verdicts"},
        },
    )
    options.modules = tuple(options.modules)
    found = sample(options.count, options.seed)
    modules_of = (each.module for each in found if each.module.startswith(options.modules))
    suites = options.suites or sorted({mirrored(module) for module in modules_of})
    flags = ["-q", "-s", "-m", "not slow", "-p", "no:cacheprovider", "--graphs", "100"]
    return int(pytest.main([*flags, *suites], plugins=[Tester(options)]))


if __name__ == "__main__":
    sys.exit(main())
