"""Small models on disk, with every kind of place that a tensor can be in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from onnxfold import model_io
from tests.sessions import outputs

Array = npt.NDArray[Any]
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
Range = tuple[str, int]


def weight(name: str, *shape: int) -> onnx.TensorProto:
    """Seeded by its name, so that two models with the same names have the same weights."""
    rng = np.random.default_rng(list(name.encode()))
    return numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name)


def value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def rich_model(width: int = 64) -> onnx.ModelProto:
    """y = f((x W1 + b) W2 c), c in a branch: weights in all places, texts on all levels."""
    then = helper.make_graph(
        [helper.make_node("MatMul", ["m", "c"], ["t"], name="inner")],
        "then",
        [],
        [value("t", "n", width)],
        [weight("c", width, width), weight("c.small", 2)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["m"], ["e"])], "else", [], [value("e", "n", width)]
    )
    yes = numpy_helper.from_array(np.array(True))
    nodes = [
        helper.make_node("MatMul", ["x", "W1"], ["h0"], name="first", doc_string="a node"),
        helper.make_node("Add", ["h0", "b"], ["h"], name="bias"),
        helper.make_node("MatMul", ["h", "W2"], ["m"]),
        helper.make_node("Constant", [], ["yes"], value=yes),
        helper.make_node("If", ["yes"], ["z"], then_branch=then, else_branch=other),
        helper.make_node("scale", ["z"], ["y"], domain="local"),
    ]
    nodes[0].metadata_props.add(key="namespace", value="layer.0")
    body = [
        helper.make_node(
            "Constant", [], ["k"], value=numpy_helper.from_array(np.array(0.5, np.float32))
        ),
        helper.make_node("Mul", ["a", "k"], ["o"]),
    ]
    function = helper.make_function("local", "scale", ["a"], ["o"], body, OPSETS[:1])
    function.doc_string = "half of it"
    graph = helper.make_graph(
        nodes,
        "main",
        [value("x", "n", width)],
        [value("y", "n", width)],
        [weight("W1", width, width), weight("b", width), weight("W2", width, width)],
        doc_string="a graph",
        value_info=[value("h", "n", width)],
    )
    graph.metadata_props.add(key="graph", value="kept")
    graph.initializer[0].doc_string = "a weight"
    graph.initializer[0].metadata_props.add(key="origin", value="training")
    graph.initializer[1].metadata_props.add(key="origin", value="bias")
    model = helper.make_model(
        graph,
        opset_imports=OPSETS,
        functions=[function],
        ir_version=10,
        producer_name="exporter",
        producer_version="1.2",
        doc_string="a model",
        domain="org.example",
        model_version=3,
    )
    helper.set_model_props(model, {"licence": "MIT", "author": "someone"})
    return model


def linear(*weights: onnx.TensorProto) -> onnx.ModelProto:
    """A model whose initializers are `weights`, of any type; none of them is read."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "linear",
        [value("x", "n")],
        [value("y", "n")],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=OPSETS[:1], ir_version=10)


def typed_weights() -> list[onnx.TensorProto]:
    """One tensor of every kind of storage, large enough to leave the protobuf where it may."""
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 256, 4096, dtype=np.uint8)
    arrays = {
        "odd_int8": bits[:1025].view(np.int8),
        "float": rng.standard_normal((32, 33), dtype=np.float32),
        "double": rng.standard_normal(300),
        "half": rng.standard_normal(1000).astype(np.float16),
        "bfloat16": rng.standard_normal(1000).astype(ml_dtypes.bfloat16),
        "fp8": (bits & 0x77).view(ml_dtypes.float8_e4m3fn),
        "int4": rng.integers(-8, 8, (3, 1001)).astype(ml_dtypes.int4),
        "uint4": rng.integers(0, 16, (4096,)).astype(ml_dtypes.uint4),
        "int2": rng.integers(-2, 2, (8195,)).astype(ml_dtypes.int2),
        "bool": bits > 100,
        "complex": rng.standard_normal(200) + 1j * rng.standard_normal(200),
        "int64": bits.view(np.int64),
        "empty": np.empty((0, 4), np.float32),
        "scalar": np.array(3.0, np.float32),
    }
    weights = [ir.serde.serialize_tensor(ir.tensor(a, name=name)) for name, a in arrays.items()]
    text = np.array([b"a", b"", b"text" * 1000], object)
    weights.append(numpy_helper.from_array(text, "text"))
    weights.append(helper.make_tensor("fields", TensorProto.FLOAT, [400], list(range(400))))
    weights.append(helper.make_tensor("fields16", TensorProto.FLOAT16, [600], [1.5] * 600))
    return weights


def save(
    model: onnx.ModelProto,
    path: Path,
    *data: str,
    place: Callable[[int, onnx.TensorProto], Range] | None = None,
) -> Path:
    """Write a model; with data files, its initializers are dealt to them in turn, densely."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    ends = dict.fromkeys(data, 0)
    for index, tensor in enumerate(model.graph.initializer if data else ()):
        if not tensor.HasField("raw_data"):
            continue
        name = data[index % len(data)]
        location, offset = (name, ends[name]) if place is None else place(index, tensor)
        with open(path.parent / location, "r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(tensor.raw_data)
        ends[name] = offset + len(tensor.raw_data)
        refer(tensor, location, offset, len(tensor.raw_data))
    path.write_bytes(model.SerializeToString())
    return path


def refer(tensor: onnx.TensorProto, location: str, offset: object, length: object) -> None:
    """Replace the bytes of a tensor by a reference to external data."""
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, item in (("location", location), ("offset", offset), ("length", length)):
        if item is not None:
            tensor.external_data.add(key=key, value=str(item))


def contents(path: Path) -> dict[str, bytes]:
    """Every initializer of the main graph of a model on disk, as onnx itself reads it."""
    model = onnx.load(path)
    return {t.name: canonical(t) for t in model.graph.initializer}


def canonical(tensor: onnx.TensorProto) -> bytes:
    if tensor.data_type == TensorProto.STRING:
        return b"\0".join(tensor.string_data)
    return bytes(ir.serde.deserialize_tensor(tensor).tobytes())


def run(path: Path, width: int = 64) -> Array:
    """What ONNX Runtime computes with a rich model, for one fixed input."""
    x = np.linspace(-1, 1, 3 * width, dtype=np.float32).reshape(3, width)
    (y,) = outputs(path, {"x": x})
    return y


def listing(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir())


def written(model: ir.Model, path: Path, **options: bool | int | None) -> model_io.OutputFiles:
    with model_io.stage(model, path, **options) as staged:  # type: ignore[arg-type]  # the options
        return staged.commit()


def lazily(tensor: ir.TensorProtocol, edit: Callable[[Array], Array]) -> ir.LazyTensor:
    return ir.LazyTensor(
        lambda: ir.Tensor(edit(tensor.numpy())),
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
    )
