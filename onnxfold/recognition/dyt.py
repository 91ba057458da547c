"""DyT: tanh(alpha * x) * gamma + beta, per channel, without any statistics.

Source: Zhu et al., "Transformers without Normalization", 2025, equation 1. The tanh form of GELU
adds 1 to the tanh and multiplies by a tensor, so its gamma is not constant.
"""

from collections.abc import Iterator

import onnx_ir as ir

from onnxfold.graph import AxisBlock, Fiber, ModelInfo, Reader, node_label, operator
from onnxfold.norms.site import NormForm, NormKind, NormSite
from onnxfold.recognition.algebra import Algebra, Canonical, Coefficient


def dyt_sites(view: ModelInfo) -> Iterator[NormSite]:
    """Yield every Tanh of a scalar multiple of x that is followed by gamma of one axis."""
    algebra = Algebra(Canonical(view))
    for node in view.nodes():
        if node.op_type == "Tanh" and node.domain == "":
            site = _site(algebra, node)
            if site is not None:
                yield site


def _site(algebra: Algebra, tanh: ir.Node) -> NormSite | None:
    if _reader(algebra, tanh.outputs[0], "Mul") is None:
        return None  # as in GELU; checked before sizes, which are traced far back
    scale = _producer(algebra, tanh.inputs[0])
    if scale is None or scale.op_type != "Mul" or scale.domain != "":
        return None
    for x, alpha in (scale.inputs, scale.inputs[::-1]):
        number = algebra.number_beside(alpha, x)
        if x is not None and number is not None:
            return _with_affine(algebra, (scale, tanh), x, number)
    return None


def _with_affine(
    algebra: Algebra, nodes: tuple[ir.Node, ir.Node], x: ir.Value, alpha: float
) -> NormSite | None:
    scale, tanh = nodes
    gamma = _next(algebra, tanh.outputs[0], "Mul", x)
    if gamma is None:
        return None
    product, factor = gamma
    axes = algebra.varying(factor, x) or frozenset()
    if len(axes) != 1 or not factor.expressible:
        return None
    (axis,) = axes
    dim = algebra.view.dim(x, axis)
    if not isinstance(dim, int):
        return None
    beta = _next(algebra, product.outputs[0], "Add", x)
    closed = beta is not None and beta[1].expressible and algebra.varying(beta[1], x) == axes
    last = beta[0] if beta is not None and closed else product
    owned = (scale, tanh, product) if last is product else (scale, tanh, product, last)
    inner = [value for node in owned for value in node.outputs if value is not last.outputs[0]]
    readers = set(owned)
    return NormSite(
        name=node_label(last),
        kind=NormKind.DYT,
        form=NormForm.DECOMPOSED,
        input=x,
        output=last.outputs[0],
        fiber=Fiber.of((AxisBlock(axis, 1, dim, 1),)),
        size=dim,
        epsilon=0.0,
        nodes=owned,
        factor=alpha,
        gamma=factor.source if factor.source is not None else factor.array,
        beta=beta[1].source if beta is not None and closed else None,
        escaping=tuple(
            value
            for value in inner
            if value.is_graph_output() or any(use.node not in readers for use in value.uses())
        ),
        compute_dtype=algebra.canonical.dtype(tanh.outputs[0]) or ir.DataType.FLOAT,
    )


def _producer(algebra: Algebra, value: ir.Value | None) -> ir.Node | None:
    return None if value is None else algebra.canonical.root(value).producer()


def _next(
    algebra: Algebra, value: ir.Value, op_type: str, x: ir.Value
) -> tuple[ir.Node, Coefficient] | None:
    """Return the one reader of a value if it is an ``op_type`` with a parameter, and that."""
    reader = _reader(algebra, value, op_type)
    if reader is None:
        return None
    factor = algebra.canonical.coefficient(reader.node.inputs[1 - reader.index], x)
    return None if factor is None else (reader.node, factor)


def _reader(algebra: Algebra, value: ir.Value, op_type: str) -> Reader | None:
    """Return the one reader of a value if it is an ``op_type``."""
    readers = algebra.view.readers(value)
    if len(readers) != 1 or value.is_graph_output() or operator(readers[0].node) != op_type:
        return None
    return readers[0]
