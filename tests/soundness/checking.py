"""One random graph: folded, proved, typed, and compared with the original in float64.

Stored weights are rounded once more when they change, so the bound depends on their type. In
float64 it is 1e-9 of the largest element: roundings of the arithmetic, enlarged by norms of almost
constant vectors (their epsilon lets most enlarge 32 times each; MeanVarianceNormalization's 1e9
times). Beyond that, what roundings do to the outputs is measured: the folded model again, with its
weights moved by their roundoff with random signs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxfold.errors import OnnxfoldError
from onnxfold.options import Device, Folding
from onnxfold.target import Target
from tests.operators.sample import Array
from tests.soundness.float64 import evaluate, relative_error, sizes_read
from tests.soundness.folding import Folded, fold
from tests.soundness.random_graphs import RandomGraph

__all__ = ["ERRORS", "Outcome", "Settings", "check", "compared", "line", "planned", "settings_of"]

DOUBLE_BOUND = 1e-9
# The worst output element over the worst of a few random roundings of the same size; ten draws come
# within a factor of 8 of a given one unless the output depends equally on very many weights.
_DRAWS, _ENLARGED = 10, 8.0
_ROUNDOFF = {
    TensorProto.DOUBLE: 2.0**-53,
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
}
_EXCLUDED = "[1-3]$"
_BY_PRICE = 0.2
ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
           ValueError)  # fmt: skip
# Messages of onnx's inference about the originals too, if it gets that far: outputs of other
# domains have no type, the body of MeanVarianceNormalization is for float32 alone, and several
# operators exclude bfloat16.
_NOT_TYPED = ("instead is null", "MeanVarianceNormalization", "has unsupported type")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a fold, determined by a seed."""

    target: Target
    allow_split_bytes: int
    fuse: bool
    fuse_affine: bool
    exclude: str | None
    defer: bool = True
    device: Device = Device.CPU
    fold: Folding = Folding.ALWAYS

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def to_fold(self) -> dict[str, Any]:
        """Return the arguments of a fold with these options."""
        given = asdict(self)
        return {"folding": given.pop("fold"), **given}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is wrong (None: nothing), and what the fold did."""

    failure: str | None
    folded: Folded | None
    error: float = 0.0


def settings_of(seed: int) -> Settings:
    """The options of a seed."""
    rng = random.Random(seed)  # noqa: S311 # no secret
    return Settings(
        rng.choice(list(Target)),
        rng.choice((0, 100, 1 << 20)),
        rng.random() < 0.4,
        rng.random() < 0.6,
        _EXCLUDED if rng.random() < 0.04 else None,
        rng.random() < 0.6,
        rng.choice(list(Device)),
        Folding.AUTO if rng.random() < _BY_PRICE else Folding.ALWAYS,
    )


def planned(
    graph: RandomGraph, settings: Settings, *, count_roles: bool = False, prove: bool = False
) -> Outcome:
    """Fold a graph and compare nothing; a crash of onnxfold is a failure like any other."""
    given = settings.to_fold()
    try:
        folded = fold(graph.model, count_roles=count_roles, prove=prove, **given)
    except (OnnxfoldError, *ERRORS) as error:
        return Outcome(f"crash: {line(error)}", None)
    return Outcome(None, folded)


def check(graph: RandomGraph, settings: Settings, *, count_roles: bool = False) -> Outcome:
    """Fold a graph, prove it and compare."""
    try:
        expected = evaluate(graph.model, graph.feeds, graph.operators)
    except ERRORS as error:
        return Outcome(f"oracle: {line(error)}", None)
    outcome = planned(graph, settings, count_roles=count_roles, prove=True)
    folded = outcome.folded
    if folded is None:
        return outcome
    if not folded.proof.passed:
        return Outcome(f"proof: {folded.proof.failures[0]}", folded)
    if folded.plan.gain_ps < folded.plan.cost_ps:
        return Outcome("plan: it costs more than it gains", folded)
    failure, error = compared(graph, folded.model, expected)
    return Outcome(failure, folded, error)


def compared(
    graph: RandomGraph, model: onnx.ModelProto, expected: Sequence[Array]
) -> tuple[str | None, float]:
    """Compare types and outputs of a rewritten graph; return what is wrong, and the error."""
    mistyped = _mistyped(graph.model, model)
    if mistyped is not None:
        return f"types: {mistyped}", 0.0
    try:
        got = evaluate(model, graph.feeds, graph.operators)
        error = relative_error(expected, got)
        right = error <= DOUBLE_BOUND or _is_rounding(graph, model, got, error)
    except ERRORS as problem:
        return f"run: {line(problem)}", 0.0
    return None if right else f"numbers: an output is off by {error:.1e}", error


def line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _mistyped(original: onnx.ModelProto, folded: onnx.ModelProto) -> str | None:
    """Say which operator gets operands of types that it does not take, unless it did before."""
    untold = onnx.ModelProto()  # shapes of outputs are not at stake, and the original has none
    untold.CopyFrom(folded)
    for value in untold.graph.output:
        if value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.ClearField("shape")
    try:
        onnx.shape_inference.infer_shapes(untold, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as problem:
        try:
            onnx.shape_inference.infer_shapes(original, check_type=True, strict_mode=True)
        except onnx.shape_inference.InferenceError:
            return None
        message = str(problem).splitlines()[0]
        return None if any(known in message for known in _NOT_TYPED) else message
    return None


def _is_rounding(
    graph: RandomGraph, folded: onnx.ModelProto, got: Sequence[Array], error: float
) -> bool:
    """Whether roundings of the stored weights move the outputs as much as the fold did."""
    if not any(tensor.data_type in _ROUNDOFF for tensor in _tensors(folded.graph)):
        return False
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(_DRAWS):
        moved = evaluate(_moved(folded, rng), graph.feeds, graph.operators)
        worst = max(worst, relative_error(got, moved))
        if error <= _ENLARGED * worst + DOUBLE_BOUND:
            return True
    return False


def _moved(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """Return the model with every stored number moved up or down by its roundoff.

    In float64, which holds the moved numbers; a weight that is taken for centered as it stands may
    be off by the roundoff of its mean magnitude.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in _tensors(copy.graph):
        roundoff = _ROUNDOFF.get(tensor.data_type)
        if roundoff is not None:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            size = roundoff * (np.abs(array) + np.abs(array).mean() if array.size else 0.0)
            array = array + size * rng.choice((-1.0, 1.0), array.shape)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), tensor.name))
    return copy


def _tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    sizes = sizes_read(graph)
    found = [tensor for tensor in graph.initializer if tensor.name not in sizes]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                found.append(attribute.t)
            elif attribute.HasField("g"):
                found += _tensors(attribute.g)
    return found
