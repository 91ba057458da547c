"""What is said of a difference: kernels that err in both models, the first node that differs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.check.common_values import locate
from tests.check.verified import one_gamma, single, verified
from tests.folded import VOCABULARY, model, weights


def _feeds() -> dict[str, np.ndarray]:
    return {"ids": np.random.default_rng(0).integers(0, VOCABULARY, (2, 9))}


def test_locate_accepts_a_fold_and_names_the_first_wrong_node() -> None:
    w = weights()
    assert locate(model(w), model(w.centred(), rms=True), _feeds()) is None
    wrong_gamma = locate(model(w), model(one_gamma(w.centred()), rms=True), _feeds())
    assert wrong_gamma is not None
    assert wrong_gamma.outputs[0].name == "s"
    forbidden = locate(model(w), model(w, rms=True), _feeds())
    assert forbidden is not None
    assert forbidden.name == "norm"


def test_a_failure_names_the_first_node_that_differs() -> None:
    w = weights()
    result = verified(model(w), model(w, rms=True))
    assert str(result.worst).endswith("the first node that differs is 'norm' (onnxfold.RMSNorm)")


def _head(last: str, *, folded: bool, shift: float = 16.0, tiny: float = 1e-7) -> ir.Model:
    """y = `last` of a product of about -16, and z of the size of y, which only a Mul makes."""
    scaled = "s = Identity (p)" if folded else "s = Mul (p, scale)"
    text = f"p = MatMul (x, w)  {scaled}  l = Sub (s, shift)  y = {last} (l)  z = Mul (s, tiny)"
    made = single(text, "float[4, 64] x", "float[M, N] y, float[M, N] z")
    scale = 0.37
    w = np.random.default_rng(7).standard_normal((64, 32)) / 8
    constants = {"w": w * scale if folded else w, "scale": scale, "shift": shift, "tiny": tiny}
    proto = ir.to_proto(made)
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array, dtype=np.float32), name)
        for name, array in constants.items()
        if name in read
    )
    return ir.from_proto(proto)


@pytest.mark.parametrize("seed", range(8))
def test_a_kernel_that_errs_does_so_in_both_models(seed: int) -> None:
    # ONNX Runtime's Sigmoid errs by up to 9e-8 where it should give 1e-7 (PP-OCRv5_det).
    result = verified(_head("Sigmoid", folded=False), _head("Sigmoid", folded=True), seed=seed)
    y, z = result.outputs
    assert (y.passed, z.passed) == (True, True), result
    assert (y.method, z.method, result.method) == ("onnxruntime", "float64", "mixed")
    assert y.relative_noise > 0.02
    assert z.relative_noise < 1e-5


@pytest.mark.parametrize(
    ("last", "defect", "output"),
    [
        ("Exp", {"shift": 15.7}, "y"),  # of 3e-8, where the runtime's kernel does not err by that
        ("Sigmoid", {"tiny": 1.3e-7}, "z"),  # of 3e-8, next to a kernel that does
        ("Sigmoid", {"tiny": 1.0001e-7}, "z"),
        ("Sigmoid", {"shift": 14.0}, "y"),  # more than such a kernel errs
    ],
)
def test_the_error_of_a_kernel_excuses_no_other(
    last: str, defect: dict[str, float], output: str
) -> None:
    broken = verified(_head(last, folded=False), _head(last, folded=True, **defect))
    assert {check.name: check.passed for check in broken.outputs}[output] is False


def test_what_was_compared_is_said_for_each_output() -> None:
    w = weights()
    (plain,) = verified(model(w), model(w.centred(), rms=True)).outputs
    assert (plain.method, plain.reason) == ("float64", None)
    assert plain.bound == pytest.approx(4 * plain.original_rms_error, rel=0.5)
    assert (
        plain.allowed
        == "4 times the original's noise: ONNX Runtime's, with or without optimizations"
    )
    (far, _) = verified(_head("Sigmoid", folded=False), _head("Sigmoid", folded=True)).outputs
    assert str(far.reason).startswith("ONNX Runtime is so far from a float64 run")
    assert far.rms_error <= far.bound
    unknown = "i = com.microsoft.Inverse (x)  y = MatMul (i, w)"
    square = single(unknown, "float[4, 4] x, float[4, 4] w")
    (runtime,) = verified(square, square).outputs
    assert runtime.method == "onnxruntime"
    assert str(runtime.reason).startswith("there is no float64 run: node")
    (given,) = verified(model(w), model(w), rtol=0.0, atol=1e-3).outputs
    assert (given.bound, given.allowed) == (1e-3, "the tolerance that was given")
