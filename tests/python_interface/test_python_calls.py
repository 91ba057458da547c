"""The Python interface as its users call it: by path, by name, with arrays, in a notebook."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxfold
from onnxfold.options import Options
from onnxfold.tuning.options import TuneOptions
from tests.builders import model_of, pre_norm_model
from tests.python_interface import users_program

ROOT = Path(__file__).parents[2]
_FUNCTIONS = (
    onnxfold.bench,
    onnxfold.convert,
    onnxfold.diff,
    onnxfold.inspect,
    onnxfold.measure,
    onnxfold.optimize,
    onnxfold.tune,
    onnxfold.verify,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(pre_norm_model(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def _named(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize("function", _FUNCTIONS, ids=lambda function: function.__name__)
def test_every_argument_has_a_name_and_a_wrong_one_is_told_the_right_one(
    function: Callable[..., Any],
) -> None:
    parameters = inspect.signature(function).parameters
    assert all(p.kind is not p.VAR_KEYWORD for p in parameters.values())
    assert all(p.annotation is not p.empty for p in parameters.values())
    name = next(iter(_named(function)))
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) .*; did you mean {name}=\?"):
        function("m.onnx", **{f"{name[:-1]}_{name[-1]}": None})
    with pytest.raises(TypeError, match=rf"no argument zzz=; there are .*{name}"):
        function("m.onnx", zzz=None)


def test_the_arguments_are_the_options_with_their_defaults() -> None:
    options = {field.name: field.default for field in fields(Options)}
    conversion = ("convert_to", "shift", "multiple_of", "change_readers")
    given = {n: d for n, d in options.items() if n not in conversion}
    assert _named(onnxfold.optimize) == given | {"progress": None}
    moves = ("fuse_affine", "fuse_residual", "defer", "defer_means", "range_limit", "convert_to")
    moves += ("scale_streams", "scale_margin", "drop_means", "data", "max_error")
    moves += ("rotate", "rotation_seed", "split_gamma")
    given = {n: d for n, d in options.items() if n not in moves}
    assert _named(onnxfold.convert) == given | {"to": inspect.Parameter.empty, "progress": None}
    others = ("precision", "timed")
    tuned = {f.name: f.default for f in fields(TuneOptions) if f.name not in others}
    assert MISSING not in tuned.values()
    assert _named(onnxfold.tune) == tuned | {"precision": "fp32", "progress": None}


def test_a_path_without_an_output_gives_a_model_that_was_checked(path: Path) -> None:
    result = onnxfold.optimize(path, fold="always")
    assert isinstance(result.model, onnx.ModelProto)
    assert result.verification is not None
    assert result.verification.passed
    assert result.report["inspect"]["summary"]["folded"] > 0
    onnx.checker.check_model(result.model)
    assert onnxfold.optimize(str(path), path.with_name("o.onnx")).model == path.with_name("o.onnx")
    assert onnxfold.optimize(path, dry_run=True).model is None
    assert isinstance(onnxfold.convert(path, to="rms").model, onnx.ModelProto)


def _two_inputs() -> onnx.ModelProto:
    """y = LayerNormalization(T[ids] W) mask, with free sizes."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["T", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "W"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "g"], ["n"]),
        helper.make_node("Mul", ["n", "mask"], ["y"]),
    ]
    weights = {
        "T": rng.standard_normal((10, 8)).astype(np.float32),
        "W": rng.standard_normal((8, 8)).astype(np.float32),
        "g": np.ones(8, np.float32),
    }
    inputs = {
        "ids": (TensorProto.INT64, ["b", "s"]),
        "mask": (TensorProto.FLOAT, ["b", "s", 1]),
    }
    return model_of(nodes, inputs, {"y": (TensorProto.FLOAT, ["b", "s", 8])}, weights)


def test_a_result_says_in_one_line_what_was_done(path: Path) -> None:
    said = repr(onnxfold.optimize(path))
    assert re.fullmatch(r"<onnxfold\.Result: \d of \d LayerNorms? folds? to RMSNorm[^\n]*>", said)
    nothing = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) {y = Neg(x)}'
    )
    assert repr(onnxfold.optimize(nothing)) == "<onnxfold.Result: no norms: nothing to fold>"


def test_inputs_are_arrays_and_shapes_by_name(tmp_path: Path) -> None:
    model = _two_inputs()
    inputs = {"ids": np.full((3, 5), 9), "mask": (3, 5, 1)}
    assert onnxfold.verify(model, model, inputs=inputs).passed
    assert onnxfold.optimize(model, inputs=inputs, fold="always").changed
    with pytest.raises(onnxfold.UsageError, match=r"input 'ids' is int64, the array has float64"):
        onnxfold.verify(model, model, inputs={"ids": np.full((3, 5), 0.5)})
    with pytest.raises(onnxfold.UsageError, match=r"inputs\['mask'\] is of type list: give an arr"):
        onnxfold.verify(model, model, inputs={"mask": [[1.0]]})
    with pytest.raises(onnxfold.UsageError, match=r"inputs= names 'idz', but .* 'ids', 'mask'"):
        onnxfold.optimize(model, inputs={"idz": (1, 2)})
    onnx.save(model, tmp_path / "m.onnx")
    timed = onnxfold.bench(tmp_path / "m.onnx", rounds=1, inputs=inputs)
    assert timed.inputs == {"ids": [3, 5], "mask": [3, 5, 1]}


def test_an_index_beyond_the_table_is_run_as_it_was_given() -> None:
    """The array reaches the model: with it nothing runs."""
    with pytest.raises(onnxfold.OnnxfoldError, match="10"):
        onnxfold.verify(_two_inputs(), _two_inputs(), inputs={"ids": np.full((1, 2), 10)})


def test_an_inspection_is_a_table_a_page_and_a_dictionary(path: Path) -> None:
    found = onnxfold.inspect(path, fold="always")
    assert isinstance(found, onnxfold.Inspection)
    text = repr(found)
    assert text.startswith("norm ")
    assert "LayerNorms fold to RMSNorm" in text
    assert max(map(len, text.splitlines())) <= 80
    html = found._repr_html_()
    assert html.count("<tr>") == 1 + len(found["norms"])
    assert "<script" not in html
    document = found.to_dict()
    assert type(document) is dict
    assert json.loads(json.dumps(document)) == document == found
    nothing = onnxfold.inspect(model_of([helper.make_node("Relu", ["x"], ["y"])],
                                        {"x": (TensorProto.FLOAT, [1])},
                                        {"y": (TensorProto.FLOAT, [1])}, {}))  # fmt: skip
    assert repr(nothing) == "no norms: nothing to fold"
    assert "no norms" in nothing._repr_html_()


def test_an_inspection_names_arguments_and_escapes_names(path: Path) -> None:
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = f"<b>\x1b[31m{node.name}"
    found = onnxfold.inspect(model)
    found["norms"][0]["reason"] = {"code": "not_worth", "sentence": "--fold always folds it"}
    for shown in (repr(found), found._repr_html_()):
        assert "\x1b" not in shown
        assert "--fold" not in shown
    assert "fold='always' folds it" in " ".join(repr(found).split())
    assert "<b>" not in found._repr_html_()


@pytest.mark.campaign
def test_a_users_program_is_typed(tmp_path: Path) -> None:
    """mypy --strict takes what is right, and names what is wrong."""
    if find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    assert (Path(onnxfold.__file__).parent / "py.typed").exists()
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(users_program.RIGHT, encoding="utf-8")
    wrong.write_text(users_program.WRONG, encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    words += ["--no-error-summary", "--cache-dir", os.devnull, "--config-file", ""]
    done = subprocess.run(
        [*words, str(right), str(wrong)],
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "right.py" not in done.stdout
    faults = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(faults) == users_program.WRONG.count("# wrong"), done.stdout + done.stderr
    assert all(line.startswith("wrong.py") for line in faults)
    assert 'Unexpected keyword argument "taget" for "optimize"' in done.stdout


@pytest.mark.parametrize(
    "call",
    [
        lambda path, name: onnxfold.optimize(path, providers=name),
        lambda path, name: onnxfold.convert(path, to="rms", providers=name),
        lambda path, name: onnxfold.verify(path, path, providers=name),
        lambda path, name: onnxfold.bench(path, providers=name),
    ],
)
def test_one_text_is_one_provider(call: Callable[[Path, str], object], path: Path) -> None:
    """Its letters were once taken for names: there is no 'C' here."""
    call(path, "CPUExecutionProvider")
    with pytest.raises(onnxfold.UsageError, match="'Nothing'"):
        call(path, "Nothing")


def test_one_text_is_one_chain(path: Path, tmp_path: Path) -> None:
    with pytest.raises(onnxfold.UsageError, match="no step 'nothing'"):
        onnxfold.tune(path, tmp_path / "o.onnx", chains="nothing")


def test_a_model_whose_data_was_left_on_disk_says_how_to_load_it(path: Path) -> None:
    """onnx.save with external data leaves the model in memory without its numbers, too."""
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert onnxfold.inspect(path)["summary"]["norms"]
    with pytest.raises(
        onnxfold.ModelError, match=r"load_external_data_for_model.*or pass the path"
    ):
        onnxfold.inspect(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check": 2.5}, "check must be a whole number, not 2.5"),
        ({"seed": "a"}, "seed must be 0 or more, not 'a'"),
        ({"rtol": "3"}, "rtol must be 0 or more, not '3'"),
        ({"allow_split": 0.5}, "allow_split must be a whole number, not 0.5"),
    ],
)
def test_a_number_of_another_kind_is_refused(
    options: dict[str, Any], message: str, path: Path
) -> None:
    with pytest.raises(onnxfold.UsageError, match=message):
        onnxfold.optimize(path, **options)
    assert onnxfold.optimize(path, check=np.int64(1)).changed


@pytest.mark.parametrize("options", [{"threads": "a"}, {"budget": "a"}, {"samples": 1.5}])
def test_a_number_of_another_kind_is_refused_by_tune(
    options: dict[str, Any], path: Path, tmp_path: Path
) -> None:
    (name,) = options
    with pytest.raises(onnxfold.UsageError, match=f"{name}= must be "):
        onnxfold.tune(path, tmp_path / "out.onnx", **options)


def test_a_path_with_a_null_byte_is_refused(path: Path) -> None:
    with pytest.raises(onnxfold.ModelError, match="a path has no null byte"):
        onnxfold.optimize(path, "a\0b.onnx")
