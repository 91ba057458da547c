"""Constants with several readers: changed in place if all agree, otherwise copied or refused."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label
from onnxfold.graph.channels import Channels
from onnxfold.passes.affine.plan import AffineFusion
from onnxfold.passes.places import Place, ReaderRef
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class FusionCandidate:
    """A fusion, and keys that distinguish its edits of gamma and beta from other norms' edits.

    ``refusal``: why a part stays.
    """

    fusion: AffineFusion
    marks: tuple[bytes, bytes]
    refusal: Refusal | None = None


# Gamma or beta with its weight, the channels and where it begins in them, which numbers.
_Edit = tuple[str, Channels, int | None, bytes]
_Wanted = dict[tuple[ReaderRef, int | None], _Edit]


def settle(
    view: ModelInfo, candidates: Sequence[FusionCandidate], limit: int
) -> tuple[list[AffineFusion], dict[str, Refusal]]:
    """Change constants in place if all readers agree, copy small ones, refuse the rest.

    A refused norm leaves its weights unchanged, so the others must be asked again.
    """
    refused: dict[str, Refusal] = {}
    waiting = list(candidates)
    values = view.by_ref()
    while True:
        wanted = _wanted(waiting)
        settled: list[AffineFusion] = []
        rest: list[FusionCandidate] = []
        for candidate in waiting:
            obstacle = None
            for place in candidate.fusion.places:
                if not place.value or place.nbytes <= limit:
                    continue
                if not _agreed(values[place.value], wanted[place.value]):
                    obstacle = _shared(values[place.value], place)
                    break
            if obstacle is None:
                rest.append(candidate)
                settled.append(_with_copies(candidate.fusion, values, wanted))
            else:
                refused[candidate.fusion.output] = obstacle
        if len(rest) == len(waiting):
            return settled, refused
        waiting = rest


def _wanted(candidates: Iterable[FusionCandidate]) -> dict[str, _Wanted]:
    """Return for every constant the edit that each reader wants."""
    wanted: dict[str, _Wanted] = defaultdict(dict)
    for candidate in candidates:
        gamma, beta = candidate.marks
        for reader in candidate.fusion.readers:
            if candidate.fusion.scales:
                place = reader.weight
                edit = "", place.channels, reader.start, gamma
                wanted[place.value][place.reader, reader.start] = edit
            for place in reader.biases:
                if not place.value:
                    continue
                weight = reader.weight
                holder = f"{weight.value} {weight.reader.node if weight.fixed else ''}"
                of = f"{holder} {reader.factor} {weight.channels}"
                source = f"{of} {reader.outer} {place.start}"
                edit = source, place.channels, reader.start, beta
                wanted[place.value][place.reader, reader.start] = edit
    return wanted


def _agreed(value: ir.Value, wanted: _Wanted) -> bool:
    """Whether all readers of a constant want the same edit, or one wants any edits of parts."""
    readers = len(value.uses()) + value.is_graph_output()
    if any(start is not None for _, start in wanted):
        return readers == 1
    return readers == len(wanted) and len(set(wanted.values())) == 1


def _with_copies(
    fusion: AffineFusion, values: Mapping[str, ir.Value], wanted: dict[str, _Wanted]
) -> AffineFusion:
    def settled(place: Place | None) -> Place | None:
        if place is None or not place.value:
            return place
        return replace(place, copy=not _agreed(values[place.value], wanted[place.value]))

    readers = tuple(
        replace(
            reader,
            weight=(settled(reader.weight) if fusion.scales else None) or reader.weight,
            bias=settled(reader.bias),
            parts=tuple(place for part in reader.parts if (place := settled(part)) is not None),
        )
        for reader in fusion.readers
    )
    return replace(fusion, readers=readers)


def _shared(value: ir.Value, place: Place) -> Refusal:
    readers = tuple(node_label(use.node) for use in value.uses())
    sentence = (
        f"weight '{value.name}' of {place.nbytes:,} bytes has {len(readers)} readers that do not "
        f"all follow this norm, and is too large to store twice; --allow-split {place.nbytes} "
        "allows it"
    )
    return Refusal(RefusalCode.SHARED_WEIGHT, sentence, readers)
