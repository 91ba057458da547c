"""Every facet of every row against numbers, at both ends of each version of the operator."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

import onnx
import pytest

from onnxfold.operators.row import Elements, Operator
from onnxfold.operators.table import ROWS
from tests.operators.facet_property import check_facets
from tests.operators.rows import name_of
from tests.operators.sample import Draw, Sample
from tests.operators.samplers import SAMPLERS

_SAMPLES = 60
_FIRST, _LAST = 9, 23  # the versions of ONNX that samples are of


def _claims(row: Operator) -> bool:
    facts = (row.family, row.shape, row.adds_first, row.decides)
    return row.elements < Elements.OPAQUE or any(facts)


_SCHEMAS: dict[tuple[str, str], list[onnx.defs.OpSchema]] = defaultdict(list)
for _schema in onnx.defs.get_all_schemas_with_history():
    _SCHEMAS[_schema.domain, _schema.name].append(_schema)


CLAIMING = [row for row in ROWS.values() if _claims(row) and row.key in SAMPLERS]


def _versions(key: tuple[str, str]) -> dict[range, onnx.defs.OpSchema]:
    """The opsets of each version of an operator, within those that samples are of."""
    schemas = sorted(_SCHEMAS[key] if not key[0] else [], key=lambda schema: schema.since_version)
    ends = [*(schema.since_version for schema in schemas[1:]), _LAST + 1]
    spans = {
        range(max(schema.since_version, _FIRST), min(end, _LAST + 1)): schema
        for schema, end in zip(schemas, ends, strict=False)
    }
    return {span: schema for span, schema in spans.items() if span}


def _at_an_end(sample: Sample, turn: int) -> Sample:
    """The sample at an end of its version, or of a later one that can read it."""
    fitting = [
        opset
        for span, schema in _versions((sample.domain, sample.op_type)).items()
        if span[-1] >= sample.opset
        and set(sample.attributes) <= set(schema.attributes)
        and schema.min_input <= len(sample.operands) <= schema.max_input
        for opset in (span[0], span[-1])
    ]
    return replace(sample, opset=fitting[turn % len(fitting)]) if fitting else sample


@pytest.mark.parametrize("row", CLAIMING, ids=name_of)
def test_what_the_facets_say_is_what_the_numbers_do(row: Operator) -> None:
    tally: Counter[str] = Counter()
    met: set[int] = set()
    for seed in range(_SAMPLES):
        draw = Draw(random.Random(seed))  # noqa: S311 # no secret
        sample = _at_an_end(SAMPLERS[row.key](draw), seed)
        met.add(sample.opset)
        tally.update(check_facets(sample, draw))
    missed = {n for span in _versions(row.key) for n in (span[0], span[-1])} - met
    assert not missed
    wanted = {
        Elements.HOMOGENEOUS: "homogeneous",
        Elements.LINEAR: "linear",
        Elements.AVERAGES: "averages",
        Elements.COPIES: "copies",
        Elements.PERMUTES: "permutes",
    }.get(row.elements)
    assert wanted is None or tally[wanted]
