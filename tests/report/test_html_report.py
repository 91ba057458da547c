"""The HTML page: well formed, complete, closed to the network and to hostile names."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import onnxfold
from onnxfold import model_io
from onnxfold.refusal import EXPLANATIONS, RefusalCode
from onnxfold.report.before_after import figures
from onnxfold.report.html import page
from onnxfold.report.provenance import provenance
from tests.builders import pre_norm_model

_VOID = frozenset({"meta", "input", "line", "path"})
_HOSTILE = "</code><script>alert('1')</script> \"&amp; onload=x $title ${body}"


class Page(HTMLParser):
    """Collects the elements and the text, and refuses tags that do not nest."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def norm(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "layer_norm",
        "form": "op",
        "stream": 0,
        "input": "x",
        "output": "y",
        "axes": [2],
        "size": 768,
        "epsilon": 1e-5,
        "foldable": True,
        "action": "rms",
        "reason": None,
        "affine": ["gamma", "beta"],
        "gamma_fused": True,
        "beta_fused": False,
        "affine_reason": {"code": "exact_reader", "sentence": "a zero pad", "nodes": []},
        "writers": ["W", "b"],
    } | changes


def kept(name: str, sentence: str = "is read exactly") -> dict[str, Any]:
    reason = {"code": "exact_reader", "sentence": sentence, "nodes": []}
    return norm(name, foldable=False, action="keep", reason=reason, writers=[])


def report(*norms: dict[str, Any], **more: Any) -> dict[str, Any]:
    summary = {
        "norms": len(norms),
        "layer_norms": len(norms),
        "foldable": sum(row["foldable"] for row in norms),
        "folded": sum(row["foldable"] for row in norms),
        "left_foldable": 0,
        "algorithm1": 0,
        "algorithm1_embed_centred": 1,
        "inserted_centerings": 1,
        "split_bytes": 0,
        "gamma_fused": 3,
        "beta_fused": 2,
    }
    model = {"opset": 18, "nodes": 1234, "parameters": 124_439_808}
    inspect = {"schema": 1, "model": model, "norms": list(norms), "summary": summary}
    return {"inspect": inspect, "timing_s": {"load": 0.01, "analyse": 0.2}} | more


def output_check(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": "float32",
        "max_abs_error": 1.4e-7,
        "rms_error": 2e-8,
        "original_rms_error": 2.5e-8,
        "noise_ratio": 0.8,
        "method": "float64",
        "reason": None,
        "bound": 1e-7,
        "relative_noise": 1e-7,
        "passed": True,
    } | changes


def verification(*outputs: dict[str, Any], passed: bool = True) -> dict[str, Any]:
    return {
        "passed": passed,
        "method": "float64",
        "runtime": "onnxruntime 1.31.1",
        "samples": 2,
        "max_abs_error": 1.4e-7,
        "noise_ratio": 0.8,
        "limit": 4.0,
        "outputs": list(outputs),
        "worst": None,
    }


def proof(*failures: str) -> dict[str, Any]:
    return {
        "passed": not failures,
        "folded_norms": 1,
        "centred_weights": 2,
        "scaled_weights": 3,
        "shifted_biases": 4,
        "failures": list(failures),
    }


def written(name: str) -> dict[str, Any]:
    return {
        "path": f"somewhere/{name}",
        "data": f"{name}.data",
        "bytes": 5_000,
        "functions": ["RMSNormAffine"],
        "target": "kernels",
    }


def test_the_page_says_that_batches_held_one() -> None:
    single = verification(output_check("y")) | {"single": "Add <fails>"}
    said = "It is compared in batches of one, since others do not run: Add &lt;fails&gt;."
    assert said in page(report(norm("first"), verification=single))


def test_the_page_shows_every_part_of_a_full_report() -> None:
    shown = Page(
        page(
            report(
                norm("first"),
                kept("second"),
                verification=verification(output_check("logits")),
                proof=proof(),
                output=written("fast.onnx"),
            )
        )
    )
    for words in (
        "fast.onnx",
        "1 of 2 LayerNorms become RMSNorm, with 1 inserted centring",
        "124,439,808",
        "fast.onnx.data",
        "is read exactly",
        "logits",
        "1.4e-07",
        "1 folded norms read inputs of mean zero",
        "gamma moved into the next linear layers",
        "beta kept: a zero pad",
        "3 weights carry a gamma and 4 biases a beta",
        "analyse 0.200 s",
    ):
        assert words in shown.words


def test_every_norm_has_one_mark_that_leads_to_its_row() -> None:
    fused = norm("middle", foldable=False, action="fused_layer_norm", writers=[])
    shown = Page(page(report(norm("first"), fused, kept("last"))))
    rows = {row["id"] for row in shown.all("tr") if "id" in row}
    marks = [link["href"] for link in shown.all("a") if "aria-label" in link]
    assert marks == ["#norm-0", "#norm-1", "#norm-2"]
    assert rows == {"norm-0", "norm-1", "norm-2"}
    assert [mark["class"] for mark in shown.all("rect")] == ["folded", "fused", "kept"]


def test_marks_stay_inside_the_drawing_whatever_their_number() -> None:
    for count in (1, 16, 64, 65, 300):
        shown = Page(page(report(*(norm(f"n{i}") for i in range(count)))))
        (drawing,) = shown.all("svg")
        _, _, width, height = map(float, (drawing["viewbox"] or "").split())
        marks = shown.all("rect")
        assert len(marks) == count
        for mark in marks:
            x, y, w, h = (float(mark[key] or "nan") for key in ("x", "y", "width", "height"))
            assert 0 <= x <= x + w <= width
            assert 0 <= y <= y + h <= height


def test_hostile_names_stay_text() -> None:
    hostile = report(
        norm(_HOSTILE, writers=[_HOSTILE] * 7),
        kept(_HOSTILE, _HOSTILE),
        verification=verification(output_check(_HOSTILE)),
        proof=proof(_HOSTILE),
        output=written(_HOSTILE),
    )
    text = page(hostile)
    shown = Page(text)
    assert len(shown.all("script")) == 1
    assert "<script>alert" not in text
    assert not any(key.startswith("on") for _, attributes in shown.elements for key in attributes)
    assert shown.words.count(_HOSTILE) >= 11


def test_the_page_refers_to_nothing_outside_itself() -> None:
    text = page(report(norm("first"), verification=verification(output_check("logits"))))
    assert not re.search(r"https?:|//|url\(|@import|\bsrc=|<link|<img|<iframe", text)
    policy = next(meta for meta in Page(text).all("meta") if "http-equiv" in meta)
    assert (policy["content"] or "").startswith("default-src 'none'")


def test_numbers_that_are_not_finite_and_failures_are_said() -> None:
    lost = output_check("logits", noise_ratio=None, max_abs_error=None, passed=False)
    shown = Page(page(report(norm("first"), verification=verification(lost, passed=False))))
    assert "not finite" in shown.words
    assert "failed" in shown.words


@pytest.mark.parametrize("norms", [(), (norm("only"),)])
def test_a_dry_run_says_that_nothing_was_checked(norms: tuple[dict[str, Any], ...]) -> None:
    shown = Page(page(report(*norms)))
    assert "dry run" in shown.words
    assert shown.words.count("Not run.") == 2
    assert ("This model has no norm." in shown.words) == (not norms)


def test_an_unchanged_model_has_a_page_without_a_table_of_outputs() -> None:
    unchanged = {"passed": True, "method": "none"}
    shown = Page(page(report(kept("only"), verification=unchanged, output=written("same.onnx"))))
    assert "Not run." in shown.words


def test_a_reason_leads_to_its_explanation_which_is_told_once() -> None:
    shown = Page(page(report(kept("first"), kept("second"), norm("third"))))
    links = [link["href"] for link in shown.all("a") if "aria-label" not in link]
    assert links == ["#why-exact_reader", "#why-exact_reader"]
    (explained,) = [term for term in shown.all("dt") if "id" in term]
    assert explained["id"] == "why-exact_reader"
    known = EXPLANATIONS[RefusalCode.EXACT_READER]
    assert shown.words.count(known.meaning) == shown.words.count(known.remedy) == 1
    assert "exact_reader \u00d7 2" in shown.words


def test_a_stream_is_one_line_and_streams_side_by_side_have_lanes() -> None:
    """As in an encoder and a decoder: 0 and 1 overlap, 2 begins where 0 has ended."""
    numbers = [0, 1, 0, 2, 1, 2]
    shown = Page(page(report(*(norm(f"n{i}", stream=s) for i, s in enumerate(numbers)))))
    lines = [{key: float(str(value)) for key, value in line.items()} for line in shown.all("line")]
    assert len(lines) == 3
    zero, one, two = lines
    assert zero["y1"] == two["y1"] != one["y1"]
    assert zero["x2"] <= two["x1"]
    for mark, stream in zip(shown.all("rect"), numbers, strict=True):
        x, y, w, h = (float(mark[key] or "nan") for key in ("x", "y", "width", "height"))
        assert lines[stream]["x1"] <= x <= x + w <= lines[stream]["x2"]
        assert y < lines[stream]["y1"] < y + h


def test_a_mark_tells_what_was_centred_or_why_not() -> None:
    shown = Page(page(report(norm("first", writers=list("abcde")), kept("second", "is read"))))
    tips = [link["aria-label"] or "" for link in shown.all("a") if "aria-label" in link]
    assert tips[0].endswith("; centred: a, b, c and 2 more")
    assert tips[1].endswith("left as written; is read")
    assert len(shown.all("path")) == 1


def test_the_page_says_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(b"model")
    run = provenance(tmp_path / "in.onnx", {"target": "ort", "exclude": "<b>"})
    words = Page(page(report(norm("first"), run=run))).words
    assert hashlib.sha256(b"model").hexdigest() in words
    assert "target = ort, exclude = <b>" in words
    assert f"onnxfold {onnxfold.__version__}" in words
    assert datetime.fromisoformat(run["date"]).utcoffset() == timedelta(0)
    assert run["date"] in words


def test_the_date_is_that_of_a_reproducible_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.onnx").touch()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert provenance(tmp_path / "in.onnx", {})["date"] == "1970-01-01T00:00:00+00:00"


def test_before_and_after_shows_what_changes_and_keeps_the_rest_closed() -> None:
    side = asdict(figures(model_io.from_proto(pre_norm_model())))
    after = side | {"nodes": side["nodes"] + 1}
    document = {"free_dimensions": ["batch"], "before": side, "after": after}
    shown = Page(page(report(norm("first"), before_after=document)))
    assert f"nodes {side['nodes']} {side['nodes'] + 1} +1" in shown.words
    assert "for 1 each of: batch" in shown.words
    assert len(shown.all("summary")) == 1
