"""Norms give d - 1 channels where linear layers alone read them, which take other rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.options import Conversion, WrittenForm
from onnxfold.passes.base import Settings
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.passes.stream_forms.compress import apply as compress
from onnxfold.passes.stream_forms.compress import decide as decide_compression
from onnxfold.passes.stream_forms.plan import ReadersPlan, Shortened
from onnxfold.passes.stream_forms.shrink_consumers import apply, decide, decide_back
from onnxfold.pipeline.finalize import define_functions, settle_functions
from onnxfold.pipeline.proofs import of_readers as prove
from onnxfold.target import Target
from tests.passes.centred_stream import FEEDS, C, CentredStream, between
from tests.soundness.float64 import evaluate, relative_error

Array = npt.NDArray[Any]
_VISIBLE, _ROUNDING = 1e-4, 1e-12  # outputs of size 1 in float64
_CRMS = Settings(convert_to=Conversion.CRMS, change_readers=True)
_PLAN = ReadersPlan(("n",), layers=(Shortened("head", 0),))


def _shorter(model: onnx.ModelProto, **options: Any) -> onnxfold.Result:
    return onnxfold.convert(model, to="crms", check=0, change_readers=True, **options)


def _weights(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _error(a: onnx.ModelProto, b: onnx.ModelProto) -> float:
    return relative_error(evaluate(a, FEEDS), evaluate(b, FEEDS))


def _behind(*steps: Callable[[CentredStream], object], gamma: bool = True) -> onnx.ModelProto:
    """The model with more nodes after its norm, whose output is n."""
    graph = CentredStream()
    if not gamma:
        graph.weights["gamma"] = np.ones(C)
    model = graph.model()
    extra = CentredStream()
    extra.nodes, extra.outputs, extra.weights = [], [], {}
    for step in steps:
        step(extra)
    model.graph.node.extend(extra.nodes)
    kind = (TensorProto.DOUBLE, None)
    model.graph.output.extend(helper.make_tensor_value_info(n, *kind) for n in extra.outputs)
    model.graph.initializer.extend(
        numpy_helper.from_array(a, name) for name, a in extra.weights.items()
    )
    return model


@pytest.mark.parametrize("target", Target)
def test_a_linear_layer_reads_the_differences_to_its_last_row(target: Target) -> None:
    model = CentredStream().model()
    result = _shorter(model, target=target)
    assert result.report["inspect"]["summary"]["without_last"] == 1
    assert result.proof is not None
    assert (result.proof.compressed_norms, result.proof.changed_readers) == (1, 1)
    assert "left_out" not in result.report
    old, new = _weights(model), _weights(result.model)
    scaled = old["gamma"][:, None] * old["head"]
    # Two roundings of float64.
    np.testing.assert_allclose(new["head"], scaled[:-1] - scaled[-1], rtol=0, atol=4 * 2.0**-53)
    assert _error(model, result.model) < _ROUNDING
    assert not _shorter(result.model, target=target).changed


def test_two_norms_give_one_channel_less_each_to_their_own_readers() -> None:
    second = between(
        "n2 = RMSNormalization<axis=-1>(h, gamma) y2 = MatMul(n2, head2)",
        "y2",
        head2=np.random.default_rng(6).standard_normal((C, 3)),
    )
    model = _behind(second)
    result = _shorter(model)
    assert result.report["inspect"]["summary"]["without_last"] == 2
    assert _error(model, result.model) < _ROUNDING
    sizes = {name: array.shape[0] for name, array in _weights(result.model).items()}
    assert sizes["head"] == sizes["head2"] == C - 1


def _kept(model: onnx.ModelProto) -> dict[str, Any]:
    """Return why the one norm gives all channels, where it is a CRMSNorm all the same."""
    result = _shorter(model)
    assert _error(model, result.model) < _ROUNDING
    (row,) = result.report["inspect"]["norms"]
    assert row["action"] == "crms"
    assert result.report["inspect"]["summary"]["without_last"] == 0
    reason: dict[str, Any] = row["readers_reason"]
    return reason


_residual = between("r = Relu(n) sum = Add(n, r)", "sum")


def _in_a_body(graph: CentredStream) -> None:
    kind = (TensorProto.DOUBLE, None)
    body = helper.make_graph(
        [helper.make_node("MatMul", ["n", "head"], ["inside"])], "body", [],
        [helper.make_tensor_value_info("inside", *kind)],
    )  # fmt: skip
    graph.weights["yes"] = np.array(True)
    graph.outputs.append(graph.node("If", ["yes"], "chosen", then_branch=body, else_branch=body))


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (_residual, "exact_reader"),
        (between("size = ReduceSumSquare<keepdims=0>(head)", "size"), "shared_weight"),
        (between("", "n", reads="n"), "graph_output"),
        (
            between(
                "split = Reshape(n, heads) by_head = MatMul(split, W4)",
                "by_head",
                heads=[0, 0, 2, C // 2],
                W4=np.random.default_rng(5).standard_normal((C // 2, 3)),
            ),
            "fiber_broken",
        ),
        (_in_a_body, "body_border"),
    ],
)
def test_a_norm_gives_all_channels_where_a_reader_is_no_linear_layer(
    step: Callable[[CentredStream], object], code: str
) -> None:
    assert _kept(_behind(step, gamma=False))["code"] == code


def test_gamma_that_no_layer_takes_keeps_all_channels() -> None:
    assert _kept(_behind(_residual))["code"] == "affine_norm_output"


_RNG = np.random.default_rng(6)
_turned = between(
    "sizes = Shape(n) batch = Gather<axis=0>(sizes, first) seen = Cast<to=11>(batch) "
    "flat = Reshape(n, rows) g = Gemm<transB=1, alpha=0.5>(flat, A, c) "
    "Dt = Transpose<perm=[1,0]>(D) d = MatMul(n, Dt)",
    "seen g d",
    first=[0, 1],
    rows=[-1, C],
    A=_RNG.standard_normal((3, C)),
    c=_RNG.standard_normal(3),
    D=_RNG.standard_normal((2, C)),
)


def test_layouts_of_the_norm_and_of_weights_go_along() -> None:
    model = _behind(_turned)
    result = _shorter(model)
    assert result.report["inspect"]["summary"]["without_last"] == 1
    assert result.proof is not None
    assert result.proof.changed_readers == 3
    shapes = {name: array.shape for name, array in _weights(result.model).items()}
    assert (shapes["head"], shapes["A"], shapes["D"]) == ((C - 1, 4), (3, C - 1), (2, C - 1))
    assert _error(model, result.model) < _ROUNDING
    onnx.checker.check_model(result.model, full_check=True)


def _version(model: onnx.ModelProto) -> ModelInfo:
    """The version of the model that the pass sees: with calls of CRMSNormFull."""
    info = prepare(ir.from_proto(model)).info
    edit = Editor(info)
    compress(edit, decide_compression(info, _CRMS), _CRMS)
    define_functions(ModelInfo(edit.model), Target.ONNX, WrittenForm.AUTO)
    return ModelInfo(edit.model)


def _forced(
    model: onnx.ModelProto, plan: ReadersPlan, spoil: Callable[[ir.Model], None] | None = None
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Carry out a plan that nobody made for the model, and spoil what comes of it."""
    before = _version(model)
    edit = Editor(before, copy=True)
    apply(edit, plan, _CRMS)
    define_functions(ModelInfo(edit.model), Target.ONNX, WrittenForm.AUTO)
    if spoil is not None:
        spoil(edit.model)
    shown = prove(before, ModelInfo(edit.model), plan)
    settle_functions(edit.model, 10)
    return ir.to_proto(edit.model), shown.failures


def test_the_plan_of_these_tests_is_right_where_nothing_is_wrong() -> None:
    model = _behind(gamma=False)
    assert decide(_version(model), _CRMS).layers == _PLAN.layers
    changed, failures = _forced(model, _PLAN)
    assert not failures
    assert _error(model, changed) < _ROUNDING


def _set(model: ir.Model, name: str, change: Callable[[Array], Array]) -> None:
    value = model.graph.initializers[name]
    assert value.const_value is not None
    value.const_value = ir.tensor(change(value.const_value.numpy().copy()), name=name)


def _one_number(array: Array) -> Array:
    array[-1, -1] += 1.0
    return array


def test_one_number_that_is_another_fails_the_proof() -> None:
    model = _behind(gamma=False)
    changed, failures = _forced(model, _PLAN, lambda made: _set(made, "head", _one_number))
    assert failures
    assert _error(model, changed) > _VISIBLE


def test_rows_that_are_only_cut_are_wrong() -> None:
    """y_d is not 0: its row must be taken from the others."""
    model = _behind(gamma=False)
    head = _weights(model)["head"]
    changed, failures = _forced(
        model, _PLAN, lambda made: _set(made, "head", lambda array: head[:-1])
    )
    assert failures
    assert _error(model, changed) > _VISIBLE


def test_a_norm_with_gamma_must_not_be_shortened() -> None:
    """The sum of gamma * y is not 0."""
    changed, failures = _forced(CentredStream().model(), _PLAN)
    assert failures
    assert _error(CentredStream().model(), changed) > _VISIBLE


@pytest.mark.parametrize("target", [Target.ONNX, Target.KERNELS])
@pytest.mark.parametrize("to", ["rms", "layer"])
def test_the_way_back_appends_a_row_of_zeros(to: str, target: Target) -> None:
    model = _behind(_turned)
    short = _shorter(model, target=target).model
    result = onnxfold.convert(short, to=to, check=0)
    assert result.proof is not None
    assert (result.proof.decompressed_norms, result.proof.changed_readers) == (1, 3)
    old, new = _weights(short), _weights(result.model)
    assert np.array_equal(new["head"], np.vstack([old["head"], np.zeros((1, 4))]))
    assert "Slice" not in {node.op_type for node in result.model.graph.node}
    assert _error(model, result.model) < _ROUNDING


def test_another_last_row_on_the_way_back_fails_the_proof() -> None:
    short = _shorter(CentredStream().model()).model
    before = prepare(ir.from_proto(short), compressed=True).info
    plan = decide_back(before, replace(_CRMS, convert_to=Conversion.RMS, change_readers=False))
    assert plan.more == 1
    results = []
    for spoil in (lambda array: array, _one_number):
        edit = Editor(before, copy=True)
        apply(edit, plan, Settings(convert_to=Conversion.RMS))
        _set(edit.model, "head", spoil)
        shown = prove(before, ModelInfo(edit.model), plan)
        results.append((bool(shown.failures), _error(short, ir.to_proto(edit.model)) > _VISIBLE))
    assert results == [(False, False), (True, True)]


@pytest.mark.parametrize("to", ["rms", "layer"])
def test_readers_change_for_crms_alone(to: str) -> None:
    with pytest.raises(onnxfold.UsageError, match="change_readers=True is for to='crms'"):
        onnxfold.convert(CentredStream().model(), to=to, change_readers=True)
