"""Facts about a version of a model that its readers name without knowing how they are found."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph.model_info import ModelInfo

T = TypeVar("T")


class Fact(Generic[T]):
    """A fact that one module finds, once for each version, and that others read.

    The module registers its finder when it is imported, with :meth:`found_by`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._find: Callable[[ModelInfo], T] | None = None

    def found_by(self, find: Callable[[ModelInfo], T]) -> Callable[[ModelInfo], T]:
        """Register the finder; returns the function that finds once for each version."""
        self._find = find
        return self.of

    def of(self, info: ModelInfo) -> T:
        """Return the fact about a version; raises InvariantError if no module finds it."""
        if self not in info.facts:
            if self._find is None:
                raise InvariantError(f"nothing that is imported finds the {self._name} of a model")
            info.facts[self] = self._find(info)
        found: T = info.facts[self]
        return found


SIZES: Fact[Callable[[ir.Value | None], Sequence[object] | None]] = Fact("sizes")
"""The entries of a vector of sizes, numbers and symbols; None if they are not known."""
