"""A quantized norm becomes one call, which computes the codes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.operators.functions import DOMAIN
from tests.sessions import outputs

C = 16
LAYOUTS: dict[str, tuple[list[str], dict[str, object]]] = {
    "Reshape": (["flat"], {}),
    "Transpose": ([], {"perm": [1, 0, 2]}),
    "Flatten": ([], {"axis": 2}),
    "Unsqueeze": (["first"], {}),
    "Squeeze": (["first"], {}),
}
INT8, UINT8, FLOAT8 = TensorProto.INT8, TensorProto.UINT8, TensorProto.FLOAT8E4M3FN


def model_of(
    nodes: Sequence[onnx.NodeProto], outputs: dict[str, int], *, opset: int = 21, code: int = INT8
) -> onnx.ModelProto:
    """y = LayerNormalization(x), and the nodes given."""
    rng = np.random.default_rng(0)
    constants = {
        "gamma": (1 + rng.random(C)).astype(np.float32),
        "beta": rng.random(C).astype(np.float32),
        "step": np.float32(0.05),
        "steps": np.full(C, 0.05, np.float32),
        "levels": np.float32(448.0 if code == FLOAT8 else 127.0),
        "floor": np.float32(1e-4),
        "low": np.float32(-128),
        "least8": np.float32(-448),
        "high": np.float32(127),
        "last": np.array([-1], np.int64),
        "first": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "flat": np.array([-1, C], np.int64),
    }
    initializers = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    zero = 0 if code == FLOAT8 else 3
    initializers.append(helper.make_tensor("zero", code, (), [zero]))
    norm = helper.make_node("LayerNormalization", ["x", "gamma", "beta"], ["y"], name="norm")
    read = {name for node in (norm, *nodes) for name in node.input}
    graph = helper.make_graph(
        [norm, *nodes],
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, C])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [tensor for tensor in initializers if tensor.name in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def per_tensor(**attributes: int) -> list[onnx.NodeProto]:
    return [helper.make_node("QuantizeLinear", ["y", "step", "zero"], ["q"], **attributes)]


def reshaped(code: int, *layouts: str) -> list[onnx.NodeProto]:
    """The norm in another layout, and the codes of that."""
    nodes, value = [], "y"
    for number, layout in enumerate(layouts):
        inputs = [value, *LAYOUTS[layout][0]]
        value = f"v{number}"
        nodes.append(helper.make_node(layout, inputs, [value], **LAYOUTS[layout][1]))
    return [*nodes, helper.make_node("QuantizeLinear", [value, "step", "zero"], ["q"])]


def per_row(*, floor: str = "", clip: bool = True) -> list[onnx.NodeProto]:
    """As exporters spell it; the floor may come before or after the division."""
    nodes = [
        helper.make_node("Abs", ["y"], ["a"]),
        helper.make_node("ReduceMax", ["a", "last"], ["m"], keepdims=1),
    ]
    if floor == "before":
        nodes.append(helper.make_node("Max", ["m", "floor"], ["m1"]))
    behind = floor == "behind"
    divided = helper.make_node(
        "Div", ["m1" if floor == "before" else "m", "levels"], ["s0" if behind else "s"]
    )
    nodes.append(divided)
    if behind:
        nodes.append(helper.make_node("Max", ["s0", "floor"], ["s"]))
    nodes += [
        helper.make_node("Div", ["y", "s"], ["d"]),
        helper.make_node("Round", ["d"], ["r"]),
        helper.make_node("Clip", ["r", "low", "high"], ["c"]),
        helper.make_node("Cast", ["c" if clip else "r"], ["q"], to=INT8),
    ]
    return nodes if clip else [node for node in nodes if node.op_type != "Clip"]


def per_row_float8(
    *, clip: bool = True, floor: bool = False, saturate: int = 1
) -> list[onnx.NodeProto]:
    """As torch spells it: amax.clamp(min) / 448, and (y / scale).clamp(-448, 448) in float8."""
    nodes = [
        helper.make_node("Abs", ["y"], ["a"]),
        helper.make_node("ReduceMax", ["a", "last"], ["m"], keepdims=1),
        helper.make_node("Clip", ["m", "floor"], ["m1"]),
        helper.make_node("Div", ["m1" if floor else "m", "levels"], ["s"]),
        helper.make_node("Div", ["y", "s"], ["d"]),
        helper.make_node("Clip", ["d", "least8", "levels"], ["c"]),
        helper.make_node("Cast", ["c" if clip else "d"], ["q"], to=FLOAT8, saturate=saturate),
    ]
    left_out = {*(() if clip else ("c",)), *(() if floor else ("m1",))}
    return [node for node in nodes if node.output[0] not in left_out]


def blocked(code: int = INT8, **attributes: int) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Abs", ["y"], ["a"]),
        helper.make_node("ReduceMax", ["a", "last"], ["m"], keepdims=1),
        helper.make_node("Div", ["m", "levels"], ["s"]),
        helper.make_node(
            "QuantizeLinear",
            ["y", "s"],
            ["q"],
            **{"axis": -1, "block_size": C, "output_dtype": code} | attributes,
        ),
    ]


def lowered(model: onnx.ModelProto) -> ir.Model:
    return ir.from_proto(onnxfold.optimize(model, target="kernels").model)


def calls(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.domain == DOMAIN]


def outputs_of(model: onnx.ModelProto, *, kernels: bool) -> list[np.ndarray]:
    x = np.random.default_rng(1).standard_normal((2, 3, C)).astype(np.float32)
    x[1, 2] = 0.5  # a row whose norm is beta
    return outputs(model, {"x": x}, kernels=kernels)


def assert_same_codes(model: onnx.ModelProto, *, kernels: bool) -> None:
    """Codes are equal but for values within rounding of the middle between two: none is here."""
    written = onnxfold.optimize(model, target="kernels").model
    for got, expected in zip(
        outputs_of(written, kernels=kernels), outputs_of(model, kernels=False), strict=True
    ):
        assert got.dtype == expected.dtype
        if got.dtype == np.float32:  # the scale of rows, by another order of summation
            np.testing.assert_allclose(got, expected, rtol=4e-6)
        else:
            assert np.array_equal(got, expected)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(("opset", "code"), [(17, INT8), (17, UINT8), (21, INT8)])
def test_a_quantised_norm_is_one_call(opset: int, code: int, kernels: bool) -> None:
    model = model_of(per_tensor(), {"q": code}, opset=opset, code=code)
    result = lowered(model)
    assert calls(result) == ["LayerNormAffineQuantize"]
    assert len(list(result.graph)) == 1
    assert_same_codes(model, kernels=kernels)


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
    model = model_of(reshaped(code, *layouts), {"q": code}, opset=17, code=code)
    result = lowered(model)
    assert calls(result) == ["LayerNormAffineQuantize"]
    rest = [node.op_type for node in result.graph if node.domain != DOMAIN]
    assert rest == list(layouts)
    assert_same_codes(model, kernels=kernels)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("layout", ["Reshape", "Transpose"])
def test_float8_has_another_layout_where_operators_take_it(layout: str, kernels: bool) -> None:
    model = model_of(reshaped(FLOAT8, layout), {"q": FLOAT8}, opset=21, code=FLOAT8)
    assert calls(lowered(model)) == ["LayerNormAffineQuantize"]
    assert_same_codes(model, kernels=kernels)


@pytest.mark.parametrize(("layout", "opset"), [("Reshape", 19), ("Transpose", 19), ("Flatten", 21)])
def test_float8_keeps_the_layout_where_no_operator_takes_it(layout: str, opset: int) -> None:
    model = model_of(reshaped(FLOAT8, layout), {"q": FLOAT8}, opset=opset, code=FLOAT8)
    assert calls(lowered(model)) in (["LayerNormAffine"], [])
    assert_same_codes(model, kernels=True)


def test_a_shape_that_is_computed_behind_the_norm_is_read_there() -> None:
    """As exporters order nodes: a Reshape's shape is computed between it and the norm."""
    shape = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Slice", ["size", "first", "one"], ["rows"]),
        helper.make_node("Concat", ["rows", "last"], ["target"], axis=0),
    ]
    nodes = reshaped(INT8, "Reshape")
    nodes[0].input[1] = "target"
    model = model_of([*shape, *nodes], {"q": INT8}, opset=17)
    assert calls(lowered(model)) == ["LayerNormAffineQuantize"]
    assert_same_codes(model, kernels=True)


def test_a_layout_that_others_read_stays_with_the_norm() -> None:
    nodes = [*reshaped(INT8, "Reshape"), helper.make_node("Relu", ["v0"], ["z"])]
    model = model_of(nodes, {"q": INT8, "z": TensorProto.FLOAT}, opset=17)
    assert calls(lowered(model)) in (["LayerNormAffine"], [])


def test_a_norm_quantised_to_float8_is_one_call() -> None:
    model = model_of(per_tensor(), {"q": FLOAT8}, code=FLOAT8)
    assert calls(lowered(model)) == ["LayerNormAffineQuantize"]


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(
    "nodes",
    [per_row(), per_row(floor="before"), per_row(floor="behind"), per_row(clip=False)],
    ids=["plain", "floor before", "floor behind", "no clip"],
)
def test_a_norm_quantised_by_rows_is_one_call(nodes: list[onnx.NodeProto], kernels: bool) -> None:
    model = model_of(nodes, {"q": INT8, "s": TensorProto.FLOAT}, opset=18)
    result = lowered(model)
    assert calls(result) == ["LayerNormAffineQuantizeRows"]
    assert len(list(result.graph)) == 1
    assert_same_codes(model, kernels=kernels)


@pytest.mark.parametrize("code", [INT8, FLOAT8])
def test_blocks_that_are_rows_are_quantised_by_rows(code: int) -> None:
    model = model_of(blocked(code), {"q": code}, code=code)
    assert calls(lowered(model)) == ["LayerNormAffineQuantizeRows"]


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("floor", [False, True])
def test_a_norm_quantised_to_float8_by_rows_is_one_call(
    clip: bool, floor: bool, kernels: bool
) -> None:
    nodes = per_row_float8(clip=clip, floor=floor)
    model = model_of(nodes, {"q": FLOAT8, "s": TensorProto.FLOAT}, code=FLOAT8)
    result = lowered(model)
    assert calls(result) == ["LayerNormAffineQuantizeRows"]
    assert len(list(result.graph)) == 1
    assert_same_codes(model, kernels=kernels)


@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        (per_row_float8(saturate=0), FLOAT8),
        (per_row_float8(), INT8),  # levels and a Clip of 127
        (blocked(FLOAT8, saturate=0), FLOAT8),
        (blocked(precision=TensorProto.FLOAT16), INT8),
        (per_tensor(saturate=0), FLOAT8),
    ],
    ids=[
        *("infinite beyond 448", "levels of int8", "blocks, infinite beyond 448"),
        *("half precision", "of one scale, infinite beyond 448"),
    ],
)
def test_other_codes_of_rows_keep_their_nodes(nodes: list[onnx.NodeProto], code: int) -> None:
    opset = 23 if any(a.name == "precision" for node in nodes for a in node.attribute) else 21
    model = model_of(
        nodes, {"q": FLOAT8 if nodes[-1].op_type == "Cast" else code}, opset=opset, code=code
    )
    assert calls(lowered(model)) in (["LayerNormAffine"], [])


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (per_tensor(), {"q": INT8, "y": TensorProto.FLOAT}),
        ([helper.make_node("QuantizeLinear", ["y", "steps"], ["q"], axis=-1)], {"q": UINT8}),
        ([*per_row()[:-2], helper.make_node("Cast", ["r"], ["q"], to=UINT8)], {"q": UINT8}),
        ([*per_row(), helper.make_node("Relu", ["y"], ["z"])], {"q": INT8, "z": 1}),
    ],
    ids=["read elsewhere", "by channel", "other codes", "three readers"],
)
def test_what_is_no_quantised_norm_keeps_its_nodes(
    nodes: list[onnx.NodeProto], outputs: dict[str, int]
) -> None:
    assert calls(lowered(model_of(nodes, outputs, opset=18))) in (["LayerNormAffine"], [])


def quantised_norms(*epsilons: float, spelled: bool) -> onnx.ModelProto:
    """Norms of x, each with an epsilon and quantized; the last may be spelled out."""
    lines = []
    for number, epsilon in enumerate(epsilons):
        norm = f"LayerNormalization <epsilon = {epsilon}> (x, gamma, beta)"
        if spelled and number == len(epsilons) - 1:
            lines.append(f"""
                mean = ReduceMean <axes = [-1]> (x)
                d = Sub(x, mean)
                square = Mul(d, d)
                variance = ReduceMean <axes = [-1]> (square)
                epsilon = Constant <value = float {{{epsilon}}}> ()
                stable = Add(variance, epsilon)
                root = Sqrt(stable)
                normal = Div(d, root)
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
