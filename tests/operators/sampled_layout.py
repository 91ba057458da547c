"""Samplers of layout operators: they move, copy, drop or interpolate elements."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.operators.sample import Array, Dims, Draw, Operand, Sample, fixed

__all__ = ["LAYOUT"]


def _transpose(draw: Draw) -> Sample:
    dims = draw.dims(1, 4)
    attributes = {"perm": draw.shuffled(range(len(dims)))} if draw.chance(0.8) else {}
    return draw.sample("Transpose", draw.pick((9, 13, 21)), (draw.floats(dims),), attributes)


def _ints(*numbers: int) -> Operand:
    return fixed(np.array(numbers, dtype=np.int64))


def _factors(draw: Draw, number: int) -> list[int]:
    """Write a number as a random product."""
    result = []
    while number > 1 and draw.chance(0.6):
        result.append(draw.pick([n for n in range(1, number + 1) if number % n == 0]))
        number //= result[-1]
    return [*result, number]


def _reshape(draw: Draw) -> Sample:
    """Regroup runs of static axes; a symbolic axis stays (0) or joins its neighbors (-1)."""
    dims = draw.dims(1, 4)
    written: list[int] = []
    known: list[int | str | None] = []
    joined = False
    run: list[int] = []
    position = 0

    def flush() -> None:
        sizes = _factors(draw, prod(run)) if run else []
        written.extend(sizes)
        known.extend(sizes)
        run.clear()

    while position < len(dims):
        dim = dims[position]
        if isinstance(dim, int):
            run.append(dim)
        elif len(written) + (1 if run else 0) == position and not run and draw.chance(0.6):
            written.append(0)
            known.append(dim)
        elif not joined:
            end = position
            while end < len(dims) and (end == position or draw.chance(0.4)):
                end += 1
            taken = prod(run) * prod(draw.static(dims[position:end]))
            keep = 1
            if not draw.chance(0.5):
                written.extend(run)
                known.extend(run)
                keep = prod(run)
            run = []
            written.append(-1)
            known.append(
                None if any(isinstance(d, str) for d in dims[position:end]) else taken // keep
            )
            joined, position = True, end
            continue
        else:
            return _flattened(draw, dims)
        position += 1
    flush()
    x = draw.floats(dims, constant=0.1)
    output_dims = tuple(known) if draw.chance(0.5) else None
    return draw.sample(
        "Reshape", draw.pick((9, 13, 14, 21)), (x, _ints(*written)), {}, output_dims=output_dims
    )


def _flattened(draw: Draw, dims: Dims) -> Sample:
    return draw.sample("Reshape", 14, (draw.floats(dims), _ints(-1)), {})


def _flatten(draw: Draw) -> Sample:
    dims = draw.dims(1, 4)
    attributes = {"axis": draw.number(0, len(dims))} if draw.chance(0.8) else {}
    return draw.sample("Flatten", draw.pick((9, 11, 13, 21)), (draw.floats(dims),), attributes)


def _squeeze(draw: Draw) -> Sample:
    opset = draw.pick((9, 11, 13, 21))
    dims = draw.dims(1, 3)
    ones = draw.number(1, 2)
    for _ in range(ones):
        place = draw.number(0, len(dims))
        dims = (*dims[:place], 1, *dims[place:])
    axes = [axis for axis, dim in enumerate(dims) if dim == 1]
    axes = draw.shuffled(axes)[: draw.number(1, len(axes))]
    if opset >= 11:
        axes = [axis - len(dims) if draw.chance(0.4) else axis for axis in axes]
    return _with_axes(draw, "Squeeze", opset, dims, axes, 13)


def _unsqueeze(draw: Draw) -> Sample:
    opset = draw.pick((9, 11, 13, 21))
    dims = draw.dims(1, 3)
    rank = len(dims) + draw.number(1, 2)
    axes = sorted(draw.shuffled(range(rank))[: rank - len(dims)])
    if opset >= 11:
        axes = [axis - rank if draw.chance(0.4) else axis for axis in axes]
    return _with_axes(draw, "Unsqueeze", opset, dims, axes, 13)


def _with_axes(
    draw: Draw, op_type: str, opset: int, dims: Dims, axes: list[int], as_input: int
) -> Sample:
    x = draw.floats(dims)
    if opset >= as_input:
        return draw.sample(op_type, opset, (x, _ints(*axes)), {})
    function = _squeezed if op_type == "Squeeze" else _unsqueezed
    return draw.sample(op_type, opset, (x,), {"axes": axes}, function=function)


def _squeezed(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    return [np.squeeze(_first(arrays), axis=tuple(attributes["axes"]))]


def _unsqueezed(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    return [np.expand_dims(_first(arrays), axis=tuple(attributes["axes"]))]


def _first(arrays: list[Array | None]) -> Array:
    if arrays[0] is None:
        raise AssertionError("the first operand is required")
    return arrays[0]


def _expand(draw: Draw) -> Sample:
    full = draw.dims(1, 4, symbolic=0.15)
    source = draw.narrower(full)
    shape = [1 if draw.chance(0.2) and len(full) == len(source) else n for n in draw.static(full)]
    shape = [n if m != 1 else max(n, 1) for n, m in zip(shape, draw.static(full), strict=True)]
    return draw.sample("Expand", draw.pick((9, 13)), (draw.floats(source), _ints(*shape)), {})


def _split(draw: Draw) -> Sample:
    opset = draw.pick((9, 11, 13, 18))
    dims = list(draw.dims(1, 3))
    axis = draw.number(0, len(dims) - 1)
    parts = [draw.number(1, 3) for _ in range(draw.number(1, 3))]
    if draw.chance(0.5) or opset == 18:
        parts = [parts[0]] * len(parts)
    dims[axis] = sum(parts)
    written = axis - len(dims) if opset >= 11 and draw.chance(0.5) else axis
    attributes: dict[str, Any] = {"axis": written}
    operands: list[Operand | None] = [draw.floats(tuple(dims))]
    if opset == 18 and draw.chance(0.5):
        attributes["num_outputs"] = len(parts)
    elif opset < 13:
        attributes["split"] = parts
    else:
        operands.append(_ints(*parts))
    return draw.sample("Split", opset, operands, attributes, outputs=len(parts))


def _cumsum(draw: Draw) -> Sample:
    dims = draw.dims(1, 3)
    attributes = {name: 1 for name in ("exclusive", "reverse") if draw.chance(0.4)}
    axis = fixed(np.array(draw.axis(len(dims)), dtype=np.int64))
    return draw.sample("CumSum", draw.pick((11, 14)), (draw.floats(dims), axis), attributes)


def _slice(draw: Draw) -> Sample:
    opset = draw.pick((9, 10, 11, 13))
    # onnx 1.23 infers for Slice-10 that a symbolic axis keeps its size.
    dims = list(draw.dims(1, 3, symbolic=0.0 if opset == 10 else 0.25))
    rank = len(dims)
    gates = draw.chance(0.4)  # parts of equal size, some of which are kept
    if gates:
        dims = [draw.pick((4, 6)) if isinstance(dim, int) else dim for dim in dims]
    axes = draw.shuffled(range(rank))[: draw.number(1, rank)]
    starts, ends, steps = [], [], []
    for axis in axes:
        size = draw.static(dims)[axis]
        backwards = opset >= 10 and draw.chance(0.3)
        low = draw.number(0, max(0, size - 1))
        high = draw.number(low + 1, size)
        if draw.chance(0.35):
            low, high = 0, size
        elif gates:
            low = draw.pick(list(range(0, size, 2)))
            high = draw.pick(list(range(low + 2, size + 1, 2)) or [size])
        if backwards:
            starts.append(high - 1)
            ends.append(low - 1 if low else -size - 1)
            steps.append(draw.pick((-1, -1, -2)))
        else:
            starts.append(low)
            ends.append(high)
            steps.append(draw.pick((1, 1, 2)) if opset >= 10 else 1)
    written = [axis - rank if draw.chance(0.4) else axis for axis in axes]
    ordered = sorted(axes) == axes and axes == list(range(len(axes)))
    x = draw.floats(tuple(dims))
    if opset < 10:
        attributes = {"starts": starts, "ends": ends}
        if not ordered or draw.chance(0.5):
            attributes["axes"] = axes
        return draw.sample("Slice", opset, (x,), attributes)
    operands: list[Operand | None] = [x, _ints(*starts), _ints(*ends)]
    plain = all(step == 1 for step in steps)
    if not (ordered and plain and draw.chance(0.5)):
        operands.append(_ints(*written))
        if not plain or draw.chance(0.5):
            operands.append(_ints(*steps))
    return draw.sample("Slice", opset, operands, {})


def _gather(draw: Draw) -> Sample:
    dims = draw.dims(1, 3)
    axis = draw.number(0, len(dims) - 1)
    size = draw.static(dims)[axis]
    shape = draw.static(draw.dims(0, 2, symbolic=0.0))
    places = [draw.number(0, size - 1) for _ in range(prod(shape))]
    indices = np.array(places, np.int64).reshape(shape)
    attributes = {"axis": axis - len(dims) if draw.chance(0.4) else axis}
    if axis == 0 and draw.chance(0.3):
        attributes = {}
    operands = (draw.floats(dims, constant=0.5), fixed(indices, constant=draw.chance(0.4)))
    return draw.sample("Gather", draw.pick((9, 11, 13)), operands, attributes)


def _gather_nd(draw: Draw) -> Sample:
    dims = draw.dims(2, 3)
    sizes = draw.static(dims)
    batch = draw.number(0, len(dims) - 2)
    depth = draw.number(1, len(dims) - batch)
    shape = (*sizes[:batch], *draw.static(draw.dims(0, 2, symbolic=0.0)))
    limits = sizes[batch : batch + depth]
    rows = [[draw.number(0, limit - 1) for limit in limits] for _ in range(prod(shape))]
    indices = np.array(rows, np.int64).reshape((*shape, depth))
    operands = (draw.floats(dims, constant=0.5), fixed(indices, constant=draw.chance(0.4)))
    attributes = {"batch_dims": batch} if batch else {}
    return draw.sample("GatherND", draw.pick((12, 13)) if batch else 11, operands, attributes)


def _scatter_nd(draw: Draw) -> Sample:
    dims = draw.dims(1, 3)
    sizes = draw.static(dims)
    depth = draw.number(1, len(dims))
    count = draw.number(1, prod(sizes[:depth]))
    places = draw.rng.sample(list(np.ndindex(*sizes[:depth])), count)
    opset = draw.pick((11, 12, 13, 15, 16, 17, 18))
    return draw.sample(
        "ScatterND",
        opset,
        (
            draw.floats(dims, constant=0.5),
            fixed(np.array(places, dtype=np.int64), constant=draw.chance(0.4)),
            draw.floats((count, *dims[depth:])),
        ),
        _reduction(draw, opset),
    )


def _reduction(draw: Draw, opset: int) -> dict[str, str]:
    return {"reduction": draw.pick(("none", "add", "mul"))} if opset >= 16 else {}


def _scatter_elements(draw: Draw) -> Sample:
    """Whole sets, everywhere to the same place, or some of them, or each element to its own."""
    dims = draw.dims(1, 3)
    sizes = draw.static(dims)
    axis = draw.number(0, len(dims) - 1)
    count = draw.number(1, sizes[axis])
    shape = [*sizes[:axis], count, *sizes[axis + 1 :]]
    if draw.chance(0.3):
        shape = [draw.number(1, size) for size in shape]
    places = [draw.number(0, sizes[axis] - 1) for _ in range(prod(shape))]
    indices = np.array(places, dtype=np.int64).reshape(shape)
    if draw.chance(0.7):
        rows = indices.reshape(-1)[: shape[axis]]
        alike = rows.reshape([-1 if each == axis else 1 for each in range(len(shape))])
        indices = np.broadcast_to(alike, shape).copy()
    opset = draw.pick((11, 12, 13, 15, 16, 17, 18))
    return draw.sample(
        "ScatterElements",
        opset,
        (
            draw.floats(dims, constant=0.5),
            fixed(indices, constant=draw.chance(0.8)),
            draw.floats(tuple(shape)),
        ),
        {"axis": axis, **_reduction(draw, opset)},
    )


def _concat(draw: Draw) -> Sample:
    dims = draw.dims(1, 3)
    axis = draw.number(0, len(dims) - 1)
    operands = tuple(
        draw.floats((*dims[:axis], draw.dim(), *dims[axis + 1 :])) for _ in range(draw.number(1, 3))
    )
    opset = draw.pick((9, 11, 13))
    written = axis - len(dims) if opset >= 11 and draw.chance(0.5) else axis
    return draw.sample("Concat", opset, operands, {"axis": written})


def _filled(draw: Draw) -> Sample:
    shape = fixed(np.array(draw.static(draw.dims(1, 3)), np.int64))
    filled = {} if draw.chance(0.5) else {"value": numpy_helper.from_array(draw.normal((1,)))}
    return draw.sample("ConstantOfShape", 9, (shape,), filled)


def _tile(draw: Draw) -> Sample:
    dims = draw.dims(1, 3)
    repeats = [draw.pick((1, 1, 2, 3)) for _ in dims]
    operands = (draw.floats(dims), _ints(*repeats))
    return draw.sample("Tile", draw.pick((9, 13)), operands, {})


_PAD_MODES = ("constant", "constant", "constant", "edge", "reflect", "wrap")


def _pad(draw: Draw) -> Sample:
    opset = draw.pick((9, 11, 13, 18, 19, 21))
    mode = draw.pick(_PAD_MODES if opset >= 19 else _PAD_MODES[:-1])
    dims = (
        draw.dims(1, 3)
        if mode == "constant"
        else tuple(draw.dim(sizes=(3, 4)) for _ in range(draw.number(1, 3)))
    )
    rank = len(dims)
    chosen = list(range(rank))
    if opset >= 18 and draw.chance(0.5):
        chosen = draw.shuffled(chosen)[: draw.number(1, rank)]
    low = -1 if mode == "constant" and min(draw.static(dims)) > 2 else 0
    pads = [draw.pick((0, 0, 1, 2, low)) for _ in range(2 * len(chosen))]
    attributes: dict[str, Any] = {"mode": mode} if mode != "constant" or draw.chance(0.3) else {}
    fill = draw.pick((None, 0.0, 1.5))
    x = draw.floats(dims)
    if opset < 11:
        attributes |= {"pads": pads} | ({} if fill is None else {"value": fill})
        return draw.sample("Pad", opset, (x,), attributes, function=_padded)
    operands: list[Operand | None] = [x, fixed(np.array(pads, np.int64), constant=draw.chance(0.9))]
    if fill is not None:
        operands.append(Operand(np.array(fill), (), draw.chance(0.7), moves=True))
    if chosen != list(range(rank)) or (opset >= 18 and draw.chance(0.3)):
        operands += [None] * (3 - len(operands))
        operands.append(_ints(*(a - rank if draw.chance(0.4) else a for a in chosen)))
    sizes = list(draw.static(dims))
    for place, axis in enumerate(chosen):
        sizes[axis] += pads[place] + pads[len(chosen) + place]
    known = None if all(o is None or o.constant for o in operands[1:]) else tuple(sizes)
    return draw.sample("Pad", opset, operands, attributes, function=_padded, output_dims=known)


def _padded(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """Crop where pads are negative, then pad; in attributes below opset 11."""
    x, mode = _first(arrays), attributes.get("mode", "constant")
    pads, fill, axes = (*arrays[1:], None, None, None)[:3]
    written = attributes["pads"] if pads is None else pads.tolist()
    chosen = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    width = [(0, 0)] * x.ndim
    for place, axis in enumerate(chosen):
        width[axis] = (written[place], written[place + len(written) // 2])
    kept = [slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(width, x.shape, strict=True)]
    grown = [(max(0, a), max(0, b)) for a, b in width]
    if mode != "constant":
        return [np.pad(x[tuple(kept)], grown, mode=mode)]
    value = attributes.get("value", 0.0) if fill is None else fill.reshape(())
    return [np.pad(x[tuple(kept)], grown, constant_values=value)]


_MODES = ("nearest", "linear", "cubic")
_TRANSFORMS = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)


def _resize(draw: Draw) -> Sample:
    opset = draw.pick((10, 11, 13, 18, 19))
    dims = tuple(draw.dim(0.15, (2, 3, 4)) for _ in range(draw.number(2, 3)))
    sizes = draw.static(dims)
    touched = [draw.chance(0.45) for _ in dims]
    attributes: dict[str, Any] = {"mode": draw.pick(_MODES[:2] if opset < 11 else _MODES)}
    scales = [draw.pick((2.0, 0.5, 1.5, 1.1)) if t else 1.0 for t in touched]
    if opset == 10:
        attributes["mode"] = "nearest"
        operands: list[Operand | None] = [draw.floats(dims), fixed(np.array(scales, np.float32))]
        return draw.sample("Resize", opset, operands, attributes, function=_resize_10)
    transforms: tuple[str, ...] = _TRANSFORMS
    if opset >= 19:
        transforms += ("half_pixel_symmetric",)
    if draw.chance(0.8):
        attributes["coordinate_transformation_mode"] = draw.pick(transforms)
    if attributes["mode"] == "nearest":
        attributes["nearest_mode"] = draw.pick(("round_prefer_floor", "ceil", "floor"))
    roi = fixed(np.array([0.1] * len(dims) + [0.8] * len(dims)))
    operands = [draw.floats(dims), roi]
    if draw.chance(0.4):
        target = [max(1, int(n * s)) for n, s in zip(sizes, scales, strict=True)]
        if opset >= 18 and draw.chance(0.4):
            policies = ("stretch", "not_larger", "not_smaller")
            attributes["keep_aspect_ratio_policy"] = draw.pick(policies)
        operands += [None if opset >= 13 else fixed(np.zeros(0, np.float32)), _ints(*target)]
    else:
        operands.append(fixed(np.array(scales, np.float32)))
    return draw.sample("Resize", opset, operands, attributes)


def _resize_10(arrays: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """Resize-10 is Resize-11 with asymmetric coordinates, rounded down."""
    way = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest", **way)
    x, scales = arrays
    return list(ReferenceEvaluator(node, opsets={"": 13}).run(None, {"x": x, "scales": scales}))


LAYOUT: dict[tuple[str, str], Any] = {
    ("", "Transpose"): _transpose,
    ("", "Reshape"): _reshape,
    ("", "Flatten"): _flatten,
    ("", "Squeeze"): _squeeze,
    ("", "Unsqueeze"): _unsqueeze,
    ("", "Expand"): _expand,
    ("", "Split"): _split,
    ("", "CumSum"): _cumsum,
    ("", "Slice"): _slice,
    ("", "Gather"): _gather,
    ("", "GatherND"): _gather_nd,
    ("", "ScatterND"): _scatter_nd,
    ("", "ScatterElements"): _scatter_elements,
    ("", "Concat"): _concat,
    ("", "ConstantOfShape"): _filled,
    ("", "Tile"): _tile,
    ("", "Pad"): _pad,
    ("", "Resize"): _resize,
}
