"""Sizes of made-up inputs: those given, those of symbols, of images, waves and caches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from onnxfold.check.reference import Precision, run
from onnxfold.errors import UsageError
from onnxfold.inputs import InputSpec
from onnxfold.inputs.bound_sizes import symbols_of
from tests.inputs.made_inputs import made, parsed

Shapes = dict[str, tuple[int, ...]]


PAIR = "float[B, S] z, float[B, 4] x"


SUMS = 'float[B, past, 4] k, int64[B, seq] i, float["2*B"] z, int64[B, "past + seq"] m'


REFUSED = [
    (PAIR, ["w:1"], "names 'w', but the model's inputs are 'z', 'x'"),
    (PAIR, ["x:1,2,3"], r"input 'x' has rank 2 \[B, 4\], not 3"),
    (PAIR, ["x:1,5"], r"input 'x' is \[B, 4\], which 5 does not fit"),
    (PAIR, ["x:1,4", "z:2,3"], "'x' and 'z' share the dimension 'B'"),
    (SUMS, ["i:1,3", "m:1,2"], r"input 'm' is given 2 for its dimension 'past \+ seq'"),
    (SUMS, ["k:2,3,4", "i:2,4", "m:2,8"], "input 'm' is given 8 for its dimension"),
    (SUMS, ["m:1,10"], "'past' and 'seq'"),
    ("string[2] x", [], r"input 'x' has strings: give it with inputs=\{'x': array\}"),
]


@pytest.mark.parametrize(("inputs", "given", "message"), REFUSED)
def test_names_and_shapes_that_do_not_fit_are_refused(
    inputs: str, given: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        made(parsed(inputs), InputSpec.parse(given))


def test_a_symbol_has_one_size_per_sample_and_sizes_vary_between_samples() -> None:
    model = parsed("float[batch, S, 8] x, float[S, batch, 3] z")
    samples = made(model, count=12)
    for sample in samples:
        batch, length = sample["x"].shape[:2]
        assert sample["z"].shape == (length, batch, 3)
        assert 1 <= batch <= 3
        assert 5 <= length <= 17
    assert len({s["x"].shape for s in samples}) > 4


IDS = "int64[b, s] input_ids"


CACHED = f"float[b, 2, past_len, 4] pk, {IDS}"


TORCH = "int64[s1, s2] input_ids, int64[s3, s4] attention_mask, "


CACHES = "0_key", "0_value", "1_key", "1_value"


OWN = TORCH + ", ".join(f"float[s1, 2, s_{name}, 4] past_{name}" for name in CACHES)


ENCODER = (
    "float[B, 2, encoder_length_out, 4] past_encoder, int64[B, encoder_length] mask, "
    "float[B, 2, past_length, 4] past_key, int64[B, S] input_ids"
)


STEPS = "float[sample_0, 4] sample, float[timestep_0] timestep, int64[new_0] cache_position"


def _total(past: str, mask: str) -> Callable[[Shapes], bool]:
    """The mask is as long as past and present, in as many rows."""
    return lambda z: z[mask] == (z["input_ids"][0], z[past][2] + z["input_ids"][1])


def _as_its_mask(z: Shapes) -> bool:
    return z["past_encoder"][2] == z["mask"][1]


SHAPES: dict[str, tuple[str, list[str], Callable[[Shapes], bool]]] = {
    "given sizes are those of symbols": (
        "float[B, S, 8] x, int64[B, S] i, float[S] q",
        ["i:3,11"],
        lambda z: (z["x"], z["q"]) == ((3, 11, 8), (11,)),
    ),
    "expressions": (
        SUMS,
        [],
        lambda z: z["m"][1] == z["k"][1] + z["i"][1] and z["z"] == (2 * z["i"][0],),
    ),
    "solved": (SUMS, ["i:1,3", "m:1,10"], lambda z: z["k"] == (1, 7, 4)),
    "all given": (SUMS, ["k:2,3,4", "i:2,4", "m:2,7"], lambda z: z["m"] == (2, 7)),
    "a total by name": (f"{CACHED}, int64[b, total_sequence_length] m", [], _total("pk", "m")),
    "a mask": (
        f"{CACHED}, int64[b, mask_dim_1] attention_mask",
        [],
        _total("pk", "attention_mask"),
    ),
    "torch's names": (
        f"{TORCH} float[s1, 2, s5, 4] past_0_key",
        [],
        _total("past_0_key", "attention_mask"),
    ),
    "every cache is as long as the one given": (
        OWN,
        ["input_ids:1,1", "past_0_value:1,2,33,4"],
        lambda z: {z[f"past_{name}"][2] for name in CACHES} == {z["attention_mask"][1] - 1} == {33},
    ),
    "no names": (
        "float[?, 8] x, int64[?, ?] ids, int64[?, ?] mask",
        [],
        lambda z: z["ids"] == z["mask"] and z["x"][0] == z["ids"][0],
    ),
    # The steps of a diffusion; positions in a cache are as many as the tokens.
    "a number for each of a batch": (
        STEPS,
        [],
        lambda z: z["timestep"] == z["sample"][:1] and z["cache_position"][0] >= 5,
    ),
    "a vector alone": ("float[t] x", [], lambda z: z["x"][0] >= 5),
    # As optimum before 2.0 names it.
    "the cache of an encoder": (ENCODER, [], _as_its_mask),
    "the cache of a mask": (ENCODER, ["mask:2,9"], _as_its_mask),
    "the mask of a cache": (ENCODER, ["past_encoder:2,2,3,4"], _as_its_mask),
    "no cache of such a name": (
        "float[B, length] x, float[B, length_out] z",
        ["x:2,3", "z:2,5"],
        lambda z: (z["x"], z["z"]) == ((2, 3), (2, 5)),
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_sizes_agree_with_each_other_and_with_those_given(case: str) -> None:
    inputs, given, agree = SHAPES[case]
    for sample in made(parsed(inputs), InputSpec.parse(given)):
        assert agree({name: array.shape for name, array in sample.items()}), sample


NARROW = "float[b, s] x, float[a, 1, m] k, int32[a, 1, r] i"


NO_WAVE = "y = Conv (short, k)  z = Neg (x)  w = Cast <to=1> (i)  v = Conv (w, short)"


PICTURES = {
    "by name": ("float[b, 3, h, w] pixel_values", "", (2, 3, 224, 224)),
    "of the model's size": ("float[b, 3, 32, 40] x", "", (2, 3, 32, 40)),
    "channels last": ("float[b, h, w, 3] x", "", (2, 224, 224, 3)),
    "turned": (
        "float[b, h, w, 1] x",
        "t = Transpose <perm = [0, 3, 1, 2]> (x)  y = Conv (t, gray)",
        (2, 224, 224, 1),
    ),
    "turned to the kernel's channels": (
        "float[b, h, w, 6] x",
        "t = Transpose <perm = [0, 3, 1, 2]> (x)  y = Conv (t, six)",
        (2, 32, 32, 6),
    ),
    "a wave": ("float[b, t] x", "u = Unsqueeze (x, axis)  y = Conv (u, wave)", (2, 3200)),
    "a wave beside others": (
        f"float[a, 1, t] x, {NARROW.replace(' x', ' c')}",
        f"p = Conv (x, k)  {NO_WAVE.replace('(x)', '(c)')}",
        (2, 1, 3200),
    ),
    "of the kernel's channels": ("float[b, c, h, w] x", "y = Conv (x, six)", (2, 6, 32, 32)),
    "with a bias": ("float[b, c, h, w] x", "y = Conv (x, six, bias)", (2, 6, 32, 32)),
    "in groups": ("float[b, c, h, w] x", "y = Conv <group=4> (x, six)", (2, 24, 32, 32)),
    "in groups, with a bias": (
        "float[b, c, h, w] x",
        "y = Conv <group=4> (x, six, bias)",
        (2, 24, 32, 32),
    ),
    "normalized first": (
        "float[b, num_channels, h, w] x",
        "c = Sub (x, mean)  d = Div (c, mean)  y = Conv (d, rgb)",
        (2, 3, 224, 224),
    ),
}


@pytest.mark.parametrize("case", PICTURES)
def test_images_and_waves_have_sizes_that_models_take(case: str) -> None:
    inputs, body, shape = PICTURES[case]
    first = next(iter(made(parsed(inputs, body), count=1)[0].values()))
    assert first.shape == shape


@pytest.mark.parametrize(("inputs", "body"), [("float[b, h, w, 5] x", ""), (NARROW, NO_WAVE)])
def test_what_is_neither_an_image_nor_a_wave_is_small(inputs: str, body: str) -> None:
    for array in made(parsed(inputs, body), count=1)[0].values():
        assert max(array.shape) < 18


def test_only_the_first_of_several_unnamed_axes_is_the_batch() -> None:
    model = parsed("int64[a, b] ids, int64[a, b, 2] boxes, int64[a] steps", "y = Neg (ids)")
    for value, dims in zip(
        model.graph.inputs, ((None, None), (None, None, 2), (None,)), strict=True
    ):
        value.shape = ir.Shape(dims)
    names = [symbols_of(value) for value in model.graph.inputs]
    assert names == [("?batch", "?sequence"), ("?batch", "?boxes.1", 2), ("?steps.0",)]


def test_shapeless_inputs_must_be_given() -> None:
    model = parsed("float[2] x")
    model.graph.inputs[0].shape = None
    with pytest.raises(UsageError, match="input 'x' has no shape in the model"):
        made(model)
    assert made(model, InputSpec.parse(["x:2,3"]))[0]["x"].shape == (2, 3)


def test_a_sequence_is_not_asked_for() -> None:
    model = parsed("seq(float[2]) x", "y = SequenceAt (x, i)", "float[2] y", i=np.array(0))
    with pytest.raises(UsageError, match=r"input 'x' is a sequence, .*: leave out .*\(check=0\)"):
        made(model)


def _decoder(attributes: str = "", past: str = "P", packed: bool = True) -> ir.Model:
    """A GroupQueryAttention as ONNX Runtime GenAI's builder writes it, its caches of open sizes."""
    keys, width = ('"", ""', 64) if packed else ("k, v", 32)
    heads = f"num_heads = 4, kv_num_heads = 2{attributes}"
    return parsed(
        f"float[B, T, {width}] x, float[B, T, 16] k, float[B, T, 16] v, int64[B, S] attention_mask,"
        f"float[B, 2, {past}, H] past_key, float[B, 2, {past}, H] past_value",
        f"""
        n = ReduceSum <keepdims = 0> (attention_mask, axis)  m = Sub (n, axis)
        last = Cast <to = 6> (m)  s = Shape (attention_mask)  l = Gather (s, i)
        total = Cast <to = 6> (l)
        y, pk, pv = com.microsoft.GroupQueryAttention <{heads}>
            (x, {keys}, past_key, past_value, last, total)
        """,
        "float[B, T, 32] y",
        i=np.array(1),
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
    inputs = "int64[B, S] input_ids, float[B, T] attention_mask, float[B, 2, P, 4] past_key"
    samples = made(parsed(f"{inputs}, bool[1] use_cache_branch"), count=2)
    assert [bool(each["use_cache_branch"][0]) for each in samples] == [True, False]
    new, past = ([z[n].shape[a] for z in samples] for n, a in (("input_ids", 1), ("past_key", 2)))
    masks = [each["attention_mask"].shape[1] for each in samples]
    assert masks == [sum(pair) for pair in zip(new, past, strict=True)]
    assert [length > 0 for length in past] == [True, False]


@pytest.mark.parametrize(("new", "step"), [("1", 1), ("2", 2), ("S", None)])
def test_a_mask_of_the_past_and_one_is_of_one_new_token(new: str, step: int | None) -> None:
    """As optimum up to 1.20 names it."""
    mask = f'int64[B, "past_length + {new}"] attention_mask'
    model = parsed(f"int64[B, S] input_ids, {mask}, float[B, 2, past_length, 4] past_key")
    for sample in made(model, count=2):
        length = sample["input_ids"].shape[1]
        assert sample["attention_mask"].shape[1] == sample["past_key"].shape[2] + length
        assert length == step if step else length > 2
    if step == 1:
        (sample,) = made(model, InputSpec.parse(["input_ids:2,7"]), count=1)
        assert sample["input_ids"].shape == (2, 7)


def test_a_merged_decoder_takes_one_new_token_beside_its_cache() -> None:
    inputs = "int64[B, S] input_ids, float[B, 2, P, 4] past_key, bool[1] use_cache_branch"
    cached, plain = made(parsed(inputs), count=2)
    assert cached["input_ids"].shape[1] == 1 < plain["input_ids"].shape[1]
