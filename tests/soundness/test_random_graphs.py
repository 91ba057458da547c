"""Random graphs, folded: the same function in float64, a proof that passes, a plan that pays."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from onnxfold.operators.row import Operator
from onnxfold.passes.plan import Plan
from onnxfold.refusal import RefusalCode
from tests.lanes import some
from tests.operators.rows import LAWS, name_of
from tests.soundness.checking import Outcome, check, planned, settings_of
from tests.soundness.folding import Folded
from tests.soundness.random_graphs import (
    RandomGraph,
    carriers,
    chain_graph,
    chains,
    gated,
    merged,
    mixtures,
    projection_graph,
    projections,
    random_graph,
    sampled,
    sampled_graph,
)

_GROUPS = 20
_LARGEST_BATCH = 2500
# Of right plans: mostly of graphs whose norms read constants, one in three roles at once.
_MOST_UNPROVED = 0.03

# What a random graph cannot be refused for.
_NOT_TRIGGERED = {
    RefusalCode.HAS_MEAN: "only convert --to layer asks for it; tests/cli/test_convert.py",
    RefusalCode.UNALIGNED: "only convert --multiple-of asks for it; "
    "tests/passes/stream_forms/test_compression.py",
    RefusalCode.ALREADY_LAYER: "only convert --to layer says so; tests/cli/test_convert.py",
    RefusalCode.NON_FINITE_WEIGHT: "it is learnt when weights are computed, behind the analysis; "
    "tests/hostile/test_numerics.py does",
}

# What only numbers, types and widths bring about that a random graph does not draw.
_ELSEWHERE = {
    RefusalCode.COMES_APART: "tests/passes/affine/test_kept_scale.py: nothing is fused in double",
    RefusalCode.NOT_PROVED: "tests/pipeline/test_model_versions.py breaks a proof",
    RefusalCode.OUTLYING_GAMMA: "tests/passes/affine/test_outlying.py",
    RefusalCode.ROUNDS_MORE: "tests/passes/deferral/test_layer_norms.py, tests/passes/scales",
}

# What must be done to some random graph, and to the weights of which operators.
_CHANGES = frozenset(
    (
        "fold|fold in a body|copy|in place|whole|block|Constant node|initializer|gamma|beta|"
        "insertion|scale|deferred|MatMul|Gemm|Conv|ConvTranspose|Gather|Add|Einsum|Transpose"
    ).split("|")
)

# In which roles a line must be met on the way back from a norm.  A reader that passes a shift on
# is confirmed by the carrier that it names.
_LINEAR = frozenset({"writer", "carrier", "passes"})
_ATTENTION = frozenset({"carrier", "passes", "exact"})  # keys and queries are read exactly
_ROLES = {
    "Attention": _ATTENTION,
    "GroupQueryAttention": _ATTENTION,
    "MultiHeadAttention": _ATTENTION,
    "Softmax": frozenset({"sink", "exact"}),
    "LogSoftmax": frozenset({"sink", "exact"}),
    "Shape": frozenset({"sink"}),
    "Size": frozenset({"sink"}),
    "Center": frozenset({"sink", "exact", "zero mean"}),
    "ConstantOfShape": frozenset({"zero mean"}),
}
_WRITERS = frozenset(
    (
        "matmul gemm conv conv_transpose table left einsum position bias split_writer "
        "fused_matmul grouped_conv scaled shifted embedding_sum"
    ).split()
)
_NORMS = frozenset(
    "rms l2 mean_variance dyt instance group skip skip_rms embedding batch_axis skip_group".split()
)
_OTHERS = frozenset(
    (
        "shared weight|Constant node|weight behind Identity|weight behind Transpose|"
        "weight behind Cast|weight behind Unsqueeze|overridable weight|quantised weight|If|Loop|"
        "Scan|function|function of another opset|norm of another fiber|norm over two axes|"
        "norm of groups|norm as an op|norm spelled out|norm between Casts|mean as a sum|"
        "norm with E[x^2] - mean^2|epsilon outside of the root|statistics are read|"
        "statistics are outputs|gamma at run time|stream is an output|"
        "part of a Split is an output|reader dead|reader weight|parts by Split|parts by Slice|"
        "parts by Gather|parts by Split of an axis|parts that overlap|a bias of every part|"
        "the whole is read|norm scaled or moved by what it normalises|merged norms|"
        "norm of a Constant node"
    ).split("|")
)


@pytest.mark.parametrize("group", some(range(_GROUPS), each=_GROUPS))
def test_a_folded_random_graph_computes_the_same(
    group: int, request: pytest.FixtureRequest
) -> None:
    per_group = -(-request.config.getoption("--graphs") // _GROUPS)
    unproved = 0
    for seed in range(group * per_group, (group + 1) * per_group):
        outcome = check(random_graph(seed), settings_of(seed))
        unproved += _unproved(outcome, seed)
        assert outcome.folded is None or not _reasons(outcome.folded) & _NOT_TRIGGERED.keys(), seed
    assert unproved <= _MOST_UNPROVED * per_group


def _unproved(outcome: Outcome, seed: int) -> bool:
    """Whether a pass was left out, since its proof failed; no other failure is allowed."""
    unproved = outcome.failure is not None and outcome.failure.startswith("proof: ")
    assert unproved or outcome.failure is None, f"seed {seed}: {outcome.failure}"
    return unproved


def test_the_graphs_hold_everything_that_they_are_meant_to_hold() -> None:
    made: Counter[str] = Counter()
    types: Counter[int] = Counter()
    for seed in range(1000):
        graph = random_graph(seed)
        made.update(graph.made)
        types.update({tensor.data_type for tensor in graph.model.graph.initializer})
    wanted = {f"writer {kind}" for kind in _WRITERS} | {f"norm {kind}" for kind in _NORMS} | _OTHERS
    wanted |= {f"carrier {kind}" for kind in carriers.KINDS}
    wanted |= {f"part with {step}" for step in projections.STEPS}
    wanted |= {f"chain {kind}" for kind in chains.CROSSINGS}
    wanted |= {f"gate {kind}" for kind in gated.GATES}
    wanted |= {f"block {kind}" for kind in mixtures.BLOCKS}
    wanted |= {f"row {kind}" for kind in merged.ROWS}
    wanted |= {f"part {kind}" for kind in merged.PARTS}
    wanted |= {f"end {kind}" for kind in merged.ENDS}
    wanted |= {f"sampled {'.'.join(filter(None, key))}" for key in sampled.DRAWN}
    assert not {kind for kind in wanted if not made[kind]}
    assert all(types[kind] >= 50 for kind in (1, 10, 11, 16)), types


@pytest.mark.campaign
@pytest.mark.parametrize("law", LAWS, ids=name_of)
def test_every_line_is_met_in_each_of_its_roles_on_the_way_back_from_a_norm(law: Operator) -> None:
    domain, op_type = law.key
    name = f"{domain + '.' if domain else ''}{op_type}"
    missing = set(_ROLES.get(op_type, _LINEAR))
    for seed in range(150):
        rng = random.Random(seed)  # noqa: S311 # no secret
        graph = sampled_graph(rng, law.key)
        folded = planned(graph, settings_of(seed), count_roles=True).folded
        assert folded is not None, seed
        shown = {role for role in missing if folded.roles[f"{name} {role}"]}
        if shown:
            _unproved(check(graph, settings_of(seed)), seed)
        missing -= shown
        if not missing:
            return
    assert not missing


def _reasons(folded: Folded) -> set[RefusalCode]:
    analysis = folded.findings
    refusals = (*analysis.refusals.values(), *analysis.affine_refusals.values())
    return {refusal.code for refusal in refusals}


def _changes(graph: RandomGraph, plan: Plan) -> Iterator[str]:
    """Yield what is done to a random graph, and the operators whose weights it is done to."""
    nodes = graph.model.graph.node
    outputs = {node.output[0] for node in nodes}
    for norm in plan.folds:
        yield "fold in a body" if "@" in norm.output else "fold"
    for weight in plan.weights:
        yield "copy" if weight.split else "in place"
        yield "whole" if weight.fiber.whole else "block"
        yield "Constant node" if weight.value in outputs else "initializer"
        yield from (node.op_type for node in nodes if weight.value in node.input)
    for fusion in plan.fusions:
        yield from (name for name in ("gamma", "beta") if getattr(fusion, name))
    yield from ("insertion" for _ in plan.insertions)
    yield from ("scale" for _ in plan.scales)
    yield from ("deferred" for _ in plan.deferred)


@pytest.mark.campaign
def test_every_reason_to_leave_a_norm_and_every_kind_of_change_occurs() -> None:
    wanted: set[object] = set(RefusalCode) - set(_NOT_TRIGGERED) - set(_ELSEWHERE) | _CHANGES
    for seed in range(_LARGEST_BATCH):
        graph = random_graph(seed)
        folded = planned(graph, settings_of(seed)).folded
        assert folded is not None, seed
        wanted -= _reasons(folded)
        wanted.difference_update(_changes(graph, folded.plan))
        if not wanted:
            return
    assert not wanted


@pytest.mark.campaign
def test_what_is_behind_parts_of_joined_projections_moves() -> None:
    """Each kind of move is proved and compared where it occurs first, and in many groups above."""
    missing = {"scale", "shift", "beta"}
    for seed in range(100):
        graph = projection_graph(random.Random(seed))  # noqa: S311 # no secret
        settings = replace(settings_of(seed), fuse_affine=True)
        folded = planned(graph, settings).folded
        assert folded is not None, seed
        scales = [scale for scale in folded.plan.scales if scale.part is not None]
        shown = {"scale" if scale.scaled else "shift" for scale in scales}
        readers = (reader for fusion in folded.plan.fusions for reader in fusion.readers)
        shown |= {"beta"} if any(reader.parts for reader in readers) else set()
        if shown & missing and not _unproved(check(graph, settings), seed):
            missing -= shown
        if not missing:
            return
    assert not missing


def _deferrals(plan: Plan) -> Iterator[str]:
    for norm in plan.deferred:
        yield "in a body" if "@" in norm.output else "deferred"
        yield from ("cancelled" for _ in norm.cancelled)
        yield from ("centred readers" for _ in norm.centred)
        yield from ("before a bias" for held in norm.held if held.biased)
        yield from ("squared" for held in norm.held if held.scale.degree == 2)


def test_scales_wait_behind_chains_of_every_kind_and_come_back() -> None:
    kinds = "deferred|in a body|cancelled|centred readers|before a bias|squared|back"
    missing = set(kinds.split("|"))
    for seed in range(80):
        graph = chain_graph(random.Random(seed))  # noqa: S311 # no secret
        settings = replace(settings_of(seed), fuse_affine=True, defer=True)
        folded = planned(graph, settings).folded
        assert folded is not None, seed
        shown = set(_deferrals(folded.plan))
        if shown & missing or (shown and "back" in missing):
            assert check(graph, settings).failure is None, seed
            back = check(replace(graph, model=folded.model), replace(settings, defer=False))
            assert back.failure is None, f"seed {seed}, taken back: {back.failure}"
            assert back.folded is not None
            norms = back.folded.findings.deferred_before
            missing -= shown | ({"back"} if any(norm.reinstated for norm in norms) else set())
        if not missing:
            return
    assert not missing


def test_a_norm_that_is_a_constant_keeps_its_gamma_and_beta() -> None:
    assert check(random_graph(16216), settings_of(16216)).failure is None
