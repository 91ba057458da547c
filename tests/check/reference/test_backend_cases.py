"""The ONNX backend node tests, in both precisions, for every operator that has a kernel."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.check.reference import Array, Precision, check_supported, run
from onnxfold.check.reference.kernel import UnsupportedOperator, is_floating
from tests.graphs import graph

# Drawn at random, or answered in sequences and optionals, which no model output here can be.
_LEFT_OUT = ("bernoulli", "training_dropout", "sequence", "optional", "loop16_seq", "if_opt")
# Its scale is computed in float32 by definition; in float64 a tie falls the other way.
_NATIVE_ONLY = ("test_dynamicquantizelinear", "test_dynamicquantizelinear_expanded")


@functools.cache
def _cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return [c for c in collect_testcases(None) if not any(word in c.name for word in _LEFT_OUT)]


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value if value is None or isinstance(value, list) else np.asarray(value)


def _compare(got: Array, expected: Array, case: Any) -> None:
    assert got.shape == expected.shape, case.name
    if expected.dtype.kind in "OUS":
        assert (got == expected).all(), case.name
        return
    # The expected values come from other code of the same type, mostly written out in float32.
    half = is_floating(expected.dtype) and expected.dtype.itemsize == 2
    rtol, atol = (max(case.rtol, 2e-2), 2e-2) if half else (case.rtol, max(case.atol, 1e-5))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(
        got.astype(wide), expected.astype(wide), rtol=rtol, atol=atol, err_msg=case.name
    )


def _runs(precision: Precision) -> Iterator[str]:
    """Runs all cases that have kernels and yields the operators seen."""
    for case in _cases():
        if precision is Precision.FLOAT64 and case.name in _NATIVE_ONLY:
            continue
        model = ir.from_proto(case.model)
        names = [str(v.name) for v in model.graph.inputs]
        for inputs, outputs in case.data_sets:
            feeds = {n: _array(x) for n, x in zip(names, inputs, strict=True)}
            try:
                check_supported(model)
                got = run(model, feeds, precision=precision)
            except UnsupportedOperator:
                continue
            yield case.model.graph.node[0].op_type
            for value, expected in zip(model.graph.outputs, outputs, strict=True):
                result = got[str(value.name)]
                if precision is Precision.NATIVE:
                    assert result.dtype == _array(expected).dtype, case.name
                _compare(result, _array(expected), case)


@pytest.mark.parametrize("precision", list(Precision), ids=lambda p: p.name)
def test_every_operator_with_a_kernel_passes_its_backend_tests(precision: Precision) -> None:
    seen = list(_runs(precision))
    assert len(seen) > 1500
    assert len(set(seen)) > 140
    assert {"Conv", "LayerNormalization", "RMSNormalization", "Gemm", "Softmax"} <= set(seen)


_SMOOTH = (
    "test_attention_4d",
    "test_attention_3d",
    "test_rotary_embedding",
    "test_averagepool_2d_default",
    "test_batchnorm_epsilon",
    "test_center_crop_pad_crop",
    "test_col2im",
    "test_convtranspose",
    "test_det_2d",
    "test_einsum_batch_matmul",
    "test_gemm_all_attributes",
    "test_gru_defaults",
    "test_instancenorm_epsilon",
    "test_layer_normalization_default_axis",
    "test_logsoftmax_axis_0",
    "test_lrn",
    "test_lstm_defaults",
    "test_mvn",
    "test_nllloss_NC",
    "test_reduce_log_sum_exp_default_axes_keepdims_random",
    "test_resize_downsample_scales_cubic",
    "test_rms_normalization_default_axis",
    "test_roialign_aligned_false",
    "test_sce_mean",
    "test_softmax_large_number",
    "test_upsample_nearest",
)


@pytest.mark.parametrize("name", _SMOOTH)
def test_no_float32_hides_inside_a_float64_run(name: str) -> None:
    """Relative changes of 2**-36 are below float32's grid: a rounding inside would swallow them."""
    case = next(c for c in _cases() if c.name == name)
    model = ir.from_proto(case.model)
    names = [str(v.name) for v in model.graph.inputs]
    feeds = {n: _array(x) for n, x in zip(names, case.data_sets[0][0], strict=True)}
    generator = np.random.default_rng(0)
    feeds = {
        n: x * (1 + 0.01 * generator.uniform(size=x.shape)) if is_floating(x.dtype) else x
        for n, x in feeds.items()
    }
    moved = {
        n: x * (1 + 2.0**-36 * generator.uniform(size=x.shape)) if is_floating(x.dtype) else x
        for n, x in feeds.items()
    }
    before = next(iter(run(model, feeds, precision=Precision.FLOAT64).values()))
    after = next(iter(run(model, moved, precision=Precision.FLOAT64).values()))
    change = np.abs(after - before).max() / np.abs(before).max()
    assert 2.0**-46 < change < 2.0**-30


@pytest.mark.parametrize("inputs", ["x, , R", "x, W", "x"])
def test_a_recurrent_operator_without_its_weights_is_refused(inputs: str) -> None:
    constants = {"W": np.ones((1, 4, 3)), "R": np.ones((1, 4, 4))}
    body = f"y = RNN<hidden_size=4>({inputs})"
    made = graph(body, "double[2,1,3] x", "double[2,1,1,4] y", constants)
    with pytest.raises(UnsupportedOperator, match="a missing input"):
        run(made, {"x": np.ones((2, 1, 3))}, precision=Precision.FLOAT64)
