"""An operator of another domain is unknown, whatever its name: it stays, and is in no norm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnxfold
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.recognition import find_norms
from tests.graphs import weights

MEAN = "mean = ReduceMean<axes=[-1]>(h)  d = Sub(h, mean)"
SPELLED = {
    "a LayerNorm": f"{MEAN}  q = Pow(d, two)  v = ReduceMean<axes=[-1]>(q)  e = Add(v, tiny)"
    "  r = Sqrt(e)  z = Div(d, r)  g = Mul(z, gamma)  y = Add(g, beta)",
    "its parts turned": f"{MEAN}  dt = Transpose<perm=[0,2,1]>(d)  q = Mul(d, d)"
    "  qt = Transpose<perm=[0,2,1]>(q)  v = ReduceMean<axes=[1]>(qt)  e = Add(v, tiny)"
    "  r = Sqrt(e)  z = Div(dt, r)  y = Transpose<perm=[0,2,1]>(z)",
    "an RMSNorm of magnitudes": "a = Abs(h)  q = Pow(a, two)  v = ReduceMean<axes=[-1]>(q)"
    "  e = Add(v, tiny)  r = Sqrt(e)  i = Reciprocal(r)  z = Mul(h, i)  y = Mul(z, gamma)",
    "a DyT": "s = Mul(h, two)  t = Tanh(s)  g = Mul(t, gamma)  y = Add(g, beta)",
    "a mean in front": f"{MEAN}  y = LayerNormalization<axis=-1>(d, gamma, beta)",
    "a Gelu": "s = Div(h, two)  f = Erf(s)  o = Add(f, one)  k = Mul(half, o)  y = Mul(h, k)",
}


def _models() -> Iterator[tuple[str, onnx.ModelProto]]:
    numbers = {"two": 2.0, "tiny": 1e-5, "one": 1.0, "half": 0.5}
    for name, body in SPELLED.items():
        model = parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17, "other" : 1]>\n'
            f"graph (double[2,3,6] x) => (double[2,3,6] y) {{ h = MatMul(x, W)  {body} }}"
        )
        made = weights(W=(6, 6), gamma=(6,), beta=(6,))
        for key, array in {**made, **numbers}.items():
            tensor = numpy_helper.from_array(np.asarray(array, np.float64), key)
            model.graph.initializer.append(tensor)
        model = onnx.shape_inference.infer_shapes(model)
        for place, node in enumerate(model.graph.node):
            other = onnx.ModelProto.FromString(model.SerializeToString())
            other.graph.node[place].domain = "other"
            yield f"{node.op_type} of {name}", other


@pytest.mark.parametrize("model", [pytest.param(m, id=name) for name, m in _models()])
def test_an_operator_of_another_domain_stays_and_is_in_no_norm(model: onnx.ModelProto) -> None:
    (node,) = (node for node in model.graph.node if node.domain)
    prepared = prepare(ir.from_proto(model))
    owned = [inner for site in find_norms(prepared.info) for inner in site.nodes]
    assert not any(inner.domain == "other" for inner in owned)
    for target in ("onnx", "ort"):
        made = onnxfold.optimize(model, check=0, target=target).model
        (kept,) = (other for other in made.graph.node if other.domain == "other")
        assert (kept.op_type, list(kept.input), list(kept.output)) == (
            node.op_type, list(node.input), list(node.output),
        )  # fmt: skip
