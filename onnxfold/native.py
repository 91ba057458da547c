"""Location of the libraries that are built with the package if there is a compiler."""

from collections.abc import Iterator
from pathlib import Path

import onnxfold


def built(name: str) -> Path | None:
    """Return the absolute path of a library, or None if it was not built."""
    places = (folder.absolute() / "_native" / name for folder in _folders())
    return next((place for place in places if place.is_file()), None)


def _folders() -> Iterator[Path]:
    # An editable install keeps build results apart from the sources: the package has two folders.
    yield from map(Path, onnxfold.__path__)
    from importlib import metadata

    # In a clone Python imports the sources, which contain no build results even if it is installed.
    try:
        installed = metadata.distribution("onnxfold")
    except metadata.PackageNotFoundError:
        return
    if installed.version == onnxfold.__version__:
        yield Path(str(installed.locate_file("onnxfold")))
