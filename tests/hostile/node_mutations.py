"""Mutations of nodes: attributes, operators, inputs, order, names."""

from __future__ import annotations

import random

import onnx
from onnx import AttributeProto

from tests.hostile.parts import (
    SIZES,
    TEXTS,
    a_node,
    a_tensor,
    an_attribute,
    bodies_of,
    graphs_of,
    names_of,
)

__all__ = [
    "attribute_of_another_type",
    "lose_attribute",
    "move_nodes",
    "other_operator",
    "rename",
    "rewire",
    "wild_number",
]


_FLOATS = (0.0, -0.0, 1e-45, 1e38, -1e38, 65504.0, float("inf"), float("-inf"), float("nan"))
_OPERATORS = (
    "Add",
    "Cast",
    "Concat",
    "ConstantOfShape",
    "Conv",
    "Expand",
    "Gather",
    "GatherND",
    "Identity",
    "LayerNormalization",
    "MatMul",
    "NonZero",
    "Pad",
    "RandomNormalLike",
    "Range",
    "ReduceMean",
    "Reshape",
    "Resize",
    "Slice",
    "Softmax",
    "Split",
    "Squeeze",
    "Tile",
    "TopK",
    "Transpose",
    "Unsqueeze",
    "Where",
)


def attribute_of_another_type(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = an_attribute(model, rng)
    kind = rng.randrange(8)
    if kind == 0:
        attribute.type = rng.choice(range(15))
    elif kind == 1:
        attribute.type = AttributeProto.INTS
        attribute.ints.extend(rng.choices(SIZES, k=rng.randrange(4)))
    elif kind == 2:
        attribute.type = AttributeProto.INT
        attribute.i = rng.choice(SIZES)
    elif kind == 3:
        attribute.type = AttributeProto.FLOAT
        attribute.f = rng.choice(_FLOATS)
    elif kind == 4:
        attribute.type = AttributeProto.STRING
        attribute.s = rng.choice((b"", b"\xff\xfe", b"SAME_UPPER", b"x" * 1000))
    elif kind == 5:
        attribute.type = AttributeProto.TENSOR
        attribute.t.CopyFrom(a_tensor(model, rng))
    elif kind == 6:
        attribute.ref_attr_name = rng.choice(TEXTS)
    else:
        attribute.type = AttributeProto.GRAPH
        copy = onnx.GraphProto.FromString(rng.choice(graphs_of(model)).SerializeToString())
        attribute.g.CopyFrom(copy)


def wild_number(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = an_attribute(model, rng)
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(SIZES)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice(_FLOATS)
    elif attribute.type == AttributeProto.INTS:
        kind = rng.randrange(3)
        if kind == 0:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(SIZES)
        elif kind == 1:
            attribute.ints.extend(list(attribute.ints))
        else:
            del attribute.ints[:]
    else:
        raise ValueError


def lose_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node = a_node(model, rng)
    if rng.random() < 0.7:
        node.attribute.remove(rng.choice(node.attribute))
    else:
        node.attribute.append(rng.choice(node.attribute))


def rewire(model: onnx.ModelProto, rng: random.Random) -> None:
    """Cycles, values that nothing produces, values produced twice, too many or too few."""
    node = a_node(model, rng)
    names = names_of(model)
    kind = rng.randrange(6)
    if kind <= 1:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif kind == 2:
        node.output[rng.randrange(len(node.output))] = rng.choice(names)
    elif kind == 3:
        node.input.extend(rng.choices(names, k=rng.choice((1, 2, 30))))
    elif kind == 4:
        del node.input[rng.randrange(len(node.input)) :]
    else:
        del node.output[rng.randrange(len(node.output)) :]


def other_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    node = a_node(model, rng)
    kind = rng.randrange(4)
    if kind <= 1:
        node.op_type = rng.choice(_OPERATORS)
    elif kind == 2:
        node.domain = rng.choice(("", "ai.onnx", "com.microsoft", "onnxfold", "local", "\n"))
    else:
        node.op_type = rng.choice(TEXTS)


def move_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    body = rng.choice(bodies_of(model))
    nodes = list(body.node)
    kind = rng.randrange(4)
    if kind == 0:
        rng.shuffle(nodes)
    elif kind == 1:
        del nodes[rng.randrange(len(nodes))]
    elif kind == 2:
        nodes.append(rng.choice(nodes))
    else:
        nodes *= rng.choice((2, 20))
    del body.node[:]
    body.node.extend(nodes)


def rename(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(graphs_of(model))
    thing = rng.choice([*graph.node, *graph.input, *graph.output, *graph.initializer, graph])
    thing.name = rng.choice((*TEXTS, *names_of(model)))
