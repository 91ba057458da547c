"""Does the rewritten model compute what the original does."""

from collections.abc import Sequence

from onnxfold.check.criterion import AcceptanceCriterion, Tolerance
from onnxfold.check.evidence import FLOAT64_LIMIT_BYTES, Outputs
from onnxfold.check.result import ModelSource, Verification
from onnxfold.check.truth import Progress, judged, truth_of
from onnxfold.errors import UsageError, VerificationError
from onnxfold.inputs import InputSpec
from onnxfold.options import DEFAULT_NOISE_LIMIT, check_number


def verify(  # noqa: PLR0913  # each is an option of the command line
    original: ModelSource,
    rewritten: ModelSource,
    *,
    samples: int = 2,
    seed: int = 0,
    data: Sequence[Outputs] = (),
    spec: InputSpec | None = None,
    limit: float = DEFAULT_NOISE_LIMIT,
    rtol: float | None = None,
    atol: float | None = None,
    providers: Sequence[str] | None = None,
    progress: Progress | None = None,
    float64_limit_bytes: int = FLOAT64_LIMIT_BYTES,
    memory_bytes: int | None = None,
) -> Verification:
    """Compares two models on seeded inputs by the criterion of `onnxfold.check.criterion`.

    The truth is a float64 run of the original. Both models run in their own precision, by ONNX
    Runtime if it can, else by the interpreter. `rtol` or `atol` replace the criterion by bounds on
    the distance to the truth. Where no float64 run can be had (an operator without a kernel, a
    tensor of more than `float64_limit_bytes`, too many parameters), both are compared in ONNX
    Runtime without optimizations, and the noise is that between the original with and without them.
    `memory_bytes`: what the comparison may take, by default most of what is free; models that take
    more run in pieces, one after the other.

    Raises UsageError for options or inputs that make no sense, ModelError where the original cannot
    be run, VerificationError where the rewritten model cannot be run or nothing can be compared.
    """
    criterion = _criterion(limit, rtol, atol)
    check_interface(original, rewritten)
    steps = 3 * (samples + len(data))

    def done(count: int, _total: int) -> None:
        if progress is not None:
            progress(count, steps)

    truth = truth_of(
        original,
        spec=spec,
        samples=samples,
        seed=seed,
        data=data,
        providers=providers,
        memory_bytes=memory_bytes,
        float64_limit_bytes=float64_limit_bytes,
        progress=done,
    )
    verification = judged(original, rewritten, truth, criterion)
    done(steps, steps)
    return verification


def _criterion(limit: float, rtol: float | None, atol: float | None) -> AcceptanceCriterion:
    if not limit > 0:
        raise UsageError(f"the limit of the noise ratio must be positive, not {limit}")
    check_number("rtol", rtol)
    check_number("atol", atol)
    if rtol is None and atol is None:
        return AcceptanceCriterion(limit)
    return AcceptanceCriterion(limit, Tolerance(rtol or 0.0, atol or 0.0))


def check_interface(original: ModelSource, changed: ModelSource) -> None:
    """Raises VerificationError where inputs or outputs have other names, or another order."""
    for kind in ("inputs", "outputs"):
        before, after = (
            [str(v.name) for v in getattr(source.model.graph, kind) if not v.is_initializer()]
            for source in (original, changed)
        )
        if before != after:
            raise VerificationError(
                f"{changed.label}: its {kind} are {', '.join(after)}, not {', '.join(before)}"
            )
