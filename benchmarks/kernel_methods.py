"""The ways to compute a norm in ONNX Runtime on a CPU: chains of their nodes, bound to tensors."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.graphs import model, node_of_norm
from benchmarks.harness import CPU, outputs_on
from onnxfold.operators.functions import DOMAIN
from onnxfold.runtime.interleaved_timing import Bound, values_on
from onnxfold.runtime.library import register

__all__ = ["OPERATIONS", "OURS", "bound", "chain"]

OURS = "onnxfold"
_SIMPLIFIED = "SimplifiedLayerNormalization"
_LAYER_OF_SUM = "LayerNormalization t{1} scale bias -> y{1}"
# The nodes of a link by the name of the method; {0} is the number of the link, {1} the next one.
# "s" is the same tensor for all links.
OPERATIONS: dict[str, dict[str, str]] = {
    "rms": {
        OURS: "RMSNormScale y{0} scale -> y{1}",
        _SIMPLIFIED: "SimplifiedLayerNormalization y{0} scale -> y{1}",
        "RMSNormalization": "RMSNormalization y{0} scale -> y{1}",
    },
    "layer": {
        OURS: "LayerNormAffine y{0} scale bias -> y{1}",
        "LayerNormalization": "LayerNormalization y{0} scale bias -> y{1}",
    },
    "center": {
        OURS: "Center y{0} -> y{1}",
        "ReduceMean + Sub": "ReduceMean y{0} axes -> m{1}; Sub y{0} m{1} -> y{1}",
    },
    "bias": {"Add": "Add y{0} bias -> y{1}"},
    "add_rms": {
        OURS: "AddRMSNormScaleWithSum y{0} s{0} scale -> y{1} s{1}",
        f"Add + {_SIMPLIFIED}": "Add y{0} s{0} -> s{1}; "
        "SimplifiedLayerNormalization s{1} scale -> y{1}",
        f"Skip{_SIMPLIFIED}": "SkipSimplifiedLayerNormalization y{0} s{0} scale -> y{1} - - s{1}",
    },
    "add_layer": {
        OURS: "AddLayerNormAffineWithSum y{0} s{0} scale bias -> y{1} s{1}",
        "Add + LayerNormalization": "Add y{0} s{0} -> s{1}; "
        "LayerNormalization s{1} scale bias -> y{1}",
        "SkipLayerNormalization": "SkipLayerNormalization y{0} s{0} scale bias -> y{1} - - s{1}",
    },
    "post_layer": {
        OURS: "AddLayerNormAffine y{0} s scale bias -> y{1}",
        "Add + LayerNormalization": "Add y{0} s -> t{1}; " + _LAYER_OF_SUM,
        "Sum + LayerNormalization": "Sum y{0} s -> t{1}; " + _LAYER_OF_SUM,
        "SkipLayerNormalization": "SkipLayerNormalization y{0} s scale bias -> y{1}",
    },
    "post_rms": {
        OURS: "AddRMSNormScale y{0} s scale -> y{1}",
        f"Sum + {_SIMPLIFIED}": "Sum y{0} s -> t{1}; SimplifiedLayerNormalization "
        "t{1} scale -> y{1}",
        f"Skip{_SIMPLIFIED}": "SkipSimplifiedLayerNormalization y{0} s scale -> y{1}",
    },
    "bias_layer": {
        OURS: "AddBiasLayerNormAffine y{0} s bias scale bias -> y{1}",
        "Add + Sum + LayerNormalization": "Add y{0} bias -> b{1}; Sum b{1} s -> t{1}; "
        + _LAYER_OF_SUM,
        "Sum of three + LayerNormalization": "Sum y{0} bias s -> t{1}; " + _LAYER_OF_SUM,
        "SkipLayerNormalization with bias": "SkipLayerNormalization y{0} s scale bias bias -> y{1}",
    },
}


def chain(
    link: str, length: int, shape: Sequence[int | str], dtype: str = "float32", opset: int = 23
) -> onnx.ModelProto:
    """Return so many links: y0, s0 and s are inputs, the last y (and s) outputs."""
    each = link.split("; ")
    nodes = [node_of_norm(text.format(i, i + 1)) for i in range(length) for text in each]
    rng, size = np.random.default_rng(0), int(shape[-1])
    weights = {
        "scale": (1 + 0.1 * rng.standard_normal(size)).astype(dtype),
        "bias": rng.standard_normal(size).astype(dtype),
        "axes": np.array([-1]),
    }
    last = [f"y{length}", *([f"s{length}"] if "s{1}" in link else [])]
    inputs = dict.fromkeys(("y0", "s0", "s"), shape)
    return model(nodes, inputs, dict.fromkeys(last, shape), weights, opset=opset, dtype=dtype)


def bound(
    link: str, length: int, shape: Sequence[int], dtype: str = "float32", threads: int = 1
) -> Bound:
    """Open a session of a chain with its tensors; RuntimeError where other operators execute."""
    made = chain(link, length, shape, dtype)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    if any(each.domain == DOMAIN for each in made.graph.node):
        register(options)
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
        session = ort.InferenceSession(
            made.SerializeToString(),
            options,
            providers=[CPU],
            disabled_optimizers=["SkipLayerNormFusion"],
        )
        left = onnx.load(options.optimized_model_filepath).graph.node
    ops = sorted(each.op_type for each in left if each.op_type != "Cast")
    if ops != sorted(each.op_type for each in made.graph.node):
        raise RuntimeError(f"'{link}' became {sorted(set(ops))}; its time means nothing")
    rng = np.random.default_rng(1)
    feeds = {value.name: rng.standard_normal(shape).astype(dtype) for value in session.get_inputs()}
    return Bound(session, values_on("cpu", feeds), outputs_on("cpu", session, feeds))
