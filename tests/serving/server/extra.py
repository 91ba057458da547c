"""The tests of the running server need what the suite does without."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

__all__ = ["demand_extra"]


def demand_extra() -> None:
    """Skip the calling module where MLServer or its client is missing.

    Both are looked for, not imported: they register the same messages, and one process takes one.
    """
    missing = [name for name in ("mlserver", "tritonclient", "grpc") if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (make test-serve)", allow_module_level=True)
