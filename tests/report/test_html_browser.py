"""The HTML page in a browser: what is in sight at the width of a telephone, and colours at night.

The page stands in a frame of that width, and a script beside it measures it: a headless window
cannot be as narrow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfold
from onnxfold.report.html import page
from tests.builders import pre_norm_model

_BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
_MEASURE = """
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  const inside = frame.contentDocument, view = frame.contentWindow;
  const boxes = (selector) => [...inside.querySelectorAll(selector)].map((found) => {
    const box = found.getBoundingClientRect();
    return [box.left, box.right, box.width, box.height];
  });
  const zoom = inside.getElementById("zoom"), before = boxes("#picture")[0];
  zoom.value = 200;
  zoom.dispatchEvent(new view.Event("input"));
  const measured = {
    width: view.innerWidth,
    scrolled: inside.documentElement.scrollWidth,
    reasons: boxes("#norms tbody td:last-child"),
    figures: boxes("#before-after td.number"),
    marks: boxes("#picture rect"),
    zoomed: [before[2], boxes("#picture")[0][2]],
    loaded: view.performance.getEntriesByType("resource").length,
    colours: [view.getComputedStyle(inside.body).backgroundColor,
              view.getComputedStyle(inside.body).color],
  };
  document.getElementById("measured").textContent = JSON.stringify(measured);
});
"""

pytestmark = pytest.mark.skipif(_BROWSER is None, reason="there is no Chromium")


def measured(text: str, folder: Path, *, width: int, dark: bool = False) -> dict[str, Any]:
    """Return what the script measures of a page in a frame of this width."""
    scheme = "dark" if dark else "light"
    style = f"width: {width}px; height: 800px; border: 0; color-scheme: {scheme}"
    outer = folder / "outer.html"
    outer.write_text(
        f'<!doctype html><html style="color-scheme: {scheme}"><pre id="measured"></pre>'
        f'<iframe style="{style}" srcdoc="{escape(text)}"></iframe>'
        f"<script>{_MEASURE}</script></html>",
        encoding="utf-8",
    )
    words = [str(_BROWSER), "--headless", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    words += ["--no-sandbox"] if os.geteuid() == 0 else []
    words += ["--virtual-time-budget=5000", "--dump-dom", outer.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r'<pre id="measured">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    document: dict[str, Any] = json.loads(unescape(found[1]))
    return document


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    model = pre_norm_model()
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.name or node.op_type}/a/long/scope/as/exporters/write/it/{index}"
    onnx.save(model, folder / "m.onnx")
    return page(onnxfold.optimize(folder / "m.onnx", folder / "fast.onnx", exclude="^norm1").report)


def test_the_reasons_are_in_sight_on_a_telephone(text: str, tmp_path: Path) -> None:
    found = measured(text, tmp_path, width=390)
    assert found["width"] == 390
    assert found["scrolled"] <= 390  # nothing pushes the page to the side
    for boxes in (found["reasons"], found["figures"]):
        shown = [box for box in boxes if box[2] > 0]  # the rest is in a closed part
        assert shown
        assert all(0 <= left < right <= 390 for left, right, _, _ in shown)
    assert found["loaded"] == 0


def test_the_picture_is_drawn_and_zooms(text: str, tmp_path: Path) -> None:
    found = measured(text, tmp_path, width=1000)
    assert len(found["marks"]) == text.count("<rect ")
    assert all(width > 10 and height > 10 for _, _, width, height in found["marks"])
    before, after = found["zoomed"]
    assert after == pytest.approx(2 * before, rel=1e-3, abs=0)


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_by_day_and_by_night(text: str, tmp_path: Path, dark: bool) -> None:
    found = measured(text, tmp_path, width=390, dark=dark)
    page_light, text_light = (luminance(colour) for colour in found["colours"])
    assert (text_light > page_light) == dark
    bright, dim = max(page_light, text_light), min(page_light, text_light)
    assert (bright + 0.05) / (dim + 0.05) >= 7  # WCAG 2.1, level AAA


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2.1."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
