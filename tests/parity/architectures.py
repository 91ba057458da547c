"""Try small untrained models of many architectures, and keep a row of each in architectures.csv.

    python -m tests.parity.architectures EXPORTS [NAME ...]

exports each architecture to EXPORTS/NAME.onnx, unless that is there, and folds it for every target
with proof and check.  The table is in docs/parity.md.  An hour for all of them on one core.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxfold
from benchmarks.rows import replace
from models.metadata import clean
from models.parameters import randomise_constants
from onnxfold.target import Target
from tests.parity.architecture_sizes import ARCHITECTURES, Inputs

if TYPE_CHECKING:
    import torch

__all__ = ["TABLE", "ArchitectureRow", "main", "tried"]

TABLE = Path(__file__).parent / "architectures.csv"
_OPSET = 18
# MobileBERT's NoNorm is x * gamma + beta, and _WeightNorm is one of weights.
_NO_NORMS = ("_batch", "batch", "nonorm", "_weight")
_RESULTS = (
    "last_hidden_state",
    "logits",
    "feature_maps",
    "prediction_output",
    "patch_input",
    "text_embeds",
)


@dataclass(frozen=True, slots=True)
class ArchitectureRow:
    """One architecture; ``called`` are the calls of norm modules in PyTorch, the count to find.

    ``left`` has the reasons of the norms that stay; ``noise_ratio`` is the worst of all targets,
    empty where nothing changed.
    """

    date: str
    architecture: str
    transformers: str
    called: int
    found: int
    layer_norms: int
    folds: int
    centrings: int
    left: str
    noise_ratio: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the architectures, each row in the place of an older one; 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.architectures")
    parser.add_argument("exports", type=Path)
    parser.add_argument("names", nargs="*", default=list(ARCHITECTURES))
    options = parser.parse_args(arguments)
    options.exports.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    failed = 0
    for name in options.names:
        try:
            row = tried(name, options.exports / f"{name}.onnx")
        except Exception as error:  # the next one is tried all the same
            failed += 1
            sys.stdout.write(f"{name}: {type(error).__name__}: {error}\n")
        else:
            replace(TABLE, row, _place)
            sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
    return 1 if failed else 0


def _place(row: Mapping[str, str]) -> int:
    return list(ARCHITECTURES).index(row["architecture"])


def tried(name: str, path: Path) -> ArchitectureRow:
    """Export an architecture to the path, unless a file is there, and fold it for every target."""
    import transformers

    module, inputs = _built(name)
    called = _norm_calls(module, inputs)
    if not path.exists():
        _export(module, inputs, path)
    document = onnxfold.inspect(str(path))
    left = Counter(row["reason"]["code"] for row in document["norms"] if row["reason"])
    summary, ratios = document["summary"], []
    with tempfile.TemporaryDirectory() as folder:
        for target in Target:
            output = Path(folder) / f"{target.value}.onnx"
            verified = onnxfold.optimize(str(path), output, target=target).verification
            ratios += [] if verified is None else [verified.noise_ratio]
    return ArchitectureRow(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        architecture=name,
        transformers=transformers.__version__,
        called=called,
        found=summary["norms"],
        layer_norms=summary["layer_norms"],
        folds=summary["foldable"],
        centrings=summary["inserted_centerings"],
        left=", ".join(f"{count} {code}" for code, count in left.most_common()),
        noise_ratio=f"{max(ratios):.2g}" if ratios else "",
    )


def _built(name: str) -> tuple[torch.nn.Module, Inputs]:
    import torch
    from transformers import AutoConfig, AutoModel

    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture.model_type or name, **architecture.sizes)
    config.use_cache = False
    for part in (config, *(getattr(config, f"{kind}_config", None) for kind in ("text", "vision"))):
        if part is not None:
            part._attn_implementation = "eager"
    model = AutoModel.from_config(config).eval()
    randomise_constants(model)
    inputs = architecture.inputs()

    class Selected(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> Any:
            result = self.model(**dict(zip(inputs, tensors, strict=True)), return_dict=True)
            found = (getattr(result, name, None) for name in _RESULTS)
            value = next((each for each in found if each is not None), None)
            value = result[0] if value is None else value
            return value[-1] if isinstance(value, (tuple, list)) else value

    return Selected().eval(), inputs


def _norm_calls(module: torch.nn.Module, inputs: Inputs) -> int:
    """Count the calls of modules that are norms by their names, but for those that are none."""
    import torch

    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    for part in module.modules():
        kind = type(part).__name__.lower()
        if kind.endswith("norm") and not list(part.children()) and not kind.startswith(_NO_NORMS):
            part.register_forward_hook(count)
    with torch.no_grad():
        module(*inputs.values())
    for part in module.modules():
        part._forward_hooks.clear()
    return calls


def _export(module: torch.nn.Module, inputs: Inputs, path: Path) -> None:
    import torch

    # Without torchvision the exporter logs one warning for each operator it cannot register.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # torch warns of its own deprecations and of every shape test it traces through.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            input_names=list(inputs),
            opset_version=_OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise AssertionError("torch.onnx.export(dynamo=True) returned no program")
    clean(program.model)
    program.save(path)


if __name__ == "__main__":
    sys.exit(main())
