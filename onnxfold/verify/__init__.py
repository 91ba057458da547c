"""Verification: both models against a float64 run of the original, on seeded inputs."""

from __future__ import annotations

from onnxfold.verify.evidence import FLOAT64_LIMIT_BYTES
from onnxfold.verify.locate import locate
from onnxfold.verify.result import ModelSource, OutputCheck, Verification
from onnxfold.verify.verification import DEFAULT_LIMIT, verify

__all__ = [
    "DEFAULT_LIMIT",
    "FLOAT64_LIMIT_BYTES",
    "ModelSource",
    "OutputCheck",
    "Verification",
    "locate",
    "verify",
]
