"""Every opset from 11 to the newest that the installed onnx knows, read from it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from onnxfold.errors import ModelError
from tests import graphs
from tests.lanes import some
from tests.sessions import session

NEWEST = onnx.defs.onnx_opset_version()
OPSETS = range(11, NEWEST + 1)
VIT = Path(__file__).parents[1] / "recipes" / "vit-b16.onnx"
WIDTH = 8
_OPERATOR_SINCE = 17  # LayerNormalization


def two_norms(opset: int) -> onnx.ModelProto:
    """A residual block with norms as exporters spell them for the opset."""
    body = f"h = MatMul(x, W0) {_norm(opset, 'h', 'n')} u = MatMul(n, W1) r = Relu(u) "
    body += f"d = MatMul(r, W2) s = Add(h, d) {_norm(opset, 's', 'm')} y = MatMul(m, W3)"
    made = graphs.weights(**{f"W{i}": (WIDTH, WIDTH) for i in range(4)}, G=(WIDTH,), B=(WIDTH,))
    made |= {"EPSILON": np.array(1e-5)}
    stream = f"float[B,{WIDTH}]"
    proto = graphs.model(body, f"{stream} x", f"{stream} y", made, opset, dtype=np.float32)
    proto.ir_version = 7
    return proto


def _norm(opset: int, x: str, y: str) -> str:
    if opset >= _OPERATOR_SINCE:
        return f"{y} = LayerNormalization<axis=-1>({x}, G, B)\n"
    mean = "ReduceMean<axes=[-1]>"
    return (
        f"{y}0 = {mean}({x})  {y}1 = Sub({x}, {y}0)  {y}2 = Mul({y}1, {y}1)  {y}3 = {mean}({y}2)\n"
        f"{y}4 = Add({y}3, EPSILON)  {y}5 = Sqrt({y}4)  {y}6 = Div({y}1, {y}5)\n"
        f"{y}7 = Mul({y}6, G)  {y} = Add({y}7, B)\n"
    )


def loads(model: onnx.ModelProto) -> bool:
    try:
        session(model)
    except Exception as error:  # ONNX Runtime's own classes share no other base
        if "opset" not in str(error):
            raise
        return False
    return True


def checked(model: onnx.ModelProto, target: str, norms: int) -> None:
    """Fold all norms; what onnx and ONNX Runtime take before, they take afterwards."""
    result = onnxfold.optimize(model, target=target, check=1)
    assert result.report["inspect"]["summary"]["foldable"] == norms
    assert result.verification is not None
    assert result.verification.passed
    assert loads(result.model) == loads(model)
    if target == "onnx":
        onnx.checker.check_model(result.model, full_check=True)
    opsets = {entry.domain: entry.version for entry in result.model.opset_import}
    assert opsets[""] == model.opset_import[0].version


@pytest.mark.parametrize(
    ("opset", "target"), some(product(OPSETS, ("onnx", "ort", "kernels")), each=2)
)
def test_every_opset_folds(opset: int, target: str) -> None:
    checked(two_norms(opset), target, 2)


@pytest.mark.parametrize("opset", OPSETS[-3:])
def test_a_vit_of_the_newest_opsets_folds(opset: int) -> None:
    model = onnx.version_converter.convert_version(onnx.load(VIT), opset)
    checked(model, "onnx", 5)


def test_an_opset_that_onnx_does_not_know_is_refused(tmp_path: Path) -> None:
    model = two_norms(NEWEST)
    model.opset_import[0].version = NEWEST + 1
    with pytest.raises(ModelError, match=f"operator set {NEWEST + 1}.* knows {NEWEST}"):
        onnxfold.optimize(model)
    onnx.save(model, tmp_path / "newer.onnx")
    with pytest.raises(ModelError, match="upgrade onnx"):
        onnxfold.optimize(tmp_path / "newer.onnx", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
