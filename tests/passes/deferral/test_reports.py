"""What the reports say of deferred norms."""

from __future__ import annotations

import pytest
from rich.console import Console

import onnxfold
from onnxfold.passes.plan import Plan
from onnxfold.report.printed import print_norms
from tests.passes.deferral.deferral_graphs import (
    attention,
)


def test_the_report_says_where_the_scale_went() -> None:
    document = onnxfold.inspect(attention(), defer="all")
    first, second, third = document["norms"]
    assert first["action"] == "deferred"
    assert first["deferral"] == {
        "applied": ["v"],
        "cancelled": ["qg", "kn"],
        "multiplications_saved": 6 - 16,
        "tables": [],
        "gammas": [],
        "centred": [],
        "bound": None,
    }
    assert second["deferral"] is None
    assert third["deferral"] is None
    assert document["summary"]["deferred"] == 1


def test_the_command_says_where_the_scale_went(capsys: pytest.CaptureFixture[str]) -> None:
    print_norms(Console(width=300), onnxfold.inspect(attention(), defer="all"))
    printed = capsys.readouterr().out
    assert "multiplied at v; canceled by qg, kn; 10 more multiplications per row" in printed


def test_a_plan_is_read_back_from_json() -> None:
    result = onnxfold.optimize(attention(), defer="all")
    assert result.plan.deferred
    assert Plan.from_json(result.plan.to_json()) == result.plan
    assert "defer" in str(result.plan)
