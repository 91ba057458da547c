"""benchmarks/chains.py on a small graph: steps, failures and what counts as quantized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks import chains
from benchmarks.chains import Export
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.steps import Context, Slim
from tests.builders import model_of

_WIDTH = 32


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """A norm and a Gemm, as GPT-2 has them."""
    rng = np.random.default_rng(0)
    shapes = {"W": (_WIDTH, _WIDTH), "V": (_WIDTH, _WIDTH), "g": (_WIDTH,), "b": (_WIDTH,)}
    weights = {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "W", "b"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "g", "b"], ["n"]),
        helper.make_node("Gemm", ["n", "V", "b"], ["y"]),
    ]
    kind = (TensorProto.FLOAT, ["batch", _WIDTH])
    onnx.save(model_of(nodes, {"x": kind}, {"y": kind}, weights, opset=17), tmp_path / "m.onnx")
    inputs = [{"x": rng.standard_normal((rows, _WIDTH)).astype("f")} for rows in (3, 1)]
    np.savez(tmp_path / "inputs.npz", **inputs[0])
    return Export(tmp_path, ModelFacts("gpt2", 4, 32), tmp_path / "m.onnx", inputs)


def test_a_chain_is_counted_in_the_session_and_compared(export: Export) -> None:
    plain, folded = export.columns(()), export.columns(("onnxfold ort",))
    assert (plain["failed"], plain["quantised"]) == ("", 0)
    assert "LayerNormalization:1" in plain["operators"]
    assert "SimplifiedLayerNormalization:1" in folded["operators"]
    assert 0 < folded["error"] < 1e-5


@pytest.mark.parametrize(("chain", "products"), [("int4", 2), ("int8", 2), ("int8 static", 2)])
def test_gemm_is_quantised_in_every_way(export: Export, chain: str, products: int) -> None:
    columns = export.columns(("onnxfold ort", chain))
    assert columns["failed"] == ""
    assert columns["quantised"] == products
    assert columns["error"] > 1e-4


class _Broken(Slim):
    def apply(self, source: Path, output: Path, context: Context) -> None:
        with (output.parent / "tried").open("a") as file:
            file.write("x")
        raise ValueError(f"no such node in {source.name}")


class _Spoiled(Slim):
    def apply(self, source: Path, output: Path, context: Context) -> None:
        model = onnx.load(source)
        model.graph.node[0].op_type = "NoSuchOperator"
        onnx.save(model, output)


def test_a_step_that_fails_is_named_and_not_tried_again(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(chains.TOOLS, "onnxslim", _Broken())
    for chain in (("onnxslim",), ("onnxslim", "onnxfold"), ("onnxslim", "int8")):
        assert export.columns(chain)["failed"] == "onnxslim: ValueError: no such node in m.onnx"
    assert (export.folder / "tried").read_text() == "x"


def test_a_file_that_does_not_load_is_a_row(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(chains.TOOLS, "onnxslim", _Spoiled())
    assert "NoSuchOperator" in export.columns(("onnxslim",))["failed"]
