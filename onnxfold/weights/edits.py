"""Edits of a weight: centering, scaling, shifting; each is an entry of a list of edits."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from onnxfold.graph import Fiber
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Float64


class Deferred(Protocol):
    """A vector that costs a pass over a weight, computed on first use."""

    @property
    def value(self) -> Float64:
        """The vector."""
        ...


@dataclass(frozen=True, slots=True)
class Centre:
    """W becomes W - mean(W) along ``fiber``."""

    fiber: Fiber


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """W becomes g * W, with one element of g for each channel."""

    channels: Channels
    vector: Float64


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """b becomes b + s, with one element of s for each channel."""

    channels: Channels
    vector: Float64 | Deferred

    @property
    def costly(self) -> bool:
        """Whether s must still be computed from a weight."""
        return not isinstance(self.vector, np.ndarray)

    def values(self) -> Float64:
        """Return s."""
        return self.vector if isinstance(self.vector, np.ndarray) else self.vector.value


Edit = Centre | Scale | Shift
