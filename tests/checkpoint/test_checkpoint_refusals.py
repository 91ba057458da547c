"""Checkpoints that are refused: damaged, unknown, quantized, or written over something."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from onnxfold.checkpoint import fold_checkpoint
from onnxfold.checkpoint.families import FAMILIES
from onnxfold.errors import ModelError, UsageError
from tests.checkpoint.small import LAYER, NORM, READER, WIDTH, neox, save


def _missing_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def _misplaced(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][f"{NORM}.weight"] = "model-00001-of-00002.safetensors"
    index["weight_map"][f"{NORM}.bias"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))


def _outside(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {f"{NORM}.weight": "../other.safetensors"}}))


def _cut(folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def _unknown(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace("gpt_neox", "gpt_neox_two"))


def _quantised(folder: Path) -> None:
    config = {"model_type": "gpt_neox", "quantization_config": {"quant_method": "gptq"}}
    (folder / "config.json").write_text(json.dumps(config))


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _no_object(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


DAMAGED = {
    _missing_shard: r"model-00002-of-00002\.safetensors: this shard is missing",
    _misplaced: "which the index has there, is missing",
    _outside: "is not a file name",
    _cut: "cannot be read",
    _unknown: r"model_type 'gpt_neox_two' is not known; known are .*llama",
    _quantised: r"quantized \(gptq\)",
    _no_config: "there is no such file",
    _no_object: "does not contain a JSON object",
}


@pytest.mark.parametrize("damage", DAMAGED, ids=lambda damage: damage.__name__)
def test_damaged_and_unknown_checkpoints_are_refused(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    source = save(tmp_path / "in", neox(), shards=2)
    damage(source)
    with pytest.raises(ModelError, match=DAMAGED[damage]):
        fold_checkpoint(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_tensors_that_are_not_known_are_refused(tmp_path: Path) -> None:
    tensors = neox() | {f"{LAYER}.attention.adapter.weight": np.zeros(3, np.float32)}
    with pytest.raises(ModelError, match=r"'gpt_neox\.layers\.1\.attention\.adapter\.weight'"):
        fold_checkpoint(save(tmp_path / "in", tensors), tmp_path / "out")


def test_a_reader_that_is_missing_is_named(tmp_path: Path) -> None:
    tensors = neox()
    del tensors[f"{READER}.weight"]
    with pytest.raises(ModelError, match=rf"{READER}\.weight', which reads '{NORM}', is missing"):
        fold_checkpoint(save(tmp_path / "in", tensors), tmp_path / "out")


def test_variants_that_differ_are_refused(tmp_path: Path) -> None:
    for kind, family in FAMILIES.items():
        for key, wanted in family.demands.items():
            source = save(tmp_path / f"{kind}{key}", {}, {"model_type": kind, key: not wanted})
            with pytest.raises(ModelError, match=f"{key} is .* this variant of {kind}"):
                fold_checkpoint(source)


def test_integers_stay_with_their_norm(tmp_path: Path) -> None:
    tensors = neox()
    tensors[f"{READER}.weight"] = tensors[f"{READER}.weight"].astype(np.int8)
    tensors[f"{LAYER}.attention.dense.weight"] = np.ones((WIDTH, WIDTH), np.int8)
    source = save(tmp_path / "in", tensors)
    result = fold_checkpoint(source, tmp_path / "out")
    assert result.left[NORM] == f"'{READER}.weight' is I8, which cannot be scaled exactly"
    assert len(result.folded) == 3
    centring = fold_checkpoint(source, to="rms")
    assert not centring.folded
    assert "is I8,which cannot be centered" in centring.left[NORM]


GPTQ = {"qweight": (1, WIDTH), "qzeros": (1, 1), "scales": (1, WIDTH), "g_idx": (WIDTH,)}


AWQ = {"qweight": (WIDTH, 1), "qzeros": (1, 1), "scales": (1, WIDTH)}


LLM_INT8 = {"weight": (3 * WIDTH, WIDTH), "SCB": (3 * WIDTH,)}


CODES = {"gptq": (GPTQ, "qweight"), "awq": (AWQ, "qweight"), "bitsandbytes": (LLM_INT8, "SCB")}


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("method", CODES)
def test_codes_with_scales_are_refused_by_module(
    tmp_path: Path, method: str, declared: bool
) -> None:
    tensors = neox()
    del tensors[f"{READER}.weight"]
    parts, named = CODES[method]
    for part, shape in parts.items():
        dtype = {"scales": np.float16, "SCB": np.float32, "weight": np.int8}.get(part, np.int32)
        tensors[f"{READER}.{part}"] = np.ones(shape, dtype)
    config = {"quantization_config": {"quant_method": method}} if declared else {}
    source = save(tmp_path / "in", tensors, config)
    how = f"{method}: " if declared else ""
    for form in ("weightless", "rms"):
        with pytest.raises(ModelError, match=rf"quantized \({how}'{READER}' has {named}\), which"):
            fold_checkpoint(source, tmp_path / "out", to=form)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("out", "message"), [("in", "it exists"), ("in/new", "within the checkpoint")]
)
def test_outputs_that_would_replace_something_are_refused(
    tmp_path: Path, out: str, message: str
) -> None:
    source = save(tmp_path / "in", neox())
    with pytest.raises(UsageError, match=message):
        fold_checkpoint(source, tmp_path / out)
    with pytest.raises(ModelError, match="is not a writable folder"):
        fold_checkpoint(source, tmp_path / "no" / "new")
