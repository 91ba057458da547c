"""The same input gives the same bytes: in other processes, with other threads and other hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.runs import ROOT, written


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("models/digits_vit/digits_vit.onnx", ("--save-as-external-data",)),
        ("tests/recipes/swin-t.onnx", ()),
    ],
    ids=["two files", "one"],
)
def test_the_same_bytes_come_out_whatever_the_threads_and_hashes(
    tmp_path: Path, model: str, options: tuple[str, ...]
) -> None:
    runs = [
        written(
            ROOT / model, tmp_path / f"{threads}-{seed}", threads, seed, *options, "--check", "1"
        )
        for threads, seed in ((1, "0"), (2, "12345"))
    ]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 1 + len(options)
