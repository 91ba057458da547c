"""Verification of correct folds, and of models with planted defects."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.check import evidence, runners
from onnxfold.check.compare import verify
from onnxfold.check.disturbance import disturbed_model
from onnxfold.check.float64_runs import FLOAT64_LIMIT_BYTES
from onnxfold.errors import ModelError, UsageError, VerificationError
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.model_io.load import Source
from tests.case_files import read
from tests.check.verified import one_gamma, single, verified
from tests.folded import BODY, WIDTH, Weights, model, weights
from tests.graphs import graph


def test_an_exact_fold_passes() -> None:
    w = weights()
    result = verified(model(w), model(w.centred(), rms=True))
    assert result.passed
    assert result.method == "float64"
    assert result.runtime.startswith("onnxruntime ")
    assert result.samples == 2
    assert 0 < result.noise_ratio <= result.limit == 4.0
    assert result.worst is None
    (output,) = result.outputs
    assert (output.name, output.dtype) == ("y", "float32")
    assert 0 < output.rms_error < output.max_abs_error < 1e-5


def _scaled(name: str, factor: float) -> Callable[[Weights], Weights]:
    return lambda w: replace(w, **{name: (getattr(w, name) * factor).astype(w.V.dtype)})


DEFECTS: dict[str, Callable[[Weights], Weights]] = {
    "not centered": lambda w: w,  # the forbidden fold
    "a weight off by 1e-3": lambda w: _scaled("W", 1.001)(w.centred()),
    "a table off by 1e-3": lambda w: _scaled("table", 0.999)(w.centred()),
    "one wrong gamma": lambda w: one_gamma(w.centred()),
    "no bias": lambda w: _scaled("b", 0.0)(w.centred()),
    "a negated beta": lambda w: _scaled("beta", -1.0)(w.centred()),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_in_the_weights_fails(name: str) -> None:
    w = weights()
    result = verified(model(w), model(DEFECTS[name](w), rms=True))
    assert not result.passed
    assert result.noise_ratio > (1e4 if name == "not centered" else 50)
    assert result.worst is not None
    assert result.worst.startswith("output 'y': its error is")


def test_another_order_of_operations_passes() -> None:
    body = BODY.replace(
        "c = Add (a, b)\n  h1 = Add (h0, c)", "c = Add (b, h0)\n  h1 = Add (c, a)"
    ).replace("s = Mul (n, gamma)", "g2 = Add (gamma, gamma)  g1 = Div (g2, two)  s = Mul (g1, n)")
    changed = model(weights(), body=body)
    two = ir.Value(name="two", const_value=ir.tensor(np.float32([2]), name="two"))
    for node in changed.graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.name == "two":
                node.replace_input_with(index, two)
    changed.graph.register_initializer(two)
    assert verified(model(weights()), changed).passed


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_folds_of_other_types_pass_and_their_defects_fail(dtype: type) -> None:
    for seed in range(3):
        w = weights(seed).cast(np.dtype(np.float64)).cast(np.dtype(dtype))
        folded = model(w.centred(), rms=True)
        result = verified(model(w), folded)
        assert result.passed, result
        assert result.outputs[0].dtype == np.dtype(dtype).name
        assert ("interpreter" in result.runtime) == (dtype is ml_dtypes.bfloat16)
        coarse = dtype is not np.float64
        broken = replace(w.centred(), W=(w.W * (1.5 if coarse else 1 + 1e-9)).astype(dtype))
        assert not verified(model(w), model(broken, rms=True)).passed


CASES = read("verified")
SAYS = {
    "nan and infinity in other places": "differ in being NaN or infinite",
    "integers": "elements differ, where the original is exact",
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_passes_and_what_is_wrong_fails(name: str) -> None:
    case = CASES[name]
    first, *_, other = (single(body, *case.columns) for body in case.bodies.values())
    right = single(case.bodies.get("right", case.bodies["model"]), *case.columns)
    result = verified(first, right)
    assert result.passed
    without = "com.microsoft.Inverse" in case.bodies["model"]
    assert result.method == ("onnxruntime" if without else "float64")
    assert ("com.microsoft.Inverse" in result.runtime) == without
    wrong = verified(first, other)
    assert not wrong.passed
    assert SAYS.get(name, "") in str(wrong.worst)
    if "nan" in name:
        assert wrong.outputs[0].noise_ratio == float("inf")


def test_bounds_of_the_user_replace_the_law() -> None:
    w = weights()
    original, broken = model(w), model(_scaled("V", 1.001)(w.centred()), rms=True)
    assert not verified(original, broken).passed
    assert verified(original, broken, rtol=2e-3, atol=1e-6).passed
    result = verified(original, broken, rtol=1e-4, atol=1e-6)
    assert not result.passed
    assert "exceed the tolerance" in str(result.worst)


_COPIES = "many = Constant <value = int64[2] {128, 8}> ()  y = Expand (s, many)"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("outputs", "end"), [("float y", "y = Identity (s)"), ("float[128, 8] y", _COPIES)]
)
def test_luck_does_not_decide_on_an_output_of_one_number(outputs: str, end: str, seed: int) -> None:
    inputs = "float[4, 8] x, float[8, 16] v, float[16, 8] w"
    left = f"a = MatMul (x, v)  b = MatMul (a, w)  s = ReduceSum <keepdims = 0> (b)  {end}"
    right = f"a = MatMul (v, w)  b = MatMul (x, a)  s = ReduceSum <keepdims = 0> (b)  {end}"
    original = single(left, inputs, outputs)
    assert verified(original, single(right, inputs, outputs), samples=3, seed=seed).passed
    off = "k = Constant <value = float {1.001}> ()  w2 = Mul (w, k)  " + right.replace("w)", "w2)")
    assert not verified(original, single(off, inputs, outputs), samples=3, seed=seed).passed


def test_a_model_too_large_for_float64_is_compared_in_onnxruntime() -> None:
    w = weights()
    folded = model(w.centred(), rms=True)
    assert verified(model(w), folded, float64_limit_bytes=8 * WIDTH * WIDTH).method == "float64"
    result = verified(model(w), folded, float64_limit_bytes=8 * WIDTH * WIDTH - 1)
    assert result.method == "onnxruntime"
    assert "too large for a float64 run" in result.runtime
    assert result.passed
    broken = model(_scaled("W", 1.001)(w.centred()), rms=True)
    assert not verified(model(w), broken, float64_limit_bytes=1).passed


def test_a_model_that_nothing_can_run_is_not_verified() -> None:
    strange = single("y = org.x.Foo (x)")
    with pytest.raises(ModelError, match="onnxruntime cannot load it") as caught:
        verified(strange, strange)
    assert "inputs=" not in str(caught.value)  # no others would help


def test_a_rewritten_model_that_does_not_run_fails() -> None:
    with pytest.raises(VerificationError, match="the rewritten model does not run"):
        verified(single("y = Neg (x)"), single("y = org.x.Foo (x)"))


def test_inputs_and_outputs_must_have_the_same_names() -> None:
    with pytest.raises(VerificationError, match="its outputs are z, not y"):
        verified(single("y = Neg (x)"), single("z = Neg (x)", outputs="float[M, N] z"))
    with pytest.raises(VerificationError, match="its inputs are w, not x"):
        verified(single("y = Neg (x)"), single("y = Neg (w)", inputs="float[4, 8] w"))


def test_inputs_that_do_not_suit_are_told_to_be_given() -> None:
    picky = single("s = Constant <value_ints = [3, 7]> ()  y = Reshape (x, s)", "float[P, Q] x")
    with pytest.raises(
        ModelError, match=r"does not run on the inputs x:2,.*give others with inputs="
    ):
        verified(picky, picky)
    assert verified(picky, picky, spec=InputSpec.parse(["x:7,3"])).passed


def test_pictures_of_open_size_are_tried_in_several_sizes() -> None:
    picky = single(
        "y = Add (x, grid)", "float[B, 3, H, W] x, float[3, 64, 64] grid", "float[B, 3, H, W] y"
    )
    assert verified(picky, picky, samples=1).method == "float64"


def test_a_model_of_batches_of_one_alone_is_compared_on_them() -> None:
    """As of nn.MultiheadAttention by TorchScript, whose example had one sequence."""
    baked = single(
        "s = Constant <value_ints = [5, 8]> ()  r = Flatten <axis = 2> (x)  y = Reshape (r, s)",
        "float[batch, 5, 8] x",
    )
    verification = verified(baked, baked, samples=3)
    assert verification.passed
    assert verification.method == "float64"
    assert "Reshape" in str(verification.single)
    free = single("y = Neg (x)", "float[batch, 5, 8] x", "float[batch, 5, 8] y")
    assert verified(free, free).single is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "at least 1 sample"),
        ({"samples": 2.5}, "samples must be a whole number, not 2.5"),
        ({"seed": "a"}, "seed must be 0 or more, not 'a'"),
        ({"limit": 0.0}, "limit of the noise ratio must be positive"),
        ({"limit": float("nan")}, "limit of the noise ratio must be positive"),
        ({"rtol": -1.0}, "rtol must be 0 or more"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"providers": ["NoProvider"]}, "onnxruntime has no 'NoProvider' here; it has .*CPU"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        verified(single("y = Neg (x)"), single("y = Neg (x)"), **options)


def _spoilt(monkeypatch: pytest.MonkeyPatch, *, optimized_only: bool) -> None:
    """Makes ONNX Runtime wrong by 30%: in all it computes, or in what it optimizes."""
    plain = runners.OnnxRuntime.run

    def spoilt(self: object, source: object, samples: object, *, optimize: bool) -> object:
        results = plain(self, source, samples, optimize=optimize)  # type: ignore[arg-type]
        factor = np.float32(1.3 if optimize or not optimized_only else 1)
        return [{n: x * factor for n, x in outputs.items()} for outputs in results]

    monkeypatch.setattr(runners.OnnxRuntime, "run", spoilt)


@pytest.mark.parametrize("optimized_only", [True, False])
def test_a_runtime_far_from_the_truth_excuses_no_error(
    monkeypatch: pytest.MonkeyPatch, optimized_only: bool
) -> None:
    w = weights()
    _spoilt(monkeypatch, optimized_only=optimized_only)
    assert verified(model(w), model(w.centred(), rms=True)).passed
    assert not verified(model(w), model(one_gamma(w.centred()), rms=True)).passed


def test_more_runs_are_drawn_only_before_a_model_is_called_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = weights()
    _spoilt(monkeypatch, optimized_only=False)
    drawn: list[int] = []
    plain = evidence.disturbed_model

    def counted(original: ir.Model, seed: int) -> ir.Model:
        drawn.append(seed)
        return plain(original, seed)

    monkeypatch.setattr(evidence, "disturbed_model", counted)
    assert verified(model(w), model(w.centred(), rms=True)).passed
    assert drawn == [0, 1]
    drawn.clear()
    assert not verified(model(w), model(one_gamma(w.centred()), rms=True)).passed
    assert drawn == [*range(8)]  # no run twice


TABLE = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


def _of_codes(factor: float, code: str) -> ir.Model:
    """QuantizeLinear of (x / 3) w, or of (x factor) w, as a graph output."""
    op, number = ("Mul", factor) if factor else ("Div", 3.0)
    given = f"<{code} z = {{0}}, float s = {{0.02}}, float k = {{{number}}}>"
    body = f"{given} a = {op} (x, k) h = MatMul (a, w) y = QuantizeLinear (h, s, z)"
    return graph(body, "float[16, 64] x", f"{code}[16, 64] y", {"w": TABLE}, 19)


@pytest.mark.parametrize("code", ["int8", "float8e4m3fn"])
@pytest.mark.parametrize("interpreter", [False, True])
def test_outputs_of_codes_are_compared(
    monkeypatch: pytest.MonkeyPatch, code: str, interpreter: bool
) -> None:
    if interpreter:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    divided, multiplied, off = (_of_codes(f, code) for f in (0, 1 / 3, 0.334))
    result = verified(divided, multiplied)
    assert result.passed
    assert result.outputs[0].dtype == code.replace("8e4", "8_e4")
    assert result.outputs[0].max_abs_error <= 32  # a step of the largest float8
    assert not verified(divided, off).passed


def _behind_codes(first: str) -> ir.Model:
    """A layer behind numbers that are rounded to codes."""
    table = np.random.default_rng(0).standard_normal((1024, 8)).astype(np.float32)
    scalars = {"s": 0.0035, "k": 0.7, "n": 3.0, "f": 0.2334}
    numbers = {name: np.array(number, np.float32) for name, number in scalars.items()} | {
        "w": table
    }
    body = f"<int8 z = {{0}}> {first} q = QuantizeLinear (a, s, z) " + (
        "d = DequantizeLinear (q, s, z) y = MatMul (d, w)"
    )
    return graph(body, "float[64, 1024] x", "float[64, 8] y", numbers, 19)


def test_a_code_that_only_the_rewritten_model_moves_is_noise() -> None:
    """One number of these inputs lies so near to the middle between two codes."""
    left = _behind_codes("b = Mul (x, k)  a = Div (b, n)")
    assert verified(left, _behind_codes("b = Div (x, n)  a = Mul (b, k)"), seed=9).passed
    assert not verified(left, _behind_codes("a = Mul (x, f)"), seed=9).passed


def test_random_operators_are_run_by_the_interpreter() -> None:
    noise = "r = RandomNormalLike (x)  y = Add (x, r)"
    result = verified(single(noise), single(noise))
    assert result.passed
    assert result.runtime == "interpreter (the model draws random numbers)"


def test_without_onnxruntime_the_interpreter_runs_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    w = weights()
    result = verified(model(w), model(w.centred(), rms=True))
    assert result.passed
    assert result.runtime == "interpreter (onnxruntime is not installed)"
    assert not verified(model(w), model(one_gamma(w.centred()), rms=True)).passed
    with pytest.raises(VerificationError, match="onnxruntime is not installed"):
        verified(single("y = org.x.Foo (x)"), single("y = org.x.Foo (x)"))


def test_models_are_read_from_their_paths(tmp_path: Path) -> None:
    w = weights()
    sources = []
    for name, made in (("a", model(w)), ("b", model(w.centred(), rms=True))):
        ir.save(made, tmp_path / f"{name}.onnx", external_data=f"{name}.data")
        path = tmp_path / f"{name}.onnx"
        sources.append(Source(ir.load(path), path))
    assert verify(*sources).passed
    Path(tmp_path / "b.onnx").write_bytes(b"broken")
    with pytest.raises(VerificationError, match=r"b\.onnx: onnxruntime cannot load it"):
        verify(*sources)


def test_a_model_beyond_a_protobuf_goes_through_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "EMBEDDED_BYTES", 0)
    w = weights()
    assert verified(model(w), model(w.centred(), rms=True)).passed


def test_progress_grows_to_its_total() -> None:
    seen: list[tuple[int, int]] = []
    w = weights()
    verified(model(w), model(w), samples=3, progress=lambda *step: seen.append(step))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_the_result_is_valid_json_even_with_infinite_ratios() -> None:
    result = verified(single("y = Log (x)"), single("a = Abs (x)  y = Log (a)"))
    record = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert record["passed"] is False
    assert record["noise_ratio"] is None
    assert record["outputs"][0]["name"] == "y"
    assert set(record) >= {"method", "runtime", "max_abs_error", "samples", "limit", "worst"}


def test_disturbed_models_keep_their_outputs_and_differ_by_roundings() -> None:
    body = """
        h = Cast <to = 10> (x)  d = Mul (h, h)  f = Cast <to = 1> (d)  m = MatMul (f, w)
        huge = Constant <value = float {3.4028234e38}> ()  t = Mul (x, tiny)  i = Add (t, huge)
        rows = ReduceSum <keepdims = 0> (m)  y = Add (m, rows)
    """
    for opset in (8, 17, 21, 22, 25):
        proto = ir.to_proto(single(body, "float[4, 8] x, float[8, 8] w, float[1] tiny"))
        proto.graph.output.add().CopyFrom(
            onnx.helper.make_tensor_value_info("i", onnx.TensorProto.FLOAT, [4, 8])
        )
        proto.opset_import[0].version = opset
        original = ir.from_proto(proto)
        feeds = make_inputs(original, InputSpec(), count=1, seed=0)[0]
        engine = runners.OnnxRuntime()
        (plain,) = engine.run(Source(original), [feeds], optimize=False)
        source = Source(disturbed_model(original, seed=0))
        first, second = engine.run(source, [feeds, feeds], optimize=False)
        assert list(first) == ["y", "i"]
        size = float(np.abs(plain["y"]).max())
        for other in (first["y"], second["y"]):
            # Half floats, squared and summed eight at a time: a few of their roundings.
            assert 2**-16 * size < np.abs(other - plain["y"]).max() < 2**-7 * size
        assert not np.array_equal(first["y"], second["y"])
        assert np.isfinite(first["i"]).all()


_EDGES = """
    from, to = Split <axis = 0> (edges)  f = Squeeze (from)  t = Squeeze (to)  h = MatMul (x, W)
    picked = Gather (h, f)  u = Unsqueeze (t, one)  s = Shape (picked)  w = Expand (u, s)
    y = ScatterElements <axis = 0, reduction = "add"> (h, w, picked)"""


@pytest.mark.parametrize("limit", [FLOAT64_LIMIT_BYTES, 1], ids=["float64", "none"])
def test_indices_of_what_is_computed_start_from_the_first(limit: int) -> None:
    """The edges of a graph network: with two nodes only 0 and 1 are valid."""
    numbers = {"W": TABLE[:4, :4], "one": np.array([1])}
    source = graph(_EDGES, "float[n, 4] x, int64[2, e] edges", "float[n, 4] y", numbers, 17)
    result = verified(source, source, samples=4, float64_limit_bytes=limit)
    assert result.passed
    assert result.method == ("float64" if limit > 1 else "onnxruntime")


def test_floats_that_become_the_numbers_of_bins_are_inside_the_table() -> None:
    """Only 0 is: 1 would be bin 10 of 5."""
    body = "t = Mul (x, ten)  f = Floor (t)  i = Cast <to = 7> (f)  y = Gather (W, i)"
    numbers = {"ten": np.array(10, np.float32), "W": np.full((5, 4), 0.5, np.float32)}
    source = graph(body, "float[n, 4] x", "float[n, 4, 4] y", numbers)
    assert verified(source, source).method == "float64"


def test_a_model_that_no_index_suits_is_named_with_the_first() -> None:
    body = "<int64 far = {99}> j = Add (i, far)  y = Gather (x, j)"
    source = graph(body, "float[n, 4] x, int64[e] i", "float[e, 4] y")
    with pytest.raises(ModelError, match="does not run on the inputs x:2,4"):
        verified(source, source)


def test_rows_that_a_norm_is_hurt_by_are_samples_of_their_own() -> None:
    """A variance by the mean of squares less the square of the mean, which cancels at 1e3."""
    norm = "y = LayerNormalization <axis = -1, epsilon = 0.00001> (x, g)"
    sums = """
        m = ReduceMean <axes = [-1]> (x)  q = Mul (x, x)  s = ReduceMean <axes = [-1]> (q)
        mm = Mul (m, m)  v = Sub (s, mm)  a = Abs (v)
        eps = Constant <value = float {0.00001}> ()  e = Add (a, eps)  r = Sqrt (e)
        d = Sub (x, m)  n = Div (d, r)  y = Mul (n, g)
    """
    first, other = (single(body, "float[4, 8] x, float[8] g") for body in (norm, sums))
    assert verified(first, first, rows=True).rows == ("constant", "shifted", "zero")
    assert verified(first, first).rows == ()
    assert verified(first, other, limit=20.0).passed  # in addition to N(0, 1) and N(10, 5)
    assert not verified(first, other, limit=20.0, rows=True).passed


def test_rows_on_which_the_original_leaves_its_range_say_nothing() -> None:
    body = "q = Mul (x, x)  y = Neg (q)"
    model = single(body, "float16[4, 8] x", "float16[M, N] y")
    found = verified(model, model, rows=True)
    assert found.passed
    assert found.rows == ("constant", "zero")
    for kind, name in (("int64", "x"), ("float", "attention_mask")):
        fixed = single(f"y = Add ({name}, {name})", f"{kind}[4, 8] {name}", f"{kind}[M, N] y")
        assert verified(fixed, fixed, rows=True).rows == ()
