"""`onnxfold convert`: the forms, what is refused, exit codes, and the help that teaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.cli.command import Cli

_LLAMA = Path(__file__).parents[1] / "recipes" / "llama-small.onnx"


def _operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_there_and_back_from_the_command_line(model: Path, cli: Cli) -> None:
    rms, layer = model.with_name("rms.onnx"), model.with_name("layer.onnx")
    assert cli("convert", model, "-o", rms, "--to", "rms") == 0
    said = cli.readouterr().out
    assert "3 of 3 LayerNorms fold to RMSNorm" in said
    assert "LayerNormalization" not in _operators(rms)
    assert cli("convert", rms, "-o", layer, "--to", "layer", "--shift", 1) == 0
    said = cli.readouterr().out
    assert "3 of 3 RMSNorms restored to LayerNorm" in said
    assert "5 shifted weights seen by no other reader" in said
    assert _operators(layer).count("LayerNormalization") == 3


def test_the_form_of_the_norms_can_be_chosen(model: Path, cli: Cli) -> None:
    out = model.with_name("rms.onnx")
    for form, norms in (("op", 3), ("decomposed", 0)):
        arguments = ("convert", model, "-o", out, "--to", "rms", "--norm-form", form, "--force")
        assert cli(*arguments) == 0
        assert _operators(out).count("RMSNormalization") == norms
    out.unlink()
    for to, form in (("rms", "layer"), ("crms", "op"), ("layer", "decomposed")):
        assert cli("convert", model, "-o", out, "--to", to, "--norm-form", form) == 2
        assert f"--norm-form {form} is not for --to {to}" in " ".join(cli.readouterr())
    assert not out.exists()


def test_what_is_compressed_says_what_its_rows_are_multiples_of(model: Path, cli: Cli) -> None:
    assert cli("convert", model, "--to", "crms", "--dry-run") == 0
    said = " ".join(cli.readouterr())
    assert "channels stored as" in said
    assert cli("convert", model, "--to", "rms", "--dry-run") == 0
    assert "channels stored as" not in " ".join(cli.readouterr())


def test_the_json_says_what_became_of_each_norm(model: Path, cli: Cli) -> None:
    rms, layer = model.with_name("rms.onnx"), model.with_name("layer.onnx")
    assert cli("-q", "convert", model, rms, "--to", "rms") == 0
    assert cli("convert", rms, "-o", layer, "--to", "layer", "--json") == 0
    report: dict[str, Any] = json.loads(cli.readouterr().out)
    assert {norm["action"] for norm in report["inspect"]["norms"]} == {"layer_norm"}
    assert report["inspect"]["summary"]["restored"] == 3
    assert report["proof"]["passed"]
    assert report["verification"]["passed"]


def test_a_dry_run_plans_and_writes_nothing(model: Path, cli: Cli) -> None:
    before = set(model.parent.iterdir())
    assert cli("convert", model, "--to", "layer", "--dry-run") == 0
    said = cli.readouterr().out
    assert "0 of 0 RMSNorms restored to LayerNorm" in said
    assert "already_layer" in said
    assert set(model.parent.iterdir()) == before


def test_a_stream_with_a_mean_is_left_and_every_norm_says_why(tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out.onnx"
    assert cli("convert", _LLAMA, "-o", out, "--to", "layer") == 0
    said = cli.readouterr().out
    assert "5 norms stay (has_mean): weight 'model.model.embed_tokens.weight' has a mean" in said
    assert onnx.load(out).graph == onnx.load(_LLAMA).graph
    out.unlink()
    arguments = ("convert", _LLAMA, "-o", out, "--to", "layer", "--fail-if-unchanged")
    assert cli(*arguments) == 1
    assert cli.readouterr().err == (
        "onnxfold: nothing to convert in this model, and --fail-if-unchanged is set\n"
    )
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--to", "batch", "-o", "x"),
            "there is no conversion to 'batch'; there are rms, crms, layer",
        ),
        (("--to", "rms", "--shift", 1, "-o", "x"), "--shift is for --to layer"),
        (("--to", "rms", "--multiple-of", 8, "-o", "x"), "--multiple-of is for --to crms"),
        (("--to", "layer", "--change-readers", "-o", "x"), "--change-readers is for --to crms"),
        (("--to", "rms"), "specify the output path with -o OUT, or use --dry-run"),
    ],
)
def test_bad_usage_exits_2_with_the_remedy(
    arguments: tuple[object, ...], message: str, model: Path, cli: Cli
) -> None:
    assert cli("convert", model, *arguments) == 2
    assert message in cli.readouterr().err


@pytest.mark.parametrize("command", [("tune",), ("rotate", "--to", "int8")])
def test_a_command_without_a_dry_run_offers_none(
    command: tuple[str, ...], model: Path, cli: Cli
) -> None:
    assert cli(*command, model) == 2
    assert cli.readouterr().err == "onnxfold: specify the output path with -o OUT\n"


def test_the_form_has_no_default(model: Path, cli: Cli) -> None:
    assert cli("convert", model, "-o", model.with_name("o.onnx")) == 2


def test_the_help_says_what_each_form_is_for(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli("convert", "--help") == 0
    said = cli.readouterr().out
    for part in (
        "--to rms",
        "--to crms",
        "--to layer",
        "--shift",
        "Llama",
        "onnxfold convert gpt2.onnx",
    ):
        assert part in said
