"""Plans are printable and go through JSON unchanged."""

from __future__ import annotations

import json

import numpy as np
import pytest

import onnxfold
from onnxfold.graph import AxisBlock, Fiber
from onnxfold.passes.centring.plan import Fold, Insertion, WeightCentring
from onnxfold.passes.findings import PaperCounts, paper_counts
from onnxfold.passes.places import ReaderRef
from onnxfold.passes.plan import Plan
from onnxfold.passes.prepare.working_copy import prepare
from onnxfold.refusal import Refusal, RefusalCode
from onnxfold.target import Target
from tests.graphs import graph, weights
from tests.soundness.folding import fold
from tests.soundness.random_graphs import random_graph

_FIBER = Fiber((AxisBlock(1, 1, 4, None), AxisBlock(2, 2, 3, 1)))
_PLAN = Plan(
    (Fold("norm", "y", ("W", "b")), Fold("other", "z@1")),
    (
        WeightCentring("W", _FIBER, 96),
        WeightCentring("table", Fiber(()), 8, (ReaderRef("e", 0), ReaderRef("f", 2))),
        WeightCentring("direct", _FIBER, 16, (), ("y",)),
    ),
    (Insertion("x", _FIBER, (ReaderRef("h", 1),), ("y", "z@1")),),
    (("left", Refusal(RefusalCode.ACTIVATION, "Relu 'r' is not linear", ("r",))),),
    120,
    7,
)


def test_a_plan_goes_through_json_unchanged() -> None:
    assert Plan.from_json(json.loads(json.dumps(_PLAN.to_json()))) == _PLAN


@pytest.mark.parametrize(
    ("more", "code", "named"),
    [(", double[6,6] W", "overridable_initializer", "W"), ("", "graph_input", "x")],
)
def test_a_refusal_names_the_input_that_a_norm_follows_from(
    more: str, code: str, named: str
) -> None:
    body = "h = MatMul(x, W) n = LayerNormalization<axis=-1>(h, ones)"
    body += " y = Neg(n)" if more else " m = LayerNormalization<axis=-1>(x, ones) y = Add(n, m)"
    made = weights(W=(6, 6)) | {"ones": np.ones(6)}
    model = graph(body, f"double[B,6] x{more}", "double[B,6] y", made)
    reasons = [row["reason"] for row in onnxfold.inspect(model)["norms"]]
    assert any(why and (why["code"], why["nodes"]) == (code, [named]) for why in reasons), reasons


@pytest.mark.parametrize("added", ["", "i = Add(p, c) "])
def test_a_quantised_layer_is_named_behind_its_cast_and_scale(added: str) -> None:
    body = (
        f"xq, xs, xz = DynamicQuantizeLinear(x) p = MatMulInteger(xq, W, xz) {added}"
        f"f = Cast<to=1>({'i' if added else 'p'}) s = Mul(xs, ws) h = Mul(f, s) "
        "y = LayerNormalization<axis=-1>(h, ones)"
    )
    made = {"W": np.eye(6, dtype=np.int8), "c": np.ones(6, np.int32)}
    made |= {"ws": np.arange(1, 7, dtype=np.float32), "ones": np.ones(6, np.float32)}
    (norm,) = onnxfold.inspect(graph(body, "float[B,6] x", "float[B,6] y", made))["norms"]
    assert (norm["reason"]["code"], norm["reason"]["nodes"]) == ("quantised", ["MatMulInteger->p"])


def test_what_is_picked_of_an_activation_is_no_embedding() -> None:
    """The paper's rule would center the rows of a table, and there is none."""
    made = weights(table=(9, 6)) | {"ones": np.ones(6)}
    body = "h = Tanh(x) rows = Gather({}, ids) y = LayerNormalization<axis=-1>(rows, ones)"
    counts = []
    for table in ("table", "h"):
        model = graph(body.format(table), "double[9,6] x, int64[N] ids", "double[N,6] y", made)
        counts.append(paper_counts(prepare(model).info))
    assert counts == [PaperCounts(0, 1, 1), PaperCounts(0, 0, 0)]


@pytest.mark.parametrize("seed", range(15))
def test_plans_of_random_graphs_go_through_json_unchanged(seed: int) -> None:
    plan = fold(random_graph(seed).model, Target.KERNELS, allow_split_bytes=100).plan
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize("damage", ["folds", "weights", "gain_ps"])
def test_a_document_without_its_parts_is_refused(damage: str) -> None:
    document = _PLAN.to_json()
    del document[damage]
    with pytest.raises(KeyError):
        Plan.from_json(document)


def test_a_printed_plan_says_what_happens_to_everything() -> None:
    lines = str(_PLAN).splitlines()
    assert lines[:2] == ["fold      norm", "fold      other"]
    assert any(line.startswith("centre    W ") and line.endswith("in place") for line in lines)
    assert any(
        line.startswith("centre    table") and "copy for 2 readers" in line for line in lines
    )
    assert any(line == "insert    centering of x for 3 readers" for line in lines)
    assert any(line.startswith("leave     left: Relu 'r'") for line in lines)


def test_only_copies_count_as_stored_twice() -> None:
    assert _PLAN.split_bytes == 8 + 16
    assert not _PLAN.empty
    assert Plan().empty
