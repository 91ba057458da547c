"""Mutants of decisions, and probes of the same decisions.

A mutant has one decision turned around: a comparison, an `and` or `or`, a `not`.  A probe notes
where the mutant would have come out otherwise.  Both are new code of living functions; no file
changes.
"""

from __future__ import annotations

import ast
import builtins
import gc
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "check",
    "graph",
    "inputs",
    "model_io",
    "norms",
    "recognition",
    "operators",
    "passes",
    "proof",
    "shapes",
    "streams",
    "targets",
    "weights",
)
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
_ORDERS: dict[type[ast.cmpop], str] = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
# What the probes are called among the builtins, the same names in every module.
_PROBES = "_noted_reached", "_noted_order", "_noted_start", "_noted_end"


Functions = dict[CodeType, list[FunctionType]]
Turns = Callable[[ast.AST], Iterator[ast.expr]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One decision of one module, what it becomes, and the code objects that change."""

    number: int
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


def turned(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a decision may be turned into."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            turn = _TURNED[type(operator)]()
            yield ast.Compare(
                node.left, [*node.ops[:index], turn, *node.ops[index + 1 :]], node.comparators
            )
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


class _Swap(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def mutants_of(path: Path, first: int = 0, turns: Turns = turned) -> Iterator[Callable[[], Mutant]]:
    """Yield a maker of each mutant of a module; they are numbered from ``first`` on."""
    source = path.read_text()
    for number in range(len(_pairs(ast.parse(source), turns))):
        yield partial(_mutant, path, source, number, first, turns)


def _pairs(tree: ast.AST, turns: Turns = turned) -> list[tuple[ast.expr, ast.expr]]:
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.expr))
    return [(node, new) for node in nodes for new in turns(node)]


def _mutant(path: Path, source: str, number: int, first: int, turns: Turns) -> Mutant:
    tree = ast.parse(source)
    old, new = _pairs(tree, turns)[number]
    words = old.lineno, ast.unparse(old), ast.unparse(new)
    ast.fix_missing_locations(_Swap(old, new).visit(tree))
    module = str(path).removeprefix(f"{ROOT}/")
    return Mutant(first + number, module, *words, _codes(path, source, tree))


def _codes(path: Path, source: str, tree: ast.Module) -> dict[CodeType, CodeType]:
    before = compile(source, str(path), "exec", dont_inherit=True)
    return dict(_changed(before, compile(tree, str(path), "exec", dont_inherit=True)))


class Noted:
    """The numbers of the decisions whose mutant would have come out otherwise."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        # Begun, and ended by an exception: whether the mutant would have come there is not known.
        self._begun: Counter[int] = Counter()

    def put_in(self, paths: Iterable[Path], functions: Functions) -> int:
        """Have every decision of these modules noted; return how many functions are living."""
        probes = self._numbers.add, self._order, self._start, self._end
        for name, probe in zip(_PROBES, probes, strict=True):
            setattr(builtins, name, probe)
        codes: dict[CodeType, CodeType] = {}
        first = 0
        for path in paths:
            source = path.read_text()
            tree = ast.parse(source)
            pairs = _pairs(tree)
            _Prober(pairs, first).visit(tree)
            first += len(pairs)
            codes |= _codes(path, source, ast.fix_missing_locations(tree))
        return put_in(codes, functions)

    def take(self) -> list[int]:
        """Return what was noted since the last call."""
        numbers = sorted(self._numbers | {number for number in self._begun if self._begun[number]})
        self._numbers.clear()
        self._begun.clear()
        return numbers

    def _order(self, number: int, name: str, one: Any, other: Any) -> Any:
        same = one == other
        if isinstance(same, np.ndarray) or same:
            self._numbers.add(number)
        return getattr(operator, name)(one, other)

    def _start(self, number: int) -> None:
        self._begun[number] += 1

    def _end(self, number: int, unchanged: bool, _start: None, value: Any) -> Any:
        self._begun[number] -= 1
        if not isinstance(value, bool | np.bool_) or value != unchanged:
            self._numbers.add(number)
        return value


class _Prober(ast.NodeTransformer):
    """Puts the probes of :class:`Noted` around the decisions of a module."""

    def __init__(self, pairs: Iterable[tuple[ast.AST, ast.expr]], first: int) -> None:
        self._numbers: dict[ast.AST, list[int]] = {}
        for number, (node, _) in enumerate(pairs, first):
            self._numbers.setdefault(node, []).append(number)

    def visit(self, node: ast.AST) -> ast.AST:
        numbers = self._numbers.get(node, [])
        self.generic_visit(node)
        if not isinstance(node, ast.expr) or not numbers:
            return node
        reached, order, start, end = _PROBES
        if isinstance(node, ast.BoolOp):
            unchanged = isinstance(node.op, ast.And)
            return _call(end, *numbers, unchanged, _call(start, *numbers), node)
        if isinstance(node, ast.Compare) and len(numbers) == 1 and type(node.ops[0]) in _ORDERS:
            return _call(order, *numbers, _ORDERS[type(node.ops[0])], node.left, *node.comparators)
        both = ast.Tuple([*(_call(reached, number) for number in numbers), node], ast.Load())
        return ast.Subscript(both, ast.Constant(-1), ast.Load())


def _call(name: str, *arguments: Any) -> ast.expr:
    values = [one if isinstance(one, ast.expr) else ast.Constant(one) for one in arguments]
    return ast.Call(ast.Name(name, ast.Load()), values, [])


def _changed(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the code objects of functions, methods and lambdas that differ, the outermost first."""
    if before != after:
        yield before, after
        inner = [code for code in before.co_consts if isinstance(code, CodeType)]
        others = [code for code in after.co_consts if isinstance(code, CodeType)]
        if len(inner) == len(others):  # otherwise a lambda went with what is left out
            for one, other in zip(inner, others, strict=True):
                yield from _changed(one, other)


def living() -> Functions:
    """Return the functions that live, by their code; looking for them touches every object."""
    found: Functions = {}
    for one in gc.get_objects():
        if type(one) is FunctionType:
            found.setdefault(one.__code__, []).append(one)
    return found


def put_in(codes: dict[CodeType, CodeType], functions: Functions) -> int:
    """Give every living function its new code; return how many there are."""
    changed = [(one, codes[code]) for code in codes for one in functions.get(code, ())]
    for one, code in changed:
        one.__code__ = code
    return len(changed)


def modules() -> list[Path]:
    """Return the modules of the parts."""
    return sorted(path for part in PARTS for path in (ROOT / "onnxfold" / part).rglob("*.py"))


def sample(count: int, seed: int) -> Iterator[Mutant]:
    """Yield mutants of the parts, drawn without putting back."""
    every: list[Callable[[], Mutant]] = []
    for path in modules():
        every += mutants_of(path, len(every))
    for index in np.random.default_rng(seed).permutation(len(every))[:count]:
        yield every[index]()
