"""Plan: the frozen, printable result of deciding; it can be written to JSON and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from onnxfold.passes.affine.plan import AffineFusion
from onnxfold.passes.centring.plan import CentringPlan, Fold, Insertion, WeightCentring
from onnxfold.passes.deferral.plan import DeferredNorm
from onnxfold.passes.places import ReaderRef, fiber_from_json
from onnxfold.passes.scales.plan import ScaleFusion
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class Plan(CentringPlan):
    """What all passes will do: the plan of centring, and what moves into linear layers."""

    fusions: tuple[AffineFusion, ...] = ()
    scales: tuple[ScaleFusion, ...] = ()
    deferred: tuple[DeferredNorm, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.folds or self.fusions or self.scales or self.deferred)

    @property
    def split_bytes(self) -> int:
        """The bytes of the weights that are stored twice."""
        centred = sum(weight.nbytes for weight in self.weights if weight.split)
        places = [place for fusion in self.fusions for place in fusion.places]
        places += [place for scale in self.scales for place in scale.places]
        read = [reader for norm in self.deferred for reader in norm.centred]
        centred += sum(reader.nbytes for reader in read)
        return centred + sum(place.nbytes for place in places if place.copy)

    def to_json(self) -> dict[str, object]:
        """Return a JSON document that :meth:`from_json` reads back to an equal plan."""
        document = asdict(self)
        document["refusals"] = [
            {"output": output, **refusal.to_json()} for output, refusal in self.refusals
        ]
        return document

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_json` wrote; raises KeyError or TypeError on anything else."""
        return Plan(
            tuple(
                Fold(fold["norm"], fold["output"], tuple(fold["writers"]))
                for fold in document["folds"]
            ),
            tuple(
                WeightCentring(
                    weight["value"],
                    fiber_from_json(weight["fiber"]),
                    weight["nbytes"],
                    _readers(weight["readers"]),
                    tuple(weight["norms"]),
                )
                for weight in document["weights"]
            ),
            tuple(
                Insertion(
                    insertion["value"],
                    fiber_from_json(insertion["fiber"]),
                    _readers(insertion["readers"]),
                    tuple(insertion["norms"]),
                )
                for insertion in document["insertions"]
            ),
            tuple(
                (
                    row["output"],
                    Refusal(RefusalCode(row["code"]), row["sentence"], tuple(row["nodes"])),
                )
                for row in document["refusals"]
            ),
            document["gain_ps"],
            document["cost_ps"],
            tuple(AffineFusion.from_json(row) for row in document["fusions"]),
            tuple(ScaleFusion.from_json(row) for row in document["scales"]),
            tuple(DeferredNorm.from_json(row) for row in document["deferred"]),
        )

    def __str__(self) -> str:
        lines = [f"fuse      {fusion}" for fusion in self.fusions]
        lines += [f"absorb    {scale.name} into {scale.writer}" for scale in self.scales]
        lines += [f"fold      {fold.norm}" for fold in self.folds]
        lines += [f"defer     {norm}" for norm in self.deferred]
        for weight in self.weights:
            count = len(weight.readers) + len(weight.norms)
            how = f"copy for {count} readers" if weight.split else "in place"
            lines.append(f"centre    {weight.value} along {weight.fiber}, {how}")
        for insertion in self.insertions:
            readers = len(insertion.readers) + len(insertion.norms)
            lines.append(f"insert    centring of {insertion.value} for {readers} readers")
        lines += [f"leave     {norm}: {refusal.sentence}" for norm, refusal in self.refusals]
        return "\n".join(lines) or "nothing to do"


def _readers(rows: Any) -> tuple[ReaderRef, ...]:
    return tuple(ReaderRef(**row) for row in rows)
