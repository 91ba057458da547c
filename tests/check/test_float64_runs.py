"""A float64 run that would be thrown away is not begun, where that can be known."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.check import float64_runs
from onnxfold.check.compare import verify
from onnxfold.check.float64_runs import OwnRuns
from onnxfold.check.reference import ResourceLimitError
from onnxfold.check.result import FAR
from onnxfold.check.runners import OnnxRuntime
from onnxfold.check.truth import truth_of
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.model_io.load import Source

_NORM = (
    "m = ReduceMean <axes: ints = [-1]> (x) d = Sub (x, m) q = Pow (d, two) "
    "v = ReduceMean <axes: ints = [-1]> (q) e = Add (v, epsilon) s = Sqrt (e) n = Div (d, s) "
    "g = Mul (n, gamma) r0 = Sigmoid (g) "
)
_STEP = "l{0} = Sub (one, r{0}) p{0} = Mul (r{0}, l{0}) r{1} = Mul (p{0}, rate) "


def _model(body: str, outputs: str, size: str = "4, 64", scale: float = 1.0) -> Source:
    gamma = ", ".join(["1.0"] * 64)
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        steps (float[{size}] x) => ({outputs})
        <float one = {{1.0}}, float two = {{2.0}}, float rate = {{3.9}}, float scale = {{{scale}}},
        int64[2] twice = {{2, 1}}, float epsilon = {{0.00001}},
        float[64] gamma = {{{gamma}}}> {{ {body} }}"""
    )
    return Source(ir.from_proto(proto))


def _chaotic(outputs: str = "float[4,64] y", scale: float = 1.0) -> Source:
    """A norm, which a session computes in two ways, and steps that nearly double each error."""
    steps = "".join(_STEP.format(number, number + 1) for number in range(60))
    return _model(_NORM + steps + "y = Mul (r60, scale)", outputs, scale=scale)


@pytest.fixture
def unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float64_runs, "run", pytest.fail)


@pytest.mark.usefixtures("unused")
def test_runs_of_a_model_that_are_far_apart_need_no_float64_run() -> None:
    made = verify(_chaotic(), _chaotic())
    (chaotic,) = made.outputs
    assert made.passed
    assert made.method == "onnxruntime"
    assert str(chaotic.reason).startswith("runs of the original in ONNX Runtime")
    assert chaotic.relative_noise > FAR


@pytest.mark.usefixtures("unused")
def test_a_wrong_change_of_such_a_model_fails() -> None:
    assert not verify(_chaotic(), _chaotic(scale=10.0)).passed


@pytest.mark.usefixtures("unused")
def test_data_of_the_user_need_none_either() -> None:
    data = [{"x": np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)}]
    assert verify(_chaotic(), _chaotic(), samples=0, data=data).method == "onnxruntime"


def test_one_steady_output_is_judged_by_a_float64_run() -> None:
    both = "float[4,64] y, float[4,64] g"
    made = verify(_chaotic(outputs=both), _chaotic(outputs=both))
    assert [output.method for output in made.outputs] == ["onnxruntime", "float64"]


def test_an_error_budget_keeps_its_float64_truth() -> None:
    assert truth_of(_chaotic()).method == "float64"


_LARGE = "t = Transpose <perm = [1, 0]> (x) y = MatMul (t, x)"  # [4096, 4096] from [2, 4096]


@pytest.mark.usefixtures("unused")
@pytest.mark.parametrize("size", ["2, 4096", "N, 4096"])
def test_a_value_that_is_too_large_by_its_shape_is_refused_before_any_run(size: str) -> None:
    source = _model(_LARGE, "float[4096, 4096] y", size=size)
    truth = truth_of(source, float64_limit_bytes=8 * 4096 * 4096 - 1)
    assert truth.method == "onnxruntime"
    assert "value 'y' is too large for a float64 run" in str(truth.reason)


def test_a_value_of_the_allowed_size_is_computed() -> None:
    source = _model(_LARGE, "float[4096, 4096] y", size="2, 4096")
    assert truth_of(source, float64_limit_bytes=8 * 4096 * 4096).method == "float64"


_OF_VALUES = "z = NonZero (x) y = Cast <to = 1> (z)"
_OF_A_LOOP = """y = Loop (count, go, x) <body = steps (int64 i, bool c, float[4, 64] a)
    => (bool c1, float[4, 64] b) { c1 = Identity (c) b = Mul (a, a) }>"""


@pytest.mark.parametrize(
    "make",
    [
        lambda: _model(_OF_VALUES, "float[2, K] y"),
        lambda: _model(
            "count = Constant <value_int = 2> () go = Cast <to = 9> (one) " + _OF_A_LOOP,
            "float[4, 64] y",
        ),
    ],
    ids=["size of values", "loop"],
)
def test_where_sizes_or_steps_are_unknown_the_float64_run_guards_the_others(
    make: Callable[[], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter refuses what would fill the memory or never end."""
    monkeypatch.setattr(OwnRuns, "are_scattered", pytest.fail)
    source = make()
    assert verify(source, source).method == "float64"


@pytest.mark.usefixtures("unused")
@pytest.mark.parametrize("op", ["Concat <axis = 0> (a{0}, a{0})", "Tile (a{0}, twice)"])
def test_what_is_doubled_is_refused_before_any_run(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnRuns, "are_scattered", pytest.fail)
    grown = "".join(f"a{n + 1} = {op} ".format(n) for n in range(30))
    source = _model(f"a0 = Identity (x) {grown} y = Neg (a30)", "float[N, 64] y")
    with pytest.raises(ResourceLimitError, match="elements; give other inputs"):
        verify(source, source)


def test_a_long_graph_is_run_without_the_optimizations_that_take_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both runs of the original are then the same, bit for bit, and no longer far apart."""
    source = _chaotic()
    nodes = len(source.model.graph)
    for most, differ in ((nodes, True), (nodes - 1, False)):
        monkeypatch.setattr("onnxfold.check.runners.MOST_NODES", most)
        (feeds,) = make_inputs(source.model, InputSpec(), count=1, seed=0)
        optimized, plain = OwnRuns(source, OnnxRuntime.of(None)).of([feeds])
        assert bool(np.any(optimized[0]["y"] != plain[0]["y"])) is differ
