"""What benchmarks of whole models measure: models with their sizes, and the files to compare."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
import onnx_ir as ir

import onnxfold
from benchmarks.recipes import find_export
from models import skeleton
from onnxfold import model_io
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.operators.functions import SIGNATURES

__all__ = [
    "NORMS",
    "SUBJECTS",
    "File",
    "Subject",
    "export_of",
    "filled",
    "first_input",
    "prepare",
    "run_optimizer",
    "scratch_in",
]

# Operators that are a norm, with or without an addition in it.
NORMS: Final = frozenset(
    {
        "LayerNormalization",
        "SimplifiedLayerNormalization",
        "RMSNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        *SIGNATURES,
    }
)
_SEQUENCES: Final = (16, 128, 512)
_BATCHES: Final = (1, 8)


@dataclass(frozen=True, slots=True)
class Subject:
    """A recipe, or its dynamically quantized form, and how its inputs grow.

    ``inputs`` are shapes with ``{}`` where the size stands; the rest follows from them.
    """

    name: str
    recipe: str
    axis: str
    inputs: tuple[str, ...]
    sizes: tuple[int, ...]
    int8: bool = False
    family: str | None = None  # what the transformers optimizer of ONNX Runtime calls it

    def feeds(self, model: Path, size: int) -> dict[str, npt.NDArray[Any]]:
        """Make seeded inputs of a size."""
        spec = InputSpec.parse(text.format(size) for text in self.inputs)
        return make_inputs(model_io.load(model), spec, count=1, seed=0)[0]


@dataclass(frozen=True, slots=True)
class File:
    """A model in the comparison, and what folding reported; counts are 0 for the original."""

    path: Path
    nodes: int
    folded: int = 0
    gamma_fused: int = 0
    beta_fused: int = 0
    scales_fused: int = 0

    def counts(self, *names: str) -> dict[str, int]:
        """Return these counts by their names, as columns of a row."""
        return {name: getattr(self, name) for name in names}


def _text(name: str, recipe: str, family: str | None, *, int8: bool = False) -> Subject:
    return Subject(name, recipe, "sequence", ("input_ids:1,{}",), _SEQUENCES, int8, family)


def _vision(name: str, recipe: str, family: str | None) -> Subject:
    inputs = ("pixel_values:{},3,224,224",)
    return Subject(name, recipe, "batch", inputs, _BATCHES, family=family)


_ENCODER, _DECODER = "whisper-tiny-encoder", "whisper-tiny-decoder"
_DECODED = ("decoder_input_ids:1,{}", "encoder_hidden_states:1,1500,384")
SUBJECTS: Final[Mapping[str, Subject]] = {
    subject.name: subject
    for subject in (
        _text("minilm", "minilm", "bert"),
        _text("minilm-int8", "minilm", "bert", int8=True),
        _text("bert-base", "bert-base", "bert"),
        _text("bert-base-int8", "bert-base", "bert", int8=True),
        _text("gpt2", "gpt2", "gpt2"),
        _text("opt-125m", "opt-125m", None),
        _vision("vit-s16", "vit-s16", "vit"),
        _vision("vit-b16", "vit-b16", "vit"),
        _vision("swin-t", "swin-t", "swin"),
        _vision("convnext-t", "convnext-t", "vit"),
        Subject(_ENCODER, _ENCODER, "batch", ("input_features:{},80,3000",), (1,)),
        Subject(_DECODER, _DECODER, "sequence", _DECODED, (16, 128)),
    )
}


def first_input(model: ir.Model, batch: int, sequence: int) -> str:
    """Return the first input and its sizes, from which the others follow."""
    first, symbols = model.graph.inputs[0], iter((batch, sequence))
    sizes = (dim if isinstance(dim, int) else next(symbols) for dim in first.shape or ())
    return f"{first.name}:{','.join(map(str, sizes))}"


def export_of(recipe: str, exports: Path, **options: Any) -> Path:
    """Return the export of a recipe in a folder; made there where it is missing."""
    found = find_export(exports, recipe)
    if found is None:
        from models import export

        found = export(recipe, exports, **options)
    return found


def filled(given: Path, scratch: Path) -> Path:
    """Return a model, or what a skeleton of one becomes with random weights."""
    if not skeleton.is_skeleton(given):
        return given
    skeleton.fill(given, scratch / "model.onnx")
    return scratch / "model.onnx"


@contextmanager
def scratch_in(folder: Path | None) -> Iterator[Path]:
    """Make a folder for files of a moment, in a folder that is made too."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        yield Path(name)


def prepare(
    source: Path, folder: Path, forms: Mapping[str, Mapping[str, Any] | None], *, int8: bool = False
) -> dict[str, File]:
    """Make every form of a model in a folder: None is the original, else options of optimize."""
    files = {}
    for form, options in forms.items():
        if options is None:
            path, counts = source, {}
        else:
            path = folder / f"{form}.onnx"
            report = onnxfold.optimize(
                source, path, **{"check": None, "target": "kernels", **options}
            ).report
            counts = report["inspect"]["summary"]
        if int8:
            path = _quantised(path, folder / f"{form}.int8.onnx")
        keys = ("foldable", "gamma_fused", "beta_fused", "scales_fused")
        nodes = sum(1 for _ in model_io.load(path).graph)
        files[form] = File(path, nodes, *(counts.get(key, 0) for key in keys))
    return files


def run_optimizer(source: Path, output: Path, family: str, *, gpu: bool = False) -> None:
    """Write the result of ONNX Runtime's transformers optimizer for a model, with its defaults.

    On GPUs only its own fusions are used, because a session would place the model there.
    """
    from onnxruntime.transformers import optimizer

    made = optimizer.optimize_model(
        str(source), model_type=family, num_heads=0, hidden_size=0,
        opt_level=0 if gpu else None, use_gpu=gpu,
    )  # fmt: skip
    made.save_model_to_file(str(output), use_external_data_format=gpu)


def _quantised(path: Path, output: Path) -> Path:
    from onnxruntime.quantization import quantize_dynamic

    logging.disable(logging.WARNING)  # it advises preprocessing, once for every call
    try:
        quantize_dynamic(path, output)
    finally:
        logging.disable(logging.NOTSET)
    return output
