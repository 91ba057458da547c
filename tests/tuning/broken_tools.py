"""Steps of tune whose tools are broken."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfold.tuning.steps import STEPS, Context, ToolStep

__all__ = ["BROKEN"]


class _Broken(ToolStep):
    def __init__(self, like: ToolStep, work: Callable[[onnx.ModelProto], None]) -> None:
        self.name, self.precision = like.name, like.precision  # type: ignore[misc]
        self.takes_exclusions = like.takes_exclusions  # type: ignore[misc]
        self.work = work

    def apply(self, source: Path, output: Path, context: Context) -> None:
        model = onnx.load(source)
        self.work(model)
        onnx.save(model, output)


def scale_a_weight(model: onnx.ModelProto) -> None:
    """As a QDQ scale that is ten times too small does."""
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim == 2:
            tensor.CopyFrom(numpy_helper.from_array(array * 0.1, tensor.name))
            return


def shrink_one_of_many(model: onnx.ModelProto) -> None:
    """As the wrong scale of one layer does: the outputs move by less than int4 may."""
    tensor = next(t for t in model.graph.initializer if t.name == "val_97")
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(array * np.float32(0.4), tensor.name))


def overflow(model: onnx.ModelProto) -> None:
    """As a float16 weight that is out of range does."""
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        if array.dtype == np.float32 and array.ndim == 2:
            array.flat[0] = np.inf
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            return


def drop_a_node(model: onnx.ModelProto) -> None:
    """Let readers of an activation read its input."""
    node = next(
        n for n in model.graph.node if n.op_type in ("Tanh", "Gelu", "Relu", "Erf", "Softmax")
    )
    for reader in model.graph.node:
        for index, name in enumerate(reader.input):
            if name == node.output[0]:
                reader.input[index] = node.input[0]
    model.graph.node.remove(node)


def rename_an_output(model: onnx.ModelProto) -> None:
    old = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["renamed" if name == old else name for name in node.output]
    model.graph.output[0].name = "renamed"


def turn_the_order(model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def invent_an_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "nowhere"
    model.opset_import.append(onnx.helper.make_opsetid("nowhere", 1))


def crash(model: onnx.ModelProto) -> None:
    os.abort()


def hang(model: onnx.ModelProto) -> None:
    time.sleep(600)


def fail(model: onnx.ModelProto) -> None:
    raise KeyError("a bug of the tool")


_WORK: dict[str, Callable[[onnx.ModelProto], None]] = {
    "slim": scale_a_weight,
    "script": overflow,
    "fusions": drop_a_node,
    "optimizer": rename_an_output,
    "fold-onnx": turn_the_order,
    "int8": invent_an_operator,
    "int8-channel": crash,
    "fp16": hang,
    "int8-blocks32": fail,
    "int4-blocks32": shrink_one_of_many,
}

BROKEN = {name: _Broken(STEPS[name], work) for name, work in _WORK.items()}
