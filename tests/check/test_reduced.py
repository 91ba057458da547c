"""`verify` of what converters write: faults are refused in one line, sound conversions are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxfold
from models.digits_vit.data import HELDOUT
from onnxfold.check.traps import traps
from onnxfold.errors import DataError, UsageError, VerificationError
from onnxfold.model_io import from_proto
from onnxfold.model_io.load import Source
from tests.builders import chain_model, model_of, post_norm_model, pre_norm_model
from tests.check.converted import change_weight, drop, dynamic, encoder, half, rows, static
from tests.lanes import some

pytest.importorskip("onnxruntime.quantization")
DIGITS = HELDOUT.parent / "digits_vit.onnx"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the encoder and data for it."""
    onnx.save(encoder(), tmp_path / "a.onnx")
    feeds = rows(12, seed=2)
    np.savez(tmp_path / "rows.npz", **{k: np.concatenate([f[k] for f in feeds]) for k in feeds[0]})
    return tmp_path


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, folder / "b.onnx")
    return folder / "b.onnx"


def checked(folder: Path, model: onnx.ModelProto, **options: object) -> onnxfold.BudgetVerification:
    given = {"metric": "relative", "data": folder / "rows.npz", **options}
    result = onnxfold.verify(folder / "a.onnx", saved(folder, model), **given)  # type: ignore[arg-type]
    assert isinstance(result, onnxfold.BudgetVerification)
    return result


# Sound conversions.


def _slim(model: onnx.ModelProto) -> onnx.ModelProto:
    onnxslim = pytest.importorskip("onnxslim")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return onnxslim.slim(copy)


def _folded(model: onnx.ModelProto, target: str = "onnx") -> onnx.ModelProto:
    """Move gammas and means, so that values of the same names differ rightly."""
    return onnxfold.optimize(model, target=target, fold="always", check=0).model


def _ids(name: str) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    if name == "pre":
        return [{"ids": rng.integers(0, 32, (1, 7))} for _ in range(8)]
    name, width = ("x", 16) if name == "chain" else ("x0", 16)
    return [{name: rng.standard_normal((1, width)).astype(np.float32)} for _ in range(8)]


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "encoder": encoder,
    "pre": pre_norm_model,
    "post": post_norm_model,
    "chain": chain_model,
    "digits": lambda: onnx.load(DIGITS),
}
SOUND: dict[str, Callable[[onnx.ModelProto, Path, list], onnx.ModelProto]] = {
    "int8": lambda m, f, _: dynamic(m, f),
    "int8 per channel": lambda m, f, _: dynamic(m, f, per_channel=True),
    "float16": lambda m, _, __: half(m),
    "float16, inputs too": lambda m, _, __: half(m, keep_io_types=True),
    "qdq": static,
    "slim": lambda m, _, __: _slim(m),
    "folded, then int8": lambda m, f, _: dynamic(_folded(m), f),
    "folded for ort, then float16": lambda m, _, __: half(_folded(m, "ort"), keep_io_types=True),
    "folded for kernels, then int8 per channel": lambda m, f, _: dynamic(
        _folded(m, "kernels"), f, per_channel=True
    ),
}


@pytest.mark.parametrize(("name", "conversion"), some(product(MODELS, SOUND), each=4))
def test_a_sound_conversion_is_not_refused(tmp_path: Path, name: str, conversion: str) -> None:
    model = MODELS[name]()
    data = rows(8) if name == "encoder" else _digits() if name == "digits" else _ids(name)
    onnx.save(model, tmp_path / "a.onnx")
    arrays = {key: np.concatenate([feeds[key] for feeds in data]) for key in data[0]}
    np.savez(tmp_path / "rows.npz", **arrays)
    changed = saved(tmp_path, SOUND[conversion](model, tmp_path, data))
    if conversion == "slim":
        result = onnxfold.verify(tmp_path / "a.onnx", changed)
    else:
        metrics = ("relative", "cosine")
        result = onnxfold.verify(
            tmp_path / "a.onnx", changed, metric=metrics, data=tmp_path / "rows.npz"
        )
    assert result.passed, result.worst


def _digits() -> list[dict[str, np.ndarray]]:
    images = np.load(HELDOUT)["images"]
    return [{"images": images[row : row + 1]} for row in range(8)]


# Faults that a run shows.


def _overflowing(model: onnx.ModelProto) -> onnx.ModelProto:
    def big(w: np.ndarray) -> np.ndarray:
        w = w.copy()
        w[0, 0] = np.inf
        return w

    return change_weight(half(model, keep_io_types=True), "Wup", big)


FAULTS: dict[str, tuple[Callable[[Path], onnx.ModelProto], str]] = {
    "a QDQ scale ten times too small": (
        lambda f: change_weight(static(encoder(), f, rows(8)), "bent_scale", lambda s: s / 10),
        "node_down",
    ),
    "a float16 weight that overflows": (lambda _: _overflowing(encoder()), "node_up"),
    "a mask of the wrong sign": (
        lambda f: change_weight(dynamic(encoder(), f), "far", lambda far: -far),
        "node_bar",
    ),
    "a node that a converter drops": (
        lambda f: drop(dynamic(encoder(), f), "node_bent"),
        "node_bent",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused_and_its_node_named(files: Path, name: str) -> None:
    make, node = FAULTS[name]
    result = checked(files, make(files), metric=("relative", "cosine"), blame=True)
    assert not result.passed
    assert str(result.worst).startswith("output 'logits': ")
    assert [one.node for one in result.blame] == [node]


BURIED: dict[str, Callable[[Path], onnx.ModelProto]] = {
    "an activation": lambda f: change_weight(
        static(onnx.load(DIGITS), f, _digits()), "expand_scale", lambda s: s / 10
    ),
    "a bias": lambda f: change_weight(
        static(onnx.load(DIGITS), f, _digits()),
        "body.blocks.3.norm2.bias_quantized_scale",
        lambda s: s / 10,
    ),
}


@pytest.mark.parametrize("name", BURIED)
def test_a_scale_that_is_wrong_is_refused_though_the_outputs_are_near(
    tmp_path: Path, name: str
) -> None:
    changed = saved(tmp_path, BURIED[name](tmp_path))
    np.savez(tmp_path / "rows.npz", images=np.load(HELDOUT)["images"][8:14])
    result = onnxfold.verify(DIGITS, changed, metric="relative", data=tmp_path / "rows.npz")
    assert isinstance(result, onnxfold.BudgetVerification)
    assert not result.passed
    assert result.report.outputs[0].worst["relative"] < 0.2  # type: ignore[index]  # str is as good
    node = {"an activation": "node_cat", "a bias": "node_layer_norm_7"}[name]
    assert str(result.worst).startswith(
        f"the outputs are right, but node '{node}' is wrong by itself"
    )


def test_full_precision_names_nodes_too(files: Path) -> None:
    wrong = saved(files, change_weight(encoder(), "far", lambda far: -far))
    result = onnxfold.verify(files / "a.onnx", wrong, data=files / "rows.npz", blame=True)
    assert isinstance(result, onnxfold.Verification)
    assert result.samples == 14
    assert [one.node for one in result.blame] == ["node_bar"]
    record = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert record["blame"][0]["node"] == "node_bar"
    assert record["data"] == f"12 rows of {files / 'rows.npz'}"
    right = onnxfold.verify(files / "a.onnx", saved(files, encoder()), blame=True)
    assert right.passed
    assert "blame" not in right.to_json()


def test_without_a_metric_a_reduced_model_fails_and_the_way_out_is_said(files: Path) -> None:
    result = onnxfold.verify(files / "a.onnx", saved(files, dynamic(encoder(), files)))
    assert not result.passed
    assert result.notes == ("B is in int8: metric= lets an error budget decide",)


# Faults of files.


def _unsorted(model: onnx.ModelProto) -> onnx.ModelProto:
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([nodes[-1], *nodes[:-1]])
    return model


def _unsorted_body(model: onnx.ModelProto) -> onnx.ModelProto:
    def branch(order: int) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Abs", ["logits_"], ["inner"], name="inner"),
            helper.make_node("Neg", ["inner"], ["given"], name="outer"),
        ][::order]
        return helper.make_graph(
            nodes, "branch", [], [helper.make_tensor_value_info("given", 1, None)]
        )

    model.graph.node[-1].output[0] = "logits_"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "always"))
    model.graph.node.append(
        helper.make_node(
            "If", ["always"], ["logits"], then_branch=branch(1), else_branch=branch(-1)
        )
    )
    return model


def _unloadable(model: onnx.ModelProto) -> onnx.ModelProto:
    """A type that no kernel of the operator takes."""
    changed = half(model, keep_io_types=True)
    next(n for n in changed.graph.node if n.op_type == "Tanh").op_type = "NoSuchOperator"
    return changed


def _renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.node[-1].output[0] = model.graph.output[0].name = "logits_quantized"
    return model


BROKEN: dict[str, tuple[Callable[[onnx.ModelProto], onnx.ModelProto], str]] = {
    "unsorted": (
        _unsorted,
        "its nodes are not in order: 'node_logits' (MatMul) reads 'down', which a later one",
    ),
    "unsorted in a body": (
        _unsorted_body,
        "its nodes are not in order: 'outer' (Neg) reads 'inner', which a later one",
    ),
    "it does not load": (_unloadable, "the rewritten model does not run"),
    "an output renamed": (_renamed, "its outputs are logits_quantized, not logits"),
}


@pytest.mark.parametrize("metric", [(), "relative"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_one_line(files: Path, name: str, metric: str) -> None:
    make, message = BROKEN[name]
    wrong = saved(files, make(encoder()))
    with pytest.raises(VerificationError) as raised:
        onnxfold.verify(files / "a.onnx", wrong, metric=metric, max_error=0.1 if metric else ())
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 1


def test_a_file_that_is_in_order_is_not_refused(files: Path) -> None:
    """A branch may read what was computed before it, under names that others have too."""
    model = _unsorted_body(encoder())
    body = next(a.g for a in model.graph.node[-1].attribute if a.name == "else_branch")
    nodes = list(body.node)
    del body.node[:]
    body.node.extend(nodes[::-1])
    onnx.save(model, files / "a.onnx")
    assert onnxfold.verify(files / "a.onnx", saved(files, model)).passed


# Options and notes.


def test_the_budget_is_that_of_the_precision_or_the_given_one(files: Path) -> None:
    int8 = dynamic(encoder(), files)
    usual = checked(files, int8, metric=("relative", "top1", "kl"))
    assert usual.passed
    assert usual.to_json()["budget"] == {"relative": 0.2, "top1": 0.05, "kl": 0.05}
    strict = checked(files, int8, max_error=1e-4)
    assert "relative error" in str(strict.worst)
    assert str(strict.worst).endswith("the budget allows 0.0001")
    assert strict.samples == 12
    assert checked(files, int8, samples=2).samples == 14
    assert checked(files, int8, rows=5).data == f"the first 5 rows of {files / 'rows.npz'}"
    assert checked(files, int8, data=None).samples == 2


WRONG_OPTIONS: dict[str, tuple[dict[str, object], str]] = {
    "no metric": ({"max_error": 0.1}, "max_error= needs metric="),
    "an unknown metric": ({"metric": "mse"}, "there is no metric 'mse'; there are relative"),
    "a metric twice": ({"metric": ("kl", "kl")}, "names one metric twice"),
    "more limits": ({"metric": "kl", "max_error": (1, 2)}, "is given 2 times for 1 of metric="),
    "a negative limit": ({"metric": "kl", "max_error": -1}, "must be 0 or more"),
    "full precision": ({"metric": "kl"}, "is in full precision, which has no default budget"),
    "rows of nothing": ({"rows": 3}, "rows= needs data="),
    "another criterion": ({"metric": "kl", "max_error": 1, "rtol": 1}, "rtol= is not for"),
    "no sample": ({"samples": 0}, "at least 1 sample, not 0"),
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_options_that_make_no_sense(files: Path, name: str) -> None:
    options, message = WRONG_OPTIONS[name]
    with pytest.raises(UsageError, match=message):
        onnxfold.verify(files / "a.onnx", files / "a.onnx", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["missing", "nan", "another width"])
def test_data_that_does_not_fit_is_one_line(files: Path, kind: str) -> None:
    path = files / "bad.npz"
    if kind == "nan":
        onnx.save(chain_model(), files / "a.onnx")
        np.savez(path, x=np.full((3, 16), np.nan, np.float32))
    elif kind == "another width":
        onnx.save(chain_model(), files / "a.onnx")
        np.savez(path, x=np.ones((3, 15), np.float32))
    with pytest.raises(DataError) as raised:
        onnxfold.verify(files / "a.onnx", files / "a.onnx", data=path)
    assert "\n" not in str(raised.value)


def _pieces() -> onnx.ModelProto:
    weights = {"two": np.float32(2), "W": np.eye(4, dtype=np.float32), "far": np.float32(3e5)}
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["squares"], name="squares"),
        helper.make_node("ReduceMean", ["squares"], ["mean"], axes=[-1], name="mean"),
        helper.make_node("Sqrt", ["mean"], ["root"], name="root"),
        helper.make_node("Div", ["x", "root"], ["n"], name="n"),
        helper.make_node("Mul", ["n", "far"], ["held"], name="held"),
        helper.make_node("MatMul", ["held", "W"], ["y"], name="y"),
    ]
    kind = (onnx.TensorProto.FLOAT, ["batch", 4])
    return model_of(nodes, {"x": kind}, {"y": kind}, weights, opset=17)


def test_known_traps_are_noted(files: Path) -> None:
    onnx.save(_pieces(), files / "a.onnx")
    np.savez(files / "rows.npz", x=np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32))
    result = checked(files, half(_pieces(), keep_io_types=True))
    assert not result.passed
    norms, weights = result.notes
    assert norms.startswith("1 norms in pieces square in float16, the first in 'mean'")
    assert weights == "1 weights were clipped, the first 'far' from 3e+05 to 6.55e+04"
    clip = helper.make_node("Clip", ["up", "low", "high"], ["held"], name="inserted")
    clipped = encoder()
    place = next(i for i, n in enumerate(clipped.graph.node) if n.name == "node_upb")
    clipped.graph.node[place].input[0] = "held"
    clipped.graph.node.insert(place, clip)
    for name, bound in (("low", -99), ("high", 99)):
        clipped.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(bound), name))
    assert traps(_source(encoder()), _source(clipped)) == (
        "1 Clip are new, the first 'inserted': they cut off numbers",
    )
    assert traps(_source(clipped), _source(clipped)) == ()


def _source(model: onnx.ModelProto) -> Source:
    return Source(from_proto(model))


def test_quantized_parts_that_stay_in_float_are_noted(files: Path) -> None:
    """A session makes no integer operator of MatMuls that read one dequantized value together."""
    quantized = static(encoder(), files, rows(8), op_types_to_quantize=["MatMul"])
    (note,) = checked(files, quantized).notes
    assert note.startswith("3 of 9 Conv, Gemm, MatMul between QuantizeLinear and")


def test_each_provider_is_tried_where_there_are_several(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("there is but one provider")
    providers = ("AzureExecutionProvider", "CPUExecutionProvider")
    assert checked(files, dynamic(encoder(), files), providers=providers).passed


def test_the_command_line_prints_errors_budget_and_blame(files: Path) -> None:
    from typer.testing import CliRunner

    from onnxfold.cli.application import app

    bad = saved(files, FAULTS["a mask of the wrong sign"][0](files))
    words = ["verify", str(files / "a.onnx"), str(bad), "--metric", "relative", "--metric", "top1"]
    words += ["--max-error", "0.1", "--max-error", "0.5", "--data", str(files / "rows.npz")]
    done = CliRunner().invoke(app, [*words, "--blame"])
    assert done.exit_code == 1
    assert "NOT within the budget: output 'logits': its relative error is" in done.stdout
    assert "to blame: node 'node_bar' (Mul)" in done.stdout
    assert "data: 12 rows of" in " ".join(done.stdout.split())
    record = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert record["passed"] is False
    assert record["budget"] == {"relative": 0.1, "top1": 0.5}
