"""Models that do not fit in memory: run in pieces, with the outputs of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold import model_io
from onnxfold.check import pieces
from onnxfold.check.compare import verify
from onnxfold.check.pieces import Pieces
from onnxfold.check.runners import OnnxRuntime
from onnxfold.errors import ModelError, UsageError
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.model_io.load import Source
from onnxfold.report import html as html_report
from onnxfold.report.printed_result import print_result
from onnxfold.runtime import sessions
from tests.folded import model, weights
from tests.model_io.files import rich_model

RECIPES = Path(__file__).parents[1] / "recipes"
SMALL = OnnxRuntime(memory_bytes=20_000)
Array = np.ndarray


def both_ways(given: ir.Model) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """Outputs of a model as a whole and in pieces, without optimizations."""
    feeds = make_inputs(given, InputSpec(), count=2, seed=0)
    source = Source(given)
    return (
        OnnxRuntime().run(source, feeds, optimize=False),
        SMALL.run(source, feeds, optimize=False),
    )


def assert_equal(a: list[dict[str, Array]], b: list[dict[str, Array]]) -> None:
    for whole, parts in zip(a, b, strict=True):
        assert whole.keys() == parts.keys()
        for name, array in whole.items():
            np.testing.assert_array_equal(parts[name], array)


@pytest.mark.parametrize("name", ["gptj", "swin-t", "whisper-tiny-decoder", "t5-small"])
def test_pieces_compute_what_the_whole_does(name: str, tmp_path: Path) -> None:
    original = model_io.load(RECIPES / f"{name}.onnx")
    onnxfold.optimize(RECIPES / f"{name}.onnx", tmp_path / "out.onnx", check=None)
    for given in (original, model_io.load(tmp_path / "out.onnx")):
        assert len(SMALL.pieces(given).pieces) > 10
        assert_equal(*both_ways(given))


def test_bodies_and_functions_read_values_of_other_pieces() -> None:
    assert_equal(*both_ways(model_io.from_proto(rich_model())))


def parsed(body: str, arrays: Mapping[str, Array]) -> ir.Model:
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> '
        f"g (float[N, 64] x) => (float[N, 64] y, float[N, 64] z) {{ {body} }}"
    )
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    return ir.from_proto(proto)


def square(seed: int) -> Array:
    drawn = np.random.default_rng(seed).standard_normal((64, 64)) / 8
    return np.asarray(drawn, np.float32)


def test_an_output_that_is_read_again_and_constants_between_pieces() -> None:
    """The tied weight is read in two pieces, the constant in all."""
    given = parsed(
        """
        c = Constant <value = float {0.5}> ()
        a = MatMul (x, A)  z = Mul (a, c)  b = MatMul (z, B)  d = Mul (b, c)  e = MatMul (d, A)
        f = Add (e, x)     y = Add (f, z)
        """,
        {"A": square(0), "B": square(1)},
    )
    found = Pieces(given, 20_000)
    read = [sorted(found.weights(piece)) for piece in found.pieces]
    assert read == [["A"], ["B"], ["A"]]
    assert "z" in found.pieces[0].gives
    assert_equal(*both_ways(given))


def test_the_cut_is_where_the_fewest_values_are_handed_on() -> None:
    """Within a layer three values are live, between two layers one: the residual stream."""
    body, arrays = "h0 = Neg (x)", {}
    for n in range(4):
        arrays |= {f"A{n}": square(n), f"B{n}": square(n + 9)}
        body += f"""
        l{n} = Sin (h{n})   r{n} = Cos (h{n})
        a{n} = MatMul (l{n}, A{n})   b{n} = MatMul (r{n}, B{n})
        s{n} = Add (a{n}, b{n})   h{n + 1} = Add (s{n}, h{n})"""
    given = parsed(body + " y = Neg (h4)  z = Neg (h4)", arrays)
    found = Pieces(given, 3 * square(0).nbytes)
    assert [piece.gives for piece in found.pieces] == [("h1",), ("h2",), ("h3",), ("y", "z")]
    assert_equal(*both_ways(given))


def verified(a: ir.Model, b: ir.Model, **options: object) -> onnxfold.Verification:
    return verify(Source(a), Source(b), **options)  # type: ignore[arg-type]  # as given


def test_the_verdict_in_pieces_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_FED_BYTES", 64)
    w = weights()
    folded = model(w.centred(), rms=True)
    whole = verified(model(w), folded)
    parts = verified(model(w), folded, memory_bytes=18_000)
    assert (whole.pieces, whole.method, parts.method) == (1, "float64", "float64")
    assert parts.pieces > 1
    assert parts.passed
    assert parts.noise_ratio == pytest.approx(whole.noise_ratio, rel=0.5)
    assert parts.to_json()["pieces"] == parts.pieces


@pytest.mark.parametrize(("memory_bytes", "method"), [(18_000, "float64"), (10_000, "onnxruntime")])
def test_a_wrong_fold_is_found_in_pieces(
    memory_bytes: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_FED_BYTES", 64)
    w = weights()
    right = w.centred()
    for wrong in (w, replace(right, W=w.W), replace(right, gamma=right.gamma * np.float32(1.001))):
        result = verified(model(w), model(wrong, rms=True), memory_bytes=memory_bytes)
        assert result.method == method
        assert result.pieces > 1
        assert not result.passed
        assert result.worst is not None
    assert verified(model(w), model(right, rms=True), memory_bytes=memory_bytes).passed


def test_the_report_says_that_it_was_done_in_pieces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = onnxfold.optimize(RECIPES / "gptj.onnx", tmp_path / "out.onnx", memory=2e-5)
    document = result.report["verification"]
    assert document["passed"]
    assert document["method"] == "onnxruntime"
    assert document["pieces"] > 10
    from rich.console import Console

    print_result(Console(width=400), result.report, verbose=False)
    said = capsys.readouterr().out
    assert f"in {document['pieces']} pieces, since the model does not fit in memory" in said
    assert "too large for a float64 run" in said
    assert f"in {document['pieces']} pieces" in html_report.page(result.report)


def test_memory_that_makes_no_sense_is_refused() -> None:
    w = weights()
    for wrong in (0, -1):
        with pytest.raises(UsageError, match="memory of a verification must be positive"):
            verified(model(w), model(w), memory_bytes=wrong)
    with pytest.raises(UsageError, match="must be positive, not 0 GB"):
        onnxfold.verify(RECIPES / "gpt2.onnx", RECIPES / "gpt2.onnx", memory=0)


def test_a_piece_that_cannot_run_names_its_nodes() -> None:
    given = parsed("a = MatMul (x, A)  b = org.x.Foo (a)  y = Neg (b)  z = Neg (y)",
                   {"A": square(0)})  # fmt: skip
    with pytest.raises(ModelError, match=r"onnxruntime cannot run nodes \d+ to \d+: .*Foo"):
        SMALL.run(Source(given), [{"x": square(2)}], optimize=False)


def test_embedded_weights_beyond_a_protobuf_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "EMBEDDED_BYTES", 1000)
    monkeypatch.setattr(pieces, "_FED_BYTES", 1 << 30)
    with pytest.raises(ModelError, match="too many weights that cannot be handed to a piece"):
        SMALL.pieces(parsed("y = MatMul (x, A)  z = Neg (y)", {"A": square(0)}))


def test_what_is_free_is_the_least_of_machine_and_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("meminfo", "max", "current")
    meminfo, limit, used = (tmp_path / name for name in names)
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    monkeypatch.setattr(sessions, "_MEMINFO", meminfo)
    monkeypatch.setattr(sessions, "_CGROUPS", ((limit, used),))
    assert sessions.available_bytes() == int(0.8 * 1_024_000)
    limit.write_text("max\n")
    used.write_text("5000\n")
    assert sessions.available_bytes() == int(0.8 * 1_024_000)
    limit.write_text("105000\n")
    assert sessions.available_bytes() == 80_000
    monkeypatch.setattr(sessions, "_MEMINFO", tmp_path / "gone")
    monkeypatch.setattr(sessions, "_CGROUPS", ())
    assert sessions.available_bytes() is None
