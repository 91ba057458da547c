"""gamma and beta as operators accept them: vectors of exactly the normalized shape."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError
from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import HALVES, Array
from onnxfold.norms.site import AffinePart, NormSite
from onnxfold.operators.functions import Affine, Statistics
from onnxfold.operators.new_nodes import weight_value


@dataclass(frozen=True, slots=True)
class Operands:
    """gamma and beta as a call accepts them, or what must follow the call instead."""

    kind: Affine
    inputs: tuple[ir.Value, ...]
    initializers: tuple[ir.Value, ...]
    after: tuple[tuple[str, ir.Value], ...]  # operators for what the call cannot apply


class Parameters:
    """Operands for the norms of one model; ones and zeros are constants of each graph.

    In half precision each norm has its own: a session on a CPU casts a constant of several readers
    to float in every run.
    """

    def __init__(self, view: ModelInfo):
        self._view = view
        self._shared: dict[tuple[object, str, ir.DataType, tuple[int, ...]], ir.Value] = {}

    def is_known(self, part: AffinePart) -> bool:
        """Whether gamma or beta is a constant, or absent."""
        return not isinstance(part, ir.Value) or self._view.array(part) is not None

    def fits(self, part: AffinePart, dtype: ir.DataType | None) -> bool:
        """Whether gamma or beta keeps its numbers in the type of x, which operators require."""
        array = self._view.array(part) if isinstance(part, ir.Value) else part
        if isinstance(part, ir.Value) and array is None:
            return part.dtype == dtype
        if array is None or dtype is None or array.dtype == dtype.numpy():
            return True
        with np.errstate(all="ignore"):
            narrow = array.astype(dtype.numpy())
        return bool(np.array_equal(narrow.astype(array.dtype), array, equal_nan=True))

    def operands(
        self, site: NormSite, statistics: Statistics, axes: int, *, bare: bool = False
    ) -> Operands:
        """Reshape gamma and beta to the last axes, or apply them after the call.

        A norm without gamma gets ones and a LayerNorm without beta zeros: ONNX Runtime fuses Pow ..
        Div only with a Mul after it, and its transformers optimizer reads the B of every
        LayerNormalization. ``bare``: nothing fuses the norm, which needs no ones.
        """
        made: list[ir.Value] = []
        after: list[tuple[str, ir.Value]] = []
        gamma = self._vector(site, site.gamma, axes, "gamma", made)
        beta = self._vector(site, site.beta, axes, "beta", made)
        if gamma is None and site.gamma is not None:
            made.clear()
            beta = None
            after.append(("Mul", self.as_value(site, site.gamma, "gamma", made)))
        if beta is None and site.beta is not None:
            after.append(("Add", self.as_value(site, site.beta, "beta", made)))
        if gamma is None and bare:
            after += [("Add", part) for part in (beta,) if part is not None]
            return Operands(Affine.NONE, (), tuple(made), tuple(after))
        if gamma is None:
            gamma = self.ones(site, self.extent(site, axes))
            made.append(gamma)
        if beta is None and statistics is Statistics.LAYER:
            beta = self._filled(site, "zeros", self.extent(site, axes))
            made.append(beta)
        if beta is None:
            return Operands(Affine.SCALE, (gamma,), tuple(made), tuple(after))
        return Operands(Affine.AFFINE, (gamma, beta), tuple(made), tuple(after))

    def extent(self, site: NormSite, axes: int) -> tuple[int, ...]:
        """Return the sizes of the last axes, which a scale may reveal better than the input."""
        rank = self._view.rank(site.input) or 0
        sizes = {block.axis: block.size for block in site.fiber.blocks}
        return tuple(sizes.get(axis, 1) for axis in range(rank - axes, rank))

    def ones(self, site: NormSite, shape: tuple[int, ...]) -> ir.Value:
        """Return a scale of ones, one constant for all norms of a graph."""
        return self._filled(site, "ones", shape)

    def filled(self, site: NormSite, shape: tuple[int, ...]) -> ir.Value | None:
        """Return a gamma of one number in a shape, or None."""
        array = self._view.array(site.gamma) if isinstance(site.gamma, ir.Value) else site.gamma
        if array is None or array.size == 0 or np.any(array != array.flat[0]):
            return None
        dtype = (site.input.dtype or ir.DataType.FLOAT).numpy()
        return weight_value(f"{site.output.name}.gamma", np.full(shape, array.flat[0], dtype))

    def _filled(self, site: NormSite, role: str, shape: tuple[int, ...]) -> ir.Value:
        dtype = site.input.dtype or ir.DataType.FLOAT
        producer = site.output.producer()
        key = (producer and producer.graph, role, dtype, shape)
        if key not in self._shared or dtype in HALVES:
            array = np.full(shape, 1 if role == "ones" else 0, dtype.numpy())
            self._shared[key] = weight_value(f"{role}.{'x'.join(map(str, shape))}", array)
        return self._shared[key]

    def _vector(
        self, site: NormSite, part: AffinePart, axes: int, role: str, made: list[ir.Value]
    ) -> ir.Value | None:
        """Return an affine part as a value of exactly the normalized shape, or None."""
        if part is None:
            return None
        shape = self.extent(site, axes)
        dtype = site.input.dtype
        if isinstance(part, ir.Value) and self._view.shape(part) == shape and part.dtype == dtype:
            return part
        array = part if isinstance(part, np.ndarray) else self._view.array(part)
        if array is None or dtype is None:
            return None
        if array.size and np.all(array == array.flat[0]):
            array = np.broadcast_to(array.flat[0], shape)
        elif array.size != int(np.prod(shape)) or _squeezed(array.shape) != _squeezed(shape):
            broadcast = None if site.affine_axis is not None else _broadcast(array, shape)
            if broadcast is None:
                return None
            array = broadcast
        name = f"{site.output.name}.{role}"
        made.append(
            weight_value(name, np.ascontiguousarray(array.reshape(shape).astype(dtype.numpy())))
        )
        return made[-1]

    def per_channel(
        self, site: NormSite, part: AffinePart, role: str, made: list[ir.Value]
    ) -> ir.Value:
        """Return gamma or beta with one element per channel, if one represents several."""
        array = self._view.array(part) if isinstance(part, ir.Value) else part
        if site.affine_repeat == 1 or array is None:
            return self.as_value(site, part, role, made)
        return self.as_value(site, np.repeat(array, site.affine_repeat), role, made)

    def as_value(
        self, site: NormSite, part: AffinePart, role: str, made: list[ir.Value]
    ) -> ir.Value:
        """Return gamma or beta as an operand of a Mul or Add; new nodes are added to ``made``."""
        dtype = site.output.dtype or site.input.dtype or ir.DataType.FLOAT
        array = self._view.array(part) if isinstance(part, ir.Value) else part
        if isinstance(part, ir.Value) and (array is None or part.dtype == dtype):
            return part
        if array is None:
            raise InvariantError(f"norm '{site.name}' has no {role}")
        made.append(weight_value(f"{site.output.name}.{role}", array.astype(dtype.numpy())))
        return made[-1]


def _broadcast(array: Array, shape: tuple[int, ...]) -> Array | None:
    """Return a part of some of the last axes as one of all of them, or None."""
    leading, own = array.shape[: -len(shape)], array.shape[-len(shape) :]
    aligned = (1,) * (len(shape) - len(own)) + own
    if any(dim != 1 for dim in leading):
        return None
    if any(dim not in (1, size) for dim, size in zip(aligned, shape, strict=True)):
        return None
    return np.broadcast_to(array.reshape(aligned), shape)


def _squeezed(shape: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    return tuple(dim for dim in shape if dim != 1)
