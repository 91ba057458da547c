"""Arrays by name in a file that another process reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.graph.array_types import Array

_MARK = "_"  # before names, some of which are keywords of numpy's function


def store(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays under arbitrary names."""
    marked: dict[str, Any] = {_MARK + name: array for name, array in arrays.items()}
    np.savez(path, **marked)


def stored(path: Path) -> dict[str, Array]:
    """Return the arrays of a file."""
    with np.load(path, allow_pickle=False) as archive:
        return {name.removeprefix(_MARK): archive[name] for name in archive.files}
