"""Samplers of products: MatMul, Gemm, convolutions, Einsum."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.operators.sample import Array, Dims, Draw, Operand, Sample, fixed

__all__ = ["LINEAR"]


def _batches(draw: Draw) -> tuple[Dims, Dims]:
    """Batch axes that broadcast with each other."""
    full = draw.dims(0, 2)
    pair = (full, draw.narrower(full))
    return pair if draw.chance(0.5) else pair[::-1]


def _matmul(draw: Draw) -> Sample:
    m, k, n = (draw.dim() for _ in range(3))
    batch_a, batch_b = _batches(draw)
    a: Dims = (*batch_a, m, k)
    b: Dims = (*batch_b, k, n)
    if draw.chance(0.12):
        a = (k,)
    if draw.chance(0.12):
        b = (k,)
    operands = (draw.floats(a), draw.floats(b))
    return draw.sample("MatMul", draw.pick((9, 13)), operands, {})


def _fused_matmul(draw: Draw, op_type: str = "FusedMatMul") -> Sample:
    m, k, n = (draw.dim() for _ in range(3))
    batch_a, batch_b = _batches(draw)
    names = ("transA", "transB", "transBatchA", "transBatchB")
    odds = (0.5, 0.5, 0.1, 0.1)
    flags = {name: 1 for name, odd in zip(names, odds, strict=True) if draw.chance(odd)}
    if not batch_a or not batch_b or len(batch_a) != len(batch_b):
        flags = {name: one for name, one in flags.items() if "Batch" not in name}
    a: Dims = (*batch_a, k, m) if flags.get("transA") else (*batch_a, m, k)
    b: Dims = (*batch_b, n, k) if flags.get("transB") else (*batch_b, k, n)
    a, b = _rotated(a, flags.get("transBatchA")), _rotated(b, flags.get("transBatchB"))
    operands = (draw.floats(a), draw.floats(b))
    batch = np.broadcast_shapes(draw.static(batch_a), draw.static(batch_b))
    return draw.sample(
        op_type,
        17,
        operands,
        {"alpha": draw.pick((1.0, -0.5)), **flags},
        domain="com.microsoft",
        function=_fused,
        output_dims=(*batch, *draw.static((m, n))),
    )


def _rotated(dims: Dims, flag: int | None) -> Dims:
    """Where transBatch is set, the batch axes [b0, .., bj, r] are stored as [b1, .., r, b0]."""
    return (*dims[1:-1], dims[0], dims[-1]) if flag else dims


def _fused(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    factors = []
    for array, letter in zip(arrays, "AB", strict=True):
        if array is None:
            raise AssertionError("a factor is missing")
        batched = np.moveaxis(array, -2, 0) if attributes.get(f"transBatch{letter}") else array
        swapped = attributes.get(f"trans{letter}")
        factors.append(np.swapaxes(batched, -1, -2) if swapped else batched)
    return [np.asarray(attributes["alpha"] * (factors[0] @ factors[1]))]


def _gemm(draw: Draw) -> Sample:
    m, k, n = (draw.dim() for _ in range(3))
    opset = draw.pick((9, 11, 13))
    attributes: dict[str, Any] = {}
    for name in ("transA", "transB"):
        if draw.chance(0.6):
            attributes[name] = draw.number(0, 1)
    for name in ("alpha", "beta"):
        if draw.chance(0.5):
            attributes[name] = draw.pick((0.5, -2.0, 0.0, 1.0))
    operands: list[Operand | None] = [
        draw.floats((k, m) if attributes.get("transA") else (m, k)),
        draw.floats((n, k) if attributes.get("transB") else (k, n)),
    ]
    if opset < 11 or draw.chance(0.7):
        operands.append(draw.floats(draw.narrower((m, n))))
    return draw.sample("Gemm", opset, operands, attributes)


def _conv(transposed: bool) -> Any:
    def sample(draw: Draw) -> Sample:
        spatial = draw.number(1, 2)
        group = draw.pick((1, 1, 1, 2))
        inside, outside = (group * draw.number(1, 4) for _ in range(2))
        kernel = [draw.number(1, 2) for _ in range(spatial)]
        channels = (inside, outside // group) if transposed else (outside, inside // group)
        extent = tuple(draw.dim(0.3, (3, 4)) for _ in range(spatial))
        operands: list[Operand | None] = [
            draw.floats((draw.dim(sizes=(1, 2)), inside, *extent)),
            draw.floats((*channels, *kernel), constant=0.6),
        ]
        if draw.chance(0.5):
            operands.append(draw.floats((outside,)))
        attributes: dict[str, Any] = {"group": group} if group > 1 or draw.chance(0.3) else {}
        if draw.chance(0.4):
            attributes["strides"] = [draw.number(1, 2) for _ in range(spatial)]
        if draw.chance(0.3):
            attributes["pads"] = [draw.number(0, 1) for _ in range(2 * spatial)]
        name = "ConvTranspose" if transposed else "Conv"
        function = _conv_transpose if transposed else None
        opset = draw.pick((9, 11, 22))
        return draw.sample(name, opset, operands, attributes, function=function)

    return sample


def _deform_conv(draw: Draw) -> Sample:
    """Every window has positions of its own, and possibly factors; onnx's evaluator needs sizes."""
    group, moved = draw.pick((1, 1, 2)), draw.pick((1, 2))
    inside, outside = 2 * draw.number(1, 2), group * draw.number(1, 3)
    samples, kernel = draw.number(1, 2), (draw.number(1, 2), draw.number(1, 2))
    pads, size = draw.number(0, 1), (draw.number(2, 3), draw.number(3, 4))
    out = [extent + 2 * pads - taps + 1 for extent, taps in zip(size, kernel, strict=True)]
    taps = moved * kernel[0] * kernel[1]
    operands: list[Operand | None] = [
        draw.floats((samples, inside, *size)),
        draw.floats((outside, inside // group, *kernel), constant=0.6),
        fixed(draw.normal((samples, 2 * taps, *out)), constant=False),
        draw.floats((outside,)) if draw.chance(0.5) else None,
    ]
    if draw.chance(0.5):
        operands.append(fixed(draw.normal((samples, taps, *out)), constant=False))
    attributes: dict[str, Any] = {"pads": [pads] * 4, "group": group, "offset_group": moved}
    return draw.sample("DeformConv", draw.pick((19, 22)), operands, attributes)


def _conv_transpose(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """Scatter every input element times its kernel; onnx's own evaluator fails on groups."""
    x, W, *bias = arrays
    if x is None or W is None:
        raise AssertionError("a factor is missing")
    group, rank = attributes.get("group", 1), x.ndim - 2
    strides = attributes.get("strides", [1] * rank)
    pads = attributes.get("pads", [0] * 2 * rank)
    kernel = W.shape[2:]
    extent = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], strides, kernel, strict=True)]
    y = np.zeros((x.shape[0], W.shape[1] * group, *extent))
    inside = x.shape[1] // group
    for channel in range(x.shape[1]):
        first = channel // inside * W.shape[1]
        for place in np.ndindex(*x.shape[2:]):
            spread = np.multiply.outer(x[(slice(None), channel, *place)], W[channel])
            window = [
                slice(p * s, p * s + k) for p, s, k in zip(place, strides, kernel, strict=True)
            ]
            y[(slice(None), slice(first, first + W.shape[1]), *window)] += spread
    cropped = [slice(pads[k], y.shape[2 + k] - pads[rank + k]) for k in range(rank)]
    y = y[(slice(None), slice(None), *cropped)]
    if bias and bias[0] is not None:
        y = y + bias[0].reshape(1, -1, *[1] * rank)
    return [y]


def _matmul_blocks(draw: Draw) -> Sample:
    """A product with codes of few bits, in float64 as onnx has no evaluator of it."""
    bits, block = draw.pick((2, 4, 8)), draw.pick((4, 8))
    inner, out = draw.number(1, 20), draw.number(1, 5)
    blocks = -(-inner // block)
    sizes = {"K": inner, "N": out, "bits": bits, "block_size": block}
    rng = np.random.default_rng(draw.number(0, 1 << 30))
    codes = rng.integers(0, 256, (out, blocks, block * bits // 8), np.uint8)
    zeros: Operand | None = None
    if draw.chance(0.5):
        zeros = fixed(rng.integers(0, 256, (out, -(-blocks * bits // 8)), np.uint8))
    bias = draw.floats((out,)) if draw.chance(0.5) else None
    x: Dims = (*draw.dims(0, 2), inner)
    scales = fixed(rng.uniform(0.5, 1.0, (out, blocks)))
    operands: list[Operand | None] = [draw.floats(x, constant=0.0), fixed(codes), scales]
    operands += [zeros, None, bias] if bias is not None else [zeros]
    return draw.sample(
        "MatMulNBits",
        17,
        tuple(operands),
        sizes,
        domain="com.microsoft",
        function=_of_blocks,
        output_dims=(*x[:-1], out),
    )


def _of_blocks(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """Each number of the weight by itself: a code, and the zero point and scale of its block."""
    x, codes, scales, zeros, _, bias = [*arrays, None, None][:6]
    if x is None or codes is None or scales is None:
        raise AssertionError("an operand is missing")
    bits, block, inner = (attributes[name] for name in ("bits", "block_size", "K"))
    weight = np.zeros((attributes["N"], inner))
    for row, column in np.ndindex(*weight.shape):
        own = column // block
        zero = 2 ** (bits - 1) if zeros is None else _code(zeros[row], own, bits)
        code = _code(codes[row, own], column % block, bits)
        weight[row, column] = (code - zero) * scales[row, own]
    y = np.einsum("...k,nk->...n", x, weight)
    return [y if bias is None else y + bias]


def _code(packed: Array, index: int, bits: int) -> int:
    byte, place = divmod(index * bits, 8)
    return int(packed[byte]) >> place & (1 << bits) - 1


_EQUATIONS = (
    "ij,jk->ik",
    "bij,jk->bik",
    "bhid,bhjd->bhij",
    "bij , bjk -> bki",
    "ij,ij->ij",
    "ij,ij->i",
    "ij->ji",
    "ij->i",
    "ii->i",
    "i,j->ij",
    "bi,bj,ij->b",
    "bi,ij,jk->bk",
    "Ti,iT->T",
    "ab,cd->abcd",
    "...ij,jk->...ik",
    "...ij,...jk->...ik",
    "ec,...c->...e",
    "...i,...i->...",
    "i...,i->...i",
    "ij,jk",
)


def _einsum(draw: Draw) -> Sample:
    equation = draw.pick(_EQUATIONS)
    factors = equation.replace(" ", "").split("->")[0].split(",")
    size: dict[str, int | str] = {}
    operands = []
    hidden = tuple(draw.dim(symbolic=0.0, sizes=(2, 3)) for _ in range(draw.number(1, 2)))
    for factor in factors:
        labels = factor.replace("...", "")
        dims = tuple(size.setdefault(label, draw.dim(sizes=(2, 3, 4))) for label in labels)
        if "..." in factor:
            before = len(factor.partition("...")[0])
            repeated = tuple(1 if draw.chance(0.3) else dim for dim in hidden)
            dims = (*dims[:before], *repeated, *dims[before:])
        operands.append(draw.floats(dims))
    return draw.sample("Einsum", 12, operands, {"equation": equation})


LINEAR: dict[tuple[str, str], Any] = {
    ("", "MatMul"): _matmul,
    ("com.microsoft", "FusedMatMul"): _fused_matmul,
    ("com.microsoft", "TransposeMatMul"): lambda draw: _fused_matmul(draw, "TransposeMatMul"),
    ("", "Gemm"): _gemm,
    ("", "Conv"): _conv(transposed=False),
    ("", "ConvTranspose"): _conv(transposed=True),
    ("", "DeformConv"): _deform_conv,
    ("", "Einsum"): _einsum,
    ("com.microsoft", "MatMulNBits"): _matmul_blocks,
}
