"""The counts of multiplications in the docs equal the plans'."""

from __future__ import annotations

import pytest

from benchmarks.deferral_counts import BLOCKS, Sizes, count
from benchmarks.rows import RESULTS, read

# Sections 1 to 4 of the paper: what deferral saves of the products behind every layer.  A table of
# cos and one of sin have h numbers each in exports, half of them distinct; RotaryEmbedding reads
# those alone, so that 2 h H - h are saved for H heads of queries and keys.  v keeps its products.
SAVED = {
    "linear": lambda s: 0,
    "linear, ReLU, linear": lambda s: s.f - s.n,
    "SwiGLU": lambda s: s.f - s.n,
    "ReGLU": lambda s: 2 * s.f - s.n,
    "bilinear GLU": lambda s: 2 * s.f - s.n,
    "q, k, v, without RoPE": lambda s: 0,
    "q, k, v, with RoPE": lambda s: (s.heads + s.keys) * s.h - 2 * s.h,
    "q, k, v, with RotaryEmbedding": lambda s: (s.heads + s.keys) * s.h - s.h,
    "linear, norm": lambda s: s.heads * s.h,
    "q, k, v, with norms of q and k": lambda s: (s.heads + s.keys) * s.h,
    "q, k, v, with norms of q and k, and gammas": lambda s: 2 * (s.heads + s.keys) * s.h - 4 * s.h,
}


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{b[1]} {b[2].model}" for b in BLOCKS])
def test_a_block_saves_what_the_paper_says(block: tuple[int, str, Sizes, str]) -> None:
    row = count(*block)
    assert row.saved == SAVED[row.block](row)
    kept = {(row["block"], row["model"]): row for row in read(RESULTS / "deferral_counts.csv")}
    assert kept[row.block, row.model] == {name: str(cell) for name, cell in vars(row).items()}


def test_every_block_is_kept() -> None:
    assert [row["block"] for row in read(RESULTS / "deferral_counts.csv")] == [b[1] for b in BLOCKS]
