"""The weights of all linear layers that read a value: what takes a factor of it, together."""

import onnx_ir as ir

from onnxfold.graph import ModelInfo, Reader
from onnxfold.graph.channels import Channels
from onnxfold.operators.families.reactions import Absorbs, Passes, ReadsShape, react
from onnxfold.operators.families.transfer import refuse
from onnxfold.operators.families.weight_roots import EditPlace, root_of
from onnxfold.refusal import Refusal, RefusalCode


def weights_behind(
    info: ModelInfo, value: ir.Value, channels: Channels
) -> list[EditPlace] | Refusal:
    """Return the weights that multiply the channels of a value; a Refusal where others read it."""
    if info.is_output(value):
        sentence = f"'{value.name}' is an output of its graph"
        return Refusal(RefusalCode.GRAPH_OUTPUT, sentence, (value.name or "",))
    found: list[EditPlace] = []
    for reader in info.readers(value):
        made = _behind(info, reader, channels)
        if isinstance(made, Refusal):
            return made
        found += made
    return found


def _behind(info: ModelInfo, reader: Reader, channels: Channels) -> list[EditPlace] | Refusal:
    node = reader.node
    reaction = react(info, node, reader.index, channels)
    if isinstance(reaction, ReadsShape):
        return []
    if isinstance(reaction, Absorbs):
        places = [
            root_of(info, Reader(node, layer.weight), layer.channels, layer.outer)
            for layer in reaction.layers
        ]
        refused = next((place for place in places if isinstance(place, Refusal)), None)
        return refused or [place for place in places if not isinstance(place, Refusal)]
    if not isinstance(reaction, Passes):
        return reaction
    if reaction.jointly != (reader.index,):
        sentence = "adds the norm's result to something else, as a post-norm's residual"
        return refuse(RefusalCode.EXACT_READER, node, sentence)
    found: list[EditPlace] = []
    for output, moved in reaction.outputs:
        behind = weights_behind(info, node.outputs[output], moved)
        if isinstance(behind, Refusal):
            return behind
        found += behind
    return found
