"""Training with centered weights in Keras 3; importing this needs the extra ``onnxfold[keras]``.

As in ``onnxfold.torch``: W is trained, the layer computes with V = W - mean of W over the outputs,
and RMSNorm after it computes what LayerNorm computed, with the same gradients, on any backend.

Source: "Enjoy your Layer Normalization ...", section 3.2 and Proposition 2.
"""

from typing import Any

try:
    import keras
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "onnxfold.keras needs Keras 3: pip install 'onnxfold[keras]'", name="keras"
    ) from error
from keras import ops


class KerasCentred(keras.layers.Layer):
    """A layer that computes with its weights less their mean over the last axis, its outputs."""

    def __init__(self, layer: keras.layers.Layer, **kwargs: Any):
        super().__init__(**kwargs)
        self.layer = layer

    def build(self, shape: Any) -> None:
        if not self.layer.built:
            self.layer.build(shape)

    def call(self, x: Any) -> Any:
        trained = self.layer.trainable_variables
        centred = [w - _mean(w) for w in trained]
        rest = [variable.value for variable in self.layer.non_trainable_variables]
        return self.layer.stateless_call(centred, rest, x)[0]


class KerasRMSNorm(keras.layers.Layer):
    """RMSNorm in the place of a LayerNormalization over the last axis, with its gamma and beta."""

    def __init__(self, norm: keras.layers.LayerNormalization, **kwargs: Any):
        super().__init__(**kwargs)
        self.norm = norm

    def build(self, shape: Any) -> None:
        if not self.norm.built:
            self.norm.build(shape)

    def call(self, x: Any) -> Any:
        y = x * ops.rsqrt(_mean(ops.square(x)) + self.norm.epsilon)
        y = y if self.norm.gamma is None else y * self.norm.gamma
        return y if self.norm.beta is None else y + self.norm.beta


def _mean(x: Any) -> Any:
    """Return the mean over the last axis; ops.mean takes it in float32 in the backend of JAX."""
    return ops.sum(x, axis=-1, keepdims=True) / x.shape[-1]


def cbwc(layer: keras.layers.Layer) -> KerasCentred:
    """Return a layer that computes with its kernel, or table, and bias centered.

    For Dense, Conv of one group, and Embedding. An optimizer trains and decays the variables of
    ``.layer``. Raises TypeError for other layers, and for an activation, after which the outputs
    have a mean.
    """
    known = (keras.layers.Dense, keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Embedding)
    grouped = getattr(layer, "groups", 1) != 1
    active = getattr(layer, "activation", None) not in (None, keras.activations.linear)
    if grouped or active or not isinstance(layer, known):
        raise TypeError(f"{type(layer).__name__} has no linear outputs along the last axis")
    return KerasCentred(layer)


def rms_norm(norm: keras.layers.LayerNormalization) -> KerasRMSNorm:
    """Return the RMSNorm that computes what a LayerNormalization does of vectors with mean 0."""
    axes = norm.axis if isinstance(norm.axis, list | tuple) else [norm.axis]
    if list(axes) != [-1]:
        raise TypeError(f"a LayerNormalization over axes {list(axes)} is not over the last one")
    return KerasRMSNorm(norm)
