"""The measurements of deferral, and the decision of `auto`."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.options import Defer
from onnxfold.target import TRAITS, Target
from tests.passes.deferral.deferral_graphs import (
    ALL,
    BODIES,
    defer,
    feed_forward,
)

ROOT = Path(__file__).parents[3]


def test_an_operator_costs_the_elements_that_were_measured() -> None:
    with (ROOT / "benchmarks/results/row_scale_costs.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        rows = [row for row in csv.DictReader(file) if row["threads"] == "1"]
    elements = {row["operator"]: int(row["operator_elements"]) for row in rows}
    for target in Target:
        operator = "ScaleRows" if target is Target.KERNELS else "Mul"
        assert target.traits.product_elements == pytest.approx(elements[operator], rel=0.05, abs=0)


def test_auto_is_what_was_measured() -> None:
    """A target is taken whose blocks are never slower than 0.99 and somewhere faster."""
    with (ROOT / "benchmarks/results/defer.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["defer"] == "all"]
    medians: dict[str, list[float]] = {}
    for row in rows:
        medians.setdefault(row["target"], []).append(float(row["ratio"]))
    assert medians
    cheaper = {target for target, all_ in medians.items() if min(all_) >= 0.99 and max(all_) > 1}
    assert cheaper == {target.value for target in Target if target.traits.defers}


def test_off_defers_nothing_and_auto_only_what_is_cheaper() -> None:
    model = feed_forward("Relu(h)")
    assert onnxfold.optimize(model).report["inspect"]["summary"]["deferred"] == 0
    settings = replace(ALL, defer=Defer.AUTO)
    assert defer(model, settings).reasons == {"n": "not_worth"}


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("name", ["a ReLU", "norms of queries and keys", "a SwiGLU"])
def test_auto_writes_the_bytes_of_off_where_nothing_was_measured_to_be_gained(
    name: str, target: Target
) -> None:
    """Of a model that came deferred as well: the norms of such a model are computed in place."""
    assert not target.traits.defers
    model = BODIES[name][0](18)
    deferred = onnxfold.optimize(model, target=target, defer="all", check=0).model
    for given in (model, deferred):
        off, auto, all_ = (_bytes(given, target, way) for way in ("off", "auto", "all"))
        assert auto == off
        assert auto != all_


def _bytes(model: ir.Model, target: Target, way: str) -> bytes:
    written = onnxfold.optimize(model, target=target, defer=way, check=0).model
    return ir.to_proto(written).SerializeToString(deterministic=True)


def test_auto_defers_with_a_target_that_was_measured_to_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TRAITS, Target.ORT, replace(TRAITS[Target.ORT], defers=True))
    model = BODIES["a ReLU"][0](18)
    assert _bytes(model, Target.ORT, "auto") == _bytes(model, Target.ORT, "all")
    assert _bytes(model, Target.ONNX, "auto") == _bytes(model, Target.ONNX, "off")
