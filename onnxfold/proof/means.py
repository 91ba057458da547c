"""Means in a rewritten model: shown to be 0 by the laws, down to weights whose means are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.norms import NormKind, NormSite
from onnxfold.operators.families.transfer import ZeroMean
from onnxfold.passes.centring.relations import Point, Relations
from onnxfold.proof.weights import has_zero_mean, largest
from onnxfold.refusal import Refusal

__all__ = ["Means"]


class Means:
    """Answers about the rewritten model; ``original`` gives what a value stands for."""

    def __init__(
        self,
        before: ModelInfo,
        after: ModelInfo,
        relations: Relations,
        sites: Mapping[str, NormSite],
        original: Callable[[ir.Value], ir.Value | None],
    ):
        self._before, self._after = before, after
        self._relations = relations
        self._sites_after = sites
        self._original = original
        self._known: dict[Point, bool] = {}
        self._centred: set[Point] = set()

    def add(self, point: Point) -> None:
        """Remember that a weight has mean 0."""
        self._centred.add(point)

    def are_zero(self, point: Point) -> bool:
        """Whether the value's mean along the fiber is 0 in the rewritten model."""
        if point not in self._known:
            self._known[point] = False  # no cycles in a graph; guards against a broken one
            self._known[point] = self._decide_mean(point)
        return self._known[point]

    def _decide_mean(self, point: Point) -> bool:
        order: list[Point] = []
        pending, seen = [point], {point}
        while pending:
            current = pending.pop()
            order.append(current)
            tensor = self._after.tensor(current.value)
            if tensor is not None:
                if not self._weight_is_centred(current, tensor):
                    return False
                continue
            through = self._before_rms_norm(current)
            if through is not None:
                pending.append(through)
                continue
            pulled = self._relations.pull(current)
            if isinstance(pulled, Refusal):
                return False
            if isinstance(pulled, ZeroMean):
                continue
            node = current.value.producer()
            for index, fiber in pulled.inputs:
                operand = node.inputs[index] if node is not None else None
                if operand is None:
                    return False
                following = Point(operand, fiber)
                if self._known.get(following):
                    continue
                if following not in seen:
                    seen.add(following)
                    pending.append(following)
        self._known.update(dict.fromkeys(order, True))
        return True

    def _weight_is_centred(self, point: Point, tensor: ir.TensorProtocol) -> bool:
        if point in self._centred:
            return True
        if has_zero_mean(tensor, point.fiber):
            return True
        original = self._original(point.value)
        old = None if original is None else self._before.tensor(original)
        if old is None:
            return False
        return has_zero_mean(tensor, point.fiber, largest(old))

    def _before_rms_norm(self, point: Point) -> Point | None:
        """Return what an RMSNorm divides, where its result has mean 0 as soon as that has."""
        site = self._sites_after.get(self._after.ref(point.value))
        if site is None or site.subtracts_mean or not point.fiber.covers(site.fiber):
            return None
        if site.kind is not NormKind.RMS_NORM or not self._relations.keeps_zero_mean(site):
            return None
        return Point(site.input, site.fiber)
