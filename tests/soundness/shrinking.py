"""A failing model made small: outputs and nodes go as long as the failure stays.

    drop      leave out an output of the model, and everything that only it needed
    bypass    let the readers of a node read one of its inputs of the same shape instead
    cut       let them read a new input of the model, fed with what the node computed

Values inside of bodies and functions stay; a node that has a body goes as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from tests.operators.sample import Array
from tests.soundness.float64 import evaluate
from tests.soundness.random_graphs import RandomGraph

__all__ = ["shrunk"]

Failing = Callable[[RandomGraph], bool]


def shrunk(graph: RandomGraph, failing: Failing) -> RandomGraph:
    """Return the smallest graph on the way down for which ``failing`` still holds."""
    current = graph
    while True:
        before = current
        for smaller in (_fewer_outputs, _fewer_nodes):
            current = smaller(current, failing)
        if current is before:
            return current


def _fewer_outputs(graph: RandomGraph, failing: Failing) -> RandomGraph:
    outputs = [value.name for value in graph.model.graph.output]
    for keep in outputs if len(outputs) > 1 else ():
        alone = _with_outputs(graph, [keep])
        if failing(alone):
            return alone
    for gone in outputs if len(outputs) > 2 else ():
        left = [value.name for value in graph.model.graph.output if value.name != gone]
        candidate = _with_outputs(graph, left)
        if len(left) > 0 and failing(candidate):
            graph = candidate
    return graph


def _fewer_nodes(graph: RandomGraph, failing: Failing) -> RandomGraph:
    """Cut or bypass one node after the other, from the outputs to the inputs."""
    values = _values(graph)
    for node in reversed(list(graph.model.graph.node)):
        for output in node.output if node.op_type != "Constant" else ():
            size = len(graph.model.graph.node)
            computed = {name for n in graph.model.graph.node for name in n.output}
            if output not in values or output not in computed:
                continue
            smaller = (
                candidate
                for candidate in _without(graph, node, output, values)
                if len(candidate.model.graph.node) < size and failing(candidate)
            )
            graph = next(smaller, graph)
    return graph


def _without(
    graph: RandomGraph, node: onnx.NodeProto, output: str, values: dict[str, Array]
) -> Iterator[RandomGraph]:
    yield _cut(graph, output, values[output])
    for source in dict.fromkeys(node.input):
        if source in values and _alike(values[source], values[output]):
            yield _reading(graph, output, source)


def _alike(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _values(graph: RandomGraph) -> dict[str, Array]:
    """Everything that the main graph computes or holds, in float64."""
    whole = onnx.ModelProto()
    whole.CopyFrom(graph.model)
    names = [name for node in whole.graph.node for name in node.output if name]
    del whole.graph.output[:]
    whole.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    try:
        computed = dict(zip(names, evaluate(whole, graph.feeds, graph.operators), strict=True))
    except (RuntimeError, TypeError, ValueError, LookupError):
        return {}
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in whole.graph.initializer}
    return {**stored, **graph.feeds, **computed}


def _with_outputs(graph: RandomGraph, names: list[str]) -> RandomGraph:
    model = _copy(graph)
    kept = [value for value in model.graph.output if value.name in names]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return _swept(graph, model)


def _reading(graph: RandomGraph, old: str, new: str) -> RandomGraph:
    """Let every reader of ``old`` read ``new``."""
    model = _copy(graph)
    _rename(model.graph, old, new)
    if any(value.name == old for value in model.graph.output):
        # An output needs a node of its own name.
        kept = [n for n in model.graph.node if old not in n.output]
        del model.graph.node[:]
        model.graph.node.extend([*kept, helper.make_node("Identity", [new], [old])])
    return _swept(graph, model)


def _cut(graph: RandomGraph, name: str, array: Array) -> RandomGraph:
    model = _copy(graph)
    fed = f"{name}.fed"
    element = _element(graph.model, array)
    model.graph.input.append(helper.make_tensor_value_info(fed, element, array.shape))
    narrow = array.astype(helper.tensor_dtype_to_np_dtype(element))
    changed = replace(graph, model=model, feeds={**graph.feeds, fed: narrow})
    return _reading(changed, name, fed)


def _element(model: onnx.ModelProto, array: Array) -> int:
    """The model's own float type for what was computed in float64."""
    if array.dtype != np.float64:
        return helper.np_dtype_to_tensor_dtype(array.dtype)
    floats = [
        kind for tensor in model.graph.initializer if (kind := tensor.data_type) in (1, 10, 11, 16)
    ]
    return max(set(floats), key=floats.count) if floats else onnx.TensorProto.DOUBLE


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, old, new)


def _copy(graph: RandomGraph) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    return model


def _swept(graph: RandomGraph, model: onnx.ModelProto) -> RandomGraph:
    """Leave out the nodes, weights and inputs that nothing needs any more."""
    needed = {value.name for value in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= _reads(node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))
    for values in (model.graph.initializer, model.graph.input):
        left = [value for value in values if value.name in needed]
        del values[:]
        values.extend(left)
    called = {(node.domain, node.op_type) for node in kept}
    functions = [f for f in model.functions if (f.domain, f.name) in called]
    del model.functions[:]
    model.functions.extend(functions)
    names = {value.name for value in model.graph.input}
    feeds = {name: array for name, array in graph.feeds.items() if name in names}
    return replace(graph, model=model, feeds=feeds)


def _reads(node: onnx.NodeProto) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            names |= _reads(inner)
        if attribute.HasField("g"):
            names |= {value.name for value in attribute.g.output}
    return names
