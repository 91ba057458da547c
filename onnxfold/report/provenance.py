"""The origin of a report: the input and its hash, the versions, the options, the date."""

import hashlib
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from onnxfold import __version__
from onnxfold.errors import ModelError

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


def digest(path: Path) -> tuple[str, int]:
    """Return the sha256 of a file, and its size in bytes; data files are not included.

    Raises ModelError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error


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
