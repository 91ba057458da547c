"""How much of each gamma a norm keeps, and how much the downstream linear layers absorb.

    y = (n * g / s) (diag(s) W),    s_j = max|x_j|^a / max|W_j|^(1 - a),    x = n * g + b

for any s > 0: s = 1 leaves the file unchanged, s = g moves gamma. s is rounded to powers of two, so
that not one digit changes, and shared by all layers that read the norm. a is the one of a grid with
the least error of these layers in int8, with one scale for each tensor, on rows that the norm gives
for inputs; without such a run it is by the bound |n| <= sqrt(d).

Source: Xiao et al., "SmoothQuant", 2023, equation 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Array, Float64
from onnxfold.graph.edit import Editor
from onnxfold.norms import NORMS, NormSite
from onnxfold.operators.families.reactions import react
from onnxfold.operators.families.transfer import refuse, refuse_value
from onnxfold.operators.families.weight_roots import EditPlace, root_of
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.plan import Observe
from onnxfold.passes.constant_edits import PlaceEditor
from onnxfold.passes.places import Place, place_of
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.weights.edited import unrounded
from onnxfold.weights.evaluation import Scale

GRID = tuple(n / 8 for n in range(1, 8))
WORTH = 0.9  # of the error as it is: smaller differences are luck
_ROWS, _LEAST = 512, 2.0**-20


@dataclass(frozen=True, slots=True, eq=False)
class GammaSplit:
    """A norm whose gamma and beta are divided by s, and whose readers' weights are multiplied."""

    norm: str
    exponent: float
    factors: Float64
    norm_places: tuple[Place, ...]
    weight_places: tuple[Place, ...]
    error_before: float | None
    error_after: float | None


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The norms whose gamma is split, and why others keep theirs; ``by``: what a was chosen by."""

    splits: tuple[GammaSplit, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()
    by: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not self.splits

    def left_out(self, reason: str) -> "SplitPlan":
        """Return the plan to split nothing."""
        why = Refusal(RefusalCode.NOT_PROVED, reason)
        return SplitPlan((), (*self.refusals, *((s.norm, why) for s in self.splits)), self.by)

    def to_json(self) -> dict[str, Any]:
        """Return the report's form."""
        rows = [
            {
                "norm": each.norm,
                "exponent": each.exponent,
                "largest": float(each.factors.max()),
                "least": float(each.factors.min()),
                "weights": [place.value for place in each.weight_places],
                "error_before": each.error_before,
                "error_after": each.error_after,
            }
            for each in self.splits
        ]
        refusals = [{"norm": norm, **why.to_json()} for norm, why in self.refusals]
        return {"norms": rows, "refusals": refusals, "by": self.by}


@dataclass(slots=True)
class _Case:
    """A norm, its gamma and beta, the weights that read it, and rows that it gives."""

    site: NormSite
    parts: tuple[ir.Value, ...]
    readers: list[EditPlace]
    rows: list[Float64] = field(default_factory=list)


def decide(info: ModelInfo, settings: Settings, observe: Observe) -> SplitPlan:
    """Return how the gammas of norms with linear readers are split, and why others stay."""
    if settings.split_gamma == "off":
        return SplitPlan()
    cases: list[_Case] = []
    refusals: list[tuple[str, Refusal]] = []
    for site in NORMS.of(info):
        ref = info.ref(site.output)
        found = settings.refuse_unproved(ref) or _case(info, site)
        if isinstance(found, Refusal):
            refusals.append((ref, found))
        else:
            cases.append(found)
    by = _measure(info, cases, settings, observe)
    grid = GRID if settings.split_gamma == "auto" else (float(settings.split_gamma),)
    splits: list[GammaSplit] = []
    for case in cases:
        split = _split(info, case, grid, forced=settings.split_gamma != "auto")
        if isinstance(split, Refusal):
            refusals.append((info.ref(case.site.output), split))
        else:
            splits.append(split)
    return SplitPlan(tuple(splits), tuple(refusals), by)


def _case(info: ModelInfo, site: NormSite) -> _Case | Refusal:
    """Return a norm with linear readers alone, or why it is none."""
    parts = tuple(part for part in (site.gamma, site.beta) if part is not None)
    values = tuple(part for part in parts if isinstance(part, ir.Value))
    whole = len(site.fiber.blocks) == 1 and site.fiber.whole and site.affine_axis is None
    stored = len(values) == len(parts) and all(
        (tensor := info.tensor(value)) is not None and tensor.size == site.size for value in values
    )
    if site.gamma is None or not (whole and stored and site.size > 1):
        sentence = f"norm '{site.name}' has no gamma of its own, one number for each channel"
        return Refusal(RefusalCode.DYNAMIC_WEIGHT, sentence, (site.name,))
    readers = weights_behind(info, site.output, Channels.of(site.fiber.blocks))
    if isinstance(readers, Refusal):
        return readers
    shared = [p.value for p in readers if len(p.value.uses()) > 1] + [
        value for value in values if len(value.uses()) > 1
    ]
    if shared or not readers:
        name = (shared[0].name or "") if shared else site.name
        sentence = f"'{name}' is read by others too" if shared else f"nothing reads norm '{name}'"
        return Refusal(RefusalCode.SHARED_WEIGHT, sentence, (name,))
    return _Case(site, values, readers)


def _measure(info: ModelInfo, cases: Iterable[_Case], settings: Settings, observe: Observe) -> str:
    """Keep rows of the norms' results; return the basis of the choice in words."""
    wanted = {case.site.output: case for case in cases}
    if settings.check is None or not wanted:
        return "the bound |n| <= sqrt(d)"

    def keep(value: ir.Value, array: Array) -> None:
        case = wanted.get(value)
        if case is not None:
            (axis,) = case.site.fiber.axes
            rows = np.moveaxis(array, axis, -1).reshape(-1, case.site.size)
            case.rows.append(rows[:_ROWS].astype(np.float64))

    seen = observe(info, settings, keep, data_alone=True)
    if isinstance(seen, str):
        return f"the bound |n| <= sqrt(d), because there is no float64 run: {seen}"
    return seen[1]


def _split(
    info: ModelInfo, case: _Case, grid: Iterable[float], *, forced: bool
) -> GammaSplit | Refusal:
    """Return the split with the least error; a Refusal unless it is clearly better than none."""
    weights = [_matrix(info, place) for place in case.readers]
    x = np.concatenate(case.rows)[:_ROWS] if case.rows else None
    reach = np.abs(x).max(axis=0) if x is not None else _bound(info, case)
    if not np.isfinite(reach).all():
        sentence = f"norm '{case.site.name}' gives inf or NaN on these inputs"
        return Refusal(RefusalCode.NON_FINITE_WEIGHT, sentence, (case.site.name,))
    columns = np.max([np.abs(W).max(axis=1) for W in weights], axis=0)
    found = []
    for a in grid:
        s = _powers_of_two(reach, columns, a)
        found.append(
            (None if x is None else _int8_error(x / s, [W * s[:, None] for W in weights]), a, s)
        )
    before = None if x is None else _int8_error(x, weights)
    after, a, s = (
        min(found, key=lambda each: each[0] or 0.0) if x is not None else found[len(found) // 2]
    )
    gains = before is None or after is None or after <= WORTH * before
    if np.all(s == 1) or not (forced or gains):
        sentence = f"norm '{case.site.name}' gains nothing by a split"
        return Refusal(RefusalCode.NOT_WORTH, sentence)
    own = tuple(_place(info, case, part) for part in case.parts)
    read = tuple(place_of(info, p.value, p.reader, p.channels) for p in case.readers)
    return GammaSplit(info.ref(case.site.output), a, s, own, read, before, after)


def _place(info: ModelInfo, case: _Case, part: ir.Value) -> Place:
    """Return the place of gamma or beta, along its one axis of more than one number."""
    tensor, (reader,) = info.tensor(part), info.readers(part)
    shape = () if tensor is None else tuple(tensor.shape.numpy())
    channels = Channels.along((axis, n) for axis, n in enumerate(shape) if n > 1)
    return place_of(info, part, reader, channels)


def _matrix(info: ModelInfo, place: EditPlace) -> Float64:
    """Return a weight as a matrix [channels that are summed over, all others]."""
    tensor = info.tensor(place.value)
    array = np.zeros((0, 0)) if tensor is None else unrounded(tensor).astype(np.float64)
    index = place.channels.spread(np.arange(place.channels.size, dtype=np.float64), array.shape)
    order = np.argsort(np.broadcast_to(index, array.shape).reshape(-1), kind="stable")
    return np.asarray(array.reshape(-1)[order].reshape(place.channels.size, -1))


def _bound(info: ModelInfo, case: _Case) -> Float64:
    """Return what a channel of the norm's result can reach: |n| <= sqrt(d)."""
    gamma, *betas = (np.abs(np.asarray(info.array(part)).reshape(-1)) for part in case.parts)
    total = np.sqrt(case.site.size) * gamma
    return np.asarray(total + sum(betas), np.float64)


def _powers_of_two(reach: Float64, columns: Float64, a: float) -> Float64:
    """Return s, with a geometric mean of about 1."""
    s = np.maximum(reach, _LEAST) ** a / np.maximum(columns, _LEAST) ** (1 - a)
    logs = np.log2(s)
    return np.asarray(2.0 ** np.round(logs - logs.mean()))


def _int8_error(x: Float64, weights: Iterable[Float64]) -> float:
    """Return the relative error of x W for x and W in 255 steps, one scale for each tensor."""
    error = size = 0.0
    rounded = _in_steps(x)
    for W in weights:
        exact = x @ W
        error += float(np.square(rounded @ _in_steps(W) - exact).sum())
        size += float(np.square(exact).sum())
    return float(np.sqrt(error / size)) if size else 0.0


def _in_steps(array: Float64) -> Float64:
    step = float(np.abs(array).max(initial=0.0)) / 127
    return np.round(array / step) * step if step else array


def apply(edit: Editor, plan: SplitPlan, settings: Settings) -> None:
    """Divide gammas and betas, and multiply the downstream weights."""
    del settings
    places = PlaceEditor(edit)
    for split in plan.splits:
        for place in split.norm_places:
            places.change(place, Scale(place.channels, 1 / split.factors))
        for place in split.weight_places:
            places.change(place, Scale(place.channels, split.factors))


def weights_behind(
    info: ModelInfo, value: ir.Value, channels: Channels
) -> list[EditPlace] | Refusal:
    """Return the weights that multiply the channels of a value; a Refusal where others read it."""
    if info.is_output(value):
        return refuse_value(RefusalCode.GRAPH_OUTPUT, value, "is an output of its graph")
    found: list[EditPlace] = []
    for reader in info.readers(value):
        made = _behind(info, reader, channels)
        if isinstance(made, Refusal):
            return made
        found += made
    return found


def _behind(info: ModelInfo, reader: Reader, channels: Channels) -> list[EditPlace] | Refusal:
    node = reader.node
    reaction = react(info, node, reader.index, channels)
    if isinstance(reaction, tuple):
        places = [
            root_of(info, Reader(node, layer.weight), layer.channels, layer.outer)
            for layer in reaction
        ]
        refused = next((place for place in places if isinstance(place, Refusal)), None)
        return refused or [place for place in places if not isinstance(place, Refusal)]
    if isinstance(reaction, Refusal):
        return reaction
    if reaction.jointly != (reader.index,):
        sentence = "adds the norm's result to something else, as a post-norm's residual"
        return refuse(RefusalCode.EXACT_READER, node, sentence)
    found: list[EditPlace] = []
    for output, moved in reaction.outputs:
        behind = weights_behind(info, node.outputs[output], moved)
        if isinstance(behind, Refusal):
            return behind
        found += behind
    return found
