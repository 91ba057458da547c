"""Verification: both models against a float64 run of the original, on seeded inputs.

This package exports the result types; the work is in ``compare``, which is imported only to check.
"""

from onnxfold.check.result import BudgetVerification, OutputCheck, Verification

__all__ = ["BudgetVerification", "OutputCheck", "Verification"]
