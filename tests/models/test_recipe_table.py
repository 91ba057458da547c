"""The table of recipes, its documentation and the errors of its command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from models import RECIPES, export, find
from models.__main__ import main
from models.recipe import RequirementError
from onnxfold.errors import UsageError

ROOT = Path(__file__).parents[2]
README = (ROOT / "models" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RECIPES)
def test_readme_has_the_row_of_every_recipe(name: str) -> None:
    recipe = RECIPES[name]
    cells = (
        recipe.name,
        recipe.source,
        recipe.licence,
        recipe.layers,
        recipe.layer_norms,
        recipe.rms_norms,
        recipe.why,
    )
    assert f"| {' | '.join(map(str, cells))} |" in README.splitlines()


def test_readme_has_no_row_without_a_recipe() -> None:
    table = README.split("| recipe |")[1].split("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table] == list(RECIPES)


def test_a_misspelt_name_gets_the_closest_one() -> None:
    with pytest.raises(UsageError, match=r"'gpt-2'; did you mean gpt2\?"):
        find("gpt-2")


def test_a_recipe_of_transformers_refuses_torchscript(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gpt2: exports with dynamo only, not with torchscript"):
        export("gpt2", tmp_path, exporter="torchscript")


def test_a_recipe_without_sdpa_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="bloom-560m: has eager attention only"):
        export("bloom-560m", tmp_path, attention="sdpa")


def test_list_names_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == list(RECIPES)


def test_command_line_gives_one_line_and_exit_code_2_for_an_unknown_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["nothing-like-it"]) == 2
    message = capsys.readouterr().err.splitlines()
    assert len(message) == 1
    assert "no recipe is called 'nothing-like-it'" in message[0]


@pytest.mark.parametrize("arguments", [[], ["gpt2", "vit-b16", "-o", "one.onnx"]])
def test_command_line_refuses_no_name_and_two_names_for_one_file(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_a_missing_package_gives_one_sentence_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RequirementError, match=r"torch is not installed.*onnxfold\[models\]"):
        export("gpt2", tmp_path, small=True)


def test_importing_the_recipes_loads_no_framework() -> None:
    program = (
        "import sys, models; "
        "print(*sorted({'torch', 'transformers', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
