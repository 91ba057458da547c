"""Weights shifted where only norms that ignore the shift read it.

    LN(x + s 1) = LN(x), so A u + b upstream of a LayerNorm may be (A + 1 c') u + b + d 1 for any c,
    d

    MatMul W: [in, out]   W + c 1'  one number for each input
    bias b: [out]         b + d 1   one number
    table: [V, d]         one number for each row

c is normal, of the size of the weight's own numbers: the stream's mean becomes about as large as
its deviation.

Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers", 2023, appendix C.
"""

from collections import Counter
from zlib import crc32

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.channels import Channels
from onnxfold.graph.edit import Editor, change_constant
from onnxfold.graph.operands import known_tensor
from onnxfold.graph.traversal import reached
from onnxfold.norms import NORMS
from onnxfold.passes.base import Settings
from onnxfold.passes.places import ChangedWeight
from onnxfold.passes.stream_forms.plan import ShiftingPlan
from onnxfold.streams.dataflow import ZeroMeanGraph, walk_back
from onnxfold.streams.model_transfers import TRANSFERS, Point
from onnxfold.weights.edited import EditedTensor, edited, float64_chunks
from onnxfold.weights.evaluation import Shift


def decide(info: ModelInfo, settings: Settings) -> ShiftingPlan:
    """Return the weights upstream of the model's LayerNorms whose shift no reader sees."""
    if settings.shift is None:
        return ShiftingPlan()
    sites = NORMS.of(info)
    asked = [site for site in sites if site.subtracts_mean and site.refusal is None]
    graph = walk_back(TRANSFERS.of(info), asked)
    seen = _seen(graph)
    fibers = Counter(point.value for point in graph)
    return ShiftingPlan(
        tuple(
            ChangedWeight(info.ref(point.value), point.fiber)
            for point, facts in graph.items()
            if facts.constant and point not in seen and fibers[point.value] == 1
            and point.fiber.whole and point.fiber.blocks
        ),
        settings.shift,
    )  # fmt: skip


def _seen(graph: ZeroMeanGraph) -> set[Point]:
    """Return the points whose shift a reader sees, directly or through carriers."""
    makes_move: dict[Point, list[Point]] = {}
    for point, facts in graph.items():
        for moved in (*facts.carries_to, *facts.siblings):
            makes_move.setdefault(moved, []).append(point)
    seen = [point for point, facts in graph.items() if facts.exact]
    return set(reached(seen, lambda point: makes_move.get(point, ())))


def apply(edit: Editor, plan: ShiftingPlan, settings: Settings) -> None:
    """Shift every named weight."""
    del settings
    values = edit.by_ref()
    for weight in plan.weights:
        value = values[weight.value]
        change_constant(value, _shifted(known_tensor(value), weight, plan.seed))


def _shifted(tensor: ir.TensorProtocol, weight: ChangedWeight, seed: int) -> EditedTensor:
    shape = tuple(tensor.shape.numpy())
    kept = Channels.along(
        (axis, size) for axis, size in enumerate(shape) if axis not in weight.fiber.axes
    )
    rng = np.random.default_rng([seed, crc32(weight.value.encode())])
    vector = rng.standard_normal(kept.size) * _root_mean_square(tensor)
    return edited(tensor, Shift(kept, vector), tensor.name or weight.value)


def _root_mean_square(tensor: ir.TensorProtocol) -> float:
    total = sum(float(np.square(rows).sum()) for _, rows in float64_chunks(tensor))
    return float(np.sqrt(total / max(1, tensor.size)))
