"""Native precision against ONNX Runtime, over opsets and types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxfold.check.reference import Array, is_wide_float
from tests.check.reference.graphs import native, one_node, onnxruntime_outputs

pytest.importorskip("onnxruntime")
F32, F16, I64, I32, U8, I8, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.BOOL,
)
# Few-term sums and transcendentals of two libraries differ by a few roundings of the type.
BOUNDS = {np.dtype(np.float32): 3e-6, np.dtype(np.float16): 2e-3, np.dtype(np.float64): 1e-13}


def f(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def i(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class Case:
    op: str
    inputs: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    outputs: tuple[int, ...] = (F32,)
    domain: str = ""

    def __str__(self) -> str:
        told = "-".join(f"{k}={v}" for k, v in self.attributes.items() if not hasattr(v, "dims"))
        return f"{self.op}-{self.opset}-{told}"


AXES = {"axes": [1]}
STANDARD = [
    Case("Softmax", [f(2, 3, 4)], {"axis": 1}, 9),
    Case("Softmax", [f(2, 3, 4)], {"axis": 1}, 13),
    Case("Softmax", [f(2, 3, 4)], {}, 11),
    Case("LogSoftmax", [f(2, 3, 4)], {}, 9),
    Case("Hardmax", [f(2, 3, 4)], {}, 9),
    *(
        Case(op, [f(2, 3, 4) ** 2 + 1], AXES, 11)
        for op in ("ReduceMean", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare", "ReduceMax")
    ),
    Case("ReduceMean", [f(2, 3, 4), i(-1)], {"keepdims": 0}, 18),
    Case("ReduceMean", [f(2, 3, 4)], {}, 18),
    Case("ReduceSum", [f(2, 3, 4), i()], {"noop_with_empty_axes": 1}, 13),
    Case("ReduceL1", [f(2, 3, 4), i(0, 2)], {}, 18),
    Case("ReduceProd", [f(2, 3)], {"keepdims": 0}, 13),
    Case("Clip", [f(9)], {"min": -0.5, "max": 0.25}, 9),
    Case("Clip", [f(9), np.float32(-0.5).reshape(()), None], {}, 13),
    Case("Squeeze", [f(2, 1, 3)], {"axes": [1]}, 11),
    Case("Squeeze", [f(2, 1, 3), i(-2)], {}, 13),
    Case("Unsqueeze", [f(2, 3)], {"axes": [0, 3]}, 11),
    Case("Unsqueeze", [f(2, 3), i(-1)], {}, 13),
    Case("Slice", [f(4, 5)], {"starts": [1, -3], "ends": [9, -1], "axes": [0, 1]}, 9),
    Case("Slice", [f(4, 5), i(-1), i(-99), i(1), i(-2)], {}, 13),
    Case("Slice", [f(4, 5), i(3, 0), i(0, 2**62)], {}, 11),
    Case("Split", [f(2, 7)], {"axis": 1, "split": [3, 4]}, 11, (F32, F32)),
    Case("Split", [f(2, 7), i(3, 4)], {"axis": 1}, 13, (F32, F32)),
    Case("Split", [f(2, 7)], {"axis": 1, "num_outputs": 3}, 18, (F32, F32, F32)),
    Case("Pad", [f(2, 3)], {"pads": [1, 0, 0, 2], "value": 1.5}, 9),
    Case("Pad", [f(2, 3), i(1, -1, 0, 2), np.float32(2).reshape(())], {}, 13),
    Case("Pad", [f(4, 5), i(2, 1), None, i(1)], {"mode": "reflect"}, 18),
    Case("Pad", [f(4, 5), i(0, 3, 0, 1)], {"mode": "edge"}, 13),
    Case("Pad", [f(4, 5), i(0, 3, 0, 1)], {"mode": "wrap"}, 19),
    Case("Reshape", [f(2, 3, 4), i(0, -1)], {}, 13),
    Case("Expand", [f(3, 1), i(2, 1, 4)], {}, 13),
    Case("Tile", [f(2, 3), i(2, 2)], {}, 13),
    Case("Flatten", [f(2, 3, 4)], {"axis": -1}, 13),
    Case("Gather", [f(4, 5), i(-1, 2)], {"axis": 1}, 13),
    Case("GatherElements", [f(3, 2), np.array([[0, -1], [1, 1]])], {"axis": 1}, 13),
    Case("GatherND", [f(2, 3, 4), np.array([[[1]], [[0]]])], {"batch_dims": 1}, 13),
    Case("ScatterND", [f(4, 3), np.array([[1], [3]]), f(2, 3, seed=1)], {}, 16),
    Case(
        "ScatterElements",
        [f(3, 4), np.array([[0, 2, 2, 1]]), f(1, 4, seed=1)],
        {"axis": 0, "reduction": "add"},
        18,
    ),
    Case("Trilu", [f(4, 5), np.array(-1)], {"upper": 0}, 14),
    Case("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}, 13),
    Case("SpaceToDepth", [f(1, 2, 4, 6)], {"blocksize": 2}, 13),
    Case("CumSum", [f(3, 4), np.array(1)], {"exclusive": 1, "reverse": 1}, 14),
    Case("TopK", [f(3, 7), i(3)], {"axis": -1, "largest": 0}, 11, (F32, I64)),
    Case("TopK", [np.float32([[1, 1, 0, 1]]), i(2)], {}, 11, (F32, I64)),
    Case("ArgMax", [np.float32([[1, 3, 3]])], {"axis": 1, "select_last_index": 1}, 13, (I64,)),
    Case("OneHot", [i(0, -1, 5), i(3), np.float32([0.5, 2])], {"axis": 0}, 11),
    Case("Range", [np.float32(0.5), np.float32(2.1), np.float32(0.4)], {}, 11),
    Case("Mod", [i(-7, 7), i(3, -3)], {}, 13, (I64,)),
    Case("Div", [i(-7, 7), i(2, -2)], {}, 13, (I64,)),
    Case("Pow", [f(5) ** 2, f(5, seed=1)], {}, 15),
    Case("IsInf", [np.float32([np.inf, -np.inf, 1])], {"detect_negative": 0}, 10, (BOOL,)),
    Case("Cast", [np.float32([-1.7, 2.5, 0.2])], {"to": I32}, 13, (I32,)),
    Case("Cast", [np.float32([1 + 2**-11, 70000])], {"to": F16}, 13, (F16,)),
    Case("Where", [np.array([True, False]), f(2), f(2, seed=1)], {}, 16),
    Case("PRelu", [f(2, 3, 4), f(3, 1, seed=1)], {}, 16),
    Case("MeanVarianceNormalization", [f(2, 3, 4, 5)], {}, 13),
    Case("LpNormalization", [f(3, 4)], {"axis": 1, "p": 1}, 1),
    Case("InstanceNormalization", [f(2, 3, 4), f(3), f(3)], {}, 6),
    Case(
        "BatchNormalization",
        [f(2, 3, 4), f(3), f(3), f(3), f(3) ** 2],
        {"epsilon": 0.1},
        9,
    ),
    Case("LayerNormalization", [f(2, 8), f(8), f(8)], {"axis": -1}, 17, (F32, F32, F32)),
    Case("LayerNormalization", [f(2, 3, 8), f(3, 8)], {"axis": 1, "epsilon": 0.1}, 17),
    Case("GroupNormalization", [f(2, 6, 4), f(6), f(6)], {"num_groups": 2}, 21),
    Case("RMSNormalization", [f(2, 8), f(8)], {}, 23),
    Case("Gelu", [f(9)], {"approximate": "tanh"}, 20),
    Case("Gemm", [f(3, 4), f(5, 4), f(5)], {"transB": 1, "alpha": 0.5}, 9),
    Case("Gemm", [f(3, 4), f(4, 5)], {}, 13),
    Case("Einsum", [f(2, 3), f(3, 4)], {"equation": "ij,jk->ki"}, 12),
    Case("Conv", [f(1, 3, 8, 9), f(4, 3, 3, 3)], {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, 11),
    Case("Conv", [f(1, 3, 8), f(4, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2]}, 11),
    Case(
        "ConvTranspose",
        [f(1, 3, 5), f(3, 2, 3)],
        {"output_shape": [11], "strides": [2], "auto_pad": "SAME_UPPER"},
        11,
    ),
    Case("ConvTranspose", [f(1, 3, 5), f(3, 2, 3)], {"auto_pad": "SAME_LOWER", "strides": [2]}, 11),
    Case(
        "MaxPool",
        [f(1, 2, 7)],
        {"kernel_shape": [3], "strides": [2], "ceil_mode": 1},
        12,
        (F32, I64),
    ),
    Case(
        "MaxPool",
        [f(2, 2, 5, 4)],
        {"kernel_shape": [2, 2], "storage_order": 1, "pads": [1, 0, 0, 1]},
        12,
        (F32, I64),
    ),
    Case("AveragePool", [f(1, 2, 7)], {"kernel_shape": [3], "auto_pad": "SAME_UPPER"}, 11),
    Case(
        "AveragePool",
        [f(1, 2, 7)],
        {"kernel_shape": [3], "strides": [2], "ceil_mode": 1, "pads": [1, 0]},
        19,
    ),
    Case("LpPool", [f(1, 2, 7)], {"kernel_shape": [3], "p": 3}, 18),
    Case("GlobalAveragePool", [f(1, 2, 7, 3)], {}, 9),
    Case("GlobalMaxPool", [f(1, 2, 7, 3)], {}, 9),
    Case("Upsample", [f(1, 1, 3, 2), np.float32([1, 1, 2, 3])], {"mode": "linear"}, 9),
    Case("Resize", [f(1, 1, 3, 2), np.float32([1, 1, 2, 3])], {"mode": "nearest"}, 10),
    Case(
        "Resize",
        [f(1, 1, 5, 6), None, np.float32([1, 1, 0.6, 1.7])],
        {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
        13,
    ),
    Case(
        "Resize",
        [f(1, 1, 5, 6), None, None, i(1, 1, 3, 8)],
        {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"},
        13,
    ),
    Case(
        "Resize",
        [f(1, 1, 5, 6), np.float32([0, 0, 0.1, 0.3, 1, 1, 0.9, 1.2]), None, i(1, 1, 4, 4)],
        {
            "mode": "linear",
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 7.0,
        },
        13,
    ),
    Case(
        "DequantizeLinear", [np.uint8([[3, 250]]), np.float32([0.5, 2]), np.uint8([128, 1])], {}, 13
    ),
    Case("QuantizeLinear", [f(3, 4) * 100, np.float32(0.7), np.int8(3)], {}, 13, (I8,)),
    Case(
        "QuantizeLinear", [f(4, 3), np.float32([0.01, 0.1, 1]), np.uint8([1, 2, 3])], {}, 13, (U8,)
    ),
    Case("DynamicQuantizeLinear", [f(40)], {}, 11, (U8, F32, U8)),
    Case(
        "MatMulInteger",
        [np.uint8([[1, 255], [7, 9]]), np.int8([[-3, 4], [5, -128]]), np.uint8(7), np.int8(1)],
        {},
        10,
        (I32,),
    ),
    Case(
        "LSTM",
        [f(4, 2, 3), f(1, 20, 3), f(1, 20, 5), f(1, 40), np.int32([4, 2])],
        {"hidden_size": 5},
        14,
    ),
    Case(
        "GRU",
        [f(4, 2, 3), f(1, 15, 3), f(1, 15, 5)],
        {"hidden_size": 5, "direction": "reverse"},
        14,
    ),
    Case("Dropout", [f(9), np.float32(0.5)], {}, 13, (F32, BOOL)),
    Case("Identity", [f(3)], {}, 13),
    Case("EyeLike", [f(3, 4)], {"k": 1}, 9),
    Case("NonZero", [np.float32([[0, 1], [2, 0]])], {}, 13, (I64,)),
    Case("Shape", [f(2, 3, 4)], {"start": -2}, 15, (I64,)),
    Case(
        "ConstantOfShape", [i(2, 3)], {"value": helper.make_tensor("v", I64, [1], [7])}, 9, (I64,)
    ),
    Case("ReverseSequence", [f(4, 3), i(1, 4, 2)], {"time_axis": 0, "batch_axis": 1}, 10),
    Case("Attention", [f(1, 2, 4, 8), f(1, 1, 5, 8), f(1, 1, 5, 8, seed=1)], {}, 23),
]

MS = "com.microsoft"
HALF_MASK = np.int32([[1, 1, 1, 0], [1, 1, 1, 1]])
CONTRIB = [
    Case(
        "SkipLayerNormalization",
        [f(2, 3, 8), f(2, 3, 8, seed=1), f(8), f(8), f(8, seed=2)],
        {"epsilon": 0.1},
        17,
        (F32, 0, 0, F32),
        MS,
    ),
    Case("SkipLayerNormalization", [f(2, 3, 8), f(1, 3, 8, seed=1), f(8)], {}, 17, (F32,), MS),
    Case(
        "SkipSimplifiedLayerNormalization",
        [f(2, 3, 8), f(2, 3, 8, seed=1), f(8), f(8, seed=2)],
        {"epsilon": 0.1},
        17,
        (F32, 0, 0, F32),
        MS,
    ),
    Case(
        "SimplifiedLayerNormalization", [f(2, 3, 8), f(8)], {"epsilon": 0.1, "axis": -1}, 17, (F32,)
    ),
    Case(
        "EmbedLayerNormalization",
        [
            np.int32([[1, 2, 0]]),
            np.int32([[0, 1, 1]]),
            f(5, 8),
            f(4, 8),
            f(2, 8),
            f(8),
            f(8, seed=1),
            np.int32([[1, 1, 0]]),
        ],
        {"epsilon": 0.1},
        17,
        (F32, I32, F32),
        MS,
    ),
    Case("FusedGemm", [f(3, 4), f(4, 5), f(5)], {"activation": "Relu"}, 17, (F32,), MS),
    Case(
        "FusedGemm",
        [f(3, 4), f(5, 4), f(5)],
        {"activation": "LeakyRelu", "activation_alpha": 0.25, "transB": 1},
        17,
        (F32,),
        MS,
    ),
    Case(
        "FusedConv",
        [f(1, 3, 5, 5), f(4, 3, 3, 3), f(4), f(1, 4, 3, 3)],
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
        17,
        (F32,),
        MS,
    ),
    Case("BiasGelu", [f(3, 8), f(8)], {}, 17, (F32,), MS),
    Case("FastGelu", [f(3, 8), f(8)], {}, 17, (F32,), MS),
    Case("Gelu", [f(3, 8)], {}, 17, (F32,), MS),
    Case("QuickGelu", [f(3, 8)], {"alpha": 1.5}, 17, (F32,), MS),
    Case("FusedMatMul", [f(2, 3, 4), f(2, 5, 4)], {"transB": 1, "alpha": 0.5}, 17, (F32,), MS),
    Case("FusedMatMul", [f(4, 2, 3), f(2, 4, 5)], {"transA": 1, "transBatchA": 1}, 17, (F32,), MS),
    Case("Attention", [f(2, 4, 8), f(8, 24), f(24), HALF_MASK], {"num_heads": 2}, 17, (F32,), MS),
    Case(
        "Attention",
        [f(2, 4, 8), f(8, 24), f(24), np.int32([2, 4])],
        {"num_heads": 2},
        17,
        (F32,),
        MS,
    ),
    Case(
        "Attention",
        [f(2, 4, 8), f(8, 24), f(24), None, f(2, 2, 2, 3, 4)],
        {"num_heads": 2, "unidirectional": 1},
        17,
        (F32, F32),
        MS,
    ),
    Case(
        "MultiHeadAttention",
        [f(2, 4, 8), f(2, 4, 8, seed=1), f(2, 4, 8, seed=2), f(24), HALF_MASK],
        {"num_heads": 2},
        17,
        (F32,),
        MS,
    ),
    Case(
        "GroupQueryAttention",
        [
            f(2, 3, 32),
            f(2, 3, 16, seed=1),
            f(2, 3, 16, seed=2),
            None,
            None,
            np.int32([2, 2]),
            np.int32([3]),
        ],
        {"num_heads": 4, "kv_num_heads": 2, "softcap": 0.9},
        17,
        (F32, F32, F32),
        MS,
    ),
    Case(
        "GroupQueryAttention",
        [
            *(f(2, 1, 32), f(2, 1, 16, seed=1), f(2, 1, 16, seed=2)),
            *(f(2, 2, 3, 8, seed=3), f(2, 2, 3, 8, seed=4), np.int32([3, 3]), np.int32([4])),
        ],
        {"num_heads": 4, "kv_num_heads": 2, "scale": 0.3},
        17,
        (F32, F32, F32),
        MS,
    ),
    *(
        Case(
            "GroupQueryAttention",
            [
                *(f(2, 1, 64), None, None, f(2, 1, 3, 16, seed=3), f(2, 1, 3, 16, seed=4)),
                *(np.int32([3, 3]), np.int32([4]), f(8, 8, seed=5), f(8, 8, seed=6)),
            ],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1, "rotary_interleaved": interleaved},
            17,
            (F32, F32, F32),
            MS,
        )
        for interleaved in (0, 1)
    ),
    *(
        Case("RotaryEmbedding", [x, positions, *tables], attributes, 17, (F32,), MS)
        for x, positions, tables, attributes in (
            (f(2, 3, 16), np.int64([2]), (f(8, 4), f(8, 4, seed=1)), {"interleaved": 1}),
            (f(2, 2, 3, 8), np.int64([[1, 0, 7], [2, 2, 5]]), (f(8, 4), f(8, 4, seed=1)), {}),
            (
                f(2, 3, 16),
                np.int64([[1, 0, 7], [2, 2, 5]]),
                (f(8, 2), f(8, 2, seed=1)),
                {"num_heads": 2, "rotary_embedding_dim": 4},
            ),
        )
    ),
    Case(
        "DynamicQuantizeMatMul",
        [f(3, 8), np.int8(40 * f(8, 5)), np.float32([0.01] * 5), np.int8([0] * 5), f(5)],
        {},
        17,
        (F32,),
        MS,
    ),
    Case(
        "MatMulIntegerToFloat",
        [
            np.uint8(np.abs(40 * f(3, 8))),
            np.int8(40 * f(8, 5)),
            np.float32(0.1),
            np.float32(0.2),
            np.uint8(3),
            np.int8(0),
            f(5),
        ],
        {},
        17,
        (F32,),
        MS,
    ),
    Case(
        "MatMulNBits",
        [f(3, 32), np.random.default_rng(0).integers(0, 256, (4, 2, 8), np.uint8), np.abs(f(8))],
        {"K": 32, "N": 4, "bits": 4, "block_size": 16},
        17,
        (F32,),
        MS,
    ),
]


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
