"""Inputs that suit a model, its float64 runs on them, and its own runs in ONNX Runtime.

A run that would be thrown away is not begun if that can be known: a value is too large by its
shape, or the original's own runs in ONNX Runtime are so far apart that the distance from a float64
run would excuse any error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from onnxfold.check.criterion import SMALLEST_NORMAL, rms
from onnxfold.check.reference import (
    Array,
    Precision,
    ResourceLimitError,
    UnsupportedOperator,
    check_supported,
    is_wide_float,
    run,
)
from onnxfold.check.reference.kernel import check_size
from onnxfold.check.result import FAR
from onnxfold.check.runners import CannotRun, Feeds, OnnxRuntime, Outputs, why_not_onnxruntime
from onnxfold.errors import InvariantError, ModelError
from onnxfold.graph import ModelInfo
from onnxfold.graph.constants import FLOATS
from onnxfold.graph.dims import is_number
from onnxfold.inputs import FEWER_INDICES, IMAGE_SIDES, InputSpec, make_inputs
from onnxfold.model_io.load import Source
from onnxfold.shapes import infer


@dataclass(frozen=True, slots=True)
class OwnRuns:
    """The runs of one model, each made once for the same arrays."""

    original: Source
    engine: OnnxRuntime
    _known: list[tuple[Outputs, Outputs, Outputs]] = field(default_factory=list, repr=False)

    def of(self, feeds: Sequence[Outputs]) -> list[list[Outputs]]:
        """Return the outputs with optimizations, and without, per sample; raises CannotRun."""
        known = {id(feed) for feed, *_ in self._known}
        new = [feed for feed in feeds if id(feed) not in known]
        if new:
            plain, best = (self.engine.run(self.original, new, optimize=on) for on in (False, True))
            self._known.extend(zip(new, best, plain, strict=True))
        found = {id(feed): runs for feed, *runs in self._known}
        return [[found[id(feed)][way] for feed in feeds] for way in (0, 1)]

    def are_scattered(self, feeds: Sequence[Outputs]) -> bool:
        """Whether one of both runs must be FAR from any truth, in some sample of every output.

        By the triangle inequality: errors of at most FAR times the truth each, and so of FAR / (1 -
        FAR) times the run itself, make no larger distance between the runs than both together.
        """
        if why_not_onnxruntime(self.original.model) is not None:
            return False
        try:
            runs = list(zip(*self.of(feeds), strict=True))
        except CannotRun:  # a float64 run may show why, and `gather` reports it otherwise
            return False
        return all(any(_is_far(a[name], b[name]) for a, b in runs) for name in runs[0][0])


def _is_far(best: Array, plain: Array) -> bool:
    if best.shape != plain.shape or not is_wide_float(plain.dtype):
        return False
    a, b = best.astype(np.float64), plain.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    return rms(a - b) > 2 * max(FAR / (1 - FAR) * rms(b), SMALLEST_NORMAL)


# Largest tensor in float64 that the truth may need at once.
FLOAT64_LIMIT_BYTES = 2 << 30
# With more parameters than this, a float64 run takes minutes per sample.
FLOAT64_LIMIT_PARAMETERS = 3_000_000_000

Done = Callable[[int], None]


class ScatteredRuns(UnsupportedOperator):
    """The original's own runs on some inputs are so far apart that no float64 run would be used."""

    def __init__(self, feeds: Sequence[Outputs]):
        super().__init__(
            "runs of the original in ONNX Runtime, with and without optimizations, are so far "
            "apart that the distance from a float64 run would excuse any error"
        )
        self.sampled = Sampled([*feeds], None, str(self), scattered=True)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Inputs, and the truth for each of them, or None and the reason.

    single: why batches have one row, None if they have more. others: inputs with fewer indices, if
    the model does not run on the first, which then lack a truth. scattered: the model's own runs
    are too far apart for a truth.
    """

    feeds: list[Outputs]
    truths: list[Outputs] | None
    reason: str
    single: str | None = None
    others: tuple[list[Outputs], ...] = ()
    scattered: bool = False


def sample(
    model: ir.Model,
    spec: InputSpec,
    *,
    count: int,
    seed: int,
    limit_bytes: int,
    done: Done,
    rows: bool = False,
    own: OwnRuns | None = None,
) -> Sampled:
    """Make inputs and run the model on them in float64.

    Images of unknown size are tried in several sizes, because a model may accept only one; so are
    batches of one, the only size some exported models accept, and fewer indices if some are out of
    range. `rows`: add samples of constant, shifted and zero rows. `own`: skip the float64 run if
    its runs are far apart.
    """
    failed: list[Sampled] = []
    supported = True
    shapes: set[tuple[tuple[int, ...], ...]] = set()
    for single in (False, True):
        for side in IMAGE_SIDES:
            draw = partial(
                make_inputs,
                model,
                spec,
                count=count,
                seed=seed,
                image_side=side,
                single=single,
                rows=rows,
            )
            feeds = draw()
            shape = tuple(array.shape for array in feeds[0].values())
            if shape in shapes:
                break
            shapes.add(shape)
            try:
                feeds, truths = _inside(
                    draw, lambda feeds: _truths(model, feeds, limit_bytes, done, own)
                )
            except ResourceLimitError:
                raise
            except ScatteredRuns as error:
                return error.sampled
            except ModelError as error:
                others = tuple(draw(below=below) for below in FEWER_INDICES)
                failed.append(Sampled(feeds, None, str(error), others=others))
                supported = not isinstance(error, UnsupportedOperator)
            else:
                return Sampled(feeds, truths, "", failed[0].reason if single else None)
        if not supported:
            break
    return failed[0]


def _inside(
    draw: Callable[..., list[Outputs]], run_on: Callable[[list[Outputs]], list[Outputs]]
) -> tuple[list[Outputs], list[Outputs]]:
    """Return inputs and their outputs: the first draw unless it has indices out of range."""
    for below in (None, *FEWER_INDICES):
        feeds = draw(below=below)
        try:
            return feeds, run_on(feeds)
        except ModelError as error:
            if not isinstance(error.__cause__, IndexError) or below == FEWER_INDICES[-1]:
                raise
    raise InvariantError("no indices were tried")


def _truths(
    model: ir.Model,
    feeds: Sequence[Outputs],
    limit_bytes: int,
    done: Done,
    own: OwnRuns | None = None,
) -> list[Outputs]:
    """Return float64 outputs for each sample.

    Raises UnsupportedOperator if no float64 run is possible, ScatteredRuns if it would not be used,
    ModelError if one fails.
    """
    _check_weights(model, limit_bytes)
    check_supported(model)
    # An unknown size may be one that only the interpreter refuses, so it runs first.
    sized = _check_values(model, feeds[0], limit_bytes)
    if own is not None and sized and own.are_scattered(feeds):
        raise ScatteredRuns(feeds)

    def bounded(value: ir.Value, array: Array) -> Array:
        if array.nbytes > limit_bytes:
            raise _too_large(value)
        return array

    truths = []
    for number, inputs in enumerate(feeds):
        truths.append(run(model, inputs, precision=Precision.FLOAT64, observe=bounded))
        done(number + 1)
    return truths


def _check_weights(model: ir.Model, limit_bytes: int) -> None:
    sizes = [t.size for v in model.graph.initializers.values() if (t := v.const_value) is not None]
    if sum(sizes) > FLOAT64_LIMIT_PARAMETERS:
        raise UnsupportedOperator(f"{sum(sizes):,} parameters are too many for a float64 run")
    if 8 * max(sizes, default=0) > limit_bytes:
        raise UnsupportedOperator(
            f"a weight of {max(sizes):,} elements is too large for a float64 run"
        )


def _check_values(model: ir.Model, feeds: Feeds, limit_bytes: int) -> bool:
    """Whether the shapes of the inputs tell every size, and a session can do no harm.

    A Loop has any number of steps, and a quotient of integers may end the process.

    Raises UnsupportedOperator for a value that is too large, ResourceLimitError for one that no
    check is worth.
    """
    typed = model.clone()
    for value in typed.graph.inputs:
        if (given := feeds.get(str(value.name))) is not None:
            value.shape = ir.Shape(given.shape)
    try:
        info = infer(typed)
    except ModelError:  # a run shows it, and says where
        return False
    known = not any(node.op_type == "Loop" or _divides_integers(node) for node in info.nodes())
    for node in info.nodes():
        for value in (value for value in node.outputs if value.name):
            size = _elements(info, value)
            known = known and size is not None
            if size is None or size * _bytes(value) <= limit_bytes:
                continue
            if info.tensor(value) is not None:
                continue
            if not node.op_type.startswith("Conv"):  # as the kernels do
                check_size(node, size)
            raise _too_large(value)
    return known


def _divides_integers(node: ir.Node) -> bool:
    types = {value.dtype for value in node.inputs if value is not None}
    return node.op_type in ("Div", "Mod") and not types <= FLOATS


def _elements(info: ModelInfo, value: ir.Value) -> int | None:
    shape = info.shape(value)
    known = shape is not None and value.dtype is not None and all(map(is_number, shape))
    return prod(dim for dim in shape or () if isinstance(dim, int)) if known else None


def _bytes(value: ir.Value) -> int:
    """Return the bytes of each element in a float64 run."""
    if value.dtype is None or value.dtype in FLOATS:
        return 8
    return int(np.dtype(value.dtype.numpy()).itemsize)


def _too_large(value: ir.Value) -> UnsupportedOperator:
    return UnsupportedOperator(f"value {value.name!r} is too large for a float64 run")


def sample_given(
    model: ir.Model,
    feeds: Sequence[Outputs],
    *,
    limit_bytes: int,
    done: Done,
    own: OwnRuns | None = None,
) -> Sampled:
    """Run the model in float64 on the user's inputs."""
    try:
        return Sampled([*feeds], _truths(model, feeds, limit_bytes, done, own), "")
    except ResourceLimitError:
        raise
    except ScatteredRuns as error:
        return error.sampled
    except ModelError as error:
        return Sampled([*feeds], None, str(error))
