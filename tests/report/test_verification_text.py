"""What the text says of a verification, against the document that it is made from."""

from __future__ import annotations

import io
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from rich.console import Console

import onnxfold
from onnxfold.check import OutputCheck, Verification
from onnxfold.check.compare import verify
from onnxfold.model_io.load import Source
from onnxfold.pipeline import LeftOut
from onnxfold.report.printed import print_verification
from onnxfold.report.printed_result import print_result
from tests.builders import chain_model


def check(name: str, **changes: Any) -> OutputCheck:
    usual: dict[str, Any] = {
        "dtype": "float32",
        "method": "float64",
        "bound": 4e-6,
        "allowed": "4 times the original's noise: ONNX Runtime's, with or without optimizations",
        "reason": None,
        "max_abs_error": 2e-6,
        "rms_error": 1e-6,
        "original_rms_error": 1e-6,
        "noise_ratio": 1.0,
        "relative_noise": 1e-6,
        "passed": True,
        "elements": 4,
        "compared": 4,
    }
    return OutputCheck(name=name, **{**usual, **changes})


def printed(*outputs: OutputCheck) -> str:
    made = Verification(True, "onnxruntime 1.31", 2, 4.0, outputs)
    text = io.StringIO()
    print_verification(Console(file=text, width=1000), made.to_json())
    return text.getvalue()


def test_one_method_is_said_once() -> None:
    said = printed(check("a"), check("b"))
    assert (
        "max error 2e-06 against a float64 run, 1 times the original's own rounding error" in said
    )
    assert "note:" not in said
    assert "warning:" not in said


def test_outputs_that_no_float64_run_judged_are_named_with_the_reason() -> None:
    other = {"method": "onnxruntime", "reason": "it is far", "max_abs_error": 7.5}
    said = printed(check("a"), check("b", **other), check("c", **other))
    assert "max error 2e-06 against a float64 run for 'a'" in said
    assert (
        "max error 7.5 against an unoptimized run of the original for 'b' and 1 other out" in said
    )
    assert "note: no float64 run judged 'b' and 1 other output: it is far" in said
    alone = printed(check("b", **other))
    assert "float64 run," not in alone


def test_a_chaotic_output_is_named_with_what_would_pass() -> None:
    said = printed(
        check("a", relative_noise=0.03, bound=1.0), check("b", relative_noise=0.8, bound=40.0)
    )
    assert (
        "warning: 'b' and 1 other output: rounding errors of the original alone are 0.8 times"
        in said
    )
    assert "an error of 40 passes" in said


def test_batches_of_one_are_named_with_the_reason() -> None:
    made = Verification(True, "onnxruntime 1.31", 2, 4.0, (check("a"),), single="Add fails")
    said = "compared in batches of one, since others do not run: Add fails"
    text = io.StringIO()
    print_verification(Console(file=text, width=1000), made.to_json())
    assert f"note: {said}\n" in text.getvalue()


def _logistic(steps: int) -> Source:
    """Steps of 3.9 r (1 - r), each of which nearly doubles an error, and one parallel step."""
    step = "l{0} = Sub(one, r{0}) p{0} = Mul(r{0}, l{0}) r{1} = Mul(p{0}, rate) "
    body = "r0 = Sigmoid(x) steady = Mul(r0, rate) " + "".join(
        step.format(number, number + 1) for number in range(steps)
    )
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        logistic (float[4,64] x) => (float[4,64] r{steps}, float[4,64] steady)
        <float one = {{1.0}}, float rate = {{3.9}}> {{ {body} }}"""
    )
    return Source(ir.from_proto(proto))


def test_a_chaotic_model_is_said_to_be_one() -> None:
    made = verify(_logistic(60), _logistic(60))
    chaotic, steady = made.outputs
    assert (chaotic.method, steady.method, made.method) == ("onnxruntime", "float64", "mixed")
    assert str(chaotic.reason).startswith("ONNX Runtime is so far from a float64 run")
    assert chaotic.relative_noise > 0.1
    assert steady.relative_noise < 1e-6
    assert chaotic.bound > 1e5 * steady.bound
    said = printed(chaotic, steady)
    assert "an unoptimized run of the original for 'r60'" in said
    assert "against a float64 run for 'steady'" in said
    assert f"an error of {chaotic.bound:.2g} passes" in said
    for output in made.to_json()["outputs"]:
        assert {"method", "bound", "allowed", "reason"} <= set(output)


_COMPARED, _PROVED = "checked: max error", "proved: 1 norm"
_NOT_COMPARED = "not run: the result is proved, and was not compared (--check 0)"
_NEITHER = "neither proved nor run (--no-check)"


@pytest.mark.parametrize(
    ("check", "told"),
    [(1, {_PROVED, _COMPARED}), (0, {_PROVED, _NOT_COMPARED}), (None, {_NEITHER})],
)
def test_what_was_proved_and_run_is_said(check: int | None, told: set[str]) -> None:
    result = onnxfold.optimize(chain_model(), check=check)
    text = io.StringIO()
    print_result(Console(file=text, width=1000), result.report, verbose=False)
    said = {
        line for line in (_COMPARED, _PROVED, _NOT_COMPARED, _NEITHER) if line in text.getvalue()
    }
    assert said == told
    assert ("float64" in text.getvalue()) is (check == 1)


@pytest.mark.parametrize(
    ("moves", "where"),
    [([], ""), (["n0"], " for 'n0'"), (["n0", "n1", "n2"], " for 'n0' and 2 other outputs")],
)
def test_what_is_left_out_is_named_with_the_reason(moves: list[str], where: str) -> None:
    report = onnxfold.optimize(chain_model(), check=0).report
    left = LeftOut("affine", "it cannot be shown", tuple(moves)).to_json()
    text = io.StringIO()
    print_result(Console(file=text, width=1000), report | {"left_out": [left]}, verbose=False)
    assert f"the pass 'affine' was left out{where}: it cannot be shown\n" in text.getvalue()


def test_numbers_that_are_not_finite_are_said_to_be() -> None:
    lost = check(
        "a", max_abs_error=float("inf"), noise_ratio=float("inf"), relative_noise=float("nan")
    )
    said = printed(lost)
    assert "max error not finite against a float64 run, not finite times" in said
    assert "rounding errors of the original alone are not finite times" in said


def test_outputs_of_which_nothing_was_compared_share_a_line() -> None:
    said = printed(*(check(name, compared=0) for name in ("a", "b", "c")))
    (line,) = [line for line in said.splitlines() if line.startswith("warning: nothing was")]
    assert "for 'a' and 2 other outputs:" in line
