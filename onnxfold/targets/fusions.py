"""LayerNorms on which a fusion of ONNX Runtime's transformers optimizer depends.

The two fusions save at least as much as folding one norm (docs/pipeline.md). Source of the
patterns: FusionEmbedLayerNoMask and FusionAttention in onnxruntime/transformers.

Norms that other tools break if they are spelled out, and leave alone as one operator.

Measured (tests/compatibility/test_tools_behind.py), each tool alone on a file of operators:

* onnxscript's optimizer and rewriter treat an addition of 1e-8 or less as an addition of 0: epsilon
  disappears, a row of zeros gives NaN, and no session recognizes the norm;
* onnxslim and onnxsim remove products by ones, without which no session fuses the norm;
* after a table that quantize_dynamic quantizes, sessions give Pow and Div a DequantizeLinear each.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from onnxfold.graph import ModelInfo, node_label, operator
from onnxfold.graph.operands import computed_by, known_operand, operand, operands, producer_of
from onnxfold.norms import NormSite
from onnxfold.norms.site import EMBEDDED, AffinePart
from onnxfold.operators import facets
from onnxfold.operators.families.uniform import uniform
from onnxfold.operators.table import row_of
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.target import Target

_FUSED = "ONNX Runtime's transformers optimizer fuses it into {}, which is at least as fast"
_END = 2  # input of Slice
_ATTENTION = ("Reshape", "Transpose", "MatMul", "Softmax")  # upstream of a projection, backwards
_PROJECTIONS = 3  # for queries, keys and values
_TAKEN_FOR_ZERO = 1e-8
_QUANTISED = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def refuse_fused(
    info: ModelInfo, sites: Iterable[NormSite], target: Target
) -> dict[ir.Value, Refusal]:
    """Name, by output, the fusion of the optimizer that depends on each norm."""
    if target.traits.calls:
        return {}
    found = {site.output: _fusion(info, site, target) for site in sites}
    return {
        output: Refusal(RefusalCode.NOT_WORTH, _FUSED.format(fusion), ())
        for output, fusion in found.items()
        if fusion is not None
    }


def _fusion(info: ModelInfo, site: NormSite, target: Target) -> str | None:
    comes = target.traits.standard  # which the optimizer may skip
    if embedded(site) or (comes and embeds(info, site)):
        return "EmbedLayerNormalization"
    return "Attention" if comes and attends(site) else None


def embedded(site: NormSite) -> bool:
    """Whether the optimizer has fused a norm with the tables from which it reads."""
    return bool(site.nodes[-1].meta.get(EMBEDDED))


def embeds(info: ModelInfo, site: NormSite) -> bool:
    """Whether only a norm reads the sum of rows of two or three tables, one of them by position.

    With three tables, the optimizer fuses them as TorchScript exports BERT, and not as dynamo does;
    with two, for any source of the positions before post-LN attention.
    """
    rows = list(_rows(info, site))
    ends = [end for node in rows if (end := _length_read(node)) is not None]
    if len(rows) == 3:
        return any(end.op_type == "Unsqueeze" for end in ends)
    return len(rows) == 2 and (bool(ends) or _begins_attention(info, site, rows))


def attends(site: NormSite) -> bool:
    """Whether a norm follows post-LN attention, or precedes it with beta on the wrong side."""
    return _is_behind_attention(site) or _hides_attention(site)


def spanned_norm(site: NormSite) -> ir.Value | None:
    """Return the norm before the pre-LN attention that ``site`` follows, or None.

    From the LayerNormalization after the sum of stream and attention, the optimizer searches
    upstream for one that three projections of the same stream read.
    """
    for branch, stream in _terms(site):
        if not _is_attention(branch, widened=True):
            continue
        for node in (use.node for use in stream.uses()):
            if operator(node) == "LayerNormalization" and (
                _projections(node.outputs[0]) == _PROJECTIONS
            ):
                return node.outputs[0]
    return None


def _is_behind_attention(site: NormSite) -> bool:
    """Whether a norm reads the sum of a value and its attention, as in post-LN."""
    return any(
        _projections(residual) == _PROJECTIONS and _is_attention(branch)
        for residual, branch in _terms(site)
    )


def _terms(site: NormSite) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Return the terms of the sum that a norm reads, in both orders, or ()."""
    total = computed_by(site.input, "Add")
    if total is None:
        return ()
    first, second = known_operand(total, 0), known_operand(total, 1)
    return (first, second), (second, first)


def _hides_attention(site: NormSite) -> bool:
    """Whether beta would be added in the first operand of a sum with attention, as in BART.

    The optimizer searches upstream from the first operand that is an Add, for attention's bias.
    """
    if site.beta is None or _projections(site.output) != _PROJECTIONS:
        return False
    return any(
        _is_attention(known_operand(use.node, 1))
        for use in site.output.uses()
        if operator(use.node) == "Add" and use.idx == 0
    )


def _begins_attention(info: ModelInfo, site: NormSite, rows: list[ir.Node]) -> bool:
    """Whether only three projections and another sum read a norm of one sum of ``rows``."""
    total = site.input.producer()
    if total is None or {operand and operand.producer() for operand in total.inputs} != set(rows):
        return False
    readers = [use.node for use in site.output.uses() if operator(use.node) != "Shape"]
    kinds = sorted(node.op_type for node in readers if not info.is_dead(node))
    return kinds == ["Add", *["MatMul"] * _PROJECTIONS]


def _rows(info: ModelInfo, site: NormSite) -> Iterator[ir.Node]:
    """Yield the Gathers from tables in the sum that a norm reads, if they have no other reader."""
    inside, terms = set(site.nodes), [site.input]
    while terms:
        value = terms.pop()
        node = value.producer()
        readers = {use.node for use in value.uses() if operator(use.node) != "Shape"} - inside
        if node is None or node in inside or not all(map(info.is_dead, readers)):
            continue
        if operator(node) == "Add":
            inside.add(node)
            terms += operands(node)
        elif operator(node) == "Gather" and info.tensor(node.inputs[0]) is not None:
            yield node


def _length_read(gather: ir.Node) -> ir.Node | None:
    """Return the node that computes the length n of a table read at 0, 1, .. n - 1."""
    node = producer_of(gather.inputs[1])
    if node is None or operator(node) != "Slice":
        return None
    maker = producer_of(operand(node, _END))  # an attribute before opset 10
    # For ids of a fixed length it is known too, and the optimizer fuses this spelling.
    return None if maker is None or operator(maker) == "Constant" else maker


def _projections(value: ir.Value) -> int:
    return sum(operator(use.node) == "MatMul" for use in value.uses())


def _is_attention(branch: ir.Value, *, widened: bool = False) -> bool:
    """Whether a value is the projected output of attention heads, with a bias.

    ``widened``: Casts may follow Softmax, which the optimizer's sessions remove.
    """
    bias = branch.producer()
    if bias is None or operator(bias) != "Add":
        return False
    makers = map(producer_of, bias.inputs)
    node = next((each for each in makers if each is not None and operator(each) == "MatMul"), None)
    for op_type in _ATTENTION:
        node = node and producer_of(node.inputs[0])
        while widened and node is not None and operator(node) == "Cast":
            node = producer_of(node.inputs[0])
        if node is None or operator(node) != op_type:
            return False
    return True


def is_taken_for_zero(epsilon: float) -> bool:
    """Whether onnxscript's optimizer drops the addition of an epsilon."""
    return float(np.float32(epsilon)) <= _TAKEN_FOR_ZERO


def refuse_stripped(
    info: ModelInfo, sites: Iterable[NormSite], *, scaled: bool
) -> dict[ir.Value, Refusal]:
    """Name, by output, the tool that would break norms once they are spelled out.

    ``scaled``: a norm without gamma gets a scale that stays, or none.
    """
    found = ((site.output, _refusal(info, site, scaled=scaled)) for site in sites)
    return {output: refusal for output, refusal in found if refusal is not None}


def _refusal(info: ModelInfo, site: NormSite, *, scaled: bool) -> Refusal | None:
    table = _table(info, site.input)
    if is_taken_for_zero(site.epsilon):
        why = f"onnxscript's optimizer treats an epsilon of {site.epsilon:.3g} as 0"
    elif table is not None:
        why = f"its input is read from table '{table.name}', which quantize_dynamic quantizes"
    elif not scaled and _is_one(info, site.gamma):
        why = "onnxslim and onnxsim remove its product by ones, and no weight can absorb a scale"
    else:
        return None
    sentence = f"norm '{site.name}' stays one operator for other tools: {why}"
    return Refusal(RefusalCode.COMES_APART, sentence, (node_label(site.nodes[-1]),))


def _is_one(info: ModelInfo, gamma: AffinePart) -> bool:
    if isinstance(gamma, np.ndarray):
        return bool(np.all(gamma == 1))
    return gamma is None or uniform(info, gamma) == 1.0


def _table(info: ModelInfo, value: ir.Value) -> ir.Value | None:
    """Return the constant whose row a value is, moved but not computed with, or None."""
    node = producer_of(value)
    while node is not None and node.inputs and facets.moves_numbers(row_of(node)):
        source = node.inputs[0]
        tensor = info.tensor(source) if node.op_type == "Gather" else None
        if tensor is not None and tensor.dtype in _QUANTISED:
            return source
        node = producer_of(source)
    return None
