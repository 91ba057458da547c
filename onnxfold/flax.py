"""Training with centered weights in Flax NNX; importing this needs the extra ``onnxfold[flax]``.

As in ``onnxfold.torch``: W is trained, the layer computes with V = W - mean of W over the outputs,
and RMSNorm after it computes what LayerNorm computed, with the same gradients.

Source: "Enjoy your Layer Normalization ...", section 3.2 and Proposition 2.
"""

from typing import Any

try:
    from flax import nnx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "onnxfold.flax needs Flax: pip install 'onnxfold[flax]'", name="flax"
    ) from error
import jax
from jax import numpy as jnp


class FlaxCentred(nnx.Module):
    """A layer that computes with its parameters less their mean over the last axis, its outputs."""

    def __init__(self, layer: nnx.Module):
        self.layer = layer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        graph, weights, rest = nnx.split(self.layer, nnx.Param, ...)
        centred = jax.tree.map(lambda w: w - w.mean(-1, keepdims=True), weights)
        return nnx.merge(graph, centred, rest)(*args, **kwargs)


class FlaxRMSNorm(nnx.Module):
    """RMSNorm in the place of a LayerNorm over the last axis, with its scale and bias."""

    def __init__(self, norm: nnx.LayerNorm):
        self.scale, self.bias, self.epsilon = norm.scale, norm.bias, norm.epsilon

    def __call__(self, x: Any) -> Any:
        y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.epsilon)
        y = y if self.scale is None else y * self.scale[...]
        return y if self.bias is None else y + self.bias[...]


def cbwc(layer: nnx.Module) -> FlaxCentred:
    """Return a layer that computes with its kernel, or table, and bias centered.

    For nnx.Linear, LinearGeneral to one axis, Conv of one group and Embed. An optimizer trains and
    decays the parameters of ``.layer``. Raises TypeError for other layers: their outputs are not on
    the last axis.
    """
    grouped = isinstance(layer, nnx.Conv) and layer.feature_group_count != 1
    wide = isinstance(layer, nnx.LinearGeneral) and len(layer.out_features) != 1
    known = (nnx.Linear, nnx.LinearGeneral, nnx.Conv, nnx.Embed)
    if grouped or wide or not isinstance(layer, known):
        raise TypeError(f"{type(layer).__name__} has no outputs along the last axis of its weights")
    return FlaxCentred(layer)


def rms_norm(norm: nnx.LayerNorm) -> FlaxRMSNorm:
    """Return the RMSNorm that computes what a LayerNorm does of vectors with mean 0."""
    return FlaxRMSNorm(norm)
