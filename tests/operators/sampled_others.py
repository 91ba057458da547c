"""Samplers of the rows without a law that claim something: a shape, a level, booleans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from tests.operators.operators import group_norm, group_normalization, mean_variance
from tests.operators.sample import Array, Dims, Draw, Operand, Sample, fixed
from tests.operators.sampled_experts import q_experts

__all__ = ["OTHERS", "WITHOUT_ORACLE"]

_MS = "com.microsoft"
Sampler = Callable[[Draw], Sample]
# Rows that nothing at hand can run, with the reason.
WITHOUT_ORACLE = {
    (_MS, "BiasDropout"): "ONNX Runtime has it for training on GPUs alone",
    (_MS, "LayerNormalization"): "older versions of ONNX Runtime wrote it; none runs it now",
    (_MS, "SimplifiedLayerNormalization"): "as LayerNormalization",
    ("", "SimplifiedLayerNormalization"): "of ONNX Runtime; test_norm_operators.py runs it",
}


def _moving(array: Array, dims: Dims | None = None) -> Operand:
    return Operand(array, tuple(array.shape) if dims is None else dims, False, moves=True)


def _of(
    op_type: str,
    version: int,
    *operands: Operand,
    outputs: int = 1,
    domain: str = "",
    function: Any = None,
    tolerance: float = 1e-10,
    **attributes: Any,
) -> Sample:
    return Sample(
        op_type, version, operands, attributes, {}, outputs, domain, function, tolerance=tolerance
    )


def _unary(op_type: str, opset: int, **attributes: Any) -> Sampler:
    """Of numbers above 1, so that all functions are defined, or of any for homogeneous ones."""

    def sample(draw: Draw) -> Sample:
        dims = draw.static(draw.dims(2, 3))
        x = draw.normal(dims)
        if op_type not in ("Abs", "Relu", "LeakyRelu"):
            x = np.clip(np.abs(x), 0.1, 0.9) + (op_type == "Acosh")
        return _of(op_type, opset, _moving(x), **attributes)

    return sample


def _pair(op_type: str, opset: int, *, kind: str = "f", narrow: int = 1) -> Sampler:
    def sample(draw: Draw) -> Sample:
        full = draw.static(draw.dims(1, 3))
        pair = [full, full]
        pair[narrow] = draw.static(draw.narrower(full))
        arrays = [draw.normal(shape) for shape in pair]
        if kind == "b":
            arrays = [array > 0 for array in arrays]
        elif kind == "u":
            arrays = [np.abs(array * 3).astype(np.uint8) for array in arrays]
        elif op_type in ("Mod", "Pow"):
            arrays = [np.abs(array) + 0.5 for array in arrays]
        attributes: dict[str, Any] = {"fmod": 1} if op_type == "Mod" else {}
        attributes |= {"direction": "LEFT"} if op_type == "BitShift" else {}
        return _of(op_type, opset, *map(_moving, arrays), **attributes)

    return sample


def _single(op_type: str, opset: int, dtype: Any) -> Sampler:
    def sample(draw: Draw) -> Sample:
        x = draw.normal(draw.static(draw.dims(1, 3)))
        return _of(op_type, opset, _moving((x > 0) if dtype is bool else (3 * x).astype(dtype)))

    return sample


def _reduce(op_type: str, as_input: int) -> Sampler:
    def sample(draw: Draw) -> Sample:
        dims = draw.static(draw.dims(1, 3))
        axes = draw.shuffled(range(len(dims)))[: draw.number(1, len(dims))]
        keep = {"keepdims": draw.number(0, 1)}
        x = _moving(np.abs(draw.normal(dims)) + 0.1)
        opset = draw.pick((9, 11, 12, 13, 18, 20))
        if opset < as_input:
            return _of(op_type, opset, x, axes=sorted(axes), **keep)
        return _of(op_type, opset, x, fixed(np.array(axes, np.int64)), **keep)

    return sample


def _pool(op_type: str, *opsets: int, function: Any = None) -> Sampler:
    def sample(draw: Draw) -> Sample:
        x = _moving(draw.normal((2, 2, *(draw.number(3, 5) for _ in range(2)))))
        whole = op_type.startswith("Global")
        attributes = {} if whole else {"kernel_shape": [2, 2], "strides": [1, draw.number(1, 2)]}
        return _of(op_type, draw.pick(opsets), x, function=function, **attributes)

    return sample


def _euclidean(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    x = arrays[0]
    assert x is not None
    return [np.sqrt((x * x).sum(axis=(2, 3), keepdims=True))]


def _gather_elements(draw: Draw) -> Sample:
    x = draw.normal(draw.static(draw.dims(1, 3)))
    indices = np.abs(draw.normal(x.shape) * 9).astype(np.int64) % x.shape[0]
    return _of("GatherElements", draw.pick((11, 13)), _moving(x), fixed(indices), axis=0)


def _depth_to_space(draw: Draw) -> Sample:
    mode = {"mode": draw.pick(("DCR", "CRD"))} if draw.chance(0.5) else {}
    x = _moving(draw.normal((1, 4 * draw.number(1, 2), 2, 3)))
    return _of("DepthToSpace", 11 if mode else 9, x, blocksize=2, **mode)


def _space_to_depth(draw: Draw) -> Sample:
    x = _moving(draw.normal((1, draw.number(1, 3), 4, 6)))
    return _of("SpaceToDepth", draw.pick((9, 13)), x, blocksize=2)


def _reverse(draw: Draw) -> Sample:
    x = draw.normal((4, 3, 2))
    lengths = fixed(np.array([draw.number(1, 4) for _ in range(3)], np.int64))
    return _of("ReverseSequence", 10, _moving(x), lengths, time_axis=0, batch_axis=1)


def _trilu(draw: Draw) -> Sample:
    k = fixed(np.array(draw.number(-2, 2), np.int64))
    return _of("Trilu", 14, _moving(draw.normal((2, 3, 4))), k, upper=draw.number(0, 1))


def _compress(draw: Draw) -> Sample:
    x = draw.normal((draw.number(2, 4), 3))
    keep = np.array([draw.chance(0.7) for _ in range(x.shape[0])])
    return _of("Compress", draw.pick((9, 11)), _moving(x), fixed(keep), axis=0)


def _upsample(draw: Draw) -> Sample:
    """Nearest, which no evaluator has: every pixel twice."""
    x = draw.normal((1, 2, draw.number(2, 3), 2))

    def twice(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
        assert arrays[0] is not None
        return [arrays[0].repeat(2, axis=2).repeat(2, axis=3)]

    scales = fixed(np.array([1, 1, 2, 2], np.float32))
    return _of("Upsample", 9, _moving(x), scales, function=twice, mode="nearest")


def _range(draw: Draw) -> Sample:
    """Of floats: onnx's evaluator computes start + step * k."""
    numbers = (draw.number(0, 3), draw.number(4, 9), draw.number(1, 3))
    return _of("Range", 11, *(fixed(np.array(number, np.float64)) for number in numbers))


def _clip(draw: Draw) -> Sample:
    x = _moving(draw.normal(draw.static(draw.dims(1, 3))))
    if draw.chance(0.5):
        return _of("Clip", draw.pick((11, 12, 13)), x, fixed(np.array(-0.5)), fixed(np.array(0.5)))
    return _of("Clip", 9, x, min=-0.5, max=0.5)


def _norm(
    op_type: str, *opsets: int, parameters: int, function: Any = None, **attributes: Any
) -> Sampler:
    """A norm of [2, 4, 3] with as many vectors; along the last axis LayerNorm and RMSNorm."""

    def sample(draw: Draw) -> Sample:
        shape = (2, 4, 3, 1) if op_type == "LRN" else (2, 4, 3)
        x, opset = draw.normal(shape), draw.pick(opsets)
        size = 3 if op_type in ("LayerNormalization", "RMSNormalization") else 4
        size = 2 if op_type == "GroupNormalization" and opset < 21 else size
        vectors = [_moving(np.abs(draw.normal((size,))) + 0.1) for _ in range(parameters)]
        return _of(op_type, opset, _moving(x), *vectors, function=function, **attributes)

    return sample


def _rotary(draw: Draw) -> Sample:
    x, cos, sin = draw.normal((2, 2, 3, 4)), draw.normal((2, 3, 2)), draw.normal((2, 3, 2))
    angles = [fixed(cos), fixed(sin)]
    return _of("RotaryEmbedding", 23, _moving(x), *angles, interleaved=draw.number(0, 1))


def _biased_softmax(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    x, bias = arrays
    assert x is not None
    assert bias is not None
    e = np.exp(x + bias)
    return [e / e.sum(axis=attributes["axis"], keepdims=True)]


def _native(
    op_type: str, *shapes: tuple[int, ...], function: Any = None, **attributes: Any
) -> Sampler:
    """An operator of ONNX Runtime, run by it in float32 if it has no ``function``."""

    def sample(draw: Draw) -> Sample:
        operands = []
        for index, shape in enumerate(shapes):
            array = draw.normal(shape)
            operands.append(_moving(array.astype(np.float32)) if index == 0 else _plain(array))
        if op_type.startswith("QLinear"):
            zero = np.array(128, np.uint8)
            x = (draw.normal(shapes[0]) * 20 + 128).astype(np.uint8)
            scale = fixed(np.array(0.05, np.float32))
            operands = [fixed(x, constant=False), scale, fixed(zero), scale, fixed(zero)]
        if op_type == "RotaryEmbedding":
            operands.insert(1, fixed(np.zeros((1,), np.int64)))
        more = {"opset": 13} if op_type == "QLinearSoftmax" else {}
        return _of(
            op_type,
            17,
            *operands,
            domain=_MS,
            tolerance=1e-6,
            function=function or _run(op_type),
            **attributes,
            **more,
        )

    return sample


def _plain(array: Array) -> Operand:
    return Operand(array.astype(np.float32), tuple(array.shape), False, moves=True)


def _run(op_type: str) -> Any:
    def run(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
        feeds = {f"x{k}": array for k, array in enumerate(arrays) if array is not None}
        node = helper.make_node(op_type, list(feeds), ["y"], domain=_MS, **attributes)
        typed = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ]
        kind = TensorProto.UINT8 if op_type.startswith("QLinear") else TensorProto.FLOAT
        graph = helper.make_graph(
            [node], "g", typed, [helper.make_tensor_value_info("y", kind, None)]
        )
        imports = [helper.make_opsetid("", 17), helper.make_opsetid(_MS, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        data = onnx.ModelProto.SerializeToString(model)
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        return list(session.run(None, feeds))

    return run


_UNARY = {
    9: "Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Elu Erf Exp Floor HardSigmoid Log "
    "Reciprocal Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh Abs Relu "
    "LeakyRelu Hardmax",
    10: "ThresholdedRelu",
    11: "Round",
    12: "Celu",
    14: "HardSwish",
    18: "Mish",
    20: "Gelu",
    24: "Swish",
}
OTHERS: dict[tuple[str, str], Sampler] = {
    (_MS, "QMoE"): q_experts,
    **{("", op): _unary(op, opset) for opset, ops in _UNARY.items() for op in ops.split()},
    **{
        ("", op): _reduce(op, 18)
        for op in (
            "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMin ReduceProd "
            "ReduceSumSquare".split()
        )
    },
    **{("", op): _pair(op, 9) for op in "Max Min Pow PRelu Equal Greater Less".split()},
    **{("", op): _pair(op, 12) for op in "GreaterOrEqual LessOrEqual".split()},
    **{("", op): _pair(op, 9, kind="b") for op in "And Or Xor".split()},
    **{("", op): _pair(op, 18, kind="u") for op in "BitwiseAnd BitwiseOr BitwiseXor".split()},
    ("", "Mod"): _pair("Mod", 10),
    ("", "BitShift"): _pair("BitShift", 11, kind="u"),
    ("", "BitwiseNot"): _single("BitwiseNot", 18, np.uint8),
    ("", "Not"): _single("Not", 9, bool),
    ("", "IsInf"): _single("IsInf", 10, np.float64),
    ("", "IsNaN"): _single("IsNaN", 9, np.float64),
    ("", "MaxPool"): _pool("MaxPool", 9, 10, 11, 12),
    ("", "LpPool"): _pool("LpPool", 9, 11, 18),
    ("", "GlobalMaxPool"): _pool("GlobalMaxPool", 9),
    ("", "GlobalLpPool"): _pool("GlobalLpPool", 9, function=_euclidean),
    ("", "GatherElements"): _gather_elements,
    ("", "DepthToSpace"): _depth_to_space,
    ("", "SpaceToDepth"): _space_to_depth,
    ("", "ReverseSequence"): _reverse,
    ("", "Trilu"): _trilu,
    ("", "Compress"): _compress,
    ("", "Upsample"): _upsample,
    ("", "Clip"): _clip,
    ("", "Range"): _range,
    ("", "LpNormalization"): _norm("LpNormalization", 9, parameters=0),
    ("", "GroupNormalization"): _norm(
        "GroupNormalization",
        18,
        21,
        parameters=2,
        function=group_normalization,
        num_groups=2,
        epsilon=1e-5,
    ),
    ("", "InstanceNormalization"): _norm("InstanceNormalization", 9, parameters=2),
    ("", "LayerNormalization"): _norm("LayerNormalization", 17, parameters=2),
    ("", "RMSNormalization"): _norm("RMSNormalization", 23, parameters=1),
    ("", "MeanVarianceNormalization"): _norm(
        "MeanVarianceNormalization", 9, parameters=0, function=mean_variance, axes=[0, 2]
    ),
    ("", "LRN"): _norm("LRN", 9, parameters=0, size=3),
    ("", "RotaryEmbedding"): _rotary,
    (_MS, "BiasGelu"): _native("BiasGelu", (2, 3, 4), (4,)),
    (_MS, "FastGelu"): _native("FastGelu", (2, 3, 4), (4,)),
    (_MS, "Gelu"): _native("Gelu", (2, 3, 4)),
    (_MS, "QuickGelu"): _native("QuickGelu", (2, 3, 4)),
    (_MS, "BiasSoftmax"): _native(
        "BiasSoftmax", (2, 3, 4), (2, 3, 4), function=_biased_softmax, axis=2, is_inner_broadcast=0
    ),
    (_MS, "GroupNorm"): _native(
        "GroupNorm",
        (2, 3, 3, 4),
        (4,),
        (4,),
        function=group_norm,
        groups=2,
        activation=0,
        epsilon=1e-5,
    ),
    (_MS, "RotaryEmbedding"): _native("RotaryEmbedding", (1, 3, 8), (3, 4), (3, 4)),
    (_MS, "QLinearLeakyRelu"): _native("QLinearLeakyRelu", (2, 3, 4)),
    (_MS, "QLinearSigmoid"): _native("QLinearSigmoid", (2, 3, 4)),
    (_MS, "QLinearSoftmax"): _native("QLinearSoftmax", (2, 3, 4), axis=-1),
}
