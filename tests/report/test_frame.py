"""All pages have one frame and one style, in one file that loads nothing."""

from __future__ import annotations

import re
from pathlib import Path

import onnxfold
from onnxfold.report.drawing import breakable, framed

PACKAGE = Path(onnxfold.__file__).parent


def test_there_is_one_style_and_one_frame() -> None:
    assert [path.name for path in PACKAGE.rglob("*.css")] == ["style.css"]
    assert [path.name for path in PACKAGE.rglob("*.html")] == ["frame.html"]
    assert not [path for path in PACKAGE.rglob("*.py") if "<style" in path.read_text("utf-8")]


def test_every_class_and_id_of_the_style_is_used() -> None:
    style = (PACKAGE / "report" / "style.css").read_text(encoding="utf-8")
    selectors = re.sub(r"/\*.*?\*/|\{[^{}]*\}", " ", style, flags=re.DOTALL)
    written = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    written += (PACKAGE / "report" / "frame.html").read_text("utf-8")
    unused = [
        name
        for name in sorted(set(re.findall(r"[.#]([a-z][\w-]*)", selectors)))
        if not re.search(rf"\b{name}\b", written)
    ]
    assert unused == []


def test_titles_are_text_and_only_a_page_with_a_script_may_run_one() -> None:
    plain = framed("<a>", "<b>", "<strong>1</strong>", "$body ${style}")
    assert "<title>&lt;a&gt;</title>" in plain
    assert "<h1>&lt;b&gt;</h1><p><strong>1</strong></p>" in plain
    assert "$body ${style}" in plain
    assert "script" not in plain
    scripted = framed("a", "b", "", "", script="filter.js")
    assert "script-src 'unsafe-inline'" in scripted
    assert scripted.count("<script>") == 1


def test_a_name_goes_on_in_the_next_line_between_its_parts() -> None:
    assert breakable("/a.b_0/<c>") == "/<wbr>a.<wbr>b_<wbr>0/&lt;c&gt;"
