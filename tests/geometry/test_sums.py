"""What leaves the instrumented model, against numpy in float64 on the stored activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxfold import measure, model_io
from onnxfold.errors import ModelError
from onnxfold.geometry.instrument import Instrumented, MeasuredNorm, control_vectors, instrument
from onnxfold.geometry.quantities import error_without_mean, vector_quantities
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.norms import EpsilonMode, NormSite
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.recognition import find_norms
from tests.builders import chain_model, model_of

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ("bert-base", "gpt2", "swin-t", "llama-small", "convnext-t", "whisper-tiny-encoder")
# Sums of d float64 products err by d units of 2^-53 of the sum of their sizes, so a cosine by less
# than 2 d 2^-53 (d up to 192 here: 4.3e-14) and an angle that is not near 0 by that in radians.
RELATIVE = 1e-12
Array = npt.NDArray[Any]


def _run(model: ir.Model) -> tuple[Instrumented, list[NormSite], dict[str, Array]]:
    """Run the instrumented model with the norms' inputs and outputs as outputs too."""
    info = prepare(model).info
    instrumented = instrument(info, seed=3)
    names = [norm.name for norm in instrumented.norms]
    sites = [site for site in find_norms(info) if site.name in names]
    proto = model_io.materialise(instrumented.model)
    have = {output.name for output in proto.graph.output}
    for value in {v.name: v for site in sites for v in (site.input, site.output)}.values():
        assert value.dtype is not None
        assert value.name not in have
        kind = helper.make_tensor_value_info(str(value.name), value.dtype.value, None)
        proto.graph.output.append(kind)
    session = ort.InferenceSession(proto.SerializeToString())
    wanted = {given.name for given in session.get_inputs()}
    drawn = make_inputs(model, InputSpec(), count=1, seed=5)[0]
    feeds = {name: array for name, array in drawn.items() if name in wanted}
    outputs = [output.name for output in session.get_outputs()]
    return instrumented, sites, dict(zip(outputs, session.run(None, feeds), strict=True))


def _rows(x: Array, site: NormSite) -> Array:
    """The vectors of a norm, by a way of their own: one index per vector, from the fiber."""
    shape = x.shape
    index = np.indices(shape).reshape(len(shape), -1)
    key = np.zeros(x.size, dtype=np.int64)
    for axis, size in enumerate(shape):
        digits = index[axis]
        kept = digits
        for block in site.fiber.blocks:
            if block.axis == axis:
                kept = digits // (block.inner * block.size) * block.inner + digits % block.inner
        key = key * size + kept
    order = np.argsort(key, kind="stable")
    return np.asarray(x.astype(np.float64).reshape(-1)[order].reshape(-1, site.size))


def _expected(rows: Array, size: int) -> dict[str, Array]:
    controls = control_vectors(size, 3)
    lengths = np.linalg.norm(rows, axis=1)

    def angle(vector: Array) -> Array:
        # The angle by Kahan's formula, which is exact to rounding for every angle.
        one = rows / lengths[:, None]
        two = vector / np.linalg.norm(vector)
        return np.degrees(
            2 * np.arctan2(np.linalg.norm(one - two, axis=1), np.linalg.norm(one + two, axis=1))
        )

    mean = rows.mean(axis=1)
    return {
        "angle_uniform": angle(np.ones(size)),
        "angle_a": angle(controls[:, 0]),
        "angle_b": angle(controls[:, 1]),
        "norm": lengths,
        "mean": mean,
        "uniform_share": size * mean**2 / lengths**2,
    }


def _check(model: ir.Model, norms: int) -> None:
    instrumented, sites, outputs = _run(model)
    assert len(instrumented.norms) == norms
    for norm, site in zip(instrumented.norms, sites, strict=True):
        for value, name in zip((site.input, site.output), norm.outputs, strict=True):
            rows = _rows(outputs[str(value.name)], site)
            table = outputs[name].reshape(-1, 4)
            assert table.dtype == np.float64
            assert len(table) == len(rows) > 0
            expected = _expected(rows, norm.size)
            for quantity, measured in vector_quantities(table, norm.size, 3).items():
                # A mean near 0 is exact to the size of what was added up.
                slack = 1e-13 * np.abs(rows).max() if quantity == "mean" else 0.0
                slack = 1e-13 if quantity == "uniform_share" else slack
                np.testing.assert_allclose(
                    measured, expected[quantity], rtol=RELATIVE, atol=slack, err_msg=quantity
                )
        if norm.subtracts_mean:
            rows = _rows(outputs[str(site.input.name)], site)
            _check_error(rows, outputs[norm.outputs[0]].reshape(-1, 4), norm)


def _denominator(square: Array, norm: MeasuredNorm) -> Array:
    if norm.epsilon_mode is EpsilonMode.OUTSIDE:
        return np.sqrt(square) + norm.epsilon
    assert norm.epsilon_mode is EpsilonMode.INSIDE
    return np.sqrt(square + norm.epsilon)


def _check_error(rows: Array, table: Array, norm: MeasuredNorm) -> None:
    centred = rows - rows.mean(axis=1, keepdims=True)
    y, without = (
        x / _denominator(np.square(x).mean(axis=1, keepdims=True), norm) for x in (centred, rows)
    )
    error = np.linalg.norm(without - y, axis=1) / np.linalg.norm(y, axis=1)
    # mean square - mean^2 loses the digits by which the mean square exceeds the variance.
    loss = (np.square(rows).mean(axis=1) / np.square(centred).mean(axis=1)).max()
    np.testing.assert_allclose(error_without_mean(table, norm), error, rtol=RELATIVE * loss)


@pytest.mark.parametrize("name", RECIPES)
def test_architectures_agree_with_numpy(name: str) -> None:
    model = model_io.load(ROOT / "tests" / "recipes" / f"{name}.onnx")
    _check(model, len(find_norms(prepare(model).info)))


def test_trained_weights_agree_with_numpy() -> None:
    _check(model_io.load(ROOT / "models" / "digits_vit" / "digits_vit.onnx"), 9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_float_type_agrees_with_numpy(dtype: npt.DTypeLike) -> None:
    _check(model_io.from_proto(chain_model(dtype)), 1)


def _grouped(shape: list[int | str], groups: int, opset: int = 21) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    channels = shape[1]
    assert isinstance(channels, int)
    weights = {n: rng.standard_normal(channels).astype(np.float32) for n in ("scale", "bias")}
    node = helper.make_node(
        "GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=groups, name="group"
    )
    kind = (TensorProto.FLOAT, shape)
    return model_of([node], {"x": kind}, {"y": kind}, weights, opset=opset)


@pytest.mark.parametrize("shape", [["n", 12], ["n", 12, 5], ["n", 12, 3, 2]], ids=str)
def test_groups_agree_with_numpy(shape: list[int | str]) -> None:
    _check(model_io.from_proto(_grouped(shape, 3)), 1)


def test_a_norm_over_the_first_axis_agrees_with_numpy() -> None:
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[1], name="channels")
    kind = (TensorProto.FLOAT, ["n", 8, 5])
    _check(model_io.from_proto(model_of([node], {"x": kind}, {"y": kind}, {}, opset=13)), 1)


def test_a_norm_in_a_body_is_refused_with_its_reason() -> None:
    kind = (TensorProto.FLOAT, ["n", 4])
    inner = helper.make_node("LayerNormalization", ["x", "g"], ["inner"], name="inside")
    outer = helper.make_node("LayerNormalization", ["x", "g"], ["y0"], name="outside")
    keep = helper.make_node("Identity", ["x"], ["same"])
    bodies = [
        helper.make_graph([node], "body", [], [helper.make_tensor_value_info(out, *kind)])
        for node, out in ((inner, "inner"), (keep, "same"))
    ]
    branch = helper.make_node(
        "If", ["flag"], ["z"], then_branch=bodies[0], else_branch=bodies[1], name="if"
    )
    add = helper.make_node("Add", ["y0", "z"], ["y"])
    proto = model_of(
        [outer, branch, add],
        {"x": kind, "flag": (TensorProto.BOOL, [])},
        {"y": kind},
        {"g": np.ones(4, np.float32)},
    )
    instrumented = instrument(prepare(model_io.from_proto(proto)).info, 0)
    assert [norm.name for norm in instrumented.norms] == ["outside"]
    ((name, reason),) = instrumented.refused
    assert name == "inside"
    assert "body" in reason


def test_a_model_that_does_not_load_is_refused_by_its_name(tmp_path: Path) -> None:
    proto, path = chain_model(), tmp_path / "twice.onnx"
    for node in proto.graph.node:
        node.name = "same"
    onnx.save(proto, path)
    with pytest.raises(ModelError, match=r"twice\.onnx: ONNX Runtime cannot load .*same node name"):
        measure(path)
