"""Norms that are one operator: standard, onnxfold's own, and ONNX Runtime's.

Sources: the ONNX operator specifications of the opset named at each form; for com.microsoft,
ONNX Runtime's ContribOperators.md.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxfold.errors import ModelError
from onnxfold.graph import AxisBlock, Dim, Fiber, ModelInfo, Shape, node_label, operator
from onnxfold.graph.operands import operand, operands
from onnxfold.graph.traversal import reached
from onnxfold.norms.site import DEFAULT_EPSILON, EpsilonMode, NormForm, NormKind, NormSite
from onnxfold.operators.families.uniform import uniform
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.shapes.named_sizes import is_rank_alone, is_told

_MVN_EPSILON = 1e-9
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


def op_site(view: ModelInfo, node: ir.Node) -> NormSite | None:
    """Return the site of a node that is a norm by itself, or None."""
    form = FORMS.get((node.domain, node.op_type))
    if form is None or not node.inputs or node.inputs[0] is None:
        return None
    return form(view, node)


def spatial_refusal(label: str) -> Refusal:
    """Refuse a group norm or instance norm over spatial axes."""
    return Refusal(
        RefusalCode.SPATIAL_NORM,
        "the statistics cover spatial axes, so the norm ignores one shift per sample and "
        "group, but not a shift per position: centering channels is not exact here",
        (label,),
    )


def size_refusal(view: ModelInfo, value: ir.Value, label: str) -> Refusal:
    """Refuse a norm of unknown normalized size, and name the node that hides the size."""
    sentence = "the size of a normalized axis is not known"
    maker = _hiding(view, value)
    if maker is not None:
        maker_label = f"'{node_label(maker)}' ({operator(maker)})"
        sentence += f": nothing determines the shape of the result of {maker_label}"
    return Refusal(RefusalCode.DYNAMIC_FIBER, sentence, (label,))


def _hiding(view: ModelInfo, value: ir.Value) -> ir.Node | None:
    """Return the farthest upstream node that makes a shape unknown, or None."""

    def onward(computed: ir.Value) -> list[ir.Value]:
        return [v for v in operands(computed.producer()) if _may_hide_sizes(view, v)]

    found = None
    for maker in (computed.producer() for computed in reached([value], onward)):
        hidden = maker and any(_is_untold(view, output) for output in maker.outputs)
        if hidden and not any(_is_untold(view, operand) for operand in operands(maker)):
            found = maker
    return found


def _is_untold(view: ModelInfo, value: ir.Value) -> bool:
    shape = view.shape(value)
    return shape is None or is_rank_alone(value, shape)


def _may_hide_sizes(view: ModelInfo, value: ir.Value) -> bool:
    """Whether a value has an unknown size, or may contain one that becomes a shape."""
    sizes = view.shape(value) or (None,)
    return not all(map(is_told, sizes)) or value.dtype is ir.DataType.INT64


def _x(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise ModelError(f"node {node_label(node)} has no input")
    return value


def _unless_all(view: ModelInfo, value: ir.Value | None, neutral: float) -> ir.Value | None:
    """Return the operand, or None if it is a constant filled with the neutral element."""
    return None if uniform(view, value) == neutral else value


def _escaping(node: ir.Node, outputs: tuple[int, ...]) -> tuple[ir.Value, ...]:
    values = (node.outputs[index] for index in outputs if index < len(node.outputs))
    return tuple(value for value in values if value.uses() or value.is_graph_output())


def _compute_dtype(node: ir.Node) -> ir.DataType:
    """Return the type of the statistics: stash_type, or the type of x if it is wider."""
    if _x(node).dtype is ir.DataType.DOUBLE:
        return ir.DataType.DOUBLE
    return ir.DataType(node.attributes.get_int("stash_type", ir.DataType.FLOAT.value))


def _fiber(dims: dict[int, Dim]) -> tuple[Fiber, int]:
    """Return the fiber of whole axes and its size; no blocks and 0 if a size is unknown."""
    blocks = []
    for axis, dim in dims.items():
        if not isinstance(dim, int) or dim < 1:
            return Fiber(()), 0
        blocks.append(AxisBlock(axis, 1, dim, 1))
    fiber = Fiber.of(blocks)
    return fiber, fiber.size


def _trailing(view: ModelInfo, node: ir.Node, first: int) -> dict[int, Dim] | None:
    """Return the axes from ``first`` on with their sizes; one unknown axis for an unknown rank."""
    rank = view.rank(_x(node))
    if rank is None:
        return {-1: None}
    if not -rank <= first < rank:
        return None
    return {axis: view.dim(_x(node), axis) for axis in range(first % rank, rank)}


def _sized_by_scale(view: ModelInfo, dims: dict[int, Dim], scale: ir.Value | None) -> None:
    """Fill in sizes known only from the scale, which may be broadcast to x, never the reverse."""
    shape = view.shape(scale)
    for back, axis in enumerate(reversed(dims), start=1):
        if shape is None or len(shape) < back or isinstance(dims[axis], int):
            continue
        if isinstance(shape[-back], int) and shape[-back] != 1:
            dims[axis] = shape[-back]


def _trailing_norm(
    view: ModelInfo, node: ir.Node, kind: NormKind, epsilon: float = DEFAULT_EPSILON
) -> NormSite | None:
    """Return a norm of x over axes ``axis``.., with scale and bias; ``epsilon`` is the default."""
    dims = _trailing(view, node, node.attributes.get_int("axis", -1))
    if dims is None:
        return None
    epsilon = node.attributes.get_float("epsilon", epsilon)
    if -1 not in dims:
        _sized_by_scale(view, dims, operand(node, 1))
    site = _site(view, node, kind, _fiber(dims), epsilon)
    if not all(_may_broadcast(view, node, index, dims) for index in (1, 2)):
        site = replace(site, refusal=_affine_refusal(node_label(node)))
    return replace(_with_affine(view, site, node), escaping=_escaping(node, (1, 2)))


def _site(
    view: ModelInfo, node: ir.Node, kind: NormKind, normalised: tuple[Fiber, int], epsilon: float
) -> NormSite:
    """Return the site of a norm over a fiber and its size, 0 if unknown."""
    fiber, size = normalised
    contrib = node.op_type.startswith("Simplified") or node.domain == "com.microsoft"
    label = node_label(node)
    return NormSite(
        name=label,
        kind=kind,
        form=NormForm.CONTRIB if contrib else NormForm.OP,
        input=_x(node),
        output=node.outputs[0],
        fiber=fiber,
        size=size,
        epsilon=epsilon,
        nodes=(node,),
        compute_dtype=_compute_dtype(node),
        refusal=None if size else size_refusal(view, _x(node), label),
    )


def _with_affine(view: ModelInfo, site: NormSite, node: ir.Node) -> NormSite:
    """Return the site with the operator's scale and bias, except ones and zeros."""
    return replace(
        site,
        gamma=_unless_all(view, operand(node, 1), 1),
        beta=_unless_all(view, operand(node, 2), 0),
    )


def _may_broadcast(view: ModelInfo, node: ir.Node, index: int, dims: dict[int, Dim]) -> bool:
    """Whether scale or bias fits the normalized axes, as far as known."""
    value, rank = operand(node, index), view.rank(_x(node))
    shape = view.shape(value)
    if value is None or shape is None or rank is None:
        return True
    if len(shape) > rank:
        return False
    sizes = list(dims.values())
    split = max(0, len(shape) - len(sizes))
    # On axes before the normalized ones, an operand filled with one number may have the sizes of x.
    if any(dim != 1 for dim in shape[:split]) and uniform(view, value) is None:
        return False
    pairs = zip(reversed(shape[split:]), reversed(sizes), strict=False)
    return all(a in (1, b) or not isinstance(a, int) or not isinstance(b, int) for a, b in pairs)


def _affine_refusal(label: str) -> Refusal:
    return Refusal(
        RefusalCode.UNKNOWN_SHAPE,
        "its scale or bias does not broadcast to the normalized axes, as the operator requires",
        (label,),
    )


def _lp_normalization(view: ModelInfo, node: ir.Node) -> NormSite | None:
    """LpNormalization-1 with p = 2: x / sqrt(sum x^2) along one axis, and 0 for a row of zeros."""
    rank = view.rank(_x(node)) or 0
    axis = node.attributes.get_int("axis", -1)
    if node.attributes.get_int("p", 2) != 2 or not -rank <= axis < rank:
        return None
    normalised = _fiber({axis % rank: view.dim(_x(node), axis)})
    return replace(
        _site(view, node, NormKind.L2_NORM, normalised, _SMALLEST),
        epsilon_mode=EpsilonMode.MAX_OUTSIDE,
        factor=float(normalised[1]),
        compute_dtype=_x(node).dtype or ir.DataType.FLOAT,
    )


def _mean_variance_normalization(view: ModelInfo, node: ir.Node) -> NormSite | None:
    """MeanVarianceNormalization-13: (x - mean) / (sqrt(variance) + 1e-9) over ``axes``."""
    rank = view.rank(_x(node)) or 0
    axes = tuple(node.attributes.get_ints("axes", (0, 2, 3)))
    if any(not -rank <= axis < rank for axis in axes):
        return None
    normalised = _fiber({axis % rank: view.dim(_x(node), axis) for axis in axes})
    return replace(
        _site(view, node, NormKind.LAYER_NORM, normalised, _MVN_EPSILON),
        epsilon_mode=EpsilonMode.OUTSIDE,
        compute_dtype=_x(node).dtype or ir.DataType.FLOAT,
    )


def _grouped_fiber(
    shape: Shape | None, groups: int | None, channel: int
) -> tuple[Fiber, int, bool]:
    """Return the fiber of a group, its size, and whether it has spatial axes."""
    if shape is None:
        return Fiber(()), 0, False
    spatial = {axis: dim for axis, dim in enumerate(shape) if axis not in (0, channel)}
    fiber, size = _fiber(spatial)
    channels = shape[channel]
    if groups is not None and size:
        if not isinstance(channels, int) or groups < 1 or channels % groups:
            fiber, size = Fiber(()), 0
        else:
            block = AxisBlock(channel, 1, channels // groups, groups)
            fiber = Fiber.of((*fiber.blocks, block))
            size = fiber.size
    return fiber, size, any(dim != 1 for dim in spatial.values())


def _grouped(
    view: ModelInfo, node: ir.Node, kind: NormKind, groups: int | None, channel: int
) -> NormSite | None:
    """Return a norm over a group of channels and all axes except the first and the channel axis.

    ``groups`` None means one group per channel.
    """
    shape = view.shape(_x(node))
    if shape is not None and len(shape) < 2:
        return None
    channel = channel if shape is None else channel % len(shape)
    fiber, size, spatial = _grouped_fiber(shape, groups, channel)
    epsilon = node.attributes.get_float("epsilon", DEFAULT_EPSILON)
    site = _with_affine(view, _site(view, node, kind, (fiber, size), epsilon), node)
    if spatial:
        site = replace(site, refusal=spatial_refusal(site.name))
    channels = None if shape is None else shape[channel]
    per_group = node.domain == "" and (node.version or view.opset) < 21
    repeat = channels // groups if per_group and groups and isinstance(channels, int) else 1
    return replace(site, affine_axis=channel, affine_repeat=repeat)


def _instance_normalization(view: ModelInfo, node: ir.Node) -> NormSite | None:
    """InstanceNormalization-6: each channel of each sample over the axes after it; scale, B [C]."""
    return _grouped(view, node, NormKind.INSTANCE_NORM, None, 1)


def _group_normalization(view: ModelInfo, node: ir.Node) -> NormSite | None:
    """GroupNormalization: scale and bias are [C] from opset 21 on and [num_groups] in 18."""
    groups = node.attributes.get_int("num_groups", 0)
    return _grouped(view, node, NormKind.GROUP_NORM, groups, 1)


def _contrib_group_norm(view: ModelInfo, node: ir.Node) -> NormSite | None:
    """com.microsoft.GroupNorm, channels last by default, without a fused activation."""
    if node.attributes.get_int("activation", 0):
        return None
    groups = node.attributes.get_int("groups", 0)
    channel = -1 if node.attributes.get_int("channels_last", 1) else 1
    return _grouped(view, node, NormKind.GROUP_NORM, groups, channel)


_Form = Callable[[ModelInfo, ir.Node], NormSite | None]

_layer_norm = partial(_trailing_norm, kind=NormKind.LAYER_NORM)
_rms_norm = partial(_trailing_norm, kind=NormKind.RMS_NORM)
_own_layer_norm = partial(_layer_norm, epsilon=0.0)
_own_rms_norm = partial(_rms_norm, epsilon=0.0)

FORMS: dict[tuple[str, str], _Form] = {
    ("", "GroupNormalization"): _group_normalization,
    ("", "InstanceNormalization"): _instance_normalization,
    ("", "LayerNormalization"): _layer_norm,
    ("", "LpNormalization"): _lp_normalization,
    ("", "MeanVarianceNormalization"): _mean_variance_normalization,
    ("", "RMSNormalization"): _rms_norm,
    ("", "SimplifiedLayerNormalization"): _rms_norm,
    ("com.microsoft", "GroupNorm"): _contrib_group_norm,
    ("com.microsoft", "LayerNormalization"): _layer_norm,
    ("com.microsoft", "SimplifiedLayerNormalization"): _rms_norm,
    ("onnxfold", "LayerNorm"): _own_layer_norm,
    ("onnxfold", "LayerNormAffine"): _own_layer_norm,
    ("onnxfold", "LayerNormScale"): _own_layer_norm,
    ("onnxfold", "RMSNorm"): _own_rms_norm,
    ("onnxfold", "RMSNormAffine"): _own_rms_norm,
    ("onnxfold", "RMSNormScale"): _own_rms_norm,
}
