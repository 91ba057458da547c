"""Documents in which every name is plain text, although names in a model are arbitrary."""

from collections.abc import Mapping
from typing import TypeVar

from onnxfold.errors import printable

_Document = TypeVar("_Document")


def plain(document: _Document) -> _Document:
    """Return a document for JSON in which invisible characters are escaped in all texts."""
    return _plain(document)  # type: ignore[return-value]  # every part keeps its type


def _plain(part: object) -> object:
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, Mapping):
        return {_plain(key): _plain(each) for key, each in part.items()}
    if isinstance(part, list | tuple):
        return [_plain(each) for each in part]
    return part
