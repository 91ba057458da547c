"""All statistics of a model's norms, for a batch, a shard, or all data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfold.geometry.instrument import MeasuredNorm
from onnxfold.geometry.norm_statistics import NormStatistic
from onnxfold.geometry.quantities import SIDE_QUANTITIES, error_without_mean, vector_quantities
from onnxfold.graph import Dim
from onnxfold.inputs.data import Batch

Mask = npt.NDArray[np.bool_]
Sums = npt.NDArray[np.float64]
_ERROR = "error_without_mean"
_SIDES = ("before", "after")


@dataclass(frozen=True, slots=True)
class Totals:
    """The statistics of every norm by name, the rows of data, and the unmasked vectors.

    ``unmasked`` counts, for each norm, the vectors measured without knowing which are padding.
    """

    rows: int
    norms: tuple[dict[str, NormStatistic], ...]
    unmasked: tuple[int, ...]

    @staticmethod
    def none(norms: Sequence[MeasuredNorm]) -> "Totals":
        """Return the totals before the first row."""
        empty = tuple(
            {name: NormStatistic(name.split(".")[-1]) for name in _names(n)} for n in norms
        )
        return Totals(0, empty, (0,) * len(norms))

    def merged(self, other: "Totals") -> "Totals":
        """Return the totals of both, this one first."""
        return Totals(
            self.rows + other.rows,
            tuple(
                {name: one[name].merged(two[name]) for name in one}
                for one, two in zip(self.norms, other.norms, strict=True)
            ),
            tuple(a + b for a, b in zip(self.unmasked, other.unmasked, strict=True)),
        )

    def to_state(self) -> dict[str, Any]:
        """Return a lossless form for JSON."""
        norms = [{name: s.state() for name, s in norm.items()} for norm in self.norms]
        return {"rows": self.rows, "norms": norms, "unmasked": list(self.unmasked)}

    def report(self, norms: Sequence[MeasuredNorm]) -> list[dict[str, Any]]:
        """Return the report's entry for each norm."""
        return [
            {
                "name": norm.name,
                "kind": norm.kind,
                "size": norm.size,
                **{
                    side: {name: found[f"{side}.{name}"].to_json() for name in SIDE_QUANTITIES}
                    for side in _SIDES
                },
                _ERROR: found[_ERROR].to_json() if norm.subtracts_mean else None,
                "unmasked": unmasked,
            }
            for norm, found, unmasked in zip(norms, self.norms, self.unmasked, strict=True)
        ]

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> "Totals":
        """Return the totals of :meth:`to_state`."""
        norms = tuple(
            {name: NormStatistic.from_state(s) for name, s in norm.items()}
            for norm in state["norms"]
        )
        return Totals(state["rows"], norms, tuple(state["unmasked"]))


def _names(norm: MeasuredNorm) -> list[str]:
    names = [f"{side}.{quantity}" for side in _SIDES for quantity in SIDE_QUANTITIES]
    return [*names, _ERROR] if norm.subtracts_mean else names


@dataclass(frozen=True, slots=True)
class Tables:
    """Sums of one batch: each norm's tables before and after it, [vectors, 4], and their count.

    ``unmasked`` are the vectors of each norm whose padding is unknown.
    """

    rows: int
    norms: tuple[tuple[Sums, Sums], ...]
    unmasked: tuple[int, ...]

    @property
    def vectors(self) -> int:
        """The total number of vectors."""
        return sum(len(table) for pair in self.norms for table in pair)


def kept_tables(
    norms: Sequence[MeasuredNorm],
    outputs: Mapping[str, Sums],
    batch: Batch,
    mask_dims: tuple[Dim, ...],
) -> Tables:
    """Return the sums that a session computed for a batch, without the rows of padding."""
    pairs, unmasked = [], []
    for norm in norms:
        before, after = (outputs[name] for name in norm.outputs)
        kept = None
        if batch.mask is not None:
            kept = _laid_out(batch.mask, mask_dims, norm, before.shape[:-1])
        if kept is None:
            before, after = before.reshape(-1, 4), after.reshape(-1, 4)
        else:
            before, after = before[kept], after[kept]
        pairs.append((before, after))
        unmasked.append(len(before) if batch.mask is not None and kept is None else 0)
    return Tables(batch.rows, tuple(pairs), tuple(unmasked))


def of_tables(norms: Sequence[MeasuredNorm], batches: Sequence[Tables], seed: int) -> Totals:
    """Return the totals of some batches."""
    measured = []
    for number, norm in enumerate(norms):
        sides = [np.concatenate([b.norms[number][side] for b in batches]) for side in (0, 1)]
        found = {
            f"{side}.{name}": values
            for side, table in zip(_SIDES, sides, strict=True)
            for name, values in vector_quantities(table, norm.size, seed).items()
        }
        if norm.subtracts_mean:
            found[_ERROR] = error_without_mean(sides[0], norm)
        measured.append(
            {name: NormStatistic.of(name.split(".")[-1], array) for name, array in found.items()}
        )
    unmasked = tuple(sum(numbers) for numbers in zip(*(b.unmasked for b in batches), strict=True))
    return Totals(sum(b.rows for b in batches), tuple(measured), unmasked)


def _laid_out(
    mask: Mask, dims: tuple[Dim, ...], norm: MeasuredNorm, shape: tuple[int, ...]
) -> Mask | None:
    """Return the mask over the rows of a norm, or None if its layout is uncertain.

    Its axes are the rows' axes with the same symbols, otherwise the only ones of their sizes;
    otherwise its two axes together are the first axis.
    """
    batch, tokens = mask.shape
    by_symbol = [
        (i, j)
        for i in range(len(shape))
        for j in range(i + 1, len(shape))
        if len(dims) == 2 and (norm.row_dims[i], norm.row_dims[j]) == dims and None not in dims
    ]
    by_size = [
        (i, j)
        for i in range(len(shape))
        for j in range(i + 1, len(shape))
        if (shape[i], shape[j]) == (batch, tokens)
    ]
    for places in (by_symbol, by_size):
        if len(places) == 1 and places[0] in by_size:
            lying = np.ones(len(shape), dtype=np.int64)
            lying[list(places[0])] = batch, tokens
            return np.broadcast_to(mask.reshape(lying), shape)
    if not by_size and shape and shape[0] == batch * tokens:
        return np.broadcast_to(mask.reshape(-1, *(1 for _ in shape[1:])), shape)
    return None
