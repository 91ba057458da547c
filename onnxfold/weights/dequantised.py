"""Weights stored as codes of few bits: their numbers (code - zero point) * scale, in float64.

DequantizeLinear gives them with one scale for all, for each index of an axis, or for each block of
an axis; MatMulNBits of com.microsoft has them as an operand [N, K], in blocks along K, and QMoE has
one for each expert.  The numbers are read and never changed: codes of few bits hold no other ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.constants import Array, Float64
from onnxfold.graph.operands import known_producer, operand
from onnxfold.operators.families.transfer import refuse
from onnxfold.operators.row import OF_CODES, Layer
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode

_CHUNK_ELEMENTS = 1 << 20
_PACKED = (2, 4, 8)  # bits of a code, several per byte

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedWeight:
    """The numbers of a `Weight`; ``rows`` gives some of them, from one row to another."""

    shape: ir.Shape
    rows: Callable[[int, int], Float64]

    def chunks(self) -> Iterator[tuple[int, Float64]]:
        """Yield (first row, rows), some at a time."""
        count, *rest = self.shape.numpy()
        step = max(1, _CHUNK_ELEMENTS // max(1, int(np.prod(rest))))
        for start in range(0, count, step):
            yield start, self.rows(start, min(start + step, count))

    def mapped(self, function: Callable[[int, Float64], Result], /) -> Iterator[Result]:
        return (function(start, chunk) for start, chunk in self.chunks())

    def weighted(self, factors: Float64) -> Iterator[Float64]:
        for start, chunk in self.chunks():
            yield (chunk * factors[start : start + chunk.shape[0], np.newaxis]).sum(axis=0)


def holder_of(value: ir.Value, reader: Reader) -> Reader:
    """Return the operand that a fixed weight is asked of: codes of the reader, or dequantized."""
    codes = row_of(reader.node).layer in OF_CODES
    return reader if codes else Reader(known_producer(value), 0)


def quantised_weight(view: ModelInfo, holder: Reader) -> QuantisedWeight | Refusal:
    """Return the weight of the codes at an input of a node, which multiplies by or returns it."""
    node, first = holder.node, holder.index
    of_experts = row_of(node).layer is Layer.EXPERT_BLOCKS
    number = first // 3  # of the layer
    last = 11 + number if of_experts else first + 2
    codes, scale, zero = (view.tensor(operand(node, at)) for at in (first, first + 1, last))
    unknown = operand(node, last) is not None and zero is None
    if codes is None or scale is None or unknown or codes.dtype is ir.DataType.UNDEFINED:
        return refuse(RefusalCode.DYNAMIC_WEIGHT, node, "has codes or scales that are no constants")
    if of_experts:
        bits = _bits_of_experts(node, number)
        return _of_experts(node, bits, codes, scale, zero)
    made = _of_blocks if row_of(node).layer is Layer.MATMUL_BLOCKS else _of_axis
    return made(node, codes, scale, zero)


def _of_axis(
    node: ir.Node,
    codes: ir.TensorProtocol,
    scale: ir.TensorProtocol,
    zero: ir.TensorProtocol | None,
) -> QuantisedWeight | Refusal:
    """DequantizeLinear: scales of the codes' rank belong to blocks."""
    shape, sizes = codes.shape.numpy(), scale.shape.numpy()
    if not shape:
        return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "gives a weight of no axes")
    axis, alone = node.attributes.get_int("axis", 1), scale.size == 1
    axis = axis + len(shape) if axis < 0 else axis
    block = node.attributes.get_int("block_size", 0) if len(sizes) == len(shape) else 0
    fits = alone or (axis < len(shape) and (block > 0 or sizes == (shape[axis],)))
    if not fits:
        return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "has scales of an unknown layout")

    def spread(numbers: Array, start: int, stop: int) -> Float64:
        wide = numbers.astype(np.float64)
        if alone:
            return wide.reshape((1,) * len(shape))
        if not block:
            wide = wide.reshape([-1 if at == axis else 1 for at in range(len(shape))])
            return wide[start:stop] if axis == 0 else wide
        wide = wide if axis == 0 else wide[start:stop]
        steps = np.arange(start, stop) if axis == 0 else np.arange(shape[axis])
        return np.take(wide, steps // block, axis=axis)

    def rows(start: int, stop: int) -> Float64:
        numbers = codes.numpy()[start:stop].astype(np.float64)
        if zero is not None:
            numbers = numbers - spread(zero.numpy(), start, stop)
        return np.asarray(numbers * spread(scale.numpy(), start, stop))

    return QuantisedWeight(ir.Shape(shape), rows)


def _of_blocks(
    node: ir.Node,
    codes: ir.TensorProtocol,
    scale: ir.TensorProtocol,
    zero: ir.TensorProtocol | None,
) -> QuantisedWeight | Refusal:
    """MatMulNBits: codes [N, blocks, bytes], low bits first, scales and zero points [N, blocks]."""
    inner, out, block = (node.attributes.get_int(name, 0) for name in ("K", "N", "block_size"))
    bits: int = node.attributes.get_int("bits", 4)
    if bits not in _PACKED or block < 1 or node.attributes.get_int("weight_prepacked", 0) != 0:
        return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "holds its codes in an unknown layout")
    if operand(node, 4) is not None:
        return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "orders its weight by g_idx")
    blocks = -(-inner // block)
    packed = zero is not None and zero.dtype is ir.DataType.UINT8
    zeros = out * (-(-blocks * bits // 8) if packed else blocks)
    sizes = codes.size, scale.size, zeros if zero is None else zero.size
    if codes.dtype is not ir.DataType.UINT8 or sizes != (
        out * blocks * (block * bits // 8),
        out * blocks,
        zeros,
    ):
        return refuse(RefusalCode.UNSUPPORTED_TYPE, node, "holds its codes in an unknown layout")

    def zeros_of(start: int, stop: int) -> Float64 | float:
        if zero is None:
            return float(2 ** (bits - 1))
        given = zero.numpy().reshape(out, -1)[start:stop]
        numbers = _unpacked(given, bits)[:, :blocks] if packed else given.astype(np.float64)
        return np.asarray(numbers[..., np.newaxis])

    def rows(start: int, stop: int) -> Float64:
        numbers = _unpacked(codes.numpy().reshape(out, blocks, -1)[start:stop], bits)
        factor = scale.numpy().reshape(out, blocks, 1)[start:stop].astype(np.float64)
        wide = (numbers - zeros_of(start, stop)) * factor
        return np.asarray(wide.reshape(stop - start, -1)[:, :inner])

    return QuantisedWeight(ir.Shape((out, inner)), rows)


def _bits_of_experts(node: ir.Node, number: int) -> int:
    """Return the bits of a code of a QMoE's weights, or of one of them."""
    every = node.attributes.get_int("expert_weight_bits", 4)
    return node.attributes.get_int(f"fc{number + 1}_expert_weight_bits", every)


def _of_experts(
    node: ir.Node,
    bits: int,
    codes: ir.TensorProtocol,
    scale: ir.TensorProtocol,
    zero: ir.TensorProtocol | None,
) -> QuantisedWeight | Refusal:
    """QMoE: codes [E, N, bytes], low bits first; scales [E, N] or [E, N, blocks].

    The zero points of rows are packed along N, those of blocks along the blocks.
    """
    unknown = refuse(RefusalCode.UNSUPPORTED_TYPE, node, "holds its codes in an unknown layout")
    integers = node.attributes.get_string("quant_type", "int") == "int"
    raw = node.attributes.get_int("weights_prepacked", -1) == 0  # a device may choose otherwise
    sizes, scales = codes.shape.numpy(), scale.shape.numpy()
    if not (integers and raw and bits in _PACKED and len(sizes) == 3 and scales[:2] == sizes[:2]):
        return unknown
    count, out, inner = sizes[0], sizes[1], sizes[2] * 8 // bits
    blocks = scales[2] if len(scales) == 3 else 1
    block = node.attributes.get_int("block_size", inner)
    shape = (
        (count, out, -(-blocks * bits // 8)) if len(scales) == 3 else (count, -(-out * bits // 8))
    )
    misfit = zero is not None and zero.shape.numpy() != shape
    if codes.dtype is not ir.DataType.UINT8 or block * blocks != inner or misfit:
        return unknown

    def rows(start: int, stop: int) -> Float64:
        numbers = _unpacked(codes.numpy()[start:stop], bits)
        factor = scale.numpy()[start:stop].astype(np.float64).reshape(stop - start, out, blocks)
        offset = np.full(factor.shape, 2.0 ** (bits - 1))
        if zero is not None:
            known = _unpacked(zero.numpy()[start:stop], bits)
            own = known[..., :blocks] if len(scales) == 3 else known[:, :out, np.newaxis]
            offset = np.asarray(own)
        spread = (np.repeat(each, block, axis=2) for each in (offset, factor))
        zeros, factors = spread
        return np.asarray((numbers - zeros) * factors)

    return QuantisedWeight(ir.Shape((count, out, inner)), rows)


def _unpacked(codes: Array, bits: int) -> Float64:
    """Return the codes along the last axis, several of them in each byte."""
    steps, stored = np.arange(0, 8, bits, dtype=np.uint8), codes.astype(np.uint8, copy=False)
    parts = (stored[..., np.newaxis] >> steps) & np.uint8(2**bits - 1)
    return np.asarray(parts.reshape(*codes.shape[:-1], -1), np.float64)
