"""What a written file loses behind other tools is said where it is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from tests.compatibility.test_tools_behind import EXACT, applied, executed, feeds, graph


def _notes(name: str, folder: Path, opset: int = 18, **options: object) -> list[str]:
    onnx.save(graph(name, opset), folder / "model.onnx")
    report = onnxfold.optimize(
        folder / "model.onnx", folder / "out.onnx", check=0, force=True, **options
    ).report
    found: list[str] = report["output"]["notes"]
    return found


def test_static_quantisation_and_onnx2torch_are_named(tmp_path: Path) -> None:
    (both,) = _notes("pre-LN", tmp_path)
    assert "quantize_static comes next, --norm-form op" in both
    assert "for onnx2torch, layer" in both
    (static,) = _notes("pre-LN", tmp_path, opset=17)
    assert "quantize_static" in static
    assert "onnx2torch" not in static


def test_norms_that_were_operators_before_are_no_news(tmp_path: Path) -> None:
    """As in models trained with RMSNorm: other tools take them as they did."""
    assert _notes("pre-LN", tmp_path)
    again = onnxfold.optimize(tmp_path / "out.onnx", tmp_path / "again.onnx", check=0).report
    assert {row["kind"] for row in again["inspect"]["norms"]} == {"rms_norm"}
    assert again["output"]["notes"] == []


@pytest.mark.parametrize(
    "options",
    [{"target": "ort"}, {"target": "kernels"}, {"norm_form": "op"}, {"norm_form": "layer"}],
)
def test_other_forms_have_nothing_to_say(options: dict[str, str], tmp_path: Path) -> None:
    assert _notes("pre-LN", tmp_path, **options) == []


def test_norms_that_stay_for_other_tools_are_counted(tmp_path: Path) -> None:
    (said,) = _notes("epsilon of ViT and BERT", tmp_path)
    assert said == (
        "--target ort or --norm-form op folds the 2 norms that stay for the sake of other tools"
    )
    said = _notes("a table", tmp_path)[0]
    assert "folds the norm that stays" in said


@pytest.mark.parametrize(
    "options", [{"norm_form": "decomposed"}, {"fold": "always"}, {"target": "kernels"}]
)
def test_an_epsilon_that_onnxscript_drops_is_named(options: dict[str, str], tmp_path: Path) -> None:
    said = _notes("epsilon of ViT and BERT", tmp_path, **options)
    assert [note for note in said if "an epsilon of 1e-12 as 0" in note]
    assert not [note for note in _notes("pre-LN", tmp_path, **options) if "epsilon" in note]


def test_onnxscript_makes_nan_of_a_function_whose_epsilon_it_drops(tmp_path: Path) -> None:
    """What the note is about: it inlines the functions of ``--target kernels``."""
    model = graph("epsilon of ViT and BERT", 18)
    made = onnxfold.optimize(model, target="kernels", check=0).model
    given = feeds(model)
    _, right = executed(made, given, tmp_path)
    _, wrong = executed(
        applied(EXACT["onnxscript optimizer"], made, given, tmp_path), given, tmp_path
    )
    assert np.isfinite(right).all()
    assert np.isnan(wrong).any()
