"""A model in numbers before and after: its composition, the costs of its norms, its session."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxfold.errors import ModelError
from onnxfold.graph import ModelInfo, operator
from onnxfold.graph.dims import Shape, extent
from onnxfold.graph.traversal import declared_shape
from onnxfold.norms import NormKind, NormSite
from onnxfold.norms.completed import reported_kind
from onnxfold.operators.functions import DOMAIN, LAST_AXIS_ONLY, SIGNATURES
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.recognition import find_norms
from onnxfold.report.inspection import type_and_shape

KIND_NAMES = {
    "layer_norm": "LayerNorm",
    "crms": "CRMSNorm",
    "rms_norm": "RMSNorm",
    "group_norm": "GroupNorm",
    "instance_norm": "InstanceNorm",
    "l2_norm": "L2 norm",
    "dyt": "DyT",
}
_SIDES = ("before", "after")
_UNKNOWN = {
    "multiplications": "unknown_products",
    "norm_multiplications": "unknown_norms",
    "norm_additions": "unknown_norms",
    "norm_bytes": "unknown_norms",
}
_LABELS = {
    "nodes": "nodes",
    "parameters": "parameters",
    "weight_bytes": "bytes of weights",
    "multiplications": "multiplications of MatMul, Gemm, Conv",
    "norm_multiplications": "multiplications of norms",
    "norm_additions": "additions of norms",
    "norm_bytes": "bytes that norms read and write",
}

_SUMS = {NormKind.RMS_NORM: 1, NormKind.L2_NORM: 1, NormKind.DYT: 0}
_MOST_NAMED = 8  # inputs or outputs per line; the JSON has all
_SUMS_WITH_MEAN = 3  # the sum of x, x - mean(x), and the sum of squares
_PRODUCTS = frozenset({"MatMul", "com.microsoft.FusedMatMul", "Gemm", "Conv"})


@dataclass(frozen=True, slots=True)
class Figures:
    """A model in numbers; numbers that depend on sizes assume 1 for each free dimension.

    ``opset``: of ONNX's own domain. ``inputs``, ``outputs``: type and shape by name. ``operators``,
    ``nodes``: of the main graph and all bodies, as the file has them. ``parameters``,
    ``weight_bytes``: elements and bytes of all initializers, each shared one counted once.
    ``norms``: their number by kind. ``multiplications``: of MatMul, Gemm and Conv.
    ``norm_multiplications``, ``norm_additions``: one for each element that is squared, scaled,
    summed, centered or shifted. ``norm_bytes``: the bytes that the norms read and write, each as
    one operator: input, gamma, beta, output. ``unknown_products``, ``unknown_norms``: nodes of
    unknown size, excluded from these four numbers.
    """

    opset: int
    ir_version: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    operators: dict[str, int]
    nodes: int
    parameters: int
    weight_bytes: int
    norms: dict[str, int]
    multiplications: int
    norm_multiplications: int
    norm_additions: int
    norm_bytes: int
    unknown_products: int
    unknown_norms: int


@dataclass(frozen=True, slots=True)
class FigureRow:
    """A line of the table: the quantity, before and after."""

    label: str
    before: int
    after: int

    @property
    def change(self) -> str:
        """The difference, also in percent if that is informative."""
        difference = self.after - self.before
        if not (self.before and self.after and difference):
            return f"{difference:+,}" if difference else ""
        return f"{difference:+,} ({difference / self.before:+.1%})"


def figures(model: ir.Model, info: ModelInfo | None = None) -> Figures:
    """Measure a model, which is not changed; raises ModelError as `prepare`.

    ``info``: of a prepared copy, if there is one already. CRMSNorms count as the parts of their
    bodies, whether called or inlined.
    """
    written = ModelInfo(model)
    operators = Counter(operator(node) for node in written.nodes())
    tensors = {id(t): t for graph in written.graphs for t in _tensors(graph)}.values()
    if info is None or any(map(_is_compressed, info.nodes())):
        info = prepare(model, compressed=True).info
    free = _free_dimensions(model)
    norms = find_norms(info)
    costs = [_norm_cost(info, norm, free) for norm in norms]
    products = [_multiplications(info, node, free) for node in _products(info)]
    known = [cost for cost in costs if cost is not None]
    return Figures(
        opset=written.opset,
        ir_version=model.ir_version,
        inputs={value.name or "": type_and_shape(value) for value in model.graph.inputs},
        outputs={value.name or "": type_and_shape(value) for value in model.graph.outputs},
        operators=dict(sorted(operators.items())),
        nodes=operators.total(),
        parameters=sum(prod(tensor.shape.numpy()) for tensor in tensors),
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        norms=dict(sorted(Counter(reported_kind(info, norm) for norm in norms).items())),
        multiplications=sum(product or 0 for product in products),
        norm_multiplications=sum(multiplications for multiplications, _, _ in known),
        norm_additions=sum(additions for _, additions, _ in known),
        norm_bytes=sum(nbytes for _, _, nbytes in known),
        unknown_products=products.count(None),
        unknown_norms=costs.count(None),
    )


def before_and_after(
    before: ir.Model, after: ir.Model, paths: tuple[Path, Path] | None = None
) -> dict[str, Any]:
    """Return the document of two models in numbers; with ``paths``, of their sessions too."""
    return document_of(before, (figures(before), figures(after)), paths)


def document_of(
    before: ir.Model, both: tuple[Figures, Figures], paths: tuple[Path, Path] | None = None
) -> dict[str, Any]:
    """Return the document of a model's numbers before and after."""
    document: dict[str, Any] = {
        "schema": 1,
        "free_dimensions": sorted(_free_dimensions(before)),
        **dict(zip(_SIDES, map(asdict, both), strict=True)),
    }
    if paths is not None:
        for side, path in zip(_SIDES, paths, strict=True):
            document[side] |= _session(path)
    return document


def _session(path: Path) -> dict[str, Any]:
    from onnxfold.runtime.sessions import session_operators

    try:
        return {"session_operators": session_operators(path), "session_refusal": None}
    except ModelError as error:
        return {"session_operators": None, "session_refusal": str(error)}


def figure_rows(document: Mapping[str, Any], *, every: bool) -> list[FigureRow]:
    """Return the table of before and after; with unchanged operators if ``every`` is true."""
    rows = session_rows(document, every=every)
    inside = [FigureRow(f"session: {row.label}", row.before, row.after) for row in rows[1:]]
    return [*file_rows(document, every=every), *rows[:1], *inside]


def file_rows(document: Mapping[str, Any], *, every: bool) -> list[FigureRow]:
    """Return the part of the table about the files."""
    before, after = (document[side] for side in _SIDES)
    # Sums with different omissions on the two sides cannot be compared.
    rows = [
        FigureRow(label, before[key], after[key])
        for key, label in _LABELS.items()
        if before.get(_UNKNOWN.get(key, "")) == after.get(_UNKNOWN.get(key, ""))
    ]
    rows[3:3] = _counted(before["norms"], after["norms"], KIND_NAMES)
    operators = _counted(before["operators"], after["operators"])
    return rows + [row for row in operators if every or row.before != row.after]


def session_rows(document: Mapping[str, Any], *, every: bool) -> list[FigureRow]:
    """Return what sessions execute: all nodes first, then by operator; nothing without both."""
    sessions = [document[side].get("session_operators") for side in _SIDES]
    if None in sessions:
        return []
    total = FigureRow("nodes of a session", *(sum(s.values()) for s in sessions))
    return [total, *(row for row in _counted(*sessions) if every or row.before != row.after)]


def figure_notes(document: Mapping[str, Any]) -> list[str]:
    """Return what the numbers of the table mean, and what they exclude."""
    notes = []
    if document["free_dimensions"]:
        sizes = ", ".join(document["free_dimensions"])
        notes.append(f"multiplications, additions and bytes of norms are for 1 each of: {sizes}")
    for key, what in (("unknown_products", "products"), ("unknown_norms", "norms")):
        before, after = (document[side][key] for side in _SIDES)
        if before == after > 0:
            notes.append(f"{what} of unknown size, which are left out: {before}")
        elif before != after:
            notes.append(
                f"{what} of unknown size: {before} before, {after} after, so that their costs "
                "cannot be compared"
            )
    return [*notes, *refusal_notes(document), *_interface_notes(document)]


def refusal_notes(document: Mapping[str, Any]) -> list[str]:
    """Return why sessions are missing, in one line if both models have the same reason."""
    refusals = {side: document[side].get("session_refusal") for side in _SIDES}
    if len(set(refusals.values())) == 1:
        return [reason for reason in set(refusals.values()) if reason]
    return [f"{side}: {reason}" for side, reason in refusals.items() if reason]


def _interface_notes(document: Mapping[str, Any]) -> list[str]:
    """Return the inputs and outputs of the models, in one line if both have the same."""
    before, after = (
        f"opset {side['opset']}, IR version {side['ir_version']}; "
        f"inputs: {_named(side['inputs'])}; outputs: {_named(side['outputs'])}"
        for side in (document[name] for name in _SIDES)
    )
    return [before] if before == after else [f"before: {before}", f"after: {after}"]


def _named(values: Mapping[str, str]) -> str:
    texts = [f"{name} {text}" for name, text in values.items()]
    more = len(texts) - _MOST_NAMED
    return ", ".join([*texts[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]) or "none"


def _counted(
    before: Mapping[str, int], after: Mapping[str, int], names: Mapping[str, str] | None = None
) -> list[FigureRow]:
    keys = sorted({*before, *after})
    label = (names or {}).get
    return [FigureRow(label(key, key), before.get(key, 0), after.get(key, 0)) for key in keys]


def _tensors(graph: ir.Graph) -> Iterable[ir.TensorProtocol]:
    values = graph.initializers.values()
    return (value.const_value for value in values if value.const_value is not None)


def _free_dimensions(model: ir.Model) -> frozenset[str]:
    """Return the symbols of the inputs; symbols made up by inference may be any size."""
    shapes = (declared_shape(value) or () for value in model.graph.inputs)
    return frozenset(dim for shape in shapes for dim in shape if isinstance(dim, str))


def _elements(shape: Shape | None, free: frozenset[str]) -> int | None:
    """Return the number of elements, with 1 for each free dimension."""
    product = None if shape is None else extent(shape)
    return product.factor if product is not None and free.issuperset(product.symbols) else None


def _is_compressed(node: ir.Node) -> bool:
    """Whether a node is a call of a CRMSNorm."""
    signature = SIGNATURES.get(node.op_type) if node.domain == DOMAIN else None
    return signature is not None and signature.statistics in LAST_AXIS_ONLY


def _products(info: ModelInfo) -> Iterable[ir.Node]:
    return (node for node in info.nodes() if operator(node) in _PRODUCTS)


def _multiplications(info: ModelInfo, node: ir.Node, free: frozenset[str]) -> int | None:
    """Return the number of elements of the result times the length of each one's sum."""
    results = _elements(info.shape(node.outputs[0]), free)
    terms = _elements(_summed(info, node), free)
    return None if results is None or terms is None else results * terms


def _summed(info: ModelInfo, node: ir.Node) -> Shape | None:
    """Return the dimensions over which a product sums."""
    if node.op_type == "Conv":
        weight = info.shape(node.inputs[1])
        return None if weight is None else weight[1:]
    first = info.shape(node.inputs[0])
    if not first:
        return None
    turned = node.attributes.get("transA")
    return (first[-2] if turned is not None and turned.as_int() else first[-1],)


def _norm_cost(
    info: ModelInfo, norm: NormSite, free: frozenset[str]
) -> tuple[int, int, int] | None:
    """Return multiplications, additions and bytes of one norm; None if a size is unknown."""
    elements = _elements(info.shape(norm.input), free)
    dtype = norm.input.dtype
    if elements is None or dtype is None:
        return None
    gamma, beta = (_size(info, part) for part in (norm.gamma, norm.beta))
    squares = norm.kind is not NormKind.DYT
    multiplications = elements * (squares + 1 + bool(gamma))
    additions = elements * (_SUMS.get(norm.kind, _SUMS_WITH_MEAN) + bool(beta))
    return multiplications, additions, (2 * elements + gamma + beta) * dtype.bitwidth // 8


def _size(info: ModelInfo, part: Any) -> int:
    """Return the elements of a gamma or beta: a value, an array, or None."""
    if isinstance(part, ir.Value):
        tensor = info.tensor(part)
        return tensor.size if tensor is not None else 1
    return 0 if part is None else int(part.size)


def more_operators(document: Mapping[str, Any]) -> int:
    """Return how many more operators a session executes after than before; 0 if unknown."""
    sides = [document.get(side, {}) for side in ("before", "after")]
    before, after = (side.get("session_operators") for side in sides)
    return 0 if None in (before, after) else max(0, sum(after.values()) - sum(before.values()))


def priced(report: Mapping[str, Any]) -> str | None:
    """Return the line on a session that executes more operators, and why, or None."""
    document = report.get("before_after", {})
    more = more_operators(document)
    uncounted = bool(document) and "session_operators" not in document["after"]
    if not more and not uncounted:
        return None
    prices = report["inspect"]["prices"]
    if not more and not prices["operators"] > 0:
        return None
    free = ""
    if document["free_dimensions"]:
        free = f", and {prices['operator_us']:g} µs each to start; each free size counts as 1"
    number = more or prices["operators"]
    nodes = "node" if number == 1 else "nodes"
    which = ", which take" if more else " that a session may execute (only a check counts them), at"
    which = which.replace("take", "takes") if number == 1 else which
    return (
        f"estimate: the norms save {prices['saved_us']:.3g} µs for {number} more {nodes}{which} "
        f"{prices['spent_us']:.3g} µs{free}{_measured(document.get('measured'))}"
    )


def _measured(found: Mapping[str, Any] | None) -> str:
    """Return how fast a longer session was, measured in turns, or why this is not known."""
    if found is None:
        return ""
    if "reason" in found:
        return f"; not measured: {found['reason']}"
    speed, low, high = (f"{found[name]:.3f}" for name in ("speed", "low", "high"))
    return f"; measured in {found['rounds']} turns: {speed} times as fast ({low} to {high})"
