"""The protobuf wire format of a model, read and written without loading its weights.

A model is `ModelProto{graph = 7}`, a graph `GraphProto{initializer = 5}`, a weight
`TensorProto{raw_data = 9}`; each is a tag, a length and that many bytes (protobuf encoding guide,
"Length-Delimited Records"). The bytes of a weight can therefore stay in the file, and be copied
from file to file, while protobuf parses the rest.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx

LIMIT_BYTES = 2**31 - 1  # of a protobuf
EMBEDDED_BYTES = 1_800_000_000  # of weights in one, which leaves room for the graph
# No file can have this name, so it cannot collide with a reference in a real model.
IN_MODEL = "\0in the model file"

_GRAPH = 7
_INITIALIZER = 5
_RAW_DATA = 9
_EXTERNAL_DATA = 13
_DATA_LOCATION = 14
_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}


# Headers are short; the bytes between two of them are not read.
_WINDOW_BYTES = 4096


class MalformedError(ValueError):
    """The bytes do not follow the wire format; the message explains how."""


class Buffer:
    """The bytes of a seekable file, read on access.

    A map would do the same, but counts as resident memory (100 MB for a model of 500 MB), and kills
    the process if the file is truncated meanwhile.
    """

    def __init__(self, file: io.RawIOBase, size: int) -> None:
        self._file = file
        self._window = b""
        self._window_start = 0
        self.size = size

    def byte(self, position: int) -> int:
        index = position - self._window_start
        if not 0 <= index < len(self._window):
            self._window = self.slice(position, min(position + _WINDOW_BYTES, self.size))
            self._window_start, index = position, 0
        return self._window[index]

    def slice(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        pieces: list[bytes] = []
        while start < end:
            piece = self._file.read(end - start)
            if not piece:
                raise MalformedError("the file became shorter while it was read")
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    wire_type: int
    start: int
    body: int
    end: int


_Replace = Callable[[_Field], bytes | None]


def skeleton(buffer: Buffer, threshold_bytes: int) -> bytes:
    """Return the serialized model with each large embedded weight as a reference (offset, length).

    Weights of the main graph with `raw_data` of at least `threshold_bytes` become external tensors
    with location `IN_MODEL`; every other byte is kept. Only field headers are read.

    Raises MalformedError for an invalid field, or one that ends after the buffer.
    """
    return _rewrite(buffer, 0, buffer.size, _GRAPH, lambda f: _graph(buffer, f, threshold_bytes))


def reference(location: str, offset: int, length: int) -> onnx.TensorProto:
    """Return a TensorProto with only a reference to external data."""
    proto = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        proto.external_data.add(key=key, value=str(value))
    return proto


def graph_header(length: int) -> bytes:
    """Return the tag and length that open the `graph` field of a model."""
    return _header(_GRAPH, length)


def initializer(tensor: onnx.TensorProto, raw_bytes: int | None) -> bytes:
    """Return an initializer of a graph, up to its raw data of `raw_bytes`, which must follow."""
    fields: bytes = tensor.SerializeToString()
    if raw_bytes is None:
        return _header(_INITIALIZER, len(fields)) + fields
    fields += _header(_RAW_DATA, raw_bytes)
    return _header(_INITIALIZER, len(fields) + raw_bytes) + fields


def _graph(buffer: Buffer, graph: _Field, threshold_bytes: int) -> bytes:
    def detached(field: _Field) -> bytes | None:
        if field.end - field.body < threshold_bytes:
            return None
        return _tensor(buffer, field, threshold_bytes)

    return _rewrite(buffer, graph.body, graph.end, _INITIALIZER, detached)


def _tensor(buffer: Buffer, tensor: _Field, threshold_bytes: int) -> bytes | None:
    raw: list[_Field] = []
    for field in _fields(buffer, tensor.body, tensor.end):
        # Exporters write the location 0, which is "embedded", too; the later one written here takes
        # precedence.
        if field.number == _EXTERNAL_DATA:
            return None
        if field.number == _DATA_LOCATION and buffer.byte(field.body):
            return None
        if field.number == _RAW_DATA and field.wire_type == _LENGTH_DELIMITED:
            raw.append(field)
    if len(raw) != 1 or raw[0].end - raw[0].body < threshold_bytes:
        return None
    (data,) = raw
    link: bytes = reference(IN_MODEL, data.body, data.end - data.body).SerializeToString()
    return buffer.slice(tensor.body, data.start) + buffer.slice(data.end, tensor.end) + link


def _rewrite(buffer: Buffer, start: int, end: int, number: int, replace: _Replace) -> bytes:
    """Return the message in `buffer[start:end]` with the bodies of some fields replaced."""
    pieces: list[bytes] = []
    cursor = start
    for field in _fields(buffer, start, end):
        if field.number != number or field.wire_type != _LENGTH_DELIMITED:
            continue
        body = replace(field)
        if body is not None:
            pieces += [buffer.slice(cursor, field.start), _header(number, len(body)), body]
            cursor = field.end
    pieces.append(buffer.slice(cursor, end))
    return b"".join(pieces)


def _fields(buffer: Buffer, start: int, end: int) -> Iterator[_Field]:
    position = start
    while position < end:
        tag, body = _varint(buffer, position, end)
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            length, body = _varint(buffer, body, end)
            stop = body + length
        elif wire_type == 0:
            stop = _varint(buffer, body, end)[1]
        elif wire_type in _FIXED_BYTES:
            stop = body + _FIXED_BYTES[wire_type]
        else:
            raise MalformedError(f"no protobuf field at byte {position}")
        if stop > end:
            raise MalformedError(f"the field at byte {position} ends {stop - end} bytes too late")
        yield _Field(tag >> 3, wire_type, position, body, stop)
        position = stop


def _varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if position + index >= end:
            raise MalformedError(f"the number at byte {position} is cut off")
        byte = buffer.byte(position + index)
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise MalformedError(f"the number at byte {position} is too long")


def _header(number: int, length: int) -> bytes:
    return _encode((number << 3) | _LENGTH_DELIMITED) + _encode(length)


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
