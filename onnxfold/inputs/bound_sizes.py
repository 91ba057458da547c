"""Sizes for the symbolic dimensions of a model's inputs, equal wherever a symbol occurs."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxfold.errors import UsageError
from onnxfold.inputs.roles import MASK

_BATCH = re.compile(r"batch|^b(s|sz)?$|^n$", re.IGNORECASE)
_PAST = re.compile(r"past|cache|kv", re.IGNORECASE)
_TOTAL = re.compile(r"total", re.IGNORECASE)
_ALONG_TOKENS = re.compile(r"mask|position|pos_ids|index|past|cache", re.IGNORECASE)

Dim = int | str


@dataclass(frozen=True, slots=True)
class BoundSizes:
    """Default sizes.

    They are for batches, sequences and other lengths, caches, the sides of images, waveforms and
    frames; samples is None for a model that does not convolve float sequences. channels: of the
    convolved inputs, by name. heads: elements of a head in caches, by name. step: new tokens in
    addition to caches, None for as many as a length.
    """

    batch: int
    length: int
    past: int
    image: int
    samples: int | None
    frames: int
    latent: int
    channels: Mapping[str, int]
    heads: Mapping[str, int]
    step: int | None = None


def symbols_of(value: ir.Value) -> tuple[Dim, ...] | None:
    """Return the dims of an input, each a number or a symbol; None if its rank is unknown.

    Unnamed dims are named by place: those on axis 0 share one name over all inputs (the batch),
    those on axis 1 of tensors of rank 2 another (the sequence). Negative sizes are unknown too.
    """
    if value.shape is None:
        return None
    dims: list[Dim] = []
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, int) and dim >= 0:
            dims.append(dim)
        elif not isinstance(dim, int) and dim.value:
            dims.append(dim.value)
        elif axis == 0 and len(value.shape) > 1:
            dims.append("?batch")
        elif axis == 1 and len(value.shape) == 2 and _is_integer(value):
            dims.append("?sequence")
        else:
            dims.append(f"?{value.name}.{axis}")
    return tuple(dims)


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


def bind_dims(
    inputs: Iterable[ir.Value], given: Mapping[str, tuple[int, ...]], sizes: BoundSizes
) -> dict[str, tuple[int, ...]]:
    """Return a shape for every input that has one, consistent over all inputs.

    `given` shapes bind their symbols, also through expressions such as `past + sequence`. Raises
    UsageError, naming the input, if given shapes contradict the model or each other.
    """
    values = {str(v.name): v for v in inputs}
    shapes = _shapes(values.values())
    bound = _bind_given(shapes, given)
    fixed = frozenset(bound)
    atoms, pasts = _atoms(shapes), _pasts(shapes)
    sizes = _cached_like_given(shapes, given, pasts, _like_given(shapes, given, sizes))
    present, step = _present(shapes), _told_step(shapes, pasts) or sizes.step
    if isinstance(present, str) and present in atoms and step is not None:
        bound.setdefault(present, step)
    inner = {d for dims in shapes.values() for d in dims[1:]}
    batched = any(len(dims) > 1 and isinstance(dims[0], str) for dims in shapes.values())
    for name, dims in shapes.items():
        # A vector next to batches has one number for each of them, as the steps of a diffusion do.
        is_batch = len(dims) > 1 or (batched and not _ALONG_TOKENS.search(name))
        for axis, dim in enumerate(dims):
            if isinstance(dim, str) and dim in atoms and dim not in bound:
                first = axis == 0 and is_batch and dim not in inner
                bound[dim] = _default(values[name], axis, dim, sizes, pasts, batch=first)
    for symbol in _free_symbols(shapes) - set(bound):
        other = sizes.past if _PAST.search(symbol) else sizes.length
        bound[symbol] = sizes.batch if _BATCH.search(symbol) else other
    _make_totals(shapes, bound, fixed, sizes.heads)
    return {
        name: tuple(d if isinstance(d, int) else _evaluate(name, d, bound, atoms) for d in dims)
        for name, dims in shapes.items()
    } | {name: shape for name, shape in given.items() if name not in shapes}


def check_shapes(inputs: Iterable[ir.Value], given: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError, naming the input, if shapes contradict the model or each other."""
    _bind_given(_shapes(inputs), given)


def _shapes(inputs: Iterable[ir.Value]) -> dict[str, tuple[Dim, ...]]:
    """Return the dims of the inputs that have a shape.

    Optimum before 2.0 names the cached length of an encoder as the encoder's length with `_out`.
    """
    shapes = {str(v.name): dims for v in inputs if (dims := symbols_of(v)) is not None}
    known = {dim for dims in shapes.values() for dim in dims}
    names = {f"{dim}_out": dim for dim in known}
    caches = {name: dims for name, dims in shapes.items() if _PAST.search(name)}
    return shapes | {name: tuple(names.get(str(d), d) for d in caches[name]) for name in caches}


def _expression(dim: str) -> frozenset[str]:
    """Return the symbols of an expression; nothing for a plain name or what cannot be parsed."""
    if dim.isidentifier():
        return frozenset()  # without sympy, whose import takes as long as a run of a small model
    try:
        symbols = ir.SymbolicDim(dim).free_symbols()
    except ValueError:
        return frozenset()
    return frozenset() if symbols == {dim} else symbols


def _plain(shapes: Mapping[str, tuple[Dim, ...]]) -> set[str]:
    dims = (d for shape in shapes.values() for d in shape if isinstance(d, str))
    return {d for d in dims if not _expression(d)}


def _atoms(shapes: Mapping[str, tuple[Dim, ...]]) -> set[str]:
    """Return the dims to draw: names, and expressions of unknown names, such as `batch-size`."""
    plain = _plain(shapes)
    dims = {d for shape in shapes.values() for d in shape if isinstance(d, str)}
    return plain | {d for d in dims - plain if not _expression(d) & plain}


def _pasts(shapes: Mapping[str, tuple[Dim, ...]]) -> set[str]:
    """Return dims named past and cache lengths: dims after the batch that only caches have."""
    caches = {name for name, dims in shapes.items() if _PAST.search(name) and len(dims) >= 4}
    dims = {d for dims in shapes.values() for d in dims if isinstance(d, str)}
    named = {d for d in dims if _PAST.search(d) and not _TOTAL.search(d)}
    lengths = {d for name in caches for d in shapes[name][1:] if isinstance(d, str)}
    return named | (lengths - {d for name in shapes.keys() - caches for d in shapes[name]})


def _told_step(shapes: Mapping[str, tuple[Dim, ...]], pasts: set[str]) -> int | None:
    """Return k of a mask over `past + k` tokens, as optimum up to 1.20 names them, with k 1."""
    for name, dims in shapes.items():
        last = dims[-1] if dims and MASK.search(name) else None
        symbols = _expression(last) if isinstance(last, str) else frozenset()
        if len(symbols) == 1 and symbols <= pasts:
            (past,) = symbols
            none, one = (ir.SymbolicDim(str(last)).evaluate({past: n}) for n in (0, 1))
            if isinstance(none, int) and none > 0 and one == none + 1:
                return none
    return None


def _free_symbols(shapes: Mapping[str, tuple[Dim, ...]]) -> set[str]:
    atoms = _atoms(shapes)
    dims = (d for shape in shapes.values() for d in shape if isinstance(d, str))
    return {symbol for d in dims if d not in atoms for symbol in _expression(d)}


def _bind_given(
    shapes: Mapping[str, tuple[Dim, ...]], given: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    bound: dict[str, int] = {}
    owner: dict[str, str] = {}
    later: list[tuple[str, str, int]] = []
    atoms = _atoms(shapes)
    for name, sizes in given.items():
        dims = shapes.get(name)
        if dims is None:
            continue
        if len(dims) != len(sizes):
            raise UsageError(f"input {name!r} has rank {len(dims)} {_show(dims)}, not {len(sizes)}")
        for dim, size in zip(dims, sizes, strict=True):
            if isinstance(dim, int):
                if dim != size:
                    raise UsageError(f"input {name!r} is {_show(dims)}, which {size} does not fit")
            elif dim not in atoms:
                later.append((name, dim, size))
            elif bound.setdefault(dim, size) != size:
                raise UsageError(
                    f"inputs {owner[dim]!r} and {name!r} share the dimension {dim!r} but are given "
                    f"{bound[dim]} and {size} for it"
                )
            else:
                owner[dim] = name
    for name, dim, size in later:
        _solve(name, dim, size, bound)
    return bound


def _solve(name: str, dim: str, size: int, bound: dict[str, int]) -> None:
    """Bind the one unknown symbol of an expression so that the expression has the given size."""
    unknown = sorted(_expression(dim) - set(bound))
    if len(unknown) == 1:
        for candidate in range(size + 1):
            if ir.SymbolicDim(dim).evaluate({**bound, unknown[0]: candidate}) == size:
                bound[unknown[0]] = candidate
                return
    elif not unknown and ir.SymbolicDim(dim).evaluate(bound) == size:
        return
    elif len(unknown) > 1:
        raise UsageError(
            f"input {name!r} has the dimension {dim!r}: give with --inputs the shapes of inputs "
            f"that tell {' and '.join(repr(u) for u in unknown)}"
        )
    raise UsageError(f"input {name!r} is given {size} for its dimension {dim!r}, which is not so")


def _like_given(
    shapes: Mapping[str, tuple[Dim, ...]], given: Mapping[str, tuple[int, ...]], sizes: BoundSizes
) -> BoundSizes:
    """Use the batch and length of the first given matrix for inputs whose dims have other names."""
    for name, shape in given.items():
        dims = shapes.get(name, ())
        if len(dims) == 2 and isinstance(dims[0], str):
            sizes = replace(sizes, batch=shape[0])
        if len(dims) == 2 and isinstance(dims[1], str):
            return replace(sizes, length=shape[1])
    return sizes


def _cached_like_given(
    shapes: Mapping[str, tuple[Dim, ...]],
    given: Mapping[str, tuple[int, ...]],
    pasts: set[str],
    sizes: BoundSizes,
) -> BoundSizes:
    """Give every cache as many tokens as the first given one.

    Exports name each length separately.
    """
    for name, shape in given.items():
        for axis, dim in enumerate(shapes.get(name, ())):
            if dim in pasts and (name not in sizes.heads or axis == len(shape) - 2):
                return replace(sizes, past=shape[axis])
    return sizes


def _default(
    value: ir.Value, axis: int, dim: str, sizes: BoundSizes, pasts: set[str], *, batch: bool
) -> int:
    shape = tuple(value.shape) if value.shape is not None else ()
    floating = value.dtype is not None and value.dtype.is_floating_point()
    if batch or _BATCH.search(dim):
        return sizes.batch
    name = str(value.name)
    if name in sizes.heads and axis >= len(shape) - 2:
        return sizes.heads[name] if axis == len(shape) - 1 else sizes.past
    if dim in pasts:
        return sizes.past
    channels = sizes.channels.get(name)
    last = _channels_last(shape, channels) if floating else None
    if last is not None:
        return sizes.image if last in (1, 3) else sizes.latent
    if channels is not None and axis == 1:
        return channels
    if floating and len(shape) == 4 and axis >= 2 and (shape[1] in (1, 3) or channels is not None):
        return sizes.image if (channels or shape[1]) in (1, 3) else sizes.latent
    if floating and sizes.samples is not None and axis == len(shape) - 1:
        return sizes.samples if len(shape) == 2 or shape[1] == 1 else sizes.frames
    return sizes.length


def _channels_last(shape: tuple[object, ...], channels: int | None) -> int | None:
    """Return the channels of images that have them last, as TensorFlow's; None for others."""
    if len(shape) != 4 or isinstance(shape[1], int):
        return None
    last = shape[3]
    if not isinstance(last, int):
        return None
    suits = last in (1, 3) if channels is None else last == channels
    return last if suits else None


def _make_totals(
    shapes: Mapping[str, tuple[Dim, ...]],
    bound: dict[str, int],
    fixed: frozenset[str],
    heads: Collection[str],
) -> None:
    """Give a mask over past and present tokens their total length.

    It is a dim named total, or the last dim of a mask if no other input has it, in a model with a
    past dim.
    """
    past, present = _past(shapes, bound, heads), _present(shapes)
    now = present if isinstance(present, int) else bound.get(str(present))
    if past is None or now is None:
        return
    for name, dims in shapes.items():
        last = dims[-1] if dims else None
        if not isinstance(last, str) or last not in bound or last in (past, present, *fixed):
            continue
        shared = any(last in others for other, others in shapes.items() if other != name)
        if _TOTAL.search(last) or (MASK.search(name) and not shared):
            bound[last] = bound[past] + now


def _past(
    shapes: Mapping[str, tuple[Dim, ...]], bound: Mapping[str, int], heads: Collection[str]
) -> str | None:
    """Return the symbol of the cached tokens, found by its place, otherwise by its name."""
    sizes, held = ({shapes[name][axis] for name in heads if name in shapes} for axis in (-1, -2))
    named = (d for d in bound if d in _pasts(shapes) - sizes)
    return next((d for d in bound if d in held), next(named, None))


def _present(shapes: Mapping[str, tuple[Dim, ...]]) -> Dim | None:
    """Return the number of new tokens: axis 1 of the first input of rank 2 that is not a mask.

    Otherwise it is axis 1 of the first input of rank 3, the embeddings.
    """
    dims = [dims for name, dims in shapes.items() if not MASK.search(name)]
    return next((d[1] for rank in (2, 3) for d in dims if len(d) == rank), None)


def _evaluate(name: str, dim: str, bound: Mapping[str, int], atoms: set[str]) -> int:
    if dim in atoms:
        return bound[dim]
    size = ir.SymbolicDim(dim).evaluate(bound)
    if not isinstance(size, int) or size < 0:
        raise UsageError(
            f"input {name!r} would have {size} for its dimension {dim!r}: "
            f"give its shape with --inputs {name}:..."
        )
    return size


def _show(dims: tuple[Dim, ...]) -> str:
    return "[" + ", ".join("?" if str(d).startswith("?") else str(d) for d in dims) + "]"
