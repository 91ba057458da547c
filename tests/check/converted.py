"""A small encoder with a mask, its converted forms, and faults planted in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfold.model_io import from_proto, materialise
from tests.builders import model_of

Array = np.ndarray
WIDTH, TOKENS = 16, 40


def encoder() -> onnx.ModelProto:
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    weights = {
        "table": rng.standard_normal((TOKENS, WIDTH)).astype(np.float32),
        **{f"W{name}": weight(WIDTH, WIDTH) for name in "qkvo"},
        "bo": weight(WIDTH),
        "Wup": weight(WIDTH, 32),
        "bup": weight(32),
        "Wdown": weight(32, WIDTH),
        "Whead": weight(WIDTH, 6),
        "one": np.float32(1),
        "far": np.float32(-30),
        "scale": np.float32(WIDTH**-0.5),
        "axes": np.array([1], np.int64),
        "gamma": (1 + 0.1 * rng.standard_normal(WIDTH)).astype(np.float32),
        "beta": (0.1 * rng.standard_normal(WIDTH)).astype(np.float32),
    }

    def node(kind: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
        name = f"node_{output}"
        return helper.make_node(kind, inputs.split(), [output], name=name, **attributes)

    nodes = [
        node("Gather", "table ids", "x"),
        node("Cast", "mask", "real", to=TensorProto.FLOAT),
        node("Sub", "one real", "absent"),
        node("Mul", "absent far", "bar"),
        node("Unsqueeze", "bar axes", "bars"),
        *(node("MatMul", f"x W{name}", name) for name in "qkv"),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "products"),
        node("Mul", "products scale", "scaled"),
        node("Add", "scaled bars", "scores"),
        node("Softmax", "scores", "weights", axis=-1),
        node("MatMul", "weights v", "mixed"),
        node("MatMul", "mixed Wo", "out"),
        node("Add", "out bo", "outb"),
        node("Add", "x outb", "sum"),
        node("LayerNormalization", "sum gamma beta", "normed"),
        node("MatMul", "normed Wup", "up"),
        node("Add", "up bup", "upb"),
        node("Tanh", "upb", "bent"),
        node("MatMul", "bent Wdown", "down"),
        node("MatMul", "down Whead", "logits"),
    ]
    ids = (TensorProto.INT64, ["batch", "time"])
    logits = (TensorProto.FLOAT, ["batch", "time", 6])
    return model_of(nodes, {"ids": ids, "mask": ids}, {"logits": logits}, weights)


def rows(count: int, seed: int = 0, time: int = 9) -> list[dict[str, Array]]:
    """Tokens with padding, as data would be."""
    rng = np.random.default_rng(seed)
    mask = np.ones((1, time), np.int64)
    mask[:, 6:] = 0
    return [{"ids": rng.integers(0, TOKENS, (1, time)), "mask": mask} for _ in range(count)]


def dynamic(model: onnx.ModelProto, folder: Path, **options: object) -> onnx.ModelProto:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(model, folder / "int8.onnx", **options)
    return onnx.load(folder / "int8.onnx")


def static(
    model: onnx.ModelProto, folder: Path, data: Sequence[dict[str, Array]], **options: object
) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter(data)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.rows, None)

    onnx.save(model, folder / "float.onnx")
    quantize_static(folder / "float.onnx", folder / "qdq.onnx", Reader(), **options)
    return onnx.load(folder / "qdq.onnx")


def half(model: onnx.ModelProto, **options: object) -> onnx.ModelProto:
    """In order, which the converter's own result is not."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return materialise(from_proto(convert_float_to_float16(copy, **options)))


def change_weight(
    model: onnx.ModelProto, name: str, change: Callable[[Array], Array]
) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    tensor = next(t for t in changed.graph.initializer if t.name == name)
    old = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(change(old), old.dtype), name))
    return changed


def drop(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Let readers of a node's result read its first input."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    gone = next(n for n in changed.graph.node if n.name == name)
    changed.graph.node.remove(gone)
    for node in changed.graph.node:
        for place, read in enumerate(node.input):
            if read == gone.output[0]:
                node.input[place] = gone.input[0]
    return changed


def rename_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give all results and nodes names of another tool."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    kept = {v.name for v in (*changed.graph.input, *changed.graph.output)}
    names: dict[str, str] = {}
    for number, node in enumerate(changed.graph.node):
        node.name = f"{node.op_type}_{number}"
        for place, name in enumerate(node.output):
            names[name] = name if name in kept else f"tensor.{number}.{place}"
    for node in changed.graph.node:
        for names_of in (node.input, node.output):
            names_of[:] = [names.get(name, name) for name in names_of]
    del changed.graph.value_info[:]
    return changed
