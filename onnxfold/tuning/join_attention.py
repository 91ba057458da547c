"""Attention in pieces as one operator of ONNX Runtime, com.microsoft.MultiHeadAttention.

Before    softmax(q kT * scale + mask) v, as any exporter writes it, with cached keys or without
After     MultiHeadAttention(q, k, v, bias, cached keys and values)

ONNX Runtime's transformers optimizer and onnxscript's fusions look for whole blocks of models that
they know, so that some exports stay in pieces.  Nothing is assumed of masks: what was added to the
scores is added still.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxfold.graph import Dim, ModelInfo, Shape, operator
from onnxfold.graph.edit import Editor
from onnxfold.graph.operands import computed_by, known_operand, only_reader, operands
from onnxfold.graph.traversal import reached
from onnxfold.operators.new_nodes import Lowered, NewNodes
from onnxfold.shapes import infer, strip_types
from onnxfold.tuning.attention_sites import (
    HEADS_FIRST,
    AttentionSite,
    HeadRows,
    Mask,
    find_attention,
    order_of,
)
from onnxfold.tuning.rewritings import NotRewritten, proved

_DOMAIN = "com.microsoft"
_RANK = 4


def with_joined_attention(model: ir.Model) -> ir.Model:
    """Return a model with one operator for every attention for which this is proved.

    Returns the model itself if it has no Softmax. Raises NotRewritten where no attention can be
    joined.
    """
    found = list(find_attention(infer(model.clone())))
    reasons = [each for each in found if isinstance(each, str)]
    numbers = [n for n, each in enumerate(found) if isinstance(each, AttentionSite)]
    made, failure = _joined(model, numbers)
    if failure is not None:
        reasons.append(f"not proved: {failure}")
        numbers = [n for n in numbers if _joined(model, [n])[1] is None]
        made, failure = _joined(model, numbers)
    if reasons and (failure is not None or not numbers):
        raise NotRewritten(f"no attention was joined: {reasons[0]}")
    return made


def _joined(model: ir.Model, numbers: Collection[int]) -> tuple[ir.Model, str | None]:
    """Return a copy with some attentions joined, by their numbers, and what is not proved of it."""
    if not numbers:
        return model, None
    made = model.clone()
    view = infer(made)
    sites = enumerate(find_attention(view))
    chosen = [each for n, each in sites if n in numbers and isinstance(each, AttentionSite)]
    masks = {str(value.name) for site in chosen for value in site.masks}
    join_attention(view, chosen)
    strip_types(made, like=model)
    return made, proved(model, made, masks)


def join_attention(view: ModelInfo, sites: Iterable[AttentionSite]) -> None:
    """Put one operator in the place of every site, in the model of a view."""
    writer = _Writer(view, Editor(view))
    for site in sites:
        writer.write(site)
    graph = view.model.graph
    graph.opset_imports.setdefault(_DOMAIN, 1)
    graph.sort()


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes sites; what several of them add to their scores is computed once."""

    view: ModelInfo
    edit: Editor
    biases: dict[tuple[object, ...], ir.Value] = field(default_factory=dict)

    def write(self, site: AttentionSite) -> None:
        """Put the operator in the place of the product with the values."""
        new, parts = NewNodes(self.view.opset), (site.key, site.value)
        bias = self._bias(new, site)
        flat = site.caches or all(part.plain is not None and part.past is None for part in parts)
        query = self._flat(new, site.query)
        keys = [self._flat(new, part) if flat else _heads_first(new, part) for part in parts]
        past = [part.past for part in parts] if site.caches else []
        rest = [None, None, bias, *past] if bias is not None or past else []
        joined = ir.node(
            "MultiHeadAttention",
            [query, *keys, *rest],
            {"num_heads": site.heads, "scale": site.scale},
            domain=_DOMAIN,
            num_outputs=1 + len(past),
            name=site.product.name,
        )
        new.add(joined)
        result = joined.outputs[0]
        if site.guarded:
            zero = new.weight("attention.zero", np.zeros((), np.float32))
            result = new.op("Where", new.op("IsNaN", result), zero, result)
        stands_for = [self._apart(new, site, result)]
        stands_for += zip((part.value for part in parts), joined.outputs[1:], strict=False)
        self.edit.stand_in(Lowered.of(new, *stands_for), site.product, self._pieces(site))

    def _pieces(self, site: AttentionSite) -> list[ir.Node]:
        """Return all that the product is computed from, which may be read no more."""
        found = reached([site.product], lambda n: [p for v in operands(n) if (p := v.producer())])
        known = [node for node in found if node in self.view.order]
        back = only_reader(site.product.outputs[0])
        return [*sorted(known, key=self.view.order.__getitem__), *([back] if back else [])]

    def _apart(
        self, new: NewNodes, site: AttentionSite, result: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Return the old product, or its transpose, and the same of the new result."""
        size = self.view.dim(site.value.value, -1)
        sizes = (0, 0, site.heads, size if isinstance(size, int) else -1)
        apart = new.op("Reshape", result, new.integers("attention.sizes", sizes))
        back = only_reader(site.product.outputs[0])
        if back is not None and operator(back) == "Transpose" and order_of(back) == HEADS_FIRST:
            return back.outputs[0], apart
        return site.product.outputs[0], new.op("Transpose", apart, perm=HEADS_FIRST)

    def _flat(self, new: NewNodes, rows: HeadRows) -> ir.Value:
        """Return rows as [B, T, N * H], the new ones alone where some are cached."""
        plain = rows.plain
        if plain is None:
            plain = new.op("Transpose", rows.value, perm=HEADS_FIRST)
        apart = computed_by(plain, "Reshape")
        before = None if apart is None else known_operand(apart, 0)
        if before is not None and _are_joined(self.view.shape(before), self.view.shape(plain)):
            return before
        return new.op("Reshape", plain, new.integers("attention.rows", (0, 0, -1)))

    def _bias(self, new: NewNodes, site: AttentionSite) -> ir.Value | None:
        """Return what is added to the scores, for all queries and keys; None: nothing."""
        if not site.biases:
            return None
        key = (*site.biases, *self._sizes(site))
        if key in self.biases:
            return self.biases[key]
        terms = [_term(new, term) for term in site.biases]
        bias = terms[0]
        for term in terms[1:]:
            bias = new.op("Add", bias, term)
        if not any(self._is_whole(site, term) for term in site.biases):
            sizes = [_count(new, part) for part in (site.query, site.key)]
            shape = new.op("Concat", new.integers("attention.ones", (1, 1)), *sizes, axis=0)
            bias = new.op("Expand", bias, shape)
        if None not in key:
            self.biases[key] = bias
        return bias

    def _is_whole(self, site: AttentionSite, term: ir.Value | Mask) -> bool:
        """Whether what is added has numbers for every query and key, as the operator asks."""
        shape = self.view.shape(term.condition if isinstance(term, Mask) else term)
        sizes = self._sizes(site)
        whole = shape is not None and len(shape) == _RANK and shape[2:] == sizes
        return whole and None not in sizes

    def _sizes(self, site: AttentionSite) -> tuple[Dim, Dim]:
        """Return how many queries and keys there are."""
        scores = known_operand(site.softmax, 0)
        return self.view.dim(scores, -2), self.view.dim(scores, -1)


def _heads_first(new: NewNodes, rows: HeadRows) -> ir.Value:
    """Return all rows as [B, N, T, H]."""
    if rows.turned and rows.plain is not None:
        return new.op("Transpose", rows.plain, perm=HEADS_FIRST)
    return rows.value


def _count(new: NewNodes, rows: HeadRows) -> ir.Value:
    """Return how many rows there are, computed without joining them to cached ones."""
    if rows.plain is None or (rows.past is None and not rows.turned):
        return _size(new, rows.value, 2)
    count = _size(new, rows.plain, 1)
    return count if rows.past is None else new.op("Add", _size(new, rows.past, 2), count)


def _size(new: NewNodes, value: ir.Value, axis: int) -> ir.Value:
    return new.op("Gather", new.op("Shape", value), new.integers("attention.axis", (axis,)), axis=0)


def _term(new: NewNodes, term: ir.Value | Mask) -> ir.Value:
    """Return what is added to scores."""
    if not isinstance(term, Mask):
        return term
    numbers = [
        new.weight(f"attention.{name}", np.array(number, np.float32))
        for name, number in (("holds", term.holds), ("fails", term.fails))
    ]
    return new.op("Where", term.condition, *numbers)


def _are_joined(flat: Shape | None, apart: Shape | None) -> bool:
    """Whether a shape is another one with its last two axes as one."""
    if flat is None or apart is None or len(flat) != len(apart) - 1 or None in apart:
        return False
    heads, size = apart[-2:]
    whole = isinstance(heads, int) and isinstance(size, int) and flat[-1] == heads * size
    return whole and flat[:-1] == apart[:-2]
