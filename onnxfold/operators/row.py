"""One row of the operator table: the knowledge about one operator, as data."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto

from onnxfold.refusal import RefusalCode


class Elements(IntEnum):
    """The effect of an operator on the numbers of its data inputs.

    A level implies the later ones. It concerns f of the first
    output (of each, for Split), with all other inputs fixed.
    """

    PERMUTES = auto()  # every number occurs exactly once
    COPIES = auto()  # each number of the output is one of the inputs'
    AVERAGES = auto()  # each is a weighted sum of them, with weights that sum to 1
    LINEAR = auto()  # each is a weighted sum of them: f(c x) = c f(x)
    HOMOGENEOUS = auto()  # f(c x) = c f(x) for c > 0
    OPAQUE = auto()  # nothing is known


class Family(Enum):
    """The index algebra that follows a fiber through an operator (operators/families)."""

    ADDITIVE = auto()
    ATTENTION = auto()
    BATCH_NORM = auto()
    CAST = auto()
    CENTRING = auto()
    CONCAT = auto()
    CONVOLUTION = auto()
    CUMULATIVE = auto()
    DEFORMABLE_CONVOLUTION = auto()
    DROPOUT = auto()
    EINSUM = auto()
    EXPAND = auto()
    EXPERTS = auto()
    FILLED = auto()
    GATHER = auto()
    GATHER_ND = auto()
    GEMM = auto()
    GROUP_QUERY_ATTENTION = auto()
    MASKED = auto()
    MATMUL = auto()
    MATMUL_BLOCKS = auto()
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
    """A linear layer: the layout of its input and output channels in its weight."""

    CONVOLUTION = auto()
    DEFORMABLE_CONVOLUTION = auto()
    EINSUM = auto()
    EXPERTS = auto()
    EXPERT_BLOCKS = auto()
    GEMM = auto()
    MATMUL = auto()
    MATMUL_BLOCKS = auto()
    PACKED_ATTENTION = auto()
    RECURRENT = auto()
    TRANSPOSED_CONVOLUTION = auto()


OF_CODES = (Layer.EXPERT_BLOCKS, Layer.MATMUL_BLOCKS)  # whose weights are codes of few bits

MIXTURES = (Layer.EXPERTS, Layer.EXPERT_BLOCKS)  # of experts that a router picks


class Shapes(Enum):
    """The shape of the first output."""

    SAME = auto()  # of the first input, with its type for operators unknown to onnx
    BROADCAST = auto()  # all inputs broadcast
    BROADCAST_TWO = auto()  # the first two inputs broadcast
    REDUCED = auto()  # of the first input, without the reduced axes or with 1 for them


class Condition(Enum):
    """A behavior of a node that its row does not cover (operators/families/rules)."""

    AVERAGES_PADDING = auto()
    EXTRAPOLATES = auto()
    NOT_OF_FLOATS = auto()
    PADS_NUMBERS = auto()
    PADS_ZEROS = auto()
    REDUCES_OTHERWISE = auto()
    TRAINS = auto()


@dataclass(frozen=True, slots=True)
class Unless:
    """An exception: under a condition a node has only a later level, and why."""

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
    """Knowledge about one operator; every default claims nothing.

    ``family``: how a fiber is followed through it, ``law``: in words. ``opaque``: why it is not.
    ``elements``: its effect on the numbers of its inputs ``data`` (None for all), of each of them
    alone (``alone``, as a product) or of all together; ``unless`` conditions of the node apply;
    ``no_shift``: why y + s does not become f(y) + s where the level is LINEAR. ``layer``: the
    layout of channels in its weight; ``weight``: the input that holds it; ``bias``: the input that
    is added to the product. ``enters``: each weight by which its first input alone enters a layer
    of several, and the bias of each.
    ``adds_first``: the two inputs whose sum it computes before anything else. ``shape``: the shape
    of the first output. ``foldable``: onnx's evaluator computes its exact result for small
    constants, and ``rounded``: one with the bits that IEEE 754 fixes, as every runtime computes
    them. ``random``: it draws numbers. ``decides``: it returns booleans. ``rotates``: inputs of
    cos, sin and positions, which turn pairs of channels of the first input. ``tables``: (input of
    indices, input they address); ``masks``: inputs of ones and zeros. ``kernel``: the module of its
    float64 kernel in check/reference/kernels.
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
    weight: int = 1
    bias: int | None = None
    enters: tuple[tuple[int, int], ...] = ()
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
        """The operator of the row."""
        return self.domain, self.op_type


def each(op_types: str, like: Operator) -> Iterator[Operator]:
    """Yield one row for each of several operators with equal facts."""
    return (replace(like, op_type=op_type) for op_type in op_types.split())
