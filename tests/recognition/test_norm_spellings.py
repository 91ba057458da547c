"""Random spellings of one norm: whatever the order of operands and the ops, one site is found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxfold.norms import EpsilonMode, NormKind
from tests.recognition.replay import random_feeds, replay, sites_of, values_of

# Spellings with E[x^2] - E[x]^2 lose up to (mean / std)^2 ulps; the data has mean 0.3 and std 1.
BOUND = 2e-5
EPSILON = 1e-3
SHAPE = (3, 4, 5)


@dataclass
class Writer:
    """Collects nodes and constants."""

    opset: int

    def __post_init__(self):
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def op(self, op_type: str, *inputs: str, **attributes) -> str:
        name = f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def constant(self, value, dtype=np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def reduce(self, op_type: str, x: str, axes, keepdims: int) -> str:
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.op(op_type, x, self.constant(axes, np.int64), keepdims=keepdims)
        return self.op(op_type, x, axes=axes, keepdims=keepdims)

    def unsqueeze(self, x: str, axes) -> str:
        if self.opset >= 13:
            return self.op("Unsqueeze", x, self.constant(axes, np.int64))
        return self.op("Unsqueeze", x, axes=axes)


@dataclass
class Spelling:
    """Draws one way to write each part of a norm over ``axes``."""

    draw: st.DrawFn
    writer: Writer
    axes: tuple[int, ...]

    def one_of(self, *ways):
        return self.draw(st.sampled_from(ways))

    def flip(self) -> bool:
        return self.draw(st.booleans())

    def both(self, op_type: str, a: str, b: str) -> str:
        return self.writer.op(op_type, b, a) if self.flip() else self.writer.op(op_type, a, b)

    def noise(self, x: str) -> str:
        """Sometimes add an operator without effect."""
        way = self.one_of("none", "none", "none", "identity", "cast", "one", "zero", "dropout")
        if way == "identity":
            return self.writer.op("Identity", x)
        if way == "cast":
            return self.writer.op("Cast", x, to=TensorProto.FLOAT)
        if way == "one":
            return self.both("Mul", x, self.writer.constant([1.0]))
        if way == "zero":
            return self.both("Add", x, self.writer.constant(0.0))
        return self.writer.op("Dropout", x) if way == "dropout" else x

    def spelt_axes(self):
        axes = [axis - 3 if self.flip() else axis for axis in self.axes]
        return axes[::-1] if self.flip() else axes

    def mean(self, x: str) -> str:
        """Mean over the axes, kept."""
        n = float(np.prod([SHAPE[axis] for axis in self.axes]))
        keepdims = int(self.flip())
        way = self.one_of("mean", "sum / n", "sum * 1/n")
        if way == "mean":
            result = self.writer.reduce("ReduceMean", x, self.spelt_axes(), keepdims)
        else:
            total = self.writer.reduce("ReduceSum", x, self.spelt_axes(), keepdims)
            if way == "sum / n":
                result = self.writer.op("Div", total, self.writer.constant(n))
            else:
                result = self.both("Mul", total, self.writer.constant(1.0 / n))
        return result if keepdims else self.restored(result)

    def restored(self, x: str) -> str:
        if self.flip():
            return self.writer.unsqueeze(x, sorted(self.axes))
        kept = [1 if axis in self.axes else size for axis, size in enumerate(SHAPE)]
        kept = [0 if axis == 0 and size != 1 else size for axis, size in enumerate(kept)]
        shape = self.writer.constant(kept, np.int64)
        return self.writer.op("Reshape", x, shape)

    def square(self, x: str) -> str:
        way = self.one_of("pow", "mul", "abs")
        if way == "mul":
            return self.writer.op("Mul", x, x)
        base = self.writer.op("Abs", x) if way == "abs" else x
        exponent = self.writer.constant(self.one_of(2.0, [2.0]))
        return self.writer.op("Pow", base, exponent)

    def reciprocal(self, s: str) -> str:
        way = self.one_of("reciprocal", "div", "pow")
        if way == "reciprocal":
            return self.writer.op("Reciprocal", s)
        if way == "div":
            return self.writer.op("Div", self.writer.constant(1.0), s)
        return self.writer.op("Pow", s, self.writer.constant(-1.0))

    def root(self, v: str) -> str:
        if self.flip():
            return self.writer.op("Sqrt", v)
        return self.writer.op("Pow", v, self.writer.constant(0.5))

    def denominator(self, v: str) -> tuple[str, EpsilonMode]:
        mode = self.draw(st.sampled_from(EpsilonMode))
        e = self.writer.constant(self.one_of(EPSILON, [EPSILON]))
        if mode is EpsilonMode.INSIDE:
            return self.root(self.noise(self.both("Add", v, e))), mode
        if mode is EpsilonMode.MAX_INSIDE:
            return self.root(self.both("Max", v, e)), mode
        s = self.root(v)
        if mode is EpsilonMode.OUTSIDE:
            return self.both("Add", s, e), mode
        if self.flip():
            return self.both("Max", s, e), mode
        low = self.writer.constant(EPSILON)
        return self.writer.op("Clip", s, low), mode


@dataclass
class Norm:
    """A norm that is being written: its parts, as names of values."""

    s: Spelling
    x: str
    gamma: str | None
    beta: str | None
    mean: str | None = None
    numerator: str = ""
    deviation: str = ""

    def affine(self, y: str) -> str:
        if self.gamma is not None or self.beta is not None:
            y = self.s.noise(y)
        if self.gamma is not None:
            y = self.s.both("Mul", y, self.gamma)
        return y if self.beta is None else self.s.both("Add", y, self.beta)

    def gamma_first(self) -> str:
        m = self.s.reciprocal(self.deviation)
        if self.gamma is not None:
            m = self.s.both("Mul", m, self.gamma)
        y = self.s.both("Mul", self.numerator, m)
        return y if self.beta is None else self.s.both("Add", y, self.beta)

    def mean_late(self) -> str:
        m = self.s.reciprocal(self.deviation)
        if self.gamma is not None:
            m = self.s.both("Mul", m, self.gamma)
        late, scaled = self.s.both("Mul", self.mean, m), self.s.both("Mul", self.x, m)
        if self.beta is None:
            return self.s.writer.op("Sub", scaled, late)
        return self.s.both("Add", scaled, self.s.writer.op("Sub", self.beta, late))

    def written(self) -> str:
        ways = ["div", "mul", "gamma first"] + (["mean late"] if self.mean is not None else [])
        way = self.s.one_of(*ways)
        if way == "gamma first":
            return self.gamma_first()
        if way == "mean late":
            return self.mean_late()
        if way == "div":
            return self.affine(self.s.writer.op("Div", self.numerator, self.deviation))
        reciprocal = self.s.reciprocal(self.deviation)
        return self.affine(self.s.both("Mul", self.numerator, reciprocal))


def variance(s: Spelling, norm: Norm) -> str:
    """Centre the numerator and return the variance, two-pass or from two moments."""
    norm.mean = s.mean(norm.x)
    norm.numerator = s.noise(s.writer.op("Sub", norm.x, norm.mean))
    way = s.one_of("two pass", "again", "product", "moments")
    if way == "moments":
        raw = s.writer.op("Sub", s.mean(s.square(norm.x)), s.square(s.mean(norm.x)))
        return s.writer.op("Max", s.writer.constant(0.0), raw) if s.flip() else raw
    if way == "two pass":
        return s.mean(s.square(norm.numerator))
    d = s.writer.op("Sub", norm.x, s.mean(norm.x))
    return s.mean(s.square(d) if way == "again" else s.both("Mul", norm.numerator, d))


@st.composite
def norms(draw):
    """Return a model, and the kind, axes, mode and affine that it spells."""
    opset = draw(st.sampled_from((11, 13, 17, 18, 20)))
    axes = draw(st.sampled_from(((2,), (1, 2), (1,))))
    w = Writer(opset)
    s = Spelling(draw, w, axes)
    shape = [SHAPE[axis] if axis in axes else 1 for axis in range(axes[0], 3)]
    size = int(np.prod(shape))
    gamma = w.constant(np.linspace(0.5, 2.0, size).reshape(shape)) if s.flip() else None
    beta = w.constant(np.linspace(-1.0, 1.0, size).reshape(shape)) if s.flip() else None
    norm = Norm(s, s.noise("x"), gamma, beta)
    norm.numerator = norm.x
    centred = s.flip()
    moment = variance(s, norm) if centred else s.mean(s.square(norm.x))
    norm.deviation, mode = s.denominator(moment)
    y = norm.written()
    graph = helper.make_graph(
        w.nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [s.one_of("B", 3), *SHAPE[1:]])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in w.constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    kind = NormKind.LAYER_NORM if centred else NormKind.RMS_NORM
    return model, kind, axes, mode, gamma is not None, beta is not None, y


@settings(max_examples=300, deadline=None, derandomize=True)
@given(norms())
def test_every_spelling_is_one_site_that_replays(case):
    model, kind, axes, mode, gamma, beta, y = case
    sites = sites_of(model)
    assert len(sites) == 1
    (site,) = sites
    assert site.kind is kind
    assert site.fiber.axes == axes
    assert site.epsilon_mode is mode
    assert np.isclose(site.epsilon, EPSILON, rtol=1e-6, atol=0)
    assert site.output.name == y
    assert (site.gamma is not None, site.beta is not None) == (gamma, beta)
    assert site.escaping == ()
    values = values_of(model, random_feeds(model))
    assert np.max(np.abs(replay(site, values) - values[y])) < BOUND
