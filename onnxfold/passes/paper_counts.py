"""How many LayerNorms a paper would fold: its own rules, on the same graph, asked for apart.

Algorithm 1 marks forward: the output of a LayerNorm counts as centred, whatever its gamma and beta
are, an embedding as not centred or as followed by a centring, and nobody asks who else reads what
is centred.  Criterion D.2 asks the readers too.

Source: CBWC ("Enjoy your Layer Normalization ..."), Algorithm 1, Table 3 and appendix D.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfold.graph import ModelInfo
from onnxfold.norms import NORMS, NormKind, NormSite
from onnxfold.passes.centring.network import solve
from onnxfold.streams.dataflow import PointFacts, walk_back
from onnxfold.streams.model_transfers import (
    TRANSFERS,
    Assumptions,
    Embeddings,
    ModelTransfers,
    Point,
)

_MARKING = Assumptions(norm_output_centred=True, embeddings=Embeddings.OPAQUE, asks_readers=False)
_EMBED_CENTRED = Assumptions(
    norm_output_centred=True, embeddings=Embeddings.CENTRED, asks_readers=False
)
_D2 = Assumptions(norm_output_centred=True, embeddings=Embeddings.CENTRED)


@dataclass(frozen=True, slots=True)
class PaperCounts:
    """The LayerNorms by each rule: ``d2`` with a centring after every embedding, too."""

    algorithm1: int
    algorithm1_embed_centred: int
    d2: int


def paper_counts(info: ModelInfo) -> PaperCounts:
    """Count by each rule; whole weights are centred, and ones with other readers are split."""
    transfers = TRANSFERS.of(info)
    layer_norms = [site for site in NORMS.of(info) if site.kind is NormKind.LAYER_NORM]
    return PaperCounts(
        *(_counted(transfers, layer_norms, rule) for rule in (_MARKING, _EMBED_CENTRED, _D2))
    )


def _counted(transfers: ModelTransfers, sites: Sequence[NormSite], assumptions: Assumptions) -> int:
    asked = [Point(site.input, site.fiber) for site in sites]
    graph = walk_back(transfers, sites, assumptions)
    cut = solve(graph, ((point, 1) for point in asked), _free_splits)
    return sum(point in cut.at_hand for point in asked)


def _free_splits(_: Point, facts: PointFacts) -> int | None:
    return 0 if facts.constant else None
