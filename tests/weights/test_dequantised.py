"""Weights of codes in float64, against onnx's evaluator, ONNX Runtime and the definition."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxfold.weights.dequantised as module
from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.refusal import Refusal
from onnxfold.weights.affine_parts import weighted_sum
from onnxfold.weights.dequantised import QuantisedWeight, quantised_weight
from tests.sessions import outputs

Array = np.ndarray
RNG = np.random.default_rng(7)


def _model(
    op_type: str, arrays: list[Array | None], domain: str = "", free: str = "", **attributes: Any
) -> onnx.ModelProto:
    """A node whose operands are constants; the first is an input named ``free`` where that is."""
    names = ["" if array is None else free or "x" if n == 0 else f"c{n}"
             for n, array in enumerate(arrays)]  # fmt: skip
    node = helper.make_node(op_type, names, ["y"], domain=domain, **attributes)
    stored = zip(names, arrays, strict=True)
    constants = [numpy_helper.from_array(a, n) for n, a in stored if a is not None and n != free]
    inputs = [] if not free else [helper.make_tensor_value_info(free, 1, arrays[0].shape)]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_empty_tensor_value_info("y")], constants
    )
    graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _found(model: onnx.ModelProto) -> QuantisedWeight | Refusal:
    view = ModelInfo(ir.from_proto(model))
    node = next(iter(view.nodes()))
    return quantised_weight(view, Reader(node, int(node.op_type == "MatMulNBits")))


def _whole(weight: QuantisedWeight | Refusal) -> Array:
    assert isinstance(weight, QuantisedWeight)
    found = np.concatenate([chunk for _, chunk in weight.chunks()])
    assert found.shape == weight.shape.numpy()
    assert found.dtype == np.float64
    return found


def _integers(*shape: int, dtype: Any = np.int8) -> Array:
    return RNG.integers(-7, 8, shape).astype(dtype)


def _scales(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.uniform(0.01, 0.1, shape).astype(dtype)


LAYOUTS: dict[str, tuple[list[Array | None], dict[str, int]]] = {
    "one scale": ([_integers(6, 5), _scales()], {}),
    "one scale and a zero point": ([_integers(6, 5), _scales(), np.int8(3)], {}),
    "one scale, one axis": ([_integers(6), _scales(1)], {"axis": 0}),
    "columns": ([_integers(6, 5), _scales(5), _integers(5)], {"axis": 1}),
    "columns from the end": ([_integers(6, 5), _scales(5)], {"axis": -1}),
    "rows": ([_integers(6, 5), _scales(6), _integers(6)], {"axis": 0}),
    "channels of a convolution": ([_integers(4, 3, 2, 2), _scales(4)], {"axis": 0}),
    "blocks of rows": (
        [_integers(6, 5), _scales(3, 5), _integers(3, 5)],
        {"axis": 0, "block_size": 2},
    ),
    "blocks of columns": ([_integers(4, 6), _scales(4, 2)], {"axis": 1, "block_size": 3}),
    "a last block that is shorter": (
        [_integers(4, 5), _scales(4, 2)],
        {"axis": 1, "block_size": 3},
    ),
    "four bits": ([_integers(4, 6, dtype=ml_dtypes.int4), _scales(6)], {"axis": 1}),
}  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dequantised_weights_are_those_of_onnx(
    layout: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", chunk)
    arrays, attributes = LAYOUTS[layout]
    model = _model("DequantizeLinear", arrays, **attributes)
    found = _whole(_found(model))
    if "shorter" in layout:  # onnx's evaluator repeats whole blocks alone
        codes, scales = (np.asarray(array, np.float64) for array in arrays if array is not None)
        wanted = codes * np.repeat(scales, 3, axis=1)[:, :5]
    else:
        wanted = ReferenceEvaluator(model).run(None, {})[0]
    assert np.abs(found - wanted).max() < 1e-7


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize(
    ("bits", "zeros"),  # ONNX Runtime has no 8 bits beside zero points of floats
    [*((n, kind) for n in (2, 4, 8) for kind in ("none", "packed")), (2, "floats"), (4, "floats")],
)
def test_blocks_are_those_of_onnxruntime(
    bits: int, zeros: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", chunk)
    inner, out, block = 40, 5, 16
    codes = RNG.integers(0, 256, (out, 3, block * bits // 8), np.uint8)
    points = {
        "none": None,
        "packed": RNG.integers(0, 256, (out * -(-3 * bits // 8),), np.uint8),
        "floats": RNG.uniform(0, 2**bits, (out, 3)).astype(np.float32),
    }
    arrays = [np.eye(inner, dtype=np.float32), codes, _scales(out, 3), points[zeros]]
    sizes = {"K": inner, "N": out, "bits": bits, "block_size": block}
    model = _model("MatMulNBits", arrays, "com.microsoft", "x", **sizes)
    found = _whole(_found(model))
    wanted = outputs(model, {"x": arrays[0]})[0].T
    assert np.abs(found - wanted).max() < 1e-5


def test_sums_over_inputs_are_products_of_the_whole() -> None:
    model = _model("DequantizeLinear", [_integers(30, 7), _scales(7)], axis=1)
    weight, s = _found(model), RNG.standard_normal(30)
    assert isinstance(weight, QuantisedWeight)
    along, across = Channels.along([(0, 30)]), Channels.along([(1, 7)])
    wanted = s @ _whole(weight)
    assert np.allclose(weighted_sum(weight, (30, 7), s, along, across), wanted, 0, 1e-12)
    t = RNG.standard_normal(7)
    wanted = _whole(weight) @ t
    assert np.allclose(weighted_sum(weight, (30, 7), t, across, along), wanted, 0, 1e-12)


BLOCKS: dict[str, Any] = {"K": 32, "N": 2, "bits": 4, "block_size": 16}
CODES = RNG.integers(0, 256, (2, 2, 8), np.uint8)
X = np.zeros((1, 32), np.float32)
UNKNOWN: dict[str, tuple[list[Array | None], dict[str, Any], str]] = {
    "an order": ([X, CODES, _scales(4), None, np.arange(32, dtype=np.int32)], BLOCKS, "g_idx"),
    "packed for a device": ([X, CODES, _scales(4)], BLOCKS | {"weight_prepacked": 1}, "layout"),
    "three bits": ([X, CODES, _scales(4)], BLOCKS | {"bits": 3}, "layout"),
    "other sizes": ([X, CODES, _scales(4)], BLOCKS | {"K": 64}, "layout"),
    "scales of another number": ([X, CODES, _scales(6)], BLOCKS, "layout"),
    "zero points of another number": (
        [X, CODES, _scales(4), np.zeros(3, np.uint8)],
        BLOCKS,
        "layout",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_codes_of_an_unknown_layout_are_refused(case: str) -> None:
    arrays, attributes, said = UNKNOWN[case]
    found = _found(_model("MatMulNBits", arrays, "com.microsoft", "x", **attributes))
    assert isinstance(found, Refusal)
    assert said in found.sentence


def test_codes_that_are_computed_are_refused() -> None:
    arrays: list[Array | None] = [_scales(4, 3), _scales(3)]
    found = _found(_model("DequantizeLinear", arrays, free="x", axis=1))
    assert isinstance(found, Refusal)
    assert found.code.value == "dynamic_weight"


def test_scales_of_an_unknown_layout_are_refused() -> None:
    found = _found(_model("DequantizeLinear", [_integers(4, 3), _scales(5)], axis=1))
    assert isinstance(found, Refusal)
    assert "layout" in found.sentence
