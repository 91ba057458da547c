"""Apply centerings and folds: weights, inserted centerings, RMSNorms instead of LayerNorms."""

from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from onnxfold.errors import WeightOverflowError
from onnxfold.graph import Fiber, ModelInfo
from onnxfold.graph.edit import Editor, change_constant, set_input
from onnxfold.graph.operands import known_operand, known_producer, known_tensor
from onnxfold.norms import CENTRINGS, NORMS, BareCentring
from onnxfold.operators.new_nodes import Lowered, NewNodes
from onnxfold.passes.base import Settings
from onnxfold.passes.centring.decide import CentringDecision
from onnxfold.passes.centring.plan import CentringPlan, Insertion, WeightCentring
from onnxfold.passes.places import ReaderRef
from onnxfold.targets.norm_settings import NORM_FORMS, NormForms
from onnxfold.weights.edited import centred_tensor


def apply(edit: Editor, decision: CentringDecision, settings: Settings) -> None:
    """Center weights, insert centerings, and spell the folded norms as RMSNorms."""
    plan = decision.plan
    outputs = {fold.output for fold in plan.centrings}
    bare = [each for each in CENTRINGS.of(edit.info) if edit.info.ref(each.output) in outputs]
    sites = [(edit.info.ref(site.output), site.within(edit)) for site in NORMS.of(edit.info)]
    forms = NORM_FORMS.of(edit.info)(settings.target, settings.norm_form)
    fed = _feed(edit, plan, forms)
    folded = {fold.output for fold in plan.folds}
    for ref, site in sites:
        if ref in folded:
            lowered = forms.rms_norm(site, fed.get(ref, site.input))
            first = lowered.stands_for[0][0] if lowered.stands_for else site.output
            edit.stand_in(lowered, known_producer(first), site.nodes)
    for each in bare:
        _drop(edit, each.within(edit))


def _drop(edit: Editor, bare: BareCentring) -> None:
    """Let the readers of x - mean(x) read x, which is centered; an output keeps its name."""
    new = NewNodes(edit.info.opset)
    x = bare.input
    if bare.output.is_graph_output():
        x = new.op("Identity", x)
        x.name, x.type, x.shape = bare.output.name, bare.output.type, bare.output.shape
    edit.stand_in(Lowered.of(new, (bare.output, x)), bare.nodes[-1], bare.nodes)


def _feed(edit: Editor, plan: CentringPlan, forms: NormForms) -> dict[str, ir.Value]:
    """Create the centered values; return those that folded norms read instead of their inputs."""
    values = edit.by_ref()
    fed: dict[str, ir.Value] = {}
    # In place first, so that a copy along another fiber is a copy of the changed tensor.
    for weight in sorted(plan.weights, key=lambda weight: weight.split):
        copy = _centre_weight(edit, values, weight)
        fed.update(dict.fromkeys(weight.norms, copy))
    for insertion in plan.insertions:
        copy = _insert_centring(edit, values, insertion, forms)
        fed.update(dict.fromkeys(insertion.norms, copy))
    return fed


def _centre_weight(
    edit: Editor, values: Mapping[str, ir.Value], weight: WeightCentring
) -> ir.Value:
    value = values[weight.value]
    if weight.split:
        return _split(values, value, weight, edit)
    tensor = known_tensor(value)
    change_constant(value, centred_tensor(tensor, weight.fiber, tensor.name or value.name or ""))
    return value


def overflowing_weights(view: ModelInfo, plan: CentringPlan) -> frozenset[str]:
    """Return the references of the weights in a plan without finite centered values."""
    values = view.by_ref()
    return frozenset(w.value for w in plan.weights if not _is_fit(values[w.value], w.fiber))


def _is_fit(value: ir.Value, fiber: Fiber) -> bool:
    try:
        centred_tensor(known_tensor(value), fiber, value.name or "").numpy()
    except WeightOverflowError:
        return False
    return True


def _split(
    values: Mapping[str, ir.Value], value: ir.Value, weight: WeightCentring, edit: Editor
) -> ir.Value:
    name = f"{value.name}.centred"

    def copied(operand: ir.Value) -> ir.Value:
        tensor = centred_tensor(known_tensor(operand), weight.fiber, name)
        return edit.new_constant(value, tensor, name)

    return _redirect(values, value, weight.readers, copied, wanted=bool(weight.norms))


def _redirect(
    values: Mapping[str, ir.Value],
    value: ir.Value,
    readers: Iterable[ReaderRef],
    copied: Callable[[ir.Value], ir.Value],
    *,
    wanted: bool,
) -> ir.Value:
    """Redirect readers of a value, or of its copy along another fiber, to a centered copy.

    Returns the copy of the value itself, which is also created if ``wanted``.
    """
    copies = {value: copied(value)} if wanted else dict[ir.Value, ir.Value]()
    for reader in readers:
        node = known_producer(values[reader.node])
        operand = known_operand(node, reader.index)
        if operand not in copies:
            copies[operand] = copied(operand)
        set_input(node, reader.index, copies[operand])
    return copies.get(value, value)


def _insert_centring(
    edit: Editor, values: Mapping[str, ir.Value], insertion: Insertion, forms: NormForms
) -> ir.Value:
    value = values[insertion.value]

    def copied(operand: ir.Value) -> ir.Value:
        lowered = forms.centring(operand, insertion.fiber)
        edit.insert_behind(operand, lowered)
        return lowered.stands_for[0][1]

    return _redirect(values, value, insertion.readers, copied, wanted=bool(insertion.norms))
