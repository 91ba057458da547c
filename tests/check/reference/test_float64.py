"""The truth against PyTorch modules in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfold.check.reference import Array
from onnxfold.check.reference.kernels import convolution
from tests.check.reference.graphs import float64, one_node

torch = pytest.importorskip("torch")
F = torch.nn.functional
# ONNX stores attributes as float32, and so their defaults.
EPSILON = float(np.float32(1e-5))
SELU_ALPHA = float(np.float32(1.67326319217681884765625))
SELU_GAMMA = float(np.float32(1.05070102214813232421875))


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def positive(*shape: int) -> Array:
    return np.abs(random(*shape)) + 0.5


@dataclass(frozen=True)
class Case:
    op: str
    inputs: list[Array]
    oracle: Callable[..., Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    name: str = ""

    def __str__(self) -> str:
        return f"{self.op}-{self.name or self.opset}"


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def batch_norm(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
    return F.batch_norm(x, mean, variance, gamma, beta, eps=EPSILON)


def rms(x: Any, gamma: Any) -> Any:
    return F.rms_norm(x, gamma.shape, gamma, eps=EPSILON)


def resized(mode: str, corners: bool | None, **options: Any) -> Callable[..., Any]:
    def oracle(x: Any, roi: Any, scales: Any, sizes: Any) -> Any:
        size = [int(n) for n in sizes[2:]]
        return F.interpolate(x, size=size, mode=mode, align_corners=corners, **options)

    return oracle


def resize(mode: str, transformation: str, oracle: Callable[..., Any], **more: Any) -> Case:
    empty = np.zeros(0, dtype=np.float64)
    sizes = np.array([2, 3, 7, 4], dtype=np.int64)
    attributes = {"mode": mode, "coordinate_transformation_mode": transformation, **more}
    inputs = [random(2, 3, 5, 6), empty, empty, sizes]
    return Case("Resize", inputs, oracle, attributes, name=f"{mode}-{transformation}")


CASES = [
    Case("Conv", [random(2, 6, 9), random(4, 6, 3), random(4)], F.conv1d, name="1d"),
    Case(
        "Conv",
        [random(2, 18, 9, 8), random(4, 18, 3, 2), random(4)],
        lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2), dilation=(2, 1)),
        {"strides": [2, 1], "pads": [1, 2, 1, 2], "dilations": [2, 1]},
        name="2d-many-channels",
    ),
    Case(
        "Conv",
        [random(2, 3, 16, 16), random(5, 3, 4, 4)],
        lambda x, w: F.conv2d(x, w, stride=4),
        {"strides": [4, 4]},
        name="2d-patches",
    ),
    Case("Conv", [random(1, 2, 5, 6, 4), random(3, 2, 2, 3, 2)], F.conv3d, name="3d"),
    Case(
        "Conv",
        [random(2, 6, 7, 7), random(9, 2, 3, 3)],
        lambda x, w: F.conv2d(x, w, groups=3, padding=1),
        {"group": 3, "pads": [1, 1, 1, 1]},
        name="groups",
    ),
    Case(
        "Conv",
        [random(2, 6, 7, 7), random(6, 1, 3, 3), random(6)],
        lambda x, w, b: F.conv2d(x, w, b, groups=6, padding=1),
        {"group": 6, "pads": [1, 1, 1, 1]},
        name="depthwise",
    ),
    Case(
        "Conv",
        [random(2, 6, 7, 7), random(12, 1, 3, 3)],
        lambda x, w: F.conv2d(x, w, groups=6),
        {"group": 6},
        name="depth-multiplier",
    ),
    Case(
        "ConvTranspose",
        [random(2, 6, 5, 4), random(6, 2, 3, 3), random(4)],
        lambda x, w, b: F.conv_transpose2d(
            x, w, b, stride=(3, 2), padding=1, output_padding=(2, 1), groups=2, dilation=(1, 2)
        ),
        {
            "strides": [3, 2],
            "pads": [1, 1, 1, 1],
            "output_padding": [2, 1],
            "group": 2,
            "dilations": [1, 2],
        },
    ),
    Case("ConvTranspose", [random(2, 3, 7), random(3, 4, 2)], F.conv_transpose1d, name="1d"),
    Case(
        "LayerNormalization",
        [random(2, 5, 8), random(8), random(8)],
        lambda x, g, b: F.layer_norm(x, (8,), g, b, EPSILON),
    ),
    Case(
        "LayerNormalization",
        [100 + random(2, 5, 8), random(5, 8), random(5, 8)],
        lambda x, g, b: F.layer_norm(x, (5, 8), g, b, EPSILON),
        {"axis": 1, "stash_type": 1},
        name="axis-1-large-mean",
    ),
    Case("RMSNormalization", [random(2, 5, 8), random(8)], rms, opset=23),
    Case("RMSNormalization", [random(2, 5, 8), random(5, 8)], rms, {"axis": -2}, 23, "two-axes"),
    Case(
        "GroupNormalization",
        [random(2, 6, 4, 3), random(6), random(6)],
        lambda x, g, b: F.group_norm(x, 3, g, b, EPSILON),
        {"num_groups": 3},
    ),
    Case(
        "GroupNormalization",
        [random(2, 6, 4), random(3), random(3)],
        lambda x, g, b: F.group_norm(x, 3, g.repeat_interleave(2), b.repeat_interleave(2), EPSILON),
        {"num_groups": 3},
        opset=18,
    ),
    Case(
        "InstanceNormalization",
        [random(2, 3, 4, 5), random(3), random(3)],
        lambda x, g, b: F.instance_norm(x, weight=g, bias=b, eps=EPSILON),
    ),
    Case(
        "BatchNormalization",
        [random(2, 3, 4), random(3), random(3), random(3), positive(3)],
        batch_norm,
    ),
    Case("Gelu", [random(4, 5)], F.gelu),
    Case("Gelu", [random(4, 5)], lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    Case("Softmax", [random(3, 4, 5)], lambda x: F.softmax(x, 1), {"axis": 1}),
    Case(
        "Softmax",
        [random(3, 4, 5)],
        lambda x: F.softmax(x.reshape(3, 20), 1).reshape(3, 4, 5),
        {"axis": 1},
        11,
    ),
    Case("LogSoftmax", [random(3, 4)], lambda x: F.log_softmax(x, -1)),
    *(
        Case(
            "GridSample",
            [random(2, 3, 5, 4), 1.3 * random(2, 6, 7, 2)],
            lambda x, grid, mode=mode, padding=padding, corners=corners: F.grid_sample(
                x, grid, "bi" * (mode != "nearest") + mode, padding, corners
            ),
            {
                "mode": "bi" * (mode != "nearest") + mode,
                "padding_mode": padding,
                "align_corners": int(corners),
            },
            16,
            f"{mode}-{padding}-{corners}",
        )
        for mode in ("linear", "nearest", "cubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    ),
    Case(
        "GridSample",
        [random(2, 3, 5, 4, 3), random(2, 2, 3, 4, 3)],
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        opset=20,
        name="3d",
    ),
    Case("Erf", [random(9)], torch.erf),
    Case("Selu", [random(9)], lambda x: SELU_GAMMA * F.elu(x, SELU_ALPHA)),
    Case("Celu", [random(9)], lambda x: F.celu(x, 1.5), {"alpha": 1.5}),
    Case("Elu", [random(9)], lambda x: F.elu(x, 0.5), {"alpha": 0.5}),
    Case("Mish", [random(9)], F.mish),
    Case("HardSwish", [4 * random(9)], F.hardswish),
    Case("Softplus", [random(9)], F.softplus),
    Case("Swish", [random(9)], F.silu, opset=24),
    Case(
        "Gemm",
        [random(5, 3), random(4, 5), random(4)],
        lambda a, b, c: 0.5 * a.T @ b.T + 0.25 * c,
        {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 0.25},
    ),
    Case("MatMul", [random(2, 1, 3, 4), random(5, 4, 6)], torch.matmul),
    Case(
        "Einsum",
        [random(2, 3, 4), random(2, 4, 5)],
        lambda a, b: torch.einsum("bij,bjk->bik", a, b),
        {"equation": "bij, bjk -> bik"},
    ),
    Case(
        "AveragePool",
        [random(2, 3, 7, 8)],
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1},
    ),
    Case(
        "AveragePool",
        [random(2, 3, 7, 8)],
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True),
        {
            "kernel_shape": [3, 3],
            "strides": [2, 2],
            "pads": [1] * 4,
            "ceil_mode": 1,
            "count_include_pad": 1,
        },
        name="count-include-pad",
    ),
    Case(
        "MaxPool",
        [random(2, 3, 7, 8)],
        lambda x: F.max_pool2d(x, (3, 2), 2, (1, 0), (1, 2)),
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0], "dilations": [1, 2]},
    ),
    Case(
        "LRN",
        [random(2, 7, 3)],
        lambda x: F.local_response_norm(x, 5, float(np.float32(1e-4))),
        {"size": 5},
    ),
    resize("linear", "half_pixel", resized("bilinear", False)),
    resize("linear", "align_corners", resized("bilinear", True)),
    resize("cubic", "half_pixel", resized("bicubic", False)),
    resize("nearest", "asymmetric", resized("nearest", None), nearest_mode="floor"),
    resize(
        "linear",
        "half_pixel",
        resized("bilinear", False, antialias=True),
        antialias=1,
        exclude_outside=1,
    ),
    Case(
        "Attention",
        [random(2, 3, 5, 4), random(2, 3, 5, 4, seed=1), random(2, 3, 5, 6)],
        attention,
        {"is_causal": 1},
        23,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_float32_model_is_computed_in_float64(case: Case) -> None:
    tensors = [torch.from_numpy(x) if x is not None else None for x in case.inputs]
    expected = case.oracle(*tensors).numpy()
    # The model is typed float32; only the numbers that flow through it are float64.
    typed = [x.astype(np.float32) if x.dtype.kind == "f" else x for x in case.inputs]
    proto = one_node(case.op, typed, case.attributes, opset=case.opset)
    got = float64(proto, case.inputs)[0]
    assert got.dtype == np.float64
    # At most a few hundred roundings of 1.1e-16 meet in one element, amplified by the large mean.
    bound = 1e-13 * max(1.0, float(np.abs(case.inputs[0]).max())) ** 2
    assert np.abs(got - expected).max() <= bound * np.abs(expected).max()


def test_large_convolutions_gather_their_patches_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_PATCHES_BYTES", 8 * 27 * 11 * 2)
    x, w = random(2, 3, 9, 13), random(4, 3, 3, 3)
    proto = one_node("Conv", [x.astype(np.float32), w.astype(np.float32)])
    expected = F.conv2d(torch.from_numpy(x), torch.from_numpy(w)).numpy()
    # Sums of 27 products.
    np.testing.assert_allclose(float64(proto, [x, w])[0], expected, rtol=0, atol=1e-14)


def test_layer_normalization_gives_mean_and_inverse_deviation_in_float64() -> None:
    x = 50 + random(3, 16)
    kinds = (TensorProto.FLOAT,) * 3
    proto = one_node(
        "LayerNormalization", [x.astype(np.float32), np.ones(16, np.float32)], outputs=kinds
    )
    _, mean, inverse = float64(proto, [x, np.ones(16)])
    assert mean.shape == inverse.shape == (3, 1)
    np.testing.assert_allclose(mean[:, 0], x.mean(axis=1), rtol=1e-15)
    np.testing.assert_allclose(inverse[:, 0], 1 / np.sqrt(x.var(axis=1) + EPSILON), rtol=1e-12)


def _reordered(w: Any, order: tuple[int, ...]) -> Array:
    """Gates of a PyTorch cell in ONNX's order, as [1, gates * hidden, ...]."""
    parts = np.split(w.detach().numpy(), len(order))
    return np.concatenate([parts[i] for i in order])[None]


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(
    ("op", "order", "attributes"),
    [("LSTM", (0, 3, 1, 2), {}), ("GRU", (1, 0, 2), {"linear_before_reset": 1}), ("RNN", (0,), {})],
)
def test_recurrent_operators_agree_with_torch(
    op: str, order: tuple[int, ...], attributes: dict[str, int], direction: str
) -> None:
    torch.manual_seed(0)
    both = direction == "bidirectional"
    cell = getattr(torch.nn, op)(4, 5, bidirectional=both).double()
    x = random(6, 2, 4)
    expected, _ = cell(torch.from_numpy(x))
    weights: list[list[Array]] = [[], [], []]
    for suffix in ("", "_reverse") if both else ("",):
        weights[0].append(_reordered(getattr(cell, f"weight_ih_l0{suffix}"), order))
        weights[1].append(_reordered(getattr(cell, f"weight_hh_l0{suffix}"), order))
        biases = [getattr(cell, f"bias_{kind}_l0{suffix}") for kind in ("ih", "hh")]
        weights[2].append(np.concatenate([_reordered(b, order) for b in biases], axis=1))
    inputs = [x, *(np.concatenate(w) for w in weights)]
    typed = [v.astype(np.float32) for v in inputs]
    options = {"hidden_size": 5, "direction": direction, **attributes}
    got = float64(one_node(op, typed, options), inputs)[0]
    merged = got.transpose(0, 2, 1, 3).reshape(6, 2, -1)
    np.testing.assert_allclose(merged, expected.detach().numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("packed", [False, True])
def test_grouped_attention_norms_every_head_of_queries_and_keys(packed: bool) -> None:
    """ONNX Runtime lacks such a CPU kernel to compare with."""
    q, k, v = random(1, 3, 16), random(1, 3, 8), random(1, 3, 8, seed=1)
    gammas = random(4), random(4, seed=1)
    heads = {"num_heads": 4, "kv_num_heads": 2, "qk_norm_epsilon": 1e-5}

    def attended(q: Array, k: Array, *norms: Array) -> list[Array]:
        first = [np.concatenate([q, k, v], -1), None, None] if packed else [q, k, v]
        rest = [None, None, np.int32([2]), np.int32([3]), *[None] * 7, *norms]
        inputs = [*first, *rest]
        typed = [None if x is None else np.float32(x) if x.ndim > 1 else x for x in inputs]
        kinds = [TensorProto.FLOAT] * 3
        proto = one_node("GroupQueryAttention", typed, heads, domain="com.microsoft", outputs=kinds)
        return float64(proto, inputs)

    normed = (
        rms(*(torch.from_numpy(a) for a in (x.reshape(1, 3, -1, 4), gamma))).numpy()
        for x, gamma in zip((q, k), gammas, strict=True)
    )
    expected = attended(*(x.reshape(1, 3, -1) for x in normed))
    # Some tens of operations on numbers of about 1, in float64.
    for got, right in zip(attended(q, k, *gammas), expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=0, atol=1e-14)
    assert np.abs(attended(q, k)[0] - expected[0]).max() > 1e-2
