"""What a pass tells the proof: hints that save a search, none of which is believed."""

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from onnxfold.graph import Fiber
from onnxfold.graph.channels import Channels


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A node that absorbs y = r * x + s: W' = W diag(r), and its bias grows by factor * W s.

    ``node`` is the reference of the node's first output and ``weight`` that of W, in the original;
    ``bias`` is the input that takes W s, None where its output does.  ``inner`` and ``outer`` are
    the channels of x and of the output, in the coordinates of W.
    """

    node: str
    weight: str
    inner: Channels
    outer: Channels
    bias: int | None
    factor: float


@dataclass(frozen=True, slots=True, eq=False)
class ScaledWeight:
    """W' = vector * W along ``channels`` for the reader (reference of a node) that is named."""

    weight: str
    reader: str
    channels: Channels
    vector: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class TurnedWeight:
    """W' = W R, for every set of the fiber; one array R for all weights of one stream."""

    weight: str
    fiber: Fiber
    matrix: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Certificate:
    """Hints by reference: a fiber of each centred weight or value, norms that were folded.

    ``centred`` pairs references of the original; ``folded`` names the results of norms.
    ``by_name_alone``: what has a new name stands for no value of the original, but for the copy of
    a constant, and only what is ``centred`` may have mean 0.  ``rounding``: values that are equal
    must be rounded no more than before either, on rows of every kind.
    """

    centred: tuple[tuple[str, Fiber], ...] = ()
    folded: tuple[str, ...] = ()
    linear: tuple[LinearLayer, ...] = ()
    scaled: tuple[ScaledWeight, ...] = ()
    turned: tuple[TurnedWeight, ...] = ()
    by_name_alone: bool = False
    rounding: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether everything could be shown, and otherwise what could not."""

    passed: bool
    folded_norms: int
    centred_weights: int
    failures: tuple[str, ...]
    scaled_weights: int = 0
    shifted_biases: int = 0
    shifted_weights: int = 0
    compressed_norms: int = 0
    decompressed_norms: int = 0
    changed_readers: int = 0
    deferred_norms: int = 0
    reinstated_norms: int = 0
    scaled_streams: int = 0
    rotated_weights: int = 0
    split_gammas: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the report's form."""
        return {**asdict(self), "failures": list(self.failures)}
