"""Shapes that a model declares of its own results: contradicted, confirmed, or only claimed.

Nothing makes ``value_info`` true.  So shapes are inferred once without it, from the inputs alone.
What contradicts it is refused; what goes further than it is believed, and named in the report.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxfold.errors import ModelError
from onnxfold.graph import ModelInfo
from onnxfold.graph.dims import Shape
from onnxfold.graph.sequences import behind_unbind
from onnxfold.graph.traversal import all_graphs, declared_shape
from onnxfold.shapes.inference import fill_types
from onnxfold.shapes.missing_shapes import fill_shapes


@dataclass(frozen=True, slots=True)
class Claim:
    """A shape that a model declares of a value, and what inference knows of it: less."""

    value: str
    claimed: Shape
    inferred: Shape | None

    @property
    def contradicted(self) -> bool:
        """Whether ranks differ, or two numbers."""
        if self.inferred is None:
            return False
        if len(self.inferred) != len(self.claimed):
            return True
        return any(
            isinstance(a, int) and isinstance(b, int) and a != b
            for a, b in zip(self.claimed, self.inferred, strict=True)
        )

    @property
    def weight(self) -> tuple[bool, int]:
        """How much is believed: a rank, or else how many numbers."""
        known = sum(isinstance(dim, int) for dim in self.inferred or ())
        return self.inferred is None, sum(isinstance(d, int) for d in self.claimed) - known

    def to_json(self) -> dict[str, Any]:
        """Return the same as a dictionary; a size that is unknown is null."""
        inferred = None if self.inferred is None else list(self.inferred)
        return {"value": self.value, "claimed": list(self.claimed), "inferred": inferred}


def unconfirmed_claims(model: ir.Model) -> tuple[Claim, ...]:
    """Return the shapes of results in which the model claims a rank, or a number, by itself.

    Raises ModelError, naming the value, where a shape contradicts what inference finds.
    """
    clone = model.clone()
    misread = behind_unbind(model)
    claimed = [
        (own, shape)
        for declared, graph in zip(all_graphs(model), all_graphs(clone), strict=True)
        for value, own in zip(_results(declared), _results(graph), strict=True)
        if value not in misread and (shape := declared_shape(value)) is not None
    ]
    if not claimed:
        return ()
    for own, _ in claimed:
        own.shape = None
    fill_types(clone)
    fill_shapes(ModelInfo(clone))
    claims = [
        Claim(str(own.name), shape, declared_shape(own))
        for own, shape in claimed
        if _is_more(shape, declared_shape(own))
    ]
    for claim in claims:
        if claim.contradicted:
            raise ModelError(
                f"value '{claim.value}' is declared to be {_shown(claim.claimed)}, but its "
                f"operators make it {_shown(claim.inferred)}; correct the shape, or delete it "
                "(`del model.graph.value_info[:]` for all)"
            )
    return tuple(sorted(claims, key=lambda claim: claim.weight, reverse=True))


def _results(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph:
        if node.op_type != "Constant":
            yield from node.outputs


def _is_more(claimed: Shape, inferred: Shape | None) -> bool:
    """Whether the claim has a rank or a number that inference lacks, or another one."""
    if inferred is None or len(inferred) != len(claimed):
        return True
    return any(isinstance(a, int) and a != b for a, b in zip(claimed, inferred, strict=True))


def _shown(shape: Shape | None) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape or ()) + "]"
