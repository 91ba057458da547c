"""Functions, graphs inside nodes, streaming, and errors."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onnxfold.check.reference import (
    Precision,
    ResourceLimitError,
    UnsupportedOperator,
    check_supported,
    run,
)
from onnxfold.errors import ModelError
from tests.check.reference.graphs import onnxruntime_outputs, parsed

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def truth(model: ir.Model, **feeds: np.ndarray) -> list[np.ndarray]:
    return list(run(model, feeds, precision=Precision.FLOAT64).values())


FUNCTIONS = """
<ir_version: 9, opset_import: ["": 17, "local": 1]>
main (float[3, 4] x, float[4] g) => (float[3, 4] y, float[3, 4] z) {
  y = local.norm <epsilon = 0.25> (x, g)  z = local.norm (x)
}
<domain: "local", opset_import: ["": 18, "local": 1]>
norm <epsilon: float = 1.0> (x, g) => (y) {
  n = local.scaled <e: float = @epsilon> (x)  one = Constant <value = float[1] {1.0}> ()
  y = local.times (n, g)
}
<domain: "local", opset_import: ["": 18]>
scaled <e> (x) => (y) {
  axes = Constant <value_ints = [-1]> ()  q = Mul (x, x)  m = ReduceMean (q, axes)
  c = Constant <value_float: float = @e> ()  s = Add (m, c)  r = Sqrt (s)  y = Div (x, r)
}
<domain: "local", opset_import: ["": 18]>
times (a, b) => (y) {
  y = Max (a, b)
}
"""


def test_functions_run_from_their_bodies_with_attributes_and_defaults() -> None:
    text = FUNCTIONS.replace("y = local.times (n, g)", "y = Mul (n, g)")
    model = parsed(text.replace("z = local.norm (x)", "z = local.norm (x, g)"))
    g = np.float64([1, 2, 3, 4])
    y, z = truth(model, x=X.astype(np.float64), g=g)
    x = X.astype(np.float64)
    for got, epsilon in ((y, 0.25), (z, 1.0)):
        expected = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + epsilon) * g
        np.testing.assert_allclose(got, expected, rtol=1e-15)


def test_a_missing_optional_input_of_a_function_reaches_its_body_as_absent() -> None:
    model = parsed(
        """
        <ir_version: 9, opset_import: ["": 17, "local": 1]>
        main (float[3, 4] x) => (float[3, 4] y) { y = local.clipped (x) }
        <domain: "local", opset_import: ["": 17]>
        clipped (x, low) => (y) { y = Clip (x, low) }
        """
    )
    np.testing.assert_array_equal(truth(model, x=X)[0], X)


def test_a_function_wins_over_a_kernel_of_the_same_name() -> None:
    model = parsed(
        """
        <ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
        main (float[3, 4] x) => (float[3, 4] y) { y = com.microsoft.Gelu (x) }
        <domain: "com.microsoft", opset_import: ["": 17]>
        Gelu (x) => (y) { y = Neg (x) }
        """
    )
    np.testing.assert_array_equal(truth(model, x=X)[0], -X)


IF = """
<ir_version: 9, opset_import: ["": 17]>
main (bool c, float[3, 4] x) => (float[3, 4] y) {
  shifted = Add (x, x)
  y = If (c) <
    then_branch = yes () => (float[3, 4] a) { a = Mul (shifted, x) },
    else_branch = no () => (float[3, 4] b) { b = Neg (shifted) }
  >
}
"""


@pytest.mark.parametrize(("condition", "expected"), [(True, 2 * X * X), (False, -2 * X)])
def test_a_branch_sees_values_around_it(condition: bool, expected: np.ndarray) -> None:
    got = run(parsed(IF), {"c": np.array(condition), "x": X}, precision=Precision.NATIVE)["y"]
    np.testing.assert_array_equal(got, expected)


LOOP = """
<ir_version: 9, opset_import: ["": 17]>
main (int64 n, float[3, 4] x) => (float[3, 4] last, float[S, 3, 4] all)
<float[1] w = {0.1}>
{
  go = Constant <value = bool {1}> ()
  last, all = Loop (n, go, x) <
    body = step (int64 i, bool going, float[3, 4] state)
      => (bool more, float[3, 4] next, float[3, 4] out) {
      limit = Constant <value = int64 {2}> ()  more = Less (i, limit)  scaled = Mul (state, w)
      next = Add (scaled, x)  out = Identity (next)
    }
  >
}
"""


@pytest.mark.parametrize(("limit", "steps"), [(0, 0), (2, 2), (9, 3)])
def test_a_loop_stops_at_its_limit_or_its_condition(limit: int, steps: int) -> None:
    last, rows = truth(parsed(LOOP), n=np.array(limit), x=X)
    assert rows.shape == (steps, 3, 4)
    assert rows.dtype == np.float64
    state = X.astype(np.float64)
    for step in range(steps):
        state = state * np.float64(np.float32(0.1)) + X
        np.testing.assert_allclose(rows[step], state, rtol=1e-15)
    np.testing.assert_array_equal(last, state if steps else X)


def test_a_loop_whose_condition_is_false_runs_no_step() -> None:
    text = LOOP.replace("Loop (n, go, x)", "Loop (n, stop, x)")
    model = parsed(text.replace("last, all =", "stop = Not (go)  last, all =", 1))
    last, rows = truth(model, n=np.array(2), x=X)
    assert len(rows) == 0
    np.testing.assert_array_equal(last, X)


SCAN = """
<ir_version: 9, opset_import: ["": 17]>
main (float[4] s, float[3, 4] x) => (float[4] total, float[4, 3] sums) {
  total, sums = Scan <
    num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
    body = step (float[4] a, float[4] row) => (float[4] b, float[4] out) {
      b = Add (a, row)  out = Identity (b)
    }
  > (s, x)
}
"""


def test_scan_runs_backwards_and_stacks_along_another_axis() -> None:
    proto = onnx.parser.parse_model(SCAN)
    start = np.ones(4, np.float32)
    got = run(ir.from_proto(proto), {"s": start, "x": X}, precision=Precision.NATIVE)
    pytest.importorskip("onnxruntime")
    renamed = onnx.ModelProto()
    renamed.CopyFrom(proto)
    for number, value in enumerate(renamed.graph.input):
        for node in renamed.graph.node:
            node.input[:] = [f"x{number}" if n == value.name else n for n in node.input]
        value.name = f"x{number}"
    for mine, theirs in zip(got.values(), onnxruntime_outputs(renamed, [start, X]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_casts_to_narrow_floats_round_only_in_native_precision() -> None:
    model = parsed(
        """
        <ir_version: 9, opset_import: ["": 17]>
        main (float[N] x) => (float[N] y) { h = Cast <to = 10> (x)  y = Cast <to = 1> (h) }
        """
    )
    x = np.float32([1 + 2**-20, 1e6])
    np.testing.assert_array_equal(truth(model, x=x)[0], x.astype(np.float64))
    with np.errstate(over="ignore"):
        rounded = x.astype(np.float16).astype(np.float32)
    got = run(model, {"x": x}, precision=Precision.NATIVE)["y"]
    np.testing.assert_array_equal(got, rounded)


def test_bfloat16_models_are_rounded_after_every_operator() -> None:
    model = parsed(
        """
        <ir_version: 9, opset_import: ["": 17]>
        main (bfloat16[N] x) => (bfloat16[N] y) { a = Add (x, x)  b = Mul (a, x)  y = Exp (b) }
        """
    )
    import ml_dtypes

    x = np.linspace(0.1, 1, 7).astype(ml_dtypes.bfloat16)
    got = run(model, {"x": x}, precision=Precision.NATIVE)["y"]
    assert got.dtype == x.dtype

    def step(value: np.ndarray) -> np.ndarray:
        return value.astype(ml_dtypes.bfloat16).astype(np.float32)

    w = x.astype(np.float32)
    expected = step(np.exp(step(step(w + w) * w)))
    np.testing.assert_array_equal(got.astype(np.float32), expected)


def test_random_operators_repeat_themselves() -> None:
    model = parsed(
        """
        <ir_version: 9, opset_import: ["": 17]>
        main () => (float[5] y) { y = RandomNormal <shape = [5], seed = 3.0> () }
        """
    )
    np.testing.assert_array_equal(truth(model)[0], truth(model)[0])


def test_values_are_seen_with_their_names_and_can_be_replaced() -> None:
    model = parsed(
        """
        <ir_version: 9, opset_import: ["": 17]>
        main (float[N] x) => (float[N] y) { a = Neg (x)  y = Exp (a) }
        """
    )
    seen = []

    def observe(value: ir.Value, array: np.ndarray) -> np.ndarray:
        seen.append(value.name)
        return np.zeros_like(array) if value.name == "a" else array

    got = run(model, {"x": X[0]}, precision=Precision.FLOAT64, observe=observe)["y"]
    assert seen == ["a", "y"]
    np.testing.assert_array_equal(got, np.ones(4))


class _CountingTensor(ir.Tensor):
    """A tensor that says how often it is read."""

    reads = 0

    def numpy(self) -> np.ndarray:
        _CountingTensor.reads += 1
        return super().numpy()


def test_an_unused_initializer_is_never_read_and_a_value_is_freed_after_its_last_use() -> None:
    model = parsed(
        """
        <ir_version: 9, opset_import: ["": 17]>
        main (float[N] x) => (float[N] y) <float[1] w = {2.0}, float[1] unused = {3.0}> {
          a = Mul (x, w)  b = Neg (a)  y = Exp (b)
        }
        """
    )
    _CountingTensor.reads = 0
    unused = model.graph.initializers["unused"]
    assert unused.const_value is not None
    unused.const_value = _CountingTensor(unused.const_value.numpy())
    import weakref

    alive: list[weakref.ref[np.ndarray]] = []
    counts = []

    def observe(value: ir.Value, array: np.ndarray) -> np.ndarray:
        counts.append(sum(r() is not None for r in alive))
        alive.append(weakref.ref(array))
        return array

    run(model, {"x": X[0]}, precision=Precision.FLOAT64, observe=observe)
    assert _CountingTensor.reads == 0
    assert counts == [0, 1, 1]


def test_external_data_is_read_from_its_file(tmp_path: Path) -> None:
    w = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="m.data")
    got = truth(ir.load(path), x=X)[0]
    np.testing.assert_allclose(got, X.astype(np.float64) @ w.astype(np.float64), rtol=1e-14)


def test_an_unknown_operator_is_refused_with_its_name_and_node() -> None:
    model = parsed(
        """
        <ir_version: 9, opset_import: ["": 17, "org.x": 1]>
        main (float[N] x) => (float[N] y) { [strange] y = org.x.Foo (x) }
        """
    )
    for refuse in (check_supported, lambda m: truth(m, x=X[0])):
        with pytest.raises(UnsupportedOperator, match=r"'strange' \(org\.x\.Foo\)"):
            refuse(model)


def test_a_node_that_cannot_be_computed_is_named() -> None:
    model = parsed(
        """
        <ir_version: 9, opset_import: ["": 17]>
        main (float[N] x, float[M] z) => (float[N] y) { [adder] y = Add (x, z) }
        """
    )
    with pytest.raises(ModelError, match=r"'adder' \(Add\) cannot be computed"):
        truth(model, x=np.ones(3), z=np.ones(2))


def test_a_missing_input_is_named() -> None:
    with pytest.raises(ModelError, match="input 'x' was given no value"):
        truth(parsed(IF), c=np.array(True))


@pytest.mark.parametrize("operator", ["Div", "Mod"])
@pytest.mark.parametrize(("a", "b"), [(1, 0), (-(2**63), -1)])
def test_an_integer_division_without_a_result_is_refused(operator: str, a: int, b: int) -> None:
    model = parsed(f"""
<ir_version: 9, opset_import: ["": 17]>
main (int64[1] a, int64[1] b) => (int64[1] y) {{
  y = {operator} (a, b)
}}
""")
    (seven,) = truth(model, a=np.int64([7]), b=np.int64([-1]))
    assert seven in (-7, 0)
    with pytest.raises(ResourceLimitError, match="divides"):
        truth(model, a=np.int64([a]), b=np.int64([b]))


_DOUBLED = "".join(f"a{n + 1} = Concat <axis = 0> (a{n}, a{n}) " for n in range(12))
_MOST = 1 << 20
_LARGE = {
    "Concat": f"a0 = Identity (x) {_DOUBLED} y = Neg (a12)",
    "Add": "c = Transpose <perm = [1, 0]> (x) y = Add (x, c)",
    "Max": "c = Transpose <perm = [1, 0]> (x) z = Neg (c) y = Max (x, c, z)",
    "Where": "c = Transpose <perm = [1, 0]> (x) l = Less (x, x) y = Where (l, c, x)",
    "Div": "c = Transpose <perm = [1, 0]> (x) y = Div (x, c)",
    "Pow": "c = Transpose <perm = [1, 0]> (x) y = Pow (x, c)",
    "MatMul": "c = Transpose <perm = [1, 0]> (x) y = MatMul (x, c)",
    "Gemm": "y = Gemm <transB = 1> (x, x)",
    "Einsum": 'y = Einsum <equation = "ij,kl->ik"> (x, x)',
    "an implicit Einsum": 'y = Einsum <equation = "ai,bi"> (x, x)',
    "Gather": "t = Transpose (x) i = Cast <to = 7> (x) y = Gather <axis = 0> (t, i)",
    "GatherND": "t = Transpose <perm = [1, 0]> (x) i = Cast <to = 7> (x) y = GatherND (t, i)",
    "a sequence": "",
}


@pytest.mark.parametrize("name", _LARGE)
def test_a_result_that_is_too_large_is_refused_before_it_is_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxfold.check.reference.kernel.MOST_ELEMENTS", _MOST)
    body = _LARGE[name]
    if name == "a sequence":
        doubled = "".join(
            f"s{n} = SequenceConstruct (a{n}, a{n}) "
            f"a{n + 1} = ConcatFromSequence <axis = 0> (s{n}) "
            for n in range(12)
        )
        body = f"a0 = Identity (x) {doubled} y = Neg (a12)"
    model = parsed(f"""
        <ir_version: 9, opset_import: ["": 17]>
        main (float[N, 1] x) => (float[A, B] y) {{ {body} }}
    """)
    x = np.zeros((1 << 12, 1), np.float32)
    tracemalloc.start()
    try:
        with pytest.raises(ResourceLimitError, match="asks for"):
            truth(model, x=x)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 8 * _MOST  # what is doubled comes up to the limit; a product is 16 times that


def test_the_rows_of_a_loop_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfold.check.reference.kernel.MOST_ELEMENTS", _MOST)
    body = """
        b (int64 i, bool c) => (bool k, float[N, 1] row)
        { k = Identity (c) row = Add (x, x) }
    """
    model = parsed(f"""
        <ir_version: 9, opset_import: ["": 17]>
        main (float[N, 1] x, int64 n, bool c) => (float[A, B, C] y) {{
            y = Loop <body = {body}> (n, c)
        }}
    """)
    given = {"n": np.array(5000), "c": np.array(True)}
    with pytest.raises(ResourceLimitError, match="asks for"):
        truth(model, x=np.zeros((1 << 12, 1), np.float32), **given)


@pytest.mark.parametrize(
    "body",
    ["t = Transpose <perm = [1, 0]> (W) y = MatMul (x, t)", "y = Gemm <transB = 1> (x, W)"],
)
def test_a_large_weight_is_widened_in_parts(body: str) -> None:
    """A tied table takes as much memory as all other weights, and twice as much in float64."""
    model = parsed(f"""
        <ir_version: 9, opset_import: ["": 17]>
        main (float[2, 256] x, float[32768, 256] W) => (float[2, 32768] y) {{ {body} }}
    """)
    generator = np.random.default_rng(0)
    W = generator.integers(-8, 8, (32768, 256)).astype(np.float32)
    value = model.graph.inputs.pop()
    value.const_value = ir.tensor(W)
    model.graph.register_initializer(value)
    x = generator.integers(-8, 8, (2, 256)).astype(np.float32)
    tracemalloc.start()
    try:
        (y,) = truth(model, x=x)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(y, x.astype(np.int64) @ W.T.astype(np.int64))
    assert y.dtype == np.float64
    assert peak < 0.75 * 8 * W.size


@pytest.mark.parametrize(
    ("axis", "new_axis"),
    [*((axis, 0) for axis in range(-2, 2)), *((axis, 1) for axis in range(-3, 3))],
)
def test_sequences_are_joined_without_onnx_which_once_took_the_last_axis_for_any(
    axis: int, new_axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.parser.parse_model(f"""
    <ir_version: 8, opset_import: ["": 13]>
    main (float[2, 3] x0, float[2, 3] x1) => (float[M, N, O] y) {{
      s = SequenceConstruct (x0, x1)
      y = ConcatFromSequence <axis: int = {axis}, new_axis: int = {new_axis}> (s)
    }}""")
    if not new_axis:
        del model.graph.output[0].type.tensor_type.shape.dim[2]
    monkeypatch.setattr("onnx.reference.ops.op_concat_from_sequence.ConcatFromSequence._run", None)
    pair = [X[:2, :3], X[1:, 1:]]
    (mine,) = truth(ir.from_proto(model), x0=pair[0], x1=pair[1])
    (theirs,) = onnxruntime_outputs(model, pair)
    np.testing.assert_array_equal(mine, theirs)
