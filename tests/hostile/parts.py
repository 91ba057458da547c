"""What mutations choose from: wild values, and the parts of a model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, TensorProto

__all__ = [
    "SIZES",
    "TEXTS",
    "Mutant",
    "a_node",
    "a_tensor",
    "an_attribute",
    "bodies_of",
    "graphs_of",
    "names_of",
    "tensors_of",
]


SIZES = (0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), 1_000_000)
TEXTS = ("", "x", "y", "ONNX", "two\nlines\x1b[31m", "\u202e", "n" * 3000, "ai.onnx", "onnxfold")


@dataclass(slots=True)
class Mutant:
    """Files by name, symbolic links by name, and what was done."""

    files: dict[str, bytes]
    links: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)


def graphs_of(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found = [model.graph]
    for graph in found:
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    found.append(attribute.g)
    return found


def bodies_of(model: onnx.ModelProto) -> list[onnx.GraphProto | onnx.FunctionProto]:
    return [*graphs_of(model), *model.functions]


def a_node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice(rng.choice(bodies_of(model)).node)


def tensors_of(model: onnx.ModelProto) -> Iterator[TensorProto]:
    for body in bodies_of(model):
        if isinstance(body, onnx.GraphProto):
            yield from body.initializer
        for node in body.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    yield attribute.t


def a_tensor(model: onnx.ModelProto, rng: random.Random) -> TensorProto:
    return rng.choice(list(tensors_of(model)))


def an_attribute(model: onnx.ModelProto, rng: random.Random) -> AttributeProto:
    nodes = [node for body in bodies_of(model) for node in body.node if node.attribute]
    return rng.choice(rng.choice(nodes).attribute)


def names_of(model: onnx.ModelProto) -> list[str]:
    names = [value.name for value in (*model.graph.input, *model.graph.output)]
    names += [tensor.name for tensor in model.graph.initializer]
    names += [name for node in model.graph.node for name in node.output]
    return [*names, "", "nowhere"]
