"""Values of a float64 run, which the pipeline makes for the passes that need one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.array_types import Array
from onnxfold.passes.base import Settings

Keep = Callable[[ir.Value, Array], None]


@dataclass(frozen=True, slots=True)
class Observed:
    """The number of inputs of a run, and their origin in words."""

    samples: int
    data: str


class Observe(Protocol):
    """A float64 run of a model; returns the reason if there is none (pipeline/observing.py)."""

    def __call__(
        self, info: ModelInfo, settings: Settings, keep: Keep, *, data_alone: bool = False
    ) -> Observed | str: ...
