"""Every facet of every row against numbers, at both ends of each version of the operator."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfold.check.reference import Precision, run
from onnxfold.operators.row import Elements, Operator
from onnxfold.operators.table import ROWS
from tests.lanes import quick
from tests.operators.facet_property import check_facets
from tests.operators.rows import name_of
from tests.operators.sample import Draw, Sample
from tests.operators.sampled_others import OTHERS, WITHOUT_ORACLE
from tests.operators.samplers import SAMPLERS

_SAMPLES = 60
_FIRST, _LAST = 9, 23  # the versions of ONNX that samples are of


def _claims(row: Operator) -> bool:
    facts = (row.family, row.shape, row.adds_first, row.decides, row.foldable)
    return row.elements < Elements.OPAQUE or any(facts)


_SCHEMAS: dict[tuple[str, str], list[onnx.defs.OpSchema]] = defaultdict(list)
for _schema in onnx.defs.get_all_schemas_with_history():
    _SCHEMAS[_schema.domain, _schema.name].append(_schema)


ALL = {**SAMPLERS, **OTHERS}
CLAIMING = [row for row in ROWS.values() if _claims(row) and row.key in ALL]


def _versions(key: tuple[str, str]) -> dict[range, onnx.defs.OpSchema]:
    """The opsets of each version of an operator, within those that samples are of."""
    schemas = sorted(_SCHEMAS[key] if not key[0] else [], key=lambda schema: schema.since_version)
    ends = [*(schema.since_version for schema in schemas[1:]), _LAST + 1]
    spans = {
        range(max(schema.since_version, _FIRST), min(end, _LAST + 1)): schema
        for schema, end in zip(schemas, ends, strict=False)
    }
    return {span: schema for span, schema in spans.items() if span}


def _at_an_end(sample: Sample, met: Counter[int]) -> Sample:
    """The sample at an end of its version, or of a later one that can read it: the least met."""
    fitting = [
        opset
        for span, schema in _versions((sample.domain, sample.op_type)).items()
        if span[-1] >= sample.opset
        and set(sample.attributes) <= set(schema.attributes)
        and schema.min_input <= len(sample.operands) <= schema.max_input
        for opset in (span[0], span[-1])
    ]
    return replace(sample, opset=min(fitting, key=met.__getitem__)) if fitting else sample


def test_every_row_that_claims_anything_has_a_sampler() -> None:
    """Our own norms are functions of standard operators; tests/custom_ops compares them."""
    without = {row.key for row in ROWS.values() if _claims(row)} - set(ALL)
    assert {key for key in without if key[0] != "onnxfold"} == set(WITHOUT_ORACLE)


def test_every_operator_of_onnx_has_a_row() -> None:
    names = {key for key in _SCHEMAS if key[0] == ""}
    assert not names - set(ROWS)


def test_what_draws_random_numbers_has_a_seed() -> None:
    """Dropout, which has one as well, is the identity at inference."""
    seeded = {key[1] for key, schemas in _SCHEMAS.items() if "seed" in schemas[-1].attributes}
    drawing = {row.op_type for row in ROWS.values() if row.random}
    assert drawing == seeded - {"Dropout"}


@pytest.mark.parametrize(
    "row", quick(CLAIMING, slow=lambda row: row.op_type == "DeformConv"), ids=name_of
)
def test_what_the_facets_say_is_what_the_numbers_do(row: Operator) -> None:
    tally: Counter[str] = Counter()
    met: Counter[int] = Counter()
    for seed in range(_SAMPLES):
        draw = Draw(random.Random(seed))  # noqa: S311 # no secret
        sample = _at_an_end(ALL[row.key](draw), met)
        met[sample.opset] += 1
        tally.update(check_facets(sample, draw))
    missed = {n for span in _versions(row.key) for n in (span[0], span[-1])} - set(met)
    assert not missed
    wanted = {
        Elements.HOMOGENEOUS: "homogeneous",
        Elements.LINEAR: "linear",
        Elements.AVERAGES: "averages",
        Elements.COPIES: "copies",
        Elements.PERMUTES: "permutes",
    }.get(row.elements)
    assert wanted is None or tally[wanted]


def _constant(sample: Sample) -> Sample:
    operands = (
        None if x is None else replace(x, dims=tuple(x.array.shape), constant=True)
        for x in sample.operands
    )
    return replace(sample, operands=tuple(operands), function=None, output_dims=None)


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.foldable], ids=name_of)
def test_what_is_folded_is_what_the_float64_kernels_compute(row: Operator) -> None:
    met: Counter[int] = Counter()
    folded = 0
    for seed in range(20):
        draw = Draw(random.Random(seed))  # noqa: S311 # no secret
        sample = _constant(_at_an_end(ALL[row.key](draw), met))
        met[sample.opset] += 1
        view = sample.view()
        array = view.array(view.model.graph.outputs[0])
        if array is None:
            continue
        told = np.asarray(run(view.model, {}, precision=Precision.NATIVE)["y0"])
        folded += 1
        assert array.shape == told.shape
        # Elementary functions of two libraries differ by a rounding of the type or two.
        eps = np.finfo(told.dtype).eps if told.dtype.kind == "f" else 0
        assert np.allclose(array, told, rtol=4 * eps, atol=4 * eps, equal_nan=True)
    assert folded


def _in(dtype: type[np.floating[Any]], sample: Sample) -> Sample:
    operands = (
        replace(x, array=x.array.astype(dtype)) if x and x.array.dtype.kind == "f" else x
        for x in sample.operands
    )
    return replace(sample, operands=tuple(operands))


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.rounded], ids=name_of)
def test_what_is_rounded_has_the_bits_of_one_rounding(row: Operator) -> None:
    """Computed in float64 and rounded: 53 bits are more than twice 24 and two (Figueroa, 1995)."""
    met: Counter[int] = Counter()
    for seed in range(_SAMPLES):
        draw = Draw(random.Random(seed))  # noqa: S311 # no secret
        sample = _constant(_in(np.float32, _at_an_end(ALL[row.key](draw), met)))
        met[sample.opset] += 1
        views = (sample.view(), _in(np.float64, sample).view())
        found, exact = (view.array(view.model.graph.outputs[0]) for view in views)
        assert found is not None
        assert exact is not None
        assert np.array_equal(found, exact.astype(found.dtype), equal_nan=True)
