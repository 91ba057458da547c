"""A small model with one LayerNorm on a residual stream, and its exact fold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

__all__ = ["BODY", "VOCABULARY", "WIDTH", "Weights", "model", "weights"]

Array = np.ndarray
VOCABULARY, WIDTH, CLASSES = 23, 32, 11

BODY = """
  e = Gather (table, ids)
  h0 = Add (e, position)
  k = Gather (branch, ids)
  a = MatMul (k, W)
  c = Add (a, b)
  h1 = Add (h0, c)
  [norm] n = {norm} (h1)
  s = Mul (n, gamma)
  t = Add (s, beta)
  u = Tanh (t)
  y = MatMul (u, V)
"""
FUNCTION = """
<domain: "onnxfold", opset_import: ["": 17]>
RMSNorm (x) => (y) {
  q = Mul (x, x)
  m = ReduceMean <axes = [-1]> (q)
  e0 = Constant <value = float[1] {1e-5}> ()
  e = CastLike (e0, x)
  v = Add (m, e)
  r = Sqrt (v)
  y = Div (x, r)
}
"""


@dataclass(frozen=True)
class Weights:
    """Weights of a small model with one LayerNorm on a residual stream."""

    table: Array
    position: Array
    branch: Array
    W: Array
    b: Array
    gamma: Array
    beta: Array
    V: Array

    def cast(self, dtype: np.dtype) -> Weights:
        return Weights(**{k: v.astype(dtype) for k, v in vars(self).items()})

    def centred(self) -> Weights:
        """Everything that writes into the stream, with its mean over the features removed."""

        def centre(w: Array) -> Array:
            wide = w.astype(np.float64)
            return (wide - wide.mean(axis=-1, keepdims=True)).astype(w.dtype)

        return replace(
            self,
            table=centre(self.table),
            position=centre(self.position),
            W=centre(self.W),
            b=centre(self.b),
        )


def weights(seed: int = 0) -> Weights:
    g = np.random.default_rng(seed)
    return Weights(
        table=g.standard_normal((VOCABULARY, WIDTH)) + 1,
        position=0.1 * g.standard_normal((1, WIDTH)),
        branch=g.standard_normal((VOCABULARY, WIDTH)),
        W=g.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5 + 0.1,
        b=g.standard_normal(WIDTH),
        gamma=1 + 0.1 * g.standard_normal(WIDTH),
        beta=0.1 * g.standard_normal(WIDTH),
        V=g.standard_normal((WIDTH, CLASSES)) / WIDTH**0.5,
    ).cast(np.dtype(np.float32))


def model(w: Weights, *, rms: bool = False, body: str = BODY) -> ir.Model:
    """The model with LayerNorm, or with the RMSNorm function of the onnxfold domain."""
    kind = {"float32": "float", "float64": "double"}.get(str(w.V.dtype), str(w.V.dtype))
    norm = "onnxfold.RMSNorm" if rms else "LayerNormalization <axis = -1>"
    text = body.replace("{norm} (h1)", f"{norm} (h1)" if rms else f"{norm} (h1, ones)")
    proto = onnx.parser.parse_model(
        f"""
        <ir_version: 9, opset_import: ["": 17, "onnxfold": 1]>
        g (int64[batch, seq] ids) => ({kind}[batch, seq, {CLASSES}] y) {{ {text} }}
        {FUNCTION if rms else ""}
        """
    )
    arrays = {k: v for k, v in vars(w).items() if k in body}
    arrays["ones"] = np.ones(WIDTH, dtype=w.V.dtype)
    proto.graph.initializer.extend(
        onnx.helper.make_tensor(
            name,
            onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
            array.shape,
            array.tobytes(),
            raw=True,
        )
        for name, array in arrays.items()
        if not rms or name != "ones"
    )
    return ir.from_proto(proto)
