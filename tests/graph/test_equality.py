"""Equality of numbers and attributes: NaN equals only NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.graph.equality import numbers_key, same_attributes, same_numbers, same_tensor

FLOATS = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_is_the_same_as_nan_in_its_place_alone(dtype: type) -> None:
    first = np.array([1, np.nan, np.inf]).astype(dtype)
    assert same_numbers(first, first.copy())
    assert same_tensor(ir.Tensor(first), ir.Tensor(first.copy()))
    for other in ([np.nan, 1, np.inf], [1, 2, np.inf], [1, np.nan, -np.inf], [1, np.nan]):
        assert not same_numbers(first, np.array(other).astype(dtype))
        assert not same_tensor(ir.Tensor(first), ir.Tensor(np.array(other).astype(dtype)))


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array(["a", "b"], object)])
def test_texts_are_compared_too(array: np.ndarray[tuple[int], np.dtype[np.generic]]) -> None:
    assert same_numbers(array, array.copy())
    assert not same_numbers(array, array[::-1])


@pytest.mark.parametrize("kind", ["U", "S", object])
def test_the_key_of_texts_is_the_texts_not_where_they_lie(kind: str | type) -> None:
    texts = ["".join(letters) for letters in (("a", "bc"), ("d", "e"))]
    again = ["".join(letters) for letters in (("ab", "c"), ("d", "e"))]
    assert numbers_key(np.array(texts, kind)) == numbers_key(np.array(again, kind))
    assert numbers_key(np.array(texts, kind)) != numbers_key(np.array(texts[::-1], kind))


def _constant(value: float, alpha: float = 1.0) -> ir.Node:
    tensor = ir.Attr("value", ir.AttributeType.TENSOR, ir.Tensor(np.array([value])))
    return ir.Node("", "Constant", [], [tensor, ir.AttrFloat32("alpha", alpha)])


def test_attributes_are_the_same_where_all_numbers_are() -> None:
    assert same_attributes(_constant(1), _constant(1))
    assert not same_attributes(_constant(1), _constant(2))
    assert not same_attributes(_constant(1), _constant(1, 2.0))
    assert same_attributes(_constant(1, np.nan), _constant(1, np.nan))
    assert not same_attributes(_constant(1, np.nan), _constant(1, 0.0))


def test_attributes_of_every_kind_are_compared() -> None:
    def node(*attributes: ir.Attr) -> ir.Node:
        return ir.Node("", "Odd", [], attributes)

    kinds = (
        (ir.AttrInt64("a", 1), ir.AttrInt64("a", 2)),
        (ir.AttrString("a", "b"), ir.AttrString("a", "c")),
        (ir.AttrInt64s("a", [1, 2]), ir.AttrInt64s("a", [2, 1])),
        (ir.AttrFloat32s("a", [1.0]), ir.AttrInt64s("a", [1])),
    )
    for one, other in kinds:
        assert same_attributes(node(one), node(one))
        assert not same_attributes(node(one), node(other))
    assert not same_attributes(node(), node(kinds[0][0]))
