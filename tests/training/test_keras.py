"""Centred weights in Keras 3: outputs, gradients and steps are LayerNormalization's, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is missing: pip install '.[keras]'")

from onnxfold.keras import cbwc, rms_norm
from tests.training.layer_norm_formulas import EPSILON, INPUTS, WIDTH, assert_near, drawn, truth

pytestmark = pytest.mark.filterwarnings("default")  # their own code
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(1e-2),
    "adamw": lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-2),
}
PARTS = ("W", "b", "gamma", "beta")


@pytest.fixture(autouse=True)
def _in_float64() -> Any:
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def made(given: dict[str, Any], *, folded: bool) -> tuple[Any, dict[str, Any]]:
    """Return a model, and its variables by our names."""
    dense = keras.layers.Dense(WIDTH)
    norm = keras.layers.LayerNormalization(epsilon=EPSILON)
    layers = [cbwc(dense), rms_norm(norm)] if folded else [dense, norm]
    model = keras.Sequential([keras.Input((INPUTS,)), *layers])
    variables = {"W": dense.kernel, "b": dense.bias, "gamma": norm.gamma, "beta": norm.beta}
    for name, variable in variables.items():
        variable.assign(given[name])
    assert len(model.trainable_variables) == 4
    return model, variables


def array(variable: Any) -> Any:
    return keras.ops.convert_to_numpy(variable).copy()


@pytest.mark.parametrize("shift", [0.0, 10.0])
def test_outputs_and_gradients_are_those_of_layer_norm(shift: float) -> None:
    """A step of length 1 is the gradient; the loss of a batch is the mean over its rows."""
    given = drawn(shift)
    wanted, grads = truth(**given)
    model, variables = made(given, folded=True)
    assert_near(model.predict_on_batch(given["x"]), wanted)
    model.compile(keras.optimizers.SGD(1.0), loss=lambda c, y: keras.ops.sum(c * y, axis=-1))
    model.train_on_batch(given["x"], given["c"])
    for name, gradient in grads.items():
        found = (given[name] - array(variables[name])) * len(given["x"])
        assert np.abs(found - gradient).max() < 1e-9 * np.abs(gradient).max(), name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_layer_norm(name: str) -> None:
    given = drawn()
    ends = []
    for folded in (False, True):
        model, variables = made(given, folded=folded)
        model.compile(OPTIMIZERS[name](), loss="mse")
        for _ in range(10):
            model.train_on_batch(given["x"], np.tanh(given["c"]))
        ends.append({part: array(variables[part]) for part in PARTS})
    for part in PARTS:
        assert np.abs(ends[0][part] - given[part]).max() > 1e-4, "nothing was trained"
        # Keras takes the means of its own LayerNormalization in float32, and Adam divides by roots.
        assert np.abs(ends[0][part] - ends[1][part]).max() < 1e-5


def test_convolutions_and_tables_are_centred() -> None:
    image = np.random.default_rng(0).normal(size=(2, 5, 5, 3))
    convolved = cbwc(keras.layers.Conv2D(8, 3))(image)
    looked_up = cbwc(keras.layers.Embedding(10, 8))(np.arange(10))
    for y in map(keras.ops.convert_to_numpy, (convolved, looked_up)):
        assert np.abs(y.mean(-1)).max() < 1e-14
        assert np.abs(y).max() > 1e-2


def test_other_layers_are_refused() -> None:
    grouped = keras.layers.Conv1D(8, 3, groups=2)
    active = keras.layers.Dense(8, activation="relu")
    for layer in (grouped, active, keras.layers.BatchNormalization()):
        with pytest.raises(TypeError, match="no linear outputs along the last axis"):
            cbwc(layer)
    with pytest.raises(TypeError, match="not over the last one"):
        rms_norm(keras.layers.LayerNormalization(axis=1))
