"""bench: variants, ratios and profiles; no test asserts a time."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import onnx
import pytest
from rich.console import Console

import onnxfold
from onnxfold.cli.bench import print_benchmark
from onnxfold.errors import ModelError, one_line
from onnxfold.runtime.bench import bench, is_apart
from onnxfold.runtime.library import get_library_path
from onnxfold.runtime.sessions import session_operators
from tests.builders import chain_model, pre_norm_model


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    onnx.save(pre_norm_model(), tmp_path / "a.onnx")
    onnxfold.optimize(tmp_path / "a.onnx", tmp_path / "b.onnx", target="kernels", check=None)
    return tmp_path / "a.onnx", tmp_path / "b.onnx"


def test_every_variant_is_measured_against_the_first(pair: tuple[Path, Path]) -> None:
    get_library_path()  # the suite needs the kernels
    measured = bench(pair, rounds=3, inputs=("ids:1,8",))
    assert [(Path(m.model).name, m.kernels) for m in measured.measurements] == [
        ("a.onnx", False),
        ("b.onnx", False),
        ("b.onnx", True),
    ]
    assert measured.inputs == {"ids": [1, 8]}
    first = measured.measurements[0]
    assert (first.speed, first.speed_p20, first.speed_p80) == (1.0, 1.0, 1.0)
    assert not first.apart
    assert all(m.p20_ms <= m.median_ms <= m.p80_ms for m in measured.measurements)


@pytest.mark.parametrize(
    ("speed", "low", "high", "told"),
    [
        (1.09, 1.07, 1.11, True),
        (0.91, 0.9, 0.93, True),
        (1.09, 1.0, 1.1, False),
        (0.5, 0.085, 11.2, False),
        (1.0, 1.0, 1.0, False),
    ],
)
def test_a_speed_counts_beyond_the_spread_of_its_rounds(
    speed: float, low: float, high: float, *, told: bool
) -> None:
    assert is_apart(speed, low, high) == told
    row = {"kernels": False, "median_ms": 1.0, "p20_ms": 1.0, "p80_ms": 1.0, "operators": {}}
    first = row | {"model": "a.onnx", "speed": 1.0, "speed_p20": 1.0, "speed_p80": 1.0}
    other = row | {"model": "b.onnx", "speed": speed, "speed_p20": low, "speed_p80": high}
    document = {
        "onnxruntime": "1", "providers": ["CPU"], "threads": 1, "rounds": 3, "inputs": {},
        "measurements": [first | {"apart": False}, other | {"apart": told}],
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    print_benchmark(console, document)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said.count("b.onnx") == 1
    assert ("B against A: undecided" in said) != told
    assert (f"B is {speed:.2f} times as fast as A" in said) == told
    assert ("--rounds 200" in " ".join(said.split())) != told


def test_the_profile_names_the_kernels_that_ran(pair: tuple[Path, Path]) -> None:
    stock, kernels = bench(pair[1:], rounds=1).measurements
    assert any("RMSNorm" in name and "Layer" not in name for name in kernels.operators)
    assert "MatMul" in stock.operators
    assert set(stock.operators) != set(kernels.operators)


def test_impossible_options_and_unreadable_models_are_one_line(tmp_path: Path) -> None:
    onnx.save(chain_model(), tmp_path / "m.onnx")
    with pytest.raises(onnxfold.UsageError, match="at least 1"):
        bench([tmp_path / "m.onnx"], rounds=0)
    with pytest.raises(onnxfold.UsageError, match="at least one model"):
        bench([])
    with pytest.raises(onnxfold.ModelError, match="missing"):
        bench([tmp_path / "missing.onnx"])
    with pytest.raises(onnxfold.UsageError, match="onnxruntime has no 'NoProvider' here"):
        bench([tmp_path / "m.onnx"], providers=("NoProvider",))


def test_what_onnxruntime_says_is_told_without_places_in_its_sources(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    model = onnx.load(pair[0])
    model.graph.node[0].domain = "nowhere"
    model.opset_import.add(domain="nowhere", version=1)
    path = tmp_path / "from nowhere.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        session_operators(path)
    told = r"from nowhere.onnx: ONNX Runtime cannot load it: (?!.*onnxruntime_src).*nowhere.*"
    assert re.fullmatch(told, str(caught.value))
    place = "/onnxruntime_src/core/a.h:39 ort::A::A(const B<void (int)>&, bool) const"
    said = f"[ONNXRuntimeError] : 1 : FAIL : Reshape (a) Status Message: {place} size was false"
    assert one_line(ValueError(said)) == "Reshape (a) Status Message: size was false"


def test_a_model_with_other_inputs_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, model in (("a", chain_model()), ("b", pre_norm_model())):
        onnx.save(model, tmp_path / f"{name}.onnx")
    with pytest.raises(ModelError, match=r"b.onnx' does not run on these inputs: .*missing"):
        bench([tmp_path / "a.onnx", tmp_path / "b.onnx"], rounds=1)
    empty = onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], []), ir_version=8)
    onnx.save(empty, tmp_path / "a.onnx")
    with pytest.raises(ModelError, match="ONNX Runtime cannot load"):
        bench([tmp_path / "a.onnx"], rounds=1)
    assert capfd.readouterr().err == ""


def test_a_name_that_is_no_text_is_one_line(pair: tuple[Path, Path]) -> None:
    odd = pair[0].with_name(os.fsdecode(b"m\xff.onnx"))
    try:
        pair[0].rename(odd)
    except OSError:
        pytest.skip("this file system has no such names")
    with pytest.raises(ModelError, match="cannot open a file of this name; rename it"):
        bench([odd], rounds=1)


def test_indices_of_what_is_computed_start_from_the_first(tmp_path: Path) -> None:
    """With two rows only 0 and 1 are valid."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4] x, int64[e] i) => (float[e, 4] y) { h = Neg (x) y = Gather (h, i) }"""
    )
    onnx.save(proto, tmp_path / "m.onnx")
    assert bench([tmp_path / "m.onnx"], rounds=1).inputs["x"] == [2, 4]
