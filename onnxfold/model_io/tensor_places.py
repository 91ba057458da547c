"""The tensors of a model: their places, and how to extract them without a protobuf.

A tensor may be an initializer of any graph (main, body of If or Loop, function body) or an
attribute of a node. `detach` serializes a model with chosen tensors replaced by numbered
references, so that their bytes never enter a protobuf, and leaves the model as it was.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxfold.errors import InvariantError, ModelError, OnnxfoldError, first_cause
from onnxfold.model_io import wire


@dataclass(frozen=True, slots=True)
class Slot:
    """A place of a tensor in a model: an initializer, or an attribute of an owner."""

    tensor: ir.TensorProtocol
    owner: ir.Value | ir.Node | ir.Function
    attribute: str = ""
    index: int | None = None

    @property
    def is_initializer(self) -> bool:
        return isinstance(self.owner, ir.Value)

    def put(self, tensor: ir.TensorProtocol) -> Callable[[], None]:
        """Put another tensor here; return a function that undoes it."""
        owner = self.owner
        if isinstance(owner, ir.Value):
            before = owner.const_value
            owner.const_value = tensor
            return lambda: setattr(owner, "const_value", before)
        old = owner.attributes[self.attribute]
        value: object = tensor
        if self.index is not None:
            tensors = list(old.as_tensors())
            tensors[self.index] = tensor
            value = tensors
        new = ir.Attr(old.name, old.type, value, doc_string=old.doc_string)
        owner.attributes[self.attribute] = new
        return lambda: owner.attributes.__setitem__(self.attribute, old)


def slots(model: ir.Model) -> Iterator[Slot]:
    """Yield every tensor of a model, the initializers of the main graph first, in their order."""
    yield from _graph_slots(model.graph)
    for function in model.functions.values():
        yield from _attribute_slots(function)
        yield from _graph_slots(function)


def _graph_slots(root: ir.Graph | ir.Function) -> Iterator[Slot]:
    graphs = [root.graph if isinstance(root, ir.Function) else root, *root.subgraphs()]
    for graph in graphs:
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield Slot(value.const_value, value)
        for node in graph:
            yield from _attribute_slots(node)


def _attribute_slots(owner: ir.Node | ir.Function) -> Iterator[Slot]:
    for attribute in list(owner.attributes.values()):
        if attribute.is_ref() or attribute.value is None:
            continue
        if attribute.type is ir.AttributeType.TENSOR:
            yield Slot(attribute.as_tensor(), owner, attribute.name)
        elif attribute.type is ir.AttributeType.TENSORS:
            for index, tensor in enumerate(attribute.as_tensors()):
                yield Slot(tensor, owner, attribute.name, index)


def detach(
    model: ir.Model, wanted: Callable[[Slot], bool]
) -> tuple[onnx.ModelProto, list[ir.TensorProtocol]]:
    """Serialize a model without some of its tensors; the model is not changed.

    Returns the model and the tensors taken out: the i-th is replaced by a reference with offset i,
    to be read by `take_number`.

    Raises ModelError if a part of the model cannot be written as ONNX.
    """
    taken: list[ir.TensorProtocol] = []
    with contextlib.ExitStack() as undo:
        for slot in list(slots(model)):
            tensor = slot.tensor
            if wanted(slot):
                undo.callback(slot.put(_placeholder(tensor, len(taken))))
                taken.append(tensor)
            elif slot.is_initializer:
                # Serializing an initializer renames its tensor.
                undo.callback(setattr, tensor, "name", tensor.name)
        try:
            proto = ir.serde.serialize_model(model)
        except ir.serde.SerdeError as error:
            cause = _ours(error)
            if cause is not None:
                raise cause from error
            raise ModelError(
                f"the model cannot be written as ONNX: {first_cause(error)}"
            ) from error
    for tensor_proto in tensor_protos(proto):
        _drop_repeated_metadata(tensor_proto)
    return proto, taken


def tensor_protos(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a serialized model, the initializers of the main graph first."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _attribute_tensors(function.attribute_proto)
        for node in function.node:
            yield from _attribute_tensors(node.attribute)


def take_number(tensor: onnx.TensorProto) -> int | None:
    """Remove and return the number that `detach` put in place of a tensor; None for others."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    number = next(int(entry.value) for entry in tensor.external_data if entry.key == "offset")
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    return number


def payload(tensor: ir.TensorProtocol) -> memoryview:
    """Return the bytes of a tensor as ONNX stores them (little endian, sub-byte values packed).

    Raises InvariantError if a computed tensor differs in type or shape from its declaration.
    """
    if tensor.nbytes == 0:
        return memoryview(b"")
    if isinstance(tensor, ir.ExternalTensor) or tensor.dtype.bitwidth < 8:
        data = memoryview(tensor.tobytes())
        if data.nbytes != tensor.nbytes:
            raise _another(tensor, f"{data.nbytes} bytes")
        return data
    array = tensor.numpy()
    if array.dtype != tensor.dtype.numpy() or array.shape != tuple(tensor.shape.numpy()):
        raise _another(tensor, f"{array.dtype} {list(array.shape)}")
    return little_endian(array)


def little_endian(array: npt.NDArray[np.generic]) -> memoryview:
    """Return the bytes of an array in row-major order, the lowest of each element first."""
    little = array.dtype.newbyteorder("<")
    return np.ascontiguousarray(array, dtype=little).reshape(-1).view(np.uint8).data


def _another(tensor: ir.TensorProtocol, given: str) -> InvariantError:
    declared = f"{tensor.dtype.name} {list(tensor.shape.numpy())}"
    return InvariantError(f"tensor '{tensor.name}' was declared {declared} and gave {given}")


def _placeholder(tensor: ir.TensorProtocol, number: int) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        wire.IN_MODEL,
        number,
        None,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _ours(error: BaseException) -> OnnxfoldError | None:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OnnxfoldError):
        cause = cause.__cause__
    return cause


def _drop_repeated_metadata(tensor: onnx.TensorProto) -> None:
    """Remove metadata that onnx-ir 1.1.0 writes twice for a tensor that it did not change."""
    entries = {entry.key: entry.value for entry in tensor.metadata_props}
    if len(entries) < len(tensor.metadata_props):
        tensor.ClearField("metadata_props")
        for key, value in entries.items():
            tensor.metadata_props.add(key=key, value=value)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        if attribute.type == onnx.AttributeProto.TENSOR:
            yield attribute.t
        yield from attribute.tensors
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from _graph_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _graph_tensors(graph)
