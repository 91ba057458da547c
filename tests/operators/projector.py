"""The projector along a fiber by explicit enumeration of indices: the oracle's own arithmetic.

Every element of an array belongs to one set: its multi-index with the fiber's digits struck out.
Nothing here comes from onnxfold/weights/means.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onnxfold.graph import Fiber

__all__ = ["Float64", "mean_along", "project", "set_numbers"]

Float64 = npt.NDArray[np.float64]


def set_numbers(shape: Sequence[int], fiber: Fiber) -> npt.NDArray[np.int64]:
    """For each element in row-major order, the number of its set."""
    keys: list[tuple[int, ...]] = []
    for index in np.ndindex(*shape):
        key = list(index)
        for block in fiber.blocks:
            digit = (index[block.axis] // block.inner) % block.size
            key[block.axis] -= digit * block.inner
        keys.append(tuple(key))
    number: dict[tuple[int, ...], int] = {}
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)


def mean_along(array: npt.NDArray[np.generic], fiber: Fiber) -> Float64:
    """The mean of each element's set, in the shape of the array; 0 outside the fiber's part."""
    sets = set_numbers(array.shape, fiber)
    flat = np.asarray(array, dtype=np.float64).reshape(-1)
    if flat.size == 0:
        return np.zeros(array.shape)
    count = np.bincount(sets)
    total = np.bincount(sets, weights=flat)
    if len(set(count.tolist())) != 1:
        raise AssertionError(f"{fiber} does not cut shape {array.shape} into equal sets")
    means = np.asarray((total / count)[sets].reshape(array.shape), dtype=np.float64)
    return np.where(_in_part(array.shape, fiber), means, 0.0)


def _in_part(shape: Sequence[int], fiber: Fiber) -> npt.NDArray[np.bool_]:
    """Whether each element is of a set that the fiber is of."""
    found = np.ones(shape, dtype=bool)
    for index in np.ndindex(*shape) if fiber.part is not None else ():
        number = 0
        for digit in fiber.part.digits if fiber.part is not None else ():
            number = number * digit.size + index[digit.axis] // digit.inner % digit.size
        found[index] = fiber.part is None or fiber.part.chosen[number]
    return found


def project(array: npt.NDArray[np.generic], fiber: Fiber) -> Float64:
    """P x = x - mean(x)."""
    return np.asarray(np.asarray(array, dtype=np.float64) - mean_along(array, fiber))
