"""The corpus of regressions: small models that were folded wrongly once, replayed by the suite.

``NAME.onnx`` holds the model, and in its metadata the seed and the options of the fold as JSON;
``NAME.npz`` holds the inputs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from onnxfold.options import Device, Folding
from onnxfold.target import Target
from tests.soundness.checking import Settings, check, settings_of
from tests.soundness.random_graphs import RandomGraph, random_graph
from tests.soundness.shrinking import shrunk

__all__ = ["FOLDER", "load", "names", "save", "shrink_seed"]

FOLDER = Path(__file__).parent / "regressions"
_KEY = "regression"


def names(folder: Path = FOLDER) -> Iterator[str]:
    """The models of the corpus."""
    yield from sorted(path.stem for path in folder.glob("*.onnx"))


def save(
    graph: RandomGraph, settings: Settings, seed: int, failure: str, folder: Path = FOLDER
) -> str:
    """Write a model with its inputs and options, and return its name."""
    kind = failure.partition(":")[0].replace(" ", "_")
    name = f"{kind}_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    written = {"seed": seed, "failure": failure, "settings": settings.to_json()}
    helper.set_model_props(model, {_KEY: json.dumps(written, sort_keys=True)})
    onnx.save(model, folder / f"{name}.onnx")
    # npz does not support bfloat16.
    wide = {k: a.astype(np.float32) if a.dtype.kind == "V" else a for k, a in graph.feeds.items()}
    np.savez(folder / f"{name}.npz", **wide)
    return name


def load(name: str, folder: Path = FOLDER) -> tuple[RandomGraph, Settings]:
    """Read a model of the corpus, its inputs and the options of its fold."""
    model = onnx.load(folder / f"{name}.onnx")
    written = json.loads(next(p.value for p in model.metadata_props if p.key == _KEY))
    with np.load(folder / f"{name}.npz") as arrays:
        feeds = {key: arrays[key] for key in arrays.files}
    for value in model.graph.input:
        if value.name in feeds:
            element = value.type.tensor_type.elem_type
            feeds[value.name] = feeds[value.name].astype(helper.tensor_dtype_to_np_dtype(element))
    settings = written["settings"]
    named = {
        "target": Target(settings["target"]),
        "device": Device(settings.get("device", Device.CPU)),
        "fold": Folding(settings.get("fold", Folding.ALWAYS)),
    }
    return RandomGraph(model, feeds, Counter()), Settings(**{**settings, **named})


def shrink_seed(seed: int, folder: Path = FOLDER) -> str | None:
    """Make the graph of a failing seed small and save it; None if it does not fail."""
    graph, settings = random_graph(seed), settings_of(seed)
    failure = check(graph, settings).failure
    if failure is None:
        return None
    kind = failure.partition(":")[0]

    def failing(candidate: RandomGraph) -> bool:
        try:
            found = check(candidate, settings).failure
        except (RuntimeError, TypeError, ValueError, LookupError):
            return False  # the smaller model is none
        return found is not None and found.partition(":")[0] == kind

    return save(shrunk(graph, failing), settings, seed, failure, folder)
