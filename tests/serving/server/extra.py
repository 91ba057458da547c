"""The tests of the running server need what the suite does without."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

__all__ = ["demand_extra"]


def demand_extra(*more: str) -> None:
    """Skip the calling module if MLServer, its client or another named package is missing.

    They are looked for, not imported: the first two register the same messages, and a process takes
    one.
    """
    missing = [
        name for name in ("mlserver", "tritonclient", "grpc", *more) if find_spec(name) is None
    ]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (make test-serve)", allow_module_level=True)
