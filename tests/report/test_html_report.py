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
from onnxfold.report.document import provenance
from onnxfold.report.html import page
from tests.builders import pre_norm_model

_VOID = frozenset({"meta", "input"})
_HOSTILE = "</code><script>alert('1')</script> \"&amp; onload=x $title ${body}"


class Page(HTMLParser):
    """Collects the elements and the text, and refuses tags that do not nest."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text.replace("<wbr>", ""))  # names may break there, and are read as one
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
        "module": None,
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
        "1 of 2 LayerNorms become RMSNorm, with 1 inserted centering",
        "124,439,808",
        "fast.onnx.data",
        "is read exactly",
        "logits",
        "1.4e-07",
        "1 folded norms read inputs of mean zero",
        "The result has 0.8 times the original's own rounding error",
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
    marked = [link["class"] for link in shown.all("a") if "aria-label" in link]
    assert marked == ["norm folded", "norm fused", "norm kept"]


@pytest.mark.parametrize("count", [1, 12, 13, 300])
def test_all_links_lead_somewhere_whatever_the_number_of_norms(count: int) -> None:
    norms = (norm(f"n{i}") if i % 3 else kept(f"n{i}") for i in range(count))
    shown = Page(page(report(*norms)))
    ids = [attributes["id"] for _, attributes in shown.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(link["href"] or "").removeprefix("#") for link in shown.all("a")}
    assert targets <= set(ids)
    assert {f"norm-{i}" for i in range(count)} <= targets
    blocks = [item for item in shown.all("li") if item.get("class") == "block"]
    assert len(blocks) == -(-count // 12)


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
    links = [link["href"] for link in shown.all("a") if not link.get("class")]
    assert links == ["#why-exact_reader", "#why-exact_reader"]
    (explained,) = [term for term in shown.all("dt") if "id" in term]
    assert explained["id"] == "why-exact_reader"
    known = EXPLANATIONS[RefusalCode.EXACT_READER]
    assert shown.words.count(known.meaning) == shown.words.count(known.remedy) == 1
    assert "exact_reader \u00d7 2" in shown.words


def lines(shown: Page) -> list[list[tuple[int, str]]]:
    """The lane and the ends of each line that a step draws."""
    steps: list[list[tuple[int, str]]] = []
    for _, attributes in shown.elements:
        classes = (attributes.get("class") or "").split()
        if "step" in classes:
            steps.append([])
        elif "lane" in classes:
            lane = re.fullmatch(r"--lane:(\d+)", attributes["style"] or "")
            assert lane
            steps[-1].append((int(lane[1]), " ".join(classes[1:])))
    return steps


def test_a_stream_is_one_line_and_streams_side_by_side_have_lanes() -> None:
    """As in an encoder and a decoder: 0 and 1 overlap, 2 begins where 0 has ended."""
    numbers = [0, 1, 0, 2, 1, 2]
    shown = Page(
        page(report(*(norm(f"n{i}", stream=s, writers=[]) for i, s in enumerate(numbers))))
    )
    assert lines(shown) == [
        [(0, "begins")],
        [(0, ""), (1, "begins")],
        [(0, "ends"), (1, "")],
        [(1, ""), (0, "begins")],
        [(1, "ends"), (0, "")],
        [(0, "ends")],
    ]


def test_norms_and_weights_stand_in_the_blocks_that_their_names_say() -> None:
    """As torch exports a transformer: a product's weight has lost its name, its bias has not."""
    shown = Page(
        page(
            report(
                norm("a", module="h.0.ln_1", writers=["wte.weight", "wpe.weight"]),
                norm("b", module="h.0.ln_2", writers=["val_4", "h.0.attn.proj.bias"]),
                norm("/h.1/ln_1/LayerNormalization", writers=["onnx::MatMul_7"]),
                norm("c", module="ln_f", writers=["h.1.mlp.2.bias"]),
            )
        )
    )
    drawn = shown.words.partition("The stream and its norms")[2].partition(" Norms Filter")[0]
    words = (
        "before the blocks", "wte.weight, wpe.weight centered",
        "h.0 ln_1 RMSNorm val_4, attn.proj.bias centered ln_2 RMSNorm onnx::MatMul_7 centered",
        "h.1 /h.1/ln_1/LayerNormalization RMSNorm mlp.2.bias centered",
        "after the blocks ln_f RMSNorm",
    )  # fmt: skip
    assert [word for word in words if word not in drawn] == []
    places = [drawn.index(word) for word in words]
    assert places == sorted(places)


def test_a_mark_says_why_its_norm_stays_and_leads_to_the_weights_of_another() -> None:
    shown = Page(page(report(norm("first", writers=list("abcde")), kept("second", "is read"))))
    (tip,) = [link["aria-label"] for link in shown.all("a") if link.get("class") == "norm kept"]
    assert tip == "second: LayerNorm, as written; is read"
    (weights,) = [link for link in shown.all("a") if link.get("class") == "weights"]
    assert weights["title"] == "centered: a, b, c, d, e"
    assert weights["href"] == "#norm-0"
    assert "a, b, c, d and 1 more centered" in shown.words


def test_verdicts_come_first_then_both_files_then_the_streams() -> None:
    shown = Page(page(report(norm("first"), proof=proof(), output=written("fast.onnx"))))
    names = [section["id"] for section in shown.all("section") if "id" in section]
    assert names[:5] == ["proof", "check", "input", "output", "stream"]


def test_what_a_session_runs_has_a_table_of_its_own() -> None:
    side = asdict(figures(model_io.from_proto(pre_norm_model())))
    sides = [{**side, "session_operators": {"Add": 2, name: 1}} for name in ("Div", "Mul")]
    document = {"free_dimensions": [], "before": sides[0], "after": sides[1]}
    shown = Page(page(report(norm("first"), before_after=document)))
    session = shown.words.partition("What a session runs")[2].partition(" Norms Filter")[0]
    assert "Div 1 0 -1 Mul 0 1 +1" in session
    assert "2 that stay the same what before after change nodes of a session 3 3 Add 2 2" in session


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
