"""Verification: both models against a float64 run of the original, on seeded inputs.

What it says is here; what does it, in ``compare``, is imported by the runs that check.
"""

from onnxfold.check.result import BudgetVerification, ModelSource, OutputCheck, Verification

__all__ = ["BudgetVerification", "ModelSource", "OutputCheck", "Verification"]
