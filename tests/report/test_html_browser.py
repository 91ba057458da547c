"""The HTML page in a browser: the visible part at the width of a telephone, and colors at night.

The page is in a frame of that width, and an adjacent script measures it: a headless window cannot
be as narrow. Screenshots are compared with what was measured: fonts differ between machines, what
stands where and in which color does not.
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
from PIL import Image

import onnxfold
from onnxfold.report.html import page
from tests.builders import pre_norm_model

_BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
_HEIGHT = 4000  # of the frame: all of the page
_MEASURE = """
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  const inside = frame.contentDocument, view = frame.contentWindow;
  const boxes = (selector) => [...inside.querySelectorAll(selector)].map((found) => {
    const box = found.getBoundingClientRect();
    return [box.left, box.right, box.width, box.height, box.top + box.height / 2];
  });
  const marks = boxes("#stream a.norm .mark");
  const measured = {
    width: view.innerWidth,
    scrolled: inside.documentElement.scrollWidth,
    reasons: boxes("#norms tbody td:last-child"),
    figures: boxes("#file td.number"),
    marks,
    fills: [...inside.querySelectorAll("#stream a.norm .mark")].map((mark) => {
      const style = view.getComputedStyle(mark);
      return [mark.getAttribute("class").split(" ")[1], style.backgroundColor];
    }),
    loaded: view.performance.getEntriesByType("resource").length,
    colours: [view.getComputedStyle(inside.body).backgroundColor,
              view.getComputedStyle(inside.body).color],
  };
  document.getElementById("measured").textContent = JSON.stringify(measured);
});
"""

pytestmark = pytest.mark.skipif(_BROWSER is None, reason="there is no Chromium")


def framed(text: str, folder: Path, *, width: int, dark: bool, script: str) -> Path:
    """Write a page that shows another in a frame of this width, in its left upper corner."""
    scheme = "dark" if dark else "light"
    style = f"position: absolute; left: 0; top: 0; width: {width}px; height: {_HEIGHT}px; border: 0"
    outer = folder / "outer.html"
    outer.write_text(
        f'<!doctype html><html style="color-scheme: {scheme}"><pre id="measured"></pre>'
        f'<iframe style="{style}; color-scheme: {scheme}" srcdoc="{escape(text)}"></iframe>'
        f"<script>{script}</script></html>",
        encoding="utf-8",
    )
    return outer


def browsed(outer: Path, *options: str) -> str:
    """Have the browser do what the options say with a page, and return what it prints."""
    profile = f"--user-data-dir={outer.with_name('profile')}"
    words = [str(_BROWSER), "--headless", "--disable-gpu", "--hide-scrollbars", profile]
    words += ["--no-sandbox"] if os.geteuid() == 0 else []
    words += ["--virtual-time-budget=5000", *options, outer.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout


def measured(text: str, folder: Path, *, width: int, dark: bool = False) -> dict[str, Any]:
    """Return what the script measures of a page in a frame of this width."""
    printed = browsed(framed(text, folder, width=width, dark=dark, script=_MEASURE), "--dump-dom")
    found = re.search(r'<pre id="measured">(.+?)</pre>', printed, re.DOTALL)
    assert found, printed[-2000:]
    document: dict[str, Any] = json.loads(unescape(found[1]))
    return document


def pictured(text: str, folder: Path, *, width: int, dark: bool) -> Image.Image:
    """Return what is seen of a page in a frame of this width."""
    outer = framed(text, folder, width=width, dark=dark, script="")
    shot = folder / "seen.png"
    browsed(outer, f"--screenshot={shot}", f"--window-size={max(width, 600)},{_HEIGHT}")
    return Image.open(shot).convert("RGB")


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
        assert all(0 <= left < right <= 390 for left, right, *_ in shown)
    assert found["loaded"] == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_the_picture_is_drawn_within_the_page(text: str, tmp_path: Path, width: int) -> None:
    found = measured(text, tmp_path, width=width)
    assert len(found["marks"]) == text.count('class="norm ')
    for left, right, wide, high, _ in found["marks"]:
        assert 0 <= left < right <= width
        assert wide > 10
        assert high > 10


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_by_day_and_by_night(text: str, tmp_path: Path, dark: bool) -> None:
    found = measured(text, tmp_path, width=390, dark=dark)
    page_light, text_light = (luminance(colour) for colour in found["colours"])
    assert (text_light > page_light) == dark
    bright, dim = max(page_light, text_light), min(page_light, text_light)
    assert (bright + 0.05) / (dim + 0.05) >= 7  # WCAG 2.1, level AAA


@pytest.mark.parametrize("dark", [False, True])
def test_what_is_measured_is_what_is_seen(text: str, tmp_path: Path, dark: bool) -> None:
    """Every mark of a fold is filled with its color, and every reason has ink, in its place."""
    found = measured(text, tmp_path, width=390, dark=dark)
    seen = pictured(text, tmp_path, width=390, dark=dark)
    assert seen.getpixel((1, 1)) == rgb(found["colours"][0])
    marks = [
        (left + wide / 2, top, rgb(fill))
        for (left, right, wide, _, top), (fate, fill) in zip(
            found["marks"], found["fills"], strict=True
        )
        if fate == "folded" and right < 360  # the rest is scrolled to
    ]
    assert marks
    for x, y, fill in marks:
        assert seen.getpixel((round(x), round(y))) == fill
    for left, right, wide, high, middle in found["reasons"]:
        if wide > 0:
            cell = seen.crop(
                (round(left), round(middle - high / 2), round(right), round(middle + high / 2))
            )
            lights = [luminance(f"rgb{colour}") for _, colour in cell.getcolors(1 << 24) or ()]
            assert (max(lights) + 0.05) / (min(lights) + 0.05) >= 4.5  # WCAG 2.1, level AA


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", colour)[:3])


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2.1."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
