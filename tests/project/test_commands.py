"""Every command and program that a page shows is run by a test: by one of these, or by another."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import onnx
import pytest
import typer

from onnxfold.cli.application import app
from tests.builders import pre_norm_model
from tests.project.test_readme import ROOT, blocks, run

# The test that runs all of a page as printed.
RUN_BY = {
    "README.md": "tests/project/test_newcomer.py",
    "command_line.md": "tests/cli/test_command_line_page.py",
    "exporting.md": "tests/training/test_training_pages.py",
    "geometry.md": "tests/geometry/test_page.py",
    "index.md": "tests/project/test_readme.py",
    "pipeline.md": "tests/project/test_pipeline_page.py",
    "runtimes.md": "tests/project/test_commands.py",
    "training.md": "tests/training/test_training_pages.py",
    "verify.md": "tests/check/test_verify_page.py",
}
# Single lines that other tests run, in another folder or on another port.
ALSO_RUN = {
    "cmake -S custom_ops -B build/ops && cmake --build build/ops": (
        "tests/custom_ops/test_compilers.py"
    ),
    "docker/build.sh -t registry.example.com/tools/onnxfold:1": "tests/project/test_image.py",
    "make image": "tests/project/test_image.py",
    "onnxfold serve model.onnx": "tests/serving/server/test_serving.py",
    "onnxfold tune model.onnx -o fast.onnx": "tests/tuning/test_tune.py",
    "onnxfold serve model.onnx --host 0.0.0.0 --token-file token --tls-cert cert.pem "
    "--tls-key key.pem": "tests/serving/server/test_access.py",
}
# Programs that take hours, a GPU or a package of their own: seen is that they take these words.
LONG = {"trust.md", "cuda.md"}
# What is not run at all: images with other contents, and a GPU.
NOT_RUN = {"docker.md", "cuda.md"}
_FROM_A_CLONE = 'pip install ".['
# A page may begin with a command, and lines of what it prints.
_OPENER = re.compile(r"\A# .*\n\n```console\n\$ (onnxfold .*)\n```\n\n```text\n(.*?)```", re.DOTALL)


def shown(page: Path, *languages: str) -> list[str]:
    """Return the commands in blocks of these languages, those of several lines in one.

    Installing an extra from a clone is what `make` does for the tests.
    """
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = "".join(block for name, block in fences if name in languages).replace("\\\n", " ")
    commands = (
        " ".join(line.removeprefix("$ ").partition("#")[0].split()) for line in lines.splitlines()
    )
    return [command for command in commands if command and not command.startswith(_FROM_A_CLONE)]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = {page.name: shown(page, "sh", "console", "") for page in PAGES}
OPENERS = {
    page.name: (found[1], found[2].splitlines())
    for page in PAGES
    if (found := _OPENER.match(page.read_text(encoding="utf-8")))
}
PROGRAMS = sorted({line for name in LONG for line in SHOWN[name] if line.startswith("python -m ")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_has_its_test(page: Path) -> None:
    if page.name in RUN_BY:
        test = (ROOT / RUN_BY[page.name]).read_text(encoding="utf-8")
        assert page.name in test or page.stem.upper() in test or "FIVE_MINUTES" in test
        return
    known = {*ALSO_RUN, *PROGRAMS, *(command for command, _ in OPENERS.values())}
    left = [line for line in SHOWN[page.name] if line not in known]
    assert not left or page.name in NOT_RUN, f"{page.name}: no test runs {left}"


def test_the_tests_of_single_lines_exist() -> None:
    everything = {line for lines in SHOWN.values() for line in lines}
    assert ALSO_RUN.keys() <= everything
    assert all((ROOT / test).exists() for test in ALSO_RUN.values())


@pytest.mark.parametrize("line", PROGRAMS)
def test_a_program_that_takes_long_takes_these_words(line: str) -> None:
    module, *words = line.split()[2:]
    if module == "benchmarks.gpu_kernels":
        pytest.importorskip("torch", reason="torch is missing, beside which kernels are timed")
    if module == "benchmarks.hostile_coverage":
        pytest.importorskip("atheris", reason="atheris is missing, which no extra brings")
    assert "usage: " in run([sys.executable, "-m", module, *words, "--help"], ROOT)


def test_the_page_on_runtimes_runs_as_printed(tmp_path: Path) -> None:
    page = ROOT / "docs" / "runtimes.md"
    for number, command in enumerate(shown(page, "sh")):
        (tmp_path / str(number)).mkdir()
        onnx.save(pre_norm_model(), tmp_path / str(number) / "model.onnx")
        run(command.split(), tmp_path / str(number))
    (kernels,) = (tmp_path / "0" / "models").rglob("*.onnx")
    shutil.copy(kernels, tmp_path / "kernels.onnx")
    (program,) = blocks("python", page.read_text(encoding="utf-8"))
    run([sys.executable, "-c", program], tmp_path)
    assert not onnx.load(tmp_path / "standard.onnx").functions


@pytest.mark.parametrize("page", OPENERS)
def test_a_page_begins_with_what_its_command_prints(page: str, tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    command, lines = OPENERS[page]
    printed = run(command.split(), tmp_path)
    assert [line for line in lines if line not in printed] == []


def test_the_pages_that_begin_so_are_those() -> None:
    names = {"commands", "large_models", "refusals", "tensorrt", "trust"}
    assert OPENERS.keys() == {f"{name}.md" for name in names}


def test_the_page_on_python_begins_with_what_its_program_prints(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    (program, *_), (text,) = blocks("python", page), blocks("text", page)
    assert run([sys.executable, "-c", program], tmp_path) == text


def test_the_page_on_commands_names_every_command() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z-]+)[ `]", page.partition("## optimize or tune")[0]))
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group has them
    assert {name for name, command in known.items() if not command.hidden} <= named
