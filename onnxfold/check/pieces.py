"""Split a model into pieces that ONNX Runtime runs in order, each with its own weights.

A piece ends before its weights exceed the allowed memory, at the cut that the fewest values cross,
which in a transformer is just upstream of a norm. Weights are inputs of a piece, arrays mapped from
their file, so that nothing copies or packs them. Without optimizations, the pieces give the same
bits as the whole model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import onnx
import onnx_ir as ir
from onnx import helper

from onnxfold.check.reference import Array
from onnxfold.errors import ModelError
from onnxfold.model_io.tensor_places import detach, payload, take_number, tensor_protos
from onnxfold.model_io.wire import EMBEDDED_BYTES
from onnxfold.runtime.sessions import weight_bytes

# Weights of this size or more are inputs of a piece; smaller ones are embedded in it.
_FED_BYTES = 4096
# Types that ONNX Runtime accepts from numpy.
_FED_KINDS = "fiub"
# A piece is filled at least to this share before it may end.
_FILLED = 0.5


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes `start` to `stop`: the values that they read from before, pass on, and read last."""

    start: int
    stop: int
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    last_read: frozenset[str]


class Pieces:
    """A model in pieces whose weights need at most `limit_bytes` each, or belong to a single node.

    Raises ModelError if weights that cannot be passed as inputs exceed the size of a protobuf.
    """

    def __init__(self, model: ir.Model, limit_bytes: int):
        self._proto, self._fed = _detached(model)
        graph = self._proto.graph
        self._nodes = list(graph.node)
        self._small = {tensor.name: tensor for tensor in graph.initializer}
        self._constants = {
            node.output[0]: node for node in self._nodes if node.op_type == "Constant"
        }
        self._infos: dict[str, onnx.ValueInfoProto] = {
            info.name: info for info in (*graph.input, *graph.output)
        }
        self._reads = [frozenset(reads_of(node)) for node in self._nodes]
        self._last: dict[str, int] = {}
        for number, reads in enumerate(self._reads):
            self._last.update(dict.fromkeys(reads, number))
        self.outputs = [info.name for info in graph.output]
        self._live = self._counted()
        self.pieces = tuple(self._pieces(limit_bytes))

    def weights(self, piece: Piece) -> dict[str, Array]:
        """Return the arrays of the weights that a piece reads, mapped if they are in files."""
        return {name: self._fed[name].numpy() for name in piece.reads if name in self._fed}

    def content(
        self, piece: Piece, weights: Mapping[str, Array], known: Mapping[str, Array]
    ) -> bytes:
        """Return the piece as a model; `known`: values of other pieces, for their types."""
        model = onnx.ModelProto()
        model.CopyFrom(self._shell())
        graph = model.graph
        for name in piece.reads:
            if name in weights:
                kind = self._fed[name].dtype
                graph.input.append(
                    helper.make_tensor_value_info(name, int(kind), list(weights[name].shape))
                )
            elif name in known:
                graph.input.append(self._info(name, known[name]))
            elif name in self._small:
                graph.initializer.append(self._small[name])
            elif name in self._constants:
                graph.node.append(self._constants[name])
        graph.node.extend(
            node for node in self._nodes[piece.start : piece.stop] if node.op_type != "Constant"
        )
        given = (name for name in piece.gives if name in self._constants)
        graph.node.extend(self._constants[name] for name in given if name not in piece.reads)
        graph.output.extend(self._output(name) for name in piece.gives)
        content: bytes = model.SerializeToString()
        return content

    def _shell(self) -> onnx.ModelProto:
        shell = onnx.ModelProto(ir_version=self._proto.ir_version)
        shell.opset_import.extend(self._proto.opset_import)
        shell.functions.extend(self._proto.functions)
        shell.graph.name = self._proto.graph.name
        return shell

    def _info(self, name: str, array: Array) -> onnx.ValueInfoProto:
        if name in self._infos:
            return self._infos[name]
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, kind, None)

    def _output(self, name: str) -> onnx.ValueInfoProto:
        return self._infos.get(name, onnx.ValueInfoProto(name=name))

    def _pieces(self, limit_bytes: int) -> Iterator[Piece]:
        start = 0
        outputs = set(self.outputs)
        while start < len(self._nodes):
            stop = self._stop(start, limit_bytes)
            inside = range(start, stop)
            results = {name for number in inside for name in self._nodes[number].output if name}
            read = dict.fromkeys(name for number in inside for name in sorted(self._reads[number]))
            gives = tuple(sorted(n for n in results if self._handed_on(n, stop, outputs)))
            if gives:  # otherwise only constants, which every reader copies
                yield Piece(
                    start,
                    stop,
                    tuple(n for n in read if n not in results or n in self._constants),
                    gives,
                    frozenset(n for n in read if self._last[n] < stop and n not in outputs),
                )
            start = stop

    def _handed_on(self, name: str, stop: int, outputs: set[str]) -> bool:
        if name in outputs:
            return True
        return name not in self._constants and self._last.get(name, -1) >= stop

    def _stop(self, start: int, limit_bytes: int) -> int:
        """Return the end of the piece that begins at a node: the cut with the fewest values."""
        sizes = [0]
        seen: set[str] = set()
        for number in range(start, len(self._nodes)):
            new = [n for n in self._reads[number] if n in self._fed and n not in seen]
            seen.update(new)
            sizes.append(sizes[-1] + sum(weight_bytes(self._fed[name]) for name in new))
            if sizes[-1] > limit_bytes:
                break
        else:
            return len(self._nodes)
        most = max(1, len(sizes) - 2)
        places = [p for p in range(1, most + 1) if sizes[p] >= _FILLED * sizes[most]]
        return start + min(places, key=lambda place: (self._live[start + place], -place))

    def _counted(self) -> list[int]:
        """Count for every cut the values that are computed before it and read after it."""
        change = [0] * (len(self._nodes) + 1)
        for number, node in enumerate(self._nodes):
            for name in node.output:
                last = self._last.get(name, -1)
                if last > number and name not in self._constants:
                    change[number + 1] += 1
                    change[last + 1] -= 1
        return list(accumulate(change))


def _detached(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """Return the model without its large weights, and these by name."""
    proto, taken = detach(model, lambda slot: slot.tensor.dtype is not ir.DataType.STRING)
    fed: dict[str, ir.TensorProtocol] = {}
    kept: list[onnx.TensorProto] = []
    embedded = 0
    main = len(proto.graph.initializer)
    for position, holder in enumerate(tensor_protos(proto)):
        number = take_number(holder)
        tensor = None if number is None else taken[number]
        if tensor is not None and position < main and _is_fed(tensor):
            fed[holder.name] = tensor
            continue
        if tensor is not None:
            embedded += tensor.nbytes
            if embedded > EMBEDDED_BYTES:
                raise ModelError("the model has too many weights that cannot be handed to a piece")
            holder.raw_data = bytes(payload(tensor))
        if position < main:
            kept.append(holder)
    rest = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(rest)
    return proto, fed


def _is_fed(tensor: ir.TensorProtocol) -> bool:
    dtype = tensor.dtype.numpy()
    return tensor.nbytes >= _FED_BYTES and dtype.kind in _FED_KINDS and dtype.isbuiltin == 1


def reads_of(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, including those that its bodies capture."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own.update(name for inner in graph.node for name in inner.output)
            wanted = [name for inner in graph.node for name in reads_of(inner)]
            wanted += [value.name for value in graph.output]
            yield from (name for name in wanted if name not in own)
