"""gamma and beta in the form that operators take: vectors of exactly the normalised shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import weight_value
from onnxfold.norms.site import NormSite
from onnxfold.operators.functions import Affine, Statistics, makes_ones
from onnxfold.options import Target

__all__ = ["AffinePart", "Operands", "Parameters"]

AffinePart = ir.Value | npt.NDArray[np.generic] | None


@dataclass(frozen=True, slots=True)
class Operands:
    """gamma and beta in the form that a call takes, or what must follow the call instead."""

    kind: Affine
    inputs: tuple[ir.Value, ...]
    initializers: tuple[ir.Value, ...]
    after: tuple[tuple[str, ir.Value], ...]  # operators that apply what the call cannot


class Parameters:
    """Makes the operands of the norms of one model; ones are one constant of each graph."""

    def __init__(self, view: ModelInfo, target: Target):
        self._view = view
        self._target = target
        self._ones: dict[tuple[object, ir.DataType, tuple[int, ...]], ir.Value] = {}

    def operands(self, site: NormSite, statistics: Statistics, axes: int) -> Operands:
        """Bring gamma and beta into the shape of the last axes, or apply them behind the call."""
        made: list[ir.Value] = []
        gamma = self._vector(site, site.gamma, axes, "gamma", made)
        beta = self._vector(site, site.beta, axes, "beta", made)
        dims = (self._view.shape(site.input) or ())[-axes:]
        untold = not all(isinstance(dim, int) for dim in dims)  # but for a scale that tells it
        if site.gamma is None:
            told = beta is None and not untold
            ones = self.ones(site, statistics, self.extent(site, axes), wanted=not told)
            gamma = ones[0] if ones else None
            made += ones
        if gamma is not None and beta is not None:
            return Operands(Affine.AFFINE, (gamma, beta), tuple(made), ())
        after: list[tuple[str, ir.Value]] = []
        if gamma is None and site.gamma is not None:
            made.clear()
            after.append(("Mul", self.as_value(site, site.gamma, "gamma", made)))
        if (beta is None and site.beta is not None) or (beta is not None and gamma is None):
            after.append(("Add", self.as_value(site, site.beta, "beta", made)))
        if gamma is not None and not any(op == "Mul" for op, _ in after):
            return Operands(Affine.SCALE, (gamma,), tuple(made), tuple(after))
        ones = self.ones(site, statistics, self.extent(site, axes))
        kind = Affine.SCALE if ones else Affine.NONE
        return Operands(kind, ones, (*made, *ones), tuple(after))

    def extent(self, site: NormSite, axes: int) -> tuple[int, ...]:
        """Return the sizes of the last axes, which a scale may tell better than the input."""
        rank = self._view.rank(site.input) or 0
        sizes = {block.axis: block.size for block in site.fiber.blocks}
        return tuple(sizes.get(axis, 1) for axis in range(rank - axes, rank))

    def ones(
        self,
        site: NormSite,
        statistics: Statistics,
        shape: tuple[int, ...],
        *,
        wanted: bool = False,
    ) -> tuple[ir.Value, ...]:
        """Return ones where they are wanted or the target has no operator without a scale.

        They are one constant for all norms of a graph; elsewhere there is none.
        """
        dtype = site.input.dtype or ir.DataType.FLOAT
        spelled = self._target is Target.ONNX and makes_ones(statistics, self._view.opset, dtype)
        contrib = self._target is Target.ORT and statistics is Statistics.RMS
        if not (wanted or spelled or contrib):
            return ()
        producer = site.output.producer()
        key = (producer and producer.graph, dtype, shape)
        if key not in self._ones:
            name = f"ones.{'x'.join(map(str, shape))}"
            self._ones[key] = weight_value(name, np.ones(shape, dtype.numpy()))
        return (self._ones[key],)

    def _vector(
        self, site: NormSite, part: AffinePart, axes: int, role: str, made: list[ir.Value]
    ) -> ir.Value | None:
        """Return an affine part as a value of exactly the normalised shape, or None."""
        if part is None:
            return None
        shape = self.extent(site, axes)
        dtype = site.input.dtype
        if isinstance(part, ir.Value) and self._view.shape(part) == shape and part.dtype == dtype:
            return part
        array = part if isinstance(part, np.ndarray) else self._view.array(part)
        if array is None or dtype is None:
            return None
        if array.size == 1:
            array = np.broadcast_to(array.reshape(()), shape)
        elif array.size != int(np.prod(shape)) or _squeezed(array.shape) != _squeezed(shape):
            return None
        name = f"{site.output.name}.{role}"
        made.append(
            weight_value(name, np.ascontiguousarray(array.reshape(shape).astype(dtype.numpy())))
        )
        return made[-1]

    def as_value(
        self, site: NormSite, part: AffinePart, role: str, made: list[ir.Value]
    ) -> ir.Value:
        """Return gamma or beta as an operand of a Mul or Add; what is new is added to ``made``."""
        if isinstance(part, ir.Value):
            return part
        if part is None:
            raise InvariantError(f"norm '{site.name}' has no {role}")
        dtype = (site.output.dtype or ir.DataType.FLOAT).numpy()
        made.append(weight_value(f"{site.output.name}.{role}", part.astype(dtype)))
        return made[-1]


def _squeezed(shape: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    return tuple(dim for dim in shape if dim != 1)
