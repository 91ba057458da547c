"""Gamma, beta and scales of real exporters' graphs: how many move, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfold

FOLDER = Path(__file__).parents[2] / "recipes"


@dataclass(frozen=True)
class Moved:
    """Of the gammas and betas that there are, those that move; scales that move."""

    gammas: int
    gammas_moved: int
    betas: int
    betas_moved: int
    scales: int


# Why the rest stays: docs/recipes.md, which has the models of full size.
MOVED = {
    "bert-base": Moved(5, 0, 5, 0, 2),
    "bloom-560m": Moved(6, 4, 6, 4, 2),
    "clip-text": Moved(5, 4, 5, 4, 2),
    "clip-vision": Moved(6, 4, 6, 4, 2),
    "convnext-t": Moved(7, 6, 7, 6, 4),
    "deberta-v2": Moved(6, 0, 6, 0, 0),
    "dinov2-small": Moved(5, 4, 5, 4, 6),
    "dyt-vit": Moved(5, 5, 5, 5, 2),
    "gemma-small": Moved(5, 5, 0, 0, 2),
    "gemma2-small": Moved(9, 5, 0, 0, 5),
    "gpt2": Moved(5, 4, 5, 4, 2),
    "gptj": Moved(3, 0, 3, 0, 2),
    "llama-small": Moved(5, 5, 0, 0, 2),
    "opt-125m": Moved(5, 4, 5, 4, 2),
    "phi-2": Moved(3, 3, 3, 3, 2),
    "pythia-160m": Moved(5, 4, 5, 4, 2),
    "qwen3-small": Moved(9, 5, 0, 0, 2),
    "swin-t": Moved(11, 9, 11, 9, 4),
    "t5-small": Moved(5, 4, 0, 0, 0),
    "vit-b16": Moved(5, 5, 5, 5, 2),
    "whisper-tiny-decoder": Moved(7, 4, 7, 4, 4),
    "whisper-tiny-encoder": Moved(5, 4, 5, 4, 2),
}


def test_every_recipe_in_the_folder_is_counted() -> None:
    assert {path.stem for path in FOLDER.glob("*.onnx")} == set(MOVED)


@pytest.mark.parametrize("name", MOVED)
def test_gammas_betas_and_scales_move_and_the_rest_says_why(name: str) -> None:
    document = onnxfold.inspect(FOLDER / f"{name}.onnx", target="kernels")
    summary, norms = document["summary"], document["norms"]
    found = Moved(
        sum("gamma" in norm["affine"] for norm in norms),
        summary["gamma_fused"],
        sum("beta" in norm["affine"] for norm in norms),
        summary["beta_fused"],
        summary["scales_fused"],
    )
    assert found == MOVED[name]
    for norm in norms:
        if not all(norm[f"{part}_fused"] for part in norm["affine"]):
            assert norm["affine_reason"]["sentence"], norm["name"]


def _weights(path: Path) -> dict[str, np.ndarray]:
    initializers = onnx.load(path).graph.initializer
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in initializers}
    neutral = ("ones.", "zeros.")
    return {
        name: array
        for name, array in arrays.items()
        if array.dtype == np.float32 and not name.startswith(neutral)
    }


@pytest.mark.parametrize("name", ["gpt2", "vit-b16", "swin-t", "phi-2"])
def test_moving_and_centring_give_the_same_weights_in_either_order(
    name: str, tmp_path: Path
) -> None:
    """At once, or first the centering of all norms and then, of what was written, the rest.

    No weight of these takes both, so not even a rounding differs; for one that does, see
    tests/weights/test_affine_arrays.py.
    """
    source = FOLDER / f"{name}.onnx"
    once, centred, moved = (tmp_path / f"{stage}.onnx" for stage in ("once", "centred", "moved"))
    whole = onnxfold.optimize(source, once, check=None, target="kernels")
    first = onnxfold.optimize(source, centred, check=None, target="kernels", fuse_affine=False)
    second = onnxfold.optimize(centred, moved, check=None, target="kernels")
    assert len(first.plan.folds) == len(whole.plan.folds) > 0
    assert len(second.plan.fusions) == len(whole.plan.fusions) > 0
    together, apart = _weights(once), _weights(moved)
    assert set(together) == set(apart)
    assert all(np.array_equal(together[key], apart[key]) for key in together)


def test_without_fusing_no_gamma_no_beta_and_no_scale_moves(tmp_path: Path) -> None:
    path = tmp_path / "kept.onnx"
    source = FOLDER / "gpt2.onnx"
    plan = onnxfold.optimize(source, path, check=None, target="kernels", fuse_affine=False).plan
    assert plan.folds
    assert not plan.fusions
    assert not plan.scales


@pytest.mark.parametrize(("limit", "warned"), [(16.0, False), (1.01, True)])
def test_weights_whose_range_grows_beyond_the_limit_are_named(
    limit: float, warned: bool, tmp_path: Path
) -> None:
    path = tmp_path / "folded.onnx"
    result = onnxfold.optimize(
        FOLDER / "vit-b16.onnx", path, check=None, target="kernels", range_limit=limit
    )
    warnings = result.report["inspect"]["range_warnings"]
    assert bool(warnings) == warned
    for warning in warnings:
        assert warning["range_after"] > limit * warning["range_before"]
        assert warning["weight"]
