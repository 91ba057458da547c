"""What a model claims: cleared if inference contradicts it, otherwise named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold import model_io
from onnxfold.api import inspect, optimize
from onnxfold.graph.traversal import all_graphs
from onnxfold.report.printed import print_norms
from onnxfold.shapes import infer
from onnxfold.shapes.claims import check_claims, size_names

TESTS = Path(__file__).parents[1]
_EXPORTS = sorted(path for path in TESTS.rglob("*.onnx") if "hostile" not in path.parts)


def model(claim: list[int | str] | None, body: str = "h = Add (x, b)") -> onnx.ModelProto:
    """A LayerNorm of h, with what value_info claims of h."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "org.x": 1]>'
        "g (float[batch, 4, 8] x, float[8] b, int64[3] sizes, float[8] g) => (float[A, B, C] y)"
        f"{{ {body}  n = LayerNormalization (h, g)  y = Neg (n) }}"
    )
    if claim is not None:
        info = onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, claim)
        proto.graph.value_info.append(info)
    return proto


def claims(proto: onnx.ModelProto) -> list[tuple[str, tuple[object, ...], object]]:
    found = check_claims(ir.from_proto(proto)).claims
    return [(claim.value, claim.claimed, claim.inferred) for claim in found]


INNER = {
    "a wrong rank": [2, 32],
    "a wrong size at the normalized axis": ["batch", 4, 16],
    "a wrong size elsewhere": ["batch", 5, 8],
}


@pytest.mark.parametrize("name", INNER)
def test_a_shape_that_contradicts_inference_is_left_out(name: str) -> None:
    found = inspect(model(INNER[name]))["claimed_shapes"]
    assert found["untrue"] == [{"value": "h", "claimed": INNER[name], "inferred": ["batch", 4, 8]}]
    assert found["count"] == 0


UNTRUE = {
    "another rank": [1, "len"],
    "a rank too many": [1, "batch", 4, 8],
    "another size": ["batch", 4, 9],
}


@pytest.mark.parametrize("name", UNTRUE)
@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_an_untrue_shape_of_an_output_is_left_out_and_named(
    name: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime loads and runs such a model with a warning."""
    from rich.console import Console

    proto = model(None, "p = MatMul (x, W)  h = Add (p, b)")
    numbers = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    for key, array in {"W": numbers, "b": numbers[0], "g": numbers[1]}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    del proto.graph.input[1:]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, UNTRUE[name])
    proto.graph.output[0].CopyFrom(output)
    made = optimize(proto, target=target)
    assert len(made.plan.folds) == 1
    (claim,) = made.report["inspect"]["claimed_shapes"]["untrue"]
    assert claim == {"value": "y", "claimed": UNTRUE[name], "inferred": ["batch", 4, 8]}
    assert made.report["inspect"]["claimed_shapes"]["count"] == 0
    (written,) = made.model.graph.output
    dims = written.type.tensor_type.shape.dim
    assert [dim.dim_value or dim.dim_param for dim in dims] == ["batch", 4, 8]
    print_norms(Console(width=1000, markup=False), inspect(proto))
    assert "value 'y' is declared [" in capsys.readouterr().out
    assert optimize(made.model, target=target).report["inspect"]["claimed_shapes"]["untrue"] == []


def test_an_untrue_shape_of_a_value_that_is_an_output_too_is_left_out() -> None:
    proto = model(None)
    proto.graph.output.append(
        onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, ["batch", 8])
    )
    checked = check_claims(ir.from_proto(proto))
    assert [claim.value for claim in checked.claims] == ["h"]
    shape = checked.model.graph.outputs[1].shape
    assert shape is not None
    assert list(shape) == ["batch", 4, 8]


def test_an_untrue_shape_of_a_result_of_a_body_is_left_out() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[batch, 4, 8] x, bool c) => (float[A, B, C] y) {
            y = If (c) <
                then_branch = t () => (float[2] k) { k = Neg (x) },
                else_branch = e () => (float[A, B, C] l) { l = Abs (x) }
            >
        }"""
    )
    checked = check_claims(ir.from_proto(proto))
    assert [(claim.value, claim.contradicted) for claim in checked.claims] == [("k", True)]


def test_no_dimensions_of_what_has_some_are_no_claim() -> None:
    """Paddle writes so that it does not know a shape; ONNX Runtime takes it with a warning."""
    proto = model([])
    assert claims(proto) == []
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    checked = check_claims(ir.from_proto(proto))
    assert [len(value.shape or ()) for value in checked.model.graph.outputs] == [3]


@pytest.mark.parametrize("claim", [["batch", 4, 8], ["other", "four", 8], ["batch", 4, None], None])
def test_what_inference_confirms_or_knows_better_is_no_claim(claim: list[int | str]) -> None:
    assert claims(model(claim)) == []


def test_a_number_where_inference_has_a_symbol_is_a_claim() -> None:
    assert claims(model([2, 4, 8])) == [("h", (2, 4, 8), ("batch", 4, 8))]


def test_shapes_of_what_inference_cannot_follow_are_claims() -> None:
    unknown = "h = org.x.Foo (x, b)"
    output = ("y", ("A", "B", "C"), None)
    assert claims(model([2, 4, 8], unknown)) == [("h", (2, 4, 8), None), output]
    assert claims(model(["a", "b", "c"], unknown)) == [("h", ("a", "b", "c"), None), output]
    # Of three sizes that a caller gives, the rank follows.
    assert claims(model([2, 4, 8], "h = Reshape (x, sizes)"))[0][:2] == ("h", (2, 4, 8))
    assert claims(model(["a", "b", "c"], "h = Reshape (x, sizes)")) == []


@pytest.mark.parametrize("claim", [[], [3], ["N"], [2, 2]])
def test_a_constant_has_the_shape_of_its_tensor_whatever_is_claimed(
    claim: list[int | str], tmp_path: Path
) -> None:
    """As ONNX Runtime GenAI's builder writes a list that it declares a scalar."""
    body = """
    parts = Constant <value = int64[2] {6, 2}> ()
    k = com.microsoft.GroupQueryAttention <num_heads = 1> (x)
    v, w = Split <axis = 2> (k, parts)  j = Concat <axis = 2> (w, v)  h = Add (j, b)
    """
    proto = model(None, body)
    proto.graph.value_info.append(
        onnx.helper.make_tensor_value_info("parts", onnx.TensorProto.INT64, claim)
    )
    assert claims(proto) == []
    optimize(proto, tmp_path / "fast.onnx", check=0)


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_what_grouped_attention_gives_is_no_claim(dtype: str) -> None:
    cache = f"{dtype}[B, 2, P, H]"
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
        f"g ({dtype}[B, T, 64] x, {cache} k, {cache} v, int32[B] last, int32 total)"
        f" => ({dtype}[B, T, 32] y, {dtype}[B, 2, S, H] pk, {dtype}[B, 2, S, H] pv)"
        "{ y, pk, pv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>"
        ' (x, "", "", k, v, last, total) }'
    )
    assert claims(proto) == []


def test_the_report_names_the_count_and_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    document = inspect(model([2, 4, 8], "h = org.x.Foo (x, b)"))
    assert document["claimed_shapes"]["worst"] == {
        "value": "h",
        "claimed": [2, 4, 8],
        "inferred": None,
    }
    print_norms(Console(width=1000), document)
    assert "'h': declared [2, 4, 8], inferred no shape" in capsys.readouterr().out
    confirmed = inspect(model(["batch", 4, 8]))
    assert confirmed["claimed_shapes"] == {"count": 0, "worst": None, "untrue": []}
    print_norms(Console(width=1000), confirmed)
    assert "declared" not in capsys.readouterr().out


def test_a_size_that_operators_take_from_an_input_has_its_name_not_an_outputs() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[batch, seq, 24] x, float[24, 24] w) => (float[A, B, C] y) {
            batch = Shape <start = 0, end = 1> (x)  rest, whole = Split (constants, parts)
            cut = Concat <axis = 0> (batch, rest)  h = Reshape (x, cut)
            back = Concat <axis = 0> (batch, whole)  r = Reshape (h, back)  p = MatMul (r, w)
            y = Neg (p)
        }"""
    )
    for name, numbers in {"constants": [-1, 3, 8, -1, 24], "parts": [3, 2]}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers), name))
    known = check_claims(ir.from_proto(proto)).model.graph
    (product,) = (node.outputs[0] for node in known if node.op_type == "MatMul")
    assert list(product.shape or ()) == ["batch", "seq", 24]
    assert list(known.outputs[0].shape or ()) == ["A", "B", 24]


def test_a_size_that_no_inference_knows_has_the_name_that_the_model_declares() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[batch, 4] x) => (int64[A, B] y) <int64[2, found] h> {
            h = NonZero (x)  t = Transpose (h)  y = Neg (t)
        }"""
    )
    known = check_claims(ir.from_proto(proto)).model.graph
    assert [list(node.outputs[0].shape or ()) for node in known][:2] == [[2, "found"], ["found", 2]]


def test_a_size_of_an_input_keeps_the_name_that_inference_might_have_made_up() -> None:
    """Tools write such names into files: what is declared of a value does not rename the input."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[unk__5, 4] x) => (float[A, 4] y) <float[rows, 4] h> {
            h = Neg (x)  t = Abs (h)  y = Exp (t)
        }"""
    )
    known = check_claims(ir.from_proto(proto)).model.graph
    assert [list(node.outputs[0].shape or ()) for node in known] == [
        ["rows", 4],
        ["unk__5", 4],
        ["A", 4],
    ]


def test_sizes_have_the_names_that_the_model_has_and_no_others() -> None:
    """How many numbers are not zero has a name that shape inference made up."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[B, 8] x) => (float[B, 8] y, int64 z) { y = Relu (x) found = NonZero (x)
        z = ReduceSum <keepdims = 0> (found) }"""
    view = infer(ir.from_proto(onnx.parser.parse_model(text)))
    names = size_names(view)
    assert names["y"] == ("B", None)
    assert names["found"] == (None, None)


def test_the_model_itself_is_left_as_it_is() -> None:
    held = ir.from_proto(model([2, 4, 8]))
    check_claims(held)
    shapes = [value.shape for graph in all_graphs(held) for node in graph for value in node.outputs]
    assert list(shapes[0] or ()) == [2, 4, 8]


def test_shapes_of_real_exports_are_not_refused() -> None:
    assert len(_EXPORTS) >= 149
    for path in _EXPORTS:
        check_claims(model_io.load(path))


def test_a_declared_name_of_an_output_is_known_in_products_of_sizes() -> None:
    """TorchScript's exporter names sizes of outputs alone: a Gemm's rows are products of them."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[B, 4] x, int64 k, int64[2] flat) => (float[rows, 2, 4] y) {
            t = Range (zero, k, one)  g = Gather (x, t)  l = Neg (g)
            e = Unsqueeze (l, axis)  w = Concat<axis = 1> (e, e)  y = Abs (w)
            f = Reshape (y, wide)  h = Gemm (f, m)
        }"""
    )
    arrays = {"zero": np.array(0), "one": np.array(1), "axis": np.array([1])}
    arrays |= {"wide": np.array([-1, 4]), "m": np.ones((4, 4), np.float32)}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()
    )
    checked = check_claims(ir.from_proto(proto)).model
    found = {value.name: value.shape for node in checked.graph for value in node.outputs}
    assert list(found["y"] or ()) == ["rows", 2, 4]
    assert list(found["h"] or ()) == ["rows*2", 4]
