"""Monte Carlo arithmetic (Parker 1997): the noise of a model when every result is rerounded.

Each element of a result is multiplied by 1 + u x, with x uniform in [-1, 1] and u the unit roundoff
of its type, so that each draw is another possible outcome of rounding. Weights are disturbed in the
same way, because folding a factor into a weight rounds it again: the error is the same in all
positions, so no sum over them averages it out. The interpreter does this with kernels that are as
exact as their types. ONNX Runtime's own kernels may err by more (its Sigmoid by 3e-8 where the
result is 1e-7), which shows only when they compute on disturbed operands.
"""

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference import (
    Array,
    Observer,
    Precision,
    is_wide_float,
    moves_numbers,
    run,
    unit_roundoff,
)
from onnxfold.check.runners import Feeds
from onnxfold.errors import InvariantError
from onnxfold.graph import FLOATS
from onnxfold.graph.edit import splice_behind
from onnxfold.graph.traversal import all_graphs
from onnxfold.shapes import fill_types

# Before opset 8 Min and Max do not broadcast: the largest number of a type may become infinite.
_LIMITED_SINCE = 8
# ONNX Runtime (1.32) has RandomUniformLike only up to opset 21, and Dropout in all opsets.
_UNIFORM_UNTIL = 21


def disturbed(model: ir.Model, feeds: Feeds, *, draws: int, seed: int) -> list[dict[str, Array]]:
    """Return the interpreter's outputs with weights and results disturbed."""
    outcomes = []
    for draw in range(draws):
        copy = model.clone()
        _disturb_weights(copy, (seed, draw))
        observe = _disturbing(np.random.default_rng([seed, draw]))
        outcomes.append(run(copy, feeds, precision=Precision.NATIVE, observe=observe))
    return outcomes


def _disturb_weights(model: ir.Model, seed: tuple[int, ...]) -> None:
    """Reround every weight when it is read; vectors and scalars are unchanged."""
    for graph in all_graphs(model):
        for number, value in enumerate(graph.initializers.values()):
            tensor = value.const_value
            if tensor is not None and tensor.dtype in FLOATS and len(tensor.shape) >= 2:
                generator = np.random.default_rng([*seed, number])
                value.const_value = _rounded_when_read(tensor, generator)


def _rounded_when_read(tensor: ir.TensorProtocol, generator: np.random.Generator) -> ir.LazyTensor:
    def read() -> ir.TensorProtocol:
        return ir.tensor(_rounded(tensor.numpy(), generator), dtype=tensor.dtype)

    shape = ir.Shape(tensor.shape.numpy())
    return ir.LazyTensor(read, dtype=tensor.dtype, shape=shape, name=tensor.name, cache=True)


def _disturbing(generator: np.random.Generator) -> Observer:
    def observe(value: ir.Value, array: Array) -> Array:
        node = value.producer()
        moved = node is None or moves_numbers(node)
        if moved or not is_wide_float(array.dtype):
            return array
        return _rounded(array, generator)

    return observe


def _rounded(array: Array, generator: np.random.Generator) -> Array:
    """Return another outcome of rounding, in which the largest numbers do not become infinite."""
    step = unit_roundoff(array.dtype) * generator.uniform(-1.0, 1.0, array.shape)
    wide = np.result_type(array.dtype, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = (array.astype(wide) * (1 + step)).astype(array.dtype)
    return np.where(np.isfinite(rounded), rounded, array)


def disturbed_model(model: ir.Model, seed: int) -> ir.Model:
    """Return a copy with disturbed weights that disturbs its results differently in each run.

    Vectors and scalars are unchanged: they may be sizes, or the factors of a Resize. Results inside
    functions are unchanged too.
    """
    copy = model.clone()
    fill_types(copy)
    _disturb_weights(copy, (seed,))
    generator = np.random.default_rng(seed)
    opset = copy.graph.opset_imports.get("", 1)
    for graph in list(all_graphs(copy)):
        for node in [node for node in graph if not moves_numbers(node)]:
            for value in [value for value in node.outputs if _is_data(value)]:
                _disturb(value, int(generator.integers(2**24)), opset)
    return copy


def _is_data(value: ir.Value) -> bool:
    return bool(value.name) and value.dtype in FLOATS and len(value.shape or ()) >= 2


def _disturb(value: ir.Value, seed: int, opset: int) -> None:
    """Insert w + w r after a value, in float32 (rounded once) or in float64."""
    name, dtype = str(value.name), value.dtype
    if dtype is None:
        raise InvariantError(f"value '{name}' has no type")
    u = unit_roundoff(dtype.numpy())
    tape = ir.tape.Tape()
    kind = ir.DataType.DOUBLE if dtype is ir.DataType.DOUBLE else ir.DataType.FLOAT
    wide = tape.op("Cast", [value], {"to": kind.value})
    limited = _limited(tape, wide, float(dtype.max) / 4, kind.numpy(), opset)
    noise = (
        _uniform(tape, limited, u, seed)
        if opset <= _UNIFORM_UNTIL
        else _in_steps(tape, limited, u, seed, kind.numpy())
    )
    result = tape.op("Add", [wide, noise])
    if dtype is not kind:
        result = tape.op("Cast", [result], {"to": dtype.value})
    result.type, result.shape = value.type, value.shape
    splice_behind(value, tape.nodes)
    value.name, result.name = f"{name}.exact", name
    for number, node in enumerate(tape.nodes[:-1]):
        node.outputs[0].name = f"{name}.disturbed.{number}"


def _limited(
    tape: ir.tape.Tape, wide: ir.Value, most: float, kind: np.dtype[np.generic], opset: int
) -> ir.Value:
    """Return w between -most and most: u times that moves neither the largest number nor inf."""
    if opset < _LIMITED_SINCE:
        return wide
    low, high = (
        tape.op("Constant", [], {"value": ir.tensor(np.asarray(number, kind))})
        for number in (-most, most)
    )
    return tape.op("Max", [tape.op("Min", [wide, high]), low])


def _uniform(tape: ir.tape.Tape, wide: ir.Value, u: float, seed: int) -> ir.Value:
    """Return w r, r uniform in [-u, u]."""
    random = tape.op("RandomUniformLike", [wide], {"low": -u, "high": u, "seed": float(seed)})
    return tape.op("Mul", [wide, random])


def _in_steps(
    tape: ir.tape.Tape, wide: ir.Value, u: float, seed: int, kind: np.dtype[np.generic]
) -> ir.Value:
    """Return w r, r one of u (±1/2 ±1/4 ±1/8): Dropout at ratio 1/2 yields 0 or 2 w, so w ± w."""
    ratio, training = (
        tape.op("Constant", [], {"value": ir.tensor(number)}) for number in (np.float64(0.5), True)
    )
    steps = []
    for number in range(1, 4):
        kept = tape.op("Dropout", [wide, ratio, training], {"seed": seed + number})
        factor = tape.op("Constant", [], {"value": ir.tensor(np.asarray(u / 2**number, kind))})
        steps.append(tape.op("Mul", [tape.op("Sub", [kept, wide]), factor]))
    return tape.op("Sum", steps)
