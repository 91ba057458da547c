"""The origin of a report: the input and its hash, the versions, the options, the date."""

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from onnxfold import __version__
from onnxfold.model_io.digest import digest

_PACKAGES = ("onnx", "onnx-ir", "numpy", "onnxruntime", "onnxruntime-gpu")


def provenance(model: Path, options: Mapping[str, str]) -> dict[str, Any]:
    """Return what is needed to produce a report again; ``options``: those that are not the default.

    The hash is the model file's; weights in data files are not included. The date is
    SOURCE_DATE_EPOCH if it is set, as reproducible builds require.

    Raises ModelError if the file cannot be read.
    """
    sha256, size = digest(model)
    return {
        "input": {"path": str(model), "bytes": size, "sha256": sha256},
        "versions": {"onnxfold": __version__, "python": sys.version.split()[0]} | _versions(),
        "options": dict(options),
        "date": _now().isoformat(timespec="seconds"),
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # a missing option
    return found


def _now() -> datetime:
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    return datetime.fromtimestamp(int(fixed), UTC) if fixed else datetime.now(UTC)
