"""Runs of a region on random inputs of several sizes and magnitudes, several times."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from math import prod

import numpy as np
import onnx_ir as ir

from onnxfold.errors import OnnxfoldError
from onnxfold.graph import Fiber
from onnxfold.proof.cone import Unprovable
from onnxfold.proof.coverage import READ_NO_NUMBERS, lengths_read
from onnxfold.proof.leaf import drawn_pair
from onnxfold.proof.region import MOST_ELEMENTS, Pair, Region
from onnxfold.proof.sizes import SAMPLINGS, Drawn, Sizes

ERRORS = (OnnxfoldError, Unprovable, ArithmeticError, LookupError, ValueError)
LIKE_FIRST = 4
_OFTEN = 16  # with two positions each, drawn only once in 2^16 times
FEW = 256
_MORE = 40
_MANY = 1 << 14  # from this many elements on, one draw per magnitude is enough
_MOST_CHOICES = 16
_MOST_INDEX = 3
_SCALES = (2.0**-10, 2.0**5)


class Drawing:
    """Random values of the leaves of a region, for one choice of sizes."""

    def __init__(self, region: Region, sizes: Sizes):
        self.region, self.sizes = region, sizes
        # Integers may be indices, so none exceeds the smallest axis that they may index.
        shapes = [sizes.of(leaf.shape) for leaf in region.leaves]
        lengths = (n for shape in shapes for n in shape if n >= region.shortest)
        self._most = min((_MOST_INDEX, *lengths))
        both = zip(region.leaves, shapes, strict=True)
        self._too_large = any(prod(shape) > MOST_ELEMENTS for leaf, shape in both if leaf.random)
        self._leaves = [leaf.of(sizes) for leaf in region.leaves]
        self._counts = lengths_read(region.nodes)
        # The values whose numbers, and not only shapes, a node reads.
        readers = (node for node in region.nodes if node.op_type not in READ_NO_NUMBERS)
        self._read = {*region.pair, *(value for node in readers for value in node.inputs)}

    def draw(
        self, rng: np.random.Generator, scale: float
    ) -> tuple[dict[ir.Value, Drawn], dict[ir.Value, Drawn]]:
        """Return values in both models.

        Raises Unprovable if one value would have to satisfy two relations at once.
        """
        if self._too_large:
            raise Unprovable("these sizes make tensors too large to draw")
        old: dict[ir.Value, Drawn] = {}
        new: dict[ir.Value, Drawn] = {}
        for leaf in self._leaves:
            try:
                if leaf.random and leaf.u not in self._read and leaf.v not in self._read:
                    first = second = np.broadcast_to(0.0, self.sizes.of(leaf.shape))
                else:
                    least = int(leaf.u in self._counts or leaf.v in self._counts)
                    among = range(least, least + self._most)
                    first, second = drawn_pair(leaf, self.sizes, rng, scale, old, new, among)
            except ArithmeticError as error:
                raise Unprovable(f"reads a value twice: {error}") from error
            if leaf.u is not None:
                old[leaf.u] = np.asarray(first)  # numpy returns scalars for arrays without axes
            if leaf.v is not None:
                new[leaf.v] = np.asarray(second)
        return old, new

    def outputs(self, rng: np.random.Generator, scale: float) -> Pair:
        """Return the outputs for such values; raises Unprovable as `Region.outputs` does too."""
        return self.region.outputs(*self.draw(rng, scale))


@dataclass(frozen=True, slots=True)
class Draws:
    """Outputs of a region on random inputs for one choice of sizes."""

    drawing: Drawing
    pairs: list[Pair]

    @property
    def sizes(self) -> Sizes:
        """The sizes of its values."""
        return self.drawing.sizes


def samples(
    region: Region,
    fibers: tuple[Fiber, ...] = (),
    *,
    whole: bool = False,
    at_first: int = LIKE_FIRST,
) -> Iterator[Draws]:
    """Yield the outputs of several draws, for two choices of the symbolic sizes; the first are few.

    A third choice, if it fits, exceeds all positions that the region may count. ``whole``: on
    tensors of full size, if smaller ones do not fit. Raises Unprovable if the region cannot be
    computed for any.
    """
    single = region.of_single_rows()
    region = region if single is None or _runs(region) else single
    symbolic = bool(region.symbols)
    wanted, problem = 1 + symbolic, "no sizes fit"
    for number, numbers in enumerate((*SAMPLINGS, ()) if symbolic else SAMPLINGS[:1]):
        if not wanted:
            break
        rng, sizes = np.random.default_rng(number), region.sizes(numbers, fibers)
        try:
            first = _first(region, sizes, rng, at_first)
        except ERRORS as error:
            problem = str(error)
            sizes_of_the_model = region.sizes(numbers, whole=True)
            if not sizes.reduced or not (whole or region.is_quick(sizes_of_the_model)):
                continue
            try:
                first = _first(region, sizes_of_the_model, rng, at_first)
            except ERRORS:
                continue
        wanted -= 1
        yield from _with_more(first, rng, at_first)
        at_first = 1  # the points of a line are known
    if wanted == 1 + symbolic:
        yield from _with_more(_of_known_sizes(region, problem), rng, at_first)
    if symbolic and region.far:
        yield from _far(region, fibers)


def _runs(region: Region) -> bool:
    """Whether the region runs with drawn integers as positions along axes longer than one."""
    try:
        _first(region, region.sizes(SAMPLINGS[0]), np.random.default_rng(0), _OFTEN)
    except ERRORS:
        return False
    return True


def _of_known_sizes(region: Region, problem: str) -> Draws:
    """Return draws in which symbols equal sizes of other axes, as a product may require."""
    choices = product(sorted({1, *region.dims}), repeat=len(region.symbols))
    for numbers in islice(choices, _MOST_CHOICES if region.symbols else 0):
        rng, forced = np.random.default_rng(0), dict(zip(region.symbols, numbers, strict=True))
        with suppress(*ERRORS):
            return _first(region, region.sizes(SAMPLINGS[0], forced=forced), rng, LIKE_FIRST)
    raise Unprovable(problem)


def _far(region: Region, fibers: tuple[Fiber, ...]) -> list[Draws]:
    """Return draws in which symbolic axes extend beyond all possible positions along them.

    All do, or one at a time; none if such sizes do not fit the region, or cannot be drawn.
    """
    for choices in region.far_sizes(fibers):
        found: list[Draws] = []
        for sizes in choices:
            with suppress(*ERRORS):  # these sizes do not fit one another
                found.append(_first(region, sizes, np.random.default_rng(0), 2))
        if found:
            return found
    return []


def _first(region: Region, sizes: Sizes, rng: np.random.Generator, count: int) -> Draws:
    drawing = Drawing(region, sizes)
    return Draws(drawing, [drawing.outputs(rng, 1.0) for _ in range(count)])


def _with_more(first: Draws, rng: np.random.Generator, at_first: int) -> Iterator[Draws]:
    yield first
    # A few elements are drawn more often, because each may be cut off by a Relu, or a mask.
    size = first.pairs[0][1].size
    more = min(_MORE, FEW // max(1, size)) + (size < _MANY) * (LIKE_FIRST - at_first)
    scales = (*_SCALES, *[1.0] * more)
    yield Draws(first.drawing, [first.drawing.outputs(rng, scale) for scale in scales])
