from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo
from onnxfold.operators.bodies import Setting, function
from onnxfold.operators.functions import (
    DOMAIN,
    MAX_OPSET,
    MIN_OPSET,
    SIGNATURES,
    Affine,
    Output,
    Statistics,
    call,
    op_name,
)
from onnxfold.options import WrittenForm
from onnxfold.pipeline.finalize import define_functions
from onnxfold.target import Target
from tests.calls import LEVELS, call_model, random_inputs
from tests.custom_ops.bounds import allowed
from tests.oracle import Array, normalised, rounded_sum
from tests.pairs import pairs, pairwise
from tests.sessions import executed
from tests.sessions import outputs as run_session

# One opset for every spelling of a body: the first, and each at which an op of the bodies changes.
OPSETS = (MIN_OPSET, 11, 12, 13, 15, 17, 18, 23, MAX_OPSET)
UNIT = {
    ir.DataType.FLOAT: 2.0**-24,
    ir.DataType.FLOAT16: 2.0**-11,
    ir.DataType.BFLOAT16: 2.0**-8,
    ir.DataType.DOUBLE: 2.0**-53,
}
EPSILON = 2.0**-17  # exact in float32, as the attribute is
TERMS = ("X", "linear_bias", "residual")
# Those whose Y is a norm of X.
PLAIN = [
    name
    for name, s in SIGNATURES.items()
    if s.output is Output.NORM and not s.row_scale and not s.row_epsilon
]


def bodies(*types: ir.DataType) -> list[tuple[str, int, ir.DataType]]:
    every = itertools.product(PLAIN, OPSETS, types)
    return pairwise(row for row in every if row[2] is not ir.DataType.BFLOAT16 or row[1] >= 13)


def assert_outputs_right(
    name: str,
    inputs: dict[str, Array],
    y: Array,
    total: Array | None,
    *,
    unit: float,
    axes: int = 1,
    statistics_unit: float | None = None,
) -> None:
    if total is not None:
        # Two roundings for three terms, as in the graph that the operator replaces.
        largest = sum(np.abs(inputs[key].astype(np.float64)) for key in inputs if key in TERMS)
        exact = rounded_sum(inputs).astype(np.float64)
        assert (np.abs(total.astype(np.float64) - exact) <= 2 * unit * largest).all()
        inputs = {key: value for key, value in inputs.items() if key not in TERMS} | {"X": total}
    expected, norm = normalised(name, inputs, axes=axes, epsilon=EPSILON)
    scale = np.abs(inputs["scale"].astype(np.float64)) if "scale" in inputs else np.float64(1)
    scaled = np.abs(norm) * scale
    # Without Sum the terms may be added without a rounding, or with two; so may they be where ORT
    # drops a Cast to the tensor type and back: |Sum| is at most 2 deviations above |norm| here.
    if SIGNATURES[name].residual:
        scaled = 2 * scaled + 2 * scale
    # Standard norms round to the tensor type after the division, the scale and the bias; the
    # statistics of these rows of 24 to 48 standard normals are good to 16 units of their type.
    bound = unit * (2 * scaled + np.abs(expected))
    bound += 16 * (statistics_unit or min(unit, UNIT[ir.DataType.FLOAT])) * (1 + scaled)
    assert y.shape == expected.shape
    assert (np.abs(y.astype(np.float64) - expected) <= bound).all()


@pytest.mark.parametrize(("name", "opset", "dtype"), bodies(*UNIT))
def test_body_computes_the_op_in_the_reference_evaluator(
    name: str, opset: int, dtype: ir.DataType
) -> None:
    inputs = random_inputs(name, (2, 3, 24), dtype)
    model = call_model(name, (2, 3, 24), dtype, opset=opset, epsilon=EPSILON)
    onnx.checker.check_model(model, full_check=True)
    outputs = reference(model, inputs)
    total = outputs[1] if SIGNATURES[name].with_sum else None
    assert outputs[0].dtype == inputs["X"].dtype
    # onnx 1.23's LayerNormalization has its statistics in the tensor type, whatever stash_type is.
    uses_op = SIGNATURES[name].statistics is Statistics.LAYER and opset >= 17
    assert_outputs_right(
        name,
        inputs,
        outputs[0],
        total,
        unit=UNIT[dtype],
        statistics_unit=UNIT[dtype] if uses_op else None,
    )


@pytest.mark.parametrize(
    ("name", "opset", "dtype"), bodies(*(each for each in UNIT if each is not ir.DataType.BFLOAT16))
)
def test_body_computes_the_op_in_onnxruntime(name: str, opset: int, dtype: ir.DataType) -> None:
    inputs = random_inputs(name, (2, 3, 24), dtype, seed=1)
    model = call_model(name, ("batch", 3, 24), dtype, opset=opset, epsilon=EPSILON)
    outputs = run_session(model, inputs)
    total = outputs[1] if SIGNATURES[name].with_sum else None
    assert_outputs_right(name, inputs, outputs[0], total, unit=UNIT[dtype])


@pairs(
    name=[name for name in PLAIN if "axis" in SIGNATURES[name].attributes],
    opset=[MIN_OPSET, 13, 17, 18, 23],  # at which a norm or the axes of a mean are spelled anew
    run=["reference", "onnxruntime"],
)
def test_body_normalises_several_trailing_axes_together(name: str, opset: int, run: str) -> None:
    inputs = random_inputs(name, (3, 6, 8), ir.DataType.FLOAT, axes=2)
    model = call_model(name, (3, 6, 8), ir.DataType.FLOAT, opset=opset, axes=2, epsilon=EPSILON)
    outputs = (reference if run == "reference" else run_session)(model, inputs)
    assert_outputs_right(name, inputs, outputs[0], None, unit=UNIT[ir.DataType.FLOAT], axes=2)


@pytest.mark.parametrize("name", [name for name in SIGNATURES if name not in PLAIN])
def test_bodies_of_rows_and_codes_compute_their_op(name: str) -> None:
    """Bodies round to the tensor type after each operator, kernels once: 4 times their bounds."""
    types = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
    codes = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.FLOAT8E4M3FN)
    signature = SIGNATURES[name]
    for opset, dtype, code, convertible in pairwise(
        row
        for row in itertools.product((13, 15, 18, 21), types, codes, (False, True))
        if row[0] >= (19 if row[2] is codes[2] else 15 if row[3] else 13)
        and (signature.quantized or row[2] is codes[0])
    ):
        float8 = code is ir.DataType.FLOAT8E4M3FN
        inputs = random_inputs(name, (4, 24), dtype, code=code)
        model = call_model(name, (4, 24), dtype, opset=opset, epsilon=EPSILON, code=code)
        setting = Setting(
            ir.DataType.FLOAT if convertible else dtype,
            epsilon=EPSILON,
            convertible=convertible,
            levels=LEVELS[code],
        )
        del model.functions[:]
        model.functions.append(ir.to_proto(function(name, opset, setting)))
        onnx.checker.check_model(model, full_check=True)
        outputs = reference(model, inputs) if float8 else run_session(model, inputs)
        got = dict(zip(signature.outputs, outputs, strict=True))
        limits = allowed(name, inputs, epsilon=EPSILON, got=got)
        for key, (exact, limit) in limits.items():
            error = np.abs(got[key].astype(np.float64) - exact)
            # Half a step of codes is what rounding to them takes, in bodies too.
            half = 0.5 if key == "Y" and signature.quantized and not float8 else 0.0
            # A Sum of float16 that ORT does not round: it drops a Cast to the type and back.
            slack = 4 * UNIT[dtype] * (1 + np.abs(exact)) if signature.residual else 0.0
            bound = half + 4 * (limit - half) + slack
            assert (error <= bound).all(), (key, dtype, opset, code)


@pairs(name=PLAIN, opset=[15, 17, 23], dtype=[ir.DataType.FLOAT, ir.DataType.FLOAT16])
def test_a_convertible_body_serves_every_type_from_opset_15_on(
    name: str, opset: int, dtype: ir.DataType
) -> None:
    inputs = random_inputs(name, (4, 24), dtype)
    model = call_model(name, (4, 24), dtype, opset=opset, epsilon=EPSILON)
    del model.functions[:]
    setting = Setting(ir.DataType.FLOAT, epsilon=EPSILON, convertible=True)
    model.functions.append(ir.to_proto(function(name, opset, setting)))
    outputs = run_session(model, inputs)
    assert_outputs_right(name, inputs, outputs[0], None, unit=UNIT[dtype])


@pytest.mark.parametrize("opset", OPSETS)
def test_a_body_refers_to_no_attribute_and_has_tensors_for_constants(opset: int) -> None:
    setting = Setting(ir.DataType.FLOAT, axes=1, epsilon=EPSILON)
    for name in SIGNATURES:
        body = ir.to_proto(function(name, opset, setting))
        attributes = [(node.op_type, part) for node in body.node for part in node.attribute]
        assert not any(part.ref_attr_name for _, part in attributes), name
        assert {part.name for op, part in attributes if op == "Constant"} <= {"value"}, name


@pytest.mark.parametrize("opset", [opset for opset in OPSETS if opset >= 17])
def test_every_layer_normalization_of_a_body_has_its_bias(opset: int) -> None:
    """Without one, the Attention fusion of ONNX Runtime 1.17 and 1.18 ends the process."""
    made = [
        function(name, opset, Setting(ir.DataType.FLOAT, epsilon=EPSILON)) for name in SIGNATURES
    ]
    norms = [node for body in made for node in body if node.op_type == "LayerNormalization"]
    assert norms
    assert all(len(node.inputs) == 3 and None not in node.inputs for node in norms)


@pytest.mark.parametrize("opset", range(MIN_OPSET, MAX_OPSET + 1))
def test_functions_have_the_arity_and_attributes_of_their_signature(opset: int) -> None:
    for name, signature in SIGNATURES.items():
        proto = ir.to_proto(function(name, opset, Setting(ir.DataType.FLOAT)))
        assert (proto.domain, proto.name) == ("onnxfold", name)
        assert tuple(proto.input) == signature.inputs
        assert tuple(proto.output) == signature.outputs
        assert tuple(proto.attribute) == signature.attributes


@pytest.mark.parametrize(
    ("name", "opset", "fused"),
    [
        ("RMSNormScale", 13, "SimplifiedLayerNormalization"),
        ("RMSNormScale", 11, "SimplifiedLayerNormalization"),
        ("RMSNormScale", 18, "SimplifiedLayerNormalization"),
        ("RMSNormAffine", 17, "SimplifiedLayerNormalization"),
        ("RMSNormScale", 23, "SimplifiedLayerNormalization"),
        ("LayerNormAffine", 11, "LayerNormalization"),
        ("LayerNormAffine", 17, "LayerNormalization"),
        ("LayerNormScale", 17, "LayerNormalization"),
        ("CRMSNormFullScale", 17, "SimplifiedLayerNormalization"),
    ],
)
def test_onnxruntime_fuses_the_inlined_body(
    name: str, opset: int, fused: str, tmp_path: Path
) -> None:
    constants = random_inputs(name, (4, 24), ir.DataType.FLOAT)
    del constants["X"]
    model = call_model(name, ("batch", 24), ir.DataType.FLOAT, opset=opset, constants=constants)
    ops = [node.op_type for node in executed(model, tmp_path).graph.node]
    assert fused in ops
    assert not {"Pow", "Sqrt", "Cast"} & set(ops)


@pytest.mark.parametrize("name", [name for name, row in SIGNATURES.items() if row.row_epsilon])
def test_a_body_with_an_epsilon_for_each_row_holds_no_pow(name: str) -> None:
    """ONNX Runtime before 1.32 fuses from Pow on, with 1e-5 for an epsilon that is not constant."""
    body = function(name, 17, Setting(ir.DataType.FLOAT))
    assert "Pow" not in {node.op_type for node in body}


def test_names_are_composed_of_their_parts() -> None:
    for name, row in SIGNATURES.items():
        composed = op_name(
            statistics=row.statistics,
            residual=row.residual,
            linear_bias=row.linear_bias,
            affine=row.affine,
            with_sum=row.with_sum,
            row_scale=row.row_scale,
            activation=row.activation,
            output=row.output,
        )
        assert composed == name.replace("RowEpsilon", "")
    assert len(SIGNATURES) == 103
    assert (
        op_name(statistics=Statistics.LAYER, residual=True, linear_bias=True, affine=Affine.AFFINE)
        == "AddBiasLayerNormAffine"
    )


def test_parts_without_an_op_are_refused() -> None:
    with pytest.raises(InvariantError, match="linear_bias=True"):
        op_name(statistics=Statistics.RMS, linear_bias=True)
    with pytest.raises(InvariantError, match="CENTER"):
        op_name(statistics=Statistics.CENTER, affine=Affine.SCALE)


def test_types_and_opsets_without_a_body_are_refused() -> None:
    with pytest.raises(InvariantError, match="INT32"):
        function("RMSNorm", 17, Setting(ir.DataType.INT32))
    with pytest.raises(InvariantError, match="BFLOAT16 at opset 12"):
        function("RMSNorm", 12, Setting(ir.DataType.BFLOAT16))
    with pytest.raises(InvariantError, match=f"opset {MIN_OPSET} to {MAX_OPSET}"):
        function("RMSNorm", 6, Setting(ir.DataType.FLOAT))


def test_calls_that_break_the_signature_are_refused() -> None:
    x = ir.Value(name="x")
    with pytest.raises(InvariantError, match="takes"):
        call("RMSNormScale", [x])
    with pytest.raises(InvariantError, match="last 2 axes"):
        call("CRMSNorm", [x], axes=2)


@pytest.mark.parametrize("target", Target)
def test_a_call_of_unknown_type_keeps_the_body_that_it_came_with(target: Target) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    unknown = ir.node("Foo", [x], domain="org.x")
    kept = ir.node("Center", unknown.outputs, domain=DOMAIN, overload="own")
    made = ir.node("Center", [x], domain=DOMAIN, overload="another")
    graph = ir.Graph([x], kept.outputs, nodes=[unknown, kept, made], opset_imports={"": 17})
    own = function("Center", 17, Setting(ir.DataType.FLOAT16), "own")
    another = function("Center", 17, Setting(ir.DataType.FLOAT16), "another")
    bodies = {body.identifier(): body for body in (own, another)}
    model = ir.Model(graph, ir_version=10, functions=bodies.values())
    define_functions(ModelInfo(model), target, WrittenForm.AUTO)
    assert kept.overload == "own"
    assert made.overload != "another"
    assert set(model.functions) == {kept.op_identifier(), made.op_identifier()}
    assert model.functions[own.identifier()] is own


def reference(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    outputs = ReferenceEvaluator(model).run(None, inputs)
    assert isinstance(outputs, list)
    return outputs
