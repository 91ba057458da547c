"""Random graphs, folded: the same function in float64, a proof that passes, a plan that pays."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from onnx import TensorProto

from onnxfold.lower.target import Target
from tests.soundness.folding import Folded, evaluate, fold, relative_error
from tests.soundness.random_graphs import RandomGraph, random_graph

_GROUPS = 20
# float64 models: rounding of the arithmetic, enlarged by norms of almost constant vectors (their
# epsilon lets them enlarge 32 times each).  float32 models: the centred weights were rounded.
_DOUBLE_BOUND, _FLOAT_BOUND = 1e-9, 1e-4


def _fold(seed: int, graph: RandomGraph) -> Folded:
    rng = random.Random(seed)  # noqa: S311 # no secret
    return fold(
        graph.model,
        rng.choice(list(Target)),
        allow_split_bytes=rng.choice((0, 100, 1 << 20)),
        fuse=rng.random() < 0.4,
    )


@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_folded_random_graph_computes_the_same(
    group: int, request: pytest.FixtureRequest
) -> None:
    per_group = -(-request.config.getoption("--graphs") // _GROUPS)
    for seed in range(group * per_group, (group + 1) * per_group):
        graph = random_graph(seed)
        folded = _fold(seed, graph)
        expected = evaluate(graph.model, graph.feeds)
        error = relative_error(expected, evaluate(folded.model, graph.feeds))
        double = graph.model.graph.input[0].type.tensor_type.elem_type == TensorProto.DOUBLE
        assert error <= (_DOUBLE_BOUND if double else _FLOAT_BOUND), f"seed {seed}: {error:g}"
        assert folded.proof.passed, f"seed {seed}: {folded.proof.failures[0]}"
        # Leaving everything costs and gains nothing.
        assert folded.plan.gain_ps >= folded.plan.cost_ps, f"seed {seed}"


def test_the_graphs_hold_everything_that_they_are_meant_to_hold() -> None:
    made: Counter[str] = Counter()
    for seed in range(300):
        made.update(random_graph(seed).made)
    writers = (
        "matmul", "gemm", "conv", "conv_transpose", "table", "left", "einsum", "position",
        "bias", "split_writer",
    )  # fmt: skip
    others = (
        "shared weight", "Constant node", "weight behind Identity", "weight behind Transpose",
        "weight behind Cast", "weight behind Unsqueeze", "stream is an output", "If",
        "part of a Split is an output", "norm of another fiber", "norm over two axes",
        "norm as an op", "norm spelled out", "statistics are read", "exact reader of a weight",
    )  # fmt: skip
    assert all(made[f"writer {kind}"] >= 10 for kind in writers), made
    assert all(made[kind] >= 10 for kind in others), made
    assert sum(kind.startswith("carrier ") for kind in made) == 26


def test_folds_copies_and_insertions_of_every_kind_do_occur() -> None:
    done: Counter[str] = Counter()
    for seed in range(100):
        graph = random_graph(seed)
        folded = _fold(seed, graph)
        plan, nodes = folded.plan, {n.output[0]: n for n in graph.model.graph.node}
        done["folds"] += len(plan.folds)
        done["folds in a body"] += sum("@" in fold.output for fold in plan.folds)
        done["insertions"] += len(plan.insertions)
        done["in place"] += sum(not weight.split for weight in plan.weights)
        done["copies"] += sum(weight.split for weight in plan.weights)
        done["Constant nodes"] += sum(weight.value in nodes for weight in plan.weights)
        done["refusals"] += len(plan.refusals)
        for weight in plan.weights:
            for node in graph.model.graph.node:
                if weight.value in node.input:
                    done[node.op_type] += 1
    kinds = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Gather", "Add", "Einsum", "Transpose")
    wanted = ("folds", "folds in a body", "insertions", "in place", "copies", "Constant nodes")
    assert all(done[name] > 0 for name in (*kinds, *wanted, "refusals")), done
