"""Reports and figures as files: signed, whole or not at all, and recognized by what is in them.

An output may replace the program's own files, and others if the user allows it.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

from onnxfold.errors import ModelError, UsageError, show
from onnxfold.model_io.data_homes import same_bytes
from onnxfold.model_io.load import metadata
from onnxfold.model_io.staging import StagingFolder
from onnxfold.options import METADATA_KEY

GENERATOR = "onnxfold"  # the program, as reports and figures name it
_SOFTWARE = b"tEXtSoftware\0" + GENERATOR.encode()
_PNG_CHUNK = len(_SOFTWARE[4:]).to_bytes(4) + _SOFTWARE + zlib.crc32(_SOFTWARE).to_bytes(4)
_SVG_CREATOR = (
    ".//{http://purl.org/dc/elements/1.1/}creator//{http://purl.org/dc/elements/1.1/}title"
)
_TUNED = f"{METADATA_KEY}.tune"  # the note of a search
_OF_OTHERS = (
    "{}: it exists, and onnxfold did not write it; give another output, or --force to replace it"
)
_LINK_TO_NOTHING = (
    "{}: it is a link to '{}', which does not exist; give that path, or --force to replace the link"
)
_COPIED = "user.onnxfold.copy"  # the file attribute of byte-for-byte copies that this program wrote


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


def check_replaceable(
    destination: str | os.PathLike[str], *, source: Path | None, force: bool
) -> None:
    """Raise UsageError for a file that this program did not write, without `force`.

    Also for a link to nothing, which this program does not make: its target may be on a disk that
    is not mounted. A copy of the input passes, because that is written when nothing changes;
    `stage` calls this without `source`, so that no other model replaces the copy.
    """
    path = Path(destination)
    if not force and os.path.islink(path) and not os.path.exists(path):
        raise UsageError(_LINK_TO_NOTHING.format(show(path), show(os.path.realpath(path))))
    if force or not os.path.isfile(path) or not os.stat(path).st_size or is_ours(path):
        return
    if source is not None and os.path.isfile(source) and same_bytes(path, source):
        return
    raise UsageError(_OF_OTHERS.format(show(path)))


def check_reports_replaceable(reports: Iterable[Path], *, force: bool) -> None:
    """Raise UsageError for the first existing report or figure of others, without `force`."""
    for path in reports:
        if not (force or not os.path.isfile(path) or not os.stat(path).st_size or is_report(path)):
            raise UsageError(_OF_OTHERS.format(show(path)))


def mark_copy(path: Path) -> None:
    """Record outside its bytes that this program wrote a file; not all file systems can."""
    if hasattr(os, "setxattr"):
        with contextlib.suppress(OSError):
            os.setxattr(path, _COPIED, _stamp(path))


def is_ours(path: Path) -> bool:
    """Whether this program wrote the model at a path, by its metadata or its file attribute."""
    if hasattr(os, "getxattr"):
        with contextlib.suppress(OSError):  # without the attribute
            if os.getxattr(path, _COPIED) == _stamp(path):
                return True
    try:
        noted = metadata(path)
        return _TUNED in noted or "target" in json.loads(noted.get(METADATA_KEY, "{}"))
    except (ModelError, TypeError, ValueError):
        return False


def _stamp(path: Path) -> bytes:
    """Return what changes when somebody writes to a file."""
    status = os.stat(path)
    return f"{status.st_size} {status.st_mtime_ns}".encode()
