"""Standard operators with the output shape of an operator unknown to onnx's inference."""

from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onnxfold.graph.constants import constant_tensor
from onnxfold.graph.dims import Dim, is_number
from onnxfold.graph.operands import operand
from onnxfold.graph.sequences import is_unbind
from onnxfold.graph.traversal import declared_shape
from onnxfold.operators import facets
from onnxfold.operators.table import row_of

DOMAIN = "onnxfold.shape_equivalents"

_SAME_AS_STANDARD = frozenset({"DequantizeLinear", "QuantizeLinear"})
# ONNX Runtime writes LayerNormalization below its opset, 17, too; onnx 1.23 infers nothing of the
# GroupNormalization of opset 18, which is deprecated there.
_NORMS = frozenset({("", "GroupNormalization"), ("", "LayerNormalization")})


def shape_equivalent(node: ir.Node, home: onnx.GraphProto, opset: int) -> onnx.NodeProto | None:
    """Return a standard node with the shape of a node that onnx does not infer, or infers wrongly.

    It may be a call of one of ``FUNCTIONS``, whose domain is ``DOMAIN``, version 1. A weight whose
    shape follows from attributes becomes a typed input of ``home``.
    """
    plain_norm = (node.domain, node.op_type) in _NORMS and not any(
        value.name for value in node.outputs[1:]
    )
    unknown = not onnx.defs.has(node.op_type, node.domain)
    if plain_norm or (unknown and facets.same_shape(row_of(node))):
        return _made(node, "Identity", _names(node)[:1])
    if is_unbind(node):
        axis = node.attributes.get_int("axis", 0)
        return _made(node, node.op_type, _names(node)[:1], axis=axis, keepdims=0)
    if not node.domain and node.op_type in _OF_ANY_AXES:
        axes = node.attributes.get_ints("axes", ())
        if list(axes) == sorted(axes) and min(axes, default=0) >= 0:
            return None
        return _called(node, _OF_ANY_AXES[node.op_type], _names(node)[:1], axes=axes)
    if (node.domain, node.op_type, opset) == ("", "Slice", 10):
        # Slice and the like, where onnx 1.23 may give a cut axis the name of its old size.
        return _called(node, _SLICE, _names(node))
    if node.domain != "com.microsoft":
        return None
    if node.op_type in _SAME_AS_STANDARD:
        return _made(node, node.op_type, _names(node), axis=node.attributes.get_int("axis", 1))
    maker = _MAKERS.get(node.op_type)
    return None if maker is None else maker(node, home)


def known_sizes(kind: onnx.TypeProto) -> list[Dim]:
    """Return the sizes of a type as numbers or names."""
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in kind.tensor_type.shape.dim
    ]


def is_doubtful(node: onnx.NodeProto, sizes: Callable[[str], Sequence[Dim]]) -> bool:
    """Whether onnx 1.23 may infer a wrong size.

    Einsum uses one of the sizes of a label even if they differ, and one is 1; Attention of [B, T,
    C] reads an unknown C as 0. ``sizes`` returns an operand's sizes; it is called for few nodes.
    """
    if node.op_type == "Attention" and not node.domain:
        return any(len(found := sizes(x)) == 3 and not is_number(found[2]) for x in node.input[:3])
    if node.op_type != "Einsum":
        return False
    equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
    met: dict[str | int, set[Dim]] = {}
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    for term, name in zip(terms, node.input, strict=False):
        known = sizes(name)
        before, dots, after = term.partition("...")
        batch = range(len(before) + len(after) - len(known), 0) if dots else ()
        for label, size in zip((*before, *batch, *after), known, strict=False):
            met.setdefault(label, set()).add(size)
    return any(len(found) > 1 and not all(map(is_number, found)) for found in met.values())


def hide(node: onnx.NodeProto) -> None:
    """Replace a node by one of ``FUNCTIONS`` with its first operand's type and no shape."""
    node.op_type, node.domain = _OF_UNKNOWN_SHAPE.name, DOMAIN
    del node.input[1:], node.attribute[:]
    node.output.extend([""] * (len(_OF_UNKNOWN_SHAPE.output) - len(node.output)))


def _names(node: ir.Node) -> list[str]:
    return [value.name or "" if value is not None else "" for value in node.inputs]


def _made(node: ir.Node, op_type: str, inputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return onnx.helper.make_node(op_type, inputs, [node.outputs[0].name or ""], **attributes)


def _fused_matmul(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto | None:
    flags = node.attributes
    if flags.get_int("transBatchA", 0) or flags.get_int("transBatchB", 0):
        return None
    turned = "".join(letter for letter in "AB" if flags.get_int(f"trans{letter}", 0))
    operands = _names(node)[:2]
    return _called(node, _PRODUCTS[turned], operands) if turned else _made(node, "MatMul", operands)


def _product_of_turned(turned: str) -> onnx.FunctionProto:
    """Return Y = A B with the last two axes of some operands exchanged, for any ranks.

    A single Einsum cannot do this: onnx 1.23 refuses two ellipses of different lengths.
    """
    nodes = [
        onnx.helper.make_node("Einsum", [name], [f"{name}.turned"], equation="...ij->...ji")
        for name in turned
    ]
    operands = [f"{name}.turned" if name in turned else name for name in "AB"]
    nodes.append(onnx.helper.make_node("MatMul", operands, ["Y"]))
    opsets = [onnx.helper.make_opsetid("", 13)]
    return onnx.helper.make_function(
        DOMAIN, f"ProductOfTurned{turned}", ["A", "B"], ["Y"], nodes, opsets
    )


def _of_any_axes(op_type: str) -> onnx.FunctionProto:
    """Return an operator as defined since opset 11, with axes in any order, also negative.

    Below opset 11, onnx 1.23 infers a wrong rank, although ONNX Runtime handles such axes as it
    does later.
    """
    node = onnx.helper.make_node(op_type, ["X"], ["Y"])
    node.attribute.add(name="axes", ref_attr_name="axes", type=onnx.AttributeProto.INTS)
    opsets = [onnx.helper.make_opsetid("", 11)]
    return onnx.helper.make_function(DOMAIN, op_type, ["X"], ["Y"], [node], opsets, ["axes"])


def _norm_of_sum() -> onnx.FunctionProto:
    """Return a norm Y of X + B with its mean M, deviation D, and the sum S, all shaped as X."""
    nodes = [
        onnx.helper.make_node(op_type, ["X"], [result])
        for op_type, result in zip(("Identity", "ReduceMean") * 2, "YMSD", strict=True)
    ]
    for node in nodes[1::2]:
        node.attribute.append(onnx.helper.make_attribute("axes", [-1]))
    opsets = [onnx.helper.make_opsetid("", 13)]
    return onnx.helper.make_function(DOMAIN, "NormOfSum", ["X"], list("YMDS"), nodes, opsets)


def _of_unknown_shape() -> onnx.FunctionProto:
    """Return results of the type of X whose rank is unknown to inference."""
    nodes = [
        onnx.helper.make_node("NonZero", ["X"], ["places"]),
        onnx.helper.make_node("ReduceMax", ["places"], ["sizes"], axes=[0], keepdims=0),
        *(onnx.helper.make_node("Reshape", ["X", "sizes"], [result]) for result in "YKVS"),
    ]
    opsets = [onnx.helper.make_opsetid("", 13)]
    return onnx.helper.make_function(DOMAIN, "OfUnknownShape", ["X"], list("YKVS"), nodes, opsets)


def _slice() -> onnx.FunctionProto:
    """Return Slice of opset 10 and up, as onnx infers it from 13 on."""
    operands = ["data", "starts", "ends", "axes", "steps"]
    node = onnx.helper.make_node("Slice", operands, ["Y"])
    opsets = [onnx.helper.make_opsetid("", 13)]
    return onnx.helper.make_function(DOMAIN, "Slice", operands, ["Y"], [node], opsets)


def _norm_of_rows() -> onnx.FunctionProto:
    """Return a norm Y of rows of a table [V, D] at ids [B, T], ones I of a mask [B], the rows S."""
    nodes = [
        onnx.helper.make_node("Gather", ["table", "ids"], ["S"]),
        onnx.helper.make_node("Identity", ["S"], ["Y"]),
        onnx.helper.make_node("ReduceMax", ["ids"], ["I"], axes=[-1], keepdims=0),
    ]
    opsets = [onnx.helper.make_opsetid("", 13)]
    operands = ["ids", "table"]
    return onnx.helper.make_function(DOMAIN, "NormOfRows", operands, list("YIS"), nodes, opsets)


def _growing_caches() -> onnx.FunctionProto:
    """Return Y = Q W, and K and V [B, N, T, H] of its type with another, unknown T."""
    nodes = [onnx.helper.make_node("MatMul", ["Q", "W"], ["Y"])]
    for result, past in (("K", "PK"), ("V", "PV")):
        # Inference cannot know the number of nonzero elements.
        indices, new, old = (f"{past}.{name}" for name in ("indices", "new", "old"))
        nodes.append(onnx.helper.make_node("NonZero", [past], [indices]))
        nodes.append(onnx.helper.make_node("CastLike", [indices, "Q"], [new]))
        nodes.append(onnx.helper.make_node("CastLike", [past, "Q"], [old]))
        equation = "bnth,au->bnuh"
        nodes.append(onnx.helper.make_node("Einsum", [old, new], [result], equation=equation))
    opsets = [onnx.helper.make_opsetid("", 15)]
    operands = ["Q", "W", "PK", "PV"]
    return onnx.helper.make_function(DOMAIN, "GrowingCaches", operands, list("YKV"), nodes, opsets)


_PRODUCTS = {turned: _product_of_turned(turned) for turned in ("A", "B", "AB")}
_OF_ANY_AXES = {op_type: _of_any_axes(op_type) for op_type in ("Squeeze", "Unsqueeze")}
_NORM_OF_SUM, _NORM_OF_ROWS = _norm_of_sum(), _norm_of_rows()
_GROWING_CACHES, _SLICE = _growing_caches(), _slice()
_OF_UNKNOWN_SHAPE = _of_unknown_shape()
# What a model with shape equivalents must contain.
FUNCTIONS = (
    *_PRODUCTS.values(),
    *_OF_ANY_AXES.values(),
    _NORM_OF_SUM,
    _NORM_OF_ROWS,
    _GROWING_CACHES,
    _SLICE,
    _OF_UNKNOWN_SHAPE,
)


def _called(
    node: ir.Node, function: onnx.FunctionProto, inputs: list[str], **attributes: Any
) -> onnx.NodeProto:
    """Return a call of one of ``FUNCTIONS`` for all results of a node."""
    results = [value.name or "" for value in node.outputs]
    results += [""] * (len(function.output) - len(results))
    return onnx.helper.make_node(function.name, inputs, results, domain=DOMAIN, **attributes)


def _skip_norm(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto:
    return _called(node, _NORM_OF_SUM, _names(node)[:1])


def _embedding(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto:
    ids, _, words = _names(node)[:3]
    return _called(node, _NORM_OF_ROWS, [ids, words])


def _without_activation(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto | None:
    kept = {
        name: attribute.value
        for name, attribute in node.attributes.items()
        if not name.startswith("activation")
    }
    return _made(node, node.op_type.removeprefix("Fused"), _names(node)[:3], **kept)


def _attention(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto | None:
    """Map [B, S, C] with weights [C, q + k + v] to [B, S, v]."""
    weights = _weight_shape(node)
    sizes = node.attributes.get_ints("qkv_hidden_sizes", ()) or ()
    if weights is None or len(weights) != 2 or (not sizes and weights[1] % 3):
        return None
    hidden = sizes[2] if len(sizes) == 3 else weights[1] // 3
    return _product(node, home, weights[0], hidden, scale=3 if node.op_type == "QAttention" else 0)


def _multi_head(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto | None:
    """Map [B, T, q] with values [B, S, v] to [B, T, v]; with values [B, N, S, h] to [B, T, q].

    Heads in the first axes have the size of the queries' heads.
    """
    names, values = _names(node), operand(node, 2)
    if len(names) < 3 or not names[2]:
        return None
    shape = None if values is None else declared_shape(values)
    if shape is not None and len(shape) == 4:
        return _made(node, "Identity", names[:1])
    return _made(node, "Einsum", [names[0], names[2]], equation="btq,bsv->btv")


def _group_query(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto | None:
    """Keep [B, T, heads * size], without keys and values packed after it; caches grow."""
    names, query = _names(node), operand(node, 0)
    packed = len(names) < 3 or not names[2]
    heads, shared = (node.attributes.get_int(name, 0) for name in ("num_heads", "kv_num_heads"))
    parts = heads + 2 * shared * packed
    shape = None if query is None else declared_shape(query)
    width = shape[-1] if shape else None
    if not isinstance(width, int) or heads < 1 or width % parts:
        return None if packed else _made(node, "Identity", names[:1])
    product = _product(node, home, width, width // parts * heads, scale=0)
    caches = [name for name in names[3:5] if name]
    if len(caches) < 2:
        return product
    return _called(node, _GROWING_CACHES, [*product.input, *caches])


def _n_bits(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto | None:
    """Multiply [.., K] by a packed weight [N, K]."""
    k, n = (node.attributes.get_int(name, 0) for name in "KN")
    return _product(node, home, k, n, scale=0) if k > 0 and n > 0 else None


def _gathered(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto | None:
    """Rows of a table of codes, several per byte along the last axis."""
    tensor, scale = constant_tensor(operand(node, 0)), operand(node, 2)
    if tensor is None or scale is None or scale.dtype is None:
        return None
    *rest, last = tensor.shape.numpy()
    packed = tensor.dtype is ir.DataType.UINT8
    shape = (*rest, last * 8 // node.attributes.get_int("bits", 4) if packed else last)
    name = f"onnxfold.shape_equivalent.{node.outputs[0].name}"
    home.input.append(onnx.helper.make_tensor_value_info(name, scale.dtype.value, shape))
    axis = node.attributes.get_int("gather_axis", 0)
    return _made(node, "Gather", [name, _names(node)[1]], axis=axis)


def _float_product(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto | None:
    """DynamicQuantizeMatMul: a float tensor times an integer weight."""
    return _made(node, "MatMul", _names(node)[:2])


def _integer_product(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto | None:
    """MatMulIntegerToFloat: integers times integers, in the type of the scale."""
    a, b, scale = _names(node)[:3]
    return _scaled_product(node, a, b, scale)


def _elementwise(node: ir.Node, home: onnx.GraphProto) -> onnx.NodeProto | None:
    """QLinearAdd and QLinearMul: operands 0 and 3, each with scale and zero point."""
    names = _names(node)
    return _made(node, "Add", [names[0], names[3]])


def _weight_shape(node: ir.Node) -> tuple[int, ...] | None:
    tensor = constant_tensor(operand(node, 1))
    return None if tensor is None else tuple(tensor.shape.numpy())


def _product(
    node: ir.Node, home: onnx.GraphProto, rows: int, columns: int, *, scale: int
) -> onnx.NodeProto:
    """Return input 0 times a weight [rows, columns], in the type of input ``scale``."""
    name = f"onnxfold.shape_equivalent.{node.outputs[0].name}"
    known = operand(node, scale)
    dtype = ir.DataType.FLOAT if known is None or known.dtype is None else known.dtype
    weight = onnx.helper.make_tensor_value_info(name, dtype.value, (rows, columns))
    home.input.append(weight)
    names = _names(node)
    if scale == 0:
        return _made(node, "MatMul", [names[0], name])
    return _scaled_product(node, names[0], name, names[scale])


def _scaled_product(node: ir.Node, a: str, b: str, scale: str) -> onnx.NodeProto:
    """QLinearMatMul: a zero point has its tensor's type, the product the type of the last one."""
    return _made(node, "QLinearMatMul", [a, scale, a, b, scale, b, scale, scale])


# Each has a separate shape.
_MAKERS = {
    "Attention": _attention,
    "DynamicQuantizeMatMul": _float_product,
    "EmbedLayerNormalization": _embedding,
    "FusedConv": _without_activation,
    "FusedGemm": _without_activation,
    "FusedMatMul": _fused_matmul,
    "GatherBlockQuantized": _gathered,
    "GroupQueryAttention": _group_query,
    "MatMulIntegerToFloat": _integer_product,
    "MatMulNBits": _n_bits,
    "MultiHeadAttention": _multi_head,
    "QAttention": _attention,
    "QLinearAdd": _elementwise,
    "QLinearMul": _elementwise,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "TransposeMatMul": _fused_matmul,
}
