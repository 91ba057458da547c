"""Types and shapes of all values, with symbolic dimensions.

The inference is onnx's own, run on a skeleton of the model without the large tensors. Operators
unknown to onnx are represented by a standard operator with the same effect on shapes.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count, filterfalse

import onnx
import onnx_ir as ir

from onnxfold.graph.constants import attribute_tensor, in_memory
from onnxfold.graph.dims import Dim, Shape
from onnxfold.graph.traversal import (
    all_graphs,
    attributes,
    bodies,
    declared_shape,
    fixed_tensor,
    graph_values,
)
from onnxfold.shapes.equivalents import (
    DOMAIN,
    FUNCTIONS,
    hide,
    is_doubtful,
    known_sizes,
    shape_equivalent,
)
from onnxfold.shapes.size_checks import MOST_ELEMENTS, check_size

_NOT_READ = (ir.ExternalTensor, ir.LazyTensor)
_LARGE_TENSOR_BYTES = 4096
_MOST_DECLARED_ELEMENTS = 2**20
_MADE_UP = "unk__"  # prefix of the symbols that onnx's inference makes up

_OVERRIDABLE_SINCE_IR = 4


def fill_types(model: ir.Model) -> set[ir.Value]:
    """Give every value of a working copy its element type and shape, as far as known.

    Return the values about which more was known than onnx, which was not told, finds.
    """
    with _distinct_names(model):
        plain = skeleton(model)
        inferred = _infer(plain)
        if _hide_doubtful(plain.graph, inferred.graph, lambda _: ()):
            inferred = _infer(plain)
        return _fill_graph(model.graph, inferred.graph)


@contextmanager
def _distinct_names(model: ir.Model) -> Iterator[None]:
    """Give every result a unique name for a while.

    onnx 1.23 tracks computed numbers by name alone: a branch would use the numbers of another
    branch with equal result names, and so wrong sizes.
    """
    values = [value for graph in all_graphs(model) for value in graph_values(graph)]
    told = {value: value.name for value in values}
    taken = set(told.values())
    fresh = filterfalse(taken.__contains__, map("result_{}".format, count()))
    seen = set[str | None]()
    for value, name in told.items():
        if name in seen and value.producer() is not None:
            value.name = next(fresh)
        seen.add(name)
    try:
        yield
    finally:
        for value, name in told.items():
            if value.name != name:
                value.name = name


def _infer(plain: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(
        plain, check_type=False, strict_mode=False, data_prop=True
    )


def _hide_doubtful(
    plain: onnx.GraphProto, inferred: onnx.GraphProto, outer: Callable[[str], Sequence[Dim]]
) -> bool:
    """Hide operators whose sizes may be wrong; return whether there are any.

    ``outer``: sizes of values that a body may read.
    """

    @cache
    def known() -> dict[str, list[Dim]]:
        values = (*inferred.input, *inferred.value_info, *inferred.output)
        weights = {tensor.name: list[Dim](tensor.dims) for tensor in inferred.initializer}
        return weights | {value.name: known_sizes(value.type) for value in values}

    def sizes(name: str) -> Sequence[Dim]:
        return known()[name] if name in known() else outer(name)

    found = False
    for node, twin in zip(plain.node, inferred.node, strict=True):
        if is_doubtful(node, sizes):
            hide(node)
            found = True
            continue
        for own, other in zip(node.attribute, twin.attribute, strict=True):
            if own.HasField("g"):
                found = _hide_doubtful(own.g, other.g, sizes) or found
    return found


def strip_types(model: ir.Model, like: ir.Model) -> None:
    """Remove what :func:`fill_types` added, except what ``like`` declares by name.

    Outputs also keep types and sizes, and so do results of operators unknown to onnx, such as ONNX
    Runtime's in the default domain, because quantization tools need types. Symbols that onnx made
    up are removed: when it reads the result it might use the same ones for other sizes. For inner
    values, symbols that ``like`` does not declare are removed too: when an input size is fixed
    later, tract compares them with it.
    """
    declared = {
        v.name: declared_shape(v)
        for graph in all_graphs(like)
        for v in graph_values(graph)
        if _is_told(v)
    }
    symbols = {dim for shape in declared.values() for dim in shape or ()}
    assumed = any(value.shape is None for value in like.graph.inputs)
    for graph in all_graphs(model):
        kept = set(graph.outputs)
        for value in graph.inputs:
            if declared.get(value.name) is None:
                value.shape = None
        for node in graph:
            unknown = not node.domain and not onnx.defs.has(node.op_type)
            for value in node.outputs:
                if value in kept or unknown or value.name in declared:
                    inside = value not in kept and value.name not in declared
                    known = set() if inside else symbols
                    value.shape = _kept_shape(value, declared.get(value.name), known)
                else:
                    value.type = value.shape = None
                if assumed and declared.get(value.name) is None:
                    value.shape = None  # which may be the size of rows alone


def is_unnamed(dim: Dim) -> bool:
    """Whether a size is unknown: onnx's inference makes up symbols for such sizes."""
    return dim is None or (isinstance(dim, str) and dim.startswith(_MADE_UP))


def claimed_shape(value: ir.Value) -> Shape | None:
    """Return what a model declares of a value, without symbols that onnx made up.

    Tools that convert or quantize leave these in the file, one symbol for each operator that onnx
    could not follow.
    """
    shape = declared_shape(value)
    if shape is None or value.producer() is None:
        return shape
    return tuple(None if is_unnamed(dim) else dim for dim in shape)


def _is_found_again(value: ir.Value) -> bool:
    """Whether onnx inferred the declaration, and will infer it again from what is known here.

    Keeping the declaration would give its unknown sizes symbols of their own.
    """
    node, shape = value.producer(), value.shape
    if node is None or shape is None or node.domain or not onnx.defs.has(node.op_type):
        return False
    return claimed_shape(value) != declared_shape(value)


def _is_told(value: ir.Value) -> bool:
    return value.type is not None or value.shape is not None


def _kept_shape(value: ir.Value, told: Shape | None, symbols: Collection[Dim]) -> ir.Shape | None:
    """Return the shape of a value with its declared symbols, or others of ``symbols``.

    Returns None if the element type is unknown, because a model cannot store a shape without one.
    """
    shape = declared_shape(value)
    if shape is None or value.type is None:
        return None
    claims = told if told is not None and len(told) == len(shape) else (None,) * len(shape)
    return ir.Shape([_kept(*pair, symbols) for pair in zip(shape, claims, strict=True)])


def _kept(dim: Dim, claim: Dim, symbols: Collection[Dim]) -> Dim:
    if isinstance(dim, int):
        return dim
    if isinstance(claim, str):
        return claim
    return None if is_unnamed(dim) or dim not in symbols else dim


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """Serialize the model without its large tensors, which become typed inputs.

    A default that callers may override is left out as well, because nothing follows from it.
    """
    proto = onnx.ModelProto(ir_version=max(model.ir_version, 8))
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    if not any(entry.domain == "" for entry in proto.opset_import):
        proto.opset_import.add(domain="", version=1)
    for function in model.functions.values():
        proto.functions.append(ir.serde.serialize_function(function))
    proto.functions.extend(FUNCTIONS)
    proto.opset_import.add(domain=DOMAIN, version=1)
    opset = model.opset_imports.get("", 1)
    _fill(proto.graph, model.graph, opset, is_main=True)
    return proto


def _fill(proto: onnx.GraphProto, graph: ir.Graph, opset: int, *, is_main: bool = False) -> None:
    proto.name = graph.name or "graph"
    listed = set()
    for value in graph.inputs:
        listed.add(value)
        _declare(proto.input.add(), value)
    for value in graph.initializers.values():
        tensor = None if value in listed else value.const_value
        if tensor is not None and tensor.nbytes <= _LARGE_TENSOR_BYTES:
            proto.initializer.append(ir.serde.serialize_tensor(in_memory(tensor)))
            proto.initializer[-1].name = value.name or ""
        elif tensor is not None:
            shape, dtype = tensor.shape.numpy(), tensor.dtype.value
            told = onnx.helper.make_tensor_value_info(value.name or "", dtype, shape)
            # onnx infers nothing in a branch that has inputs.
            (proto.input if is_main else proto.value_info).append(told)
    outputs = set(graph.outputs)
    for node in graph:
        check_size(node)
        proto.node.append(_node(node, proto, opset))
        large = [attribute_tensor(a) for a in attributes(node) if _is_large(a)]
        if large and node.op_type == "Constant":
            name, tensor = node.outputs[0].name or "", large[0]
            info = onnx.helper.make_tensor_value_info(
                name, tensor.dtype.value, tensor.shape.numpy()
            )
            proto.value_info.append(info)
            continue
        for output in node.outputs:
            declared = output.name and output.shape is not None and not _is_found_again(output)
            if declared and output not in outputs:
                _declare(proto.value_info.add(), output)
    for value in graph.outputs:
        _declare(proto.output.add(), value)


def _declare(info: onnx.ValueInfoProto, value: ir.Value) -> None:
    """Write the declaration of a value, without sizes that break onnx 1.23.

    A Slice of a negative size ends the process. Wherever a vector is computed with, it builds a
    list of that many unknown numbers, which takes hours and all memory for a claimed length. For
    tensors this needs a third of the time of onnx-ir's serialization.
    """
    info.name = value.name or ""
    if value.type is None:
        return
    if not isinstance(value.type, ir.TensorType):
        info.CopyFrom(ir.serde.serialize_value(value))
        return
    tensor = info.type.tensor_type
    tensor.elem_type = value.type.dtype.value
    shape = None if _is_found_again(value) else claimed_shape(value)
    if shape is None:
        return
    tensor.shape.SetInParent()  # also of a scalar
    most = _MOST_DECLARED_ELEMENTS if len(shape) == 1 else MOST_ELEMENTS
    for dim in shape:
        written = tensor.shape.dim.add()
        if isinstance(dim, str):
            written.dim_param = dim
        elif dim is not None and 0 <= dim <= most:
            written.dim_value = dim


def _node(node: ir.Node, home: onnx.GraphProto, opset: int) -> onnx.NodeProto:
    replacement = shape_equivalent(node, home, opset)
    if replacement is not None:
        return replacement
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name or "")
    proto.overload = node.overload
    proto.input.extend(
        (operand.name or "") if operand is not None else "" for operand in node.inputs
    )
    proto.output.extend(output.name or "" for output in node.outputs)
    inner = {(name, i): graph for name, i, graph in bodies(node)}
    for attribute in attributes(node):
        name = attribute.name
        if (name, 0) in inner:
            written = proto.attribute.add(name=name, type=attribute.type.value)
            graphs = [graph for (key, _), graph in inner.items() if key == name]
            for graph in graphs:
                _fill(
                    written.g if attribute.type == ir.AttributeType.GRAPH else written.graphs.add(),
                    graph,
                    opset,
                )
        elif _is_large(attribute):
            continue
        elif attribute.type is ir.AttributeType.TENSOR and isinstance(attribute.value, _NOT_READ):
            inside = ir.AttrTensor(name, in_memory(attribute_tensor(attribute)))
            proto.attribute.append(ir.serde.serialize_attribute(inside))
        else:
            proto.attribute.append(ir.serde.serialize_attribute(attribute))
    return proto


def _is_large(attribute: ir.Attr) -> bool:
    """Whether the attribute is a large tensor, whose node's output declares the shape instead."""
    if attribute.type != ir.AttributeType.TENSOR or attribute.is_ref():
        return False
    return attribute_tensor(attribute).nbytes > _LARGE_TENSOR_BYTES


def _fill_graph(graph: ir.Graph, inferred: onnx.GraphProto) -> set[ir.Value]:
    better = set()
    protos = {info.name: info for infos in (inferred.value_info, inferred.output) for info in infos}
    for value in graph_values(graph):
        info, tensor = protos.get(value.name or ""), fixed_tensor(value)
        if tensor is not None and value.dtype is not tensor.dtype:
            value.type = ir.TensorType(tensor.dtype)  # whatever the model declares about it
        if info is not None and value.type is None and info.type.HasField("tensor_type"):
            value.type = ir.TensorType(ir.DataType(info.type.tensor_type.elem_type))
        declared, found = claimed_shape(value), _inferred(info)
        shape = declared if declared is not None else found
        known = None if shape is None else merged(shape, found)
        if found is not None and known is not None and _tells_more(known, found):
            better.add(value)
        if known is not None and known != declared_shape(value) and tensor is None:
            value.shape = ir.Shape(known)
    for node, twin in zip(graph, inferred.node, strict=True):
        for name, position, body in bodies(node):
            for attribute in twin.attribute:
                if attribute.name == name:
                    single = attribute.type == onnx.AttributeProto.GRAPH
                    told = attribute.g if single else attribute.graphs[position]
                    better |= _fill_graph(body, told)
    return better


def _tells_more(known: Shape, found: Shape) -> bool:
    return any(
        is_unnamed(other) and not is_unnamed(dim) for dim, other in zip(known, found, strict=False)
    )


def _inferred(info: onnx.ValueInfoProto | None) -> Shape | None:
    if info is None or not info.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
        for dim in info.type.tensor_type.shape.dim
    )


def merged(declared: Shape, inferred: Shape | None) -> Shape:
    """Merge two shapes: integers first, then declared symbols, then inferred ones."""
    if inferred is None or len(inferred) != len(declared):
        return declared
    return tuple(
        a if isinstance(a, int) else b if isinstance(b, int) else (a if a is not None else b)
        for a, b in zip(declared, inferred, strict=True)
    )


def list_less(model: ir.Model) -> bool:
    """Remove initializers from the inputs of an old file, which lists all; whether it is one.

    Every initializer had to be listed, and could not be overridden.
    """
    if model.ir_version >= _OVERRIDABLE_SINCE_IR:
        return False
    from onnx_ir.passes.common import RemoveInitializersFromInputsPass

    RemoveInitializersFromInputsPass()(model)
    return True
