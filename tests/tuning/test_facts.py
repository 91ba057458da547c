"""What ONNX Runtime's optimizer asks of its user is guessed from the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold import model_io
from onnxfold.tuning.facts import ModelFacts, guess
from onnxfold.tuning.options import TuneOptions

_DIGITS = Path(__file__).parents[2] / "models/digits_vit/digits_vit.onnx"
_HEADS = """
    <ir_version: 8, opset_import: ["": 17]>
    g ({inputs}) => (float[N, 4, M, 8] h) <{more}> {{
        x = Gather (table, ids)  shape = Constant <value = int64[4] {{0, 0, 4, 8}}> ()
        s = Reshape (x, shape)
        {mask}
        h = Transpose <perm = [0, 2, 1, 3]> (s)
    }}"""


def _text(inputs: str = "int64[N, M] ids", mask: str = "", more: str = "") -> ir.Model:
    model = onnx.parser.parse_model(_HEADS.format(inputs=inputs, mask=mask, more=more))
    table = np.zeros((10, 32), dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    return ir.from_proto(model)


def test_a_vision_transformer() -> None:
    facts = guess(model_io.load(_DIGITS))
    assert (facts.model_type, facts.hidden_size) == ("vit", 48)
    assert facts.num_heads > 1


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (_text(), "bert"),
        (_text(mask="t = Trilu <upper = 0> (x)"), "gpt2"),
        (_text(inputs="int64[N, M] ids, float[N, L, 32] encoder_hidden_states"), "bart"),
        (_text(mask="t = Trilu <upper = 0> (x)  a = ArgMax (ids)"), "clip"),
    ],
    ids=["encoder", "decoder", "cross attention", "pooled decoder"],
)
def test_models_of_text(model: ir.Model, kind: str) -> None:
    assert guess(model) == ModelFacts(kind, 4, 32)


def test_a_stored_causal_mask_is_seen() -> None:
    model = _text()
    mask = np.triu(np.full((8, 8), -1e9, dtype=np.float32), 1)[None, None]
    value = ir.Value(name="mask", const_value=ir.tensor(mask))
    model.graph.register_initializer(value)
    assert guess(model).model_type == "gpt2"


def test_what_the_user_says_holds() -> None:
    options = TuneOptions(model_type="phi", num_heads=0)
    assert guess(_text()).override(options) == ModelFacts("phi", 0, 32)
