"""The generated pages say what the code and the kept results say."""

from __future__ import annotations

import csv
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"]


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    generate: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    texts: dict[Path, str] = generate["pages"]()
    return texts


def test_the_generated_pages_are_fresh(pages: dict[Path, str]) -> None:
    stale = [path.name for path, text in pages.items() if path.read_text("utf-8") != text]
    assert not stale, f"run: python docs/generate.py ({', '.join(stale)})"


def test_the_figures_are_fresh() -> None:
    drawn: dict[Path, str] = runpy.run_path(str(ROOT / "docs" / "figures.py"))["pages"]()
    assert len(drawn) == 5
    stale = [path.name for path, text in drawn.items() if path.read_text("utf-8") != text]
    assert not stale, f"run: python docs/figures.py ({', '.join(stale)})"


def test_every_law_has_its_line(pages: dict[Path, str]) -> None:
    from onnxfold.operators.table import ROWS

    text = pages[ROOT / "docs" / "laws.md"]
    for row in ROWS.values():
        assert f"{row.op_type}`" in text
        assert row.law.replace("|", "\\|") in text
        assert row.opaque is None or row.opaque.sentence in text


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:onnxfold|custom_ops|models|benchmarks|tests|docs|examples)/[\w./-]+)`", text
    )
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_the_tests_that_the_list_of_skips_names_exist() -> None:
    named = re.findall(r"[\w/]*test_\w+\.py", (ROOT / "tests" / "SKIPS.md").read_text("utf-8"))
    assert named
    assert not [name for name in named if not any(ROOT.glob(f"tests/**/{name}"))]


def test_no_row_of_trust_says_that_a_promise_was_broken() -> None:
    with (ROOT / "benchmarks" / "results" / "trust.csv").open() as file:
        assert not [row for row in csv.DictReader(file) if row["broken"] != "0"]
