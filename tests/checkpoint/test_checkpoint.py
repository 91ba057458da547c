"""Checkpoints are rewritten exactly, as a whole, or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from onnxfold.checkpoint import fold_checkpoint
from onnxfold.cli import application
from onnxfold.errors import OnnxfoldError
from tests.checkpoint.small import NORM, READER, WIDTH, neox, save
from tests.hostile.faults import STEPS


def wide(array: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    return array.astype(np.float64)


def header(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: 8 + int.from_bytes(data[:8], "little")]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_gamma_and_beta_move_and_are_rounded_once(tmp_path: Path, dtype: npt.DTypeLike) -> None:
    tensors = neox(dtype)
    result = fold_checkpoint(save(tmp_path / "in", tensors), tmp_path / "out")
    new = load_file(tmp_path / "out" / "model.safetensors")
    g, s = wide(tensors[f"{NORM}.weight"]), wide(tensors[f"{NORM}.bias"])
    W, b = wide(tensors[f"{READER}.weight"]), wide(tensors[f"{READER}.bias"])
    assert np.array_equal(new[f"{READER}.weight"], (W * g).astype(dtype))
    # The sum of W beta may be taken in another order: WIDTH units of float64, then one rounding.
    exact = b + (W @ s)
    sums = 2 * WIDTH * 2.0**-53 * (np.abs(b) + np.abs(W) @ np.abs(s))
    unit = float(ml_dtypes.finfo(dtype).eps)
    error = np.abs(wide(new[f"{READER}.bias"]) - exact)
    assert np.all(error <= sums + unit / 2 * (np.abs(exact) + sums))
    assert np.array_equal(wide(new[f"{NORM}.weight"]), np.ones(WIDTH))
    assert np.array_equal(wide(new[f"{NORM}.bias"]), np.zeros(WIDTH))
    assert result.folded[NORM] == (READER,)
    assert len(result.folded) == 4
    assert result.left == {"gpt_neox.final_layer_norm": "'embed_out' has no bias input for beta"}


def test_what_writes_the_stream_is_centred(tmp_path: Path) -> None:
    tensors = neox()
    result = fold_checkpoint(save(tmp_path / "in", tensors), tmp_path / "out", to="rms")
    new = load_file(tmp_path / "out" / "model.safetensors")
    axes = {"gpt_neox.embed_in.weight": 1}
    for number in range(2):
        for part in ("attention.dense", "mlp.dense_4h_to_h"):
            axes |= dict.fromkeys(
                (f"gpt_neox.layers.{number}.{part}.{end}" for end in ("weight", "bias")), 0
            )
    for name, old in tensors.items():
        expected = wide(old)
        if name in axes:
            expected = expected - expected.mean(axes[name], keepdims=True)
            # One rounding to float32, and means in float64 whose order is free.
            bound = 2.0**-24 * np.abs(expected) + WIDTH * 2.0**-52 * np.abs(old).max()
            assert np.all(np.abs(wide(new[name]) - expected) <= bound), name
        else:
            assert np.array_equal(new[name], old), name
    assert result.changed == len(axes)
    assert len(result.folded) == 5
    assert len(result.centred) == 5


@pytest.mark.parametrize("shards", [1, 3])
def test_names_types_order_and_metadata_stay(tmp_path: Path, shards: int) -> None:
    source = save(tmp_path / "in", neox(), shards=shards)
    fold_checkpoint(source, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in source.iterdir()
    )
    for path in source.iterdir():
        written = tmp_path / "out" / path.name
        if path.suffix == ".safetensors":
            assert header(written) == header(path)
            assert written.stat().st_size == path.stat().st_size
        else:
            assert written.read_bytes() == path.read_bytes()


def test_shards_hold_what_one_file_holds(tmp_path: Path) -> None:
    one = save(tmp_path / "one", neox())
    many = save(tmp_path / "many", neox(), shards=4)
    fold_checkpoint(one, tmp_path / "one out")
    fold_checkpoint(many, tmp_path / "many out")
    whole = load_file(tmp_path / "one out" / "model.safetensors")
    parts = {}
    for path in (tmp_path / "many out").glob("*.safetensors"):
        parts |= load_file(path)
    assert parts.keys() == whole.keys()
    assert all(np.array_equal(parts[name], whole[name]) for name in whole)


def test_a_second_run_finds_nothing_to_do(tmp_path: Path) -> None:
    fold_checkpoint(save(tmp_path / "in", neox()), tmp_path / "out")
    again = fold_checkpoint(tmp_path / "out", tmp_path / "again")
    assert again.changed == 0
    assert again.left[NORM] == "it is weightless already"
    first, second = (tmp_path / name / "model.safetensors" for name in ("out", "again"))
    assert first.read_bytes() == second.read_bytes()


def test_both_forms_may_follow_each_other(tmp_path: Path) -> None:
    fold_checkpoint(save(tmp_path / "in", neox(np.float64)), tmp_path / "a")
    fold_checkpoint(tmp_path / "a", tmp_path / "ab", to="rms")
    fold_checkpoint(tmp_path / "in", tmp_path / "b", to="rms")
    fold_checkpoint(tmp_path / "b", tmp_path / "ba")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("ab", "ba"))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_norms_that_are_excluded_stay(tmp_path: Path) -> None:
    source = save(tmp_path / "in", neox())
    result = fold_checkpoint(source, tmp_path / "out", exclude=r"layers\.1\.")
    assert result.left[NORM] == "excluded by name"
    assert set(result.folded) == {
        "gpt_neox.layers.0.input_layernorm",
        "gpt_neox.layers.0.post_attention_layernorm",
    }
    whole = fold_checkpoint(source, to="rms", exclude=r"layers\.1\.")
    assert not whole.folded
    assert "reads the same stream" in whole.left[NORM]


def test_a_weight_that_its_type_cannot_hold_leaves_its_norm_alone(tmp_path: Path) -> None:
    tensors = neox(np.float16)
    tensors[f"{READER}.weight"][0, 0] = 60000
    tensors[f"{NORM}.weight"][0] = 8
    result = fold_checkpoint(save(tmp_path / "in", tensors), tmp_path / "out")
    assert f"weight '{READER}.weight'" in result.left[NORM]
    new = load_file(tmp_path / "out" / "model.safetensors")
    assert all(np.array_equal(new[name], tensors[name]) for name in new if name.startswith(NORM))
    assert np.array_equal(new[f"{READER}.weight"], tensors[f"{READER}.weight"])
    assert len(result.folded) == 3


def test_without_beta_the_final_gamma_moves_into_the_head(tmp_path: Path) -> None:
    tensors = neox()
    tensors["gpt_neox.final_layer_norm.bias"][:] = 0
    result = fold_checkpoint(save(tmp_path / "in", tensors), tmp_path / "out")
    assert result.folded["gpt_neox.final_layer_norm"] == ("embed_out",)
    tied = save(tmp_path / "tied", tensors, {"tie_word_embeddings": True})
    assert "tie_word_embeddings" in fold_checkpoint(tied).left["gpt_neox.final_layer_norm"]
    assert not fold_checkpoint(tied, to="rms").folded


def test_other_weights_are_not_copied(tmp_path: Path) -> None:
    source = save(tmp_path / "in", neox())
    (source / "pytorch_model.bin").write_bytes(b"old")
    (source / "consolidated.safetensors").write_bytes(b"old")
    (source / "onnx").mkdir()
    result = fold_checkpoint(source, tmp_path / "out")
    assert result.not_copied == ("consolidated.safetensors", "onnx", "pytorch_model.bin")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def killed_before(step: int, source: Path, output: Path) -> bool:
    """Fold in a process that is killed before a step; False if it ended before that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which none here runs
        child = os.fork()
    if child == 0:
        left = step

        def count(*_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def audit(event: str, arguments: tuple[object, ...]) -> None:
            if event in STEPS and str(arguments[0]).startswith(str(output.parent)):
                count()

        code = 1
        try:
            sys.addaudithook(audit)
            fold_checkpoint(source, output, progress=count)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def test_a_kill_before_any_step_leaves_all_or_nothing(tmp_path: Path) -> None:
    source = save(tmp_path / "in", neox(layers=1), shards=2)
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    fold_checkpoint(source, tmp_path / "whole")
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    outcomes = []
    while True:
        folder = tmp_path / f"run{len(outcomes)}"
        folder.mkdir()
        killed = killed_before(len(outcomes), source, folder / "out")
        done = (folder / "out").exists()
        if done:
            assert {p.name: p.read_bytes() for p in (folder / "out").iterdir()} == whole
        assert {path.name: path.read_bytes() for path in source.iterdir()} == before
        outcomes.append(done)
        if not killed:
            break
    assert outcomes == sorted(outcomes)
    assert outcomes[-1]
    assert outcomes.count(False) >= 20


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_that_of_one_tensor(tmp_path: Path) -> None:
    """Eight tables of 64 MiB pass through less than two of them and what the work takes."""
    width, rows = 1024, 16384
    tensors = neox(layers=1)
    names = [name for name in tensors if name.endswith("dense_h_to_4h.weight")]
    script = """
import pathlib, sys
from onnxfold.checkpoint import fold_checkpoint
def status(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))
fold_checkpoint(sys.argv[1], sys.argv[2])  # imports and pools
before = status("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")
fold_checkpoint(sys.argv[3], sys.argv[4])
print((status("VmHWM") - before) // 1024)
"""
    small = save(tmp_path / "small", tensors)
    large: dict[str, npt.NDArray[np.generic]] = {}
    for number in range(8):
        for name in (n for n in tensors if n.startswith("gpt_neox.layers.0.")):
            large[name.replace(".0.", f".{number}.", 1)] = tensors[name]
    for number in range(8):
        prefix = f"gpt_neox.layers.{number}"
        large[f"{prefix}.post_attention_layernorm.weight"] = np.full(width, 2, np.float32)
        large[f"{prefix}.post_attention_layernorm.bias"] = np.ones(width, np.float32)
        large[f"{prefix}.mlp.dense_h_to_4h.weight"] = np.ones((rows, width), np.float32)
        large[f"{prefix}.mlp.dense_h_to_4h.bias"] = np.ones(rows, np.float32)
    assert names
    source = save(tmp_path / "large", large)
    paths = [small, tmp_path / "a", source, tmp_path / "b"]
    command = [sys.executable, "-c", script, *map(str, paths)]
    rise = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # ours
    assert rise <= 2 * 64 + 150, f"{rise} MiB"
    with safe_open(tmp_path / "b" / "model.safetensors", framework="np") as file:
        row = file.get_slice("gpt_neox.layers.7.mlp.dense_h_to_4h.weight")[:1]
        bias = file.get_slice("gpt_neox.layers.7.mlp.dense_h_to_4h.bias")[:1]
    assert np.array_equal(row, np.full((1, width), 2, np.float32))
    assert float(bias[0]) == width + 1


@dataclass(frozen=True)
class Done:
    """What a command gave."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """The command line in this process."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*words: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["onnxfold", "checkpoint", *map(str, words)])
        code = 0
        try:
            application.main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return Done(code, *capsys.readouterr())

    return run


def test_the_command_writes_and_tells(tmp_path: Path, command: Callable[..., Done]) -> None:
    source = save(tmp_path / "in", neox())
    report = tmp_path / "report.json"
    done = command(source, "-o", tmp_path / "out", "--report", report, "-v")
    assert done.returncode == 0, done.stderr
    assert f"{NORM}: into {READER}" in done.stdout
    assert "gpt_neox: 4 of 5 norms are weightless" in done.stdout
    assert "left: gpt_neox.final_layer_norm: 'embed_out' has no bias input for beta" in done.stdout
    document = json.loads(report.read_text())
    assert document["folded"][NORM] == [READER]
    assert document["bytes"] == sum(p.stat().st_size for p in (tmp_path / "out").iterdir())
    dry = command(source, "--dry-run", "--json", "--to", "rms")
    assert dry.returncode == 0
    assert json.loads(dry.stdout)["bytes"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "report.json"]


def test_the_command_fails_in_one_line(tmp_path: Path, command: Callable[..., Done]) -> None:
    source = save(tmp_path / "in", neox())
    cases = {
        (source,): (2, "specify where to write"),
        (source, "-o", source): (2, "it exists"),
        (source, "--dry-run", "--to", "layer"): (2, "there is no form 'layer'"),
        (tmp_path / "none", "--dry-run"): (3, "it is not a folder"),
    }
    for words, (code, message) in cases.items():
        done = command(*words)
        assert done.returncode == code, done.stderr
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(tmp_path / "in", neox())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onnxfold.checkpoint.write.os.fsync", full)
    with pytest.raises(OnnxfoldError, match=r"out: cannot be written: No space left on device"):
        fold_checkpoint(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
