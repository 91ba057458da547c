"""Cases of ONNX Runtime's own operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxfold.check.reference import Array
from tests.check.reference.cases import F32, I32, Case, f

__all__ = ["CONTRIB"]

HALF_MASK = np.int32([[1, 1, 1, 0], [1, 1, 1, 1]])


def ms(
    op: str,
    inputs: list[Array | None],
    attributes: Mapping[str, Any] | None = None,
    outputs: tuple[int, ...] = (F32,),
) -> Case:
    return Case(op, inputs, dict(attributes or {}), 17, outputs, "com.microsoft")


CONTRIB = [
    ms(
        "SkipLayerNormalization",
        [f(2, 3, 8), f(2, 3, 8, seed=1), f(8), f(8), f(8, seed=2)],
        {"epsilon": 0.1},
        outputs=(F32, 0, 0, F32),
    ),
    ms("SkipLayerNormalization", [f(2, 3, 8), f(1, 3, 8, seed=1), f(8)]),
    ms(
        "SkipSimplifiedLayerNormalization",
        [f(2, 3, 8), f(2, 3, 8, seed=1), f(8), f(8, seed=2)],
        {"epsilon": 0.1},
        outputs=(F32, 0, 0, F32),
    ),
    Case(
        "SimplifiedLayerNormalization", [f(2, 3, 8), f(8)], {"epsilon": 0.1, "axis": -1}, 17, (F32,)
    ),
    ms(
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
        outputs=(F32, I32, F32),
    ),
    ms("FusedGemm", [f(3, 4), f(4, 5), f(5)], {"activation": "Relu"}),
    ms(
        "FusedGemm",
        [f(3, 4), f(5, 4), f(5)],
        {"activation": "LeakyRelu", "activation_alpha": 0.25, "transB": 1},
    ),
    ms(
        "FusedConv",
        [f(1, 3, 5, 5), f(4, 3, 3, 3), f(4), f(1, 4, 3, 3)],
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
    ),
    ms("BiasGelu", [f(3, 8), f(8)]),
    ms("FastGelu", [f(3, 8), f(8)]),
    ms("Gelu", [f(3, 8)]),
    ms("QuickGelu", [f(3, 8)], {"alpha": 1.5}),
    ms("FusedMatMul", [f(2, 3, 4), f(2, 5, 4)], {"transB": 1, "alpha": 0.5}),
    ms("FusedMatMul", [f(4, 2, 3), f(2, 4, 5)], {"transA": 1, "transBatchA": 1}),
    ms("Attention", [f(2, 4, 8), f(8, 24), f(24), HALF_MASK], {"num_heads": 2}),
    ms("Attention", [f(2, 4, 8), f(8, 24), f(24), np.int32([2, 4])], {"num_heads": 2}),
    ms(
        "Attention",
        [f(2, 4, 8), f(8, 24), f(24), None, f(2, 2, 2, 3, 4)],
        {"num_heads": 2, "unidirectional": 1},
        outputs=(F32, F32),
    ),
    ms(
        "MultiHeadAttention",
        [f(2, 4, 8), f(2, 4, 8, seed=1), f(2, 4, 8, seed=2), f(24), HALF_MASK],
        {"num_heads": 2},
    ),
    ms(
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
        outputs=(F32, F32, F32),
    ),
    ms(
        "GroupQueryAttention",
        [
            *(f(2, 1, 32), f(2, 1, 16, seed=1), f(2, 1, 16, seed=2)),
            *(f(2, 2, 3, 8, seed=3), f(2, 2, 3, 8, seed=4), np.int32([3, 3]), np.int32([4])),
        ],
        {"num_heads": 4, "kv_num_heads": 2, "scale": 0.3},
        outputs=(F32, F32, F32),
    ),
    *(
        ms(
            "GroupQueryAttention",
            [
                *(f(2, 1, 64), None, None, f(2, 1, 3, 16, seed=3), f(2, 1, 3, 16, seed=4)),
                *(np.int32([3, 3]), np.int32([4]), f(8, 8, seed=5), f(8, 8, seed=6)),
            ],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1, "rotary_interleaved": interleaved},
            outputs=(F32, F32, F32),
        )
        for interleaved in (0, 1)
    ),
    *(
        ms(
            "GroupQueryAttention",
            [
                *(f(1, 5, 64), None, None, f(1, 1, 3, 16, seed=3), f(1, 1, 3, 16, seed=4)),
                *(np.int32([7]), np.int32([8]), f(8, 8, seed=5), f(8, 8, seed=6)),
                *others,
            ],
            {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1, "softcap": 0.9, **attributes},
            outputs=(F32, F32, F32),
        )
        for others, attributes in (
            ([], {"local_window_size": 2}),
            ([None, None, f(2, seed=7)], {}),
            ([None, None, f(2, seed=7)], {"local_window_size": 3}),
            ([], {"smooth_softmax": 1}),
            ([np.int64([[2, 0, 1, 5, 7]])], {}),
            ([None, f(1, 2, 5, 8, seed=8)], {"local_window_size": 4}),
        )
    ),
    *(
        ms("RotaryEmbedding", [x, positions, *tables], attributes)
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
    ms(
        "DynamicQuantizeMatMul",
        [f(3, 8), np.int8(40 * f(8, 5)), np.float32([0.01] * 5), np.int8([0] * 5), f(5)],
    ),
    ms(
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
    ),
    *(
        ms(
            "GatherBlockQuantized",
            [
                np.random.default_rng(0).integers(0, 256, (5, 16 * bits // 4), np.uint8),
                np.int64([[4, 0, 1], [1, 1, 3]]),
                np.abs(f(5, 2)),
                *points,
            ],
            {"bits": bits, "block_size": 16, "quantize_axis": 1, "gather_axis": 0},
        )
        for bits, points in ((4, []), (8, []), (4, [np.uint8([[33], [67], [165], [7], [240]])]))
    ),
    *(
        ms(
            "MoE",
            [
                f(5, 8),
                f(5, 3, seed=1),
                f(3, out, 8, seed=2),
                *(f(3, out, seed=3) for _ in biased),
                *(None for _ in range(1 - len(biased))),
                f(3, 8, 6, seed=4),
            ],
            {"k": 2, "activation_type": name, "normalize_routing_weights": 1, **rest},
        )
        for name, out, biased, rest in (
            ("relu", 6, (), {}),
            ("silu", 6, (0,), {}),
            ("gelu", 6, (0,), {"normalize_routing_weights": 0}),
            ("identity", 6, (0,), {"k": 1}),
            (
                "swiglu",
                12,
                (0,),
                {
                    "swiglu_fusion": 1,
                    "activation_alpha": 1.7,
                    "activation_beta": 1.0,
                    "swiglu_limit": 0.7,
                },
            ),
        )
    ),
    *(
        ms(
            "QMoE",
            [
                f(5, 32),
                f(5, 3, seed=1),
                np.random.default_rng(0).integers(0, 256, (3, 16, 4 * bits), np.uint8),
                0.1 * np.abs(f(3, 16, *blocks[:1])),
                f(3, 16),
                np.random.default_rng(1).integers(0, 256, (3, 32, 2 * bits), np.uint8),
                0.1 * np.abs(f(3, 32, *blocks[1:])),
                f(3, 32),
            ],
            {"k": 2, "activation_type": "silu", "expert_weight_bits": bits, **rest},
        )
        for bits, blocks, rest in (
            (4, (), {}),
            (8, (), {"weights_prepacked": 0}),
            (4, (2, 1), {"block_size": 16}),
            (2, (2, 1), {"block_size": 16}),
        )
    ),
    ms(
        "MatMulNBits",
        [f(3, 32), np.random.default_rng(0).integers(0, 256, (4, 2, 8), np.uint8), np.abs(f(8))],
        {"K": 32, "N": 4, "bits": 4, "block_size": 16},
    ),
]
