"""Bodies of requests: what all of them may hold, and how one is decompressed."""

from __future__ import annotations

import gzip
import time
import zlib

import pytest

from onnxfold.errors import UsageError
from onnxfold.serving.codec import Tensor, decode
from onnxfold.serving.request_bodies import BodyBudget, RefusedError, Share, inflated, size_in
from onnxfold.serving.served_signature import ServedSignature, TensorSpec
from onnxfold.serving.settings import NamedModel, ServeSettings

LIMIT = 1 << 28
EMPTY = gzip.compress(b"", mtime=0)


def share(limit: int = LIMIT) -> Share:
    return BodyBudget(limit).share()


def plain(raw: bytes, encoding: str = "gzip", limit: int = LIMIT) -> bytes:
    return inflated(raw, encoding, limit, share(), lambda: None)


@pytest.mark.parametrize("size", [0, 1, 1 << 14, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_comes_out_as_it_went_in(size: int, encoding: str) -> None:
    noise = (b"%d " * 9 % tuple(range(9))) * (size // 18 + 1)
    for body in (bytes(size), noise[:size]):
        raw = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
        assert plain(raw, encoding) == body
        assert plain(raw, encoding, size) == body
        for cut in (1, len(raw) // 2):
            with pytest.raises(RefusedError, match="it ends too early"):
                plain(raw[:-cut], encoding)
        if size:
            with pytest.raises(RefusedError, match="has more than") as told:
                plain(raw, encoding, size - 1)
            assert told.value.status == 413


def test_members_follow_one_another_wherever_a_piece_ends() -> None:
    parts = [bytes([number % 251]) * (number * 37 % 999) for number in range(900)]
    raw = b"".join(gzip.compress(part) for part in parts)
    assert plain(raw) == b"".join(parts)
    with pytest.raises(RefusedError, match="is not gzip"):
        plain(raw + b"more")
    with pytest.raises(RefusedError, match="it ends too early"):
        plain(raw + EMPTY[:5])


def test_many_members_are_refused_in_time_that_grows_with_the_body() -> None:
    raw = EMPTY * (4 * 2**20 // len(EMPTY))
    start = time.process_time()
    with pytest.raises(RefusedError, match="over 10000 members") as told:
        plain(raw)
    assert time.process_time() - start < 2.0  # 12 s and more where each copies what is left
    assert told.value.status == 400


def test_a_body_has_its_time() -> None:
    asked = 0

    def late() -> None:
        nonlocal asked
        asked += 1
        if asked > 5:
            raise RefusedError(408, "too late")

    with pytest.raises(RefusedError, match="too late"):
        inflated(gzip.compress(bytes(1 << 26)), "gzip", LIMIT, share(), late)
    assert asked == 6


def test_all_bodies_share_one_budget() -> None:
    budget = BodyBudget(100)
    with budget.share() as first, budget.share() as second:
        first.take(60)
        second.take(40)
        with pytest.raises(RefusedError, match="has 100 bytes of requests, and at most 100") as no:
            second.take(1)
        assert no.value.status == 503
        first.give(10)
        second.take(10)
    with budget.share() as third:
        third.take(100)
    with pytest.raises(RefusedError), budget.share() as failing:
        inflated(gzip.compress(bytes(101)), "gzip", LIMIT, failing, lambda: None)
    with budget.share() as last:
        with pytest.raises(RefusedError):
            inflated(gzip.compress(bytes(101)), "gzip", LIMIT, last, lambda: None)
        last.take(1)


def test_sizes_in_headers_have_few_digits() -> None:
    assert size_in("100", 100) == 100
    assert size_in("0", 0) == 0
    assert size_in("0" * 5000 + "1", 100) == 1
    for text in ("101", "9" * 5000, "-1", "", "1.0", "\u0661", "\xb2", " 1", "0x1", "1_0"):
        assert size_in(text, 100) is None


def test_the_budget_holds_the_largest_request() -> None:
    model = NamedModel.parse(f"m={__file__}")
    assert ServeSettings(models=(model,)).most_buffered == 4 << 28
    with pytest.raises(UsageError, match="max_buffered=99 must not be less"):
        ServeSettings(models=(model,), max_request_bytes=100, max_buffered=99)
    settings = ServeSettings(models=(model,), max_request_bytes=100, max_buffered=100)
    assert settings.most_buffered == 100


def test_nested_strings_are_read_once_however_deep_one_of_them_lies() -> None:
    from onnxfold.serving.datatypes import BY_NAME

    spec = TensorSpec("x", BY_NAME["BYTES"], (None,))
    count, deep = 200_000, ["x"]
    for _ in range(1000):
        deep = [deep]  # type: ignore[list-item]
    start = time.process_time()
    tensor = Tensor("x", "BYTES", [count + 1], ["y"] * count + [deep])
    arrays = decode([tensor], ServedSignature((spec,), ()))
    assert arrays["x"].shape == (count + 1,)
    assert arrays["x"][-1] == "x"
    assert time.process_time() - start < 5.0  # 15 s and more where each depth looks at all
