"""A test that reads a part of a table alone shows nothing of the rest."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.proof.coverage import Coverage


@pytest.mark.parametrize(("ids", "whole"), [([0, 2, 1], True), ([0, 2, 2], False)])
def test_rows_that_no_index_reaches_are_left_out(ids: list[int], whole: bool) -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (double[3,2] W, int64[3] ids) => (double[3,2] y) { y = Gather(W, ids) }"""
        )
    )
    (gather,) = model.graph
    W, indices = model.graph.inputs
    table, drawn = np.random.default_rng(0).random((3, 2)), np.array(ids)
    computed = {W: table, indices: drawn, gather.outputs[0]: table[drawn]}
    found = Coverage(model, [gather], {W: [0]}, {indices}).partly_read(computed)
    assert found is (None if whole else gather)


@pytest.mark.parametrize(("lengths", "whole"), [([0, 2], True), ([0, 0], False)])
def test_a_recurrent_layer_that_computes_no_step_reads_no_weight(
    lengths: list[int], whole: bool
) -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (double[3,2,4] x, double[1,5,4] W, double[1,5,5] R, int32[2] lengths) => (double y)
            { y = RNN<hidden_size=5>(x, W, R, , lengths) }"""
        )
    )
    (layer,) = model.graph
    numbers = np.random.default_rng(0)
    computed = {value: numbers.standard_normal(value.shape.numpy()) for value in layer.inputs[:3]}
    x, W, R = computed
    given = layer.inputs[4]
    computed[given] = np.int32(lengths)
    for value, axes in ((W, [2]), (R, [1]), (x, [2])):
        found = Coverage(model, [layer], {value: axes}, {x, given}).partly_read(computed)
        assert found is (None if whole else layer)
    assert Coverage(model, [layer], {x: [0]}, {x, given}).partly_read(computed) is layer
