"""Requirements on a parsed model before any stage may trust it; each refusal is one sentence.

The checks cover what would otherwise be lost silently (sparse initializers, training graphs,
untyped attributes), read past the data (dimensions against bytes), or make an analysis unsound (a
name without a producer, an operator set with other rules).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import Message  # type: ignore[import-untyped]  # no stubs here

from onnxfold.errors import ModelError, escaped
from onnxfold.model_io.file_tensor import packed_nbytes

# Before operator set 7, Add and its like broadcast by attributes; the rules here do not cover that.
_OLDEST_OPSET = 7
_OLDEST_IR_VERSION = 3
# The largest size that numpy supports even if another dimension is 0.
_MOST_DIMS = 32
_MOST_ELEMENTS = 2**58

_DATA_FIELDS: dict[str, tuple[str, ...]] = {
    "float_data": ("FLOAT", "COMPLEX64"),
    "double_data": ("DOUBLE", "COMPLEX128"),
    "int64_data": ("INT64",),
    "uint64_data": ("UINT64", "UINT32"),
    "string_data": ("STRING",),
}
_FIELD_OF = {ir.DataType[name]: field for field, names in _DATA_FIELDS.items() for name in names}

_Attribute = onnx.AttributeProto
# Integers that name an element type, in operators of the default domain.
_TYPE_ATTRIBUTES = frozenset({"dtype", "output_dtype", "stash_type", "to"})
# Attributes that may be any integer. All others are counts, axes, sizes and switches: ONNX Runtime
# stores many in 32 bits, where 2**40 heads become 0 and the process dies of a division.
_WIDE_ATTRIBUTES = frozenset({"end", "ends", "start", "starts", "value_int", "value_ints"})
_NARROW_DOMAINS = frozenset({"", "com.microsoft"})
# ONNX Runtime accepts its own operators without an import, and its optimizer leaves some.
ALWAYS_IMPORTED = "com.microsoft"
_NARROW = range(-(2**31), 2**31)
# Protobuf reads messages at most 100 deep; a body adds three levels, a type in it some more.
_MOST_BODIES = 25
_NOT_TEXT = "is not UTF-8 text; the file is damaged"
_SPARSE = (_Attribute.SPARSE_TENSOR, _Attribute.SPARSE_TENSORS)
# Models of a thousand layers have fewer.
_MOST_NODES = 100_000
# Real exports nest modules about ten deep; inlining recurses.
_MOST_DEPTH = 100

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Context:
    """What a node may refer to: operator sets, and names of its graph and the enclosing ones."""

    imports: Mapping[str, int]
    scopes: tuple[set[str], ...] = ()
    in_function: bool = False

    def within(self, names: set[str]) -> "_Context":
        return replace(self, scopes=(*self.scopes, names))


def check_model(proto: onnx.ModelProto, label: str) -> None:
    """Refuse a model that is broken, or that has parts which would be lost.

    Raises ModelError, which starts with `label` and names the node or tensor at fault.
    """
    try:
        _check_header(proto)
        _check_texts(proto)
        imports = _imports(proto.opset_import)
        _check_graph(proto.graph, _Context(imports))
        for function in proto.functions:
            where = f"function {function.domain}:{function.name}"
            names = set(function.input).union(*(node.output for node in function.node))
            inside = _Context(_imports(function.opset_import), (names,), in_function=True)
            _check_nodes(function.node, inside)
            _check_produced(function.output, names, where)
            for attribute in function.attribute_proto:
                _check_attribute(attribute, inside, where)
        check_calls(proto)
    except UnicodeDecodeError as error:
        raise ModelError(f"{label}: a name in it {_NOT_TEXT}") from error
    except ModelError as error:
        raise ModelError(f"{label}: {escaped(str(error))}") from error


def _check_header(proto: onnx.ModelProto) -> None:
    if not proto.HasField("graph"):
        raise ModelError("this is not an ONNX model (it has no graph), or it is truncated")
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"it has IR version {proto.ir_version}, the installed onnx knows {onnx.IR_VERSION}; "
            "upgrade onnx, or export with an older IR version"
        )
    if proto.ir_version < _OLDEST_IR_VERSION:
        raise ModelError(
            f"IR version {proto.ir_version} is not supported (oldest: {_OLDEST_IR_VERSION}); "
            "export the model again"
        )
    if proto.training_info:
        raise ModelError("it contains training graphs; export the model for inference")


def _imports(entries: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    imports = {_domain(entry.domain): entry.version for entry in entries}
    if not imports:
        raise ModelError("it imports no operator set; the file is truncated or damaged")
    newest = onnx.defs.onnx_opset_version()
    version = imports.get("", newest)
    if version > newest:
        raise ModelError(
            f"it uses operator set {version}, the installed onnx knows {newest}; "
            "upgrade onnx, or export with an older operator set"
        )
    if version < _OLDEST_OPSET:
        raise ModelError(
            f"operator set {version} is not supported (oldest: {_OLDEST_OPSET}); "
            "convert the model with onnx.version_converter"
        )
    return imports


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _check_graph(graph: onnx.GraphProto, around: _Context) -> None:
    if len(around.scopes) > _MOST_BODIES:
        raise ModelError(f"graph '{graph.name}' lies in more than {_MOST_BODIES} others")
    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise ModelError(f"initializer '{name}' is sparse; store it as a dense tensor")
    names = {value.name for value in graph.input}
    weights: set[str] = set()
    for tensor in graph.initializer:
        if not tensor.name:
            raise ModelError("an initializer has no name; the file is damaged")
        if tensor.name in weights:
            raise ModelError(f"initializer '{tensor.name}' is defined twice")
        weights.add(tensor.name)
        _check_tensor(tensor, f"initializer '{tensor.name}'")
    names |= weights
    names.update(*(node.output for node in graph.node))
    _check_nodes(graph.node, around.within(names))
    _check_produced((value.name for value in graph.output), names, f"graph '{graph.name}'")
    for value in (*graph.input, *graph.value_info, *graph.output):
        if _holds_map(value.type):
            raise ModelError(
                f"value '{value.name}' is a map, which onnx-ir does not support; export tensors "
                "instead (skl2onnx: options={'zipmap': False})"
            )


def _holds_map(kind: onnx.TypeProto) -> bool:
    if kind.HasField("sequence_type"):
        return _holds_map(kind.sequence_type.elem_type)
    if kind.HasField("optional_type"):
        return _holds_map(kind.optional_type.elem_type)
    return bool(kind.HasField("map_type"))


def _check_produced(outputs: Iterable[str], names: set[str], where: str) -> None:
    for name in outputs:
        if name not in names:
            raise ModelError(f"output '{name}' of {where} is produced by nothing inside it")


def _check_texts(part: Any) -> None:
    """Refuse texts anywhere in a protobuf message that could be read, but not written again."""
    for field, content in part.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in (content,) if isinstance(content, Message) else content:
                _check_texts(inner)
        elif field.type == field.TYPE_STRING:
            # The upb protobuf returns bytes for a string that cannot be decoded, others raise.
            texts = (content,) if isinstance(content, str | bytes) else content
            if not all(isinstance(text, str) for text in texts):
                raise ModelError(f"one '{field.name}' in it {_NOT_TEXT}")


def _check_nodes(nodes: Iterable[onnx.NodeProto], context: _Context) -> None:
    for index, node in enumerate(nodes):
        where = f"node '{node.name}' ({node.op_type})" if node.name else f"node {index}"
        if not node.op_type:
            raise ModelError(f"{where} has no operator; the file is damaged")
        if _domain(node.domain) not in {*context.imports, ALWAYS_IMPORTED}:
            raise ModelError(f"{where} is of domain '{node.domain}', which is not imported")
        for name in node.input:
            if name and not any(name in scope for scope in context.scopes):
                raise ModelError(f"{where} reads '{name}', which nothing produces")
        for attribute in node.attribute:
            _check_attribute(attribute, context, where)
            if attribute.name in _TYPE_ATTRIBUTES and not _domain(node.domain):
                _check_type(attribute, where)
            if _domain(node.domain) in _NARROW_DOMAINS:
                _check_integers(attribute, where)


def _check_type(attribute: onnx.AttributeProto, where: str) -> None:
    if attribute.type != _Attribute.INT or attribute.ref_attr_name:
        return
    try:
        ir.DataType(attribute.i)
    except ValueError as error:
        raise ModelError(f"{where} names the unknown type {attribute.i}") from error


def _check_integers(attribute: onnx.AttributeProto, where: str) -> None:
    if attribute.name in _WIDE_ATTRIBUTES:
        return
    for number in (attribute.i, *attribute.ints):
        if number not in _NARROW:
            raise ModelError(
                f"attribute '{attribute.name}' of {where} is {number}, which exceeds 32 bits; "
                "the file is damaged"
            )


def _check_attribute(attribute: onnx.AttributeProto, context: _Context, where: str) -> None:
    what = f"attribute '{attribute.name}' of {where}"
    if attribute.type == _Attribute.UNDEFINED:
        raise ModelError(f"{what} has no type; the file is damaged or too old")
    if attribute.ref_attr_name:
        if not context.in_function:
            raise ModelError(f"{what} refers to an attribute of a function, and there is none")
        return
    if attribute.type in _SPARSE:
        raise ModelError(f"{what} is a sparse tensor; store it as a dense tensor")
    if attribute.type == _Attribute.TENSOR:
        _check_tensor(attribute.t, what)
    elif attribute.type == _Attribute.TENSORS:
        for tensor in attribute.tensors:
            _check_tensor(tensor, what)
    elif attribute.type == _Attribute.GRAPH:
        _check_graph(attribute.g, context)
    elif attribute.type == _Attribute.GRAPHS:
        for graph in attribute.graphs:
            _check_graph(graph, context)


def _check_tensor(tensor: onnx.TensorProto, what: str) -> None:
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError as error:
        raise ModelError(f"{what} has the unknown type {tensor.data_type}") from error
    if dtype is ir.DataType.UNDEFINED:
        raise ModelError(f"{what} has no type")
    if any(size < 0 for size in tensor.dims):
        raise ModelError(f"{what} has the negative shape {list(tensor.dims)}")
    if len(tensor.dims) > _MOST_DIMS or math.prod(d for d in tensor.dims if d) > _MOST_ELEMENTS:
        raise ModelError(f"{what} has the impossible shape {list(tensor.dims)}")
    if tensor.HasField("segment"):
        raise ModelError(f"{what} is stored in segments; export the model again")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_reference(tensor, dtype, what)
    else:
        _check_size(tensor, dtype, what)


def _check_reference(tensor: onnx.TensorProto, dtype: ir.DataType, what: str) -> None:
    if dtype is ir.DataType.STRING:
        raise ModelError(f"{what} contains strings, which cannot be external data")
    if tensor.HasField("raw_data"):
        raise ModelError(f"{what} is both embedded and external")
    for entry in tensor.external_data:
        if entry.key in ("offset", "length") and not entry.value.isdecimal():
            raise ModelError(f"{what} has the external data {entry.key} '{entry.value}'")


def _check_size(tensor: onnx.TensorProto, dtype: ir.DataType, what: str) -> None:
    elements = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        if dtype is ir.DataType.STRING:
            raise ModelError(f"{what} stores strings as raw data")
        stored, unit = len(tensor.raw_data), "bytes"
        needed = packed_nbytes(dtype, elements)
    else:
        stored, unit = len(getattr(tensor, _FIELD_OF.get(dtype, "int32_data"))), "values"
        needed = elements
        if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
            needed = 2 * elements
        elif dtype is not ir.DataType.STRING and dtype.bitwidth in (2, 4):
            needed = packed_nbytes(dtype, elements)
    if stored != needed:
        raise ModelError(
            f"{what} of shape {list(tensor.dims)} and type {dtype.name} needs {needed} {unit} "
            f"and has {stored}; the file is damaged"
        )


def check_calls(proto: onnx.ModelProto) -> None:
    """Refuse functions that are recursive, nest too deep, or expand to too many nodes.

    Inlining and running a model visit every call; a few nested calls can mean billions of nodes.

    Raises ModelError, which names the function.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    called = {key: _called(f.node, functions) for key, f in functions.items()}
    sizes: dict[_Key, tuple[int, int]] = {}
    for start in functions:
        _measure(start, functions, called, sizes)
    for key, (nodes, depth) in sizes.items():
        name = f"function {key[0]}:{key[1]}"
        if depth > _MOST_DEPTH:
            raise ModelError(f"{name} calls functions {depth} deep; at most {_MOST_DEPTH} are read")
        if nodes > _MOST_NODES:
            raise ModelError(
                f"{name} stands for {nodes:.3g} nodes once its calls are expanded; at most "
                f"{_MOST_NODES} are read"
            )


def _measure(
    start: _Key,
    functions: dict[_Key, onnx.FunctionProto],
    called: dict[_Key, list[_Key]],
    sizes: dict[_Key, tuple[int, int]],
) -> None:
    """Return nodes and depth of a function with its calls, without recursion, which may be deep."""
    path: dict[_Key, Iterator[_Key]] = {start: iter(called[start])}
    while path and start not in sizes:
        key = next(reversed(path))
        inner = next((k for k in path[key] if k not in sizes), None)
        if inner is None:
            del path[key]
            nodes = sum(sizes[k][0] for k in called[key]) + len(functions[key].node)
            depth = max((sizes[k][1] for k in called[key]), default=0) + 1
            sizes[key] = nodes, depth
        elif inner in path:
            raise ModelError(f"function {inner[0]}:{inner[1]} calls itself")
        else:
            path[inner] = iter(called[inner])


def _called(
    nodes: Iterable[onnx.NodeProto], functions: dict[_Key, onnx.FunctionProto]
) -> list[_Key]:
    """Return the functions that nodes call, in their bodies too, once for each call."""
    found: list[_Key] = []
    for node in nodes:
        key = (node.domain, node.op_type, node.overload)
        if key in functions:
            found.append(key)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += _called(attribute.g.node, functions)
            for graph in attribute.graphs:
                found += _called(graph.node, functions)
    return found
