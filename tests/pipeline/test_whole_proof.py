"""Without a check of the files, the proof covers the working copy and what is written, too."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.graph.edit import change_constant, set_input
from onnxfold.passes.prepare import working_copy
from onnxfold.pipeline import finalize
from tests.builders import pre_norm_model


def _double_a_weight(model: ir.Model) -> None:
    value = next(
        value
        for value in model.graph.initializers.values()
        if value.const_value is not None and len(value.const_value.shape) == 2
    )
    assert value.const_value is not None
    change_constant(value, ir.tensor(2 * value.const_value.numpy(), name=value.name))


def _add_a_value_to_itself(model: ir.Model) -> None:
    node = next(node for node in model.graph if node.op_type == "Add")
    set_input(node, 0, node.inputs[1])


def _folded() -> onnxfold.Result:
    return onnxfold.optimize(ir.from_proto(pre_norm_model()), fold="always", check=0)


def test_a_right_copy_and_a_right_file_are_proved() -> None:
    result = _folded()
    assert result.report["inspect"]["summary"]["folded"] > 0
    assert "left_out" not in result.report


@pytest.mark.parametrize("broken", [_double_a_weight, _add_a_value_to_itself])
def test_a_wrong_working_copy_is_left_out(
    broken: Callable[[ir.Model], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(model: ir.Model) -> int:
        broken(model)
        return 0

    monkeypatch.setattr(working_copy, "read_directly", read)
    result = _folded()
    assert [left["name"] for left in result.report["left_out"]] == ["prepare"]
    assert result.report["inspect"]["summary"]["folded"] == 0


@pytest.mark.parametrize("broken", [_double_a_weight, _add_a_value_to_itself])
def test_what_is_written_wrongly_is_left_out(
    broken: Callable[[ir.Model], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalize, "put_sigmoids_first", broken)
    result = _folded()
    assert [left["name"] for left in result.report["left_out"]] == ["lower"]
    assert result.report["inspect"]["summary"]["folded"] == 0
