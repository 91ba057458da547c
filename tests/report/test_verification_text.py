"""What the text says of a verification, against the document that it is made from."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from onnxfold.check import OutputCheck, Verification
from onnxfold.report.printed import print_verification


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
