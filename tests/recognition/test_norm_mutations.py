"""Soundness: a norm recognized in a damaged graph computes what the site describes.

A random spelling in float64 has one operand exchanged for another value, or one constant changed.
Most results are not norms; where a site is found it must replay.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from tests.recognition.replay import random_feeds, replay, sites_of, values_of
from tests.recognition.test_norm_spellings import norms

# In float64 only the tolerance of n * (1/n) = 1 remains (1e-6), and cancellation in a variance
# that is written E[x^2] - E[x]^2.
BOUND = 1e-5


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in float64, with its constants as they are."""
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float64), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast":
                attribute.i = TensorProto.DOUBLE
    return model


def rewire(draw: st.DrawFn, model: onnx.ModelProto) -> None:
    position = draw(st.integers(0, len(model.graph.node) - 1))
    node = model.graph.node[position]
    floats = [t.name for t in model.graph.initializer if t.data_type == TensorProto.DOUBLE]
    earlier = ["x", *floats, *(n.output[0] for n in model.graph.node[:position])]
    node.input[draw(st.integers(0, min(1, len(node.input) - 1)))] = draw(st.sampled_from(earlier))


def swap(draw: st.DrawFn, model: onnx.ModelProto) -> None:
    node = draw(st.sampled_from([n for n in model.graph.node if len(n.input) > 1]))
    node.input[0], node.input[1] = node.input[1], node.input[0]


def change_constant(draw: st.DrawFn, model: onnx.ModelProto) -> None:
    tensor = draw(st.sampled_from(list(model.graph.initializer)))
    array = numpy_helper.to_array(tensor)
    way = draw(st.sampled_from((lambda a: a + 1, lambda a: -a, lambda a: 2 * a, lambda a: a[None])))
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(way(array), array.dtype), tensor.name))


def change_axes(draw: st.DrawFn, model: onnx.ModelProto) -> None:
    nodes = [n for n in model.graph.node if n.op_type.startswith("Reduce")]
    for attribute in draw(st.sampled_from(nodes)).attribute:
        if attribute.name == "keepdims":
            attribute.i = 1 - attribute.i
        if attribute.name == "axes":
            attribute.ints[:] = draw(st.sampled_from(([0], [1], [2], [-1, -2], [0, 1, 2])))


@st.composite
def damaged(draw):
    model = doubled(draw(norms())[0])
    for _ in range(draw(st.integers(1, 2))):
        draw(st.sampled_from((rewire, rewire, swap, change_constant, change_axes)))(draw, model)
    return model


@pytest.mark.campaign
@settings(max_examples=400, deadline=None, derandomize=True)
@given(damaged())
def test_a_site_in_a_damaged_norm_still_replays(model):
    try:
        values = values_of(model, random_feeds(model))
    except (ValueError, IndexError, TypeError, RuntimeError):
        assume(False)  # the shapes no longer fit, and no runtime would take the model
    for site in sites_of(model):
        if site.size == 0:
            assert site.refusal is not None
            continue
        expected = values[site.output.name]
        y = replay(site, values)
        assert y.shape == expected.shape
        finite = np.isfinite(y) & np.isfinite(expected)
        assert np.all(np.abs(y - expected)[finite] <= BOUND * (1 + np.abs(expected[finite])))
