"""Local errors: how much each part of a changed model errs by itself, and the effect of it.

Every common value is recomputed by the changed model's nodes from the original's own operands, so
the difference does not come from upstream. Its effect is measured in the original, which continues
with the wrong value instead of its own.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.check.budget import distance
from onnxfold.check.common_values import Between, Common, between, common_values, show_codes
from onnxfold.check.reference import Array
from onnxfold.check.runners import CannotRun, Feeds, OnnxRuntime, Outputs, suited
from onnxfold.graph.edit import add_last, redirect, set_outputs, splice_behind, sweep
from onnxfold.model_io.load import Source

_SCALAR = ir.Shape(())
_WHERE_SINCE = 9


def run_tapped(
    engine: OnnxRuntime,
    model: ir.Model,
    feeds: Feeds,
    wanted: Sequence[str],
    given: Mapping[str, Array],
) -> Outputs:
    """Return the computed values ``wanted``, where readers of other values see the ``given``.

    A value may be in both: the result that its node computes is returned. Only the necessary nodes
    run, without optimizations. Raises CannotRun.
    """
    copy, values = _copied(model)
    inputs = {f"{name}/given": array for name, array in given.items()}
    for name, array in given.items():
        kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value = ir.Value(name=f"{name}/given", type=kind, shape=ir.Shape(array.shape))
        copy.graph.inputs.append(value)
        redirect(values[name], value)
    _give(copy, [values[name] for name in wanted])
    return _run(engine, copy, {**feeds, **inputs})


def run_switched(
    engine: OnnxRuntime,
    model: ir.Model,
    feeds: Feeds,
    wanted: Sequence[str],
    given: Sequence[tuple[str, Array]],
) -> list[Outputs]:
    """Return the result of `run_tapped` for each of some given values alone, by one session.

    Here a wanted value is the one that others read. The values given have their own shapes. Raises
    CannotRun.
    """
    if any(not _is_switchable(model, array.dtype) for _, array in given):
        runs = [run_tapped(engine, model, feeds, wanted, {name: array}) for name, array in given]
        pairs = zip(runs, given, strict=True)
        return [run | {n: array for n in run if n == name} for run, (name, array) in pairs]
    copy, values = _copied(model)
    off: dict[str, Array] = {}
    for name, array in dict(given).items():
        kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        switch = ir.Value(name=f"{name}/on", type=ir.TensorType(ir.DataType.BOOL), shape=_SCALAR)
        value = ir.Value(name=f"{name}/given", type=kind)
        copy.graph.inputs.extend([switch, value])
        node = ir.node("Where", [switch, value, values[name]], name=f"{name}/switched")
        node.outputs[0].name = f"{name}/switched"
        splice_behind(values[name], [node])
        values[name] = node.outputs[0]
        off |= {f"{name}/on": np.array(False), f"{name}/given": np.zeros((), array.dtype)}
    _give(copy, [values[name] for name in wanted])
    called = {name: str(values[name].name) for name in wanted}
    samples = [
        {**feeds, **off, f"{name}/on": np.array(True), f"{name}/given": array}
        for name, array in given
    ]
    found = engine.run(Source(copy), samples, optimize=False) if wanted else []
    return [{name: each[called[name]] for name in wanted} for each in found]


def _is_switchable(model: ir.Model, dtype: np.dtype[Any]) -> bool:
    """Whether ONNX Runtime has a Where for values of a type."""
    known = dtype.kind == "f" or dtype in (np.int32, np.int64)
    return known and model.graph.opset_imports.get("", 1) >= _WHERE_SINCE


def element_counts(
    engine: OnnxRuntime, model: ir.Model, feeds: Feeds, names: Sequence[str]
) -> dict[str, int]:
    """Return how many elements some values have, without keeping them. Raises CannotRun."""
    copy, values = _copied(model)
    counts = []
    for name in names:
        node = ir.node("Size", [values[name]], name=f"{name}/size")
        node.outputs[0].name = f"{name}/size"
        add_last(copy.graph, node)
        counts.append(node.outputs[0])
    _give(copy, counts)
    found = _run(engine, copy, feeds)
    return {name: int(found[f"{name}/size"]) for name in names}


def _copied(model: ir.Model) -> tuple[ir.Model, dict[str, ir.Value]]:
    """Return a copy without outputs, which shares the weights, and its node results by name."""
    copy = model.clone()
    set_outputs(copy.graph, ())
    return copy, {str(v.name): v for node in copy.graph for v in node.outputs if v.name}


def _give(model: ir.Model, outputs: Sequence[ir.Value]) -> None:
    for value in outputs:  # shapes left there by a tool may be wrong, and a runtime infers them
        value.type = value.shape = None
    set_outputs(model.graph, outputs)
    sweep(model.graph)


def _run(engine: OnnxRuntime, model: ir.Model, feeds: Feeds) -> Outputs:
    if not model.graph.outputs:
        return {}
    return engine.run(Source(model), [feeds], optimize=False)[0]


# The memory of values that are compared together, at most 8 bytes per element.
_TOGETHER_BYTES = 1 << 29
# The most values to examine at once, and in all.
_AT_ONCE, _MOST = 16, 32
# The most that one value may contribute, as a multiple of the whole error; errors add up as
# squares.
_MADE_GOOD = 2.0


@dataclass(frozen=True, slots=True)
class Contribution:
    """A value that is wrong by itself, its place in the changed model, and the effect.

    local: its error when all inputs of its nodes are right. alone: the error of the original's
    outputs if only this value is wrong.
    """

    common: Common
    place: int
    local: float
    alone: float


class LocalErrors:
    """Two models on one sample; values are named as in the original."""

    def __init__(
        self,
        original: ir.Model,
        changed: ir.Model,
        feeds: Feeds,
        truth: Outputs,
        engine: OnnxRuntime,
    ) -> None:
        own = results(original)
        changed = show_codes(changed, own)
        self.original, self.changed = original, changed
        self.common = common_values(original, changed)
        self._engine, self._feeds, self._truth = engine, feeds, truth
        self._places = {common.name: place for place, common in enumerate(self.common)}
        self._by_changed = {common.changed: common for common in self.common}
        self._results = results(changed)
        self._stops = {self._results[common.changed] for common in self.common}
        self._outputs = [name for name in truth if name in own and name in self._results]

    @cached_property
    def whole(self) -> float:
        """The error of the changed model's outputs."""
        return self._error(self._run_changed(self._outputs, {}))

    def contributions(self, enough: float = math.inf) -> list[Contribution]:
        """Return how much the values that err most by themselves contribute to the outputs' errors.

        The search ends at a contribution of more than ``enough``. Values whose error alone is
        larger than the whole model's are left out: another change compensates for them, such as a
        weight that absorbed the gamma missing from the value.
        """
        errors = self._local_errors()
        order = sorted((p for p, e in errors.items() if e > 0), key=lambda p: (-errors[p], p))
        found: list[Contribution] = []
        for start in range(0, min(len(order), _MOST), _AT_ONCE):
            places = order[start : start + _AT_ONCE]
            values = self._computed([self.common[place] for place in places])
            alone = self._alone(values)
            found += (
                Contribution(common, place, errors[place], alone[common.name])
                for place in places
                for common in (self.common[place],)
                if alone[common.name] <= _MADE_GOOD * self.whole
            )
            if any(one.alone >= enough for one in found):
                break
        return found

    def error_without(self, common: Common) -> float:
        """The error of the changed model's outputs when it continues with the right value."""
        right = cast(self.true([common.name])[common.name], common.dtype)
        try:
            outputs = self._run_changed(self._outputs, {common.changed: right})
        except CannotRun:
            return math.inf
        return self._error(outputs | {n: right for n in outputs if n == common.changed})

    def between(self, common: Common) -> Between:
        """Return the nodes of the changed model that compute a value from other common values."""
        return between(self._results[common.changed], self._stops)

    def operands(self, common: Common) -> list[Common]:
        """Return the common values that the nodes of a value read."""
        return [self._by_changed[name] for name in self.between(common).reads]

    def read(self, common: Common) -> Outputs:
        """Return the inputs, and the original's weights, which nodes may read as copies."""
        weights = self.original.graph.initializers
        tensors = {name: value.const_value for name, value in weights.items()}
        called = {str(v.name) for node in self.between(common).nodes for v in node.outputs}
        found = {
            name: tensor.numpy()
            for name, tensor in tensors.items()
            if tensor is not None and any(each.startswith(name) for each in called)
        }
        return {**self._feeds, **found}

    def true(self, names: Sequence[str]) -> Outputs:
        """Values of the original."""
        return run_tapped(self._engine, self.original, self._feeds, names, {})

    def as_changed(self, common: Sequence[Common]) -> Outputs:
        """Return values that the changed model computes, by their names in the original."""
        found = self._run_changed([c.changed for c in common], {})
        return {c.name: found[c.changed] for c in common}

    def locally(
        self, common: Sequence[Common], true: Mapping[str, Array], more: Sequence[str] = ()
    ) -> Outputs:
        """Return values, and ``more`` as named, that changed nodes compute from true operands."""
        operands = {one.name: one for each in common for one in self.operands(each)}
        given = {c.changed: cast(true[c.name], c.dtype) for c in operands.values()}
        found = self._run_changed([*(c.changed for c in common), *more], given)
        return {c.name: found[c.changed] for c in common} | {name: found[name] for name in more}

    def _local_errors(self) -> dict[int, float]:
        errors: dict[int, float] = {}
        for group in self._groups():
            for name, (right, wrong) in self._computed(group).items():
                errors[self._places[name]] = distance(right, wrong)
        return errors

    def _computed(self, common: Sequence[Common]) -> dict[str, tuple[Array, Array]]:
        """Return the true values, and those that the changed model computes from true operands."""
        operands = [operand.name for each in common for operand in self.operands(each)]
        true = self.true(list(dict.fromkeys([*(c.name for c in common), *operands])))
        found = self.locally(common, true)
        return {c.name: (true[c.name], found[c.name]) for c in common}

    def _groups(self) -> Iterator[list[Common]]:
        names = [common.name for common in self.common]
        counts = element_counts(self._engine, self.original, self._feeds, names)
        group: list[Common] = []
        size = 0
        for common in self.common:
            size += 8 * counts[common.name]
            if group and size > _TOGETHER_BYTES:
                yield group
                group, size = [], 8 * counts[common.name]
            group.append(common)
        if group:
            yield group

    def _alone(self, values: Mapping[str, tuple[Array, Array]]) -> dict[str, float]:
        """Return the errors of the original's outputs when it continues with one wrong value."""
        given = [(name, cast(wrong, right.dtype)) for name, (right, wrong) in values.items()]
        shaped = [one for one in given if one[1].shape == values[one[0]][0].shape]
        names = [name for name, _ in shaped]
        alone = dict(zip(names, self._errors_given(shaped), strict=True))
        return dict.fromkeys(values, math.inf) | alone

    def _errors_given(self, given: Sequence[tuple[str, Array]]) -> list[float]:
        if not given or not self._outputs:
            return [0.0] * len(given)
        try:
            runs = run_switched(self._engine, self.original, self._feeds, self._outputs, given)
        except CannotRun:  # find out one by one which of them it is
            one_by_one = len(given) > 1
            return [e for g in given for e in self._errors_given([g])] if one_by_one else [math.inf]
        return [self._error(outputs) for outputs in runs]

    def _run_changed(self, wanted: Sequence[str], given: Mapping[str, Array]) -> Outputs:
        feeds = suited(self._feeds, self.changed)
        return run_tapped(self._engine, self.changed, feeds, wanted, given)

    def _error(self, outputs: Outputs) -> float:
        errors = (distance(self._truth[name], outputs[name]) for name in self._outputs)
        return max(errors, default=0.0)


def results(model: ir.Model) -> dict[str, ir.Value]:
    """Return results of the nodes of the main graph by name."""
    return {str(v.name): v for node in model.graph for v in node.outputs if v.name}


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert the array to another type, keeping finite numbers finite."""
    if dtype.kind != "f" or np.can_cast(array.dtype, dtype):
        return array.astype(dtype, copy=False)
    limits = np.finfo(dtype)
    held = np.clip(array, float(limits.min), float(limits.max))
    return np.where(np.isfinite(array), held, array).astype(dtype)
