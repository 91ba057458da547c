"""Mutations of structure: allocations, chains, loops, nesting, functions, headers, values."""

from __future__ import annotations

import random

import onnx
from onnx import AttributeProto, TensorProto

from tests.hostile.parts import SIZES, TEXTS, a_node, graphs_of, names_of

__all__ = [
    "call_functions",
    "chain",
    "change_function",
    "change_header",
    "change_value",
    "insert_allocation",
    "insert_loop",
    "nest",
]


def insert_allocation(model: onnx.ModelProto, rng: random.Random) -> None:
    """An operator whose result is as large as a number says."""
    graph = model.graph
    sizes = [
        rng.choice((1, 3, 2**16, 2**20, 2**33, 2**40, 2**62)) for _ in range(rng.choice((1, 2)))
    ]
    shape = onnx.helper.make_tensor("huge.shape", TensorProto.INT64, [len(sizes)], sizes)
    graph.initializer.append(shape)
    node = a_node(model, rng)
    at = rng.randrange(len(node.input))
    source, node.input[at] = node.input[at], "huge"
    inputs = ["huge.shape"] if (kind := rng.randrange(3)) == 0 else [source, "huge.shape"]
    name = ("ConstantOfShape", "Expand", "Tile")[kind]
    graph.node.insert(0, onnx.helper.make_node(name, inputs, ["huge"]))


def chain(model: onnx.ModelProto, rng: random.Random) -> None:
    """Thousands of operators in a row, from a constant or an activation."""
    node = a_node(model, rng)
    at = rng.randrange(len(node.input))
    # Long ones take as long as all others together, so they are few.
    previous, length = node.input[at], rng.choice((50, 50, 50, 50, 50, 400, 400, 1500))
    op_type = rng.choice(("Identity", "Neg", "Add", "Transpose", "Sqrt"))
    for step in range(length):
        inputs = [previous, previous] if op_type == "Add" else [previous]
        previous = f"chain{step}"
        model.graph.node.insert(step, onnx.helper.make_node(op_type, inputs, [previous]))
    node.input[at] = previous


def insert_loop(model: onnx.ModelProto, rng: random.Random) -> None:
    """A loop of very many steps, or without end."""
    node = a_node(model, rng)
    at = rng.randrange(len(node.input))
    source, node.input[at] = node.input[at], "looped"
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Identity", ["cond"], ["on"]),
            onnx.helper.make_node("Identity", ["v"], ["w"]),
        ],
        "body",
        [
            onnx.helper.make_tensor_value_info("step", TensorProto.INT64, []),
            onnx.helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            onnx.helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("w", TensorProto.FLOAT, None),
        ],
    )
    count = onnx.helper.make_tensor("steps", TensorProto.INT64, [], [rng.choice((3, 10**7, 2**62))])
    model.graph.initializer.append(count)
    go = onnx.helper.make_tensor("go", TensorProto.BOOL, [], [True])
    model.graph.initializer.append(go)
    steps = rng.choice(("", "steps", "steps"))
    loop = onnx.helper.make_node("Loop", [steps, "go", source], ["looped"], body=body)
    model.graph.node.insert(0, loop)


def nest(model: onnx.ModelProto, rng: random.Random) -> None:
    """Subgraphs in subgraphs; protobuf itself refuses about a hundred messages deep."""
    graph = onnx.GraphProto(name="leaf")
    graph.node.add(op_type="Identity", input=["x"], output=["leaf"])
    graph.output.add(name="leaf")
    for level in range(rng.choice((2, 10, 20, 24, 28, 29, 30, 31, 32, 33))):
        outer = onnx.GraphProto(name=f"level{level}")
        node = outer.node.add(op_type="If", input=["x"], output=[f"deep{level}"])
        branches = ("then_branch", "else_branch")
        for name in branches[: rng.choice((1, 1, 1, 2)) if level < 6 else 1]:
            node.attribute.add(name=name, type=AttributeProto.GRAPH).g.CopyFrom(graph)
        outer.output.add(name=f"deep{level}")
        graph = outer
    model.graph.node.extend(graph.node)


def call_functions(model: onnx.ModelProto, rng: random.Random) -> None:
    """Functions that call the next one: deep, twice each (2 to the depth in all), round."""
    depth = rng.choice((2, 5, 9, 18, 25, 300, 1500))
    kind = rng.randrange(3)
    for level in range(depth):
        function = model.functions.add(name=f"f{level}", domain="deep", input=["a"], output=["b"])
        function.opset_import.add(domain="", version=17)
        function.opset_import.add(domain="deep", version=1)
        last = level == depth - 1
        if last and kind < 2:
            function.node.add(op_type="Identity", input=["a"], output=["b"])
            continue
        following = 0 if last else level + 1
        function.node.add(op_type=f"f{following}", domain="deep", input=["a"], output=["c"])
        if kind == 1:
            function.node.add(op_type=f"f{following}", domain="deep", input=["c"], output=["b"])
        else:
            function.node.add(op_type="Identity", input=["c"], output=["b"])
    model.opset_import.add(domain="deep", version=1)
    node = rng.choice(model.graph.node)
    at = rng.randrange(len(node.input))
    model.graph.node.insert(
        0, onnx.helper.make_node("f0", [node.input[at]], ["called"], domain="deep")
    )
    # The insertion moved the nodes, so the reader is found again by its input.
    for reader in model.graph.node[1:]:
        for index, name in enumerate(reader.input):
            if name == model.graph.node[0].input[0]:
                reader.input[index] = "called"
                return


def change_function(model: onnx.ModelProto, rng: random.Random) -> None:
    function = rng.choice(model.functions)
    kind = rng.randrange(7)
    if kind == 0:
        function.name = rng.choice(("", "Add", "scale", "f1"))
    elif kind == 1:
        del function.opset_import[:]
    elif kind == 2:
        model.functions.append(function)
    elif kind == 3:
        function.input.append(rng.choice(("a", "", "z")))
    elif kind == 4:
        function.output.append(rng.choice(("a", "", "z")))
    elif kind == 5:
        function.attribute.append(rng.choice(("axis", "", "value")))
    else:
        rng.choice(function.node).op_type = function.name


def change_header(model: onnx.ModelProto, rng: random.Random) -> None:
    kind = rng.randrange(6)
    if kind == 0:
        model.ir_version = rng.choice((*range(14), 2**62, -1))
    elif kind == 1:
        rng.choice(model.opset_import).version = rng.choice((*range(28), -1, 2**40))
    elif kind == 2:
        model.opset_import.add(domain=rng.choice(TEXTS), version=rng.randrange(30))
    elif kind == 3:
        del model.opset_import[:]
    elif kind == 4:
        model.metadata_props.add(key=rng.choice(TEXTS), value=rng.choice(TEXTS))
    else:
        model.training_info.add()


def change_value(model: onnx.ModelProto, rng: random.Random) -> None:
    """What an input or an output, or a value between, is said to be."""
    graph = rng.choice(graphs_of(model))
    kind = rng.randrange(9)
    if kind == 0 and graph.node:
        value = graph.value_info.add(name=rng.choice(names_of(model)))
        value.type.tensor_type.elem_type = rng.randrange(26)
        value.type.tensor_type.shape.dim.add(dim_value=rng.choice(SIZES))
        return
    value = rng.choice([*graph.input, *graph.output, *graph.value_info])
    tensor = value.type.tensor_type
    if kind == 1:
        tensor.elem_type = rng.choice((*range(26), 99))
    elif kind == 2:
        rng.choice(tensor.shape.dim).dim_value = rng.choice(SIZES)
    elif kind == 3:
        rng.choice(tensor.shape.dim).dim_param = rng.choice(TEXTS)
    elif kind == 4:
        tensor.shape.dim.add(dim_value=rng.choice(SIZES))
    elif kind == 5:
        tensor.ClearField("shape")
    elif kind == 6:
        value.ClearField("type")
    elif kind == 7:
        value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    else:
        lists = [graph.input, graph.output]
        chosen = rng.choice([values for values in lists if values])
        if rng.random() < 0.5:
            chosen.append(rng.choice(chosen))
        else:
            chosen.remove(rng.choice(chosen))
