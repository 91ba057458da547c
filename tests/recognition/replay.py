"""The oracle: a site computed in float64 from its definition, from values of the original graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import parser
from onnx.reference import ReferenceEvaluator

from onnxfold.norms import EpsilonMode, NormKind, NormSite
from onnxfold.recognition import find_norms
from onnxfold.shapes import infer
from tests.sessions import outputs

FLOAT32_BOUND = 1e-6  # outputs are of order 1 and go through about ten roundings of 6e-8


def model(
    body: str,
    inputs: str = "float[B,3,8] x",
    outputs: str = "float[] y",
    *,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model in ONNX text; other inputs than x are given a constant by `with_constants`."""
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1, "onnxfold" : 1]>'
    return parser.parse_model(f"{head}\nagraph ({inputs}) => ({outputs})\n{{\n{body}\n}}")


def with_constants(proto: onnx.ModelProto, seed: int = 1, **given: object) -> onnx.ModelProto:
    """Turn every input but x into an initializer, random unless given."""
    rng = np.random.default_rng(seed)
    for value in [value for value in proto.graph.input if value.name != "x"]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = given.get(value.name, rng.standard_normal(shape))
        tensor = onnx.numpy_helper.from_array(np.asarray(array, np.float32), value.name)
        proto.graph.initializer.append(tensor)
        proto.graph.input.remove(value)
    return proto


def only_site(proto: onnx.ModelProto) -> NormSite:
    sites = sites_of(proto)
    assert len(sites) == 1, [site.name for site in sites]
    return sites[0]


def sites_of(model: onnx.ModelProto) -> tuple[NormSite, ...]:
    return find_norms(infer(ir.from_proto(model)))


def random_feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Standard normal inputs with a mean; symbolic sizes are 2, 3, 4, .."""
    rng = np.random.default_rng(seed)
    sizes: dict[str, int] = {}
    given = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in given:
            continue
        tensor = value.type.tensor_type
        shape = [
            dim.dim_value or sizes.setdefault(dim.dim_param, 2 + len(sizes))
            for dim in tensor.shape.dim
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if np.issubdtype(dtype, np.integer):
            feeds[value.name] = rng.integers(0, 4, shape).astype(dtype)
        else:
            feeds[value.name] = (rng.standard_normal(shape) + 0.3).astype(dtype)
    return feeds


def values_of(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run the model node by node and return every value by name."""
    if _needs_onnxruntime(model):
        return _by_onnxruntime(model, feeds)
    with np.errstate(all="ignore"):  # the evaluator divides by zero where a model does
        values = ReferenceEvaluator(model).run(None, feeds, intermediate=True)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    return {**constants, **feeds, **values}


def _needs_onnxruntime(model: onnx.ModelProto) -> bool:
    contrib = ("SimplifiedLayerNormalization",)
    known = {function.domain for function in model.functions} | {"", "ai.onnx"}
    return any(n.op_type in contrib or n.domain not in known for n in model.graph.node) or (
        any(n.op_type == "LayerNormalization" for n in model.graph.node)
        and any(o.domain == "" and o.version < 17 for o in model.opset_import)
    )


def _by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:

    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    present = {value.name for value in exposed.graph.output}
    for node in exposed.graph.node:
        for name in node.output:
            if name and name not in present:
                exposed.graph.output.append(onnx.ValueInfoProto(name=name))
    names = [output.name for output in exposed.graph.output]
    values = dict(zip(names, outputs(exposed, feeds, level="none"), strict=True))
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    return {**constants, **feeds, **values}


def replay(site: NormSite, values: dict[str, np.ndarray]) -> np.ndarray:
    """y from x by the definition of the site, in float64."""
    x = values[site.input.name].astype(np.float64)
    gamma = _affine(site, site.gamma, values, x.ndim)
    beta = _affine(site, site.beta, values, x.ndim)
    normed = np.tanh(site.factor * x) if site.kind is NormKind.DYT else _normalised(site, x)
    y = normed if gamma is None else normed * gamma
    return y if beta is None else y + beta


def _affine(site, coefficient, values, rank):
    if coefficient is None:
        return None
    if isinstance(coefficient, np.ndarray):
        array = coefficient
    elif coefficient.name in values:
        array = values[coefficient.name].astype(np.float64)
    else:
        array = coefficient.const_value.numpy().astype(np.float64)
    array = np.repeat(array, site.affine_repeat) if site.affine_repeat > 1 else array
    if site.affine_axis is None:
        return array
    return array.reshape([-1 if axis == site.affine_axis % rank else 1 for axis in range(rank)])


def _normalised(site: NormSite, x: np.ndarray) -> np.ndarray:
    """Split every axis of x into its digits, so that the fiber is a set of whole axes."""
    shape: list[int] = []
    reduced: list[int] = []
    for axis, dim in enumerate(x.shape):
        blocks = [b for b in site.fiber.blocks if b.axis == axis]
        assert len(blocks) <= 1
        for block in blocks:
            outer = dim // (block.size * block.inner)
            assert block.outer in (None, outer)
            reduced.append(len(shape) + 1)
            shape += [outer, block.size, block.inner]
        if not blocks:
            shape.append(dim)
    digits = x.reshape(shape)
    axes = tuple(reduced)
    if site.subtracts_mean:
        digits = digits - digits.mean(axes, keepdims=True)
    square = site.factor * np.mean(digits**2, axes, keepdims=True)
    e = site.epsilon
    with np.errstate(divide="ignore", invalid="ignore"):
        divisor = {
            EpsilonMode.INSIDE: lambda: np.sqrt(square + e),
            EpsilonMode.OUTSIDE: lambda: np.sqrt(square) + e,
            EpsilonMode.MAX_INSIDE: lambda: np.sqrt(np.maximum(square, e)),
            EpsilonMode.MAX_OUTSIDE: lambda: np.maximum(np.sqrt(square), e),
        }[site.epsilon_mode]()
        return (digits / divisor).reshape(x.shape)


def replay_error(model: onnx.ModelProto, seed: int = 0) -> list[tuple[NormSite, float]]:
    """For each site of known size, the largest absolute difference to the original y."""
    feeds = random_feeds(model, seed)
    values = values_of(model, feeds)
    found = []
    for site in sites_of(model):
        if site.size == 0:
            continue
        y, expected = replay(site, values), values[site.output.name].astype(np.float64)
        assert y.shape == expected.shape, (site.name, y.shape, expected.shape)
        found.append((site, float(np.max(np.abs(y - expected)))))
    return found
