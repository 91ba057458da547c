"""The changes of a checkpoint, and why the rest stays.

weightless: y = x̂ * gamma + beta is read only by linear layers, so

    W* = W diag(gamma),  b* = b + W beta,  gamma* = 1,  beta* = 0

rms: LayerNorms ignore a shift of the stream, so every table and every linear layer that adds to it
may lose its mean, V = P W; the stream then has mean 0 and LN(x) = RMS(x). The files remain a model
with LayerNorms that computes the same function.

Source: FlashNorm (Graef et al., 2024), section 1; Pre-RMSNorm Transformers, section 3.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import onnx_ir as ir

from onnxfold.checkpoint.families import FAMILIES, Architecture, Norm
from onnxfold.checkpoint.files import Checkpoint, StoredTensor
from onnxfold.errors import ModelError, escaped
from onnxfold.graph.channels import Channels
from onnxfold.graph.constants import Float64
from onnxfold.graph.fiber import whole_axes
from onnxfold.model_io import show
from onnxfold.options import member
from onnxfold.weights.edited import Product, edited
from onnxfold.weights.evaluation import Centre, Scale, Shift

# Parts of a quantized module: of GPTQ and AWQ, compressed-tensors, FP8 by blocks, bitsandbytes.
_QUANTISED = ("qweight", "weight_packed", "weight_scale", "weight_scale_inv", "SCB", "absmax")


class CheckpointForm(StrEnum):
    """The new form of the norms of a checkpoint."""

    WEIGHTLESS = "weightless"  # gamma and beta move into the linear layers that read them
    RMS = "rms"  # everything that adds to the stream is centered, so LayerNorm is RMSNorm


def form_named(name: str) -> CheckpointForm:
    """Return the form of a name; raises UsageError for an unknown one."""
    return member(CheckpointForm, name, f"form '{name}' of a checkpoint")


@dataclass(slots=True)
class CheckpointPlan:
    """New tensors by name, computed when they are written; the norms that change and that stay.

    ``merged``: the layers that absorb a norm's gamma and beta. ``centred``: modules that write the
    stream. ``left``: why a norm stays. ``cause``: the norms that change each tensor.
    """

    tensors: dict[str, ir.TensorProtocol] = field(default_factory=dict)
    merged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    centred: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    cause: dict[str, tuple[str, ...]] = field(default_factory=dict)


def decide(
    checkpoint: Checkpoint,
    form: CheckpointForm,
    *,
    exclude: re.Pattern[str] | None = None,
    unfit: Mapping[str, str] | None = None,
) -> CheckpointPlan:
    """Return what changes; ``unfit`` are norms that must stay, with the reason.

    Raises ModelError for an unknown architecture, configuration or tensor.
    """
    model = _Model(checkpoint, _family(checkpoint))
    model.check()
    plan = CheckpointPlan()
    if form is CheckpointForm.WEIGHTLESS:
        for norm, readers in model.norms():
            why = (
                _excluded(norm, exclude)
                or (unfit or {}).get(norm)
                or _merge(model, norm, readers, plan)
            )
            if why:
                plan.left[norm] = why
    else:
        _centre(model, plan, exclude, unfit or {})
    plan.left |= model.kept()
    return plan


def _excluded(norm: str, exclude: re.Pattern[str] | None) -> str:
    return "excluded by name" if exclude is not None and exclude.search(norm) else ""


def _family(checkpoint: Checkpoint) -> Architecture:
    config, label = checkpoint.config, show(checkpoint.folder / "config.json")
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise ModelError(
            f"{label}: model_type {escaped(repr(kind))} is not known; known are "
            f"{', '.join(FAMILIES)}; export it and use onnxfold optimize"
        )
    _refuse_quantised(checkpoint)
    for key, wanted in family.demands.items():
        if config.get(key, wanted) != wanted:
            raise ModelError(
                f"{label}: {key} is {escaped(repr(config[key]))}: this variant of {kind} is not "
                "known; export it and use onnxfold optimize"
            )
    return family


def _refuse_quantised(checkpoint: Checkpoint) -> None:
    """Refuse codes with scales, whether the configuration declares them or not."""
    declared = checkpoint.config.get("quantization_config")
    method = declared.get("quant_method") if isinstance(declared, dict) else None
    names = (name.rpartition(".") for name in sorted(checkpoint.tensors))
    found = next((f"'{module}' has {part}" for module, _, part in names if part in _QUANTISED), "")
    if declared or found:
        how = ": ".join(escaped(str(part)) for part in (method, found) if part)
        raise ModelError(
            f"{show(checkpoint.folder)}: its weights are quantized ({how}), which cannot be scaled "
            "or centered exactly; fold the checkpoint first, then quantize"
        )


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\*", r"(\d+)"))


class _Model:
    """The modules of a checkpoint by the names that its family has for them."""

    def __init__(self, checkpoint: Checkpoint, family: Architecture):
        self.checkpoint, self.family = checkpoint, family
        with_base = any(name.startswith(f"{family.base}.") for name in checkpoint.tensors)
        self._prefix = f"{family.base}." if with_base else ""
        self.tied = bool(checkpoint.config.get("tie_word_embeddings", family.tied))
        self.head = family.head if f"{family.head}.weight" in checkpoint.tensors else None

    def check(self) -> None:
        """Refuse tensors that the family does not name, because there may be other readers then."""
        family = self.family
        readers = (reader for norm in family.norms for reader in norm.readers)
        modules = [
            *(norm.name for norm in family.norms),
            *(family.last, family.embedding, *readers, *family.writers, *family.tables),
            *(*family.kept, *family.others),
        ]
        known = [self._prefix + module for module in modules if module] + [family.head]
        names = [module + part for module in known for part in (".weight", ".bias")]
        names += [self._prefix + buffer for buffer in family.buffers]
        patterns = [_pattern(name) for name in names]
        for name in self.checkpoint.tensors:
            if not any(pattern.fullmatch(name) for pattern in patterns):
                kind = self.checkpoint.config["model_type"]
                raise ModelError(
                    f"{show(self.checkpoint.folder)}: tensor '{escaped(name)}' is none that "
                    f"{kind} is known to have; export the model and use onnxfold optimize"
                )

    def matching(self, module: str) -> list[str]:
        """Return the existing modules that match a name with ``*``."""
        pattern = _pattern(f"{self._prefix}{module}.weight")
        found = (name for name in self.checkpoint.tensors if pattern.fullmatch(name))
        return sorted((name.removesuffix(".weight") for name in found), key=_by_number)

    def norms(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return every norm that linear layers read, with these layers, the last one last."""
        found = [
            (name, self._readers(norm, name))
            for norm in self.family.norms
            for name in self._named(norm)
        ]
        found.sort(key=lambda row: _by_number(row[0]))
        last = self.matching(self.family.last) if self.family.last else []
        if self.family.bare:
            last = [self._prefix + self.family.last]
        return found + [(name, () if self.head is None else (self.head,)) for name in last]

    def _named(self, norm: Norm) -> list[str]:
        """Return the norms of a name; bare ones by the layers that read them."""
        if not self.family.bare:
            return self.matching(norm.name)
        return [
            self._prefix
            + norm.name.replace("*", re.findall(r"\d+", name.removeprefix(self._prefix))[0])
            for name in self.matching(norm.readers[0])
        ]

    def _readers(self, norm: Norm, name: str) -> tuple[str, ...]:
        number = re.findall(r"\d+", name.removeprefix(self._prefix))[0]
        readers = (reader.replace("*", number, 1) for reader in norm.readers)
        return tuple(module for reader in readers for module in self._required(reader, name))

    def _required(self, module: str, norm: str) -> list[str]:
        found = self.matching(module)
        if not found:
            raise ModelError(
                f"{show(self.checkpoint.folder)}: '{self._prefix}{module}.weight', which reads "
                f"'{norm}', is missing"
            )
        return found

    def kept(self) -> dict[str, str]:
        """Return the modules that are never changed, with the reasons."""
        return {
            name: why for module, why in self.family.kept.items() for name in self.matching(module)
        }

    def stored(self, name: str) -> StoredTensor | None:
        return self.checkpoint.tensors.get(name)

    def axes(self, module: str) -> tuple[int, int]:
        """Return the axes of the inputs and the outputs of a linear layer's weight."""
        return (0, 1) if self.family.inputs_first and module != self.head else (1, 0)


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _merge(model: _Model, norm: str, readers: tuple[str, ...], plan: CheckpointPlan) -> str:
    """Plan to move gamma and beta of a norm; return the obstacle, or ""."""
    why = _why_no_merging(model, norm, readers)
    if why:
        return why
    gamma, beta = model.stored(f"{norm}.weight"), model.stored(f"{norm}.bias")
    if gamma is None:
        return "it has no gamma"
    g = gamma.numpy().astype(np.float64)
    s = np.zeros_like(g) if beta is None else beta.numpy().astype(np.float64)
    if not np.isfinite(g).all() or not np.isfinite(s).all():
        return "its gamma or beta contains inf or NaN"
    if (g == 1).all() and not s.any():
        return "it is weightless already"
    without = [reader for reader in readers if model.stored(f"{reader}.bias") is None]
    if s.any() and without:
        return f"'{without[0]}' has no bias input for beta"
    for reader in readers:
        _scale(model, reader, norm, g, s, plan)
    for part, value in ((gamma, 1), (beta, 0)):
        if part is not None:
            array = np.full(part.shape, value, dtype=part.numpy().dtype)
            plan.tensors[part.name] = ir.Tensor(array, name=part.name)
            plan.cause[part.name] = (norm,)
    plan.merged[norm] = readers
    return ""


def _why_no_merging(model: _Model, norm: str, readers: tuple[str, ...]) -> str:
    if model.tied and readers in ((), (model.head,)):
        return "the head that reads it shares its weight with the embedding (tie_word_embeddings)"
    if not readers:
        return "its output is the output of the model"
    for module in (norm, *readers):
        for part in ("weight", "bias"):
            stored = model.stored(f"{module}.{part}")
            if stored is not None and not stored.is_float:
                return f"'{stored.name}' is {stored.dtype}, which cannot be scaled exactly"
    return ""


def _scale(
    model: _Model, reader: str, norm: str, g: Float64, s: Float64, plan: CheckpointPlan
) -> None:
    weight = model.checkpoint.tensors[f"{reader}.weight"]
    axis, other = model.axes(reader)
    if len(weight.shape) != 2 or weight.shape[axis] != g.size:
        raise ModelError(
            f"{show(weight.path)}: '{weight.name}' of shape {weight.shape} cannot read "
            f"'{norm}' of {g.size} elements"
        )
    inner, outer = (Channels.along([(at, weight.shape[at])]) for at in (axis, other))
    plan.tensors[weight.name] = edited(weight.tensor(), Scale(inner, g), weight.name)
    plan.cause[weight.name] = (norm,)
    bias = model.stored(f"{reader}.bias")
    if bias is not None and s.any():
        product = Product(weight.tensor(), s, inner, outer)
        channels = Channels.along([(0, bias.shape[0])])
        plan.tensors[bias.name] = edited(bias.tensor(), Shift(channels, product), bias.name)
        plan.cause[bias.name] = (norm,)


def _centre(
    model: _Model,
    plan: CheckpointPlan,
    exclude: re.Pattern[str] | None,
    unfit: Mapping[str, str],
) -> None:
    """Plan to center everything that adds to the stream, or nothing: the stream is one sum."""
    norms = [norm for norm, _ in model.norms()]
    why = _why_no_centring(model)
    excluded = [norm for norm in norms if _excluded(norm, exclude)]
    if excluded:
        why = why or f"'{excluded[0]}', which reads the same stream, is excluded by name"
    why = why or next(iter(unfit.values()), "")
    if why:
        plan.left |= dict.fromkeys(norms, why)
        return
    for stored, axis in _stream(model):
        fiber = whole_axes(stored.shape, [axis])
        if fiber is None:
            raise ModelError(f"'{stored.name}' of shape {stored.shape} has no axis {axis}")
        plan.tensors[stored.name] = edited(stored.tensor(), Centre(fiber), stored.name)
        plan.cause[stored.name] = tuple(norms)
    plan.centred += [name.removesuffix(".weight") for name in plan.tensors if ".weight" in name]
    plan.merged |= dict.fromkeys(norms, ())


def _why_no_centring(model: _Model) -> str:
    if not model.family.subtracts_mean:
        return "it is an RMSNorm already, and sees the mean of the stream"
    if model.family.opening:
        return (
            f"the stream begins with '{model.family.opening}', whose gamma and beta give it a mean"
        )
    if model.tied:
        return (
            "the embedding is the weight of the head too (tie_word_embeddings), which needs its "
            "values, so the stream keeps a mean"
        )
    for stored, _ in _stream(model):
        if not stored.is_float:
            return f"'{stored.name}' is {stored.dtype},which cannot be centered"
    return ""


def _stream(model: _Model) -> list[tuple[StoredTensor, int]]:
    """Return the tensors that add to the stream, each with the axis of its outputs."""
    family = model.family
    tables = [
        name for module in (family.embedding, *family.tables) for name in model.matching(module)
    ]
    writers = [name for module in family.writers for name in model.matching(module)]
    found = [(f"{name}.weight", 1) for name in tables]
    for name in writers:
        found += [(f"{name}.weight", model.axes(name)[1]), (f"{name}.bias", 0)]
    tensors = model.checkpoint.tensors
    return [(tensors[name], axis) for name, axis in found if name in tensors]
