"""LayerNorm, RMSNorm and CRMSNorm compared: one model in three forms, in turns.

    python -m benchmarks.norm_forms [--models vit-ti vit-s vit-b vit-s32 ..] [--rounds 11] [--int8]

Models are plain torch of the sizes of the second paper's (untrained), exported, and converted with
`onnxfold convert --to rms` and `--to crms`, the latter with `--change-readers` as well (`short`):
`onnx` in standard operators, `kernels` with the library; with --int8 each is quantized as it is by
ONNX Runtime's quantize_dynamic. A ratio is the median over the rounds of
LayerNorm's time to the form's, by the processor's time where one thread of a CPU runs (`clock`);
`norm_share` is the share of norms in what ONNX Runtime's profiler adds up, of nodes that are norms
by name. Rows go to benchmarks/results/norm_forms.csv after each shape. On a GPU, with the library
that `make cuda` builds: --provider CUDAExecutionProvider --budget 540, a model for each call.
--forms keeps the converted models in a folder, and --shapes 8x0 measures one shape, for a machine
that is quiet for minutes alone; --targets onnx leaves the kernels' forms out, for one whose memory
does not hold a session of each form.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

import onnxfold
from benchmarks.gpu import device_named
from benchmarks.harness import CPU, Budget, arguments, quantiles, timed
from benchmarks.rows import RESULTS, Row, append, tell
from onnxfold import model_io
from onnxfold.runtime.interleaved_timing import RunCounts, Variant, operators

_OPSET = 17
_WORDS, _POSITIONS = 8192, 2048
_SIDE, _CLASSES = 224, 1000
# Width, layers, heads; of arXiv 2010.11929, 2012.12877 (DeiT) and 2106.10270, and of 2005.14165.
_SIZES = {
    "vit-mini": (128, 4, 4),
    "gpt-mini": (256, 4, 4),
    "vit-ti": (192, 12, 3),
    "vit-s": (384, 12, 6),
    "vit-b": (768, 12, 12),
    "vit-s32": (384, 12, 6),
    "vit-b32": (768, 12, 12),
    "vit-l": (1024, 24, 16),
    "gpt3-small": (768, 12, 12),
    "gpt3-medium": (1024, 24, 16),
}
# Batch and, of text, tokens.
_SHAPES = {"vit": ((1, 0), (8, 0), (16, 0)), "gpt": ((1, 128), (1, 512), (1, 2048), (8, 128))}
_FORMS = (("layer", "onnx"), ("rms", "onnx"), ("crms", "onnx"), ("short", "onnx"),
          ("rms", "kernels"), ("crms", "kernels"), ("short", "kernels"))  # fmt: skip
Form = tuple[str, str]
_NORMS = ("LayerNormalization", "RMSNorm", "CRMSNorm", "Center")


def exported(name: str, folder: Path) -> Path:
    """Export a model, unless the folder has it, and return its path."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    import torch

    from models.plain_transformer import PatchTransformer, Shape, TokenTransformer

    width, layers, heads = _SIZES[name]
    shape = Shape(width, layers, heads, 4 * width)
    torch.manual_seed(0)
    module: torch.nn.Module
    if name.startswith("vit"):
        patch = 32 if name.endswith("32") else 16
        module = PatchTransformer(shape, side=_SIDE, patch=patch, channels=3, classes=_CLASSES)
        given, axes = torch.randn(2, 3, _SIDE, _SIDE), {0: "batch"}
    else:
        module = TokenTransformer(shape, vocabulary=_WORDS, positions=_POSITIONS)
        given, axes = torch.ones(2, 8, dtype=torch.int64), {0: "batch", 1: "sequence"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), (given,), path, dynamo=False, opset_version=_OPSET,
            input_names=["x"], output_names=["y"], dynamic_axes={"x": axes},
        )  # fmt: skip
    return path


def forms_of(path: Path, targets: Sequence[str]) -> dict[Form, Variant]:
    """Convert a model into every form that its folder lacks; raises OnnxfoldError."""
    found = {}
    for form, target in _FORMS:
        if form != "layer" and target not in targets:
            continue
        written = path
        if form != "layer":
            written = path.with_name(f"{path.stem}-{form}-{target}.onnx")
            short = form == "short"
            to = "crms" if short else form
            if not written.exists():
                onnxfold.convert(path, written, to=to, target=target, check=1, change_readers=short)
        found[form, target] = Variant(written, kernels=target == "kernels")
    return found


def in_int8(variant: Variant) -> Variant:
    """Quantize a form, unless its folder has that."""
    from onnxruntime.quantization import quantize_dynamic

    written = variant.path.with_name(f"{variant.path.stem}-int8.onnx")
    if not written.exists():
        known = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # of values without a type
        quantize_dynamic(variant.path, written, extra_options=known)
    return Variant(written, variant.kernels)


def fed(path: Path, batch: int, tokens: int) -> dict[str, Any]:
    """Return inputs: a first dimension that is free is the batch, others the tokens."""
    rng, feeds = np.random.default_rng(0), dict[str, Any]()
    for value in model_io.load(path).graph.inputs:
        free = [batch if at == 0 else tokens for at in range(len(value.shape or ()))]
        shape = [d if isinstance(d, int) else free[at] for at, d in enumerate(value.shape or ())]
        floats = value.dtype is ir.DataType.FLOAT
        drawn = rng.standard_normal(shape) if floats else rng.integers(0, 100, shape)
        feeds[str(value.name)] = drawn.astype(np.float32 if floats else np.int64)
    return feeds


def measured(
    name: str, forms: Mapping[Form, Variant], batch: int, tokens: int, given: argparse.Namespace
) -> list[Row]:
    """Time the forms of one model at one shape."""
    feeds, provider = fed(forms[_FORMS[0]].path, batch, tokens), given.provider
    # Other work on the machine lengthens the time on the clock, not that of one thread's processor.
    alone = given.threads == 1 and provider == CPU
    turns = RunCounts(given.rounds, clock=time.process_time if alone else time.perf_counter)
    seconds = timed([*forms.values()], feeds, turns, threads=given.threads, provider=provider)
    rows = []
    for ((form, target), variant), own in zip(forms.items(), seconds, strict=True):
        profile = operators(variant, given.threads, (provider,), feeds)
        norms = sum(o.milliseconds for o in profile if any(word in o.name for word in _NORMS))
        row = Row(
            onnxruntime=ort.__version__,
            provider=provider,
            device=device_named(provider),
            threads=given.threads,
            model=name,
            precision="int8" if given.int8 else "fp32",
            batch=batch,
            tokens=tokens,
            form=form,
            target=target,
            rounds=len(own),
            clock="processor" if alone else "wall",
            milliseconds=round(float(np.median(own)) * 1e3, 3),
            **quantiles(seconds[0] / own, 3, ratio=50, ratio_25=25, ratio_75=75),
            norm_share=round(norms / sum(o.milliseconds for o in profile), 4),
            weight_bytes=variant.path.stat().st_size,
        )
        rows.append(row)
    return rows


def main() -> int:
    """Measure what the command line asks for; 1 where shapes are left."""
    given = arguments(
        __doc__,
        {
            "--models": tuple(_SIZES),
            "--targets": ("onnx", "kernels"),
            "--rounds": 11,
            "--threads": 1,
            "--provider": CPU,
            "--forms": {"type": Path, "help": "a folder that keeps the converted models"},
            "--int8": False,
            "--shapes": {"nargs": "*", "help": "of each model, as 8x0 or 1x128; else all"},
            "--budget": float("inf"),
            "--out": RESULTS / "norm_forms.csv",
        },
    )
    if given.provider not in ort.get_available_providers():
        sys.exit(f"onnxruntime {ort.__version__} has no {given.provider}")
    budget = Budget(given.budget)
    for name in given.models:
        if not budget.ended(f"{name} is left"):
            with budget.case(name):
                complete(name, budget, given)
    return int(budget.incomplete)


def complete(name: str, budget: Budget, given: argparse.Namespace) -> None:
    """Measure one model at each shape, as long as the budget lasts."""
    with tempfile.TemporaryDirectory() as folder:
        forms = forms_of(exported(name, given.forms or Path(folder)), given.targets)
        if given.int8:
            forms = {form: in_int8(variant) for form, variant in forms.items()}
        for batch, tokens in _SHAPES[name[:3]]:
            shape = f"{batch}x{tokens}"
            if given.shapes is not None and shape not in given.shapes:
                continue
            if budget.ended(f"{name} is left from {shape} on"):
                return
            rows = measured(name, forms, batch, tokens, given)
            append(given.out, rows)
            tell(rows)


if __name__ == "__main__":
    sys.exit(main())
