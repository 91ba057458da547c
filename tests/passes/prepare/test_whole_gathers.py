"""A Gather of all elements in order is a Reshape, and norms after it fold."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import onnxfold
from onnxfold.passes.prepare.direct_reads import reshape_whole
from onnxfold.shapes import infer
from tests import graphs

BOUND = 1e-6  # float32: sums of 3 and of 8 numbers of about 1, in another order
WHOLE = np.arange(16).reshape(2, 8)
_SIZES = {"w": (4, 8), "gamma": (8,), "beta": (8,)}


def pooled(indices: np.ndarray) -> onnx.ModelProto:
    """A norm of the average of three positions, as dynamo writes adaptive pooling."""
    body = (
        "h = MatMul(x, w) mean = ReduceMean<axes=[1]>(h) flat = Reshape(mean, all) "
        "picked = Gather(flat, indices) y = LayerNormalization(picked, gamma, beta)"
    )
    made = graphs.weights(**_SIZES) | {"all": np.array([-1]), "indices": indices}
    return graphs.model(body, "float[2,3,4] x", "float[A,B] y", made, 17, dtype=np.float32)


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
    """A Reshape reads 0 as a size to copy, and the vector has no second one."""
    proto = pooled(np.zeros((8, 0), np.int64))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    model = ir.from_proto(proto)
    infer(model)
    assert reshape_whole(model) == ()


# Of indices n * 8 + c, n counted up to the first size of x.
COUNTED = {"first": 0, "by": 1, "stride": 8, "start": 0, "row": np.arange(8).reshape(1, 8)}


def pooled_batch(**changes: object) -> onnx.ModelProto:
    """The same norm of a batch of open size, as dynamo writes its indices."""
    body = (
        "h = MatMul(x, w) mean = ReduceMean<axes=[1]>(h) flat = Reshape(mean, all) "
        "sizes = Shape(x) size = Gather(sizes, first) n = Range(start, size, by) "
        "offset = Mul(n, stride) column = Unsqueeze(offset, one) indices = Add(column, row) "
        "shifted = Add(indices, nothing) picked = Gather(flat, shifted) "
        "y = LayerNormalization(picked, gamma, beta)"
    )
    numbers: dict[str, object] = {**COUNTED, "one": [1], "nothing": [[0]], "all": [-1], **changes}
    made = graphs.weights(**_SIZES) | {name: np.array(known) for name, known in numbers.items()}
    return graphs.model(body, "float[N,M,4] x", "float[A,B] y", made, 17, dtype=np.float32)


def test_a_norm_behind_a_pooling_of_an_open_batch_folds() -> None:
    model = pooled_batch()
    result = onnxfold.optimize(model)
    assert len(result.plan.folds) == 1
    assert not {"Gather", "Range"} & {node.op_type for node in result.model.graph.node}
    for batch in (1, 5):
        x = np.random.default_rng(1).standard_normal((batch, 3, 4)).astype(np.float32)
        got, wanted = (ReferenceEvaluator(m).run(None, {"x": x}) for m in (result.model, model))
        assert np.max(np.abs(got[0] - wanted[0])) < BOUND


@pytest.mark.parametrize(
    "changes",
    [
        {"first": 1},
        {"by": 2},
        {"stride": 4},
        {"start": 1},
        {"row": COUNTED["row"][:, ::-1]},
        {"row": COUNTED["row"][:, :4], "stride": 4},
        {"nothing": [[1]]},
        {"one": [0], "row": np.arange(8).reshape(8, 1)},
    ],
    ids=str,
)
def test_indices_that_count_otherwise_stay(changes: dict[str, object]) -> None:
    model = ir.from_proto(pooled_batch(**changes))
    assert reshape_whole(infer(model).model) == ()


def test_sums_of_very_many_terms_stay() -> None:
    proto = pooled_batch(nothing=[[0]])
    nodes = list(proto.graph.node)
    end = next(i for i, node in enumerate(nodes) if node.output[0] == "picked")
    doubled = [helper.make_node("Add", [f"d{i}", f"d{i}"], [f"d{i + 1}"]) for i in range(64)]
    doubled[0].input[:] = ["shifted", "shifted"]
    nodes[end].input[1] = "d64"
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes[:end], *doubled, *nodes[end:]])
    assert reshape_whole(infer(ir.from_proto(proto)).model) == ()
