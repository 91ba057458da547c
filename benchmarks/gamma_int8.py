"""What moving outlying gammas costs or gains where the file is quantized to int8 afterwards.

    python -m benchmarks.gamma_int8 [--models vit gpt2] [--out benchmarks/results/gamma_int8.csv]

Single layers (a norm and a linear layer, random weights, 96 rows of normal numbers), and small
recipes as ``benchmarks.chains`` exports them, which need the extra `models`; some elements of every
gamma are multiplied by a factor.  Each is optimized with `--target ort`, gammas moved and gammas
kept, and quantized by ONNX Runtime's quantize_dynamic with one scale for each tensor and for each
channel.  A row has the errors of the outputs, root mean squares relative to the outputs, in
percent, and for single layers what the rule of ``passes/affine/wanted.py`` says of the first.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import numpy_helper, parser

import onnxfold
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, tell, write
from onnxfold.passes.affine.wanted import growth
from onnxfold.tuning.facts import ModelFacts
from onnxfold.tuning.steps import STEPS, Context
from onnxfold.weights.edited import evaluated

ROWS, SEEDS = 96, 3
WEIGHTS = ("normal", "heavy", "inverse")
_LARGEST = (1, 2, 4, 8, 15)
_RECIPES = {"vit": "vit-b16", "gpt2": "gpt2"}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its inputs, and the weight and gamma of a single layer."""

    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    layer: tuple[Array, Array] | None = None


def single(weights: str, width: int, outliers: int, times: int, seed: int) -> Case:
    """Return a norm and a linear layer after it."""
    rng = np.random.default_rng(seed)
    gamma = rng.normal(1, 0.15, width)
    gamma[rng.choice(width, outliers, replace=False)] *= times
    shape = (width, 2 * width)
    W = 0.05 * (rng.standard_t(4, shape) if weights == "heavy" else rng.standard_normal(shape))
    W = W / gamma[:, None] if weights == "inverse" else W
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]>\n'
        f"g (float[N,{width}] x) => (float[N,{2 * width}] y) {{"
        " n = LayerNormalization<axis=-1, epsilon=1e-5>(x, G, B)  m = MatMul(n, W)  y = Add(m, c) }"
    )
    made = {"G": gamma, "B": rng.normal(0, 0.05, width), "W": W, "c": np.zeros(2 * width)}
    for name, array in made.items():
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    x = rng.standard_normal((ROWS, width)).astype(np.float32)
    return Case(proto, {"x": x}, (gamma, W))


def planted(name: str, outliers: int, times: int, seed: int) -> Case:
    """Return a small model with outliers in every gamma."""
    from benchmarks.chains import exported

    model, (feeds, _), _ = exported(_RECIPES[name], "eager", "torchscript")
    rng = np.random.default_rng(seed)
    known = {each.name: each for each in model.graph.initializer}
    norms = [each for each in model.graph.node if each.op_type == "LayerNormalization"]
    width = numpy_helper.to_array(known[norms[0].input[1]]).size
    channels = rng.choice(width, outliers, replace=False)
    for norm in norms:
        gamma = numpy_helper.to_array(known[norm.input[1]]).copy()
        gamma[channels] *= times
        known[norm.input[1]].CopyFrom(numpy_helper.from_array(gamma, norm.input[1]))
    return Case(model, feeds)


def errors(case: Case, folder: Path) -> dict[tuple[str, bool], float]:
    """Return the error in percent with gammas moved and kept, and with a scale for each channel."""
    truth = _run(case.model.SerializeToString(), case.feeds)
    found: dict[tuple[str, bool], float] = {}
    for chosen in ("always", "never"):
        made = onnxfold.optimize(case.model, target="ort", check=None, fuse_affine=chosen).model
        onnx.save(made, folder / "float.onnx")
        for channel, step in ((False, "int8"), (True, "int8-channel")):
            STEPS[step].apply(folder / "float.onnx", folder / "int8.onnx", Context(ModelFacts("")))
            output = _run((folder / "int8.onnx").read_bytes(), case.feeds)
            error = np.sqrt(np.mean((output - truth) ** 2) / np.mean(truth**2))
            found[chosen, channel] = 100 * float(error)
    return found


def _run(model: bytes, feeds: Mapping[str, Array]) -> Array:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    given = {name: array for name, array in feeds.items() if name in names}
    output: Array = session.run(None, given)[0].astype(np.float64)
    return output


def _moves(case: Case) -> bool:
    plan = onnxfold.optimize(case.model, target="ort", check=None).plan
    return all(fusion.gamma for fusion in plan.fusions)


def _grid(models: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield what is common to the seeds of a row."""
    grid = itertools.product(WEIGHTS, (128, 768), (1, 3, 16), _LARGEST)
    for weights, width, outliers, times in grid:
        if times > 1 or outliers == 1:
            yield "layer", weights, width, outliers, times
    for name, (outliers, times) in itertools.product(
        models, [(1, 1), *((3, times) for times in _LARGEST[1:])]
    ):
        yield name, "", 0, outliers, times


def _case(row: tuple[Any, ...], seed: int) -> Case:
    subject, weights, width, outliers, times = row
    if subject == "layer":
        return single(weights, width, outliers, times, seed)
    return planted(subject, outliers, times, seed)


def _row(given: tuple[Any, ...], folder: Path) -> Row:
    """Measure one layer or model.

    ``times`` is what ``outliers`` elements of gamma were multiplied by. ``weights``: for single
    layers, normal, of a Student t of 4 degrees (heavy), or normal over gamma (inverse).
    ``predicted``: the ratio of the errors of ``tensor`` by the rule. ``moves``: whether the default
    moves gammas.
    """
    cases = [_case(given, seed) for seed in range(SEEDS)]
    found = [errors(case, folder) for case in cases]
    mean = {key: _mean([each[key] for each in found]) for key in found[0]}
    names = ("subject", "weights", "width", "outliers", "times")
    return Row(
        onnxruntime=version("onnxruntime"),
        **dict(zip(names, given, strict=True)),
        kept_tensor=round(mean["never", False], 3),
        moved_tensor=round(mean["always", False], 3),
        kept_channel=round(mean["never", True], 3),
        moved_channel=round(mean["always", True], 3),
        ratio_tensor=round(mean["always", False] / mean["never", False], 3),
        ratio_channel=round(mean["always", True] / mean["never", True], 3),
        predicted=_predicted(cases),
        moves=_moves(cases[0]),
    )


def main() -> int:
    """Measure all, and write the rows."""
    options = {"--models": ["vit", "gpt2"], "--out": RESULTS / "gamma_int8.csv"}
    chosen = arguments(__doc__, options)
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for given in _grid(chosen.models):
            rows.append(_row(given, Path(folder)))
            tell(rows[-1:])
    write(chosen.out, rows)
    return 0


def _mean(numbers: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(numbers))))


def _predicted(cases: Sequence[Case]) -> float | None:
    layers = [case.layer for case in cases if case.layer is not None]
    ratios = [growth(g, evaluated(ir.tensor(W)), g[:, None]) for g, W in layers]
    return round(_mean(ratios), 3) if ratios else None


if __name__ == "__main__":
    raise SystemExit(main())
