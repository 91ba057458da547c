"""Inputs that suit a model: given by a user, or made up from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.check.reference import Precision, run
from onnxfold.errors import DataError, UsageError
from onnxfold.inputs import InputSpec, make_inputs
from tests.inputs.made_inputs import made, parsed


@pytest.mark.parametrize(
    ("text", "name", "shape"),
    [
        ("x:1,128", "x", (1, 128)),
        ("x:[1, 128]", "x", (1, 128)),
        ("input:0:[2,3]", "input:0", (2, 3)),
        ("x:[]", "x", ()),
        ("a.b/c:7", "a.b/c", (7,)),
    ],
)
def test_a_shape_is_read_from_the_command_line(
    text: str, name: str, shape: tuple[int, ...]
) -> None:
    assert InputSpec.parse([text]).shapes == {name: shape}
    assert InputSpec.parse(text) == InputSpec.parse([text])


@pytest.mark.parametrize("text", ["x", "x:", ":1,2", "x:1,-2", "x:a,b", "x:1;2", ""])
def test_what_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not understood"):
        InputSpec.parse([text])


def test_an_input_given_twice_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(2))
    with pytest.raises(UsageError, match="gives 'x' twice"):
        InputSpec.parse(["x:1,2", str(tmp_path / "a.npz")])


def test_arrays_come_from_npy_and_npz_files(tmp_path: Path) -> None:
    model = parsed("float[N] x, int64[2] i")
    x, i = np.arange(3.0), np.array([4, 5], dtype=np.int32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x, i=i)
    for texts in ([f"x:{tmp_path / 'x.npy'}"], [str(tmp_path / "all.npz")]):
        for sample in made(model, InputSpec.parse(texts)):
            assert sample["x"].dtype == np.float32
            np.testing.assert_array_equal(sample["x"], x)
    assert made(model, InputSpec.parse([str(tmp_path / "all.npz")]))[0]["i"].tolist() == [4, 5]


def test_files_that_do_not_suit_are_refused(tmp_path: Path) -> None:
    model = parsed("float[N] x, int64[2] i")
    with pytest.raises(DataError, match="no such file"):
        InputSpec.parse([f"x:{tmp_path / 'none.npy'}"])
    (tmp_path / "bad.npy").write_bytes(b"not an array")
    with pytest.raises(DataError, match="has no array for 'x'"):
        made(model, InputSpec.parse([f"x:{tmp_path / 'bad.npy'}"]))
    np.save(tmp_path / "i.npy", np.ones(2))
    with pytest.raises(UsageError, match="input 'i' is int64, the file has float64"):
        made(model, InputSpec.parse([f"i:{tmp_path / 'i.npy'}"]))
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    with pytest.raises(UsageError, match="input 'x' has rank 1"):
        made(model, InputSpec.parse([f"x:{tmp_path / 'x.npy'}"]))


def test_the_same_seed_gives_the_same_samples_and_another_seed_others() -> None:
    model = parsed("float[B, S, 8] x")
    for mine, same, other in zip(made(model), made(model), made(model, seed=1), strict=True):
        np.testing.assert_array_equal(mine["x"], same["x"])
        assert not np.array_equal(mine["x"], other["x"])


IDS_32 = "int32[64, 64] i"


_ONE = "one = Constant <value = int32 {1}> ()  "


EMBEDDINGS: list[tuple[str, str, int, int]] = [
    ("direct", "y = Gather (T, i)", 0, 7),
    ("moved", "a = Cast <to = 6> (i)  b = Reshape (a, S)  y = Gather (T, b)", 0, 7),
    ("offset", "two = Constant <value = int64 {2}> ()  a = Add (i, two)  y = Gather (T, a)", 0, 5),
    ("behind", "two = Constant <value = int64 {2}> ()  a = Sub (i, two)  y = Gather (T, a)", 2, 9),
    ("two tables", "a = Gather (T, i)  b = Gather (P, i)  y = Add (a, b)", 0, 3),
    ("other axis", "u = Constant <value_ints = [0]> ()  y = Gather <axis = 1> (T, i)", 0, 4),
    ("elements", "y = GatherElements <axis = 0> (T, i)", 0, 7),
    ("fused", "y = com.microsoft.EmbedLayerNormalization (i, , T, P, , G, G)", 0, 7),
    ("beside a padding id", f"{_ONE}m = Equal (i, one)  y = Gather (T, i)", 0, 7),
]


@pytest.mark.parametrize(("name", "body", "low", "high"), EMBEDDINGS, ids=str)
def test_indices_stay_inside_the_tables_that_they_address(
    name: str, body: str, low: int, high: int
) -> None:
    model = parsed(IDS_32, body)
    values = made(model, count=1)[0]["i"]
    assert values.min() == low
    assert values.max() == high - 1


_N = "n = Constant <value = int32 {7}> ()  z = Constant <value = int32 {0}> ()  "


WRAPPED = {
    "tf2onnx": "c = Less (i, z)  k = Cast <to = 6> (c)  m = Mul (k, n)  a = Add (i, m)",
    "factors turned": "c = Greater (z, i)  k = Cast <to = 6> (c)  m = Mul (n, k)  a = Add (m, i)",
    "Where, as PyTorch": "c = Less (i, z)  j = Add (i, n)  a = Where (c, j, i)",
    "Where, as JAX": "c = GreaterOrEqual (i, z)  j = Add (n, i)  a = Where (c, i, j)",
    "Where and Not": "d = LessOrEqual (z, i)  c = Not (d)  j = Add (i, n)  a = Where (c, j, i)",
    "a sum of Where": "c = Less (i, z)  m = Where (c, n, z)  a = Add (i, m)",
    "rows behind a Cast": "l = Constant <value = int64 {7}> ()  r = Cast <to = 6> (l)  "
    "c = Less (i, z)  j = Add (i, r)  a = Where (c, j, i)",
}


@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
def test_indices_that_count_from_the_end_where_they_are_negative_stay_inside(wrapped: str) -> None:
    values = made(parsed(IDS_32, f"{_N}{wrapped}  y = Gather (T, a)"), count=1)[0]["i"]
    assert (values.min(), values.max()) == (0, 6)


@pytest.mark.parametrize(
    ("wrapped", "kind"),
    [*((wrapped, "float") for wrapped in WRAPPED), ("tf2onnx", "float16"), ("tf2onnx", "double")],
)
def test_floats_that_become_such_indices_stay_inside(wrapped: str, kind: str) -> None:
    """As in Keras, whose Embedding casts its input."""
    cast = "i = Cast <to = 6> (tokens)  "
    for body in (f"{_N}{cast}{WRAPPED[wrapped]}  y = Gather (T, a)", f"{cast}y = Gather (T, i)"):
        model = parsed(f"{kind}[b, 99] tokens", body)
        for sample in made(model, count=3):
            assert sample["tokens"].dtype == model.graph.inputs[0].dtype.numpy()
            assert set(np.unique(sample["tokens"])) <= set(range(7))


def test_fewer_indices_may_be_asked_for() -> None:
    body = "j = Cast <to = 7> (f)  k = Add (i, j)  a = Gather (x, k)  b = Gather (T, h)"
    text = "float[n, 4] x, int64[e] i, float[e] f, int64[e] h, int64[e] position_ids, bool[e] on"
    model = parsed(text, body + "  y = Mul (a, b)")
    for below in (2, 1):
        for sample in make_inputs(model, InputSpec(), count=3, seed=0, below=below):
            for name in ("i", "f", "h", "position_ids"):
                assert set(np.unique(sample[name])) <= set(range(below)), name
            assert len(np.unique(sample["x"])) > below


def test_indices_are_bounded_through_functions() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """
            <ir_version: 9, opset_import: ["": 17, "f": 1]>
            g (int64[64, 64] i, float[6, 2] t) => (float y) { y = f.embed (t, i) }
            <domain: "f", opset_import: ["": 17]>
            embed (table, ids) => (y) { y = Gather (table, ids) }
            """
        )
    )
    function = next(iter(model.functions.values()))
    function.inputs[0].shape = ir.Shape([6, 2])
    assert made(model, count=1)[0]["i"].max() == 5


def test_positions_count_up_and_wrap_at_the_end_of_their_table() -> None:
    model = parsed("int32[64, 64] position_ids", "y = Gather (P, position_ids)")
    assert made(model, count=1)[0]["position_ids"][0, :5].tolist() == [0, 1, 2, 0, 1]


MASKS = {
    "attention_mask": "y = Cast <to = 1> (attention_mask)",
    "m": "one = Constant <value = int64 {1}> ()  y = Sub (one, m)",
    "b": "y = Cast <to = 9> (b)",
    "c": "u = Unsqueeze (c, axis)  z = Constant <value = int64 {0}> ()  y = Equal (u, z)",
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_ones_with_trailing_zeros_and_no_row_is_empty(name: str) -> None:
    model = parsed(f"int64[6, 16] {name}", MASKS[name])
    masks = [sample[name] for sample in made(model, count=6)]
    for mask in masks:
        assert set(np.unique(mask)) <= {0, 1}
        assert (np.diff(mask, axis=1) <= 0).all()
        assert mask[0].all()
        assert (mask.sum(axis=1) >= 8).all()
    assert any((mask == 0).any() for mask in masks)


def test_floats_are_standard_normal_save_in_the_last_sample() -> None:
    model = parsed("float[64, 256] x, float16[64, 256] past_key", body="y = Identity (x)")
    first, second, last = made(model, count=3)
    for sample in (first, second):
        # 16384 numbers: the mean deviates by 1/128, here four times that; so does the deviation.
        assert abs(sample["x"].mean()) < 0.032
        assert abs(sample["x"].std() - 1) < 0.032
    assert abs(last["x"].mean() - 10) < 0.16
    assert abs(last["x"].std() - 5) < 0.16
    assert abs(last["past_key"].astype(np.float64).mean()) < 0.032
    (only,) = made(model, count=1)
    assert abs(only["x"].mean()) < 0.032


@pytest.mark.parametrize(
    ("text", "kind"),
    [("bool[8, 64] x", "b"), ("uint8[8] x", "u"), ("double[8] x", "f"), ("bfloat16[8] x", "V")],
)
def test_dtypes_are_those_of_the_model(text: str, kind: str) -> None:
    model = parsed(text, "y = Identity (x)")
    array = made(model, count=1)[0]["x"]
    assert array.dtype == model.graph.inputs[0].dtype.numpy()
    assert array.dtype.kind == kind


def test_inputs_with_a_default_are_left_to_the_model_unless_given() -> None:
    model = parsed("float[2] x, float[1] w", "y = Add (x, w)", w=np.ones(1, np.float32))
    assert set(made(model)[0]) == {"x"}
    assert set(made(model, InputSpec.parse(["w:1"]))[0]) == {"x", "w"}


def test_a_whole_encoder_runs_on_its_inputs() -> None:
    model = parsed(
        ", ".join(
            f"int64[B, S] {name}" for name in ("input_ids", "token_type_ids", "attention_mask")
        ),
        "a = Gather (T, input_ids)  b = Gather (P, token_type_ids)  x = Add (a, b)"
        "m = Cast <to = 1> (attention_mask)  u = Unsqueeze (m, two)  y = Mul (x, u)",
        "float[B, S, 4] y",
        two=np.array([2]),
    )
    for sample in made(model, count=5):
        assert sample["token_type_ids"].max() <= 2
        y = run(model, sample, precision=Precision.FLOAT64)["y"]
        assert y.shape == (*sample["input_ids"].shape, 4)


@pytest.mark.parametrize(
    ("shape", "dtype", "body"),
    [
        ((3, 8), "float32", "a = Identity (w)"),
        ((8, 3), "float32", "a = Transpose (w)"),
        ((8, 3), "float32", "i = Identity (w)  a = Transpose <perm = [1, 0]> (i)"),
        ((3, 8), "float16", "a = Cast <to = 1> (w)"),
        ((3, 8), "int8", "a = DequantizeLinear (w, scale)"),
    ],
)
def test_ids_stay_inside_tables_that_are_stored_in_another_form(
    shape: tuple[int, ...], dtype: str, body: str
) -> None:
    stored = {"w": np.ones(shape, dtype), "scale": np.array(2, np.float32)}
    model = parsed("int64[B, 40] ids", body + "  y = Gather (a, ids)", **stored)
    drawn = np.concatenate([sample["ids"].reshape(-1) for sample in made(model)])
    assert set(drawn.tolist()) == {0, 1, 2}
