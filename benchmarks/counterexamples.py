"""Why the norms that are left cannot fold: each folded all the same, and what that changes.

    python -m benchmarks.counterexamples [MODEL.onnx ...]

takes the models, or the small recipes of tests/recipes, and of each the first norm that is left
for each reason.  All weights that lead to it are centred, it becomes an RMSNorm, and ONNX Runtime
runs both models on one seeded sample.  benchmarks/results/counterexamples.csv gets what mean the
norm then reads, in parts of the deviation of its rows, by how much the outputs change, and where
another norm's gamma is in the way, how far the nearest gamma is of which the output has no mean.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime

import onnxfold
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, merge, read, tell
from onnxfold.graph import Fiber, ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.graph.traversal import reached
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.model_io import load
from onnxfold.norms import NormKind, NormSite
from onnxfold.options import Folding
from onnxfold.passes.base import Settings
from onnxfold.passes.centring.apply import apply
from onnxfold.passes.centring.decide import CentringDecision
from onnxfold.passes.centring.plan import CentringPlan, Fold, WeightCentring
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.pipeline.finalize import finished, note, settle_functions
from onnxfold.proof.relation import means
from onnxfold.recognition import find_norms
from onnxfold.refusal import RefusalCode
from onnxfold.streams.dataflow import walk_back
from onnxfold.streams.model_transfers import ModelTransfers, Point
from onnxfold.target import Target

__all__ = ["counterexamples", "main", "nearest_gamma"]

_RECIPES = Path(__file__).parents[1] / "tests" / "recipes"
_SIDE = 32
_SETTINGS = Settings(Target.ONNX, fold=Folding.ALWAYS)
Array = npt.NDArray[Any]


def main(words: Sequence[str] | None = None) -> int:
    """Write the rows of all recipes and return the exit code."""
    given = arguments(__doc__, {"models": {"type": Path, "nargs": "*"}}, words)
    paths = given.models or sorted(_RECIPES.glob("*.onnx"))
    rows = [row for path in paths for row in counterexamples(path)]
    tell(rows)
    file, made = RESULTS / "counterexamples.csv", [row.recipe for row in rows]
    known = [row["recipe"] for row in read(file)]
    merge(file, rows, "recipe", set(made), list(dict.fromkeys([*known, *made])))
    return 0


def counterexamples(path: Path) -> list[Row]:
    """Return the row of the first norm of each reason for which one of a model cannot fold."""
    info = prepare(load(path)).info
    document = onnxfold.inspect(path, fold=_SETTINGS.fold)
    left = {row["name"]: row["reason"] for row in document["norms"] if not row["foldable"]}
    by_code: dict[str, list[NormSite]] = {}
    for site in find_norms(info):
        if site.kind is NormKind.LAYER_NORM and site.name in left:
            by_code.setdefault(left[site.name]["code"], []).append(site)
    (feeds,) = make_inputs(info.model, InputSpec.parse(()), count=1, seed=0, image_side=_SIDE)
    expected = _run(info.model, feeds)
    rows = []
    for code, sites in by_code.items():
        site, why = sites[0], left[sites[0].name]
        forced = _folded(info, site)
        *found, x = _run(forced, feeds, site.input.name)
        differences = (
            np.abs(a - b).max() / np.abs(a).max() for a, b in zip(expected, found, strict=True)
        )
        # One norm of a recipe that is left, of ``norms`` for the same reason, folded all the same.
        rows.append(
            Row(
                recipe=path.stem,
                norm=site.name,
                norms=len(sites),
                code=code,
                sentence=why["sentence"].partition(";")[0],
                mean=_relative_mean(x, site.fiber),
                changed=float(max(differences)),
                gamma=_gamma_at(info, why),
            )
        )
    return rows


def _folded(info: ModelInfo, site: NormSite) -> ir.Model:
    """Return the model with one norm as an RMSNorm and all weights centred that lead to it."""
    transfers = ModelTransfers(info, find_norms(info))
    graph, start = walk_back(transfers, [site]), Point(site.input, site.fiber)
    leading = reached([start], lambda point: graph[point].carried)
    weights = [
        WeightCentring(info.ref(point.value), point.fiber, 0)
        for point in leading
        if graph[point].constant
    ]
    plan = CentringPlan((Fold(site.name, info.ref(site.output)),), tuple(weights))
    edit = Editor(info, copy=True)
    apply(edit, CentringDecision(plan), _SETTINGS)
    target, form = _SETTINGS.target, _SETTINGS.norm_form
    result = finished(edit.model, info.model, note(target), target, form)
    settle_functions(result, info.model.ir_version)
    return result


def _run(model: ir.Model, feeds: Mapping[str, Array], also: str | None = None) -> list[Array]:
    inside = model.clone()
    for value in inside.graph.initializers.values():
        if value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    proto = ir.to_proto(inside)
    if also is not None:
        proto.graph.output.append(onnx.ValueInfoProto(name=also))
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=providers)
    return [np.asarray(array, np.float64) for array in session.run(None, dict(feeds))]


def _relative_mean(x: Array, fiber: Fiber) -> float:
    """Return the largest mean of a row, in parts of the deviation of the rows."""
    mean = means(x, fiber)
    return float(np.abs(mean).max() / (x - mean).std())


def _gamma_at(info: ModelInfo, why: Mapping[str, Any]) -> float | None:
    """Return how far the gamma is that would do, where a norm's gamma is the obstacle."""
    if why["code"] != RefusalCode.AFFINE_NORM_OUTPUT:
        return None
    for site in find_norms(info):
        gamma = site.gamma if isinstance(site.gamma, np.ndarray) else info.array(site.gamma)
        if gamma is not None and any(label in site.name for label in why["nodes"]):
            return nearest_gamma(np.asarray(gamma, np.float64))
    return None


def nearest_gamma(gamma: Array) -> float:
    """Return the relative distance of P diag(gamma) from all diag(gamma'), on vectors of mean 0.

    Both map normalized vectors; the distance is that of Frobenius norms, by least squares.
    """
    size = len(gamma)
    centring = np.eye(size) - 1 / size
    wanted = centring @ np.diag(gamma) @ centring
    nearest = (wanted * centring).sum(1) / (centring**2).sum(1)
    left = wanted - np.diag(nearest) @ centring
    return float(np.linalg.norm(left) / np.linalg.norm(wanted))


if __name__ == "__main__":
    sys.exit(main())
