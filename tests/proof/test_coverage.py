"""A test that reads a part of a table alone shows nothing of the rest."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.proof.coverage import partly_read


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
    found = partly_read(model, [gather], computed, {W: [0]}, {indices})
    assert found is (None if whole else gather)
