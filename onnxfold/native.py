"""Where the libraries are that are built with the package, if a compiler was there."""

from pathlib import Path

import onnxfold


def built(name: str) -> Path | None:
    """The absolute path of a library, None where it was not built."""
    # An editable install keeps what it builds apart from the sources: the package has two folders.
    places = (Path(folder).absolute() / "_native" / name for folder in onnxfold.__path__)
    return next((place for place in places if place.is_file()), None)
