"""Shapes of operators that onnx's inference does not know."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from onnxfold.shapes import infer

INPUTS = "float[B,4,T,8] q, float[B,4,S,8] k, float[B,4,8,S] kt, float[B,3,9,9] i, "
INPUTS += "float[5,3,3,3] w, float[3,4] gg, float[B,T,8] x, float[B,S,12] v, int8[B,T,8] c, "
INPUTS += "int8[8,6] d, float s, int8 z, float[1,4,T,8] one, int32[B,T] ids, double[B,4,S,8] wide, "
INPUTS += "float[B,T,C] open, float[R,T] rows, float[S,T] others"
WEIGHTS = {
    "matrix": np.zeros((8, 8), np.float32),
    "packed": np.zeros((8, 24), np.float32),
    "narrow": np.zeros((8, 16), np.float32),
    "packed8": np.zeros((8, 24), np.int8),
    "nibbles": np.zeros((6, 1, 4), np.uint8),
}


def shape_of(call: str, opset: int = 17, results: str = "h"):
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    text = f"{head}\nagraph ({INPUTS}, float[8] g) => (y)\n{{ {results} = {call}\n y = Neg(h) }}"
    proto = parser.parse_model(text)
    for name, array in WEIGHTS.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    view = infer(ir.from_proto(proto))
    assert view.model.graph.outputs[0].dtype in {None, ir.DataType.FLOAT}
    return view.shape(view.model.graph.outputs[0])


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("com.microsoft.FusedMatMul<transB=1, alpha=0.5>(q, k)", ("B", 4, "T", "S")),
        ("com.microsoft.FusedMatMul(q, kt)", ("B", 4, "T", "S")),
        ("com.microsoft.FusedMatMul<transA=1, transB=1>(kt, q)", ("B", 4, "S", "T")),
        ("com.microsoft.FusedMatMul<transBatchA=1>(q, kt)", None),
        ("com.microsoft.FusedMatMul(x, matrix)", ("B", "T", 8)),
        ("com.microsoft.FusedMatMul<transB=1>(x, matrix)", ("B", "T", 8)),
        ("com.microsoft.FusedMatMul<transA=1>(matrix, kt)", ("B", 4, 8, "S")),
        ('Einsum<equation="zits,zjus->ztu">(one, one)', (1, "T", "T")),
        ('com.microsoft.FusedConv<pads=[1,1,1,1], activation="Relu">(i, w)', ("B", 5, 9, 9)),
        ("com.microsoft.FastGelu(q)", ("B", 4, "T", 8)),
        ("com.microsoft.TransposeMatMul<transB=1>(q, k)", ("B", 4, "T", "S")),
        ('com.microsoft.FusedGemm<activation="Relu", transB=1>(gg, gg)', (3, 3)),
        ("com.microsoft.Attention<num_heads=2>(x, packed)", ("B", "T", 8)),
        (
            "com.microsoft.Attention<num_heads=2, qkv_hidden_sizes=[4,4,16]>(x, packed)",
            ("B", "T", 16),
        ),
        (
            "com.microsoft.Attention<num_heads=2, qkv_hidden_sizes=[4,4,8]>(x, narrow)",
            ("B", "T", 8),
        ),
        ("com.microsoft.Attention<num_heads=2>(x, narrow)", None),
        ("com.microsoft.MultiHeadAttention<num_heads=2>(x, x, v)", ("B", "T", 12)),
        ("com.microsoft.MultiHeadAttention<num_heads=4>(x, k, k)", ("B", "T", 8)),
        ("com.microsoft.MultiHeadAttention<num_heads=2>(x)", None),
        (
            "com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1>(x, v, v)",
            ("B", "T", 8),
        ),
        ("com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1>(x)", ("B", "T", 4)),
        ("com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1>(kt)", None),
        ("com.microsoft.GroupQueryAttention<num_heads=3, kv_num_heads=1>(x)", None),
        ("com.microsoft.SkipLayerNormalization(x, x, g)", ("B", "T", 8)),
        ("com.microsoft.EmbedLayerNormalization(ids, , matrix)", ("B", "T", 8)),
        ("com.microsoft.RotaryEmbedding(q)", ("B", 4, "T", 8)),
        ("com.microsoft.MatMulNBits<K=8, N=6>(x, nibbles, s)", ("B", "T", 6)),
        (
            "com.microsoft.GatherBlockQuantized<block_size=16, quantize_axis=2>(nibbles, ids, s)",
            ("B", "T", 1, 8),
        ),
        ("com.microsoft.DynamicQuantizeMatMul(x, d, s)", ("B", "T", 6)),
        ("com.microsoft.MatMulIntegerToFloat(c, d, s, s)", ("B", "T", 6)),
        ("com.microsoft.QAttention<num_heads=2>(c, packed8, g, s, s)", ("B", "T", 8)),
        ("com.microsoft.DequantizeLinear(c, s, z)", ("B", "T", 8)),
    ],
)
def test_a_standard_operator_of_the_same_shape_stands_in(call, shape):
    assert shape_of(call) == shape


def test_an_attention_of_four_axes_has_the_rows_of_its_queries():
    assert shape_of("Attention(q, k, k)", opset=23) == ("B", 4, "T", 8)


@pytest.mark.parametrize("operands", ["c, ids, s", "nibbles, ids"])
def test_rows_of_a_table_that_is_no_constant_or_has_no_scale_are_not_known(operands):
    call = f"com.microsoft.GatherBlockQuantized<block_size=16, quantize_axis=2>({operands})"
    assert shape_of(call) is None


@pytest.mark.parametrize("keys", ["x, x", ", "])
def test_caches_of_grouped_attention_grow(keys):
    call = f"com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2>(x, {keys}, q, k)"
    batch, heads, length, size = shape_of(call, results="y0, h")
    assert (batch, heads, size) == ("B", 4, 8)
    assert length not in {"T", "S"}
    # They have the type of the queries, as the operator requires.
    call = call.replace("q, k)", "wide, wide)")
    assert shape_of(call, results="y0, h") is not None


def test_norms_give_their_sums_the_shape_of_what_they_norm():
    call = "com.microsoft.SkipSimplifiedLayerNormalization(x, x, g)"
    assert shape_of(call, results="norm, , , h") == ("B", "T", 8)
    call = "com.microsoft.EmbedLayerNormalization(ids, , matrix)"
    assert shape_of(call, results="norm, index, h") == ("B", "T", 8)


def test_layer_normalization_below_its_opset_keeps_the_shape():
    assert shape_of("LayerNormalization(q, g)", opset=14) == ("B", 4, "T", 8)


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ("com.microsoft.FusedMatMul<transB=1>(one, k)", 1),
        ('Einsum<equation="...t,...t->...">(one, k)', 1),
        ('Einsum<equation="...t,...t->...">(rows, others)', "R"),
        ("Attention<q_num_heads=2, kv_num_heads=2>(open, open, open)", 0),
    ],
)
def test_a_size_in_which_onnx_errs_is_not_believed(call, wrong):
    """One operand has it where another's may be larger; of C it says 0."""
    shape = shape_of(call, opset=23)
    assert shape is None or wrong not in shape
