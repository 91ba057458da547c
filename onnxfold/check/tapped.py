"""Run models with some of their inner values replaced, and others read."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.check.reference import Array
from onnxfold.check.result import ModelSource
from onnxfold.check.runners import Feeds, OnnxRuntime, Outputs
from onnxfold.graph.edit import add_last, redirect, set_outputs, splice_behind, sweep

_SCALAR = ir.Shape(())
_WHERE_SINCE = 9


def run_tapped(
    engine: OnnxRuntime,
    model: ir.Model,
    feeds: Feeds,
    wanted: Sequence[str],
    given: Mapping[str, Array],
) -> Outputs:
    """Return the computed values ``wanted``, where readers of other values see the ``given``.

    A value may be in both: the result that its node computes is returned. Only the necessary nodes
    run, without optimizations. Raises CannotRun.
    """
    copy, values = _copied(model)
    inputs = {f"{name}/given": array for name, array in given.items()}
    for name, array in given.items():
        kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value = ir.Value(name=f"{name}/given", type=kind, shape=ir.Shape(array.shape))
        copy.graph.inputs.append(value)
        redirect(values[name], value)
    _give(copy, [values[name] for name in wanted])
    return _run(engine, copy, {**feeds, **inputs})


def run_switched(
    engine: OnnxRuntime,
    model: ir.Model,
    feeds: Feeds,
    wanted: Sequence[str],
    given: Sequence[tuple[str, Array]],
) -> list[Outputs]:
    """Return the result of `run_tapped` for each of some given values alone, by one session.

    Here a wanted value is the one that others read. The values given have their own shapes. Raises
    CannotRun.
    """
    if any(not _is_switchable(model, array.dtype) for _, array in given):
        runs = [run_tapped(engine, model, feeds, wanted, {name: array}) for name, array in given]
        pairs = zip(runs, given, strict=True)
        return [run | {n: array for n in run if n == name} for run, (name, array) in pairs]
    copy, values = _copied(model)
    off: dict[str, Array] = {}
    for name, array in dict(given).items():
        kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        switch = ir.Value(name=f"{name}/on", type=ir.TensorType(ir.DataType.BOOL), shape=_SCALAR)
        value = ir.Value(name=f"{name}/given", type=kind)
        copy.graph.inputs.extend([switch, value])
        node = ir.node("Where", [switch, value, values[name]], name=f"{name}/switched")
        node.outputs[0].name = f"{name}/switched"
        splice_behind(values[name], [node])
        values[name] = node.outputs[0]
        off |= {f"{name}/on": np.array(False), f"{name}/given": np.zeros((), array.dtype)}
    _give(copy, [values[name] for name in wanted])
    called = {name: str(values[name].name) for name in wanted}
    samples = [
        {**feeds, **off, f"{name}/on": np.array(True), f"{name}/given": array}
        for name, array in given
    ]
    found = engine.run(ModelSource(copy), samples, optimize=False) if wanted else []
    return [{name: each[called[name]] for name in wanted} for each in found]


def _is_switchable(model: ir.Model, dtype: np.dtype[Any]) -> bool:
    """Whether ONNX Runtime has a Where for values of a type."""
    known = dtype.kind == "f" or dtype in (np.int32, np.int64)
    return known and model.graph.opset_imports.get("", 1) >= _WHERE_SINCE


def element_counts(
    engine: OnnxRuntime, model: ir.Model, feeds: Feeds, names: Sequence[str]
) -> dict[str, int]:
    """Return how many elements some values have, without keeping them. Raises CannotRun."""
    copy, values = _copied(model)
    counts = []
    for name in names:
        node = ir.node("Size", [values[name]], name=f"{name}/size")
        node.outputs[0].name = f"{name}/size"
        add_last(copy.graph, node)
        counts.append(node.outputs[0])
    _give(copy, counts)
    found = _run(engine, copy, feeds)
    return {name: int(found[f"{name}/size"]) for name in names}


def _copied(model: ir.Model) -> tuple[ir.Model, dict[str, ir.Value]]:
    """Return a copy without outputs, which shares the weights, and its node results by name."""
    copy = model.clone()
    set_outputs(copy.graph, ())
    return copy, {str(v.name): v for node in copy.graph for v in node.outputs if v.name}


def _give(model: ir.Model, outputs: Sequence[ir.Value]) -> None:
    for value in outputs:  # shapes left there by a tool may be wrong, and a runtime infers them
        value.type = value.shape = None
    set_outputs(model.graph, outputs)
    sweep(model.graph)


def _run(engine: OnnxRuntime, model: ir.Model, feeds: Feeds) -> Outputs:
    if not model.graph.outputs:
        return {}
    return engine.run(ModelSource(model), [feeds], optimize=False)[0]
