"""What a stock session executes more than one of the original, and that the plan has priced it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold import Result

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.onnx"))
# A skip norm takes as long as its parts, or longer: it counts as these, a bias among them.
BIAS = {"SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}
VIEWS = ("Reshape",)  # moves no number: a fused addition leaves one behind the norm and the sum


def executed(path: Path, folder: Path) -> int:
    """The operators that a session executes."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "session.onnx")
    ort.InferenceSession(path, options, ["CPUExecutionProvider"])
    return sum(map(parts, onnx.load(folder / "session.onnx").graph.node))


def parts(node: onnx.NodeProto) -> int:
    """The operators that one stands for."""
    if node.op_type in VIEWS:
        return 0
    return 1 if node.op_type not in BIAS else 2 + any(node.input[BIAS[node.op_type] :])


def priced(result: Result, original: onnx.ModelProto, target: str) -> int:
    """The nodes that the plan has paid for: an Add for each beta that stays, two for a centring."""
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
    # The Cast that makes a body of kernels fit float16 goes away, but not in front of an output.
    ends = {value.name for value in original.graph.output} if target == "kernels" else set()
    return adds + 2 * len(result.plan.insertions) + len(ends & betas.keys())


@pytest.mark.parametrize("target", ["onnx", "ort", "kernels"])
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_session_executes_what_the_plan_has_priced(
    path: Path, target: str, tmp_path: Path
) -> None:
    output = tmp_path / "folded.onnx"
    result = onnxfold.optimize(path, output, target=target, check=None)
    more = executed(output if output.exists() else path, tmp_path) - executed(path, tmp_path)
    assert more <= priced(result, onnx.load(path), target)


def test_what_is_not_priced_is_told() -> None:
    """The bound of a file that folds nothing and moves nothing is 0."""
    original = onnx.load(RECIPES[0])
    result = onnxfold.optimize(original, exclude=".*", fuse_affine=False)
    assert priced(result, original, "onnx") == 0
