"""Seeded inputs that respect a model's dtypes, shapes, tables and masks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import UsageError
from onnxfold.graph import ModelInfo
from onnxfold.inputs.bound_sizes import BoundSizes, bind_dims, check_shapes, symbols_of
from onnxfold.inputs.roles import (
    MASK,
    IndexRange,
    arrivals,
    becomes_integer,
    convolved_channels,
    index_range,
    is_convolved,
    is_mask,
)
from onnxfold.inputs.spec import InputSpec
from onnxfold.operators.families.attention import Attention
from onnxfold.operators.families.rules import transfer_of
from onnxfold.operators.row import Family
from onnxfold.operators.table import row_of
from onnxfold.option_checks import check_count
from onnxfold.shapes import infer
from onnxfold.shapes.row_wise import width_of_rows

Array = npt.NDArray[Any]

_POSITION = re.compile(r"position|pos_ids", re.IGNORECASE)
_CACHE = re.compile(r"past|cache", re.IGNORECASE)
_USES_CACHE = re.compile(r"^use_(cache|past)", re.IGNORECASE)
# Side of an image and length of a waveform if the model leaves them open: 224 is a multiple of the
# patches of 14, 16 and 32 pixels and of windows of 7; wav2vec2 needs 400 samples for a frame. A
# convolved input with other than 1 or 3 channels is not an image, and smaller.
IMAGE_SIDES = (224, 384, 256, 336, 448, 512, 32, 64, 96, 128)
_SAMPLES, _FRAMES, _LATENT = 3200, 128, 32
_ROWS = 3  # also of an input of unknown rank
# The ranges of indices to try if some are out of range: 0 and 1, then 0 alone.
FEWER_INDICES = (2, 1)
# No input that a check could run has more elements; numpy cannot even count those of some.
_MOST_ELEMENTS = 2**28
# The hard sample: mean 10, deviation 5, so that a norm must subtract a large mean.
_HARD_MEAN, _HARD_DEVIATION = 10.0, 5.0
# Rows on which a norm, or its replacement, may err by far more than on others.
ROWS = ("constant", "shifted", "zero")
_CONSTANT, _SHIFT = 3.0, 1e3  # sums of threes are exact in any order


def make_inputs(
    model: ir.Model,
    spec: InputSpec,
    *,
    count: int,
    seed: int,
    image_side: int = IMAGE_SIDES[0],
    single: bool = False,
    below: int | None = None,
    rows: bool = False,
) -> list[dict[str, Array]]:
    """Draw `count` samples of inputs, the same for the same seed.

    Sizes vary between samples. Integers that index tables are in range, masks are ones with some
    trailing zeros in all rows but the first, floats are N(0, 1), and N(10, 5^2) in the last of
    several samples. A decoder with a branch for caches (optimum's `use_cache_branch`) uses it in
    every other sample, starting with the first, for one new token, as it was traced; in the others
    its caches are empty, so a mask is of the new tokens. Shapes and arrays of `spec` are used
    unchanged. `image_side`: for images whose sides the model leaves open. `single`: batches have
    one row. `below`: the upper bound of drawn integers, for those that index computed values.
    `rows`: add one sample for each kind of `ROWS`, with all rows of floats, along any axis, of this
    kind, in a batch of one; none is added without free float inputs. Raises UsageError, naming the
    input, if an input cannot be drawn.
    """
    check_count("seed", seed)
    inputs, given, shapes = _asked(model, spec)
    wave = any(_is_wave(model, v) for v in inputs)
    channels = {
        str(v.name): found for v in inputs if (found := convolved_channels(model, v)) is not None
    }
    caches = find_caches(model)
    samples = []
    wanted = rows and any(_is_free(model, v) for v in inputs if str(v.name) not in given)
    kinds = [None] * count + list(ROWS) * wanted
    for number, kind in enumerate(kinds):
        generator = np.random.default_rng([seed, number])
        cached = {
            name: bool(np.all(given[name])) if name in given else number % 2 == 0
            for name in map(str, (v.name for v in inputs))
            if _USES_CACHE.search(name)
        }
        sizes = BoundSizes(
            batch=_batch(number, generator, single=single or caches.single or kind is not None),
            length=int(generator.integers(5, 18)),
            past=max(int(generator.integers(1, 8)), caches.room) * all(cached.values()),
            image=image_side,
            samples=_SAMPLES if wave else None,
            frames=_FRAMES,
            latent=_LATENT,
            channels=channels,
            heads=caches.sizes,
            step=1 if any(cached.values()) else None,
        )
        bound = bind_dims(inputs, shapes, sizes)
        hard = number > 0 and number == count - 1
        samples.append(
            {
                str(v.name): given[str(v.name)]
                if str(v.name) in given
                else _draw(model, v, bound, generator, cached, hard=hard, below=below, kind=kind)
                for v in inputs
            }
        )
    return samples


def check_inputs(model: ir.Model, spec: InputSpec) -> None:
    """Raise UsageError or DataError, naming the input, if `spec` does not fit the model."""
    inputs, _, shapes = _asked(model, spec)
    check_shapes(inputs, shapes)


def _asked(
    model: ir.Model, spec: InputSpec
) -> tuple[list[ir.Value], dict[str, Array], dict[str, tuple[int, ...]]]:
    """Return the inputs of a sample, the arrays that are given for them, and the shapes."""
    known = {str(v.name): v for v in model.graph.inputs}
    given = _given_arrays(known, spec)
    inputs = [v for n, v in known.items() if not v.is_initializer() or n in spec.names()]
    shapes = {**spec.shapes, **{n: array.shape for n, array in given.items()}}
    for value in inputs:
        if value.shape is None and value.name not in shapes:
            width = width_of_rows(model, value)
            if width is not None:
                shapes[str(value.name)] = (_ROWS, width)
    return inputs, given, shapes


def _batch(number: int, generator: np.random.Generator, *, single: bool) -> int:
    if single:
        return 1
    return 2 if number == 0 else int(generator.integers(1, 4))


def _is_wave(model: ir.Model, value: ir.Value) -> bool:
    dims = symbols_of(value)
    floating = value.dtype is not None and value.dtype.is_floating_point()
    return bool(
        floating and dims and len(dims) in (2, 3) and isinstance(dims[-1], str)
    ) and is_convolved(model, value)


def _given_arrays(known: dict[str, ir.Value], spec: InputSpec) -> dict[str, Array]:
    for name in sorted(spec.names()):
        if name not in known:
            listed = ", ".join(repr(n) for n in known)
            raise UsageError(f"--inputs names {name!r}, but the model's inputs are {listed}")
    arrays = {}
    for name in spec.names_of_arrays():
        array = spec.load(name)
        dtype = _dtype(known[name])
        if array.dtype != dtype:
            if not np.can_cast(array.dtype, dtype, "same_kind"):
                path = spec.files.get(name)
                where, what = ("", "array") if path is None else (f"{path}: ", "file")
                raise UsageError(f"{where}input {name!r} is {dtype}, the {what} has {array.dtype}")
            array = array.astype(dtype)
        arrays[name] = array
    return arrays


def _dtype(value: ir.Value) -> np.dtype[Any]:
    if isinstance(value.type, ir.SequenceType):
        raise UsageError(
            f"input {value.name!r} is a sequence, and only tensors can be drawn or given: leave "
            "out the check (--check 0)"
        )
    if value.dtype is None or value.dtype is ir.DataType.STRING:
        kind = "no tensor type" if value.dtype is None else "strings"
        raise UsageError(
            f"input {value.name!r} has {kind}: give it with --inputs {value.name}:file.npy"
        )
    return np.dtype(value.dtype.numpy())


def _draw(
    model: ir.Model,
    value: ir.Value,
    shapes: dict[str, tuple[int, ...]],
    generator: np.random.Generator,
    cached: Mapping[str, bool],
    *,
    hard: bool,
    below: int | None,
    kind: str | None,
) -> Array:
    name, dtype = str(value.name), _dtype(value)
    if name not in shapes:
        raise UsageError(
            f"input {name!r} has no shape in the model: give it with --inputs {name}:..."
        )
    shape = shapes[name]
    if prod(shape) > _MOST_ELEMENTS:
        sizes = "x".join(map(str, shape))
        raise UsageError(
            f"input {name!r} has {sizes} elements, too many to draw: give a smaller shape with "
            f"--inputs {name}:..., or leave out the check (--check 0)"
        )
    if value.dtype is not None and value.dtype.is_floating_point():
        whole = below is not None and becomes_integer(model, value)
        if whole or index_range(model, value) is not None:  # tokens as floats, which Keras casts
            return _integers(model, value, shape, generator, below).astype(dtype)
        if MASK.search(name):
            return _mask(shape, generator).astype(dtype)
        x = generator.standard_normal(shape)
        if hard and not _CACHE.search(name):
            x = np.asarray(_HARD_MEAN + _HARD_DEVIATION * x)
        if kind is not None and not _CACHE.search(name):
            x = _rows_of(kind, x)
        return x.astype(dtype)
    if dtype.kind == "b":
        if name in cached:
            return np.full(shape, cached[name])
        if is_mask(model, value):
            return _mask(shape, generator)
        return np.asarray(generator.random(shape) < 0.5)  # a scalar stays an array of rank 0
    if dtype.kind not in "iu":
        raise UsageError(f"input {name!r} is {dtype}: give it with --inputs {name}:file.npy")
    return _integers(model, value, shape, generator, below).astype(dtype)


def _is_free(model: ir.Model, value: ir.Value) -> bool:
    """Whether an input accepts any floats: not an index, mask or cache."""
    name = str(value.name)
    if value.dtype is None or not value.dtype.is_floating_point() or _CACHE.search(name):
        return False
    return not MASK.search(name) and index_range(model, value) is None


def _rows_of(kind: str, x: Array) -> Array:
    """Return numbers in the shape of x whose rows are all of one kind."""
    return {
        "constant": np.full_like(x, _CONSTANT),
        "shifted": np.asarray(x + _SHIFT),
        "zero": np.zeros_like(x),
    }[kind]


def _integers(
    model: ir.Model,
    value: ir.Value,
    shape: tuple[int, ...],
    generator: np.random.Generator,
    below: int | None,
) -> Array:
    limits = index_range(model, value)
    if below is not None and (limits is not None or not is_mask(model, value)):
        limits = limits or IndexRange(0, below)
        limits = limits.meet(IndexRange(limits.low, limits.low + below))
    if _POSITION.search(str(value.name)):
        steps = np.broadcast_to(np.arange(shape[-1] if shape else 1), shape)
        low, high = (0, 2**31) if limits is None else (limits.low, limits.high)
        return low + steps % max(high - low, 1)
    if limits is not None:
        if limits.high <= limits.low:
            raise UsageError(
                f"input {value.name!r} indexes tables that no value suits: "
                f"give it with --inputs {value.name}:file.npy"
            )
        return generator.integers(limits.low, limits.high, shape)
    if is_mask(model, value):
        return _mask(shape, generator)
    return generator.integers(0, 10, shape)


def _mask(shape: tuple[int, ...], generator: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Return ones, with at most the last half of a row zero; the first row is all ones."""
    if not shape or not shape[-1]:
        return np.ones(shape, dtype=np.bool_)
    kept = generator.integers((shape[-1] + 1) // 2, shape[-1] + 1, shape[:1] if shape[1:] else ())
    kept = np.asarray(kept)
    if kept.ndim:
        kept[:1] = shape[-1]
        kept = kept.reshape(-1, *(1 for _ in shape[1:]))
    return np.broadcast_to(np.arange(shape[-1]) < kept, shape).copy()


@dataclass(frozen=True, slots=True)
class Caches:
    """Requirements of attention operators on inputs that they join to their keys and values.

    sizes: elements of a head, by input. room: the number of tokens for which sliding caches must
    have room; for a cache that is not full, ONNX Runtime returns uninitialized memory. single:
    whether only one sequence is possible, because its GroupQueryAttention accepts several tokens
    after a cache only for a batch of one.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    room: int = 0
    single: bool = False


def find_caches(model: ir.Model) -> Caches:
    """Return the requirements of attention operators on a model's inputs, after inference."""
    if not any(isinstance(transfer_of(node), Attention) for node in ModelInfo(model).nodes()):
        return Caches()
    view = infer(model.clone())
    sizes: dict[str, int] = {}
    room, single = 0, False
    for value in view.model.graph.inputs:
        for arrival in arrivals(view.model, value):
            node, keeper = arrival.node, transfer_of(arrival.node)
            if not isinstance(keeper, Attention) or arrival.index not in keeper.caches:
                continue
            size = keeper.cached_size(view, node)
            sizes |= {} if size is None else {str(value.name): size}
            if node.attributes.get_int("sliding_window_cache", 0):
                room = max(room, node.attributes.get_int("local_window_size", 0))
            single = single or row_of(node).family is Family.GROUP_QUERY_ATTENTION
    return Caches(sizes, room, single)
