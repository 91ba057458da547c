"""Operators whose declared ranks, axes and operands contradict one another: told, never a crash."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from tests.pairs import pairwise

pytestmark = pytest.mark.campaign
OPSET = 18
_WITH_BODIES = {"Constant", "If", "Loop", "Scan", "SequenceMap"}
OPERATORS = sorted(
    {s.name for s in onnx.defs.get_all_schemas() if not s.domain and s.max_input} - _WITH_BODIES
)
# onnx lacks schemas of these, so the number of operands is unknown.
CONTRIB = (
    "Attention BiasGelu BiasSoftmax DequantizeLinear DynamicQuantizeMatMul EmbedLayerNormalization "
    "FusedConv FusedGemm FusedMatMul GroupNorm GroupQueryAttention LayerNormalization "
    "MatMulIntegerToFloat MatMulNBits MultiHeadAttention QAttention QLinearAdd QLinearMul "
    "RotaryEmbedding SimplifiedLayerNormalization SkipGroupNorm SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization"
).split()
_SIZES = [2, 3, 4]
_RANKS = (0, 1, 3, None)
_ATTRIBUTES: dict[str, list[Any]] = {
    "axis": [-7, 0, 3],
    "batch_dims": [-1, 5],
    "equation": ["ij->ji", "->", "i,i->", "...i->i..."],
    "group": [0, -1, 7],
    "num_groups": [0, -1, 7],
    "num_outputs": [0, 1, 7],
    "perm": [[0], [5, 1, 0]],
    "to": [TensorProto.FLOAT],
}
_CONSTANTS: tuple[list[int], ...] = ([0], [-7], [], [3, 1])


def _shape(rank: int | None) -> list[int] | None:
    return None if rank is None else _SIZES[:rank]


def _model(
    operator: tuple[str, str, int],
    count: int,
    ranks: tuple[int | None, int],
    attributes: dict[str, Any],
    constant: npt.NDArray[np.int64] | None,
) -> onnx.ModelProto:
    """The operator, its last operand possibly constant, before a norm and a linear layer."""
    (domain, op_type, outputs), (rank, declared) = operator, ranks
    names = [f"x{number}" for number in range(count)]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, _shape(rank)) for name in names
    ]
    arrays = {"gamma": np.ones(_SIZES[declared - 1], np.float32), "W": np.ones((4, 2), np.float32)}
    if constant is not None:
        inputs.pop()
        arrays[names[-1]] = constant
    results = [f"y{number}" for number in range(outputs)]
    nodes = [
        helper.make_node(op_type, names, results, domain=domain, **attributes),
        helper.make_node("LayerNormalization", ["y0", "gamma"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "W"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "contradiction",
        inputs,
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        value_info=[
            helper.make_tensor_value_info(name, TensorProto.FLOAT, _shape(declared))
            for name in results
        ],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_a_contradiction_is_told_or_borne(op_type: str) -> None:
    schema = onnx.defs.get_schema(op_type)
    known = [name for name in _ATTRIBUTES if name in schema.attributes]
    attributes = [{}, *({name: value} for name in known for value in _ATTRIBUTES[name])]
    count = min(max(schema.min_input, 1) + 1, schema.max_input, 3)
    constants = [None, *(np.array(numbers, np.int64) for numbers in _CONSTANTS)]
    operator = ("", op_type, max(1, schema.min_output))
    spots = range(len(attributes)), _RANKS, (1, 3), range(len(constants) if count > 1 else 1)
    for given, rank, declared, constant in pairwise(product(*spots)):
        ranks = (rank, declared)
        with suppress(onnxfold.OnnxfoldError):
            onnxfold.inspect(_model(operator, count, ranks, attributes[given], constants[constant]))


@pytest.mark.parametrize("op_type", CONTRIB)
def test_operands_of_any_number_are_borne(op_type: str) -> None:
    attributes: list[dict[str, Any]] = [{}, {"num_heads": 2}, {"transA": 1}, {"transB": 1}]
    attributes += [{"num_heads": 0}, {"axis": -7}, {"groups": 0}, {"K": 0, "N": 0, "bits": 4}]
    spots = range(len(attributes)), _RANKS, (1, 3), (1, 2, 3, 5), (1, 3)
    for given, rank, declared, count, outputs in pairwise(product(*spots)):
        operator, ranks = ("com.microsoft", op_type, outputs), (rank, declared)
        with suppress(onnxfold.OnnxfoldError):
            onnxfold.inspect(_model(operator, count, ranks, attributes[given], None))
