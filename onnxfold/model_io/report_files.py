"""Reports and figures as files: signed, whole or not at all, and recognized by what is in them."""

import json
import os
import zlib
from collections.abc import Mapping
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

from onnxfold.errors import ModelError
from onnxfold.model_io.staging import StagingFolder

GENERATOR = "onnxfold"  # the program, as reports and figures name it
_SOFTWARE = b"tEXtSoftware\0" + GENERATOR.encode()
_PNG_CHUNK = len(_SOFTWARE[4:]).to_bytes(4) + _SOFTWARE + zlib.crc32(_SOFTWARE).to_bytes(4)
_SVG_CREATOR = (
    ".//{http://purl.org/dc/elements/1.1/}creator//{http://purl.org/dc/elements/1.1/}title"
)


def signed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document for machines that names the program that made it."""
    return {"generator": GENERATOR, **document}


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a report for machines; raises ModelError if the file cannot be written."""
    write_text(path, json.dumps(signed(document), indent=2))


def write_text(path: Path, text: str) -> None:
    """Write the text of a report, whole or not at all.

    Raises ModelError if the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        with closing(StagingFolder(target.parent)) as folder:
            staged = folder.path / target.name
            # A file name may contain bytes that are not UTF-8.
            staged.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
            staged.replace(target)
    except OSError as error:
        raise ModelError(f"cannot write the report '{path}': {error.strerror}") from error


def is_report(path: Path) -> bool:
    """Whether this program wrote the report or figure at a path, by the whole file."""
    try:
        return _SIGNED[path.suffix](path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False


def _is_json(content: bytes) -> bool:
    document = json.loads(content)
    return isinstance(document, dict) and document.get("generator") == GENERATOR


def _is_html(content: bytes) -> bool:
    reader = _Head()
    reader.feed(content.decode())
    reader.close()
    return reader.generators == [GENERATOR] and reader.ended


def _is_svg(content: bytes) -> bool:
    try:
        found = ElementTree.fromstring(content).findall(_SVG_CREATOR)  # noqa: S314
    except ElementTree.ParseError:
        return False
    return [title.text for title in found] == [GENERATOR]


def _is_png(content: bytes) -> bool:
    return content.startswith(b"\x89PNG\r\n\x1a\n") and _PNG_CHUNK in content


_SIGNED = MappingProxyType({".json": _is_json, ".html": _is_html, ".svg": _is_svg, ".png": _is_png})


class _Head(HTMLParser):
    """The programs that the head of a page names, and whether the page is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.generators: list[str | None] = []
        self.ended = self._in_body = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_body |= tag == "body"
        given = dict(attrs)
        if tag == "meta" and given.get("name") == "generator" and not self._in_body:
            self.generators.append(given.get("content"))

    def handle_endtag(self, tag: str) -> None:
        self.ended |= tag == "html"
