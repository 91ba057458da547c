"""Twins of a model that compute what it does and have the outliers that trained LLMs have.

* ``pca``: the residual stream in its principal axes, x U with U from the eigenvectors of X'X, so
  that few channels hold most of it.  LayerNorms are folded and gammas moved for that.
* ``gamma``: gamma and beta of a few channels of every norm times 16, and the rows of the linear
  layers behind them divided by 16: powers of two, so that not one digit changes.

    python -m models.outlier_twins model.onnx -o twin.onnx --kind pca --data samples.npz
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

import onnxfold
from onnxfold.check.reference import Precision, run
from onnxfold.errors import ModelError
from onnxfold.graph import ModelInfo
from onnxfold.graph.channels import Channels
from onnxfold.graph.edit import Editor, change_constant, set_input
from onnxfold.graph.operands import known_tensor
from onnxfold.inputs.data import read_samples
from onnxfold.norms import NormSite
from onnxfold.passes.base import Settings
from onnxfold.passes.basis.rotate_streams import decide_streams
from onnxfold.passes.basis.split_gamma import weights_behind
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.recognition import find_norms
from onnxfold.refusal import Refusal
from onnxfold.weights.edited import edited
from onnxfold.weights.evaluation import Scale
from onnxfold.weights.rotations import RotatedTensor

Array = npt.NDArray[Any]
KINDS = ("pca", "gamma", "both")
FACTOR, CHANNELS = 16.0, 3


def pca_twin(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]]) -> onnx.ModelProto:
    """Return the model with its largest stream in the basis of its principal axes."""
    folded = onnxfold.optimize(
        model, fold="always", fuse_affine="always", check=0, allow_split=1 << 30
    ).model
    info = prepare(ir.from_proto(folded)).info
    plan = decide_streams(info, Settings(rotate="random"))
    if not plan.streams:
        raise ModelError(f"no stream can be turned: {plan.refusals[0][1].sentence}")
    stream = max(plan.streams, key=lambda each: len(each.weights))
    sites = [site for site in find_norms(info) if info.ref(site.output) in stream.norms]
    axes = _principal_axes(info, sites, feeds, stream.size)
    values = info.by_ref()
    for weight in stream.weights:
        tensor = known_tensor(values[weight.value])
        turned = RotatedTensor(tensor, weight.fiber, axes, weight.value)
        change_constant(values[weight.value], turned)
    return ir.to_proto(info.model)


def _principal_axes(
    info: ModelInfo, sites: Sequence[NormSite], feeds: Sequence[Mapping[str, Array]], size: int
) -> npt.NDArray[np.float64]:
    """Return the eigenvectors of X'X, the largest first; X: all rows that the norms read."""
    read, total = {site.input for site in sites}, np.zeros((size, size))

    def observe(value: ir.Value, array: Array) -> Array:
        if value in read:
            rows = array.reshape(-1, size).astype(np.float64)
            total[...] += rows.T @ rows
        return array

    for feed in feeds:
        run(info.model, feed, precision=Precision.FLOAT64, observe=observe)
    return np.asarray(np.linalg.eigh(total)[1][:, ::-1])


def both_twin(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]]) -> onnx.ModelProto:
    """Return the model in its principal axes and with a few large gammas."""
    return gamma_twin(pca_twin(model, feeds))


def gamma_twin(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """Return the model with a few gammas times 16, wherever linear layers alone read the norm."""
    info = prepare(ir.from_proto(model)).info
    edit, rng = Editor(info), np.random.default_rng(seed)
    changed = 0
    for site in find_norms(info):
        places = weights_behind(info, site.output, Channels.of(site.fiber.blocks))
        parts = [part for part in (site.gamma, site.beta) if isinstance(part, ir.Value)]
        known = all(info.tensor(part) is not None for part in parts)
        if isinstance(places, Refusal) or not parts or not known:
            continue
        if not places or any(len(place.value.uses()) > 1 for place in places):
            continue
        factors = np.ones(site.size)
        factors[rng.choice(site.size, min(CHANNELS, site.size), replace=False)] = FACTOR
        for part in parts:
            _multiply(_own(edit, site, part), Channels.along([(0, site.size)]), factors)
        for place in places:
            _multiply(place.value, place.channels, 1 / factors)
        changed += 1
    if not changed:
        raise ModelError("no norm of the model is read by linear layers alone")
    return ir.to_proto(info.model)


def _own(edit: Editor, site: NormSite, part: ir.Value) -> ir.Value:
    """Return a gamma or beta that this norm alone reads."""
    if len(part.uses()) == 1:
        return part
    copy = edit.new_constant(site.output, ir.tensor(known_tensor(part).numpy()), f"{part.name}.own")
    (reader,) = (reader for reader in edit.info.readers(part) if reader.node in site.nodes)
    set_input(reader.node, reader.index, copy)
    return copy


def _multiply(value: ir.Value, channels: Channels, factors: npt.NDArray[np.float64]) -> None:
    tensor = known_tensor(value)
    change_constant(value, edited(tensor, Scale(channels, factors), tensor.name or ""))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the twin that `arguments` ask for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m models.outlier_twins", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--kind", choices=KINDS, default="pca")
    parser.add_argument("--data", type=Path, help="inputs, for the principal axes")
    options = parser.parse_args(arguments)
    model = onnx.load(options.model)
    if options.kind == "gamma":
        onnx.save(gamma_twin(model), options.output)
        return 0
    if options.data is None:
        parser.error(f"--kind {options.kind} needs --data")
    feeds = read_samples(options.data, ir.from_proto(model), options.model).feeds
    made = pca_twin(model, feeds) if options.kind == "pca" else both_twin(model, feeds)
    onnx.save(made, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
