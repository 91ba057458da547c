"""Refusals of numbers in the file that onnx's inference would use unchecked.

onnx 1.23 takes hours and all memory for impossible sizes, or reads beyond its lists.
"""

from math import prod

import onnx_ir as ir

from onnxfold.errors import ModelError

MOST_ELEMENTS = 2**40
_MOST_VECTOR_ELEMENTS = 2**26
_MOST_DIMS = 32
_LONGEST_STEP = 2**31 - 1
# Inputs from which operators read the shape of their result, or a part of it; used only here.
_SHAPE_OPERAND = {"ConstantOfShape": 0, "Expand": 1, "Range": 1, "Tile": 1}


def check_size(node: ir.Node) -> None:
    """Refuse a result whose size, a number in the model, exceeds any memory.

    onnx 1.23 takes hours and all memory to propagate vectors of such a size, and a Slice that it
    considers negative ends the process.
    """
    if node.domain != "":
        return
    position = _SHAPE_OPERAND.get(node.op_type)
    if position is not None:
        sizes = [abs(size) for size in _integers(node, position)]
        if prod(sizes) > (_MOST_VECTOR_ELEMENTS if len(sizes) == 1 else MOST_ELEMENTS):
            shown = "x".join(map(str, sizes))
            raise ModelError(f"node '{node.name or node.op_type}' asks for {shown} elements")
    check = _CHECKS.get(node.op_type)
    if check is not None:
        check(node)


def _check_pads(node: ir.Node) -> None:
    for size in (*node.attributes.get_ints("pads", ()), *_integers(node, 1)):
        if abs(size) > MOST_ELEMENTS:
            raise ModelError(f"node '{node.name or 'Pad'}' pads by {size} elements")


def _check_steps(node: ir.Node) -> None:
    """Refuse steps over which onnx 1.23, which counts in 32 bits, would loop forever."""
    for step in _integers(node, 4):
        if step == 0 or abs(step) > _LONGEST_STEP:
            raise ModelError(f"node '{node.name or 'Slice'}' has steps of {step}")


def _check_factors(node: ir.Node) -> None:
    tensor = _known(node, 1 if node.op_type == "Upsample" else 2)
    for factor in [] if tensor is None else tensor.numpy().reshape(-1).tolist():
        if not 0 < factor <= MOST_ELEMENTS:
            raise ModelError(f"node '{node.name or node.op_type}' resizes {factor} times")


def _check_batch(node: ir.Node) -> None:
    """Refuse a negative number of batch axes, for which onnx 1.23 reads before its list."""
    axes = node.attributes.get_int("batch_dims", 0)
    if axes < 0:
        raise ModelError(f"node '{node.name or 'GatherND'}' has {axes} batch axes")


def _check_parts(node: ir.Node) -> None:
    """Refuse fewer parts than there are results, for which onnx 1.23 reads beyond its list."""
    parts = node.attributes.get_int("num_outputs", len(node.outputs))
    if parts < len(node.outputs):
        results = f"{len(node.outputs)} results"
        raise ModelError(f"node '{node.name or 'Split'}' has {results} of {parts} parts")


_CHECKS = {
    "GatherND": _check_batch,
    "Pad": _check_pads,
    "Resize": _check_factors,
    "Slice": _check_steps,
    "Split": _check_parts,
    "Upsample": _check_factors,
}


def _integers(node: ir.Node, position: int) -> list[int]:
    tensor = _known(node, position)
    return (
        [] if tensor is None or not tensor.dtype.is_integer() else tensor.numpy().ravel().tolist()
    )


def _known(node: ir.Node, position: int) -> ir.TensorProtocol | None:
    """Return an operand that is a short constant."""
    operand = node.inputs[position] if position < len(node.inputs) else None
    if operand is None:
        return None
    tensor, maker = operand.const_value, operand.producer()
    if tensor is None and maker is not None and maker.op_type == "Constant":
        tensor = maker.attributes.get_tensor("value")
    return tensor if tensor is not None and tensor.size <= _MOST_DIMS else None
