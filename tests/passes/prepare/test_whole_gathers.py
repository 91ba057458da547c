"""A Gather of all elements in their order is a Reshape, and norms behind it fold."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import onnxfold
from onnxfold.passes.prepare.whole_gathers import reshape_whole
from onnxfold.shapes import infer

BOUND = 1e-6  # float32: sums of 3 and of 8 numbers of about 1, in another order
WHOLE = np.arange(16).reshape(2, 8)


def pooled(indices: np.ndarray) -> onnx.ModelProto:
    """A norm of the average of three positions, as dynamo writes adaptive pooling."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 3, 4] x) => (float[A, B] y) {
            h = MatMul(x, w)
            mean = ReduceMean<axes=[1]>(h)
            flat = Reshape(mean, all)
            picked = Gather(flat, indices)
            y = LayerNormalization(picked, gamma, beta)
        }"""
    )
    rng = np.random.default_rng(0)
    arrays = {"w": (4, 8), "gamma": (8,), "beta": (8,)}
    constants = {name: rng.random(shape).astype(np.float32) for name, shape in arrays.items()}
    for name, array in {**constants, "all": np.array([-1]), "indices": indices}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def test_a_norm_behind_a_pooling_folds() -> None:
    model = pooled(WHOLE)
    result = onnxfold.optimize(model)
    assert len(result.plan.folds) == 1
    assert "Gather" not in {node.op_type for node in result.model.graph.node}
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
    (got,), (wanted,) = (ReferenceEvaluator(m).run(None, {"x": x}) for m in (result.model, model))
    assert np.max(np.abs(got - wanted)) < BOUND


@pytest.mark.parametrize("indices", [WHOLE[:1], WHOLE[::-1], WHOLE.T], ids=["few", "order", "turn"])
def test_a_gather_that_leaves_out_or_moves_elements_stays(indices: np.ndarray) -> None:
    model = ir.from_proto(pooled(np.ascontiguousarray(indices)))
    infer(model)
    assert reshape_whole(model) == ()


def test_a_gather_of_no_elements_stays() -> None:
    """A Reshape takes 0 for a size that it copies, and the vector has no second one."""
    proto = pooled(np.zeros((8, 0), np.int64))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    model = ir.from_proto(proto)
    infer(model)
    assert reshape_whole(model) == ()
