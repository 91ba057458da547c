"""Where the libraries are that are built with the package, if a compiler was there."""

from collections.abc import Iterator
from pathlib import Path

import onnxfold


def built(name: str) -> Path | None:
    """The absolute path of a library, None where it was not built."""
    places = (folder.absolute() / "_native" / name for folder in _folders())
    return next((place for place in places if place.is_file()), None)


def _folders() -> Iterator[Path]:
    # An editable install keeps what it builds apart from the sources: the package has two folders.
    yield from map(Path, onnxfold.__path__)
    from importlib import metadata

    # Python in a clone imports the sources, which hold nothing built, though it may be installed.
    try:
        installed = metadata.distribution("onnxfold")
    except metadata.PackageNotFoundError:
        return
    if installed.version == onnxfold.__version__:
        yield Path(str(installed.locate_file("onnxfold")))
