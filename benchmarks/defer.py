"""Times deferred norms in ONNX Runtime against the same model without deferral.

    python -m benchmarks.defer [--rounds 15] [--out benchmarks/results/defer.csv]
    python -m benchmarks.defer --models llama --targets ort
    python -m benchmarks.defer --provider CUDAExecutionProvider --budget 540 --targets kernels

One attention input and feed-forward block with random weights: `llama` (RMS norm before q, k, v and
a SwiGLU), `qwen3` (q and k normalized again, per head) and `relu` (a ReLU instead).  Decode is one
token, prefill 128 and 512; one thread and two; float32, and for `--target ort` int8 as ONNX Runtime
quantizes weights on a CPU.  Inputs and outputs stay on the device.  Models of `--target kernels`
run with onnxfold's library, for a GPU the one that `make cuda` builds.  Rows are written one by
one.

`auto` defers nothing so far: its rows show what the same file differs by from run to run.  Every
round runs all variants in turn; a ratio is the median over the rounds of the time without
deferral over the time with it, with quartiles: above 1 where deferral is faster.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import quantize_dynamic

import onnxfold
from benchmarks.gpu import device_named
from benchmarks.graphs import model, node
from benchmarks.harness import CPU, Budget, arguments, quantiles, timed
from benchmarks.rows import RESULTS, Row, replace, tell
from onnxfold.options import Defer
from onnxfold.runtime.interleaved_timing import RunCounts, Variant
from onnxfold.target import Target

WIDTH, HIDDEN, HEADS, KEYS, SIZE = 1024, 2816, 16, 8, 64
KINDS = ("llama", "qwen3", "relu")
TOKENS = (1, 128, 512)
THREADS = (1, 2)
TARGETS = (Target.ONNX, Target.ORT, Target.KERNELS)


def block(kind: str) -> onnx.ModelProto:
    """Return one block that reads x: [1, T, WIDTH]."""
    rng, nodes, weights = np.random.default_rng(0), list[onnx.NodeProto](), dict[str, object]()

    def weight(name: str, *shape: int) -> str:
        weights[name] = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name

    def add(op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(node(f"{op_type} {' '.join(inputs)} -> {output}", **attributes))
        return output

    def norm(x: str, output: str, size: int) -> str:
        weights[f"{output}.gamma"] = np.ones(size, np.float32)
        return add("RMSNormalization", [x, f"{output}.gamma"], output, axis=-1, epsilon=1e-6)

    weights["heads"] = np.array([0, 0, -1, SIZE])
    first, second = norm("x", "n1", WIDTH), norm("x", "n2", WIDTH)
    outputs = []
    for name, heads in (("q", HEADS), ("k", KEYS), ("v", KEYS)):
        linear = add("MatMul", [first, weight(f"W{name}", WIDTH, heads * SIZE)], f"{name}.linear")
        parts = add("Reshape", [linear, "heads"], f"{name}.heads")
        again = kind == "qwen3" and name != "v"
        outputs.append(norm(parts, name, SIZE) if again else add("Identity", [parts], name))
    gate = add("MatMul", [second, weight("Wg", WIDTH, HIDDEN)], "gate")
    if kind == "relu":
        inner = add("Relu", [gate], "inner")
    else:
        up = add("MatMul", [second, weight("Wu", WIDTH, HIDDEN)], "up")
        swish = add("Mul", [gate, add("Sigmoid", [gate], "sigmoid")], "swish")
        inner = add("Mul", [swish, up], "inner")
    down = add("MatMul", [inner, weight("Wd", HIDDEN, WIDTH)], "down")
    outputs.append(add("Add", ["x", down], "y"))
    return model(nodes, {"x": (1, "T", WIDTH)}, dict.fromkeys(outputs), weights, opset=23)


def measure(folder: Path, kind: str, target: Target, rounds: int, provider: str) -> Iterator[Row]:
    """Yield a row for each setting, type, number of threads and number of tokens."""
    settings = (Defer.OFF, Defer.AUTO, Defer.ALL)
    results, paths = [], defaultdict[str, list[Path]](list)
    for setting in settings:
        means = setting is Defer.ALL  # ConvNeXt's LayerNorms keep theirs
        result = onnxfold.optimize(
            block(kind), target=target, defer=setting, defer_means=means, check=None
        )
        path = folder / f"{kind}.{target}.{setting}.onnx"
        onnx.save(result.model, path)
        paths["fp32"].append(path)
        if target is Target.ORT and provider == CPU:
            paths["int8"].append(path.with_suffix(".int8.onnx"))
            quantize_dynamic(path, paths["int8"][-1])
        results.append(result.report["inspect"]["summary"])
    for dtype, threads, tokens in product(paths, THREADS if provider == CPU else (1,), TOKENS):
        variants = [Variant(path, kernels=target is Target.KERNELS) for path in paths[dtype]]
        x = np.random.default_rng(1).standard_normal((1, tokens, WIDTH)).astype(np.float32)
        spent = timed(variants, {"x": x}, RunCounts(rounds), threads=threads, provider=provider)
        for setting, summary, own in zip(settings, results, spent, strict=True):
            yield Row(
                onnxruntime=ort.__version__,
                provider=provider,
                device=device_named(provider),
                model=kind,
                target=target.value,
                dtype=dtype,
                threads=threads,
                defer=setting.value,
                tokens=tokens,
                deferred=summary["deferred"],
                multiplications_saved=summary["multiplications_saved"],
                rounds=len(own),
                **quantiles(spent[0] / own, 3, ratio=50, ratio_q1=25, ratio_q3=75),
            )


def main() -> int:
    """Measure, print and write the rows; 1 where the budget is spent before the last."""
    options = arguments(
        __doc__,
        {
            "--rounds": 15,
            "--models": KINDS,
            "--targets": TARGETS,
            "--provider": CPU,
            "--budget": float("inf"),
            "--out": RESULTS / "defer.csv",
        },
    )
    if options.provider not in ort.get_available_providers():
        sys.exit(f"onnxruntime {ort.__version__} has no {options.provider}")
    budget = Budget(options.budget)
    for kind, target in product(options.models, options.targets):
        name = f"{kind} {target}"
        with budget.case(name), tempfile.TemporaryDirectory() as folder:
            for row in measure(Path(folder), kind, target, options.rounds, options.provider):
                tell([row])
                replace(options.out, row, _setting)
                if budget.ended(f"{name} and what follows is left"):
                    return 1
    return int(budget.incomplete)


def _setting(row: dict[str, str]) -> tuple[object, ...]:
    names = ("provider", "device", "model", "target", "dtype", "threads")
    return (
        *(row[name] for name in names),
        int(row["tokens"]),
        list(Defer).index(Defer(row["defer"])),
    )


if __name__ == "__main__":
    sys.exit(main())
