"""RNN, GRU and LSTM after a norm: X enters by W x + Wb alone, and Wb is half of the bias."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.passes.plan import Plan
from tests.graphs import Array, graph
from tests.passes.affine.affine_graphs import fuse, proved_with, rightly
from tests.sessions import outputs

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
RNG = np.random.default_rng(11)
NORM = "n = LayerNormalization<axis=-1>(x, gamma, beta)"
WIDTH, H = 6, 5
# Attributes, the inputs after R, and the results.
FORMS: dict[str, tuple[str, str, str]] = {
    "plain": ("", ", B", "y"),
    "without a bias": ("", "", "y"),
    "the last state alone": ("", ", B", ", y"),
    "reversed": ('direction="reverse"', ", B", "y"),
    "both directions": ('direction="bidirectional"', ", B", "y"),
    "both directions without a bias": ('direction="bidirectional"', "", "y"),
    "batch first": ("layout=1", ", B", "y"),
    "lengths and a state": ("", ", B, lengths, h0", "y"),
    "lengths of a caller": ("", ", B, given", "y"),
    "lengths of a caller, no bias": ('direction="bidirectional"', ", , given", "y"),
    "clipped": ("clip=0.5", ", B", "y"),
}


def _constants(op_type: str, form: str) -> dict[str, Array]:
    d, g = 2 if "bidirectional" in FORMS[form][0] else 1, GATES[op_type]
    made = {
        "gamma": 1 + 0.5 * RNG.standard_normal(WIDTH),
        "beta": RNG.standard_normal(WIDTH),
        "W": 0.4 * RNG.standard_normal((d, g * H, WIDTH)),
        "R": 0.4 * RNG.standard_normal((d, g * H, H)),
        "B": RNG.standard_normal((d, 2 * g * H)),
        "lengths": np.int32([4, 2]),
        "h0": RNG.standard_normal((1, 2, H)),
    }
    read = f"gamma beta W R {FORMS[form][1]}".replace(",", " ").split()
    return {name: array for name, array in made.items() if name in read}


def _model(op_type: str, form: str, more: str = "", dtype: str = "double") -> ir.Model:
    attributes, inputs, outputs = FORMS[form]
    attributes = ", ".join(filter(None, (f"hidden_size={H}", attributes, more)))
    body = f"{NORM} {outputs} = {op_type}<{attributes}>(n, W, R{inputs})"
    made = {
        name: array
        if array.dtype == np.int32
        else array.astype(np.dtype(dtype.replace("float", "float32")))
        for name, array in _constants(op_type, form).items()
    }
    batch = "3" if "given" in inputs else "2" if "lengths" in form else "N"
    x = f"{dtype}[{batch},4,{WIDTH}] x" if "first" in form else f"{dtype}[4,{batch},{WIDTH}] x"
    x += ", int32[3] given" if "given" in inputs else ""
    return graph(
        body, x, f"{dtype}{'[a,b,c]' if ',' in outputs else '[a,b,c,e]'} y", made, opset=14
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op_type", GATES)
def test_gamma_and_beta_move(op_type: str, form: str) -> None:
    model = _model(op_type, form)
    fused = rightly(model, (1, 1))
    assert (fused.proof.scaled_weights, fused.proof.shifted_biases) == (1, 1)
    assert not fuse(fused.model).decision.fusions  # a second run


def test_the_bias_of_a_state_that_is_reset_stays() -> None:
    """A GRU with linear_before_reset=1 multiplies R h + Rb by a gate: Rb takes nothing."""
    model = _model("GRU", "plain", "linear_before_reset=1")
    fused = rightly(model, (1, 1))
    before, after = (m.graph.initializers["B"].const_value for m in (model, fused.model))
    assert before is not None
    assert after is not None
    half = 3 * H
    assert np.array_equal(before.numpy()[:, half:], after.numpy()[:, half:])
    changed = after.numpy().copy()
    moved = changed[:, :half] - before.numpy()[:, :half]
    changed[:, :half] -= moved / 2
    changed[:, half:] += moved / 2  # exact for an LSTM
    assert not proved_with(model, fused, "B", lambda _: changed)


@pytest.mark.parametrize("form", ["both directions", "lengths of a caller"])
@pytest.mark.parametrize("name", ["W", "R", "B"])
@pytest.mark.parametrize("op_type", GATES)
def test_a_wrong_weight_or_bias_fails_the_proof(op_type: str, name: str, form: str) -> None:
    model = _model(op_type, form)
    fused = fuse(model)
    assert not proved_with(model, fused, name)


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ("y = LSTM<hidden_size=5>(n, V, R, B)", {}),  # a weight that is an input
        ("y = LSTM<hidden_size=5>(n, W, R, b)", {}),  # a bias that is one: beta cannot move
        ("y = RNN<hidden_size=6>(n, A, A, , , n1)", {"A": (1, 6, 6)}),  # as its state
    ],
)
def test_what_a_recurrent_layer_cannot_take_stays(
    body: str, made: dict[str, tuple[int, ...]]
) -> None:
    constants = _constants("LSTM", "plain")
    constants |= {name: RNG.standard_normal(shape) for name, shape in made.items()}
    shown = f"{NORM} n1 = Slice(n, zero, one, zero) {body}" if "n1" in body else f"{NORM} {body}"
    constants |= {"zero": np.int64([0]), "one": np.int64([1])}
    inputs = f"double[4,N,{WIDTH}] x, double[1,20,{WIDTH}] V, double[1,40] b"
    model = graph(shown, inputs, "double[a,b,c,e] y", constants, opset=14)
    fused = fuse(model)
    assert fused.moved == (0, 0)


def test_a_plan_is_read_back_equal() -> None:
    plan = Plan(fusions=fuse(_model("LSTM", "both directions")).decision.fusions)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("form", ["plain", "the last state alone", "both directions"])
@pytest.mark.parametrize("op_type", GATES)
def test_a_session_gives_the_same(op_type: str, form: str) -> None:
    model = _model(op_type, form, dtype="float")
    proto = ir.to_proto(model)
    made = onnxfold.optimize(proto, fuse_affine="always", fold="always").model
    x = 3 * RNG.standard_normal((4, 3, WIDTH)).astype(np.float32)
    x[0], x[1, 0], x[1, 1] = 0, 7, x[1, 1] + 1e3
    first, second = (outputs(each, {"x": x})[0] for each in (proto, made))
    assert np.abs(first - second).max() < 1e-5
