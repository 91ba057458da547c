"""What a stock session executes, and what a plan has priced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfold import Result
from onnxfold.report import before_after

__all__ = ["counted", "is_gain", "priced"]

# A skip norm takes as long as its parts, or longer: it counts as these, a bias among them.
BIAS = {"SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}
ADDITIONS = ("Add", "Sum")
VIEWS = ("Reshape",)  # moves no number: a fused addition leaves one after the norm and the sum


def counted(nodes: Iterable[onnx.NodeProto]) -> Counter[str]:
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


def is_gain(result: Result, longer: int) -> bool:
    """Whether a session is longer by what the plan has priced, for a gain that the report says."""
    prices = result.report["inspect"]["prices"]
    sides = {"before": {"session_operators": {}}, "after": {"session_operators": {"Add": longer}}}
    document = {"free_dimensions": [], **sides}
    said = before_after.priced({**result.report, "before_after": document})
    gain = f"save {prices['saved_us']:.3g} µs"
    gained = prices["operators"] >= longer and prices["saved_us"] > prices["spent_us"]
    return gained and said is not None and gain in said
