"""Verification: both models against a float64 run of the original, on seeded inputs."""

from __future__ import annotations

from onnxfold.verification.compare import DEFAULT_LIMIT, verify
from onnxfold.verification.evidence import FLOAT64_LIMIT_BYTES
from onnxfold.verification.locate import locate
from onnxfold.verification.result import ModelSource, OutputCheck, Verification

__all__ = [
    "DEFAULT_LIMIT",
    "FLOAT64_LIMIT_BYTES",
    "ModelSource",
    "OutputCheck",
    "Verification",
    "locate",
    "verify",
]
