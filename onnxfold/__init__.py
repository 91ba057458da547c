"""onnxfold: the same function with cheaper normalization.

Every LayerNorm of an ONNX model that can exactly become an RMSNorm does; the weights upstream carry
the centering. ``import onnxfold`` is light: each name below is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxfold.api import bench, convert, diff, inspect, measure, optimize, tune, verify
    from onnxfold.check import BudgetVerification, Verification
    from onnxfold.errors import (
        DataError,
        DependencyError,
        InvariantError,
        ModelError,
        OnnxfoldError,
        UnchangedError,
        UsageError,
        VerificationError,
    )
    from onnxfold.inputs.data.shards import DataOptions
    from onnxfold.options import Conversion, Options
    from onnxfold.passes.plan import Plan
    from onnxfold.pipeline import Result
    from onnxfold.report.inspection import Inspection
    from onnxfold.runtime.bench import Benchmark
    from onnxfold.runtime.library import get_library_path, register, session
    from onnxfold.target import Target
    from onnxfold.tuning.options import TuneOptions
    from onnxfold.tuning.tune_result import TuneResult

__all__ = [
    "Benchmark",
    "BudgetVerification",
    "Conversion",
    "DataError",
    "DataOptions",
    "DependencyError",
    "Inspection",
    "InvariantError",
    "ModelError",
    "OnnxfoldError",
    "Options",
    "Plan",
    "Result",
    "Target",
    "TuneOptions",
    "TuneResult",
    "UnchangedError",
    "UsageError",
    "Verification",
    "VerificationError",
    "__version__",
    "bench",
    "convert",
    "diff",
    "get_library_path",
    "inspect",
    "measure",
    "optimize",
    "register",
    "rotate",
    "session",
    "tune",
    "verify",
]

__version__ = "0.1.0"

_HOME = {
    "Benchmark": "runtime.bench",
    "BudgetVerification": "check.result",
    "Conversion": "options",
    "DataError": "errors",
    "DataOptions": "inputs.data.shards",
    "DependencyError": "errors",
    "Inspection": "report.inspection",
    "InvariantError": "errors",
    "ModelError": "errors",
    "OnnxfoldError": "errors",
    "Options": "options",
    "Plan": "passes.plan",
    "Result": "pipeline",
    "Target": "target",
    "TuneOptions": "tuning.options",
    "TuneResult": "tuning.tune_result",
    "UnchangedError": "errors",
    "UsageError": "errors",
    "Verification": "check.result",
    "VerificationError": "errors",
    "bench": "api",
    "convert": "api",
    "diff": "api",
    "get_library_path": "runtime.library",
    "inspect": "api",
    "measure": "api",
    "optimize": "api",
    "register": "runtime.library",
    "rotate": "api",
    "session": "runtime.library",
    "tune": "api",
    "verify": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'onnxfold' has no attribute '{name}'")
    from importlib import import_module

    try:
        loaded = getattr(import_module(f"onnxfold.{_HOME[name]}"), name)
    except Exception as error:  # raised again, unless packages of other versions explain it
        from onnxfold.errors import misfit

        unfit = misfit(error)
        if unfit is None:
            raise
        raise unfit from error
    globals()[name] = loaded
    return loaded


def __dir__() -> list[str]:
    return sorted(__all__)
