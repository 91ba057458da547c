"""The documentation site: every page is in it, and it builds with strict links."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.source_link import address

ROOT = Path(__file__).resolve().parents[2]


class Loader(yaml.SafeLoader):
    """Reads values that mkdocs takes from the environment as a list."""


Loader.add_constructor("!ENV", Loader.construct_sequence)


def pages(node: Any) -> Iterator[str]:
    """Yield every page below a node of the navigation."""
    if isinstance(node, str):
        yield node
    else:
        for part in node.values() if isinstance(node, dict) else node:
            yield from pages(part)


def test_every_page_is_in_the_navigation_once() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)  # noqa: S506
    listed = sorted(pages(settings["nav"]))
    assert listed == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert settings["strict"] is True


@pytest.mark.parametrize(
    ("remote", "expected"),
    [
        ("https://github.com/one/onnxfold.git", "https://github.com/one/onnxfold"),
        ("https://user:secret@example.org/one/onnxfold", "https://example.org/one/onnxfold"),
        ("git@example.org:group/sub/onnxfold.git", "https://example.org/group/sub/onnxfold"),
        ("ssh://git@example.org/one/onnxfold.git", "https://example.org/one/onnxfold"),
        ("/srv/onnxfold", ""),
        (None, ""),
    ],
)
def test_the_site_links_to_the_remote_of_the_clone(
    remote: str | None, expected: str, tmp_path: Path
) -> None:
    made = ["git", "init", "--quiet", str(tmp_path)]
    added = ["git", "-C", str(tmp_path), "remote", "add", "origin", remote or ""]
    for words in (made, *([] if remote is None else [added])):
        subprocess.run(words, check=True)
    assert address(tmp_path) == expected


@pytest.mark.campaign
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is missing")
def test_the_site_builds_with_strict_links(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "api" / "index.html").read_text(encoding="utf-8")
    for name in ("onnxfold.api.optimize", "onnxfold.options.Options", "onnxfold.api.diff"):
        assert f'id="{name}"' in reference
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "extra.css" in home
    assert (
        home.index("figures/gains.svg")
        < home.index('id="install"')
        < home.index('id="five-minutes"')
    )
