"""Random models by seed: streams, gates, experts, merged norms, attention, single operators."""

from __future__ import annotations

import random

from tests.soundness.random_graphs.chains import chain_graph
from tests.soundness.random_graphs.draft import B, RandomGraph
from tests.soundness.random_graphs.gated import gated_graph
from tests.soundness.random_graphs.merged import merged_graph
from tests.soundness.random_graphs.mixtures import mixture_graph
from tests.soundness.random_graphs.projections import projection_graph
from tests.soundness.random_graphs.residual import residual_graph
from tests.soundness.random_graphs.sampled import sampled_graph
from tests.soundness.random_graphs.streams import stream_graph

__all__ = [
    "B",
    "RandomGraph",
    "chain_graph",
    "gated_graph",
    "merged_graph",
    "mixture_graph",
    "projection_graph",
    "random_graph",
    "residual_graph",
    "sampled_graph",
    "stream_graph",
]


def random_graph(seed: int) -> RandomGraph:
    """The model of a seed."""
    rng = random.Random(seed)  # noqa: S311 # no secret
    if seed % 16 == 15:
        return mixture_graph(rng)
    if seed % 8 == 5:
        return projection_graph(rng)
    if seed % 8 == 3:
        return chain_graph(rng)
    if seed % 8 == 1:
        return merged_graph(rng)
    if rng.random() < 0.5:
        return gated_graph(rng) if seed % 4 == 2 else stream_graph(rng)
    return sampled_graph(rng)
