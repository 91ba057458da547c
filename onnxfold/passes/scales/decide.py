"""Decide which scales, biases and BatchNormalizations move into the linear layer before; do it.

The scale of attention scores, 1 / sqrt(d), stays where exporters write it: ONNX Runtime fuses it
into FusedMatMul, and its Attention fusion, OpenVINO's and TensorRT's match MatMul, Mul or Div,
(Add,) Softmax.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import HALVES
from onnxfold.graph.edit import Editor, inherit, redirect, sweep
from onnxfold.graph.model_info import Fact
from onnxfold.graph.operands import known_operand, known_producer, known_tensor, operands
from onnxfold.graph.traversal import reached
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.norms.site import NormForm
from onnxfold.operators import facets
from onnxfold.operators.families.weight_roots import EditPlace
from onnxfold.operators.table import row_of
from onnxfold.passes.base import Settings
from onnxfold.passes.constant_edits import PlaceEditor
from onnxfold.passes.places import Place, place_of, ref_of
from onnxfold.passes.ranges import RangeWarning, range_warning
from onnxfold.passes.scales.constant_operands import is_weight
from onnxfold.passes.scales.plan import ScaleFusion, ScalesPlan
from onnxfold.passes.scales.writer import (
    TOO_FAR,
    ChannelOp,
    LinearWriter,
    channel_op,
    embedded,
    writer_of,
)
from onnxfold.refusal import Refusal
from onnxfold.weights.edited import edited
from onnxfold.weights.evaluation import Scale, Shift
from onnxfold.weights.half_weights import refuse_few_bits
from onnxfold.weights.narrow import refuse_narrow

# Operators that exporters write between a scale and Softmax; runtimes do not search beyond others.
_PRODUCTS = frozenset({"Einsum", "FusedMatMul", "MatMul"})
_BETWEEN = frozenset(
    "Add Cast Concat Div Expand Identity Mul Reshape Split Squeeze Sub Transpose Unsqueeze "
    "Where".split()
)


_BEFORE_SOFTMAX: Fact[frozenset[ir.Node]] = Fact("nodes before Softmax")


def scales_scores(view: ModelInfo, node: ir.Node) -> bool:
    """Whether a Mul or Div is on a path to Softmax, in or before a product of two activations."""
    return node.op_type in ("Mul", "Div") and node in _BEFORE_SOFTMAX.of(view)


@_BEFORE_SOFTMAX.found_by
def _before_softmax(view: ModelInfo) -> frozenset[ir.Node]:
    """Return every node with a path to a Softmax through the allowed operators, and no norm."""
    within = {node for site in NORMS.of(view) for node in site.nodes}

    def back(each: ir.Node) -> list[ir.Node]:
        if each in within or (each.op_type != "Softmax" and not _passes(view, each)):
            return []
        return [node for value in operands(each) if (node := value.producer()) is not None]

    return frozenset(reached([n for n in view.nodes() if n.op_type == "Softmax"], back))


def _passes(view: ModelInfo, node: ir.Node) -> bool:
    if node.op_type in _PRODUCTS:
        return not any(is_weight(view, node, index) for index in range(len(node.inputs)))
    return node.op_type in _BETWEEN


def decide(info: ModelInfo, settings: Settings) -> ScalesPlan:
    """Return what linear layers absorb, and which weights that widens much."""
    fusions, refusals = decide_scales(
        info,
        NORMS.of(info),
        allow_split_bytes=settings.allow_split,
        scores=settings.target.traits.calls,
        without=settings.unproved,
    )
    return ScalesPlan(fusions, _ranges(info, fusions, settings.range_limit), refusals)


def _ranges(
    view: ModelInfo, fusions: Iterable[ScaleFusion], limit: float
) -> tuple[RangeWarning, ...]:
    """Return a warning for every weight whose range a scale widens more than ``limit`` times."""
    values = view.by_ref()
    warnings = []
    for fusion in fusions:
        node = values[fusion.output].producer()
        op = None if node is None else channel_op(view, node)
        if op is None or op.scale is None:
            continue
        place = fusion.scaled[0]
        scale = embedded(op.scale, fusion.part, place.channels.size)
        found = range_warning(values, fusion.name, place, place.channels, scale, limit)
        if found is not None:
            warnings.append(found)
    return tuple(warnings)


def decide_scales(
    view: ModelInfo,
    sites: Iterable[NormSite],
    *,
    allow_split_bytes: int,
    scores: bool = True,
    without: Container[str] = (),
) -> tuple[tuple[ScaleFusion, ...], tuple[tuple[str, Refusal], ...]]:
    """Return the operators that an upstream linear layer can absorb in its weights.

    Also return, by reference, those that would leave a 16-bit weight with too few bits, and those
    whose layer is too far upstream.

    The nodes of a norm stay, except the alpha of a DyT and factors, sums and signs after a gamma
    and a beta, which become one of each. Signs after a layer stay, because runtimes recognize
    rotary embeddings by them. A weight with other readers is copied up to ``allow_split_bytes``,
    and left alone above. Without ``scores`` the scales of attention scores stay. ``without``:
    references of results of operators that stay.
    """
    sites = tuple(sites)
    of_norms = {node for site in sites if site.kind is not NormKind.DYT for node in site.nodes}
    of_norms -= {node for site in sites for node in _last_constants(view, site)}
    norms = {site.output: site for site in sites if _scales_by_gamma(site)}
    passed: dict[ir.Value, ir.Value] = {}  # by the results of what moves, the value before it
    biased: set[ir.Node] = set()  # layers to which an earlier fusion adds a bias
    fusions: list[ScaleFusion] = []
    refusals: list[tuple[str, Refusal]] = []
    varied: set[Reader] = set()  # constant operands that get different numbers by earlier fusions
    scaled: dict[str, ir.TensorProtocol] = {}  # weights of 16 bits after earlier fusions
    for node in view.nodes():
        op = None if node in of_norms else channel_op(view, node)
        if op is None or (not scores and scales_scores(view, node)):
            continue
        writer = writer_of(view, op, passed, norms, varied)
        if writer is TOO_FAR:
            refusals.append((view.ref(node.outputs[0]), TOO_FAR))
        if isinstance(writer, Refusal) or _is_sign_of_layer(node, writer):
            continue
        fusion = _fusion(view, op, writer, allow_split_bytes, writer.node in biased)
        if fusion is None or fusion.output in without:
            continue
        why = _few_bits(view, fusion, op, writer.weight.value, scaled)
        if why is not None:
            refusals.append((fusion.output, why))
        else:
            fusions.append(fusion)
            source = known_operand(node, op.index)
            passed[node.outputs[0]] = passed.get(source, source)
            if fusion.shifted is not None and not fusion.shifted.value:
                biased.add(writer.node)
            if any(part is not None and np.ptp(part) > 0 for part in (op.scale, op.shift)):
                varied |= {root.reader for root in _changed(op, writer)}
    return tuple(fusions), tuple(refusals)


def _changed(op: ChannelOp, writer: LinearWriter) -> tuple[EditPlace, ...]:
    """Return the constants that an absorbed operator scales or shifts."""
    return writer.biases[:1] if op.scale is None else (writer.weight, *writer.biases)


def _few_bits(
    view: ModelInfo,
    fusion: ScaleFusion,
    op: ChannelOp,
    weight: ir.Value,
    scaled: dict[str, ir.TensorProtocol],
) -> Refusal | None:
    """Return why a scale would leave a weight with too few bits; otherwise record its result.

    Biases are rounded like the products of the weight.
    """
    if op.scale is None or weight.dtype not in HALVES:
        return None
    place, name = fusion.scaled[0], weight.name or ""
    tensor = scaled.get(place.value, view.tensor(weight))
    scale = Scale(place.channels, embedded(op.scale, fusion.part, place.channels.size))
    why = refuse_few_bits(tensor, scale, place.channels.axes, name)
    if why is None and tensor is not None and not place.copy:
        scaled[place.value] = edited(tensor, scale, name)
    return why


def _is_sign_of_layer(node: ir.Node, writer: LinearWriter) -> bool:
    return node.op_type == "Neg" and facets.takes_scale(row_of(writer.node))


def _last_constants(view: ModelInfo, site: NormSite) -> Iterator[ir.Node]:
    """Yield the products and sums with constants, and the signs, that end a spelled-out norm."""
    value: ir.Value | None = site.output
    while value is not None:
        node = value.producer()
        op = None if node is None or node not in site.nodes else channel_op(view, node)
        if op is None:
            return
        yield op.node
        value = op.node.inputs[op.index]


def _scales_by_gamma(site: NormSite) -> bool:
    """Whether a norm is one operator, which multiplies by gamma and adds beta at the end."""
    operator = site.form is not NormForm.DECOMPOSED and site.refusal is None
    return operator and site.kind in (NormKind.LAYER_NORM, NormKind.RMS_NORM)


def _fusion(
    view: ModelInfo, op: ChannelOp, writer: LinearWriter, limit: int, biased: bool
) -> ScaleFusion | None:
    shifted = None
    sizes = (op.channels.size, op.channels.size if writer.part is None else writer.part[2])
    if any(root.channels.size not in sizes for root in writer.biases):  # of a part with more parts
        return None
    if op.shift is not None:
        shifted = _shifted(view, op, writer)
        if shifted is None:
            return None
    roots = (writer.weight, *writer.biases) if op.scale is not None else ()
    if any(refuse_narrow(view, root.value) for root in (writer.weight, *writer.biases)):
        return None
    scaled = tuple(_place(view, root) for root in roots)
    if biased and op.scale is not None and writer.new_bias is not None:
        channels = writer.output.renamed(dict.fromkeys(writer.output.axes, 0))
        scaled = (*scaled, Place("", ref_of(view, writer.new_bias), channels))
    places = (*scaled, *((shifted,) if shifted is not None else ()))
    if any(place.copy and place.nbytes > limit for place in places):
        return None
    return ScaleFusion(
        op.node.name or op.node.outputs[0].name or op.node.op_type,
        view.ref(op.node.outputs[0]),
        view.ref(writer.node.outputs[0]),
        scaled,
        shifted,
        writer.part,
    )


def _shifted(view: ModelInfo, op: ChannelOp, writer: LinearWriter) -> Place | None:
    """Return the constant that absorbs the shift: the bias next to the operator, or a new one."""
    if writer.biases:
        root = writer.biases[0]
        whole = {digit.axis: digit.size for digit in root.channels.digits if digit.whole}
        shape = tuple(known_tensor(root.value).shape.numpy())
        complete = all(dim == 1 or whole.get(axis) == dim for axis, dim in enumerate(shape))
        return _place(view, root) if complete and whole else None
    if writer.new_bias is None or not writer.weight.channels.digits:
        return None
    if not all(digit.whole for digit in writer.output.digits):
        return None
    size = op.channels.size if writer.part is None else writer.part[2]
    ref = ref_of(view, writer.new_bias)
    return Place("", ref, Channels.along([(0, size)]))


def _place(view: ModelInfo, root: EditPlace) -> Place:
    readers = len(root.value.uses()) + root.value.is_graph_output()
    return place_of(view, root.value, root.reader, root.channels, copy=readers != 1)


def apply(edit: Editor, plan: ScalesPlan, settings: Settings) -> None:
    """Apply the fusions in order: a later one scales what an earlier one has added."""
    del settings  # the moves are already decided
    values = edit.info.by_ref()
    made: list[tuple[ScaleFusion, ChannelOp]] = []
    for fusion in plan.fusions:
        op = channel_op(edit.info, known_producer(values[fusion.output]))
        if op is None:
            raise InvariantError(f"'{fusion.output}' is no product or sum with a constant")
        made.append((fusion, replace(op, node=edit.node(op.node))))
    places = PlaceEditor(edit)
    for fusion, op in made:
        _do_before(places, fusion, op)


def _do_before(places: PlaceEditor, fusion: ScaleFusion, op: ChannelOp) -> None:
    """Change the constants before a scale, and remove the scale."""
    for place in fusion.scaled:
        if op.scale is not None:
            scale = embedded(op.scale, fusion.part, place.channels.size)
            places.append(place, Scale(place.channels, scale))
    if fusion.shifted is not None and op.shift is not None:
        channels = fusion.shifted.channels
        shift = embedded(op.shift, fusion.part, channels.size, neutral=0.0)
        places.append(fusion.shifted, Shift(channels, shift))
    start, end = known_operand(op.node, op.index), op.node.outputs[0]
    operands = list(op.node.inputs)
    redirect(end, start, outputs=True)
    sweep([op.node])
    for operand in operands:
        places.edit.drop_if_unread(operand)
    inherit(end, start)
