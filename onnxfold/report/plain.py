"""Documents whose names are text: a name in a model may hold anything."""

from collections.abc import Mapping
from typing import TypeVar

from onnxfold.errors import printable

_Document = TypeVar("_Document")


def plain(document: _Document) -> _Document:
    """Return a document for JSON with what is no visible character escaped in all of its texts."""
    return _plain(document)  # type: ignore[return-value]  # every part keeps its type


def _plain(part: object) -> object:
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, Mapping):
        return {_plain(key): _plain(each) for key, each in part.items()}
    if isinstance(part, list | tuple):
        return [_plain(each) for each in part]
    return part
