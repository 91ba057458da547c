"""Norms of what a node without inputs computes: a Constant, random numbers, a vendor's operator."""

from __future__ import annotations

import onnx
import pytest

import onnxfold
from onnxfold.options import Defer
from onnxfold.target import Target
from tests.graphs import weights

_MEAN = "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) "
_NORMS = {
    "operator": "n = LayerNormalization<axis=-1>(x, gamma)",
    "operator of x - mean(x)": f"{_MEAN} n = LayerNormalization<axis=-1>(d, gamma)",
    "RMS": "n = SimplifiedLayerNormalization<axis=-1>(x, gamma)",
    "spelled": f"{_MEAN} q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) "
    "k = Div(d, r) n = Mul(k, gamma)",
    "RMS, spelled": "q = Pow(x, two) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) r = Sqrt(e) "
    "k = Div(x, r) n = Mul(k, gamma)",
    "behind a Transpose": "t = Transpose<perm=[1,0]>(x) m = ReduceMean<axes=[0]>(t) d = Sub(t, m) "
    "q = Mul(d, d) v = ReduceMean<axes=[0]>(q) e = Add(v, eps) r = Sqrt(e) k = Div(d, r) "
    "z = Transpose<perm=[1,0]>(k) n = Mul(z, gamma)",
    "post-LN": "s = Add(x, u) n = LayerNormalization<axis=-1>(s, gamma)",
    "with a residual": "n = com.microsoft.SkipLayerNormalization<epsilon=1e-5>(x, u, gamma, gamma)",
}
# Named like the operators that passes expect after or before a norm.
_VENDORS = "Add Cast Concat Gather MatMul Mul Neg ReduceMean Reshape Slice Softmax Sub Transpose"
_NUMBERS = ",".join(map(str, range(32)))
_SOURCES = {
    "Constant": f"x = Constant<value = float[4,8] {{{_NUMBERS}}}>() ",
    "random": "x = RandomNormal<shape = [4,8]>() ",
    **{f"vendor.{name}": f"x = vendor.{name}() " for name in _VENDORS.split()},
}


@pytest.mark.parametrize("source", _SOURCES)
@pytest.mark.parametrize("norm", _NORMS)
def test_what_a_norm_reads_may_be_computed_from_nothing(norm: str, source: str) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "vendor": 1]>
        g (float[4,8] u) => (float[4,8] y)
        <float eps = {{0.00001}}, float two = {{2.0}}, float[4,8] x>
        {{ {_SOURCES[source]} {_NORMS[norm]} h = Add(u, n) y = MatMul(h, W) }}"""
    )
    for name, array in weights(gamma=(8,), W=(8, 8)).items():
        tensor = onnx.numpy_helper.from_array(array.astype("float32"), name)
        proto.graph.initializer.append(tensor)
    assert len(onnxfold.inspect(proto)["norms"]) == 1
    for target in Target:
        onnxfold.optimize(proto, target=target, defer=Defer.ALL, check=None)
