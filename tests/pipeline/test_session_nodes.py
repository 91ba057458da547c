"""What a stock session executes more than one of the original, and that the plan has priced it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold import Result
from onnxfold.report import sentences

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.onnx"))
# A skip norm takes as long as its parts, or longer: it counts as these, a bias among them.
BIAS = {"SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}
ADDITIONS = ("Add", "Sum")
VIEWS = ("Reshape",)  # moves no number: a fused addition leaves one after the norm and the sum


def session(path: Path, folder: Path) -> list[onnx.NodeProto]:
    """The nodes that a session executes."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "session.onnx")
    ort.InferenceSession(path, options, ["CPUExecutionProvider"])
    return list(onnx.load(folder / "session.onnx").graph.node)


def executed(nodes: Iterable[onnx.NodeProto]) -> Counter[str]:
    """The additions and the other operators of a session."""
    counts: Counter[str] = Counter()
    for node in nodes:
        if node.op_type in BIAS:
            counts["additions"] += 1 + any(node.input[BIAS[node.op_type] :])
        if node.op_type not in VIEWS:
            counts["additions" if node.op_type in ADDITIONS else "others"] += 1
    return counts


def priced(result: Result, original: onnx.ModelProto, target: str) -> Counter[str]:
    """What the plan has paid for: an Add for each beta that stays, two nodes for a centering."""
    weights = {each.name: numpy_helper.to_array(each) for each in original.graph.initializer}
    betas = {
        node.output[0]: weights.get(node.input[2])
        for node in original.graph.node
        if node.op_type == "LayerNormalization" and len(node.input) > 2
    }
    moved = {fusion.output for fusion in result.plan.fusions if fusion.beta}
    outputs = [fold.output for fold in result.plan.folds]
    left = [betas[output] for output in outputs if output in betas and output not in moved]
    adds = sum(beta is None or bool(np.any(beta)) for beta in left)
    # The Cast that adapts a kernel's body to float16 is removed, but not before an output.
    ends = {value.name for value in original.graph.output} if target == "kernels" else set()
    others = 2 * len(result.plan.insertions) + len(ends & betas.keys())
    return Counter(additions=adds, others=others)


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_session_executes_what_the_plan_has_priced(
    path: Path, target: str, tmp_path: Path
) -> None:
    output = tmp_path / "folded.onnx"
    result = onnxfold.optimize(path, output, target=target, check=None)
    before, after = (session(each, tmp_path) for each in (path, output))
    more = executed(after) - executed(before)
    assert more - priced(result, onnx.load(path), target) == Counter()
    longer = len(after) - len(before)
    assert target == "kernels" or longer <= 0 or _is_gain(result, longer), longer


def _is_gain(result: Result, longer: int) -> bool:
    """Whether a session is longer by what the plan has priced, for a gain that the report says."""
    prices = result.report["inspect"]["prices"]
    counted = {"before": {"session_operators": {}}, "after": {"session_operators": {"Add": longer}}}
    document = {"free_dimensions": [], **counted}
    said = sentences.priced({**result.report, "before_after": document})
    gain = f"save {prices['saved_us']:.3g} µs"
    gained = prices["operators"] >= longer and prices["saved_us"] > prices["spent_us"]
    return gained and said is not None and gain in said


def test_all_recipes_together_execute_fewer_nodes(tmp_path: Path) -> None:
    before = after = 0
    for path in RECIPES:
        output = tmp_path / path.name
        onnxfold.optimize(path, output, check=None)
        before += len(session(path, tmp_path))
        after += len(session(output if output.exists() else path, tmp_path))
    assert after < before


def test_nothing_is_priced_where_nothing_folds() -> None:
    original = onnx.load(RECIPES[0])
    result = onnxfold.optimize(original, exclude=".*", fuse_affine=False)
    assert not priced(result, original, "onnx").total()
