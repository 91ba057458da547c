"""Native precision against ONNX Runtime, over opsets and types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfold.check.reference import Array, is_wide_float
from tests.check.reference.cases import F16, Case, f
from tests.check.reference.contrib_cases import CONTRIB
from tests.check.reference.graphs import native, one_node, onnxruntime_outputs
from tests.check.reference.standard_cases import STANDARD

pytest.importorskip("onnxruntime")
# Few-term sums and transcendentals of two libraries differ by a few roundings of the type.
BOUNDS = {np.dtype(np.float32): 3e-6, np.dtype(np.float16): 2e-3, np.dtype(np.float64): 1e-13}


@pytest.mark.parametrize("case", STANDARD + CONTRIB, ids=str)
def test_the_interpreter_computes_what_onnxruntime_does(case: Case) -> None:
    proto = one_node(
        case.op,
        case.inputs,
        case.attributes,
        opset=case.opset,
        domain=case.domain,
        outputs=case.outputs,
    )
    expected = onnxruntime_outputs(proto, case.inputs)
    got = native(proto, case.inputs)
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        if not is_wide_float(mine.dtype):
            np.testing.assert_array_equal(mine, theirs)
            continue
        scale = float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=BOUNDS[mine.dtype] * scale)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Add", [f(8), f(8, seed=1)], {}),
        ("LayerNormalization", [f(4, 16), f(16), f(16, seed=1)], {}),
        ("MatMul", [f(4, 16), f(16, 5)], {}),
        ("Softmax", [f(4, 16)], {}),
        ("Gemm", [f(4, 16), f(16, 5), f(5)], {}),
    ],
)
def test_float16_results_are_float32_results_rounded_once(
    op: str, inputs: list[Array], attributes: dict[str, Any]
) -> None:
    halves = [x.astype(np.float16) for x in inputs]
    (got,) = native(one_node(op, halves, attributes, outputs=(F16,)), halves)
    wide = [x.astype(np.float32) for x in halves]
    (expected,) = native(one_node(op, wide, attributes), wide)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, expected.astype(np.float16))


def test_float64_models_stay_in_float64() -> None:
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(shape) for shape in ((3, 8), (8,), (8,))]
    proto = one_node("LayerNormalization", inputs, outputs=(TensorProto.DOUBLE,))
    (got,) = native(proto, inputs)
    assert got.dtype == np.float64
    # A sum of 8 terms, a root and a product: about ten roundings of 1.1e-16.
    np.testing.assert_allclose(got, onnxruntime_outputs(proto, inputs)[0], rtol=0, atol=2e-15)
