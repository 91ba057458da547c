"""A norm that would not be faster stays as it is, and the report says what it would cost."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rich.console import Console

import onnxfold
from onnxfold.errors import ModelError
from onnxfold.report.html import page
from onnxfold.report.printed_result import print_result
from onnxfold.runtime.bench import Benchmark, Measurement
from onnxfold.runtime.sessions import session_operators
from onnxfold.target import TRAITS
from tests.graphs import graph

pytestmark = pytest.mark.prices
RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.onnx"))
NORM = "n = LayerNormalization<axis=-1>(h, gamma, beta)"
KEPT = f"h = MatMul(x, W) {NORM} y = Tanh(n)"
WITHOUT_BETA = KEPT.replace(", beta", "")
ADDED = f"p = MatMul(x, W) q = MatMul(x, V) h = Add(p, q) {NORM.replace(', beta', '')} y = Tanh(n)"
BIASED = ADDED.replace("h = Add(p, q)", "b = Add(p, bias) h = Add(b, q)")


def model(body: str, *sizes: int | str, width: int) -> ir.Model:
    """A norm of rows of ``width``, whose beta no downstream node absorbs."""
    rng = np.random.default_rng(0)
    vectors = {name: rng.standard_normal(width) for name in ("gamma", "beta", "bias")}
    matrices = {name: rng.standard_normal((4, width)) for name in ("W", "V")}
    words = body.replace(",", " ").replace("(", " ").replace(")", " ").split()
    made = {
        name: array.astype(np.float32)
        for name, array in {**vectors, **matrices}.items()
        if name in words
    }
    shape = ",".join(map(str, sizes))
    return graph(body, f"float[{shape},4] x", f"float[{shape},{width}] y", made, opset=17)


def counts(result: onnxfold.Result) -> tuple[int, int]:
    summary = result.report["inspect"]["summary"]
    return summary["foldable"], summary["folded"]


_MERGED = """h = MatMul(x, W) mean = ReduceMean<axes=[-1]>(h) centred = Sub(h, mean)
    square = Mul(centred, centred) variance = ReduceMean<axes=[-1]>(square)
    shifted = Add(variance, epsilon) root = Sqrt(shifted) """
_INVERSE = "inverse = Reciprocal(root) "
_READER = "q{0} = {1} m{0} = Mul(q{0}, gamma) n{0} = Add(m{0}, beta) t{0} = Tanh(n{0}) "


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize(
    ("inverse", "quotient"), [("", "Div(centred, root)"), (_INVERSE, "Mul(centred, inverse)")]
)
def test_norms_that_share_a_root_fold_because_no_session_fuses_them(
    inverse: str, quotient: str, target: str, tmp_path: Path
) -> None:
    """As optimizers merge equal operators: each addition of beta is an operator before too."""
    readers = "".join(_READER.format(number, quotient) for number in range(2))
    made = model(_MERGED + inverse + readers + "y = Add(t0, t1)", "rows", 4, width=32)
    made.graph.register_initializer(
        ir.Value(name="epsilon", const_value=ir.tensor(np.float32(1e-5), name="epsilon"))
    )
    path, output = tmp_path / "m.onnx", tmp_path / "fast.onnx"
    onnx.save(ir.to_proto(made), path)
    assert counts(onnxfold.optimize(path, output, target=target)) == (2, 2)
    before, after = (sum((session_operators(file) or {}).values()) for file in (path, output))
    assert after < before


_SPELLED = """h = MatMul(x, W) mean = ReduceMean<axes=[-1]>(h) centred = Sub(h, mean)
    square = {square} variance = ReduceMean<axes=[-1]>(square) shifted = Add(variance, epsilon)
    {root} n = Div(centred, root) {affine} y = Tanh(b)"""
_SQUARES = ("Pow(centred, two)", "Mul(centred, centred)")
_ROOTS = (
    "root = Sqrt(shifted)",
    "low = Min(shifted, inf) high = Max(low, zero) root = Sqrt(high)",
)
_AFFINES = ("g = Mul(n, gamma) b = Add(g, beta)", "b = Identity(n)", "b = Add(n, beta)")


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("affine", _AFFINES, ids=["whole", "bare", "beta"])
@pytest.mark.parametrize("root", _ROOTS, ids=["root", "guarded"])
@pytest.mark.parametrize("square", _SQUARES, ids=["Pow", "Mul"])
def test_a_norm_that_a_session_runs_in_pieces_folds_because_its_mean_is_two_of_them(
    square: str, root: str, affine: str, target: str, tmp_path: Path
) -> None:
    """K.sqrt of Keras is guarded; opset 16 has no operator into which the norm could change."""
    made = model(_SPELLED.format(square=square, root=root, affine=affine), "rows", width=32)
    made.opset_imports[""] = 16
    numbers = {"epsilon": 1e-5, "two": 2.0, "inf": np.inf, "zero": 0.0}
    for name, number in numbers.items():
        value = ir.Value(name=name, const_value=ir.tensor(np.float32(number), name=name))
        made.graph.register_initializer(value)
    path, output = tmp_path / "m.onnx", tmp_path / "fast.onnx"
    onnx.save(ir.to_proto(made), path)
    before = session_operators(path) or {}
    result = onnxfold.optimize(path, output, target=target)
    assert counts(result) == (1, "LayerNormalization" not in before)
    after = session_operators(output) or {}
    shorter = sum(after.values()) < sum(before.values())
    assert shorter is ("LayerNormalization" not in before)


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize(
    ("body", "sizes", "width", "folded"),
    [
        (KEPT, (1,), 32, 0),  # as in models that listen for a word
        (KEPT, (1, 16), 96, 0),
        (KEPT, ("rows",), 32, 0),  # a row of the Add costs more than one of the mean
        (KEPT, ("rows", 16), 192, 0),
        (KEPT, (1, 8), 768, 0),
        (KEPT, (1, 16), 768, 0),  # which the measured prices leave open
        (KEPT, (1, 64), 384, 0),  # as in Swin-V2
        (KEPT, (1, 64), 768, 0),
        (KEPT, (1, 256), 768, 1),
        (KEPT, ("batch", 16), 768, 1),
        (WITHOUT_BETA, (1,), 32, 1),
        (WITHOUT_BETA, ("rows",), 8, 1),
    ],
)
def test_an_add_for_beta_is_paid_for_by_the_mean(
    target: str, body: str, sizes: tuple[int | str, ...], width: int, folded: int
) -> None:
    result = onnxfold.optimize(model(body, *sizes, width=width), target=target)
    assert counts(result) == (1, folded)
    (row,) = result.report["inspect"]["norms"]
    assert row["foldable"]
    assert row["action"] == ("rms" if folded else "keep")
    if not folded:
        assert row["reason"]["code"] == "not_worth"
        assert "µs without its mean, but 1 more operator would take " in row["reason"]["sentence"]
        assert "--fold always" in row["reason"]["sentence"]
        close = "prices are known within " in row["reason"]["sentence"]
        assert close is (sizes in ((1, 16), (1, 64)) and width > 96)
        assert ("each free size" in row["reason"]["sentence"]) is isinstance(sizes[0], str)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
def test_always_folds_whatever_is_exact(target: str) -> None:
    result = onnxfold.optimize(model(KEPT, 1, width=32), target=target, fold="always")
    assert counts(result) == (1, 1)
    assert result.verification is not None
    assert result.verification.passed


@pytest.mark.parametrize(("body", "reason"), [(KEPT, "1 more operator"), (WITHOUT_BETA, "nothing")])
@pytest.mark.parametrize("dearer", [0, 50])  # than an RMSNorm; an Add takes 80
def test_always_folds_also_where_a_target_saves_nothing(
    body: str, reason: str, dearer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    traits = onnxfold.Target.ONNX.traits
    prices = replace(traits.prices, rms_norm=traits.prices.layer_norm - dearer)
    monkeypatch.setitem(TRAITS, onnxfold.Target.ONNX, replace(traits, prices=prices))
    made = model(body, "rows", 8, width=32)
    assert counts(onnxfold.optimize(made, fold="always")) == (1, 1)
    folded = onnxfold.optimize(made)
    gains = dearer and body == WITHOUT_BETA
    assert counts(folded) == (1, 1 if gains else 0)
    (row,) = folded.report["inspect"]["norms"]
    assert gains or reason in row["reason"]["sentence"]


def test_a_kernel_adds_beta_itself() -> None:
    assert counts(onnxfold.optimize(model(KEPT, 1, width=32), target="kernels")) == (1, 1)


@pytest.mark.parametrize(("body", "more"), [(ADDED, 1), (BIASED, 2)])
@pytest.mark.parametrize(("tokens", "folded"), [(4, 0), (1024, 1)])
def test_what_a_session_joins_with_a_norm_is_priced(
    body: str, more: int, tokens: int, folded: int
) -> None:
    """It makes SkipLayerNormalization of an addition and a LayerNorm."""
    result = onnxfold.optimize(model(body, 1, tokens, width=32), fuse_affine=False)
    assert counts(result) == (1, folded)
    if folded:
        assert result.report["inspect"]["prices"]["operators"] == more
    else:
        (row,) = result.report["inspect"]["norms"]
        operators = "1 more operator" if more == 1 else "2 more operators"
        assert operators in row["reason"]["sentence"]


@pytest.mark.parametrize(("rows", "folded"), [(1, 0), (4096, 2)])
@pytest.mark.parametrize("target", ["onnx", "kernels"])
def test_an_inserted_centring_is_paid_for_by_the_norms(target: str, rows: int, folded: int) -> None:
    """Of norms without means, the kernels gain less than a centering for two of them costs."""
    norms = " ".join(
        f"n{i} = LayerNormalization<axis=-1>(h, gamma) t{i} = Tanh(n{i})" for i in range(5)
    )
    sums = "a = Sum(t0, t1, t2, t3, t4) y = Add(a, h)"
    made = onnxfold.optimize(model(f"h = Tanh(x) {norms} {sums}", rows, width=4), target=target)
    assert counts(made) == (5, 5 if folded else 0)
    assert len(made.plan.insertions) == bool(folded)
    if not folded:
        (row, *_) = made.report["inspect"]["norms"]
        assert "an inserted centering would take " in row["reason"]["sentence"]


def test_two_counts_stand_in_every_report(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(ir.to_proto(model(KEPT, 1, width=32)), path)
    summary = onnxfold.inspect(path)["summary"]
    assert (summary["foldable"], summary["folded"]) == (1, 0)
    assert onnxfold.inspect(path, fold="always")["summary"]["folded"] == 1
    report: dict[str, Any] = onnxfold.optimize(path, tmp_path / "out.onnx").report
    assert "<dt>foldable, folded</dt><dd>1, 0</dd>" in page(report)
    console = Console(file=StringIO(), width=300)
    print_result(console, report, verbose=False)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0 of 1 LayerNorm folds to RMSNorm, 1 could but stays as it is" in told


def _session(path: Path) -> int:
    operators = session_operators(path)
    assert operators is not None
    return sum(operators.values())


def test_forcing_a_fold_makes_the_session_longer(tmp_path: Path) -> None:
    path, always, auto = (tmp_path / name for name in ("in.onnx", "always.onnx", "auto.onnx"))
    onnx.save(ir.to_proto(model(KEPT, 1, width=32)), path)
    onnxfold.optimize(path, always, fold="always")
    onnxfold.optimize(path, auto)
    assert _session(always) == _session(path) + 1
    assert _session(auto) == _session(path)


def test_a_longer_session_is_told_with_its_price(tmp_path: Path) -> None:
    path, output = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(ir.to_proto(model(KEPT, "batch", 16, width=768)), path)
    report = onnxfold.optimize(path, output).report
    assert report["inspect"]["prices"]["operators"] == 1
    for told in (page(report), _printed(report)):
        assert "estimate: the norms save " in told
        assert "µs, and 0.5 µs each to start; each free size counts as 1" in told


def _measuring(monkeypatch: pytest.MonkeyPatch, path: Path, output: Path) -> dict[str, Any]:
    """Return a report in which the files were timed with these numbers."""

    def timed(models: tuple[Path, Path], **options: Any) -> Benchmark:
        assert models[0] == path
        assert models[1].exists()
        assert options["budget_s"] <= 5
        speeds = ((1.0, 1.0, 1.0), (1.25, 1.125, 1.375))
        found = [Measurement("", False, 1, 1, 1, *speed, True, {}) for speed in speeds]
        return Benchmark("", (), 1, 7, {}, tuple(found))

    monkeypatch.setattr("onnxfold.runtime.bench.bench", timed)
    return onnxfold.optimize(path, output, fold="always").report


def test_a_longer_session_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, output = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(ir.to_proto(model(KEPT, "batch", 16, width=768)), path)
    report = _measuring(monkeypatch, path, output)
    for told in (page(report), _printed(report)):
        assert "; measured in 7 turns: 1.250 times as fast (1.125 to 1.375)" in told


def test_a_session_that_is_as_long_as_before_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(ir.to_proto(model(WITHOUT_BETA, "batch", 16, width=768)), path)
    report = _measuring(monkeypatch, path, tmp_path / "out.onnx")
    assert report["inspect"]["summary"]["folded"] == 1
    assert "measured" not in report["before_after"]


def test_inputs_that_only_the_check_finds_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: Any, **__: Any) -> Benchmark:
        raise ModelError("it does not run on these inputs")

    monkeypatch.setattr("onnxfold.runtime.bench.bench", refusing)
    path, output = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(ir.to_proto(model(KEPT, "batch", 16, width=768)), path)
    report = onnxfold.optimize(path, output).report
    assert output.exists()
    assert "; not measured: it does not run on these inputs" in _printed(report)


def test_without_a_check_a_longer_session_is_only_estimated(tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(ir.to_proto(model(KEPT, "batch", 16, width=768)), path)
    report = onnxfold.optimize(path, tmp_path / "out.onnx", check=None).report
    assert "for 1 more node that a session may execute (only a check counts them), at " in (
        _printed(report)
    )


def _printed(report: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=400)
    print_result(console, report, verbose=False)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize(("path", "target"), list(zip(RECIPES, cycle(("onnx", "ort")))))
def test_a_session_of_a_recipe_is_not_longer_without_a_gain(
    path: Path, target: str, tmp_path: Path
) -> None:
    output = tmp_path / "folded.onnx"
    report = onnxfold.optimize(path, output, target=target, check=None).report
    prices = report["inspect"]["prices"]
    more = _session(output if output.exists() else path) - _session(path)
    assert more <= prices["operators"]
    assert more <= 0 or prices["saved_us"] > prices["spent_us"]
