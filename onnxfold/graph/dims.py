"""Dimensions that may be symbolic, and products of them.

A dimension is an ``int``, a ``str`` (a symbol: equal strings are equal sizes) or ``None`` (unknown,
and not known to equal another ``None``). A product of dimensions is a :class:`Extent`: an integer
times a multiset of symbols, so that ``B*T*768`` equals ``T*768*B``.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

Dim = int | str | None
Shape = tuple[Dim, ...]


def is_number(dim: Dim) -> bool:
    """Whether a dimension is a known number."""
    return isinstance(dim, int)


# PyTorch writes the number first, "4*s77".
_PLAIN_PRODUCT = re.compile(r"([0-9]+\s*\*\s*)*[A-Za-z_][\w.]*(\s*\*\s*[A-Za-z_0-9][\w.]*)*")


@dataclass(frozen=True, slots=True)
class Extent:
    """A product ``factor * symbols[0] * symbols[1] * ...`` with sorted symbols."""

    factor: int
    symbols: tuple[str, ...] = ()

    def __mul__(self, other: "Extent") -> "Extent":
        return Extent(self.factor * other.factor, tuple(sorted(self.symbols + other.symbols)))

    def __floordiv__(self, other: "Extent") -> "Extent | None":
        """Return the quotient; None if it is not a product, or the divisor may not be a size."""
        if other.factor <= 0 or self.factor % other.factor:
            return None
        left = Counter(self.symbols)
        left.subtract(other.symbols)
        if any(count < 0 for count in left.values()):
            return None
        return Extent(self.factor // other.factor, tuple(sorted(left.elements())))

    @property
    def dim(self) -> Dim:
        """The product as one size, or None if its name would be split again by :func:`extent`."""
        if not self.symbols or self == Extent(1, self.symbols[:1]):
            return self.symbols[0] if self.symbols else self.factor
        if self.factor <= 0 or not all(map(_PLAIN_PRODUCT.fullmatch, self.symbols)):
            return None
        return "*".join((*self.symbols, *([str(self.factor)] if self.factor > 1 else ())))


ONE = Extent(1)


def _of_symbol(symbol: str) -> Extent:
    """Split ``"a*b*4"`` or ``"4*a*b"`` into factors; any other expression is one symbol."""
    if not _PLAIN_PRODUCT.fullmatch(symbol):
        return Extent(1, (symbol,))
    factor, symbols = 1, []
    for part in (piece.strip() for piece in symbol.split("*")):
        if part.isdecimal():
            factor *= int(part)
        else:
            symbols.append(part)
    return Extent(factor, tuple(sorted(symbols)))


def in_order(dim: Dim) -> Dim:
    """Return the size with sorted factors in its name, so that equal products have equal names."""
    return _of_symbol(dim).dim or dim if isinstance(dim, str) and "*" in dim else dim


def extent(dims: Iterable[Dim]) -> Extent | None:
    """Return the product of ``dims``, or None if one of them is unknown."""
    product = ONE
    for dim in dims:
        if dim is None:
            return None
        product = product * (Extent(dim) if isinstance(dim, int) else _of_symbol(dim))
    return product
