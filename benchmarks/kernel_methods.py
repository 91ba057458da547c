"""The ways to compute a norm in ONNX Runtime on a CPU that benchmarks/kernels.py compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfold.operators.functions import DOMAIN, VERSION

__all__ = ["LENGTH", "OPERATIONS", "OURS", "TYPES", "Method", "chain"]

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
LENGTH = 96
EPSILON = 1e-5
OURS = "onnxfold"


@dataclass(frozen=True, slots=True)
class Method:
    """One way to compute an operation: op templates, `{0}` in place of the index of the link.

    `disabled` names optimizers of ONNX Runtime to leave out; `left` are the ops that a link must
    still be made of when the session is ready, so that what is timed is what is named.
    """

    name: str
    link: Sequence[tuple[str, str, str, str]]  # op, domain, inputs, outputs
    left: tuple[str, ...]
    disabled: tuple[str, ...] = ()


SKIP = "com.microsoft"
NO_SKIP = ("SkipLayerNormFusion",)
SIMPLIFIED = ("SimplifiedLayerNormalization", "", "y{0} scale", "y{1}")
LAYER_OF_SUM = ("LayerNormalization", "", "t{1} scale bias", "y{1}")
ADD = ("Add", "", "y{0} s{0}", "s{1}")
OPERATIONS: dict[str, tuple[Method, ...]] = {
    "rms": (
        Method(OURS, [("RMSNormScale", DOMAIN, "y{0} scale", "y{1}")], ("RMSNormScale",)),
        Method("SimplifiedLayerNormalization", [SIMPLIFIED], ("SimplifiedLayerNormalization",)),
        Method(
            "RMSNormalization",
            [("RMSNormalization", "", "y{0} scale", "y{1}")],
            ("RMSNormalization",),
        ),
    ),
    "layer": (
        Method(
            OURS, [("LayerNormAffine", DOMAIN, "y{0} scale bias", "y{1}")], ("LayerNormAffine",)
        ),
        Method(
            "LayerNormalization",
            [("LayerNormalization", "", "y{0} scale bias", "y{1}")],
            ("LayerNormalization",),
        ),
    ),
    "center": (
        Method(OURS, [("Center", DOMAIN, "y{0}", "y{1}")], ("Center",)),
        Method(
            "ReduceMean + Sub",
            [("ReduceMean", "", "y{0} axes", "m{1}"), ("Sub", "", "y{0} m{1}", "y{1}")],
            ("ReduceMean", "Sub"),
        ),
    ),
    "bias": (Method("Add", [("Add", "", "y{0} bias", "y{1}")], ("Add",)),),
    "add_rms": (
        Method(
            OURS,
            [("AddRMSNormScaleWithSum", DOMAIN, "y{0} s{0} scale", "y{1} s{1}")],
            ("AddRMSNormScaleWithSum",),
        ),
        Method(
            "Add + SimplifiedLayerNormalization",
            [ADD, ("SimplifiedLayerNormalization", "", "s{1} scale", "y{1}")],
            ("Add", "SimplifiedLayerNormalization"),
            NO_SKIP,
        ),
        Method(
            "SkipSimplifiedLayerNormalization",
            [("SkipSimplifiedLayerNormalization", SKIP, "y{0} s{0} scale", "y{1} - - s{1}")],
            ("SkipSimplifiedLayerNormalization",),
        ),
    ),
    "add_layer": (
        Method(
            OURS,
            [("AddLayerNormAffineWithSum", DOMAIN, "y{0} s{0} scale bias", "y{1} s{1}")],
            ("AddLayerNormAffineWithSum",),
        ),
        Method(
            "Add + LayerNormalization",
            [ADD, ("LayerNormalization", "", "s{1} scale bias", "y{1}")],
            ("Add", "LayerNormalization"),
            NO_SKIP,
        ),
        Method(
            "SkipLayerNormalization",
            [("SkipLayerNormalization", SKIP, "y{0} s{0} scale bias", "y{1} - - s{1}")],
            ("SkipLayerNormalization",),
        ),
    ),
    "post_layer": (
        Method(
            OURS,
            [("AddLayerNormAffine", DOMAIN, "y{0} s0 scale bias", "y{1}")],
            ("AddLayerNormAffine",),
        ),
        Method(
            "Add + LayerNormalization",
            [
                ("Add", "", "y{0} s0", "t{1}"),
                ("LayerNormalization", "", "t{1} scale bias", "y{1}"),
            ],
            ("Add", "LayerNormalization"),
            NO_SKIP,
        ),
        Method(
            "Sum + LayerNormalization",
            [("Sum", "", "y{0} s0", "t{1}"), LAYER_OF_SUM],
            ("Sum", "LayerNormalization"),
        ),
        Method(
            "SkipLayerNormalization",
            [("SkipLayerNormalization", SKIP, "y{0} s0 scale bias", "y{1}")],
            ("SkipLayerNormalization",),
        ),
    ),
    "post_rms": (
        Method(OURS, [("AddRMSNormScale", DOMAIN, "y{0} s0 scale", "y{1}")], ("AddRMSNormScale",)),
        Method(
            "Sum + SimplifiedLayerNormalization",
            [
                ("Sum", "", "y{0} s0", "t{1}"),
                ("SimplifiedLayerNormalization", "", "t{1} scale", "y{1}"),
            ],
            ("Sum", "SimplifiedLayerNormalization"),
        ),
        Method(
            "SkipSimplifiedLayerNormalization",
            [("SkipSimplifiedLayerNormalization", SKIP, "y{0} s0 scale", "y{1}")],
            ("SkipSimplifiedLayerNormalization",),
        ),
    ),
    "bias_layer": (
        Method(
            OURS,
            [("AddBiasLayerNormAffine", DOMAIN, "y{0} s0 bias scale bias", "y{1}")],
            ("AddBiasLayerNormAffine",),
        ),
        Method(
            "Add + Sum + LayerNormalization",
            [
                ("Add", "", "y{0} bias", "b{1}"),
                ("Sum", "", "b{1} s0", "t{1}"),
                LAYER_OF_SUM,
            ],
            ("Add", "Sum", "LayerNormalization"),
        ),
        Method(
            "Sum of three + LayerNormalization",
            [("Sum", "", "y{0} bias s0", "t{1}"), LAYER_OF_SUM],
            ("Sum", "LayerNormalization"),
        ),
        Method(
            "SkipLayerNormalization with bias",
            [("SkipLayerNormalization", SKIP, "y{0} s0 scale bias bias", "y{1}")],
            ("SkipLayerNormalization",),
        ),
    ),
}


def chain(method: Method, size: int, dtype: str) -> onnx.ModelProto:
    """LENGTH links: y0 and s0 are inputs, the last y (and s) outputs."""

    def names(template: str, i: int) -> list[str]:
        return [name.strip("-") for name in template.format(i, i + 1).split()]

    nodes = []
    for i in range(LENGTH):
        for op, domain, inputs, outputs in method.link:
            node = helper.make_node(op, names(inputs, i), names(outputs, i), domain=domain)
            node.attribute.extend(_attributes(op, domain))
            nodes.append(node)
    rng = np.random.default_rng(0)
    weights = {
        "scale": (1 + 0.1 * rng.standard_normal(size)).astype(dtype),
        "bias": rng.standard_normal(size).astype(dtype),
        "axes": np.array([-1]),
    }
    used = {name for node in nodes for name in node.input}
    given = [name for name in ("y0", "s0") if name in used]
    made = {name for node in nodes for name in node.output}
    last = [name for name in (f"y{LENGTH}", f"s{LENGTH}") if name in made]

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TYPES[dtype], ["rows", size])

    graph = helper.make_graph(
        nodes,
        "chain",
        [info(name) for name in given],
        [info(name) for name in last],
        [numpy_helper.from_array(value, name) for name, value in weights.items() if name in used],
    )
    imports = [helper.make_opsetid(d, v) for d, v in (("", 23), (DOMAIN, VERSION), (SKIP, 1))]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _attributes(op: str, domain: str) -> list[onnx.AttributeProto]:
    if op in ("Add", "ReduceMean", "Sub", "Sum"):
        return []
    found: dict[str, float | int | list[int]] = {}
    if op != "Center":
        found["epsilon"] = EPSILON
    if not op.startswith("Skip"):
        found["axis"] = -1
    return [helper.make_attribute(name, value) for name, value in found.items()]
