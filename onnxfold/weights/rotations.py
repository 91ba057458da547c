"""Orthogonal matrices, and tensors with every set of a fiber multiplied by one.

    R = D H / sqrt(n),  D random signs, H a Hadamard matrix: H H' = n I, all elements 1 or -1

Sylvester: H of 2 n is [[H, H], [H, -H]], and the Kronecker product of two is one of the product of
their sizes.  Paley, with Q[i, j] = chi(i - j) of the field of q elements, chi 1 for squares, -1 for
others and 0 for 0:

    q = 3 mod 4:  I + S, S = [[0, 1'], [-1, Q]]                              of size q + 1
    q = 1 mod 4:  S x [[1, 1], [1, -1]] + I x [[1, -1], [-1, -1]], S = [[0, 1'], [1, Q]]
                                                                             of size 2 (q + 1)

Any other size has the Q of a random matrix's QR decomposition, of Haar's measure by the signs of R.

Source: Paley, "On orthogonal matrices", 1933; Mezzadri, "How to generate random matrices from the
classical compact groups", 2007; Ashkboos et al., "QuaRot", 2024, for their use.
"""

from enum import StrEnum
from functools import lru_cache

import numpy as np
import onnx_ir as ir

from onnxfold.errors import InvariantError, WeightOverflowError
from onnxfold.graph import Fiber
from onnxfold.graph.constants import Float64
from onnxfold.weights.edited import LikeTensor, unrounded
from onnxfold.weights.means import split_digits

# Sizes of Paley's matrices, by the number of elements of their field, which is a prime.
_PALEY = {12: 11, 20: 19, 28: 13}


class RotationKind(StrEnum):
    """Which orthogonal matrix."""

    HADAMARD = "hadamard"
    RANDOM = "random"


def has_hadamard(size: int) -> bool:
    """Whether a Hadamard matrix of a size is a product of those that are known here."""
    return _parts(size) is not None


def rotation(kind: RotationKind, size: int, seed: int) -> Float64:
    """Return an orthogonal matrix, the same for the same seed; random where none is Hadamard's."""
    rng = np.random.default_rng([seed, size])
    if kind is RotationKind.HADAMARD and has_hadamard(size):
        signs = rng.choice((-1.0, 1.0), size)
        return np.asarray(signs[:, np.newaxis] * hadamard(size) / np.sqrt(size))
    q, r = np.linalg.qr(rng.standard_normal((size, size)))
    q = np.asarray(q * np.sign(np.diag(r)))
    # One step of Newton's iteration takes out the roundings of the decomposition.
    return np.asarray(q @ (1.5 * np.eye(size) - 0.5 * (q.T @ q)))


def hadamard(size: int) -> Float64:
    """Return a matrix of ones and minus ones with H H' = size I; InvariantError where none is."""
    parts = _parts(size)
    if parts is None:
        raise InvariantError(f"no Hadamard matrix of size {size} is known here")
    result = np.ones((1, 1))
    for part in parts:
        result = np.kron(result, _paley(part) if part in _PALEY else np.array([[1, 1], [1, -1.0]]))
    return result


@lru_cache
def _parts(size: int) -> tuple[int, ...] | None:
    """Return the fewest sizes with this product, each of which has a matrix."""
    if size == 1:
        return ()
    for part in (*sorted(_PALEY, reverse=True), 2):
        rest = _parts(size // part) if size > 0 and size % part == 0 else None
        if rest is not None:
            return (part, *rest)
    return None


def _paley(size: int) -> Float64:
    q = _PALEY[size]
    squares = {n * n % q for n in range(1, q)}
    chi = np.array([0.0] + [1.0 if n in squares else -1.0 for n in range(1, q)])
    places = np.arange(q)
    s = np.zeros((q + 1, q + 1))
    s[0, 1:], s[1:, 0] = 1, (-1 if q % 4 == 3 else 1)
    s[1:, 1:] = chi[(places[:, np.newaxis] - places) % q]
    if q % 4 == 3:
        return s + np.eye(q + 1)
    first, second = np.array([[1, 1], [1, -1.0]]), np.array([[1, -1], [-1, -1.0]])
    return np.asarray(np.kron(s, first) + np.kron(np.eye(q + 1), second))


def error_of_orthogonality(matrix: Float64) -> float:
    """Return the largest element of R R' - I."""
    return float(np.abs(matrix @ matrix.T - np.eye(len(matrix))).max(initial=0.0))


def rotated(array: Float64, fiber: Fiber, matrix: Float64, *, back: bool = False) -> Float64:
    """Return x R for every set x of a fiber of one block, or x R'.

    Raises InvariantError where the fiber does not fit the shape.
    """
    digits, members = split_digits(array.shape, fiber)
    if len(members) != 1 or digits[members[0]] != len(matrix) or fiber.part is not None:
        raise InvariantError(f"a rotation of {len(matrix)} does not fit {fiber}")
    split = np.moveaxis(array.reshape(digits), members[0], -1)
    turned = split @ (matrix.T if back else matrix)
    return np.asarray(np.moveaxis(turned, -1, members[0]).reshape(array.shape))


class RotatedTensor(LikeTensor):
    """A tensor with every set of a fiber multiplied by an orthogonal matrix, rounded once.

    For another edited tensor it continues from its unrounded numbers.
    """

    def __init__(self, base: ir.TensorProtocol, fiber: Fiber, matrix: Float64, name: str):
        super().__init__(base, name)
        self._fiber, self._matrix = fiber, matrix

    def exact(self) -> Float64:
        """Return the numbers in float64."""
        return rotated(unrounded(self.base).astype(np.float64), self._fiber, self._matrix)

    def _compute(self) -> ir.TensorProtocol:
        with np.errstate(over="ignore"):
            array = self.exact().astype(self.dtype.numpy())
        if not np.isfinite(array.astype(np.float64)).all():
            raise WeightOverflowError(
                f"weight '{self.name}' would leave the range of {self.dtype}, or holds inf or NaN"
            )
        return ir.Tensor(array, dtype=self.dtype, name=self.name)
