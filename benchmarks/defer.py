"""Times deferred norms in ONNX Runtime against the same model without deferral.

    python -m benchmarks.defer [--rounds 15] [--out benchmarks/results/defer.csv]

One attention input and feed-forward block with random weights: `llama` (RMS norm before q, k, v and
a SwiGLU), `qwen3` (q and k normalised again, per head) and `relu` (a ReLU instead).  Decode is one
token, prefill 128; one thread; the ratio of the medians, above 1 where deferral is faster.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from benchmarks.rows import Conditions, conditions, write
from onnxfold.options import Defer, Target
from onnxfold.runtime.interleaved_timing import Turns, Variant, take_turns

WIDTH, HIDDEN, HEADS, KEYS, SIZE = 1024, 2816, 16, 8, 64
KINDS = ("llama", "qwen3", "relu")
TOKENS = (1, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferRow(Conditions):
    """Time without deferral over the time with it; multiplications saved per token by the plan."""

    model: str
    target: str
    defer: str
    tokens: int
    deferred: int
    multiplications_saved: int
    ratio: float


def block(kind: str) -> onnx.ModelProto:
    """Return one block that reads x: [1, T, WIDTH]."""
    rng, nodes, weights = np.random.default_rng(0), list[onnx.NodeProto](), dict[str, object]()

    def weight(name: str, *shape: int) -> str:
        weights[name] = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name

    def add(op_type: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
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
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "T", WIDTH])],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def measure(folder: Path, kind: str, target: Target, rounds: int) -> list[DeferRow]:
    """Return a row for each setting and number of tokens."""
    settings = (Defer.OFF, Defer.AUTO, Defer.ALL)
    paths = [folder / f"{kind}.{target}.{setting}.onnx" for setting in settings]
    results = []
    for path, setting in zip(paths, settings, strict=True):
        result = onnxfold.optimize(block(kind), target=target, defer=setting, check=None)
        onnx.save(result.model, path)
        results.append(result.report["inspect"]["summary"])
    rows = []
    for tokens in TOKENS:
        x = np.random.default_rng(1).standard_normal((1, tokens, WIDTH)).astype(np.float32)
        runs = [Variant(path).session(1, ["CPUExecutionProvider"]) for path in paths]
        spent = np.median(take_turns([partial(_run, s, x) for s in runs], Turns(rounds)), axis=1)
        for setting, summary, seconds in zip(settings, results, spent, strict=True):
            rows.append(
                DeferRow(
                    **conditions(),
                    model=kind,
                    target=target.value,
                    defer=setting.value,
                    tokens=tokens,
                    deferred=summary["deferred"],
                    multiplications_saved=summary["multiplications_saved"],
                    ratio=round(float(spent[0] / seconds), 3),
                )
            )
    return rows


def _run(session: ort.InferenceSession, x: npt.NDArray[np.float32]) -> None:
    session.run(None, {"x": x})


def main() -> None:
    """Measure, print and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[DeferRow] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            for target in (Target.ONNX, Target.ORT):
                rows += measure(Path(folder), kind, target, options.rounds)
                for row in rows[-6:]:
                    print(row.model, row.target, row.defer, row.tokens, row.ratio, flush=True)
    if options.out is not None:
        write(options.out, rows)


if __name__ == "__main__":
    main()
