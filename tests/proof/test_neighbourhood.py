"""How much of a model is run to relate one pair of values."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest

from onnxfold.graph import ModelInfo
from onnxfold.proof import Certificate, prove
from onnxfold.proof.neighbourhood import Neighbourhood
from onnxfold.proof.region import Region
from onnxfold.shapes import infer

_DEEP = 20


def _gelu(end: str) -> ModelInfo:
    chain = " ".join(f"x{n + 1} = Tanh(x{n})" for n in range(_DEEP))
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    g (double[B,4] x0) => (double[B,4] y) <double half = {{0.5}}, double one = {{1.0}}> {{
      {chain} e = Erf(x{_DEEP}) w = Add(one, e) {end} }}"""
    return infer(ir.from_proto(onnx.parser.parse_model(text)))


def test_half_of_a_value_is_related_to_it_without_what_is_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new value may stand for its own operand, from which nothing leads back to itself."""
    sizes = []
    region = Neighbourhood.region

    def noted(self: Neighbourhood, *pair: Any, **options: Any) -> Region:
        made = region(self, *pair, **options)
        sizes.append(len(made.old.nodes))
        return made

    monkeypatch.setattr(Neighbourhood, "region", noted)
    before = _gelu(f"m = Mul(half, w) y = Mul(x{_DEEP}, m)")
    after = _gelu(f"h = Mul(half, x{_DEEP}) y = Mul(h, w)")
    assert prove(before, after, Certificate()).passed
    assert max(sizes) < _DEEP
