"""Other tools after onnxfold: as many norms stay one operator of a session as before.

Small graphs, with rows of zeros, of constants and of 1e3 in every input, before and after each tool
that is quick. After the tool, the session of our file has as many norms as the original's, and its
outputs are as near to the original's without the tool.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import onnxfold
from tests.compatibility.truth import truth

WIDTH, INSIDE, LENGTH = 64, 16, 6
NORMS = (
    *("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
)
BLOCK = """
  n = LayerNormalization<axis=-1, epsilon=EPS>(x, G, B)
  h = MatMul(n, W)  hb = Add(h, b)  r = Relu(hb)  o = MatMul(r, V)  ob = Add(o, v)
  z = Add(x, ob)  m = LayerNormalization<axis=-1, epsilon=EPS>(z, G2, B2)
  p = MatMul(m, U)  y = Add(p, u)
"""
BARE = """
  n = LayerNormalization<axis=-1, epsilon=EPS>(x, G)
  r = Sigmoid(n)  o = MatMul(r, V)  z = Add(x, o)
  m = LayerNormalization<axis=-1, epsilon=EPS>(z, G)
  p = MatMul(m, U)  y = Add(p, u)
"""
FRAMES = "e = MatMul(frames, E)  x = Add(e, c)"
TOKENS = "x = Gather(T, tokens)"
PLACES = "e = Gather(T, tokens)  x = Add(e, P)"
GRAPHS = {
    "pre-LN": (FRAMES, BLOCK, "1e-5"),
    "no bias in front": ("x = MatMul(frames, E)", BLOCK, "1e-5"),
    "epsilon of ViT and BERT": ("x = MatMul(frames, E)", BLOCK, "1e-12"),
    "epsilon at the border": ("x = MatMul(frames, E)", BLOCK, "1e-8"),
    "a table": (TOKENS, BLOCK, "1e-5"),
    "a table, reshaped": ("e = Gather(T, tokens) x = Reshape(e, S)", BLOCK, "1e-5"),
    "two tables": (PLACES, BLOCK, "1e-5"),
    "without gamma": (FRAMES, BARE, "1e-5"),
}
Feeds = Mapping[str, Any]
Tool = Callable[[onnx.ModelProto, Feeds, Path], onnx.ModelProto]


def graph(name: str, opset: int, *, trained: bool = True) -> onnx.ModelProto:
    front, block, epsilon = GRAPHS[name]
    given = "frames" if "frames" in front else "tokens"
    typed = (
        f"float[N,{LENGTH},{INSIDE}] frames" if given == "frames" else f"int64[N,{LENGTH}] tokens"
    )
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]>\n'
        f"g ({typed}) => (float[N,{LENGTH},8] y) {{ {front} {block.replace('EPS', epsilon)} }}"
    )
    model = onnx.parser.parse_model(text)
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    rng = np.random.default_rng(0)
    shapes = {
        "E": (INSIDE, WIDTH), "c": (WIDTH,), "T": (40, WIDTH), "P": (LENGTH, WIDTH),
        "G": (WIDTH,), "B": (WIDTH,), "G2": (WIDTH,), "B2": (WIDTH,), "W": (WIDTH, WIDTH),
        "b": (WIDTH,), "V": (WIDTH, WIDTH), "v": (WIDTH,), "U": (WIDTH, 8), "u": (8,),
    }  # fmt: skip
    read = {operand for node in model.graph.node for operand in node.input}
    for weight, shape in shapes.items():
        array = 0.2 * rng.standard_normal(shape)
        if weight.startswith("G"):
            array = 1 + array if trained and block is BLOCK else np.ones(shape)
        elif weight.startswith("B") and not trained:
            array = np.zeros(shape)
        elif weight == "T":
            array[:3] = np.array([[0.0], [0.3], [1e3]])
        if weight in read:
            _add(model, weight, array.astype(np.float32))
    if "S" in read:
        _add(model, "S", np.array([-1, LENGTH, WIDTH]))
    return model


def _add(model: onnx.ModelProto, name: str, array: np.ndarray[Any, Any]) -> None:
    model.graph.initializer.append(numpy_helper.from_array(array, name))


def feeds(model: onnx.ModelProto) -> Feeds:
    """Random numbers; rows of zeros, ones and a thousand, or the tokens of such rows."""
    rng = np.random.default_rng(1)
    if model.graph.input[0].name == "tokens":
        tokens = rng.integers(3, 40, (4, LENGTH))
        tokens[0, :3] = (0, 1, 2)
        return {"tokens": tokens}
    frames = rng.standard_normal((4, LENGTH, INSIDE)).astype(np.float32)
    frames[0, 2:], frames[1, 1], frames[2, :2] = 0, 1, 1e3
    return {"frames": frames}


def _onnxslim(model: onnx.ModelProto, given: Feeds, folder: Path) -> onnx.ModelProto:
    onnxslim = pytest.importorskip("onnxslim", reason="onnxslim is not installed")
    made: onnx.ModelProto = onnxslim.slim(model)
    return made


def _onnxsim(model: onnx.ModelProto, given: Feeds, folder: Path) -> onnx.ModelProto:
    onnxsim = pytest.importorskip("onnxsim", reason="onnxsim is not installed")
    made: onnx.ModelProto = onnxsim.simplify(model)[0]
    return made


def _optimizer(model: onnx.ModelProto, given: Feeds, folder: Path) -> onnx.ModelProto:
    reason = "onnxscript is not installed"
    optimizer = pytest.importorskip("onnxscript.optimizer", reason=reason)
    made: onnx.ModelProto = optimizer.optimize(model)
    return made


def _rewriter(model: onnx.ModelProto, given: Feeds, folder: Path) -> onnx.ModelProto:
    rewriter = pytest.importorskip("onnxscript.rewriter", reason="onnxscript is not installed")
    made: onnx.ModelProto = rewriter.rewrite(model)
    return made


def _dynamic(
    model: onnx.ModelProto, given: Feeds, folder: Path, *, per_channel: bool = False
) -> onnx.ModelProto:
    from onnxruntime.quantization import quantize_dynamic

    onnx.save(model, folder / "float.onnx")
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(
        folder / "float.onnx", folder / "int8.onnx", per_channel=per_channel, extra_options=options
    )
    return onnx.load(folder / "int8.onnx")


def _per_channel(model: onnx.ModelProto, given: Feeds, folder: Path) -> onnx.ModelProto:
    return _dynamic(model, given, folder, per_channel=True)


def _static(model: onnx.ModelProto, given: Feeds, folder: Path) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter([given])

        def get_next(self) -> Feeds | None:
            return next(self._left, None)

    onnx.save(model, folder / "float.onnx")
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_static(folder / "float.onnx", folder / "int8.onnx", Reader(), extra_options=options)
    return onnx.load(folder / "int8.onnx")


def _float16(model: onnx.ModelProto, given: Feeds, folder: Path) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=True)
    return made


def _offline(model: onnx.ModelProto, given: Feeds, folder: Path) -> onnx.ModelProto:
    session(model, folder, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    return onnx.load(folder / "session.onnx")


EXACT: dict[str, Tool] = {
    "onnxslim": _onnxslim,
    "onnxsim": _onnxsim,
    "onnxscript optimizer": _optimizer,
    "onnxscript rewriter": _rewriter,
    "ONNX Runtime, basic": _offline,
}
ROUNDING: dict[str, Tool] = {
    "quantize_dynamic": _dynamic,
    "quantize_dynamic per channel": _per_channel,
    "float16": _float16,
}
TOOLS = EXACT | ROUNDING


def session(
    model: onnx.ModelProto, folder: Path, level: Any = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
) -> ort.InferenceSession:
    """Load a model; what the session executes is in session.onnx."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(folder / "session.onnx")
    bytes_of = model.SerializeToString()
    return ort.InferenceSession(bytes_of, options, providers=["CPUExecutionProvider"])


def executed(model: onnx.ModelProto, given: Feeds, folder: Path) -> tuple[int, Any]:
    """Return how many norms are one operator of the session, and the output."""
    (output,) = session(model, folder).run(None, given)
    found = Counter(node.op_type for node in onnx.load(folder / "session.onnx").graph.node)
    return sum(found[kind] for kind in NORMS), output


def applied(tool: Tool, model: onnx.ModelProto, given: Feeds, folder: Path) -> onnx.ModelProto:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    with redirect_stdout(io.StringIO()):
        return tool(copy, given, folder)


def distance(output: Any, truth: Any) -> float:
    """Return the largest error over the rows, relative to the largest number of each."""
    assert np.all(np.isfinite(output))
    largest = np.maximum(np.abs(truth).max(axis=-1), 1e-6)
    return float((np.abs(output - truth).max(axis=-1) / largest).max())


@dataclass(frozen=True, slots=True)
class Pair:
    """A graph and its folded form, its inputs, and its output in float64."""

    original: onnx.ModelProto
    ours: onnx.ModelProto
    given: Feeds
    truth: Any


@cache
def pair(name: str, opset: int) -> Pair:
    original = graph(name, opset)
    given = feeds(original)
    (true,) = truth(original, given)
    return Pair(original, onnxfold.optimize(original, check=0).model, given, true)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["layer", "op", "auto"])
def test_what_the_gpt2_optimizer_makes_of_gpt_neox_folds_and_loads(
    form: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed, which the optimizer imports")
    from onnxruntime.transformers import optimizer

    path = Path(__file__).parents[1] / "recipes" / "pythia-160m.onnx"
    optimized = optimizer.optimize_model(str(path), "gpt2", num_heads=4, hidden_size=48).model
    assert "SkipLayerNormalization" in {node.op_type for node in optimized.graph.node}
    ours = onnxfold.optimize(optimized, check=0, norm_form=form).model
    tokens = np.random.default_rng(0).integers(0, 90, (2, 10))
    given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    _, theirs = executed(onnx.load(path), given, tmp_path)
    _, output = executed(ours, given, tmp_path)
    assert distance(output, theirs) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("opset", [17, 18, 23])
@pytest.mark.parametrize("tool", TOOLS)
def test_as_many_norms_stay_one_operator(tool: str, opset: int, name: str, tmp_path: Path) -> None:
    made = pair(name, opset)
    given = made.given
    before, theirs = executed(applied(TOOLS[tool], made.original, given, tmp_path), given, tmp_path)
    after, output = executed(applied(TOOLS[tool], made.ours, given, tmp_path), given, tmp_path)
    assert after == before == 2
    # Roundings in another order, or, of a tool that rounds, steps of int8 and of half floats.
    least = 0.05 if tool in ROUNDING else 2e-5
    assert distance(output, made.truth) <= 3 * distance(theirs, made.truth) + least


@pytest.mark.parametrize("tool", EXACT)
def test_norms_that_were_not_trained_stay_one_operator(tool: str, tmp_path: Path) -> None:
    """Their gammas are ones, which simplifiers take away from a product."""
    original = graph("pre-LN", 18, trained=False)
    given = feeds(original)
    result = onnxfold.optimize(original, check=0)
    assert len(result.plan.folds) == 2
    after, _ = executed(applied(EXACT[tool], result.model, given, tmp_path), given, tmp_path)
    assert after == 2


@pytest.mark.parametrize("name", ["pre-LN", "epsilon of ViT and BERT", "a table", "two tables"])
def test_static_quantisation_takes_the_norms_of_target_ort(name: str, tmp_path: Path) -> None:
    """Of a norm that is spelled out it quantizes every operator (docs/pipeline.md)."""
    original = graph(name, 18)
    given = feeds(original)
    ours = onnxfold.optimize(original, target="ort", check=0)
    assert len(ours.plan.folds) == 2
    before, _ = executed(applied(_static, original, given, tmp_path), given, tmp_path)
    after, output = executed(applied(_static, ours.model, given, tmp_path), given, tmp_path)
    assert after == before
    assert np.all(np.isfinite(output))


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("epsilon of ViT and BERT", "onnxscript optimizer"),
        ("a table", "quantize_dynamic"),
        ("without gamma", "onnxslim"),
    ],
)
def test_what_is_kept_would_come_apart(name: str, tool: str, tmp_path: Path) -> None:
    """Each rule has its reason: spelled out all the same, these norms run in pieces."""
    original = graph(name, 18)
    given = feeds(original)
    plan = onnxfold.optimize(original, check=0).plan
    forced = onnxfold.optimize(original, check=0, norm_form="decomposed")
    assert len(plan.folds) < len(forced.plan.folds)
    after, _ = executed(applied(TOOLS[tool], forced.model, given, tmp_path), given, tmp_path)
    assert after < 2
