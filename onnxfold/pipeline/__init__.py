"""The pipeline: the passes in order, their proofs, the check, and what is left out on failure."""

from onnxfold.pipeline.folding import (
    AFFINE_PASSES,
    PASSES,
    Folded,
    decide_all,
    fold,
    unwanted,
)
from onnxfold.pipeline.run import Result, run
from onnxfold.pipeline.step import LeftOut

__all__ = [
    "AFFINE_PASSES",
    "PASSES",
    "Folded",
    "LeftOut",
    "Result",
    "decide_all",
    "fold",
    "run",
    "unwanted",
]
