"""Models run with some of their inner values given, and others read."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxfold.check.evidence import Outputs
from onnxfold.check.reference import Array
from onnxfold.check.result import ModelSource
from onnxfold.check.runners import Feeds, OnnxRuntime
from onnxfold.graph.edit import add_last, redirect, set_outputs, sweep


def run_tapped(
    engine: OnnxRuntime,
    model: ir.Model,
    feeds: Feeds,
    wanted: Sequence[str],
    given: Mapping[str, Array],
) -> Outputs:
    """What the nodes compute for the values ``wanted`` where readers of others see the ``given``.

    A value may be both: what is returned is what its node computes.  Only the nodes that it takes
    run, without optimizations.  Raises CannotRun.
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


def element_counts(
    engine: OnnxRuntime, model: ir.Model, feeds: Feeds, names: Sequence[str]
) -> dict[str, int]:
    """How many elements some values have, which are not kept.  Raises CannotRun."""
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
    """A copy without outputs, whose weights are shared, and the results of its nodes by name."""
    copy = model.clone()
    set_outputs(copy.graph, ())
    return copy, {str(v.name): v for node in copy.graph for v in node.outputs if v.name}


def _give(model: ir.Model, outputs: Sequence[ir.Value]) -> None:
    for value in outputs:  # what a tool left there may be wrong, and a runtime finds them
        value.type = value.shape = None
    set_outputs(model.graph, outputs)
    sweep(model.graph)


def _run(engine: OnnxRuntime, model: ir.Model, feeds: Feeds) -> Outputs:
    if not model.graph.outputs:
        return {}
    return engine.run(ModelSource(model), [feeds], optimize=False)[0]
