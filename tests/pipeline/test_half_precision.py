"""Which form of a norm survives an engine that computes in half precision.

Such an engine (TensorRT's fp16 mode is one) rounds every value to half, and computes in float32 the
normalization operators that it knows.  A Cast to half and back behind every node emulates it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxfold
from tests.builders import chain_model
from tests.graphs import graph, weights
from tests.pipeline.test_opsets import two_norms
from tests.sessions import executed, outputs

WIDTH = 64
LARGE = 1e3  # its square, 1e6, exceeds half: the largest is 65504


def model(dtype: type = np.float32, opset: int = 18) -> onnx.ModelProto:
    """A linear layer whose outputs are of the order of LARGE, a LayerNorm, a linear layer."""
    rng = np.random.default_rng(0)
    weights = {
        "W": LARGE * rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5,
        "gamma": rng.uniform(0.5, 1.5, WIDTH),
        "beta": rng.standard_normal(WIDTH),
        "V": rng.standard_normal((WIDTH, 4)) / WIDTH**0.5,
    }
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"], name="first"),
        helper.make_node(
            "LayerNormalization", ["h", "gamma", "beta"], ["n"], name="norm", epsilon=1e-5
        ),
        helper.make_node("MatMul", ["n", "V"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", kind, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", kind, ["n", 4])],
        [numpy_helper.from_array(array.astype(dtype), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def in_half(original: onnx.ModelProto) -> onnx.ModelProto:
    """The model as an engine computes it that rounds the results of all nodes to half."""
    emulated = onnx.ModelProto.FromString(original.SerializeToString())
    nodes = []
    for number, node in enumerate(original.graph.node):
        (name,) = node.output
        result = onnx.NodeProto.FromString(node.SerializeToString())
        if node.op_type == "Constant" and node.attribute[0].t.data_type != TensorProto.FLOAT:
            nodes.append(result)
            continue
        result.output[0] = f"exact{number}"
        nodes += [
            result,
            helper.make_node("Cast", [f"exact{number}"], [f"half{number}"], to=TensorProto.FLOAT16),
            helper.make_node("Cast", [f"half{number}"], [name], to=TensorProto.FLOAT),
        ]
    del emulated.graph.node[:], emulated.graph.value_info[:]
    emulated.graph.node.extend(nodes)
    return emulated


def relative_error(found: onnx.ModelProto, x: np.ndarray) -> float:
    """The error in ONNX Runtime: onnx.reference 1.23 has LayerNormalization without stash_type."""
    (exact,) = ReferenceEvaluator(model()).run(None, {"x": x.astype(np.float32)})
    (y,) = outputs(found, {"x": x}, level="none")
    truth = np.asarray(exact)
    return float(np.abs(np.asarray(y, np.float64) - truth).max() / np.abs(truth).max())


# W, h, n, V and y are rounded to half, and sums of 64 products of them: a dozen times 2^-11.
BOUND = 12 * 2**-11
X = np.random.default_rng(1).standard_normal((5, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("form", ["op", "layer"])
def test_operators_that_an_engine_protects_survive(form: str) -> None:
    result = onnxfold.optimize(model(), norm_form=form)
    assert len(result.plan.folds) == (form == "op")
    norms = {node.op_type for node in result.model.graph.node} - {"MatMul", "Add", "Constant"}
    assert norms == {"RMSNormalization" if form == "op" else "LayerNormalization"}
    assert relative_error(in_half(result.model), X) <= BOUND
    assert relative_error(in_half(model()), X) <= BOUND


@pytest.mark.parametrize("form", ["auto", "decomposed"])
def test_squares_overflow_where_a_norm_is_spelled_out(form: str) -> None:
    result = onnxfold.optimize(model(), norm_form=form)
    assert relative_error(result.model, X) <= 64 * 2**-23
    assert not relative_error(in_half(result.model), X) <= 0.5


def scaled_down(decomposed: onnx.ModelProto, exponent: int) -> onnx.ModelProto:
    """The same function with a norm of h / 2^k, so that its squares overflow later."""
    factor = np.float32(2.0**-exponent)
    made = onnx.ModelProto.FromString(decomposed.SerializeToString())
    nodes = list(made.graph.node)
    place = next(i for i, node in enumerate(nodes) if "h" in node.output)
    nodes.insert(place + 1, helper.make_node("Mul", ["h", "factor"], ["small"]))
    for node in nodes:
        if node.op_type in ("Pow", "Div"):
            node.input[0] = "small"
        if node.op_type == "Constant" and node.attribute[0].t.data_type == TensorProto.FLOAT:
            number = numpy_helper.to_array(node.attribute[0].t)
            if number < 1e-3:  # epsilon
                scaled = np.asarray(number * factor**2, np.float32)
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(scaled))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.graph.initializer.append(numpy_helper.from_array(np.asarray(factor), "factor"))
    return made


def test_a_power_of_two_before_the_squares_moves_the_range_and_widens_none() -> None:
    """Why no norm is spelled so: what overflows no more loses its epsilon where it is small."""
    folded = onnxfold.optimize(model()).model
    small = X * np.float32(1e-6)  # activations of 1e-3
    for exponent, x, survives in ((4, X, True), (4, small, False), (7, 0 * X, False)):
        made = scaled_down(folded, exponent)
        assert relative_error(made, x) <= 64 * 2**-23
        assert (relative_error(in_half(made), x) <= BOUND) == survives
        assert relative_error(in_half(model()), x) <= BOUND
        assert relative_error(in_half(onnxfold.optimize(model(), norm_form="op").model), x) <= BOUND


@pytest.mark.parametrize("form", ["auto", "op", "decomposed", "layer"])
def test_a_half_model_keeps_its_statistics_in_float32(form: str) -> None:
    result = onnxfold.optimize(model(np.float16), norm_form=form, check=0)
    assert len(result.plan.folds) == (form != "layer")
    assert relative_error(result.model, X.astype(np.float16)) <= BOUND


def test_an_operator_that_changed_its_meaning_keeps_the_opset_where_it_is(tmp_path: Path) -> None:
    original = model(opset=18)
    resize = helper.make_node("GridSample", ["image", "grid"], ["sampled"], name="sample")
    original.graph.node.append(resize)
    for name, dims in (("image", [1, 1, 4, 4]), ("grid", [1, 2, 2, 2])):
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        original.graph.input.append(info)
    original.graph.output.append(
        helper.make_tensor_value_info("sampled", TensorProto.FLOAT, [1, 1, 2, 2])
    )
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(original, path)
    node = r"model\.onnx: node 'sample': GridSample of opset 18"
    sentence = f"{node} .*norm_form='op', .*version_conv"
    with pytest.raises(onnxfold.UsageError, match=sentence):
        onnxfold.optimize(path, out, norm_form="op")
    assert not out.exists()


def test_an_opset_that_is_too_old_is_refused_with_what_to_do(tmp_path: Path) -> None:
    original = two_norms(12)
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(original, path)
    with pytest.raises(onnxfold.UsageError, match=r"model\.onnx: opset 12 .*version_converter"):
        onnxfold.optimize(path, out, norm_form="op")
    assert not out.exists()


def test_reductions_and_splits_are_converted() -> None:
    original = model(opset=17)
    nodes = [
        helper.make_node("ReduceMax", ["y"], ["z"], name="reduce", axes=[1], keepdims=1),
        helper.make_node("Split", ["x"], ["a", "b"], name="split", axis=1),
    ]
    original.graph.node.extend(nodes)
    for name, width in (("z", 1), ("a", WIDTH // 2), ("b", WIDTH // 2)):
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
        original.graph.output.append(info)
    result = onnxfold.optimize(original, norm_form="op")
    onnx.checker.check_model(result.model, full_check=True)
    assert result.model.opset_import[0].version == 23
    found = ReferenceEvaluator(result.model).run(None, {"x": X})
    exact = ReferenceEvaluator(original).run(None, {"x": X})
    for after, before in zip(found, exact, strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=64 * 2**-23 * 10)


@pytest.mark.parametrize("opset", [17, 21, 24])
def test_a_norm_in_float16_is_spelled_as_onnxruntime_fuses_it_on_cuda(opset: int) -> None:
    """Cast to float32, .., Div, Cast to float16, Mul: Cast behind Mul would be a launch more."""
    given = chain_model(np.float16, opset)
    (beta,) = (weight for weight in given.graph.initializer if weight.name == "norm.beta")
    beta.CopyFrom(numpy_helper.from_array(np.zeros(beta.dims, np.float16), beta.name))
    written = onnxfold.optimize(given, check=3).model
    assert isinstance(written, onnx.ModelProto)
    (divided,) = (node for node in written.graph.node if node.op_type == "Div")
    readers = {name: node for node in written.graph.node for name in node.input}
    narrowed = readers[divided.output[0]]
    assert (narrowed.op_type, narrowed.attribute[0].i) == ("Cast", TensorProto.FLOAT16)
    assert readers[narrowed.output[0]].op_type == "Mul"
    types = [node.op_type for node in written.graph.node]
    assert (types.count("Cast"), types.count("CastLike")) == (2, 0)


@pytest.mark.parametrize(
    ("dtype", "options", "told"),
    [
        (np.float16, {}, True),
        (np.float16, {"target": "ort"}, False),
        (np.float16, {"norm_form": "layer"}, False),
        (np.float16, {"norm_form": "op"}, False),
        (np.float32, {}, False),
    ],
)
def test_pieces_of_a_norm_in_half_are_told_where_the_file_is_written(
    dtype: type, options: dict[str, str], told: bool, tmp_path: Path
) -> None:
    """Sessions on CPUs before ONNX Runtime 1.23 make no one operator of them."""
    result = onnxfold.optimize(model(dtype), tmp_path / "out.onnx", check=0, **options)
    notes = " ".join(result.report["output"]["notes"])
    assert ("run the folded norm in pieces before ONNX Runtime 1.23" in notes) is told


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_session_casts_no_scale_that_several_norms_have(target: str, tmp_path: Path) -> None:
    """It casts the constants of one reader once, when it starts, and others in every run."""
    vectors = dict.fromkeys(("g1", "b1", "g2", "b2", "c", "e"), (WIDTH,))
    made = weights(**vectors, V=(WIDTH, WIDTH), W=(WIDTH, WIDTH))
    body = (
        "n = LayerNormalization<epsilon=1e-5>(x, g1, b1) p = MatMul(n, V) q = Add(p, c) "
        "r = Add(q, x) m = LayerNormalization<epsilon=1e-5>(r, g2, b2) s = MatMul(m, W) "
        "y = Add(s, e)"
    )
    halves = {name: (1 + array / 10).astype(np.float16) for name, array in made.items()}
    kind = f"float16[B,4,{WIDTH}]"
    given = ir.to_proto(graph(body, f"{kind} x", f"{kind} y", halves, opset=17))
    once = onnxfold.optimize(given, target=target, fuse_affine="always", fold="always")
    assert once.report["inspect"]["summary"]["gamma_fused"] == 2
    made_graph = executed(once.model, tmp_path).graph
    stored = {constant.name for constant in made_graph.initializer}
    cast = [node.input[0] for node in made_graph.node if node.op_type == "Cast"]
    assert not stored & set(cast)
    assert not onnxfold.optimize(once.model, target=target, fold="always").changed
