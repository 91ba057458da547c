"""Numbers for symbolic dimensions, so that a rule is tested on small tensors of several shapes."""

import ast
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, combinations_with_replacement, count
from math import prod

import numpy as np
import numpy.typing as npt

from onnxfold.graph import AxisBlock, Dim, Fiber, Shape

Drawn = npt.NDArray[np.generic]
# Sizes of the symbols in order of their first use: distinct ones first, then ones that are equal or
# divide each other, as a model may require. Two choices must agree.
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
_SMALL = 5
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


class Sizes:
    """One choice of a number for every symbol, including unknown sizes.

    Unknown sizes get one number as well. ``smaller``: replacements of large sizes, also for
    integers that name them.
    """

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

    def fiber(self, fiber: Fiber) -> Fiber:
        """Return the fiber of the smaller tensors."""
        blocks, part = tuple(map(self._block, fiber.blocks)), fiber.part
        if part is None:
            return Fiber(blocks)
        return Fiber(blocks).within(map(self._block, part.digits), part.chosen)

    def _block(self, block: AxisBlock) -> AxisBlock:
        inner, size = (self._smaller.get(n, n) for n in (block.inner, block.size))
        outer = None if block.outer is None else self._smaller.get(block.outer, block.outer)
        return AxisBlock(block.axis, inner, size, outer)

    def fits(self, fiber: Fiber) -> bool:
        """Whether the digits of the smaller axes are the fiber's, with all of its part."""
        named = () if fiber.part is None else fiber.part.digits
        whole = all(self._block(digit).size == digit.size for digit in named)
        return whole and all(map(self._has_digits, fiber.digits))

    def _has_digits(self, block: AxisBlock) -> bool:
        if block.outer is None:
            return not {block.inner, block.size} & self._smaller.keys()
        dim, own = block.inner * block.size * block.outer, self._block(block)
        return own.inner * own.size * (own.outer or 1) == self._smaller.get(dim, dim)

    def constant(self, array: Drawn) -> Drawn:
        """Return the numbers of a constant, with sizes among its integers replaced."""
        if array.dtype.kind not in "iu" or not self._smaller:
            return array
        flat = [self._smaller.get(int(item), int(item)) for item in array.reshape(-1)]
        return np.array(flat, array.dtype).reshape(array.shape)

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
            return self._smaller.get(node.value, node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](self._value(node.left), self._value(node.right))
        if isinstance(node, ast.Name):
            return self._symbol(node.id)
        if isinstance(node, ast.Call) and len(node.args) == 1:  # floor(..)
            return self._value(node.args[0])
        raise ValueError("an expression of another kind")


def reduced(
    sizes: Collection[int], integers: Collection[int], keep: Collection[int]
) -> dict[int, int]:
    """Return smaller numbers for the large sizes along which nothing is claimed.

    Different sizes stay different, products stay products, since a Reshape may split 768 channels
    into 12 heads of 64, and each stays above possible positions along it: an integer of the region,
    or twice that.
    """
    kept, products = set(keep), _products(sizes)
    while True:
        smaller = _smaller_than(sizes, integers, kept)
        lost = {
            size
            for whole, factors in products
            if prod(smaller.get(n, n) for n in factors) != smaller.get(whole, whole)
            for size in (whole, *factors)
        }
        if not lost:
            return smaller
        kept |= lost


def _products(sizes: Collection[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Return sizes that are the product of two or three others, and these."""
    found = []
    for whole in sizes:
        factors = [n for n in sizes if 1 < n < whole and whole % n == 0]
        pairs = combinations_with_replacement(factors, 2)
        threes = combinations_with_replacement(factors, 3)
        found += [(whole, each) for each in chain(pairs, threes) if prod(each) == whole]
    return found


def _smaller_than(
    sizes: Collection[int], integers: Collection[int], kept: Collection[int]
) -> dict[int, int]:
    smaller: dict[int, int] = {}
    used: set[int] = set()
    for size in sorted(sizes):
        found = size
        if size > _LARGE and size not in kept:
            below = [smaller.get(n, n) for n in integers if n < size]
            least = max((2 * n + 3 for n in below), default=_SMALL)
            multiples = [n for n in _multiples(size, smaller) if n >= least and n not in used]
            found = min(multiples, default=next(n for n in count(least) if n not in used))
        if found < size:
            smaller[size] = found
        used.add(smaller.get(size, size))
    return smaller


def _multiples(size: int, smaller: Mapping[int, int]) -> Iterator[int]:
    """Yield a size as a multiple of sizes that are reduced now."""
    for factor, small in smaller.items():
        rest, remainder = divmod(size, factor)
        if not remainder:
            yield small * smaller.get(rest, rest)


def broadcast_sizes(shapes: Iterable[Shape]) -> dict[str, int]:
    """Return the sizes that symbols must have for tensors of these shapes to broadcast."""
    forced: dict[str, int] = {}
    aligned = [shape[::-1] for shape in shapes]
    for axis in range(max(map(len, aligned), default=0)):
        dims = {shape[axis] for shape in aligned if len(shape) > axis}
        numbers = [dim for dim in dims if isinstance(dim, int) and dim > 1]
        if len(numbers) == 1:
            forced.update({dim: numbers[0] for dim in dims if isinstance(dim, str)})
    return forced


def symbols(shapes: Iterable[Shape]) -> tuple[str, ...]:
    """Return the names of unknown sizes, also those in expressions."""
    texts = ("?" if dim is None else dim for shape in shapes for dim in shape
             if not isinstance(dim, int))  # fmt: skip
    names = (name for text in texts for name in re.findall(r"[A-Za-z_?][\w.?]*", text))
    return tuple(dict.fromkeys(name for name in names if name not in ("floor", "ceil")))
