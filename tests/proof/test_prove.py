"""The proof accepts a right fold and nothing that differs from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.passes.centring.plan import Insertion
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline.proofs import prove_affine
from onnxfold.pipeline.proofs import prove_centring as prove
from onnxfold.proof import Certificate, Proof
from onnxfold.proof import prove as prove_models
from onnxfold.shapes import infer
from onnxfold.target import Target
from tests.soundness.folding import Folded, fold, forced

Array = npt.NDArray[Any]
Damage = Callable[[onnx.ModelProto], None]
B, T, C, V = 2, 4, 6, 12


def _model() -> onnx.ModelProto:
    """x -> MatMul -> Add -> LN -> MatMul -> Add(residual) -> LN; with two outputs."""
    rng = np.random.default_rng(0)
    weights = {
        "W": rng.standard_normal((C, C)) + 0.5,
        "b": rng.standard_normal(C) + 0.5,
        "V": rng.standard_normal((C, C)) + 0.5,
        "scale": rng.random(C),
        "gamma": 1 + rng.random(C),
        "beta": rng.random(C),
        "gamma2": 1 + rng.random(C),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"], name="first"),
        helper.make_node("Add", ["h", "b"], ["s"], name="bias"),
        helper.make_node("LayerNormalization", ["s", "gamma", "beta"], ["n"], name="ln", axis=-1),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "V"], ["w"], name="second"),
        helper.make_node("Add", ["s", "w"], ["t"], name="residual"),
        helper.make_node("LayerNormalization", ["t", "gamma2"], ["y"], name="ln2", axis=-1),
        helper.make_node("Mul", ["r", "scale"], ["z"], name="other"),
    ]
    graph = helper.make_graph(
        nodes,
        "proof",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", T, C])],
        [helper.make_empty_tensor_value_info(name) for name in ("y", "z")],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in weights.items()],
    )
    imports = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _proof(after: onnx.ModelProto, plan: Plan) -> Proof:
    views = [infer(prepare(ir.from_proto(side)).model) for side in (_model(), after)]
    return prove(views[0], views[1], plan)


def _weight(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    found: onnx.TensorProto = next(t for t in model.graph.initializer if t.name == name)
    return found


def _set(model: onnx.ModelProto, name: str, change: Callable[[Array], Array]) -> None:
    tensor = _weight(model, name)
    array = change(numpy_helper.to_array(tensor).copy())
    tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))


def _node(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(node for node in model.graph.node if output in node.output)
    return found


def _one_element(W: Array) -> Array:
    W[(1,) * W.ndim] += 1e-3
    return W


def _other_weight(model: onnx.ModelProto) -> None:
    _set(model, "W", _one_element)


def _scaled_weight(model: onnx.ModelProto) -> None:
    _set(model, "W", lambda W: 2 * W)


def _weight_outside_the_plan(model: onnx.ModelProto) -> None:
    _set(model, "scale", lambda W: W - W.mean())


def _centred_along_the_other_axis(model: onnx.ModelProto) -> None:
    W = numpy_helper.to_array(_weight(_model(), "W"))
    _set(model, "W", lambda _: W - W.mean(axis=0, keepdims=True))


def _uncentred_weight(model: onnx.ModelProto) -> None:
    _weight(model, "V").CopyFrom(_weight(_model(), "V"))


def _uncentred_bias(model: onnx.ModelProto) -> None:
    _weight(model, "b").CopyFrom(_weight(_model(), "b"))


def _other_gamma(model: onnx.ModelProto) -> None:
    _set(model, "gamma", lambda gamma: 1.001 * gamma)


def _other_beta(model: onnx.ModelProto) -> None:
    _set(model, "beta", _one_element)


def _gammas_exchanged(model: onnx.ModelProto) -> None:
    norms = [_node(model, name) for name in ("n", "y")]
    norms[0].input[1], norms[1].input[1] = norms[1].input[1], norms[0].input[1]


def _other_epsilon(model: onnx.ModelProto) -> None:
    """In the call and in its body: what a file computes is what the body of its function does."""
    first = next(n for n in model.graph.node if any(a.name == "epsilon" for a in n.attribute))
    for attribute in first.attribute:
        if attribute.name == "epsilon":
            old, attribute.f = attribute.f, 2e-5
    for node in (node for body in model.functions for node in body.node):
        for attribute in node.attribute:
            if attribute.HasField("t") and numpy_helper.to_array(attribute.t) == np.float32(old):
                attribute.t.CopyFrom(numpy_helper.from_array(np.array(2e-5, np.float32)))


def _beta_of_ones(model: onnx.ModelProto) -> None:
    node = _node(model, "y")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(C, np.float32), "ones"))
    _with_beta(model, node, "ones")


def _beta_given_by_the_caller(model: onnx.ModelProto) -> None:
    node = _node(model, "y")
    model.graph.input.append(helper.make_tensor_value_info("given", TensorProto.FLOAT, [C]))
    _with_beta(model, node, "given")


def _with_beta(model: onnx.ModelProto, node: onnx.NodeProto, beta: str) -> None:
    node.output[0] = "y.before"
    model.graph.node.append(helper.make_node("Add", ["y.before", beta], ["y"], name="added"))


def _rewired(model: onnx.ModelProto) -> None:
    _node(model, "w").input[0] = "n"


def _residual_left_out(model: onnx.ModelProto) -> None:
    _node(model, "y").input[0] = "w"


def _subtracted(model: onnx.ModelProto) -> None:
    _node(model, "t").op_type = "Sub"


def _another_activation(model: onnx.ModelProto) -> None:
    _node(model, "r").op_type = "Tanh"


def _outputs_exchanged(model: onnx.ModelProto) -> None:
    outputs = list(model.graph.output)
    del model.graph.output[:]
    model.graph.output.extend(outputs[::-1])


def _another_output(model: onnx.ModelProto) -> None:
    model.graph.output[1].name = "w"


def _output_lost(model: onnx.ModelProto) -> None:
    del model.graph.output[1]


def _weight_becomes_an_input(model: onnx.ModelProto) -> None:
    model.graph.initializer.remove(_weight(model, "scale"))
    model.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, [C]))


def _input_becomes_a_weight(model: onnx.ModelProto) -> None:
    del model.graph.input[:]
    array = np.zeros((B, T, C), dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(array, "x"))


def _input_is_negated(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Neg", ["x"], ["negated"]))
    _node(model, "h").input[0] = "negated"


def _stream_is_an_output(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_empty_tensor_value_info("t"))


DAMAGES: tuple[Damage, ...] = (
    _other_weight,
    _scaled_weight,
    _weight_outside_the_plan,
    _centred_along_the_other_axis,
    _uncentred_weight,
    _uncentred_bias,
    _other_gamma,
    _other_beta,
    _gammas_exchanged,
    _other_epsilon,
    _beta_of_ones,
    _beta_given_by_the_caller,
    _rewired,
    _residual_left_out,
    _subtracted,
    _another_activation,
    _outputs_exchanged,
    _another_output,
    _output_lost,
    _weight_becomes_an_input,
    _input_becomes_a_weight,
    _input_is_negated,
    _stream_is_an_output,
)


@pytest.mark.parametrize("target", list(Target))
def test_a_right_fold_is_proved(target: Target) -> None:
    folded = fold(_model(), target)
    assert len(folded.plan.folds) == 2
    assert folded.proof.passed, folded.proof.failures
    assert folded.proof.folded_norms == 2
    assert folded.proof.centred_weights == 3
    for node in folded.model.graph.node:  # ONNX Runtime on CPUs gets Sum, inserted after the proof
        node.op_type = "Add" if node.op_type == "Sum" else node.op_type
    assert _proof(folded.model, folded.plan).passed


def test_an_unchanged_model_is_proved() -> None:
    proof = _proof(_model(), Plan())
    assert proof.passed
    assert (proof.folded_norms, proof.centred_weights) == (0, 0)


@pytest.mark.parametrize("target", [Target.KERNELS, Target.ORT])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_a_fold_that_is_damaged_is_not_proved(damage: Damage, target: Target) -> None:
    folded = fold(_model(), target)
    damage(folded.model)
    proof = _proof(folded.model, folded.plan)
    assert not proof.passed
    assert proof.failures


def _another_default(model: onnx.ModelProto) -> None:
    _set(model, "scale", lambda array: array + 1)


def _no_default(model: onnx.ModelProto) -> None:
    model.graph.initializer.remove(_weight(model, "scale"))


def _inputs_in_another_order(model: onnx.ModelProto) -> None:
    model.graph.input.insert(0, model.graph.input.pop())


@pytest.mark.parametrize("damage", [_another_default, _no_default, _inputs_in_another_order])
def test_inputs_and_what_they_are_where_nobody_gives_them_are_compared(damage: Damage) -> None:
    original, after = _model(), _model()
    for model in (original, after):
        model.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, [C]))
    views = [infer(prepare(ir.from_proto(side)).model) for side in (original, after)]
    assert prove(views[0], views[1], Plan()).passed
    damage(after)
    damaged = infer(prepare(ir.from_proto(after)).model)
    proofs = [prove(views[0], damaged, Plan())]
    if damage is not _inputs_in_another_order:
        proofs.append(prove_affine(views[0], damaged, ()))
    assert not any(proof.failures == () for proof in proofs)


@pytest.mark.parametrize("forget", ["weights", "one weight"])
def test_a_plan_that_forgets_weights_is_not_proved(forget: str) -> None:
    plan = fold(_model()).plan
    weights = () if forget == "weights" else plan.weights[1:]
    assert not forced(_model(), Plan(plan.folds, weights)).proof.passed


def _inserted(axis: int, sizes: tuple[int, ...]) -> Folded:
    fiber = Fiber((AxisBlock(axis, 1, sizes[axis], 1),))
    plan = fold(_model()).plan
    insertion = Insertion("t", fiber, (), ("y",))
    return forced(_model(), Plan(plan.folds[1:], (), (insertion,)), Target.ONNX)


def test_a_centring_inserted_along_the_fiber_is_proved_and_along_another_axis_is_not() -> None:
    assert _inserted(2, (B, T, C)).proof.passed
    assert not _inserted(1, (B, T, C)).proof.passed


@pytest.mark.parametrize("row", [0, 2, 3, V - 1])
def test_a_table_of_which_one_row_is_another_is_not_proved(row: int) -> None:
    """Whatever rows the random indices of a test reach."""
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["e"]),
            helper.make_node("LayerNormalization", ["e", "gamma"], ["y"]),
        ],
        "rows",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", C])],
        [
            numpy_helper.from_array(rng.standard_normal((V, C)).astype(np.float32), "table"),
            numpy_helper.from_array(rng.standard_normal(C).astype(np.float32), "gamma"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    damaged = onnx.ModelProto()
    damaged.CopyFrom(model)

    def change(W: Array) -> Array:
        W[row] += np.arange(C)
        return W

    _set(damaged, "table", change)
    before, same, after = (prepare(ir.from_proto(one)).info for one in (model, model, damaged))
    assert prove_models(before, same, Certificate()).passed
    assert not prove_models(before, after, Certificate()).passed


def test_the_proof_is_a_row_of_the_report() -> None:
    folded = fold(_model())
    _other_gamma(folded.model)
    document = _proof(folded.model, folded.plan).to_json()
    assert document["passed"] is False
    assert any("gamma" in str(failure) for failure in document["failures"])  # type: ignore[attr-defined] # a list


def test_a_call_of_another_body_is_not_equal() -> None:
    """A walk that compared the names of functions alone would take one for the other."""
    text = """<ir_version: 10, opset_import: ["" : 18, "pkg" : 1]>
    g (double[2, 3] x) => (double[2, 3] y) {{ y = pkg.F(x) }}
    <domain: "pkg", opset_import: ["" : 18]> F (X) => (Y) {{ Y = {}(X) }}"""
    views = [
        infer(ir.from_proto(onnx.parser.parse_model(text.format(op_type))))
        for op_type in ("Relu", "Abs", "Relu")
    ]
    assert prove_models(views[0], views[2], Certificate()).passed
    assert not prove_models(views[0], views[1], Certificate()).passed


@pytest.mark.parametrize("channel", [0, C - 1])
def test_what_indices_choose_from_a_product_is_not_proved_by_the_part_that_they_reach(
    channel: int,
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (double[batch, 6] x, int64[n] ids) => (double[batch, n] y)
    <double[6] scale = {1, 2, 3, 4, 5, 6}> { s = Mul(x, scale) y = Gather<axis = 1>(s, ids) }"""
    models = [onnx.parser.parse_model(text) for _ in range(3)]
    numbers = np.arange(1.0, 7.0)
    numbers[channel] += 1
    models[2].graph.initializer[0].CopyFrom(numpy_helper.from_array(numbers, "scale"))
    views = [infer(ir.from_proto(model)) for model in models]
    assert prove_models(views[0], views[1], Certificate()).passed
    assert not prove_models(views[0], views[2], Certificate()).passed


def test_what_computed_indices_choose_is_not_proved_by_the_part_that_they_reach() -> None:
    """Of many rows, the places of a few extremes reach a few."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (double[1, 900] x) => (double[1] y) {
        at = ArgMax<axis = 1, keepdims = 0>(x) y = Gather<axis = 0>(table, at)
    }"""
    models = [onnx.parser.parse_model(text) for _ in range(3)]
    for model, last in zip(models, (900.0, 900.0, 901.0), strict=True):
        table = np.append(np.arange(1.0, 900.0), last)
        model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    views = [infer(ir.from_proto(model)) for model in models]
    assert prove_models(views[0], views[1], Certificate()).passed
    assert not prove_models(views[0], views[2], Certificate()).passed


@pytest.mark.parametrize("root", ["r = Sqrt(c)", "z = Sub(c, c) r = Div(one, z)"])
def test_that_both_are_not_finite_shows_nothing(root: str) -> None:
    """A negative number has no root, whatever is added after it."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (double[2, 3] x) => (double[2, 3] y) {{{{
        a = Abs(x) b = Neg(a) c = Sub(b, one) {root} y = {{}}(r, x)
    }}}}"""
    models = [onnx.parser.parse_model(text.format(op_type)) for op_type in ("Add", "Sub")]
    for model in models:
        model.graph.initializer.append(numpy_helper.from_array(np.array(1.0), "one"))
    views = [infer(ir.from_proto(model)) for model in models]
    assert not prove_models(views[0], views[1], Certificate()).passed


@pytest.mark.parametrize(
    ("body", "other", "proved"),
    [
        ("s = Mul(x, scale) y = Relu(s)", "r = Relu(x) y = Mul(r, scale)", True),
        ("s = Mul(x, scale) y = Relu(s)", "r = Neg(x) y = Mul(r, scale)", False),
        ("s = Mul(x, scale) y = Sqrt(low)", "s = Mul(x, scale) y = Add(s, low)", False),
    ],
)
def test_what_a_constant_without_a_number_makes_is_compared_as_if_it_had_one(
    body: str, other: str, proved: bool
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (double[2, 3] x) => (double[2, 3] y) {{ a = Abs(x) b = Neg(a) low = Sub(b, one) {} }}"""
    models = [onnx.parser.parse_model(text.format(nodes)) for nodes in (body, other)]
    for model in models:
        for name, array in (("scale", np.array([1.0, np.nan, 2.0])), ("one", np.array(1.0))):
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    views = [infer(ir.from_proto(model)) for model in models]
    assert prove_models(views[0], views[1], Certificate()).passed is proved
