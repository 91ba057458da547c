"""Apply the spelling of a target: norms that stay, Gelus, then residual additions."""

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.graph.edit import Editor
from onnxfold.graph.traversal import all_nodes
from onnxfold.norms import NORMS
from onnxfold.options import Device, Target
from onnxfold.passes.base import Settings
from onnxfold.passes.lower.decide import LoweringPlan, halve_first, late_halves
from onnxfold.passes.lower.quantized import quantize_fusions
from onnxfold.passes.lower.residual import CONTRIB_DOMAIN, contrib_fusions, residual_fusions
from onnxfold.passes.lower.row_scales import ROUNDS, row_fusions
from onnxfold.passes.split_skip_norms import is_split
from onnxfold.shapes import infer
from onnxfold.targets.installed import onnxruntime_version
from onnxfold.targets.lowering import TargetLowering

# Before, ONNX Runtime's skip norms on CUDA add float16 squares in float16, which overflow
# (microsoft/onnxruntime, issue 29034); its SimplifiedLayerNormalization does not.
WIDE_STATISTICS_SINCE = (1, 27)


def apply(edit: Editor, plan: LoweringPlan, settings: Settings) -> bool:
    """Apply ``plan``; return whether the model now differs from the original."""
    _respell(edit, plan, settings)
    changed = bool(plan.respelled)
    if plan.halve_first:
        halve_first(edit, late_halves(ModelInfo(edit.model)))
        changed |= settings.target is Target.ORT  # a file is not written for these alone
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
    on_cuda = settings.target is Target.ORT and settings.device is Device.CUDA
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
    if settings.target is Target.ORT or not any(map(is_split, all_nodes(edit.model))):
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
