"""Decide how a target spells norms that stay, Gelus and residual additions; do it.

dynamo exports Gelu as x * (0.5 * (1 + erf(x / sqrt(2)))), which a session runs as five operators;
it fuses (0.5 * x) * (1 + erf(x / sqrt(2))) into one, alone or with the bias before it. Halving a
float is exact, so both yield the same number, unless half of x is not a normal number.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.graph import ModelInfo, operator
from onnxfold.graph.edit import Editor
from onnxfold.graph.operands import computed_by, is_read_once, producer_of
from onnxfold.graph.traversal import all_nodes
from onnxfold.norms import NORMS
from onnxfold.operators.functions import DOMAIN, SIGNATURES
from onnxfold.operators.new_nodes import Lowered
from onnxfold.options import Device
from onnxfold.passes.base import Settings
from onnxfold.passes.lower.quantized import quantize_fusions
from onnxfold.passes.lower.residual import CONTRIB_DOMAIN, contrib_fusions, residual_fusions
from onnxfold.passes.lower.row_scales import ROUNDS, row_fusions
from onnxfold.passes.split_skip_norms import is_split
from onnxfold.shapes import infer
from onnxfold.targets.installed import onnxruntime_version
from onnxfold.targets.lowering import TargetLowering
from onnxfold.targets.norm_settings import common_settings

# Before, ONNX Runtime's skip norms on CUDA add float16 squares in float16, which overflow
# (microsoft/onnxruntime, issue 29034); its SimplifiedLayerNormalization does not.
WIDE_STATISTICS_SINCE = (1, 27)


@dataclass(frozen=True, slots=True)
class LateHalf:
    """A Gelu that halves 1 + erf instead of x: its last product, and the factors."""

    product: ir.Node
    halving: ir.Node
    x: ir.Value
    half: ir.Value
    total: ir.Value  # 1 + erf(x / sqrt(2))

    def lower(self) -> Lowered:
        """Return the nodes that halve x first."""
        halving = ir.node("Mul", [self.x, self.half], name=self.halving.name)
        halved, old = halving.outputs[0], self.halving.outputs[0]
        halved.name, halved.type = old.name, old.type
        product = ir.node("Mul", [halved, self.total], name=self.product.name)
        return Lowered((halving, product), ((self.product.outputs[0], product.outputs[0]),))


def late_halves(view: ModelInfo) -> tuple[LateHalf, ...]:
    """Return the Gelus that a session would run operator by operator."""
    products = (node for node in view.nodes() if operator(node) == "Mul")
    found = (_found(view, node, place) for node in products for place in (0, 1))
    return tuple(each for each in found if each is not None)


def halve_first(edit: Editor, gelus: Iterable[LateHalf]) -> None:
    """Make each Gelu halve x instead of 1 + erf."""
    for gelu in gelus:
        edit.stand_in(gelu.lower(), gelu.product, (gelu.halving, gelu.product))


def _found(view: ModelInfo, product: ir.Node, place: int) -> LateHalf | None:
    """Return the Gelu whose last product has the halved sum as an operand, or None."""
    x, halved = product.inputs[1 - place], product.inputs[place]
    halving = computed_by(halved, "Mul")
    if x is None or halved is None or halving is None or halving.graph is not product.graph:
        return None
    half, total = _with_number(view, halving, 0.5)
    addition = computed_by(total, "Add")
    erf = None if addition is None else computed_by(_with_number(view, addition, 1.0)[1], "Erf")
    scaling = None if erf is None else producer_of(erf.inputs[0])
    if half is None or total is None or scaling is None or x not in scaling.inputs:
        return None
    return LateHalf(product, halving, x, half, total) if is_read_once(halved) else None


def _with_number(
    view: ModelInfo, node: ir.Node, number: float
) -> tuple[ir.Value | None, ir.Value | None]:
    """Return the constant operand of a node, and the other one; (None, None) without a match."""
    first, second = node.inputs
    if view.scalar(first) == number:
        return first, second
    return (second, first) if view.scalar(second) == number else (None, None)


@dataclass(frozen=True, slots=True)
class LoweringPlan:
    """The norms that get a cheaper spelling, by reference, and whether residuals are fused.

    ``halve_first``: whether a Gelu that halves late is changed to halve first.
    """

    respelled: tuple[str, ...] = ()
    fuse_residual: bool = False
    halve_first: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.respelled or self.fuse_residual or self.halve_first)

    def left_out(self, reason: str) -> "LoweringPlan":
        """Return the plan to keep every spelling."""
        del reason  # the report names the pass
        return LoweringPlan()


def decide(info: ModelInfo, settings: Settings) -> LoweringPlan:
    """Return which norms one operator computes more cheaply and as exactly."""
    if settings.convert_to is not None:
        return LoweringPlan()  # only the requested form changes
    sites = NORMS.of(info)
    lowering = TargetLowering(info, settings.target, settings.norm_form)
    cheaper = [site for site in sites if lowering.calls_in_place(site)]
    if settings.target.traits.calls:
        own = (node for node in info.nodes() if node.domain == DOMAIN)
        called = [node for node in own if node.op_type in SIGNATURES]
        in_float = [site for site in cheaper if site.input.dtype is not ir.DataType.DOUBLE]
        kept = common_settings(called, map(lowering.setting, in_float))
        cheaper = [
            site
            for site in cheaper
            if lowering.becomes_one(site)
            or lowering.setting(site) in kept
            or is_split(site.nodes[-1])
        ]
    fuses = settings.fuse_residual and settings.target.traits.calls
    respelled = tuple(info.ref(site.output) for site in cheaper)
    return LoweringPlan(respelled, fuses, halve_first=bool(late_halves(info)))


def apply(edit: Editor, plan: LoweringPlan, settings: Settings) -> bool:
    """Apply ``plan``; return whether the model now differs from the original."""
    _respell(edit, plan, settings)
    changed = bool(plan.respelled)
    if plan.halve_first:
        halve_first(edit, late_halves(ModelInfo(edit.model)))
        changed |= settings.target.traits.contrib  # a file is not written for these alone
    if not plan.fuse_residual:
        return changed
    fusions = residual_fusions(infer(edit.model))  # results of passes have no shapes
    for fusion in fusions:
        edit.stand_in(fusion.lower(), fusion.place, fusion.replaced)
    changed |= len(fusions) != settings.fused_before
    info, found = _fuse_rows(edit)
    changed |= found
    quantized = quantize_fusions(info)
    for codes in quantized:
        edit.stand_in(codes.lower(), codes.place, codes.replaced)
    return changed or bool(quantized)


def _fuse_rows(edit: Editor) -> tuple[ModelInfo, bool]:
    """Fuse the results of deferral until nothing changes.

    A later round may free a name for a setting.
    """
    info, changed, number = ModelInfo(edit.model), False, 0
    while number < ROUNDS:
        rows = row_fusions(info, number)
        for row in rows:
            edit.stand_in(row.lower(), row.place, row.nodes)
        if rows:
            info, changed = ModelInfo(edit.model), True
        number = 0 if rows and number else number + 1
    return info, changed


def join_rms_norms(edit: Editor, settings: Settings) -> bool:
    """Fuse additions with RMSNorms for ONNX Runtime on CUDA; return whether there are any."""
    on_cuda = settings.target.traits.contrib and settings.device is Device.CUDA
    if not on_cuda or not settings.fuse_residual or settings.convert_to is not None:
        return False
    wide = onnxruntime_version() >= WIDE_STATISTICS_SINCE
    types = {ir.DataType.FLOAT, ir.DataType.FLOAT16} if wide else {ir.DataType.FLOAT}
    fusions = contrib_fusions(infer(edit.model), types)
    for fusion in fusions:
        edit.stand_in(fusion.lower(), fusion.place, fusion.replaced)
    if fusions:
        edit.model.graph.opset_imports.setdefault(CONTRIB_DOMAIN, 1)
    return bool(fusions)


def spell_split_norms(edit: Editor, settings: Settings) -> None:
    """Spell the RMS norms of split skip norms that are not joined again.

    In the meantime an operator represents them that only ONNX Runtime knows, in ONNX's domain.
    """
    if settings.target.traits.contrib or not any(map(is_split, all_nodes(edit.model))):
        return
    info = ModelInfo(edit.model)
    lowering = TargetLowering(info, settings.target, settings.norm_form)
    for site in NORMS.of(info):
        if is_split(site.nodes[-1]) and lowering.calls_rms(site):
            edit.stand_in(lowering.rms_norm(site, site.input), site.last, site.nodes)


def _respell(edit: Editor, plan: LoweringPlan, settings: Settings) -> None:
    respelled = set(plan.respelled)
    sites = [site.within(edit) for site in NORMS.of(edit.info)]
    lowering = TargetLowering(edit.info, settings.target, settings.norm_form)
    for found, site in zip(NORMS.of(edit.info), sites, strict=True):
        if edit.info.ref(found.output) in respelled:
            cheaper = lowering.layer_norm(site)
            if cheaper is not None:
                edit.stand_in(cheaper, site.last, site.nodes)
