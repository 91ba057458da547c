"""Deciding: which norms fold, which weights are centred, where a centring is inserted."""

from __future__ import annotations

from onnxfold.planning.costs import Costs
from onnxfold.planning.decide import Demand, count_foldable, decide
from onnxfold.planning.plan import Fold, Insertion, Plan, ReaderRef, WeightCentring

__all__ = [
    "Costs",
    "Demand",
    "Fold",
    "Insertion",
    "Plan",
    "ReaderRef",
    "WeightCentring",
    "count_foldable",
    "decide",
]
