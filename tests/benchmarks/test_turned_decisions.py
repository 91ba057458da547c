"""The mutation tester turns one decision around in the functions that live, and in no file."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from itertools import product
from pathlib import Path
from types import CodeType, ModuleType

import pytest

pytest.importorskip("resource", reason="limits of processor time are for Unix")

from benchmarks.decisions import Noted, living, mutants_of, put_in
from benchmarks.mutants import in_a_child, mirrored, turn_by_turn

SOURCE = """
from functools import cache

LIMIT = 3 if 1 < 2 else 4

class Site:
    def small(self, x):
        return x < 3 and not self.odd(x)

    def odd(self, x):
        return any(x == y for y in (1, 4))

first = lambda x: x in (1, 2)

def refuses(x):
    return x == 2 or [][x]

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


CALLS = [*product(("small", "odd", "first", "refuses", "kept"), range(5))]


def _value(module: ModuleType, name: str, x: int) -> str:
    try:
        return repr(getattr(module.Site() if name in ("small", "odd") else module, name)(x))
    except IndexError:
        return "refused"


def _values(module: ModuleType) -> list[str]:
    return [_value(module, *call) for call in CALLS]


def test_every_mutant_within_a_function_changes_what_it_computes(
    toy: tuple[Path, ModuleType],
) -> None:
    path, module = toy
    before = _values(module)
    module.kept.cache_clear()
    found = {}

    alive = living()

    def seen(codes: dict[CodeType, CodeType]) -> str:
        live = put_in(codes, alive)
        return f"{live} {_values(module) != before}"

    for mutant in (make() for make in mutants_of(path)):
        found[f"{mutant.before} -> {mutant.after}"] = in_a_child(partial(seen, mutant.codes), 60)
    assert found == {
        "1 < 2 -> 1 <= 2": "0 False",
        "x < 3 -> x <= 3": "1 True",
        "x < 3 and (not self.odd(x)) -> x < 3 or not self.odd(x)": "1 True",
        "not self.odd(x) -> self.odd(x)": "1 True",
        "x == y -> x != y": "1 True",
        "x in (1, 2) -> x not in (1, 2)": "1 True",
        "x == 2 or [][x] -> x == 2 and [][x]": "1 True",
        "x == 2 -> x != 2": "1 True",
        "x is None -> x is not None": "1 True",
        "x is None or x > 1 -> x is None and x > 1": "1 True",
        "x > 1 -> x >= 1": "1 True",
    }
    assert _values(module) == before
    assert path.read_text() == SOURCE


def test_a_call_is_noted_where_a_mutant_computes_another_value(
    toy: tuple[Path, ModuleType],
) -> None:
    path, module = toy
    noted, alive = Noted(), living()

    def probed() -> str:
        noted.put_in([path], alive)
        return json.dumps([(_value(module, *call), noted.take()) for call in CALLS])

    def plain(codes: dict[CodeType, CodeType]) -> str:
        put_in(codes, alive)
        return json.dumps(_values(module))

    values = json.loads(in_a_child(lambda: json.dumps(_values(module)), 60))
    rows = json.loads(in_a_child(probed, 60))
    assert [value for value, _ in rows] == values
    calls = {}
    for mutant in (make() for make in mutants_of(path)):
        others = json.loads(in_a_child(partial(plain, mutant.codes), 60))
        found = {call for call, row in zip(CALLS, rows, strict=True) if mutant.number in row[1]}
        differ = zip(CALLS, values, others, strict=True)
        assert {call for call, one, other in differ if one != other} <= found
        calls[mutant.after] = found
    assert calls["x <= 3"] == {("small", 3)}
    assert calls["x < 3 or not self.odd(x)"] == {("small", 1), ("small", 3), ("small", 4)}
    assert calls["x == 2 and [][x]"] == {("refuses", x) for x in range(5)}
    assert calls["x >= 1"] == {("kept", 1)}
    assert calls["1 <= 2"] == set()


def test_what_does_not_end_or_crashes_is_told() -> None:
    def endless() -> str:
        while True:
            pass

    assert in_a_child(lambda: "said", 60) == "said"
    assert in_a_child(endless, 1).startswith("no end, or a crash")
    assert in_a_child(lambda: sys.exit(3), 60).startswith("no end, or a crash")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        in_a_child(lambda: str(1 / 0), 60)


@pytest.mark.parametrize(
    ("module", "folder"),
    [
        ("onnxfold/recognition/algebra/forms.py", "tests/recognition"),
        ("onnxfold/passes/affine/plan.py", "tests/passes/affine"),
        ("onnxfold/passes/places.py", "tests/passes"),
    ],
)
def test_a_module_is_tried_by_the_tests_that_mirror_it(module: str, folder: str) -> None:
    assert mirrored(module) == folder


def test_the_parameters_of_a_test_wait_for_those_of_others() -> None:
    assert turn_by_turn(["b[1]", "b[2]", "a", "b[3]"]) == ["b[1]", "a", "b[2]", "b[3]"]
