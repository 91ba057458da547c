"""A model is brought to a newer opset where every operator has an exact form there."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onnxfold.errors import UsageError
from onnxfold.passes.lower.opset import raise_opset
from tests.graphs import model, weights


def _split(inputs: str) -> ir.Node:
    text = f"""<ir_version: 8, opset_import: ["": 13]>
    g (float[4,6] x, int64[2] sizes) => (float[4,3] y, float[4,3] z) {{
      y, z = Split<axis=1>({inputs})
    }}"""
    raised = ir.from_proto(onnx.parser.parse_model(text))
    raise_opset(raised, 23)
    onnx.checker.check_model(ir.to_proto(raised), full_check=True)
    return raised.graph[0]


@pytest.mark.parametrize(("inputs", "number"), [("x", 2), ("x, sizes", None)])
def test_a_split_is_told_its_number_of_parts_where_it_has_no_sizes(
    inputs: str, number: int | None
) -> None:
    assert _split(inputs).attributes.get_int("num_outputs", None) == number


def _raised(body: str, opset: int) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    sizes = {"W": (1, 16, 4), "R": (1, 16, 4), "V": (1, 12, 4), "S": (1, 12, 4), "U": (1, 4, 4)}
    made = weights(**sizes) | {"g": np.array([1.0, 2.0]), "b": np.array([3.0, -1.0])}
    given = model(body, "float[2,2,4] x", "float[] y", made, dtype=np.float32, opset=opset)
    raised = ir.from_proto(given)
    raise_opset(raised, 23)
    return given, ir.to_proto(raised)


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("y = BatchNormalization(x, g, b, g, g)", 13),
        ("y = BatchNormalization(x, g, b, g, g)", 14),
        ("y, h, c = LSTM<hidden_size=4>(x, W, R)", 13),
        ("y, h = GRU<hidden_size=4>(x, V, S)", 14),
        ("y, h = RNN<hidden_size=4>(x, U, U)", 17),
        ("t = Flatten(x) e = EyeLike(t) y = Add(e, t)", 13),
        ("y = Mish(x)", 18),
        ("y = Det(U)", 13),
    ],
)
def test_what_gained_types_or_defaults_computes_the_same(body: str, opset: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, 2, 4)).astype(np.float32)
    before, after = (
        onnxruntime.InferenceSession(each.SerializeToString()).run(["y"], {"x": x})
        for each in _raised(body, opset)
    )
    np.testing.assert_array_equal(after[0], before[0])


def test_a_batch_norm_that_trains_has_another_meaning_and_is_refused() -> None:
    with pytest.raises(UsageError, match="BatchNormalization of opset 13"):
        _raised("y, m, v, n, w = BatchNormalization(x, g, b, g, g)", 13)
