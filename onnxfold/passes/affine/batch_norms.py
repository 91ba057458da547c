"""BatchNormalizations before linear layers: W (s x + t) + b = (W diag(s)) x + (b + W t).

They are after an activation, an input or a norm without beta, where no layer upstream can take s
and t: the heads of LeViT, the blocks of ECAPA-TDNN and ConvMixer. One moves if all of its readers
are linear layers: an operator goes away, and none is added but where a layer has no bias input and
an Add costs less than the BatchNormalization.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Float64
from onnxfold.graph.edit import Editor, inherit, redirect, sweep
from onnxfold.graph.operands import is_read_once, known_operand, known_producer
from onnxfold.operators.families.batch_norm import channel_factors
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.options import FuseAffine
from onnxfold.passes.affine.absorptions import (
    Shifted,
    absorb,
    absorption,
    refuse_few_bits_of,
    with_new_biases,
)
from onnxfold.passes.affine.affine_walk import follow
from onnxfold.passes.affine.apply import FusionCandidate, settle
from onnxfold.passes.affine.plan import Absorption, AffineFusion, AffinePlan
from onnxfold.passes.base import Settings
from onnxfold.passes.constant_edits import PlaceEditor
from onnxfold.refusal import Refusal
from onnxfold.targets.costs import costs_of, work


@dataclass(frozen=True, slots=True)
class _Found:
    node: ir.Node
    s: Float64
    t: Float64


def decide(info: ModelInfo, settings: Settings) -> AffinePlan:
    """Return the BatchNormalizations that move; weights with other readers may be copied."""
    candidates = [
        made
        for found in _found(info)
        if info.ref(found.node.outputs[0]) not in settings.unproved
        and (made := _candidate(info, found, settings)) is not None
    ]
    moves, _ = settle(info, candidates, settings.allow_split)
    return AffinePlan(tuple(moves))


def _found(info: ModelInfo) -> Iterator[_Found]:
    for node in info.nodes():
        numbers = channel_factors(info, node) if row_of(node).family is Family.BATCH_NORM else None
        if numbers is not None:
            yield _Found(node, *numbers)


def _candidate(info: ModelInfo, found: _Found, settings: Settings) -> FusionCandidate | None:
    x, y = known_operand(found.node, 0), found.node.outputs[0]
    reached = follow(info, y, Channels.along([(1, found.s.size)]))
    if isinstance(reached, Refusal) or reached[1] is not None or not reached[0]:
        return None
    taken: list[Absorption] = []
    for item in reached[0]:
        made = absorption(info, item)
        if isinstance(made, Refusal) or made.weight.fixed:
            return None
        taken.append(made)
    always, costs = settings.fuse_affine is FuseAffine.ALWAYS, costs_of(settings.target)
    saving = costs.added(work(info.shape(x), found.s.size))  # at least: it multiplies as well
    shifted = Shifted(x, found.s.size, lambda cost: cost + 1 if always else saving)
    readers = with_new_biases(info, shifted, reached[0], taken, costs.added)
    if isinstance(readers, Refusal):
        return None
    if refuse_few_bits_of(info, found.s, y.dtype, readers) is not None:
        return None
    fusion = AffineFusion(found.node.name or y.name or "", info.ref(y), True, True, tuple(readers))
    marks = found.s.tobytes(), found.s.tobytes() + b"/" + found.t.tobytes()
    return FusionCandidate(fusion, marks)


def apply(edit: Editor, plan: AffinePlan, settings: Settings) -> None:
    """Let linear layers absorb the BatchNormalizations of a plan, and remove these."""
    del settings  # the moves are already decided
    values, places = edit.info.by_ref(), PlaceEditor(edit)
    made: list[ir.Node] = []
    for fusion in plan.fusions:
        node = known_producer(values[fusion.output])
        numbers = channel_factors(edit.info, node)
        if numbers is None:
            raise InvariantError(f"'{fusion.output}' is not s x + t per channel")
        for reader in fusion.readers:
            absorb(places, reader, *numbers)
        made.append(edit.node(node))
    for node in made:
        _remove(edit, node)


def _remove(edit: Editor, node: ir.Node) -> None:
    x, y, operands = known_operand(node, 0), node.outputs[0], list(node.inputs[1:])
    alone = is_read_once(x) and x.producer() is not None
    redirect(y, x)
    sweep([node])
    for operand in operands:
        edit.drop_if_unread(operand)
    if alone:
        inherit(y, x)
