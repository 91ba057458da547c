"""Numbers for symbolic dimensions, so that a rule is tested on small tensors of several shapes."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from onnxfold.graph import Dim, Shape

__all__ = ["SAMPLINGS", "Sizes", "broadcast_sizes", "reduced"]

# Sizes of the symbols in order of their first use: distinct ones first, then such as a model may
# demand that divides them or sets them equal.  Two samplings must agree.
SAMPLINGS: tuple[tuple[int, ...], ...] = (
    (3, 4, 5, 7, 6, 9, 8),
    (5, 3, 6, 4, 7, 8, 10),
    (4,),
    (6,),
    (16,),
    (24,),
    (1,),
    (2,),
)
_LARGE = 16
_SMALL = (5, 7, 6, 9, 10, 11, 13, 14, 15, 8)
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


class Sizes:
    """One choice of a number for every symbol; what is unknown gets one number as well."""

    def __init__(
        self,
        numbers: tuple[int, ...],
        smaller: Mapping[int, int],
        forced: Mapping[str, int] | None = None,
    ):
        self._numbers, self._smaller = numbers, smaller
        self._symbols: dict[str, int] = dict(forced or {})

    @property
    def reduced(self) -> bool:
        """Whether large sizes are replaced by smaller ones."""
        return bool(self._smaller)

    def of(self, shape: Shape) -> tuple[int, ...]:
        """Return the shape in numbers."""
        return tuple(self._number(dim) for dim in shape)

    def _number(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return self._smaller.get(dim, dim)
        return self._symbol("?" if dim is None else dim)

    def _symbol(self, text: str) -> int:
        if text not in self._symbols:
            found = None if re.fullmatch(r"[\w.?]+", text) else self._evaluated(text)
            if found is None:
                found = self._numbers[len(self._symbols) % len(self._numbers)]
            self._symbols[text] = found
        return self._symbols[text]

    def _evaluated(self, text: str) -> int | None:
        try:
            return max(1, self._value(ast.parse(text, mode="eval").body))
        except (ArithmeticError, SyntaxError, ValueError):
            return None

    def _value(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](self._value(node.left), self._value(node.right))
        if isinstance(node, ast.Name):
            return self._symbol(node.id)
        if isinstance(node, ast.Call) and len(node.args) == 1:  # floor(..)
            return self._value(node.args[0])
        raise ValueError("an expression of another kind")


def reduced(shapes: Iterable[Shape], keep: Collection[int]) -> dict[int, int]:
    """Return smaller numbers for the large sizes that nothing is claimed along.

    Equal sizes stay equal and different ones different.
    """
    dims = {dim for shape in shapes for dim in shape if isinstance(dim, int) and dim > _LARGE}
    return dict(zip(sorted(dims - set(keep)), _SMALL, strict=False))


def broadcast_sizes(shapes: Iterable[Shape]) -> dict[str, int]:
    """Return the sizes that symbols must have so that tensors of these shapes broadcast."""
    forced: dict[str, int] = {}
    aligned = [shape[::-1] for shape in shapes]
    for axis in range(max(map(len, aligned), default=0)):
        dims = {shape[axis] for shape in aligned if len(shape) > axis}
        numbers = [dim for dim in dims if isinstance(dim, int) and dim > 1]
        if len(numbers) == 1:
            forced.update({dim: numbers[0] for dim in dims if isinstance(dim, str)})
    return forced
