"""The mutation tester turns one decision around in the functions that live, and in no file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("resource", reason="limits of processor time are for Unix")

from benchmarks.mutants import in_a_child, mutants_of, put_in

SOURCE = """
from functools import cache

LIMIT = 3 if 1 < 2 else 4

class Site:
    def small(self, x):
        return x < 3 and not self.odd(x)

    def odd(self, x):
        return any(x == y for y in (1, 4))

first = lambda x: x in (1, 2)

@cache
def kept(x):
    return x is None or x > 1
"""


@pytest.fixture
def toy(tmp_path: Path) -> tuple[Path, ModuleType]:
    path = tmp_path / "toy.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("toy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return path, module


def _numbers(module: ModuleType) -> list[object]:
    site = module.Site()
    return [f(x) for x in range(5) for f in (site.small, site.odd, module.first, module.kept)]


def test_every_mutant_within_a_function_changes_what_it_computes(
    toy: tuple[Path, ModuleType],
) -> None:
    path, module = toy
    before = _numbers(toy[1])
    module.kept.cache_clear()
    found = {}
    for make in mutants_of(path):
        mutant = make()
        live = in_a_child(lambda codes=mutant.codes: str(put_in(codes)), 60)  # type: ignore[misc]
        changed = in_a_child(
            lambda codes=mutant.codes: str((put_in(codes), _numbers(module) != before)[1]),  # type: ignore[misc]
            60,
        )
        found[f"{mutant.before} -> {mutant.after}"] = (live, changed)
    assert found == {
        "1 < 2 -> 1 <= 2": ("0", "False"),
        "x < 3 -> x <= 3": ("1", "True"),
        "x < 3 and (not self.odd(x)) -> x < 3 or not self.odd(x)": ("1", "True"),
        "not self.odd(x) -> self.odd(x)": ("1", "True"),
        "x == y -> x != y": ("1", "True"),
        "x in (1, 2) -> x not in (1, 2)": ("1", "True"),
        "x is None -> x is not None": ("1", "True"),
        "x is None or x > 1 -> x is None and x > 1": ("1", "True"),
        "x > 1 -> x >= 1": ("1", "True"),
    }
    assert _numbers(module) == before
    assert path.read_text() == SOURCE


def test_what_does_not_end_or_crashes_is_told() -> None:
    def endless() -> str:
        while True:
            pass

    assert in_a_child(lambda: "said", 60) == "said"
    assert in_a_child(endless, 1).startswith("no end, or a crash")
    assert in_a_child(lambda: sys.exit(3), 60).startswith("no end, or a crash")
