"""The hash with which a report identifies its model."""

import hashlib
from pathlib import Path

from onnxfold.errors import ModelError


def digest(path: Path) -> tuple[str, int]:
    """Return the sha256 of a file, and its size in bytes; data files are not included.

    Raises ModelError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
