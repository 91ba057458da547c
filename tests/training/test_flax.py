"""Centred weights in Flax NNX: outputs, gradients and steps are LayerNorm's, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is missing, which the extra flax brings")
nnx = pytest.importorskip("flax.nnx", reason="flax is missing: pip install '.[flax]'")
optax = pytest.importorskip("optax", reason="optax is missing, which flax brings")
from jax import numpy as jnp

from onnxfold.flax import cbwc, rms_norm
from tests.training.layer_norm_formulas import EPSILON, INPUTS, WIDTH, assert_near, drawn, truth

pytestmark = pytest.mark.filterwarnings("default")  # their own code
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda: optax.sgd(0.05),
    "momentum": lambda: optax.sgd(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-2),
    "adamw": lambda: optax.adamw(1e-2, weight_decay=0.1),
    "rmsprop": lambda: optax.rmsprop(1e-2),
}


@pytest.fixture(autouse=True)
def _in_float64() -> Any:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


class Model(nnx.Module):  # type: ignore[misc]  # of a package that is read as untyped
    def __init__(self, given: dict[str, Any], *, folded: bool):
        kinds = {"rngs": nnx.Rngs(0), "param_dtype": jnp.float64, "dtype": jnp.float64}
        linear = nnx.Linear(INPUTS, WIDTH, **kinds)
        norm = nnx.LayerNorm(WIDTH, epsilon=EPSILON, use_fast_variance=False, **kinds)
        self.parts = nnx.data({"W": linear.kernel, "b": linear.bias})
        self.parts |= {"gamma": norm.scale, "beta": norm.bias}
        for name, parameter in self.parts.items():
            parameter[...] = jnp.asarray(given[name])
        self.linear = cbwc(linear) if folded else linear
        self.norm = rms_norm(norm) if folded else norm

    def __call__(self, x: Any) -> Any:
        return self.norm(self.linear(x))


@pytest.mark.parametrize("shift", [0.0, 10.0])
def test_outputs_and_gradients_are_those_of_layer_norm(shift: float) -> None:
    given = drawn(shift)
    model = Model(given, folded=True)
    wanted, grads = truth(**given)
    found, made = nnx.value_and_grad(lambda m: (m(given["x"]) * given["c"]).sum())(model)
    assert_near(model(given["x"]), wanted)
    assert_near(found, (wanted * given["c"]).sum())
    leaves = [np.asarray(leaf[...]) for _, leaf in nnx.to_flat_state(made)]
    assert len(leaves) == len(grads)
    for name, gradient in grads.items():
        same = [each for each in leaves if each.shape == gradient.shape]
        near = 1e-9 * np.abs(gradient).max()
        assert any(np.abs(each - gradient).max() < near for each in same), name
    assert float(jnp.abs(model.linear(given["x"]).mean(-1)).max()) < 1e-13 * (1 + shift)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_layer_norm(name: str) -> None:
    given = drawn()
    models = [Model(given, folded=folded) for folded in (False, True)]
    optimizers = [nnx.Optimizer(model, OPTIMIZERS[name](), wrt=nnx.Param) for model in models]
    for _ in range(10):
        for model, optimizer in zip(models, optimizers, strict=True):
            grads = nnx.grad(lambda m: jnp.square(jnp.tanh(m(given["x"]))).mean())(model)
            optimizer.update(model, grads)
    for part in ("W", "b", "gamma", "beta"):
        first, second = (np.asarray(model.parts[part][...]) for model in models)
        assert np.abs(first - given[part]).max() > 1e-4, "nothing was trained"
        # Adam divides by roots of gradients, which may be small.
        assert np.abs(first - second).max() < 1e-8


def test_convolutions_and_tables_are_centred() -> None:
    rngs = nnx.Rngs(0)
    kinds = {"rngs": rngs, "param_dtype": jnp.float64, "dtype": jnp.float64}
    image = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 5, 3)))
    convolved = cbwc(nnx.Conv(3, 8, (3, 3), **kinds))(image)
    looked_up = cbwc(nnx.Embed(10, 8, **kinds))(jnp.arange(10))
    for y in (convolved, looked_up):
        assert float(jnp.abs(y.mean(-1)).max()) < 1e-14
        assert float(jnp.abs(y).max()) > 1e-2


def test_other_layers_are_refused() -> None:
    rngs = nnx.Rngs(0)
    grouped = nnx.Conv(4, 8, (3,), feature_group_count=2, rngs=rngs)
    for layer in (grouped, nnx.BatchNorm(4, rngs=rngs), nnx.LinearGeneral(4, (2, 4), rngs=rngs)):
        with pytest.raises(TypeError, match="no outputs along the last axis"):
            cbwc(layer)
