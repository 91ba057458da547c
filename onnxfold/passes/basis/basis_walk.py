"""A stream in another basis: of nodes that several norms share, each norm is asked for."""

from collections import defaultdict
from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.graph import ModelInfo
from onnxfold.norms import NormSite
from onnxfold.streams.model_transfers import ModelTransfers
from onnxfold.streams.stream_walk import StreamWalk


class BasisWalk(StreamWalk):
    """Finds a stream among the norms of a model; ``owners``: the norms that a node is part of."""

    def __init__(self, info: ModelInfo, transfers: ModelTransfers, sites: Sequence[NormSite]):
        super().__init__(info, transfers, {node: site for site in sites for node in site.nodes})
        self.owners: dict[ir.Node, list[NormSite]] = defaultdict(list)
        for site in sites:
            for node in site.nodes:
                self.owners[node].append(site)

    def norms_of(self, value: ir.Value, node: ir.Node) -> list[NormSite]:
        """Return the norms of a value that a node is part of."""
        return [site for site in self.owners.get(node, ()) if site.input is value]
