"""One small float64 graph per reason to leave a norm alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfold.graph import AxisBlock, Fiber
from onnxfold.passes.centring.plan import Fold, WeightCentring
from onnxfold.passes.plan import Plan
from onnxfold.refusal import RefusalCode

__all__ = ["CASES", "Case"]

Array = npt.NDArray[Any]
B, T, C = 2, 4, 6


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the norm that is left, what is at fault, and the plan that is forbidden."""

    code: RefusalCode
    culprit: str
    model: onnx.ModelProto
    feeds: dict[str, Array]
    norm: str = "ln"
    weights: tuple[tuple[str, int], ...] = ()

    def forbidden(self) -> Plan:
        """Fold the norm all the same, and center the weights along the given axes."""
        sizes = {t.name: tuple(t.dims) for t in self.model.graph.initializer}
        return Plan(
            (Fold(self.norm, self.norm),),
            tuple(
                WeightCentring(name, Fiber((AxisBlock(axis, 1, sizes[name][axis], 1),)), 0)
                for name, axis in self.weights
            ),
        )


@dataclass(slots=True)
class _Graph:
    opset: int = 18
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, tuple[int, list[int | str]]] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    declared: list[onnx.ValueInfoProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        self.input("x", self.rng.standard_normal((B, T, C)) + 1, ["batch", T, C])

    def input(self, name: str, array: Array, dims: list[int | str] | None = None) -> str:
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.inputs[name] = (element, list(array.shape) if dims is None else dims)
        self.feeds[name] = array
        return name

    def weight(self, name: str, *shape: int) -> str:
        self.weights[name] = self.rng.standard_normal(shape) + 0.5
        return name

    def node(self, op_type: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name=outputs[0], **attributes))
        return outputs[0]

    def linear(self, name: str = "h", weight: str = "W") -> str:
        return self.node("MatMul", ["x", self.weight(weight, C, C)], name)

    def norm(self, x: str, name: str = "ln", size: int = C) -> str:
        self.weights[f"{name}.gamma"] = 1 + self.rng.random(size)
        self.weights[f"{name}.beta"] = self.rng.random(size)
        inputs = [x, f"{name}.gamma", f"{name}.beta"]
        return self.node("LayerNormalization", inputs, name, axis=-1)

    def case(
        self,
        code: RefusalCode,
        culprit: str,
        *outputs: str,
        weights: tuple[tuple[str, int], ...] = (),
        overridable: tuple[str, ...] = (),
    ) -> Case:
        inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in self.inputs.items()]
        inputs += [
            helper.make_tensor_value_info(name, TensorProto.DOUBLE, self.weights[name].shape)
            for name in overridable
        ]
        graph = helper.make_graph(
            self.nodes,
            code.value,
            inputs,
            [helper.make_empty_tensor_value_info(name) for name in ("ln", *outputs)],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
            value_info=self.declared,
        )
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=9)
        return Case(code, culprit, model, self.feeds, weights=weights)


def _activation() -> Case:
    graph = _Graph()
    graph.norm(graph.node("Relu", [graph.linear()], "relu"))
    return graph.case(RefusalCode.ACTIVATION, "relu")


def _affine_norm_output() -> Case:
    graph = _Graph()
    graph.norm(graph.norm(graph.linear(), "first"))
    return graph.case(RefusalCode.AFFINE_NORM_OUTPUT, "first")


def _body_border() -> Case:
    graph = _Graph()
    graph.input("flag", np.array(True))
    graph.linear()
    branches = [
        helper.make_graph(
            [helper.make_node(op_type, ["h"], [op_type])],
            op_type,
            [],
            [helper.make_tensor_value_info(op_type, TensorProto.DOUBLE, ["batch", T, C])],
        )
        for op_type in ("Neg", "Identity")
    ]
    graph.node("If", ["flag"], "if", then_branch=branches[0], else_branch=branches[1])
    graph.norm("if")
    return graph.case(RefusalCode.BODY_BORDER, "if", weights=())


def _concat_along_fiber() -> Case:
    graph = _Graph()
    half = C // 2
    graph.node("MatMul", ["x", graph.weight("W", C, half)], "a")
    graph.node("MatMul", [graph.node("Tanh", ["x"], "z"), graph.weight("V", C, half)], "b")
    graph.norm(graph.node("Concat", ["a", "b"], "joined", axis=-1))
    weights = (("W", 1), ("V", 1))
    return graph.case(RefusalCode.CONCAT_ALONG_FIBER, "joined", weights=weights)


def _exact_reader() -> Case:
    graph = _Graph()
    graph.norm(graph.linear())
    graph.node("Sigmoid", ["h"], "seen")
    return graph.case(RefusalCode.EXACT_READER, "seen", "seen", weights=(("W", 1),))


def _fiber_broken() -> Case:
    graph = _Graph()
    graph.weights["shape"] = np.array([-1, 4], dtype=np.int64)
    graph.norm(graph.node("Reshape", [graph.linear(), "shape"], "regrouped"), size=4)
    return graph.case(RefusalCode.FIBER_BROKEN, "regrouped", weights=(("W", 1),))


def _graph_input() -> Case:
    graph = _Graph()
    graph.norm("x")
    return graph.case(RefusalCode.GRAPH_INPUT, "x")


def _graph_output() -> Case:
    graph = _Graph()
    graph.norm(graph.linear())
    return graph.case(RefusalCode.GRAPH_OUTPUT, "h", "h", weights=(("W", 1),))


def _grouped_convolution() -> Case:
    graph = _Graph()
    graph.node("Transpose", ["x"], "channels_first", perm=[0, 2, 1])
    graph.node("Conv", ["channels_first", graph.weight("W", C, C // 2, 1)], "conv", group=2)
    graph.norm(graph.node("Transpose", ["conv"], "h", perm=[0, 2, 1]))
    return graph.case(RefusalCode.GROUPED_CONVOLUTION, "conv", weights=(("W", 0),))


def _not_centred_norm() -> Case:
    graph = _Graph(opset=23)
    graph.norm(graph.linear())
    graph.node("RMSNormalization", ["h", graph.weight("scale", C)], "rms", axis=-1)
    return graph.case(RefusalCode.NOT_CENTRED_NORM, "rms", "rms", weights=(("W", 1),))


def _overridable_initializer() -> Case:
    graph = _Graph()
    graph.norm(graph.linear())
    return graph.case(RefusalCode.OVERRIDABLE_INITIALIZER, "W", overridable=("W",))


def _quantised() -> Case:
    graph = _Graph(opset=21)
    graph.weights["q"] = graph.rng.integers(-100, 120, (C, C)).astype(np.int8)
    graph.weights["step"] = np.array(0.02, dtype=np.float32)
    graph.node("DequantizeLinear", ["q", "step"], "single")
    graph.node("Cast", ["single"], "W", to=TensorProto.DOUBLE)
    graph.norm(graph.node("MatMul", ["x", "W"], "h"))
    return graph.case(RefusalCode.QUANTISED, "single")


def _statistics_read() -> Case:
    """The mean of a spelled-out norm has another reader."""
    graph = _Graph()
    h = graph.linear()
    graph.weights |= {
        "axes": np.array([-1], dtype=np.int64),
        "two": np.array(2.0),
        "epsilon": np.array(2.0**-10),
    }
    graph.node("ReduceMean", [h, "axes"], "mean")
    graph.node("Sub", [h, "mean"], "centred")
    graph.node("Pow", ["centred", "two"], "square")
    graph.node("ReduceMean", ["square", "axes"], "variance")
    graph.node("Add", ["variance", "epsilon"], "moved")
    graph.node("Sqrt", ["moved"], "deviation")
    graph.node("Div", ["centred", "deviation"], "ln")
    graph.node("Sigmoid", ["mean"], "seen")
    return graph.case(RefusalCode.STATISTICS_READ, "mean", "seen", weights=(("W", 1),))


def _unknown_op() -> Case:
    graph = _Graph()
    graph.norm(graph.node("Trilu", [graph.linear()], "triangle"))
    return graph.case(RefusalCode.UNKNOWN_OP, "triangle", weights=(("W", 1),))


def _unknown_shape() -> Case:
    graph = _Graph()
    graph.input("shape", np.array([B, T, C], dtype=np.int64), ["rank"])
    graph.node("Reshape", ["x", "shape"], "anything")
    graph.node("Add", [graph.linear(), "anything"], "sum")
    dims: list[int | str] = ["batch", T, C]
    graph.declared.append(helper.make_tensor_value_info("sum", TensorProto.DOUBLE, dims))
    graph.norm("sum")
    return graph.case(RefusalCode.UNKNOWN_SHAPE, "sum", weights=(("W", 1),))


def _unsupported_type() -> Case:
    graph = _Graph()
    graph.input("counts", graph.rng.integers(0, 9, (B, T, C)), ["batch", T, C])
    graph.norm(graph.node("Cast", ["counts"], "floats", to=TensorProto.DOUBLE))
    return graph.case(RefusalCode.UNSUPPORTED_TYPE, "floats")


def _varies_along_fiber() -> Case:
    graph = _Graph()
    graph.norm(graph.node("Mul", [graph.linear(), graph.weight("scale", C)], "scaled"))
    return graph.case(RefusalCode.VARIES_ALONG_FIBER, "scaled", weights=(("W", 1),))


CASES: tuple[Callable[[], Case], ...] = (
    _activation,
    _affine_norm_output,
    _body_border,
    _concat_along_fiber,
    _exact_reader,
    _fiber_broken,
    _graph_input,
    _graph_output,
    _grouped_convolution,
    _not_centred_norm,
    _overridable_initializer,
    _quantised,
    _statistics_read,
    _unknown_op,
    _unknown_shape,
    _unsupported_type,
    _varies_along_fiber,
)
