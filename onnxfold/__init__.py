"""onnxfold: the same function with cheaper normalization.

Every LayerNorm of an ONNX model that can exactly become an RMSNorm does; the weights before it
carry the centring.  ``import onnxfold`` is light: each name below is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxfold.errors import (
        InvariantError,
        ModelError,
        OnnxfoldError,
        UnchangedError,
        UsageError,
        VerificationError,
    )
    from onnxfold.lower.target import Target
    from onnxfold.pipeline import Options, Result, inspect, optimize, verify
    from onnxfold.planning.plan import Plan
    from onnxfold.runtime import get_library_path, register, session
    from onnxfold.verification import Verification

__all__ = [
    "InvariantError",
    "ModelError",
    "OnnxfoldError",
    "Options",
    "Plan",
    "Result",
    "Target",
    "UnchangedError",
    "UsageError",
    "Verification",
    "VerificationError",
    "__version__",
    "get_library_path",
    "inspect",
    "optimize",
    "register",
    "session",
    "verify",
]

__version__ = "0.1.0"

_HOME = {
    "InvariantError": "errors",
    "ModelError": "errors",
    "OnnxfoldError": "errors",
    "Options": "pipeline",
    "Plan": "planning.plan",
    "Result": "pipeline",
    "Target": "lower.target",
    "UnchangedError": "errors",
    "UsageError": "errors",
    "Verification": "verification",
    "VerificationError": "errors",
    "get_library_path": "runtime",
    "inspect": "pipeline",
    "optimize": "pipeline",
    "register": "runtime",
    "session": "runtime",
    "verify": "pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'onnxfold' has no attribute '{name}'")
    from importlib import import_module

    loaded = getattr(import_module(f"onnxfold.{_HOME[name]}"), name)
    globals()[name] = loaded
    return loaded


def __dir__() -> list[str]:
    return sorted(__all__)
