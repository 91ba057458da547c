"""The hash by which a report names the model that it is of."""

import hashlib
from pathlib import Path

from onnxfold.errors import ModelError


def digest(path: Path) -> tuple[str, int]:
    """Return the sha256 of a file, and its bytes; weights in data files are not part of it.

    Raises ModelError when the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
