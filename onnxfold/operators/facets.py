"""Questions about an operator, each derived from its row: never a list of operators."""

from collections.abc import Collection, Mapping

from onnxfold.operators.row import Elements, Family, Operator, Shapes
from onnxfold.refusal import RefusalCode


def reads_elements(row: Operator) -> bool:
    """Whether a change of the inputs' numbers may reach an output."""
    return row.family is not Family.SHAPE


def reads_type_alone(row: Operator, index: int) -> bool:
    """Whether only the type of an input is read, as for the second of CastLike."""
    return row.family is Family.CAST and index == 1


def passes_scale(row: Operator) -> bool:
    """Whether f(g * x) = g * f(x), with g transformed by the family."""
    return row.elements <= Elements.LINEAR and row.family is not None


def passes_shift(elements: Elements) -> bool:
    """Whether f(x + s) = f(x) + s as well."""
    return elements <= Elements.AVERAGES


def moves_numbers(row: Operator) -> bool:
    """Whether every number of the outputs is one of the data inputs'."""
    return row.elements <= Elements.COPIES


def alike_everywhere(row: Operator) -> bool:
    """Whether all runtimes compute equal bits from constants: only IEEE 754 operations round."""
    return row.rounded or moves_numbers(row)


def stands_before_a_weight(row: Operator) -> bool:
    """Whether an edit of the first output can be made in the one data input instead."""
    return row.elements <= Elements.PERMUTES and row.data == (0,) and row.family is not None


def scales_every_output(row: Operator) -> bool:
    """Whether further outputs are parts of the data inputs as well, as for Split."""
    return row.family is Family.SPLIT


def degree(
    row: Operator, level: Elements, degrees: Mapping[int, int], present: Collection[int]
) -> int | None:
    """Return k with f(c^j x) = c^k f(x) for every c > 0 if input i is multiplied by c^degrees[i].

    ``level`` is the effect of the node on its numbers, ``present`` the inputs that it has. Degrees
    add in products; a sum needs equal ones. None if f is not homogeneous, as with a bias.
    """
    data = set(data_inputs(row, max(present, default=-1) + 1)) & set(present)
    if level > Elements.HOMOGENEOUS or not degrees or not set(degrees) <= data:
        return None
    if row.alone:
        return None if row.bias in present else sum(degrees.values())
    powers = set(degrees.values())
    return powers.pop() if set(degrees) == data and len(powers) == 1 else None


_POSITIONWISE = frozenset(
    {
        Family.ADDITIVE,
        Family.CAST,
        Family.DROPOUT,
        Family.MASKED,
        Family.PRODUCT,
        Family.QUOTIENT,
    }
)


def keeps_order(row: Operator) -> bool:
    """Whether every number keeps its place in row-major order."""
    return row.elements <= Elements.PERMUTES and (reshapes(row) or positionwise(row))


_CHANNELWISE = _POSITIONWISE | {
    Family.CONCAT,
    Family.CONVOLUTION,
    Family.EXPAND,
    Family.GATHER,
    Family.GATHER_ND,
    Family.GEMM,
    Family.MATMUL,
    Family.RESHAPE,
    Family.SLICE,
    Family.SPLIT,
    Family.TRANSPOSE,
}


def keeps_channels_apart(row: Operator) -> bool:
    """Whether a channel of the result depends only on one channel of the followed input.

    A channel omitted from the input is then omitted from the result; a Slice may reverse the order.
    a Slice may turn the order.
    """
    return row.family in _CHANNELWISE


def gives_alike(row: Operator, read: Collection[int]) -> bool:
    """Whether the outputs that are read are equivalent: only the first, or parts of one input."""
    return set(read) <= {0} or scales_every_output(row)


def positionwise(row: Operator) -> bool:
    """Whether each number of the output depends only on the inputs' numbers at the same place."""
    if row.family is not None:
        return row.family in _POSITIONWISE
    shaped = row.shape in (Shapes.SAME, Shapes.BROADCAST)
    return shaped and row.kernel in ("activation", "elementwise")


def data_inputs(row: Operator, count: int) -> tuple[int, ...]:
    """Return the data inputs among ``count``; the others are parameters."""
    return tuple(range(count)) if row.data is None else row.data


def bias_behind(row: Operator) -> int | None:
    """Return the input that is added, with broadcasting, to the product of a linear layer."""
    return row.bias if row.family in (Family.GEMM, Family.MATMUL_BLOCKS) else None


def adds(row: Operator) -> bool:
    """Whether each number of the output is the sum or mean of the inputs' at its place."""
    return row.family is Family.ADDITIVE


def multiplies(row: Operator) -> bool:
    """Whether each number of the output is a product or quotient of the inputs' at its place."""
    return row.family in (Family.PRODUCT, Family.QUOTIENT)


def factors(row: Operator) -> tuple[int, ...]:
    """Return the inputs that are multiplied element by element, with broadcasting."""
    return (0, 1) if row.family is Family.PRODUCT else ()


def numerators(row: Operator) -> tuple[int, ...]:
    """Return the inputs whose factors become factors of the output, element by element."""
    return (0,) if row.family is Family.QUOTIENT else factors(row)


def takes_scale(row: Operator) -> bool:
    """Whether a scale of the output can be absorbed by the layer's weight and bias."""
    return row.layer is not None and row.elements <= Elements.LINEAR


def same_shape(row: Operator) -> bool:
    """Whether the first output has the shape of the first input."""
    return row.shape is Shapes.SAME


def broadcasts(row: Operator) -> int | None:
    """Return how many inputs determine the output shape by broadcasting (0 for all), or None."""
    return {Shapes.BROADCAST: 0, Shapes.BROADCAST_TWO: 2}.get(row.shape) if row.shape else None


def reduces(row: Operator) -> bool:
    """Whether the operator reduces axes, named by an attribute or its second input."""
    return row.shape is Shapes.REDUCED


def reshapes(row: Operator) -> bool:
    """Whether the elements stay in row-major order, under another shape."""
    return row.family is Family.RESHAPE


def is_embedding(row: Operator) -> bool:
    """Whether it looks up rows in a table, the first input."""
    return row.family in (Family.GATHER, Family.GATHER_ND)


def quantised(row: Operator) -> bool:
    """Whether the operator computes with quantized numbers."""
    return row.opaque is not None and row.opaque.code is RefusalCode.QUANTISED
