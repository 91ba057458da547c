"""The bodies of requests: a budget for their total size, and decompression."""

import threading
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

# zlib's window bits: with the header of gzip, and with zlib's, which HTTP calls deflate.
WINDOWS = {"gzip": 31, "deflate": 15}
# Blocks of 64 KiB, as bgzip writes them, of the largest body allowed by default, and more.
_MEMBERS = 10_000
# Bytes passed to zlib at once, which copies the rest after each member.
_PIECE_BYTES = 1 << 14
_PART_BYTES = 1 << 20


class RefusedError(Exception):
    """A request that never reaches an endpoint; the sentence is sent to the client."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class BodyBudget:
    """The limit on bytes of all request bodies at once, over all protocols."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._lock = threading.Lock()

    def share(self) -> "Share":
        """Return the share of one request, which is released at the end of a block."""
        return Share(self)

    def change(self, count: int) -> None:
        """Reserve bytes, or release them; raises RefusedError beyond the limit."""
        with self._lock:
            if count > 0 and self._held + count > self._limit:
                raise RefusedError(
                    503,
                    f"the server has {self._held} bytes of requests, and at most {self._limit} "
                    "at once; ask again",
                )
            self._held += count


class Share:
    """The part of the budget that one request uses."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.give(self._held)

    def take(self, count: int) -> None:
        """Reserve bytes; raises RefusedError if all requests together exceed the limit."""
        self._budget.change(count)
        self._held += count

    def give(self, count: int) -> None:
        """Release bytes."""
        self._budget.change(-count)
        self._held -= count


def size_in(text: str, most: int) -> int | None:
    """Return the number of bytes in a header, or None if it is invalid or exceeds ``most``."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(most)):  # Python refuses numbers of more than 4,300 digits
        return None
    return int(digits) if int(digits) <= most else None


def too_large(limit: int) -> RefusedError:
    """Return the error for a body beyond a limit."""
    return RefusedError(413, f"the body has more than {limit} bytes, the limit of this server")


def inflated(
    raw: bytes, encoding: str, limit: int, share: Share, check_time: Callable[[], None]
) -> bytes:
    """Decompress, with all members of gzip, in time proportional to the bytes.

    ``check_time`` raises after too long; it is called between pieces.

    Raises RefusedError for more bytes than the limit or the share allows, more members than any
    tool writes, and for another encoding.
    """
    parts, room, members = list[bytes](), limit, 0
    pieces = (raw[start : start + _PIECE_BYTES] for start in range(0, len(raw), _PIECE_BYTES))
    decoder, rest = zlib.decompressobj(WINDOWS[encoding]), next(pieces)
    while True:
        check_time()
        try:
            part = decoder.decompress(rest, min(room + 1, _PART_BYTES))
        except zlib.error as error:
            raise RefusedError(400, f"the body is not {encoding}: {error}") from error
        room -= len(part)
        if room < 0:
            raise too_large(limit)
        share.take(len(part))
        parts.append(part)
        if not decoder.eof:
            # zlib may keep bytes that did not fit, even after the end of the input.
            rest = decoder.unconsumed_tail or next(pieces, b"")
            if not rest and not part:
                raise RefusedError(400, f"the body is not {encoding}: it ends too early")
            continue
        rest = decoder.unused_data or next(pieces, b"")
        if not rest or encoding != "gzip":
            return b"".join(parts)
        members += 1
        if members == _MEMBERS:
            raise RefusedError(400, f"the body is not {encoding}: it has over {_MEMBERS} members")
        decoder = zlib.decompressobj(WINDOWS[encoding])
