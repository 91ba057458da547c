"""Inputs that suit a model: given by a user, or made up from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.check.reference import Precision, run
from onnxfold.errors import DataError, UsageError
from onnxfold.inputs import InputSpec, make_inputs
from onnxfold.inputs.bound_sizes import symbols_of

Samples = list[dict[str, np.ndarray]]


def parsed(inputs: str, body: str = "", initializers: str = "", outputs: str = "") -> ir.Model:
    first = inputs.rsplit(maxsplit=1)[-1]
    body = body or f"y = Identity ({first})"
    return ir.from_proto(
        onnx.parser.parse_model(
            f"""
            <ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
            g ({inputs}) => ({outputs or "float y"}) {initializers} {{ {body} }}
            """
        )
    )


def made(
    model: ir.Model, spec: InputSpec | None = None, *, count: int = 4, seed: int = 0
) -> Samples:
    return make_inputs(model, spec or InputSpec(), count=count, seed=seed)


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


def test_unknown_names_and_impossible_shapes_are_refused() -> None:
    model = parsed("float[B, 4] x, float[B, S] y", outputs="float z", body="z = Identity (x)")
    for text, message in [
        ("w:1", "names 'w', but the model's inputs are 'x', 'y'"),
        ("x:1,2,3", r"input 'x' has rank 2 \[B, 4\], not 3"),
        ("x:1,5", r"input 'x' is \[B, 4\], which 5 does not fit"),
    ]:
        with pytest.raises(UsageError, match=message):
            made(model, InputSpec.parse([text]))
    with pytest.raises(UsageError, match="'x' and 'y' share the dimension 'B'"):
        made(model, InputSpec.parse(["x:1,4", "y:2,3"]))


def test_the_same_seed_gives_the_same_samples_and_another_seed_others() -> None:
    model = parsed("float[B, S, 8] x")
    for mine, same, other in zip(made(model), made(model), made(model, seed=1), strict=True):
        np.testing.assert_array_equal(mine["x"], same["x"])
        assert not np.array_equal(mine["x"], other["x"])


def test_a_symbol_has_one_size_per_sample_and_sizes_vary_between_samples() -> None:
    model = parsed("float[batch, S, 8] x, float[S, batch, 3] z")
    samples = made(model, count=12)
    for sample in samples:
        batch, length = sample["x"].shape[:2]
        assert sample["z"].shape == (length, batch, 3)
        assert 1 <= batch <= 3
        assert 5 <= length <= 17
    assert len({s["x"].shape for s in samples}) > 4


def test_given_shapes_bind_symbols_everywhere() -> None:
    model = parsed("float[B, S, 8] x, int64[B, S] i, float[S] p")
    for sample in made(model, InputSpec.parse(["i:3,11"])):
        assert sample["x"].shape == (3, 11, 8)
        assert sample["p"].shape == (11,)


def test_expressions_are_evaluated_and_solved() -> None:
    text = 'float[B, past, 4] k, int64[B, seq] i, int64[B, "past + seq"] m, float["2*B"] z'
    model = parsed(text, body="y = Identity (k)")
    for sample in made(model):
        past, present = sample["k"].shape[1], sample["i"].shape[1]
        assert sample["m"].shape[1] == past + present
        assert sample["z"].shape == (2 * len(sample["i"]),)
    (sample, *_) = made(model, InputSpec.parse(["i:1,3", "m:1,10"]))
    assert sample["k"].shape == (1, 7, 4)
    with pytest.raises(UsageError, match=r"input 'm' is given 2 for its dimension 'past \+ seq'"):
        made(model, InputSpec.parse(["i:1,3", "m:1,2"]))
    with pytest.raises(UsageError, match="'past' and 'seq'"):
        made(model, InputSpec.parse(["m:1,10"]))


@pytest.mark.parametrize("total", ["total_sequence_length", "mask_dim_1"])
def test_a_mask_over_past_and_present_has_their_total_length(total: str) -> None:
    text = f"int64[b, s] input_ids, int64[b, {total}] attention_mask, float[b, 2, past_len, 4] pk"
    for sample in made(parsed(text, body="y = Identity (pk)")):
        length = sample["pk"].shape[2] + sample["input_ids"].shape[1]
        assert sample["attention_mask"].shape[1] == length


def test_the_length_of_a_cache_is_past_whatever_torch_calls_it() -> None:
    text = "int64[s1, s2] input_ids, int64[s3, s4] attention_mask, float[s1, 2, s5, 4] past_0_key"
    for sample in made(parsed(text, body="y = Identity (input_ids)")):
        batch, _, past, _ = sample["past_0_key"].shape
        assert sample["attention_mask"].shape == (batch, past + sample["input_ids"].shape[1])


def test_caches_with_names_of_their_own_are_as_long_as_the_one_that_is_given() -> None:
    text = "int64[a, b] input_ids, int64[c, d] attention_mask, " + ", ".join(
        f"float[a, 2, s_{name}, 4] past_{name}" for name in ("0_key", "0_value", "1_key", "1_value")
    )
    model = parsed(text, body="y = Identity (input_ids)")
    for sample in made(model, InputSpec.parse(["input_ids:1,1", "past_0_value:1,2,33,4"])):
        assert {sample[name].shape for name in sample if "past" in name} == {(1, 2, 33, 4)}
        assert sample["attention_mask"].shape == (1, 34)


def test_unnamed_dims_of_ids_and_masks_agree() -> None:
    model = parsed("int64[?, ?] ids, int64[?, ?] mask, float[?, 8] x", body="y = Identity (x)")
    for sample in made(model):
        assert sample["ids"].shape == sample["mask"].shape
        assert len(sample["x"]) == len(sample["ids"])


EMBEDDINGS: list[tuple[str, str, int, int]] = [
    ("direct", "y = Gather (t, i)", 0, 7),
    ("moved", "a = Cast <to = 6> (i)  b = Reshape (a, s)  y = Gather (t, b)", 0, 7),
    ("offset", "two = Constant <value = int64 {2}> ()  a = Add (i, two)  y = Gather (t, a)", 0, 5),
    ("behind", "two = Constant <value = int64 {2}> ()  a = Sub (i, two)  y = Gather (t, a)", 2, 9),
    ("two tables", "a = Gather (t, i)  b = Gather (p, i)  y = Add (a, b)", 0, 3),
    ("other axis", "u = Constant <value_ints = [0]> ()  y = Gather <axis = 1> (t, i)", 0, 4),
    ("elements", "y = GatherElements <axis = 0> (t, i)", 0, 7),
    ("fused", "y = com.microsoft.EmbedLayerNormalization (i, , t, p, , g, g)", 0, 7),
]


@pytest.mark.parametrize(("name", "body", "low", "high"), EMBEDDINGS, ids=str)
def test_indices_stay_inside_the_tables_that_they_address(
    name: str, body: str, low: int, high: int
) -> None:
    model = _embedding(body)
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
    values = made(_embedding(f"{_N}{wrapped}  y = Gather (t, a)"), count=1)[0]["i"]
    assert (values.min(), values.max()) == (0, 6)


@pytest.mark.parametrize("kind", ["float", "float16", "double"])
@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
def test_floats_that_become_such_indices_stay_inside(wrapped: str, kind: str) -> None:
    text = f"{_N}i = Cast <to = 6> (tokens)  {wrapped}  y = Gather (t, a)"
    rows = ", ".join(["1"] * 21)
    model = parsed(f"{kind}[b, 99] tokens", text, f"<float[7, 3] t = {{{rows}}}>")
    for sample in made(model, count=3):
        assert set(np.unique(sample["tokens"])) <= set(range(7))


def test_fewer_indices_may_be_asked_for() -> None:
    body = "j = Cast <to = 7> (f)  k = Add (i, j)  a = Gather (x, k)  b = Gather (t, h)"
    body += "  y = Mul (a, b)"
    ones = ", ".join(["1"] * 6)
    text = "float[n, 4] x, int64[e] i, float[e] f, int64[e] h, int64[e] position_ids, bool[e] on"
    model = parsed(text, body, f"<float[6] t = {{{ones}}}>")
    for below in (2, 1):
        for sample in make_inputs(model, InputSpec(), count=3, seed=0, below=below):
            for name in ("i", "f", "h", "position_ids"):
                assert set(np.unique(sample[name])) <= set(range(below)), name
            assert len(np.unique(sample["x"])) > below


def _embedding(body: str) -> ir.Model:
    graph = onnx.parser.parse_graph(f"g (int32[64, 64] i) => (float y) {{ {body} }}")
    arrays = {
        "t": np.zeros((7, 4), np.float32),
        "p": np.zeros((3, 4), np.float32),
        "g": np.zeros(4, np.float32),
        "s": np.array([-1]),
    }
    graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(onnx.helper.make_model(graph, opset_imports=imports, ir_version=9))


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
    model = _embedding("y = Gather (p, i)")
    model.graph.inputs[0].name = "position_ids"
    assert made(model, count=1)[0]["position_ids"][0, :5].tolist() == [0, 1, 2, 0, 1]


MASKS = {
    "attention_mask": "y = Cast <to = 1> (attention_mask)",
    "m": "one = Constant <value = int64 {1}> ()  y = Sub (one, m)",
    "b": "y = Cast <to = 9> (b)",
    "c": "u = Unsqueeze (c, a)  z = Constant <value = int64 {0}> ()  y = Equal (u, z)",
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_ones_with_trailing_zeros_and_no_row_is_empty(name: str) -> None:
    model = parsed(f"int64[6, 16] {name}", MASKS[name], "<int64[1] a = {1}>")
    masks = [sample[name] for sample in made(model, count=6)]
    for mask in masks:
        assert set(np.unique(mask)) <= {0, 1}
        assert (np.diff(mask, axis=1) <= 0).all()
        assert mask[0].all()
        assert (mask.sum(axis=1) >= 8).all()
    assert any((mask == 0).any() for mask in masks)


def test_ids_that_are_compared_with_a_padding_id_are_still_ids() -> None:
    model = _embedding("z = Constant <value = int32 {1}> ()  m = Equal (i, z)  y = Gather (t, i)")
    assert made(model, count=1)[0]["i"].max() == 6


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
    ("text", "body", "shape"),
    [
        ("float[b, 3, h, w] pixel_values", "y = Identity (pixel_values)", (2, 3, 224, 224)),
        ("float[b, 3, 32, 40] x", "y = Identity (x)", (2, 3, 32, 40)),
        ("float[b, h, w, 3] x", "y = Identity (x)", (2, 224, 224, 3)),
        ("float[b, h, w, 5] x", "y = Identity (x)", None),
        (
            "float[b, h, w, 1] x",
            "t = Transpose <perm = [0, 3, 1, 2]> (x)  y = Conv (t, q)",
            (2, 224, 224, 1),
        ),
        ("float[b, t] wave", "u = Unsqueeze (wave, a)  y = Conv (u, k)", (2, 3200)),
    ],
)
def test_images_and_waves_have_sizes_that_models_take(
    text: str, body: str, shape: tuple[int, ...] | None
) -> None:
    weights = "<int64[1] a = {1}, float[1, 1, 1] k = {1}, float[1, 1, 1, 1] q = {1}>"
    (array,) = made(parsed(text, body, weights), count=1)[0].values()
    assert array.shape == shape if shape else max(array.shape) < 18


def test_inputs_that_no_layer_convolves_are_no_waves() -> None:
    inputs = "float[b, s] x, float[a, 1, m] k, int32[a, 1, r] i"
    body = "y = Conv (c, k)  z = Neg (x)  w = Cast <to=1> (i)  v = Conv (w, c)"
    sample = made(parsed(inputs, body, "<float[1, 1, 2] c = {1, 1}>"), count=1)[0]
    assert max(sample["x"].shape[1], sample["k"].shape[2], sample["i"].shape[2]) < 18
    waves = parsed(
        f"float[a, 1, t] u, {inputs}", f"p = Conv (u, k)  {body}", "<float[1, 1, 2] c = {1, 1}>"
    )
    assert made(waves, count=1)[0]["u"].shape == (2, 1, 3200)


@pytest.mark.parametrize(("group", "channels"), [(1, 6), (4, 24)])
def test_what_is_convolved_has_the_channels_of_the_kernel(group: int, channels: int) -> None:
    attributes = f"<group={group}>" if group > 1 else ""
    ones = [", ".join(["1"] * count) for count in (48, 8)]
    weights = f"<float[8, 6, 1, 1] k = {{{ones[0]}}}, float[8] bias = {{{ones[1]}}}>"
    for body in (f"y = Conv {attributes} (x, k)", f"y = Conv {attributes} (x, k, bias)"):
        model = parsed("float[b, c, h, w] x", body, weights)
        assert made(model, count=1)[0]["x"].shape == (2, channels, 32, 32)


def test_a_picture_that_is_normalised_first_has_the_channels_of_the_kernel() -> None:
    ones = ", ".join(["1"] * 24)
    weights = f"<float[8, 3, 1, 1] k = {{{ones}}}, float[1, 3, 1, 1] mean = {{1, 2, 3}}>"
    body = "c = Sub (x, mean)  d = Div (c, mean)  y = Conv (d, k)"
    model = parsed("float[b, num_channels, h, w] x", body, weights)
    assert made(model, count=1)[0]["x"].shape == (2, 3, 224, 224)


def test_a_vector_beside_batches_has_a_number_for_each() -> None:
    """The steps of a diffusion; positions in a cache are as many as the tokens."""
    inputs = "float[sample_0, 4] sample, float[timestep_0] timestep, int64[new_0] cache_position"
    for sample in made(parsed(inputs, "y = Neg (sample)"), count=3):
        assert sample["timestep"].shape == sample["sample"].shape[:1]
        assert len(sample["cache_position"]) >= 5
    assert len(made(parsed("float[t] x", "y = Neg (x)"), count=1)[0]["x"]) >= 5


def test_tokens_that_come_as_floats_stay_inside_their_table() -> None:
    """As in Keras, whose Embedding casts its input."""
    rows = ", ".join(["1"] * 21)
    body = "i = Cast <to = 6> (tokens)  y = Gather (table, i)"
    model = parsed("float[b, 9] tokens", body, f"<float[7, 3] table = {{{rows}}}>")
    for sample in made(model, count=3):
        tokens = sample["tokens"]
        assert tokens.dtype == np.float32
        assert set(np.unique(tokens)) <= set(range(7))


def test_channels_that_are_turned_to_the_front_are_the_last() -> None:
    ones = ", ".join(["1"] * 48)
    body = "t = Transpose <perm = [0, 3, 1, 2]> (x)  y = Conv (t, k)"
    model = parsed("float[b, h, w, 6] x", body, f"<float[8, 6, 1, 1] k = {{{ones}}}>")
    assert made(model, count=1)[0]["x"].shape == (2, 32, 32, 6)


def test_only_the_first_of_several_unnamed_axes_is_the_batch() -> None:
    model = parsed("int64[a, b] ids, int64[a, b, 2] boxes, int64[a] steps", "y = Neg (ids)")
    for value, dims in zip(
        model.graph.inputs, ((None, None), (None, None, 2), (None,)), strict=True
    ):
        value.shape = ir.Shape(dims)
    names = [symbols_of(value) for value in model.graph.inputs]
    assert names == [("?batch", "?sequence"), ("?batch", "?boxes.1", 2), ("?steps.0",)]


def test_given_shapes_that_an_expression_contradicts_are_refused() -> None:
    model = parsed("float[past] p, float[new] n, float[both] both", "y = Neg (p)")
    model.graph.inputs[2].shape = ir.Shape(["past + new"])
    (sample,) = made(model, InputSpec.parse(["p:3", "n:4", "both:7"]), count=1)
    assert sample["both"].shape == (7,)
    with pytest.raises(UsageError, match="input 'both' is given 8 for its dimension"):
        made(model, InputSpec.parse(["p:3", "n:4", "both:8"]))


@pytest.mark.parametrize(
    ("text", "kind"),
    [("bool[8, 64] x", "b"), ("uint8[8] x", "u"), ("double[8] x", "f"), ("bfloat16[8] x", "V")],
)
def test_dtypes_are_those_of_the_model(text: str, kind: str) -> None:
    model = parsed(text, "y = Identity (x)")
    array = made(model, count=1)[0]["x"]
    assert array.dtype == model.graph.inputs[0].dtype.numpy()
    assert array.dtype.kind == kind


def test_strings_and_shapeless_inputs_must_be_given() -> None:
    with pytest.raises(
        UsageError, match=r"input 'x' has strings: give it with inputs=\{'x': array\}"
    ):
        made(parsed("string[2] x"))
    model = parsed("float[2] x")
    model.graph.inputs[0].shape = None
    with pytest.raises(UsageError, match="input 'x' has no shape in the model"):
        made(model)
    assert made(model, InputSpec.parse(["x:2,3"]))[0]["x"].shape == (2, 3)


def test_inputs_with_a_default_are_left_to_the_model_unless_given() -> None:
    model = parsed("float[2] x, float[1] w", "y = Add (x, w)", "<float[1] w = {3.0}>")
    assert set(made(model)[0]) == {"x"}
    assert set(made(model, InputSpec.parse(["w:1"]))[0]) == {"x", "w"}


def test_a_whole_encoder_runs_on_its_inputs() -> None:
    graph = onnx.parser.parse_graph(
        """
        g (int64[batch, seq] input_ids, int64[batch, seq] token_type_ids,
           int64[batch, seq] attention_mask) => (float[batch, seq, 4] y) {
          a = Gather (t, input_ids)  b = Gather (k, token_type_ids)  x = Add (a, b)
          m = Cast <to = 1> (attention_mask)  u = Unsqueeze (m, two)  y = Mul (x, u)
        }
        """
    )
    arrays: dict[str, Any] = {
        "t": np.ones((9, 4), np.float32),
        "k": np.ones((2, 4), np.float32),
        "two": np.array([2]),
    }
    graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    imports = [onnx.helper.make_opsetid("", 17)]
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=imports, ir_version=9))
    for sample in made(model, count=5):
        assert sample["token_type_ids"].max() <= 1
        y = run(model, sample, precision=Precision.FLOAT64)["y"]
        assert y.shape == (*sample["input_ids"].shape, 4)


@pytest.mark.parametrize(
    ("stored", "body"),
    [
        ("float[3, 8] w = {ones}", "t = Identity (w)"),
        ("float[8, 3] w = {ones}", "t = Transpose (w)"),
        ("float[8, 3] w = {ones}", "i = Identity (w)  t = Transpose <perm = [1, 0]> (i)"),
        ("float16[3, 8] w = {ones}", "t = Cast <to = 1> (w)"),
        ("int8[3, 8] w = {ones}, float s = {2.0}", "t = DequantizeLinear (w, s)"),
    ],
)
def test_ids_stay_inside_tables_that_are_stored_in_another_form(stored: str, body: str) -> None:
    initializers = "<" + stored.replace("{ones}", "{" + ", ".join(["1"] * 24) + "}") + ">"
    model = parsed("int64[B, 40] ids", body + "  y = Gather (t, ids)", initializers)
    drawn = np.concatenate([sample["ids"].reshape(-1) for sample in made(model)])
    assert set(drawn.tolist()) == {0, 1, 2}


HEADS = "num_heads = 4, kv_num_heads = 2"
CACHES = "float[B, 2, {0}, H] past_key, float[B, 2, {0}, H] past_value"


def _decoder(attributes: str = "", past: str = "P", packed: bool = True) -> ir.Model:
    """A GroupQueryAttention as ONNX Runtime GenAI's builder writes it, its caches of open sizes."""
    keys = '"", ""' if packed else "k, v"
    width = 64 if packed else 32
    return parsed(
        f"float[B, T, {width}] x, float[B, T, 16] k, float[B, T, 16] v, "
        "int64[B, S] attention_mask, " + CACHES.format(past),
        f"""
        n = ReduceSum <keepdims = 0> (attention_mask, one)  m = Sub (n, one)
        last = Cast <to = 6> (m)  s = Shape (attention_mask)  l = Gather (s, i)
        total = Cast <to = 6> (l)
        y, pk, pv = com.microsoft.GroupQueryAttention <{HEADS}{attributes}>
            (x, {keys}, past_key, past_value, last, total)
        """,
        "<int64[1] one = {1}, int64 i = {1}>",
        "float[B, T, 32] y",
    )


@pytest.mark.parametrize("packed", [True, False])
def test_caches_have_the_size_of_a_head_and_one_sequence(packed: bool) -> None:
    model = _decoder(packed=packed)
    for sample in made(model):
        past = sample["past_key"].shape[2]
        assert sample["past_key"].shape == sample["past_value"].shape == (1, 2, past, 8)
        assert sample["attention_mask"].shape == (1, past + sample["x"].shape[1])
        assert sample["attention_mask"].all()
        run(model, sample, precision=Precision.FLOAT64)


def test_a_sliding_cache_is_full() -> None:
    model = _decoder(", local_window_size = 40, sliding_window_cache = 1", past="slots")
    for sample in made(model):
        assert sample["past_key"].shape == (1, 2, 40, 8)
        assert sample["attention_mask"].shape[1] == 40 + sample["x"].shape[1]


def test_given_caches_are_kept() -> None:
    spec = InputSpec.parse(["past_key:3,2,6,5"])
    (sample,) = made(_decoder(), spec, count=1)
    assert sample["past_value"].shape == (3, 2, 6, 5)
    assert sample["attention_mask"].shape == (3, 6 + sample["x"].shape[1])


def test_a_merged_decoder_has_no_past_where_it_takes_no_cache() -> None:
    inputs = (
        "int64[B, S] input_ids, float[B, T] attention_mask, float[B, 2, P, 4] past_key, "
        "bool[1] use_cache_branch"
    )
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[B, 2, P, 4] y)
        {{ y = Identity (past_key) }}"""
    )
    samples = make_inputs(ir.from_proto(proto), InputSpec(), count=2, seed=0)
    assert [bool(each["use_cache_branch"][0]) for each in samples] == [True, False]
    lengths = [
        [each[n].shape[a] for n, a in (("input_ids", 1), ("past_key", 2))] for each in samples
    ]
    assert [each["attention_mask"].shape[1] for each in samples] == [sum(pair) for pair in lengths]
    assert [past > 0 for _, past in lengths] == [True, False]


def test_a_mask_of_the_past_and_one_is_of_one_new_token() -> None:
    """As optimum up to 1.20 names it."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (int64[B, S] input_ids, int64[B, total] attention_mask, float[B, 2, past_length, 4] past_key)
        => (float[B, 2, past_length, 4] y) { y = Identity (past_key) }"""
    for total, step in (("past_length + 1", 1), ("past_length + 2", 2), ("past_length + S", None)):
        model = ir.from_proto(onnx.parser.parse_model(text))
        model.graph.inputs[1].shape = ir.Shape(["B", total])
        for sample in make_inputs(model, InputSpec(), count=2, seed=0):
            new = sample["input_ids"].shape[1]
            assert sample["attention_mask"].shape[1] == sample["past_key"].shape[2] + new
            assert new == step if step else new > 2
    given = InputSpec.parse(["input_ids:2,7"])
    model.graph.inputs[1].shape = ir.Shape(["B", "past_length + 1"])
    (sample,) = make_inputs(model, given, count=1, seed=0)
    assert sample["input_ids"].shape == (2, 7)


def test_the_cache_of_an_encoder_is_as_long_as_its_mask() -> None:
    """As optimum before 2.0 names it: the mask is of `encoder_length`, the cache of `.._out`."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[B, 2, encoder_length_out, 4] past_encoder, int64[B, encoder_length] mask,
            float[B, 2, past_length, 4] past_key, int64[B, S] input_ids)
            => (float[B, 2, encoder_length_out, 4] y) { y = Identity (past_encoder) }"""
    )
    given = [InputSpec.parse([shape]) for shape in ("mask:2,9", "past_encoder:2,2,3,4")]
    for spec in (InputSpec(), *given):
        (sample,) = make_inputs(ir.from_proto(proto), spec, count=1, seed=0)
        assert sample["past_encoder"].shape[2] == sample["mask"].shape[1]


def test_only_caches_have_the_length_that_such_a_name_speaks_of() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[B, length] x, float[B, length_out] z) => (float[B, length] y)
        { y = Identity (x) }"""
    )
    given = InputSpec.parse(["x:2,3", "z:2,5"])
    (sample,) = make_inputs(ir.from_proto(proto), given, count=1, seed=0)
    assert (sample["x"].shape, sample["z"].shape) == ((2, 3), (2, 5))


def test_a_merged_decoder_takes_one_new_token_beside_its_cache() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (int64[B, S] input_ids, float[B, 2, P, 4] past_key, bool[1] use_cache_branch)
            => (float[B, 2, P, 4] y) { y = Identity (past_key) }"""
    )
    cached, plain = make_inputs(ir.from_proto(proto), InputSpec(), count=2, seed=0)
    assert cached["input_ids"].shape[1] == 1
    assert plain["input_ids"].shape[1] > 1
