"""A function of the model under a name of domain onnxfold is not taken for ours."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.operators.bodies import Setting, function
from onnxfold.operators.functions import SIGNATURES, call
from onnxfold.passes.prepare.own_functions import is_ours
from tests.builders import pre_norm_model
from tests.lanes import some

_BODY = """<domain: "onnxfold", opset_import: ["": 18]>
%s <axes, axis, epsilon> (X) => (Y) { E = Exp(X) Y = %s }"""


def _model(name: str = "RMSNorm", end: str = "Add(E, X)") -> onnx.ModelProto:
    """RMSNorm, as defined by somebody else, before a linear layer and a norm."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18, "onnxfold": 1]>
        g (float[B,6] x) => (float[B,6] y) {{
            h = MatMul(x, W) n = onnxfold.{name}<axes=[-1], axis=-1, epsilon=1e-5>(h)
            m = MatMul(n, W) y = LayerNormalization<axis=-1>(m, gamma)
        }}"""
    )
    W = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)
    gamma = np.linspace(0.5, 1.5, 6, dtype=np.float32)
    for array, key in ((W, "W"), (gamma, "gamma")):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    model.functions.append(onnx.parser.parse_function(_BODY % (name, end)))
    return model


@pytest.mark.parametrize("name", ["RMSNorm", "NoNameOfOurs"])
def test_another_body_under_our_name_is_a_function_like_any_other(name: str) -> None:
    result = onnxfold.optimize(_model(name))
    assert result.report["prepared"]["inlined"] == [f"onnxfold.{name}"]
    kinds = [row["kind"] for row in result.report["inspect"]["norms"]]
    assert kinds == ["layer_norm"]
    assert result.verification is not None
    assert result.verification.passed
    assert "Exp" in {node.op_type for node in result.model.graph.node}


def test_what_cannot_be_inlined_is_refused() -> None:
    model = _model()
    model.functions[0].opset_import[0].version = 9
    model.functions[0].node[1].op_type = "Clip"  # another operator in 9 than in 18
    del model.functions[0].node[1].input[1]
    with pytest.raises(onnxfold.ModelError, match=r"'onnxfold\.RMSNorm' of its own"):
        onnxfold.optimize(model)


def test_what_we_write_is_ours() -> None:
    written = onnxfold.optimize(pre_norm_model(), target="kernels").model
    assert written.functions
    assert onnxfold.optimize(written).report["prepared"]["inlined"] == []


# Opsets in turns: in each of them norms of every kind are spelled in their own way.
@pytest.mark.parametrize(
    ("name", "opset"), some(zip(sorted(SIGNATURES), cycle((17, 18, 23))), each=4)
)
def test_every_body_is_recognised_and_a_changed_one_is_not(name: str, opset: int) -> None:
    import onnx_ir as ir

    signature = SIGNATURES[name]
    node = call(name, [ir.Value(name=key) for key in signature.inputs], epsilon=1e-5)
    other = call(name, [ir.Value(name=key) for key in signature.inputs], epsilon=1.0)
    setting = Setting(ir.DataType.FLOAT, 1, node.attributes.get_float("epsilon", 0.0))
    body = function(name, opset, setting)
    assert is_ours(ir.from_proto(ir.to_proto(body)), [node])
    assert is_ours(body, [other]) is ("epsilon" not in signature.attributes)
    changed = ir.to_proto(body)
    changed.node[-1].op_type = "Abs"
    assert not is_ours(ir.from_proto(changed), [node])
