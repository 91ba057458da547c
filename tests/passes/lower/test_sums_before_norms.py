"""Which additions before a norm become Sum for a session on a CPU."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import onnxfold
from onnxfold.shapes import infer
from onnxfold.targets.sums import fused_additions
from tests.sessions import executed

if TYPE_CHECKING:
    from pathlib import Path

# The last layer of torch.nn.Transformer's post-norm encoder, and the encoder's norm after it.
TWO_SPELLED_NORMS = """
<ir_version: 7, opset_import: ["" : 14]>
g (float[2, 3, 4] x, float[2, 3, 4] branch) => (float[2, 3, 4] y)
<float two = {2.0}, float tiny = {0.00001}, float[4] gamma = {1.5, -2.0, 0.5, 1.0},
 float[4] beta = {0.25, 0.5, -1.0, 2.0}, float[4] gain = {0.5, 1.5, 2.0, -1.0},
 float[4] bias = {1.0, -0.5, 0.75, 0.25}> {
    stream = Add (x, branch)  mean = ReduceMean <axes = [-1]> (stream)
    centred = Sub (stream, mean)  square = Pow (centred, two)
    variance = ReduceMean <axes = [-1]> (square)  shifted = Add (variance, tiny)
    deviation = Sqrt (shifted)  normal = Div (centred, deviation)  scaled = Mul (normal, gamma)
    norm = Add (scaled, beta)  mean2 = ReduceMean <axes = [-1]> (norm)
    centred2 = Sub (norm, mean2)  square2 = Pow (centred2, two)
    variance2 = ReduceMean <axes = [-1]> (square2)  shifted2 = Add (variance2, tiny)
    deviation2 = Sqrt (shifted2)  normal2 = Div (centred2, deviation2)
    scaled2 = Mul (normal2, gain)  y = Add (scaled2, bias)
}
"""


@pytest.mark.parametrize(("opset", "count"), [(7, 0), (8, 1)])
def test_a_sum_broadcasts_since_opset_8(opset: int, count: int) -> None:
    model = parser.parse_model(TWO_SPELLED_NORMS.replace('"" : 14', f'"" : {opset}'))
    assert len(fused_additions(infer(ir.from_proto(model)))) == count


def test_the_beta_of_a_spelled_norm_in_front_of_another_stays_an_add(tmp_path: Path) -> None:
    path, out = tmp_path / "two.onnx", tmp_path / "out.onnx"
    onnx.save(parser.parse_model(TWO_SPELLED_NORMS), path)
    onnxfold.optimize(path, out, target="ort", check=None)
    nodes = executed(out, tmp_path).graph.node
    assert Counter(node.op_type for node in nodes) == {"Sum": 1, "LayerNormalization": 2}


NORM_OF_A_SUM = """
<ir_version: 8, opset_import: ["" : 17]>
g ({kind}[2, 3, 4] x, {kind}[2, 3, 4] branch, {kind}[4] gamma, {kind}[4] beta)
=> ({kind}[2, 3, 4] y) {{
    stream = Add (x, branch)  y = LayerNormalization <axis = -1> (stream, gamma, beta)
}}
"""


@pytest.mark.prices
@pytest.mark.parametrize(("shape", "sums"), [("[2, 3, 4]", 0), ("[64, 128, 64]", 1), ("", 0)])
def test_an_addition_stays_if_it_is_small_or_its_rank_is_unknown(shape: str, sums: int) -> None:
    """Of 24 elements a second operator costs more than the slow one; SkipLayerNorm has 3 axes."""
    text = NORM_OF_A_SUM.format(kind="float").replace("[2, 3, 4]", shape).replace("[4]", "[D]")
    proto = parser.parse_model(text)
    for value in (*proto.graph.input[:2], *proto.graph.output):
        if not shape:
            value.type.tensor_type.ClearField("shape")
    assert len(fused_additions(infer(ir.from_proto(proto)))) == sums


@pytest.mark.parametrize(("kind", "sums"), [("float", 1), ("float16", 0)])
def test_an_addition_in_float16_stays_for_a_session_has_no_such_sum(
    kind: str, sums: int, tmp_path: Path
) -> None:
    path, out = tmp_path / "norm.onnx", tmp_path / "out.onnx"
    onnx.save(parser.parse_model(NORM_OF_A_SUM.format(kind=kind)), path)
    onnxfold.optimize(path, out, target="ort", check=None, force=True)
    assert sum(node.op_type == "Sum" for node in onnx.load(out).graph.node) == sums
