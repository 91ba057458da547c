"""Plan: the frozen, printable decision; it can be written to JSON and read back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import repeat
from typing import Any, get_args, get_origin, get_type_hints

from onnxfold.passes.affine.plan import AffineFusion
from onnxfold.passes.centring.plan import CentringPlan
from onnxfold.passes.deferral.plan import DeferredNorm
from onnxfold.passes.scales.plan import ScaleFusion
from onnxfold.refusal import RefusalCode


@dataclass(frozen=True, slots=True)
class Plan(CentringPlan):
    """The changes by all passes: the plan of centering, and the moves into linear layers."""

    fusions: tuple[AffineFusion, ...] = ()
    scales: tuple[ScaleFusion, ...] = ()
    batch_norms: tuple[AffineFusion, ...] = ()
    deferred: tuple[DeferredNorm, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        moved = self.fusions or self.scales or self.batch_norms
        return not (self.folds or self.centrings or moved or self.deferred)

    @property
    def split_bytes(self) -> int:
        """The bytes of the weights that are stored twice."""
        centred = sum(weight.nbytes for weight in self.weights if weight.split)
        places = [place for fusion in self.fusions + self.batch_norms for place in fusion.places]
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
    def from_json(document: Mapping[str, Any]) -> "Plan":
        """Read what :meth:`to_json` wrote; raises KeyError or TypeError on other input."""
        refusals = [(row["output"], row) for row in document["refusals"]]
        plan: Plan = _read(Plan, {**document, "refusals": refusals})
        return plan

    def __str__(self) -> str:
        lines = [f"fuse      {fusion}" for fusion in self.batch_norms + self.fusions]
        lines += [f"absorb    {scale.name} into {scale.writer}" for scale in self.scales]
        lines += [f"fold      {fold.norm}" for fold in self.folds]
        lines += [f"drop      {fold.norm}" for fold in self.centrings]
        lines += [f"defer     {norm}" for norm in self.deferred]
        for weight in self.weights:
            count = len(weight.readers) + len(weight.norms)
            how = f"copy for {count} readers" if weight.split else "in place"
            lines.append(f"centre    {weight.value} along {weight.fiber}, {how}")
        for insertion in self.insertions:
            readers = len(insertion.readers) + len(insertion.norms)
            lines.append(f"insert    centering of {insertion.value} for {readers} readers")
        lines += [f"leave     {norm}: {refusal.sentence}" for norm, refusal in self.refusals]
        return "\n".join(lines) or "nothing to do"


def _read(kind: Any, document: Any) -> Any:
    """Return the value of a type whose fields are in ``document``."""
    inner = get_args(kind)
    if get_origin(kind) is tuple:
        return tuple(map(_read, repeat(inner[0]) if inner[-1] is Ellipsis else inner, document))
    if inner:  # X | None
        return None if document is None else _read(inner[0], document)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return RefusalCode(document) if kind is RefusalCode else document
    names = {each.name for each in fields(kind)}
    types = get_type_hints(kind).items()
    return kind(**{name: _read(of, document[name]) for name, of in types if name in names})
