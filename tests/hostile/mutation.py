"""Mutants of models: bytes that were hit, messages that no exporter writes, wild data files.

A mutant is a set of files: what lies in the folder from which a model is read.  Mutations of
messages go deep, where those of bytes are refused by the parser; several are applied in a row.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx
from google.protobuf.message import DecodeError
from google.protobuf.message import Error as MessageError
from onnx import AttributeProto, TensorProto

__all__ = ["MODEL", "Mutant", "byte_mutant", "message_mutant", "mutant"]

MODEL = "m.onnx"

_SIZES = (0, 1, -1, 2, 3, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), 1_000_000)
_FLOATS = (0.0, -0.0, 1e-45, 1e38, -1e38, 65504.0, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "x", "y", "ONNX", "two\nlines\x1b[31m", "\u202e", "n" * 3000, "ai.onnx", "onnxfold")
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
_LOCATIONS = (
    "",
    ".",
    "..",
    "../escape.data",
    "/etc/hostname",
    "C:\\weights",
    "gone.data",
    "link.data",
    "loop.data",
    "out.onnx",
    "m.onnx",
    "sub/../../escape",
    "nul\0",
    "x" * 5000,
)


@dataclass(slots=True)
class Mutant:
    """Files by name, symbolic links by name, and what was done."""

    files: dict[str, bytes]
    links: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)


def mutant(seeds: Sequence[bytes], rng: random.Random) -> Mutant:
    """A mutant of one of the serialized models, by bytes (one in four) or by messages."""
    raw = rng.choice(seeds)
    if rng.random() < 0.25:
        return Mutant({MODEL: byte_mutant(raw, rng, rng.choice(seeds))}, done=["bytes"])
    return message_mutant(raw, rng)


def byte_mutant(raw: bytes, rng: random.Random, other: bytes = b"") -> bytes:
    """Change bytes: one to six edits, or a splice with another model."""
    changed = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 6))):
        # Half of the changes hit the first bytes, which hold the structure of a large model.
        at = rng.randrange(len(changed) if rng.random() < 0.5 else min(len(changed), 700) or 1)
        kind, size = rng.randrange(7), rng.randrange(1, 5)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del changed[at : at + size]
        elif kind == 3:
            changed[at:at] = rng.randbytes(size)
        elif kind == 4:
            stop = min(len(changed), at + rng.randrange(1, 200))
            changed[at:at] = changed[at:stop]
        elif kind == 5:
            del changed[at:]
        elif other:
            changed[at:] = other[rng.randrange(len(other)) :]
        if not changed:
            break
    return bytes(changed)


def message_mutant(raw: bytes, rng: random.Random) -> Mutant:
    """Change the model as a protobuf message: one to four mutations, then perhaps external data."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(raw)
    except DecodeError:
        return Mutant({MODEL: byte_mutant(raw, rng)}, done=["bytes"])
    made = Mutant({})
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        mutation = rng.choice(_MUTATIONS)
        try:
            mutation(model, rng)
        except (IndexError, ValueError, TypeError, MessageError):
            continue  # this model has nothing of the kind
        made.done.append(mutation.__name__.strip("_"))
    if rng.random() < 0.25:
        _externalise(model, rng, made)
    made.files[MODEL] = model.SerializeToString()
    return made


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found = [model.graph]
    for graph in found:
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    found.append(attribute.g)
    return found


def _bodies(model: onnx.ModelProto) -> list[onnx.GraphProto | onnx.FunctionProto]:
    return [*_graphs(model), *model.functions]


def _node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice(rng.choice(_bodies(model)).node)


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    for body in _bodies(model):
        if isinstance(body, onnx.GraphProto):
            yield from body.initializer
        for node in body.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    yield attribute.t


def _tensor(model: onnx.ModelProto, rng: random.Random) -> TensorProto:
    return rng.choice(list(_tensors(model)))


def _attribute(model: onnx.ModelProto, rng: random.Random) -> AttributeProto:
    nodes = [node for body in _bodies(model) for node in body.node if node.attribute]
    return rng.choice(rng.choice(nodes).attribute)


def _names(model: onnx.ModelProto) -> list[str]:
    names = [value.name for value in (*model.graph.input, *model.graph.output)]
    names += [tensor.name for tensor in model.graph.initializer]
    names += [name for node in model.graph.node for name in node.output]
    return [*names, "", "nowhere"]


# Tensors


def _claim_dims(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    kind = rng.randrange(4)
    if kind == 0:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_SIZES)
    elif kind == 1:
        tensor.dims.insert(0, rng.choice(_SIZES))
    elif kind == 2:
        tensor.dims.extend([1] * rng.choice((1, 8, 40, 5000)))
    else:
        del tensor.dims[:]


def _resize_honestly(model: onnx.ModelProto, rng: random.Random) -> None:
    """Another shape that the data does have."""
    tensor = _tensor(model, rng)
    dims = list(tensor.dims)
    kind = rng.randrange(3)
    if kind == 0 and dims:
        at = rng.randrange(len(dims))
        dims[at] = 0
        tensor.ClearField("raw_data")
        for name in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
            tensor.ClearField(name)
        tensor.raw_data = b""
    elif kind == 1:
        dims.insert(rng.randrange(len(dims) + 1), 1)
    else:
        rng.shuffle(dims)
    del tensor.dims[:]
    tensor.dims.extend(dims)


def _claim_type(model: onnx.ModelProto, rng: random.Random) -> None:
    _tensor(model, rng).data_type = rng.choice((*range(26), 1000, -1))


def _cut_data(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    raw = bytearray(tensor.raw_data)
    kind = rng.randrange(3)
    if kind == 0:
        del raw[rng.randrange(len(raw)) :]
    elif kind == 1:
        raw += rng.randbytes(rng.randrange(1, 9))
    else:
        tensor.float_data.extend([1.0] * rng.randrange(1, 5))
    tensor.raw_data = bytes(raw)


def _spoil_numbers(model: onnx.ModelProto, rng: random.Random) -> None:
    """Any bytes, of the right number: NaN, infinities, huge indices and axes."""
    tensor = _tensor(model, rng)
    raw = bytearray(tensor.raw_data)
    size = rng.choice((1, 2, 4, 8))
    for _ in range(rng.choice((1, 3, len(raw) // size))):
        at = rng.randrange(len(raw) // size) * size
        kind = rng.randrange(4)
        if kind == 0:
            raw[at : at + size] = rng.randbytes(size)
        elif kind == 1:
            raw[at : at + size] = b"\xff" * size
        elif kind == 2:
            raw[at : at + size] = bytes(size)
        else:
            value = rng.choice(_SIZES) % 2 ** (8 * size)
            raw[at : at + size] = value.to_bytes(size, "little")
    tensor.raw_data = bytes(raw)


def _move_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    """Store an initializer in another way: twice, sparse, in segments, as a constant, nameless."""
    graph = rng.choice(_graphs(model))
    tensor = rng.choice(graph.initializer)
    kind = rng.randrange(6)
    if kind == 0:
        graph.initializer.append(tensor)
    elif kind == 1:
        sparse = graph.sparse_initializer.add()
        sparse.values.CopyFrom(tensor)
        graph.initializer.remove(tensor)
    elif kind == 2:
        tensor.segment.begin = rng.choice(_SIZES)
    elif kind == 3:
        node = graph.node.add(op_type="Constant", output=[tensor.name])
        node.attribute.add(name="value", type=AttributeProto.TENSOR).t.CopyFrom(tensor)
        graph.initializer.remove(tensor)
    elif kind == 4:
        tensor.name = ""
    else:
        tensor.data_location = TensorProto.EXTERNAL


# Nodes


def _attribute_of_another_type(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = _attribute(model, rng)
    kind = rng.randrange(8)
    if kind == 0:
        attribute.type = rng.choice(range(15))
    elif kind == 1:
        attribute.type = AttributeProto.INTS
        attribute.ints.extend(rng.choices(_SIZES, k=rng.randrange(4)))
    elif kind == 2:
        attribute.type = AttributeProto.INT
        attribute.i = rng.choice(_SIZES)
    elif kind == 3:
        attribute.type = AttributeProto.FLOAT
        attribute.f = rng.choice(_FLOATS)
    elif kind == 4:
        attribute.type = AttributeProto.STRING
        attribute.s = rng.choice((b"", b"\xff\xfe", b"SAME_UPPER", b"x" * 1000))
    elif kind == 5:
        attribute.type = AttributeProto.TENSOR
        attribute.t.CopyFrom(_tensor(model, rng))
    elif kind == 6:
        attribute.ref_attr_name = rng.choice(_TEXTS)
    else:
        attribute.type = AttributeProto.GRAPH
        copy = onnx.GraphProto.FromString(rng.choice(_graphs(model)).SerializeToString())
        attribute.g.CopyFrom(copy)


def _wild_number(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = _attribute(model, rng)
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(_SIZES)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice(_FLOATS)
    elif attribute.type == AttributeProto.INTS:
        kind = rng.randrange(3)
        if kind == 0:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(_SIZES)
        elif kind == 1:
            attribute.ints.extend(attribute.ints)
        else:
            del attribute.ints[:]
    else:
        raise ValueError


def _lose_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if rng.random() < 0.7:
        node.attribute.remove(rng.choice(node.attribute))
    else:
        node.attribute.append(rng.choice(node.attribute))


def _rewire(model: onnx.ModelProto, rng: random.Random) -> None:
    """Cycles, values that nothing produces, values produced twice, too many or too few."""
    node = _node(model, rng)
    names = _names(model)
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


def _other_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    kind = rng.randrange(4)
    if kind <= 1:
        node.op_type = rng.choice(_OPERATORS)
    elif kind == 2:
        node.domain = rng.choice(("", "ai.onnx", "com.microsoft", "onnxfold", "local", "\n"))
    else:
        node.op_type = rng.choice(_TEXTS)


def _move_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    body = rng.choice(_bodies(model))
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


def _rename(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    thing = rng.choice([*graph.node, *graph.input, *graph.output, *graph.initializer, graph])
    thing.name = rng.choice((*_TEXTS, *_names(model)))


def _insert_allocation(model: onnx.ModelProto, rng: random.Random) -> None:
    """An operator whose result is as large as a number says."""
    graph = model.graph
    sizes = [
        rng.choice((1, 3, 2**16, 2**20, 2**33, 2**40, 2**62)) for _ in range(rng.choice((1, 2)))
    ]
    shape = onnx.helper.make_tensor("huge.shape", TensorProto.INT64, [len(sizes)], sizes)
    graph.initializer.append(shape)
    node = _node(model, rng)
    at = rng.randrange(len(node.input))
    source, node.input[at] = node.input[at], "huge"
    inputs = ["huge.shape"] if (kind := rng.randrange(3)) == 0 else [source, "huge.shape"]
    name = ("ConstantOfShape", "Expand", "Tile")[kind]
    graph.node.insert(0, onnx.helper.make_node(name, inputs, ["huge"]))


def _chain(model: onnx.ModelProto, rng: random.Random) -> None:
    """Thousands of operators in a row, from a constant or an activation."""
    node = _node(model, rng)
    at = rng.randrange(len(node.input))
    previous, length = node.input[at], rng.choice((50, 400, 1500))
    op_type = rng.choice(("Identity", "Neg", "Add", "Transpose", "Sqrt"))
    for step in range(length):
        inputs = [previous, previous] if op_type == "Add" else [previous]
        previous = f"chain{step}"
        model.graph.node.insert(step, onnx.helper.make_node(op_type, inputs, [previous]))
    node.input[at] = previous


def _insert_loop(model: onnx.ModelProto, rng: random.Random) -> None:
    """A loop of very many steps, or without end."""
    node = _node(model, rng)
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


# The model


def _nest(model: onnx.ModelProto, rng: random.Random) -> None:
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


def _functions(model: onnx.ModelProto, rng: random.Random) -> None:
    """Functions that call the next one: deep, twice each (2 to the depth in all), round."""
    depth = rng.choice((2, 5, 12, 18, 25, 300, 1500))
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
    # The insertion moved the nodes, so the reader is found again by what it reads.
    for reader in model.graph.node[1:]:
        for index, name in enumerate(reader.input):
            if name == model.graph.node[0].input[0]:
                reader.input[index] = "called"
                return


def _change_function(model: onnx.ModelProto, rng: random.Random) -> None:
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


def _header(model: onnx.ModelProto, rng: random.Random) -> None:
    kind = rng.randrange(6)
    if kind == 0:
        model.ir_version = rng.choice((*range(14), 2**62, -1))
    elif kind == 1:
        rng.choice(model.opset_import).version = rng.choice((*range(28), -1, 2**40))
    elif kind == 2:
        model.opset_import.add(domain=rng.choice(_TEXTS), version=rng.randrange(30))
    elif kind == 3:
        del model.opset_import[:]
    elif kind == 4:
        model.metadata_props.add(key=rng.choice(_TEXTS), value=rng.choice(_TEXTS))
    else:
        model.training_info.add()


def _value(model: onnx.ModelProto, rng: random.Random) -> None:
    """What an input or an output, or a value between, is said to be."""
    graph = rng.choice(_graphs(model))
    kind = rng.randrange(9)
    if kind == 0 and graph.node:
        value = graph.value_info.add(name=rng.choice(_names(model)))
        value.type.tensor_type.elem_type = rng.randrange(26)
        value.type.tensor_type.shape.dim.add(dim_value=rng.choice(_SIZES))
        return
    value = rng.choice([*graph.input, *graph.output, *graph.value_info])
    tensor = value.type.tensor_type
    if kind == 1:
        tensor.elem_type = rng.choice((*range(26), 99))
    elif kind == 2:
        rng.choice(tensor.shape.dim).dim_value = rng.choice(_SIZES)
    elif kind == 3:
        rng.choice(tensor.shape.dim).dim_param = rng.choice(_TEXTS)
    elif kind == 4:
        tensor.shape.dim.add(dim_value=rng.choice(_SIZES))
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


# Data files


def _externalise(model: onnx.ModelProto, rng: random.Random, made: Mutant) -> None:
    """Move raw data to one or two files, then perhaps say something else about it."""
    data = {"w0.data": bytearray(), "w1.data": bytearray()}
    links: list[TensorProto] = []
    for tensor in _tensors(model):
        if not tensor.HasField("raw_data") or rng.random() < 0.2:
            continue
        name = rng.choice(sorted(data))
        _refer(tensor, name, len(data[name]), len(tensor.raw_data))
        data[name] += tensor.raw_data
        tensor.ClearField("raw_data")
        links.append(tensor)
    made.done.append("externalise")
    if links and rng.random() < 0.8:
        made.done.append("wild_data")
        _wild_data(rng.choice(links), rng, data, made)
    made.files.update({name: bytes(content) for name, content in data.items()})


def _refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, item in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(item))


def _wild_data(
    tensor: TensorProto, rng: random.Random, data: dict[str, bytearray], made: Mutant
) -> None:
    entries = {entry.key: entry for entry in tensor.external_data}
    kind = rng.randrange(8)
    if kind == 0:
        wild = (*_SIZES, "0x10", "1.5", "", " 4", "\u0663", "9" * 400, "9" * 5000)
        entries[rng.choice(("offset", "length"))].value = str(rng.choice(wild))
    elif kind == 1:
        entries["offset"].value = str(rng.randrange(64))
    elif kind == 2:
        entries["location"].value = rng.choice(_LOCATIONS)
        made.links["link.data"] = rng.choice(("/etc/passwd", "..", "w0.data", "/proc/self/mem"))
        made.links["loop.data"] = "loop.data"
    elif kind == 3:
        name = entries["location"].value
        del data[name][rng.randrange(len(data[name]) or 1) :]
    elif kind == 4:
        tensor.external_data.remove(entries[rng.choice(("location", "offset", "length"))])
    elif kind == 5:
        tensor.external_data.append(rng.choice(tensor.external_data))
    elif kind == 6:
        tensor.raw_data = b"1234"
    else:
        tensor.external_data.add(key=rng.choice(_TEXTS), value=rng.choice(_TEXTS))


_Mutation = Callable[[onnx.ModelProto, random.Random], None]
_MUTATIONS: tuple[_Mutation, ...] = (
    _attribute_of_another_type,
    _chain,
    _change_function,
    _claim_dims,
    _claim_type,
    _cut_data,
    _functions,
    _header,
    _insert_allocation,
    _insert_loop,
    _lose_attribute,
    _lose_attribute,
    _move_nodes,
    _move_nodes,
    _move_tensor,
    _nest,
    _other_operator,
    _other_operator,
    _rename,
    _resize_honestly,
    _rewire,
    _rewire,
    _spoil_numbers,
    _spoil_numbers,
    _value,
    _value,
    _wild_number,
    _wild_number,
)
