"""Shapes that a model declares of its own results: contradicted, confirmed, or only claimed.

Declarations in ``value_info`` may be wrong. Shapes are therefore inferred once without them, from
the inputs alone. A contradiction is cleared, since runtimes only warn of it; a claim that goes
beyond inference is believed. Both appear in the report.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import onnx_ir as ir

from onnxfold.graph import ModelInfo, constant_tensor
from onnxfold.graph.dims import Dim, Shape, extent, is_number
from onnxfold.graph.sequences import behind_unbind
from onnxfold.graph.traversal import all_graphs, declared_shape
from onnxfold.shapes import infer
from onnxfold.shapes.inference import claimed_shape, fill_types, is_unnamed, merged
from onnxfold.shapes.missing_shapes import fill_shapes
from onnxfold.shapes.row_wise import assume_rows


@dataclass(frozen=True, slots=True)
class Claim:
    """A shape that a model declares of a value, and the poorer one that inference finds."""

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
        """Return how much is believed: a rank, otherwise how many numbers."""
        known = sum(isinstance(dim, int) for dim in self.inferred or ())
        return self.inferred is None, sum(isinstance(d, int) for d in self.claimed) - known

    def to_json(self) -> dict[str, Any]:
        """Return the same as a dictionary; an unknown size is null."""
        inferred = None if self.inferred is None else list(self.inferred)
        return {"value": self.value, "claimed": list(self.claimed), "inferred": inferred}


@dataclass(frozen=True, slots=True)
class Checked:
    """A copy of a model with the types and shapes that can be known, and the model's claims.

    ``claims`` are the unverified shapes, the most informative first, after the false ones.
    """

    model: ir.Model
    claims: tuple[Claim, ...]


def check_claims(model: ir.Model) -> Checked:
    """Infer types and shapes from the inputs alone, and compare them with the declared ones.

    A claim is a shape with a rank or a number that only the model provides; declarations of
    constants are ignored, because a constant has a shape. A shape that contradicts inference is
    cleared.
    """
    copy = model.clone()
    for value in _constants(copy):
        tensor = constant_tensor(value)
        value.shape = None if tensor is None else ir.Shape(tensor.shape.numpy())
    misread = behind_unbind(copy)
    results = [v for graph in all_graphs(copy) for v in _results(graph) if v not in misread]
    declared = {value: value.shape for value in results}
    told = {value: claimed_shape(value) for value in results}
    for value in results:
        value.shape = None
    view = ModelInfo(copy)
    assume_rows(view, told)
    fill_types(copy)
    fill_shapes(view)
    for value in _without_shape(told):
        told[value] = declared[value] = None
    found = dict(_claims(told))
    untrue = {value: claim for value, claim in found.items() if claim.contradicted}
    for value in untrue:
        told[value] = declared[value] = None
    further = (claim for value, claim in found.items() if value not in untrue)
    believed = sorted(further, key=lambda claim: claim.weight, reverse=True)
    claims = (*untrue.values(), *believed)
    if claims and any(map(_is_open, told.items())):
        for value, shape in declared.items():
            value.shape = shape
        infer(copy)  # again, because a claim may determine other values
    else:
        inputs = {dim for value in copy.graph.inputs for dim in declared_shape(value) or ()}
        _name(told, {dim: dim for dim in inputs})
    return Checked(copy, claims)


def _without_shape(told: Mapping[ir.Value, Shape | None]) -> list[ir.Value]:
    """Return values declared as scalars that are not, which Paddle writes for unknown shapes.

    ONNX Runtime takes them with a warning.
    """
    return [value for value, shape in told.items() if shape == () and declared_shape(value)]


def _is_open(told: tuple[ir.Value, Shape | None]) -> bool:
    """Whether some size of a value is neither declared nor inferred."""
    value, shape = told
    found = declared_shape(value)
    return (shape is None or None in shape) and (found is None or not all(map(is_number, found)))


def _name(told: Mapping[ir.Value, Shape | None], names: dict[Dim, Dim]) -> None:
    """Replace made-up symbols by ``names``, and by names that the model declares."""
    found = {value: declared_shape(value) for value in told}
    for value, shape in told.items():
        for made_up, name in zip(found[value] or (), shape or (), strict=False):
            if made_up is not None and is_unnamed(made_up) and isinstance(name, str):
                names.setdefault(made_up, name)
    renamed = cache(partial(_renamed, names=names))
    for value, shape in told.items():
        inferred = found[value]
        named = None if inferred is None else tuple(map(renamed, inferred))
        known = named if shape is None else merged(shape, named)
        if known is not None and known != inferred:
            value.shape = ir.Shape(known)


def _renamed(dim: Dim, names: Mapping[Dim, Dim]) -> Dim:
    """Return a size with other names for it, or for its factors."""
    whole = extent([dim]) if isinstance(dim, str) else None
    if whole is None:
        return names.get(dim, dim)
    again = extent([whole.factor, *(names.get(symbol, symbol) for symbol in whole.symbols)])
    return (None if again is None else again.dim) or dim


def size_names(view: ModelInfo) -> dict[str, Shape]:
    """Return the names of sizes by value; None for any other size."""
    values = (value for graph in view.graphs for value in _results(graph))
    return {
        str(value.name): tuple(
            dim if isinstance(dim, str) and not is_unnamed(dim) else None for dim in shape
        )
        for value in values
        if (shape := declared_shape(value)) is not None
    }


def name_sizes(view: ModelInfo, known: Mapping[str, Shape]) -> None:
    """Replace made-up symbols by names that values had in another version."""
    values = [value for graph in view.graphs for value in _results(graph)]
    ranks = {value: len(declared_shape(value) or ()) for value in values}
    told: dict[ir.Value, Shape | None] = dict.fromkeys(values)
    for value in values:
        names = known.get(str(value.name), ())
        if len(names) == ranks[value] > 0:
            told[value] = names
    _name(told, {})
    for value in values:
        view.forget_shape(value)


def _claims(told: Mapping[ir.Value, Shape | None]) -> Iterator[tuple[ir.Value, Claim]]:
    for value, shape in told.items():
        found = declared_shape(value)
        if shape is not None and _is_more(shape, found):
            yield value, Claim(str(value.name), shape, found)


def _results(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph:
        if node.op_type != "Constant":
            yield from node.outputs


def _constants(model: ir.Model) -> Iterator[ir.Value]:
    for graph in all_graphs(model):
        yield from (node.outputs[0] for node in graph if node.op_type == "Constant")


def _is_more(claimed: Shape, inferred: Shape | None) -> bool:
    """Whether the claim has a rank or a number that inference lacks, or a different one."""
    if inferred is None or len(inferred) != len(claimed):
        return True
    return any(isinstance(a, int) and a != b for a, b in zip(claimed, inferred, strict=True))
