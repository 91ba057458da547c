"""A quantized norm becomes one call, which computes the codes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.operators.functions import DOMAIN
from tests.graphs import Array, model, without_shapes
from tests.sessions import outputs

C = 16
LAYOUTS = {
    "Reshape": "Reshape({}, flat)",
    "Transpose": "Transpose<perm=[1,0,2]>({})",
    "Flatten": "Flatten<axis=2>({})",
    "Unsqueeze": "Unsqueeze({}, first)",
    "Squeeze": "Squeeze({}, first)",
}
INT8, UINT8, FLOAT8 = TensorProto.INT8, TensorProto.UINT8, TensorProto.FLOAT8E4M3FN
KINDS = {INT8: "int8", UINT8: "uint8", FLOAT8: "float8e4m3fn", TensorProto.FLOAT: "float"}


def model_of(
    body: str, outputs: dict[str, int], *, opset: int = 21, code: int = INT8
) -> onnx.ModelProto:
    """y = LayerNormalization(x), and the nodes given."""
    rng = np.random.default_rng(0)
    constants: dict[str, Array] = {
        "gamma": 1 + rng.random(C),
        "beta": rng.random(C),
        "step": np.array(0.05),
        "steps": np.full(C, 0.05),
        "levels": np.array(448.0 if code == FLOAT8 else 127.0),
        "floor": np.array(1e-4),
        "low": np.array(-128.0),
        "least8": np.array(-448.0),
        "high": np.array(127.0),
        "last": np.array([-1]),
        "first": np.array([0]),
        "one": np.array([1]),
        "flat": np.array([-1, C]),
    }
    results = ", ".join(f"{KINDS[kind]} {name}" for name, kind in outputs.items())
    norm = "[norm] y = LayerNormalization(x, gamma, beta)"
    inputs = f"float[batch,3,{C}] x"
    proto = model(f"{norm} {body}", inputs, results, constants, opset, dtype=np.float32)
    proto.ir_version = 10
    if "zero" in body:
        zero = helper.make_tensor("zero", code, (), [0 if code == FLOAT8 else 3])
        proto.graph.initializer.append(zero)
    return without_shapes(proto)


PER_TENSOR = "q = QuantizeLinear(y, step, zero)"


def reshaped(*layouts: str) -> str:
    """The norm in another layout, and the codes of that."""
    values = ["y", *(f"v{number}" for number in range(len(layouts)))]
    turned = "".join(
        f"{after} = {LAYOUTS[layout].format(before)} "
        for layout, before, after in zip(layouts, values, values[1:], strict=False)
    )
    return f"{turned}q = QuantizeLinear({values[-1]}, step, zero)"


ROWS = "a = Abs(y) m = ReduceMax<keepdims=1>(a, last) "
CODES = "d = Div(y, s) r = Round(d) c = Clip(r, low, high) q = Cast<to=3>(c)"
# As exporters spell it; the floor may come before or after the division.
PER_ROW = {
    "plain": f"{ROWS} s = Div(m, levels) {CODES}",
    "floor before": f"{ROWS} m1 = Max(m, floor) s = Div(m1, levels) {CODES}",
    "floor behind": f"{ROWS} s0 = Div(m, levels) s = Max(s0, floor) {CODES}",
    "no clip": f"{ROWS} s = Div(m, levels) d = Div(y, s) r = Round(d) q = Cast<to=3>(r)",
}


def per_row_float8(*, clip: bool = True, floor: bool = False, saturate: int = 1) -> str:
    """As torch spells it: amax.clamp(min) / 448, and (y / scale).clamp(-448, 448) in float8."""
    clipped = "c = Clip(d, least8, levels)" if clip else ""
    least = "m1 = Clip(m, floor) s = Div(m1, levels)" if floor else "s = Div(m, levels)"
    cast = f"Cast<to={FLOAT8}, saturate={saturate}>({'c' if clip else 'd'})"
    return f"{ROWS} {least} d = Div(y, s) {clipped} q = {cast}"


def blocked(code: int = INT8, more: str = "") -> str:
    attributes = f"axis=-1, block_size={C}, output_dtype={code}{more}"
    return f"{ROWS} s = Div(m, levels) q = QuantizeLinear<{attributes}>(y, s)"


def lowered(given: onnx.ModelProto) -> ir.Model:
    return ir.from_proto(onnxfold.optimize(given, target="kernels").model)


def calls(made: ir.Model) -> list[str]:
    return [node.op_type for node in made.graph if node.domain == DOMAIN]


def outputs_of(given: onnx.ModelProto, *, kernels: bool) -> list[np.ndarray]:
    x = np.random.default_rng(1).standard_normal((2, 3, C)).astype(np.float32)
    x[1, 2] = 0.5  # a row whose norm is beta
    return outputs(given, {"x": x}, kernels=kernels)


def assert_same_codes(given: onnx.ModelProto, *, kernels: bool) -> None:
    """Codes are equal but for values within rounding of the middle between two: none is here."""
    written = onnxfold.optimize(given, target="kernels").model
    for got, expected in zip(
        outputs_of(written, kernels=kernels), outputs_of(given, kernels=False), strict=True
    ):
        assert got.dtype == expected.dtype
        if got.dtype == np.float32:  # the scale of rows, by another order of summation
            np.testing.assert_allclose(got, expected, rtol=4e-6)
        else:
            assert np.array_equal(got, expected)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(("opset", "code"), [(17, INT8), (17, UINT8), (21, INT8)])
def test_a_quantised_norm_is_one_call(opset: int, code: int, kernels: bool) -> None:
    given = model_of(PER_TENSOR, {"q": code}, opset=opset, code=code)
    result = lowered(given)
    assert calls(result) == ["LayerNormAffineQuantize"]
    assert len(list(result.graph)) == 1
    assert_same_codes(given, kernels=kernels)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("code", [INT8, UINT8])
@pytest.mark.parametrize(
    "layouts",
    [("Reshape",), ("Transpose",), ("Flatten",), ("Unsqueeze", "Squeeze", "Reshape")],
    ids="-".join,
)
def test_a_norm_whose_codes_have_another_layout_is_one_call(
    layouts: tuple[str, ...], code: int, kernels: bool
) -> None:
    given = model_of(reshaped(*layouts), {"q": code}, opset=17, code=code)
    result = lowered(given)
    assert calls(result) == ["LayerNormAffineQuantize"]
    rest = [node.op_type for node in result.graph if node.domain != DOMAIN]
    assert rest == list(layouts)
    assert_same_codes(given, kernels=kernels)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("layout", ["Reshape", "Transpose"])
def test_float8_has_another_layout_where_operators_take_it(layout: str, kernels: bool) -> None:
    given = model_of(reshaped(layout), {"q": FLOAT8}, opset=21, code=FLOAT8)
    assert calls(lowered(given)) == ["LayerNormAffineQuantize"]
    assert_same_codes(given, kernels=kernels)


@pytest.mark.parametrize(("layout", "opset"), [("Reshape", 19), ("Transpose", 19), ("Flatten", 21)])
def test_float8_keeps_the_layout_where_no_operator_takes_it(layout: str, opset: int) -> None:
    given = model_of(reshaped(layout), {"q": FLOAT8}, opset=opset, code=FLOAT8)
    assert calls(lowered(given)) in (["LayerNormAffine"], [])
    assert_same_codes(given, kernels=True)


def test_a_shape_that_is_computed_behind_the_norm_is_read_there() -> None:
    """As exporters order nodes: a Reshape's shape is computed between it and the norm."""
    shape = "size = Shape(x) rows = Slice(size, first, one) target = Concat<axis=0>(rows, last)"
    body = f"{shape} {reshaped('Reshape').replace('flat', 'target')}"
    given = model_of(body, {"q": INT8}, opset=17)
    assert calls(lowered(given)) == ["LayerNormAffineQuantize"]
    assert_same_codes(given, kernels=True)


def test_a_layout_that_others_read_stays_with_the_norm() -> None:
    body = f"{reshaped('Reshape')} z = Relu(v0)"
    given = model_of(body, {"q": INT8, "z": TensorProto.FLOAT}, opset=17)
    assert calls(lowered(given)) in (["LayerNormAffine"], [])


def test_a_norm_quantised_to_float8_is_one_call() -> None:
    given = model_of(PER_TENSOR, {"q": FLOAT8}, code=FLOAT8)
    assert calls(lowered(given)) == ["LayerNormAffineQuantize"]


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("spelling", PER_ROW)
def test_a_norm_quantised_by_rows_is_one_call(spelling: str, kernels: bool) -> None:
    given = model_of(PER_ROW[spelling], {"q": INT8, "s": TensorProto.FLOAT}, opset=18)
    result = lowered(given)
    assert calls(result) == ["LayerNormAffineQuantizeRows"]
    assert len(list(result.graph)) == 1
    assert_same_codes(given, kernels=kernels)


@pytest.mark.parametrize("code", [INT8, FLOAT8])
def test_blocks_that_are_rows_are_quantised_by_rows(code: int) -> None:
    given = model_of(blocked(code), {"q": code}, code=code)
    assert calls(lowered(given)) == ["LayerNormAffineQuantizeRows"]


@pytest.mark.parametrize(
    ("last", "call"),
    [(0, "LayerNormAffineQuantizeRows"), (1, "LayerNormAffine"), (None, "LayerNormAffine")],
    ids=["0", "1 in one row", "given"],
)
def test_rows_have_no_zero_points_but_0(last: int | None, call: str) -> None:
    given = model_of(blocked().replace("(y, s)", "(y, s, points)"), {"q": INT8})
    given.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    if last is None:
        given.graph.input.append(helper.make_tensor_value_info("points", INT8, (2, 3, 1)))
    else:
        points = helper.make_tensor("points", INT8, (2, 3, 1), [0, 0, 0, 0, 0, last])
        given.graph.initializer.append(points)
    assert calls(lowered(given)) == [call]


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("floor", [False, True])
def test_a_norm_quantised_to_float8_by_rows_is_one_call(
    clip: bool, floor: bool, kernels: bool
) -> None:
    body = per_row_float8(clip=clip, floor=floor)
    given = model_of(body, {"q": FLOAT8, "s": TensorProto.FLOAT}, code=FLOAT8)
    result = lowered(given)
    assert calls(result) == ["LayerNormAffineQuantizeRows"]
    assert len(list(result.graph)) == 1
    assert_same_codes(given, kernels=kernels)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (per_row_float8(saturate=0), FLOAT8),
        (per_row_float8(), INT8),  # levels and a Clip of 127
        (blocked(FLOAT8, ", saturate=0"), FLOAT8),
        (blocked(more=", precision=10"), INT8),
        ("q = QuantizeLinear<saturate=0>(y, step, zero)", FLOAT8),
    ],
    ids=[
        *("infinite beyond 448", "levels of int8", "blocks, infinite beyond 448"),
        *("half precision", "of one scale, infinite beyond 448"),
    ],
)
def test_other_codes_of_rows_keep_their_nodes(body: str, code: int) -> None:
    opset = 23 if "precision" in body else 21
    given = model_of(body, {"q": FLOAT8 if "Cast" in body else code}, opset=opset, code=code)
    assert calls(lowered(given)) in (["LayerNormAffine"], [])


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (PER_TENSOR, {"q": INT8, "y": TensorProto.FLOAT}),
        ("q = QuantizeLinear<axis=-1>(y, steps)", {"q": UINT8}),
        (PER_ROW["no clip"].replace("to=3", f"to={UINT8}"), {"q": UINT8}),
        (f"{PER_ROW['plain']} z = Relu(y)", {"q": INT8, "z": 1}),
    ],
    ids=["read elsewhere", "by channel", "other codes", "three readers"],
)
def test_what_is_no_quantised_norm_keeps_its_nodes(body: str, outputs: dict[str, int]) -> None:
    assert calls(lowered(model_of(body, outputs, opset=18))) in (["LayerNormAffine"], [])


def quantised_norms(*epsilons: float, spelled: bool) -> onnx.ModelProto:
    """Norms of x, each with an epsilon and quantized; the last may be spelled out."""
    lines = []
    for number, epsilon in enumerate(epsilons):
        norm = f"LayerNormalization <epsilon = {epsilon}> (x, gamma, beta)"
        if spelled and number == len(epsilons) - 1:
            lines.append(f"""
                mean = ReduceMean <axes = [-1]> (x)  d = Sub(x, mean)  square = Mul(d, d)
                variance = ReduceMean <axes = [-1]> (square)
                epsilon = Constant <value = float {{{epsilon}}}> ()
                stable = Add(variance, epsilon)  root = Sqrt(stable)  normal = Div(d, root)
                scaled = Mul(normal, gamma)""")
            norm = "Add(scaled, beta)"
        lines.append(f"y{number} = {norm}")
        lines.append(f"q{number} = QuantizeLinear(y{number}, step, zero)")
    outputs = ", ".join(f"int8[batch, {C}] q{number}" for number in range(len(epsilons)))
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        quantised (float[batch, {C}] x) => ({outputs}) {{
            {chr(10).join(lines)}
        }}""")
    for name in ("gamma", "beta"):
        values = np.random.default_rng(0).random(C).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    model.graph.initializer.append(helper.make_tensor("step", TensorProto.FLOAT, (), [0.05]))
    model.graph.initializer.append(helper.make_tensor("zero", INT8, (), [3]))
    return model


@pytest.mark.parametrize("spelled", [False, True])
def test_norms_of_another_setting_keep_their_quantize_linear(spelled: bool) -> None:
    model = quantised_norms(1e-6, 1e-6, 1e-5, spelled=spelled)
    once = onnxfold.optimize(model, target="kernels").model
    result = ir.from_proto(once)
    kept = "LayerNormAffine" if spelled else "LayerNormalization"
    quantized = ["LayerNormAffineQuantize"] * 2
    assert [node.op_type for node in result.graph] == [*quantized, kept, "QuantizeLinear"]
    assert not onnxfold.optimize(once, target="kernels").changed
