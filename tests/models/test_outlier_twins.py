"""Twins with outliers compute what their model does, and quantise worse until they are turned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold
from models.outlier_twins import FACTOR, both_twin, gamma_twin, main, pca_twin
from onnxfold.errors import ModelError
from tests.builders import post_norm_model, pre_norm_model
from tests.soundness.float64 import evaluate, relative_error

DIGITS = Path("models/digits_vit")


@pytest.fixture(scope="module")
def images() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    loaded = np.load(DIGITS / "heldout.npz")["images"][:24]
    return np.asarray(loaded, np.float32)


def test_the_twin_in_principal_axes_computes_the_same(
    images: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> None:
    model = onnx.load(DIGITS / "digits_vit.onnx")
    twin = pca_twin(model, [{"images": images}])
    feeds = {"images": images}
    assert relative_error(evaluate(model, feeds), evaluate(twin, feeds)) < 1e-5


def test_the_twin_with_both_computes_the_same_and_has_a_large_gamma_at_every_norm(
    images: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> None:
    model = onnx.load(DIGITS / "digits_vit.onnx")
    feeds = {"images": images}
    twins = [made(model, [feeds]) for made in (pca_twin, both_twin)]
    assert relative_error(*(evaluate(twin, feeds) for twin in twins)) < 1e-14
    stored = [onnx.numpy_helper.to_array(tensor) for tensor in twins[1].graph.initializer]
    gammas = [a for a in stored if a.shape == (48,) and a.max() == FACTOR * a.min() > 0]
    assert len(gammas) == 9


@pytest.mark.campaign
def test_a_rotation_takes_the_outliers_of_the_twin_away(
    images: np.ndarray[tuple[int, ...], np.dtype[np.float32]], tmp_path: Path
) -> None:
    twin, data = tmp_path / "twin.onnx", tmp_path / "images.npz"
    np.savez(data, images=images)
    assert main([str(DIGITS / "digits_vit.onnx"), "-o", str(twin), "--data", str(data)]) == 0
    result = onnxfold.rotate(twin, tmp_path / "turned.onnx", to="int8", data=data, seeds=2)
    first, *others = result.report["candidates"]
    assert first["name"] == "as it is"
    assert min(row["error"] for row in others) < 0.75 * first["error"]
    assert result.report["best"].startswith("seed")
    models = [onnx.load(path) for path in (twin, tmp_path / "turned.onnx")]
    outputs = [evaluate(model, {"images": images}) for model in models]
    assert relative_error(*outputs) < 1e-5


def test_gammas_times_16_are_compensated_exactly() -> None:
    model = pre_norm_model()
    twin = gamma_twin(model)
    gammas = [
        {t.name: onnx.numpy_helper.to_array(t) for t in m.graph.initializer} for m in (model, twin)
    ]
    ratio = gammas[1]["norm0.gamma"] / gammas[0]["norm0.gamma"]
    assert sorted(set(ratio)) == [1, FACTOR]
    feeds = {"ids": np.array([[1, 5, 7]])}
    assert relative_error(evaluate(model, feeds), evaluate(twin, feeds)) < 1e-14


def test_post_norms_have_no_such_twin() -> None:
    with pytest.raises(ModelError, match="no norm"):
        gamma_twin(post_norm_model())
