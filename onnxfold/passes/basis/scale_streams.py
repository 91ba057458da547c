"""Which streams are multiplied by a power of two, and by which: c = 2^-k.

float16 holds numbers up to 65504.  k is the least for which the largest magnitude of every value of
the stream, times 2^margin, is below that; c moves no digit of any number that stays normal.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil, inf, isfinite, log2

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError, ModelError
from onnxfold.graph import FLOATS, ModelInfo, node_label
from onnxfold.graph.constants import Array, smallest_normal
from onnxfold.graph.edit import Editor, set_attribute, set_input
from onnxfold.graph.operands import known_operand, known_producer, operand
from onnxfold.norms import NORMS, EpsilonMode, NormSite
from onnxfold.operators.new_nodes import Lowered, NewNodes
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.plan import (
    LARGEST_HALF,
    SMALLEST_NORMAL_HALF,
    NewEpsilon,
    Observe,
    ScaledPlace,
    ScaledStream,
    ScalePlan,
    ValueRange,
)
from onnxfold.passes.basis.scale_walk import ScaledConstant, ScaleWalk
from onnxfold.passes.constant_edits import PlaceEditor
from onnxfold.passes.places import Place, ReaderRef, ref_of
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.streams.model_transfers import TRANSFERS
from onnxfold.weights.edited import float64_chunks
from onnxfold.weights.evaluation import Scale

_OUTSIDE = (EpsilonMode.OUTSIDE, EpsilonMode.MAX_OUTSIDE)
_HOLDS_EPSILON = frozenset({"Add", "Sum", "Max", "Clip"})


def decide(info: ModelInfo, settings: Settings, observe: Observe) -> ScalePlan:
    """Return the streams that are scaled, and why the others are not.

    Raises ModelError if their scale is to be measured and the model has no float64 run.
    """
    if settings.scale_streams == "off":
        return ScalePlan()
    walks, refusals = _streams(info, settings)
    members = {value for walk in walks for value in walk.members}
    given = None if settings.scale_streams == "auto" else int(settings.scale_streams)
    known = dict.fromkeys(members, 0.0)

    def keep(value: ir.Value, array: Array) -> None:
        if value in known and array.size:
            known[value] = max(known[value], _peak(array))

    seen = observe(info, settings, keep)
    if isinstance(seen, str) and given is None:
        raise ModelError(
            "the ranges of streams are measured in float64, and this model has no such run: "
            f"{seen}; give --scale-streams a number of bits"
        )
    known = {} if isinstance(seen, str) else known
    found: list[ScaledStream] = []
    for walk in walks:
        largest = {value: known[value] for value in walk.members if value in known}
        peak = max(largest.values(), default=0.0)
        first = info.ref(next(iter(walk.ending)))
        if not isfinite(peak):
            worst = max(largest, key=lambda value: largest[value]).name or ""
            sentence = f"'{worst}' is not finite in float64 on these inputs"
            refusals.append((first, Refusal(RefusalCode.NON_FINITE_WEIGHT, sentence, (worst,))))
            continue
        exponent = _exponent(peak, settings.scale_margin) if given is None else given
        made = _scaled(info, walk, exponent, largest, settings.allow_split)
        if isinstance(made, Refusal):
            refusals.append((first, made))
        else:
            found.append(made)
    said = (0, "") if isinstance(seen, str) else seen
    return ScalePlan(
        tuple(stream for stream in found if stream.exponent),
        tuple(stream for stream in found if not stream.exponent),
        tuple(refusals),
        *said,
    )


def _peak(array: Array) -> float:
    """Return the largest magnitude, or inf if a number is not finite."""
    wide = np.abs(array.astype(np.float64))
    return float(np.max(np.where(np.isnan(wide), np.inf, wide)))


def _streams(
    info: ModelInfo, settings: Settings
) -> tuple[list[ScaleWalk], list[tuple[str, Refusal]]]:
    """Return the streams of a model that have values of their own, one for each, and refusals."""
    sites = NORMS.of(info)
    transfers = TRANSFERS.of(info)
    walks: list[ScaleWalk] = []
    refusals: list[tuple[str, Refusal]] = []
    known: set[ir.Value] = set()
    for site in sites:
        idle = info.tensor(site.input) is not None or info.is_dead(site.last)
        if idle or site.input in known:
            continue
        walk = ScaleWalk(info, transfers, sites)
        ref = info.ref(site.output)
        why = settings.refuse_unproved(ref) or walk.find(site.input)
        known.update(point.value for point in walk.stream.values)
        if why is not None:
            refusals.append((ref, why))
        elif walk.ending and walk.members:
            walks.append(walk)
    return walks, refusals


def _exponent(peak: float, margin: int) -> int:
    """Return the least k >= 0 with peak 2^margin 2^-k <= 65504."""
    return max(0, ceil(log2(peak) + margin - log2(LARGEST_HALF))) if peak else 0


def _scaled(
    info: ModelInfo, walk: ScaleWalk, exponent: int, largest: dict[ir.Value, float], split: int
) -> ScaledStream | Refusal:
    """Return a stream times 2^-exponent, or why its parts cannot take that."""
    largest = {value: peak for value, peak in largest.items() if value not in walk.opened}
    places = _places(info, walk, split)
    if isinstance(places, Refusal):
        return places
    epsilons: dict[ReaderRef, NewEpsilon] = {}
    for site in walk.ending.values():
        made = _epsilons(info, site, exponent)
        if isinstance(made, Refusal):
            return made
        epsilons |= {each.reader: each for each in made}
    c = 2.0**-exponent
    return ScaledStream(
        info.ref(next(iter(walk.ending))),
        exponent,
        tuple(map(info.ref, walk.ending)),
        tuple(places),
        tuple(epsilons.values()),
        tuple(
            (info.ref(value), tuple(ref_of(info, reader) for reader in readers))
            for value, readers in walk.opened.items()
        ),
        tuple(_range(info.ref(value), peak, c) for value, peak in largest.items()),
        _subnormals(info, walk.constants, c),
    )


def _range(ref: str, peak: float, c: float) -> ValueRange:
    after = peak * c
    bits = log2(after / SMALLEST_NORMAL_HALF) if after else -inf
    return ValueRange(ref, peak, after, after / LARGEST_HALF, bits)


def _places(info: ModelInfo, walk: ScaleWalk, split: int) -> list[ScaledPlace] | Refusal:
    """Return the places that change, as copies where others read a constant as it is.

    If one is too large to store twice, its result is multiplied instead.
    """
    taken = {(c.root.reader.node, c.root.reader.index): c for c in walk.constants}
    powers: dict[ir.Value, set[int]] = {}
    for each in taken.values():
        powers.setdefault(each.root.value, set()).add(each.power)
    places: list[ScaledPlace] = []
    for each in taken.values():
        root = each.root
        others = any((r.node, r.index) not in taken for r in info.readers(root.value))
        copy = others or len(powers[root.value]) > 1 or root.value.is_graph_output()
        tensor = info.tensor(root.value)
        nbytes = 0 if tensor is None else tensor.nbytes
        if copy and nbytes > split and walk.open_behind(each):
            continue
        if copy and nbytes > split:
            name, label = root.value.name or "", node_label(root.reader.node)
            sentence = (
                f"weight '{name}' of node '{label}' is read by others, which need it as it is"
            )
            return Refusal(RefusalCode.SHARED_WEIGHT, sentence, (name, label))
        reader = ref_of(info, root.reader)
        places.append(
            ScaledPlace(
                Place(info.ref(root.value), reader, root.channels, nbytes, copy), each.power
            )
        )
    return places


def _epsilons(info: ModelInfo, site: NormSite, exponent: int) -> list[NewEpsilon] | Refusal:
    """Return where the epsilon of a norm stands, or why c^2 times it cannot stand there."""
    power = 1 if site.epsilon_mode in _OUTSIDE else 2
    number = site.epsilon * 2.0 ** (-power * exponent)
    found = list(_places_of_epsilon(info, site))
    if site.epsilon and not found:
        sentence = f"the epsilon of norm '{site.name}' is in no place of its own"
        return Refusal(RefusalCode.DYNAMIC_WEIGHT, sentence, (site.name,))
    for _, dtype in found if site.epsilon else ():
        if number < smallest_normal(dtype):
            sentence = (
                f"the epsilon of norm '{site.name}', {site.epsilon:.3g}, would become "
                f"{number:.3g}, which {dtype.name.lower()} cannot hold with all digits"
            )
            return Refusal(RefusalCode.ROUNDS_MORE, sentence, (site.name,))
    return [NewEpsilon(reader, number) for reader, _ in found]


def _places_of_epsilon(info: ModelInfo, site: NormSite) -> Iterator[tuple[ReaderRef, ir.DataType]]:
    """Yield the places of an epsilon, and the type of the number that is there."""
    for node in site.nodes:
        own = next((output for output in node.outputs if output.name), None)
        if own is None:
            continue
        stored = node.attributes.get("epsilon")
        if stored is not None and np.float32(stored.as_float()) == np.float32(site.epsilon):
            yield ReaderRef(info.ref(own), -1), ir.DataType.FLOAT
        for index in range(len(node.inputs)) if node.op_type in _HOLDS_EPSILON else ():
            value = operand(node, index)
            if value is None or value.dtype not in FLOATS or value.dtype is None:
                continue
            number = info.scalar(value)
            if number is not None and number == site.epsilon:
                yield ReaderRef(info.ref(own), index), value.dtype


def _subnormals(info: ModelInfo, constants: Iterable[ScaledConstant], c: float) -> int:
    """Count the numbers of constants that become subnormal in their type, and may lose digits."""
    count = 0
    powers = Counter((each.root.value, each.power) for each in constants)
    for value, power in powers:
        tensor = info.tensor(value)
        if tensor is None:
            continue
        least = smallest_normal(tensor.dtype)
        for _, rows in float64_chunks(tensor):
            small = np.abs(rows) * c**power < least
            count += int(np.count_nonzero(small & (np.abs(rows) >= least)))
    return count


def apply(edit: Editor, plan: ScalePlan, settings: Settings) -> None:
    """Multiply every stream that is named by its power of two."""
    del settings
    places = PlaceEditor(edit)
    values = edit.by_ref()
    for place, factor in plan.factors():
        places.change(place, Scale(place.channels, np.array([factor])))
    for stream in plan.streams:
        for ref, readers in stream.opened:
            result = _scaled_value(edit, values[ref], stream.factor)
            for reader in readers:
                set_input(known_producer(values[reader.node]), reader.index, result)
        for epsilon in stream.epsilons:
            _change_epsilon(edit, values, epsilon)


def _scaled_value(edit: Editor, value: ir.Value, c: float) -> ir.Value:
    """Insert the product of a value with c."""
    if value.dtype is None:
        raise InvariantError(f"'{value.name}' has no known type")
    new, name = NewNodes(edit.info.opset), f"{value.name}.scaled"
    factor = new.weight(f"{name}.factor", np.array(c, value.dtype.numpy()))
    result = new.op("Mul", value, factor)
    result.name, result.type, new.nodes[0].name = name, value.type, name
    result.shape = None if value.shape is None else value.shape.copy()
    edit.insert_behind(value, Lowered.of(new))
    return result


def _change_epsilon(edit: Editor, values: dict[str, ir.Value], epsilon: NewEpsilon) -> None:
    node = known_producer(values[epsilon.reader.node])
    if epsilon.reader.index < 0:
        set_attribute(node, ir.AttrFloat32("epsilon", epsilon.number))
        return
    old = known_operand(node, epsilon.reader.index)
    if old.dtype is None:
        raise InvariantError(f"'{old.name}' has no known type")
    like = edit.info.array(old)
    shape = () if like is None else like.shape
    tensor = ir.tensor(np.full(shape, epsilon.number, old.dtype.numpy()))
    set_input(
        node, epsilon.reader.index, edit.new_constant(node.outputs[0], tensor, f"{old.name}.scaled")
    )
    edit.drop_if_unread(old)
