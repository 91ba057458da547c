"""One row of the operator table: what is known of one operator, as data."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto

from onnxfold.refusal import RefusalCode


class Elements(IntEnum):
    """What an operator does to the numbers of its data inputs; a level implies the later ones.

    f of the first output (of each, for Split), all other inputs being fixed.
    """

    PERMUTES = auto()  # every number is found again once
    COPIES = auto()  # each number of the output is one of the inputs'
    AVERAGES = auto()  # each is a weighted sum of them, with weights that add up to 1
    LINEAR = auto()  # each is a weighted sum of them: f(c x) = c f(x)
    HOMOGENEOUS = auto()  # f(c x) = c f(x) for c > 0
    OPAQUE = auto()  # nothing is known


class Family(Enum):
    """The index algebra that follows a fiber through an operator (operators/families)."""

    ADDITIVE = auto()
    ATTENTION = auto()
    CAST = auto()
    CENTRING = auto()
    CONCAT = auto()
    CONVOLUTION = auto()
    CUMULATIVE = auto()
    DROPOUT = auto()
    EINSUM = auto()
    EXPAND = auto()
    FILLED = auto()
    GATHER = auto()
    GATHER_ND = auto()
    GEMM = auto()
    GROUP_QUERY_ATTENTION = auto()
    MASKED = auto()
    MATMUL = auto()
    MATMUL_FUSED = auto()
    MULTI_HEAD_ATTENTION = auto()
    PAD = auto()
    PRODUCT = auto()
    QUOTIENT = auto()
    REDUCTION = auto()
    RESHAPE = auto()
    RESIZE = auto()
    SCATTER = auto()
    SHAPE = auto()
    SHIFT_INVARIANT = auto()
    SLICE = auto()
    SPATIAL_AVERAGE = auto()
    SPLIT = auto()
    TILE = auto()
    TRANSPOSE = auto()
    TRANSPOSED_CONVOLUTION = auto()


class Layer(Enum):
    """A linear layer: how the channels of its input, and of its output, stand in its weight."""

    CONVOLUTION = auto()
    EINSUM = auto()
    GEMM = auto()
    MATMUL = auto()
    PACKED_ATTENTION = auto()
    TRANSPOSED_CONVOLUTION = auto()


class Shapes(Enum):
    """The shape of the first output."""

    SAME = auto()  # that of the first input, and its type for what onnx does not know
    BROADCAST = auto()  # all inputs broadcast
    BROADCAST_TWO = auto()  # the first two inputs broadcast
    REDUCED = auto()  # that of the first input, without or with 1 for the axes it reduces


class Condition(Enum):
    """What a node may do that its row does not say (operators/families/rules)."""

    AVERAGES_PADDING = auto()
    EXTRAPOLATES = auto()
    NOT_OF_FLOATS = auto()
    PADS_NUMBERS = auto()
    PADS_ZEROS = auto()
    REDUCES_OTHERWISE = auto()
    TRAINS = auto()


@dataclass(frozen=True, slots=True)
class Unless:
    """Under a condition, a node does no better than a later level, and why."""

    condition: Condition
    elements: Elements
    sentence: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """Why no fiber is followed through an operator: the code and the predicate of a refusal."""

    code: RefusalCode
    sentence: str


@dataclass(frozen=True, slots=True)
class Operator:
    """What is known of one operator; every default claims nothing.

    ``family``: how a fiber is followed through it, ``law``: in words.  ``opaque``: why it is not.
    ``elements``: what it does to the numbers of its inputs ``data`` (None: of all), of each of them
    alone (``alone``, as a product) or of all together; ``unless`` conditions of the node hold;
    ``no_shift``: why y + s does not become f(y) + s where the level is LINEAR.
    ``layer``: how its weight holds channels; ``bias``: the input that is added to the product.
    ``adds_first``: the inputs of which it adds the other to either before whatever else it does.
    ``shape``: the shape of the first output.  ``foldable``: onnx's evaluator gives its exact result
    for small constants, and ``rounded``: one with the bits that IEEE 754 fixes, as every runtime
    computes them.  ``random``: it draws numbers.  ``decides``: it gives booleans.
    ``rotates``: inputs of cos, sin and positions, which turn pairs of channels of the first input.
    ``tables``: (input of indices, input they address); ``masks``: inputs of ones and zeros.
    ``kernel``: the module of its float64 kernel in check/reference/kernels.
    """

    op_type: str
    domain: str = ""
    family: Family | None = None
    law: str = ""
    opaque: Opaque | None = None
    elements: Elements = Elements.OPAQUE
    data: tuple[int, ...] | None = (0,)
    alone: bool = False
    unless: tuple[Unless, ...] = ()
    no_shift: str = ""
    layer: Layer | None = None
    bias: int | None = None
    adds_first: tuple[int, ...] = ()
    shape: Shapes | None = None
    foldable: bool = False
    rounded: bool = False
    random: bool = False
    decides: bool = False
    rotates: tuple[int, int, int] | None = None
    tables: tuple[tuple[int, int], ...] = ()
    masks: tuple[int, ...] = ()
    kernel: str = ""
    known: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """The operator that the row is about."""
        return self.domain, self.op_type


def each(op_types: str, like: Operator) -> Iterator[Operator]:
    """Yield one row for each of several operators that are alike."""
    return (replace(like, op_type=op_type) for op_type in op_types.split())
