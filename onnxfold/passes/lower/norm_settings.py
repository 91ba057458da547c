"""Which setting of a norm a file for kernels keeps, where its norms have several.

A file has one function of each name (ONNX Runtime 1.17 to 1.24 take the last overload for all), so
one setting of each.  The choice depends only on how often each setting occurs, whatever the norms
are spelled as, so that a second run chooses as the first.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

import onnx_ir as ir

from onnxfold.operators.functions import SIGNATURES, Statistics, axes_of

NormSetting: TypeAlias = tuple[Statistics, int, float]
"""What is divided by what, how many last axes are normalised, and epsilon."""


def setting_of_call(node: ir.Node) -> NormSetting:
    """Return the setting of a call of onnxfold's."""
    epsilon = node.attributes.get_float("epsilon", 0.0)
    return SIGNATURES[node.op_type].statistics, axes_of(node), epsilon


def common_settings(settings: Iterable[NormSetting]) -> frozenset[NormSetting]:
    """Return the setting of each kind of norm that occurs most; of several, the least."""
    counts: defaultdict[Statistics, Counter[NormSetting]] = defaultdict(Counter)
    for setting in settings:
        counts[setting[0]][setting] += 1
    return frozenset(map(_most_common, counts.values()))


def setting_of_each(
    named: Iterable[tuple[str, NormSetting]], common: Collection[NormSetting]
) -> Mapping[str, NormSetting]:
    """Return one setting for each name: a ``common`` one where it has it, else its most common."""
    counts: defaultdict[str, Counter[NormSetting]] = defaultdict(Counter)
    for name, setting in named:
        counts[name][setting] += 1
    return {
        name: next((setting for setting in common if setting in found), _most_common(found))
        for name, found in counts.items()
    }


def _most_common(counts: Counter[NormSetting]) -> NormSetting:
    return min(counts, key=lambda setting: (-counts[setting], setting))
