"""Which norms defer their scale, where it is multiplied, and which downstream norms cancel it."""

from dataclasses import dataclass, replace
from math import sqrt

from onnxfold.graph import Fiber
from onnxfold.passes.deferral.row_scale import RowScale
from onnxfold.passes.places import ReaderRef
from onnxfold.refusal import Refusal, RefusalCode


@dataclass(frozen=True, slots=True)
class UnscaledValue:
    """A value that is computed without its scale: value = s^degree times the computed one.

    ``multiplied``: some reader needs the value itself, so the scale is multiplied here; ``biased``:
    before the bias of the layer that computes it, which becomes a separate sum.
    """

    value: str
    scale: RowScale
    multiplied: bool
    biased: bool = False


@dataclass(frozen=True, slots=True)
class ScaledTable:
    """The factors at inputs of a node that are multiplied by ``scale`` instead of another input.

    ``node`` is the reference of its first output.
    """

    node: str
    indices: tuple[int, ...]
    scale: RowScale


@dataclass(frozen=True, slots=True)
class CentredReader:
    """The weight at a node's input that is centered along ``fiber``, only for this node.

    ``nbytes``: its size if others read it, so that it is stored twice, otherwise 0.
    """

    reader: ReaderRef
    fiber: Fiber
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class MeanBound:
    """The error bound of a product in which a row x keeps its mean m.

    |error| <= factor sqrt((m^2 + var) / (var + epsilon)), element by element, with var of the row.
    """

    factor: float
    epsilon: float

    @property
    def of_constant(self) -> float:
        """The bound of a row of ones; for a constant c it is |c| times as large."""
        return self.factor / sqrt(self.epsilon)

    def __str__(self) -> str:
        return (
            f"error up to {self.factor:.2g} sqrt((mean^2 + var) / (var + {self.epsilon:g})), "
            f"{self.of_constant:.2g} |c| for a row of one number c"
        )

    def to_json(self) -> dict[str, object]:
        """Return the report's form."""
        numbers = {"factor": self.factor, "epsilon": self.epsilon}
        return {**numbers, "of_constant_row": self.of_constant, "sentence": str(self)}


@dataclass(frozen=True, slots=True)
class HalvedReader:
    """The weight at a node's input that is multiplied by 2^-exponent, only for this node.

    ``fiber``: what is summed along it; ``nbytes``: its size if others read it too, otherwise 0.
    """

    reader: ReaderRef
    fiber: Fiber
    exponent: int
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class DeferredNorm:
    """A norm y = s x that is removed: its readers read x.

    For a LayerNorm, y = s P x, and they center it. ``output`` is the reference of y; ``held`` are
    the downstream values that are computed without s, in order, ``cancelled`` the results of the
    norms after them, with the scale of their input. ``multiplications_saved`` counts those by the
    scale, and by gammas that move, for one row: the elements of y minus the elements of the values
    that are multiplied instead. ``centred`` are weights of a LayerNorm's readers, ``tables``
    factors (cos and sin) that are multiplied instead of values, ``gammas`` results of canceling
    norms whose gammas are multiplied to such factors. ``halved`` are the weights of float16 layers
    with a power of two, which s compensates. ``bound``: of the rounding of a LayerNorm whose mean
    stays.
    """

    name: str
    output: str
    held: tuple[UnscaledValue, ...]
    cancelled: tuple[tuple[str, RowScale], ...]
    multiplications_saved: int
    centred: tuple[CentredReader, ...] = ()
    tables: tuple[ScaledTable, ...] = ()
    gammas: tuple[str, ...] = ()
    halved: tuple[HalvedReader, ...] = ()
    bound: MeanBound | None = None

    @property
    def exponent(self) -> int:
        """The k of the 2^-k in layers' weights."""
        return self.halved[0].exponent if self.halved else 0

    @property
    def multiplied(self) -> tuple[UnscaledValue, ...]:
        """The values at which the scale is multiplied."""
        return tuple(held for held in self.held if held.multiplied)

    def __str__(self) -> str:
        multiplied, cancelled = len(self.multiplied), len(self.cancelled)
        return f"{self.name}: multiplied at {multiplied} values, canceled by {cancelled} norms"

    def to_json(self) -> dict[str, object]:
        """Return the report's form."""
        return {
            "applied": [held.value for held in self.multiplied],
            "cancelled": [output for output, _ in self.cancelled],
            "multiplications_saved": self.multiplications_saved,
            "tables": [table.node for table in self.tables],
            "gammas": list(self.gammas),
            "centred": [reader.reader.node for reader in self.centred],
            "bound": None if self.bound is None else self.bound.to_json(),
        }


@dataclass(frozen=True, slots=True)
class DeferralPlan:
    """The deferred norms, in order, and why the others stay, by reference of their outputs."""

    norms: tuple[DeferredNorm, ...] = ()
    refusals: tuple[tuple[str, Refusal], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether every norm stays."""
        return not self.norms

    def left_out(self, reason: str) -> "DeferralPlan":
        """Return the plan to defer nothing, with the reason for each norm."""
        refusals = [
            (norm.output, Refusal(RefusalCode.NOT_PROVED, reason, (norm.name,)))
            for norm in self.norms
        ]
        return replace(self, norms=(), refusals=(*self.refusals, *refusals))

    def then(self, later: "DeferralPlan") -> "DeferralPlan":
        """Return both plans as one, with the later refusals."""
        return DeferralPlan(self.norms + later.norms, later.refusals)
