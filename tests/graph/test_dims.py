"""Products of sizes and their quotients."""

from __future__ import annotations

from itertools import product

import pytest

from onnxfold.graph.dims import Dim, Extent, extent, in_order

PRODUCTS = [
    Extent(factor, symbols)
    for factor in (-2, 0, 1, 2, 4, 6)
    for symbols in ((), ("b",), ("b", "t"), ("b", "b"))
]


@pytest.mark.parametrize("other", PRODUCTS)
def test_a_quotient_times_the_divisor_is_the_dividend(other: Extent) -> None:
    for whole in PRODUCTS:
        quotient = whole // other
        if quotient is not None:
            assert quotient * other == whole
        if other.factor <= 0:
            assert quotient is None  # it may not be a size
    for part in PRODUCTS:
        assert (part * other) // other == (part if other.factor > 0 else None)


@pytest.mark.parametrize(
    ("whole", "name"),
    [
        (Extent(6), 6),
        (Extent(1, ("b",)), "b"),
        (Extent(4, ("b", "t")), "b*t*4"),
        (Extent(1, ("b", "t")), "b*t"),
        (Extent(0, ("b",)), None),
        (Extent(-2, ("b",)), None),
        (Extent(2, ("b + 1",)), None),
    ],
)
def test_the_name_of_a_product_is_read_as_the_product(whole: Extent, name: Dim) -> None:
    assert whole.dim == name
    if name is not None:
        assert extent([name]) == whole


def test_a_product_is_known_where_all_sizes_are() -> None:
    for dims in product((2, "b", None), repeat=2):
        assert (extent(dims) is None) == (None in dims)


@pytest.mark.parametrize(
    ("dim", "ordered"),
    [
        ("t*b", "b*t"),
        ("b*t", "b*t"),
        ("t*4 * b", "b*t*4"),
        ("t*2*3", "t*6"),
        ("4*s77", "s77*4"),
        ("2*3 * t*b", "b*t*6"),
        ("4*5", "4*5"),
        ("b*4²", "b*4²"),
        ("(t + 1)*b", "(t + 1)*b"),
        ("b", "b"),
        (3, 3),
        (None, None),
    ],
)
def test_equal_products_have_equal_names(dim: Dim, ordered: Dim) -> None:
    assert in_order(dim) == ordered
    assert extent([in_order(dim)]) == extent([dim])
