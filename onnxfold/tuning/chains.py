"""Chains of steps to try, the most promising first.

No chain is best everywhere: the exporter, the device and the precision decide (docs/tune.md has
rows). The fastest chains on measured models come first, so that a short budget covers them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from onnxfold.errors import UsageError
from onnxfold.options import Device
from onnxfold.tuning.options import TargetPrecision, TuneOptions
from onnxfold.tuning.steps import STEPS

Chain: TypeAlias = tuple[str, ...]  # names of steps; the empty chain is the original model

_SEPARATOR = re.compile(r"\s*(?:>|,|\+)\s*")
_KERNELS = "fold-kernels"

# Without a change of precision.  A step that changes nothing is left out of its chain.
_EXACT: Mapping[Device, str] = {
    Device.CPU: """
        unflatten > fusions > optimizer > fold-kernels
        fold-kernels
        fold-ort
        unflatten > attention > fold-kernels
        optimizer > fold-kernels
        optimizer
        unflatten > fusions > optimizer
        unflatten > attention
        unflatten > fusions > optimizer > fold-ort
        unflatten > attention > optimizer > fold-kernels
        optimizer > fold-ort
        unflatten > fusions
        unflatten > fusions > fold-kernels
        script > optimizer > fold-kernels
        slim > fold-kernels
        slim > optimizer > fold-ort
        slim
        fold-onnx
        script > optimizer
        fusions
        """,
    Device.CUDA: """
        unflatten > fusions > optimizer
        unflatten > fusions > optimizer > fold-kernels
        unflatten > fusions > optimizer > fold-ort
        optimizer > fold-kernels
        optimizer
        fold-kernels
        optimizer > fold-ort
        fold-ort
        unflatten > attention > optimizer
        unflatten > fusions
        script > optimizer
        fusions
        """,
}
# Around the step that reduces the precision, *.
_REDUCED: Mapping[Device, str] = {
    Device.CPU: """
        unflatten > untie > fold-kernels > *
        *
        unflatten > untie > attention > fold-kernels > *
        unflatten > untie > *
        unflatten > untie > attention > *
        unflatten > untie > fusions > optimizer > fold-kernels > *
        optimizer > fold-kernels > *
        unflatten > untie > fold-ort > *
        unflatten > untie > fusions > optimizer > *
        optimizer > *
        optimizer > fold-ort > *
        unflatten > untie > fusions > optimizer > fold-ort > *
        unflatten > untie > fusions > *
        unflatten > fusions > optimizer > untie > *
        slim > fold-kernels > *
        slim > *
        fold-kernels > *
        """,
    Device.CUDA: """
        unflatten > fusions > optimizer > *
        optimizer > *
        * > unflatten > fusions > optimizer
        unflatten > fusions > optimizer > fold-ort > *
        unflatten > fusions > optimizer > * > fold-kernels
        optimizer > * > fold-kernels
        unflatten > attention > optimizer > *
        fold-ort > *
        * > optimizer
        fold-kernels > *
        *
        """,
}
# The reducing steps of a precision; those after the first are tried with the first few chains.
_REDUCING: Mapping[TargetPrecision, Chain] = {
    TargetPrecision.FP16: ("fp16",),
    TargetPrecision.BF16: ("bf16",),
    TargetPrecision.INT8: ("int8", "int8-channel", "int8-static", "int8-blocks32"),
    TargetPrecision.INT4: ("int4-blocks32", "int4-blocks128"),
}
# What makes the streams of a model lose less by a precision; such a chain comes after two others.
_BASES: Mapping[TargetPrecision, Chain] = {
    TargetPrecision.FP16: ("scale-streams",),
    TargetPrecision.INT8: ("rotate", "split-gammas"),
    TargetPrecision.INT4: ("rotate",),
}
_ALTERNATIVES, _BEFORE_BASES = 4, 2


def chains(options: TuneOptions) -> tuple[Chain, ...]:
    """Return the chains to try, without repetition.

    These are the user's chains, or those for every precision in turn, so that an early end has seen
    all precisions. Raises UsageError for a chain with an unknown step.
    """
    if options.chains:
        return tuple(map(parse, options.chains))
    lists = [list(_of_precision(each, options)) for each in options.precision]
    longest = max(map(len, lists))
    turns = (each[n] for n in range(longest) for each in lists if n < len(each))
    return tuple(dict.fromkeys(chain for chain in turns if _is_possible(chain, options)))


def parse(text: str) -> Chain:
    """Read a chain, `fusions > optimizer > fold-ort`; raises UsageError for an unknown step."""
    names = tuple(filter(None, _SEPARATOR.split(text.strip())))
    for name in names:
        if name not in STEPS:
            raise UsageError(f"--chain has no step {name!r}; there are {', '.join(STEPS)}")
    return names


def spelled(chain: Sequence[str]) -> str:
    """Return a chain as users read and write it."""
    return " > ".join(chain) if chain else "the model as it is"


def precision_of(chain: Sequence[str]) -> TargetPrecision:
    """Return the precision to which a chain reduces a model, or FP32."""
    reduced = (STEPS[name].precision for name in chain)
    return next(
        (each for each in reduced if each is not TargetPrecision.FP32), TargetPrecision.FP32
    )


def needs_kernels(chain: Sequence[str]) -> bool:
    """Whether a chain writes functions that onnxfold's kernels replace."""
    return _KERNELS in chain


def _of_precision(precision: TargetPrecision, options: TuneOptions) -> Iterator[Chain]:
    if precision is TargetPrecision.FP32:
        yield from _listed(_EXACT[options.device])
        return
    first, *others = _REDUCING[precision]
    patterns = list(_listed(_REDUCED[options.device], parsed=False))
    for number, pattern in enumerate(patterns):
        if number == _BEFORE_BASES:
            yield from ((basis, first) for basis in _BASES.get(precision, ()))
        for step in (first, *(others if number < _ALTERNATIVES else ())):
            yield tuple(step if name == "*" else name for name in pattern)


def _listed(text: str, *, parsed: bool = True) -> Iterator[Chain]:
    for line in filter(None, map(str.strip, text.splitlines())):
        yield parse(line) if parsed else tuple(_SEPARATOR.split(line))


def _is_possible(chain: Chain, options: TuneOptions) -> bool:
    if not options.kernels and needs_kernels(chain):
        return False
    return options.data is not None or "int8-static" not in chain
