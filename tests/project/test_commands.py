"""Every command and program that a page shows is run by a test: by one of these, or by another."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import onnx
import pytest
import typer

from onnxfold.cli.application import app
from tests.builders import pre_norm_model
from tests.optimized import TORCH_IS_MISSING
from tests.project.test_readme import ROOT, blocks, run

# The test that runs all of a page as printed.
RUN_BY = {
    "README.md": "tests/project/test_newcomer.py",
    "command_line.md": "tests/cli/test_command_line_page.py",
    "exporting.md": "tests/training/test_training_pages.py",
    "geometry.md": "tests/geometry/test_page.py",
    "index.md": "tests/project/test_readme.py",
    "pipeline.md": "tests/project/test_pipeline_page.py",
    "precision.md": "tests/passes/basis/test_precision_page.py",
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
# A page begins with one sentence at most, a program or commands, and lines of what they print.
_OPENER = re.compile(
    r"\A# .+\n\n(?:(?!```).+\n\n)?"
    r"```(console|python|sh)\n((?:.*\n)*?)```\n\n```text\n((?:.*\n)*?)```"
)
_NUMBER = re.compile(r"[\d.]+(e-\d+)?")
# Run by another test, on another model or with a server's ports.
OPENED_BY = {
    "command_line.md": "tests/cli/test_command_line_page.py",
    "geometry.md": "tests/geometry/test_page.py",
    "index.md": "tests/project/test_readme.py",
    "serve.md": "tests/serving/server/test_serving.py",
    "tune.md": "tests/tuning/test_tune.py",
    "verify.md": "tests/check/test_verify_page.py",
}
# Numbers depend on the machine: the words are compared.
MEASURED = {"benchmarks.md", "theory.md", "training.md"}
NEEDS_TORCH = {"exporting.md", "pipeline.md", "training.md"}


def shown(page: Path, *languages: str) -> list[str]:
    """Return the commands in blocks of these languages, continuation lines joined.

    Installing an extra from a clone is what `make` does for the tests.
    """
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = commands("".join(block for name, block in fences if name in languages))
    return [command for command in found if not command.startswith(_FROM_A_CLONE)]


def commands(block: str) -> list[str]:
    """Return the commands of a block, continuation lines joined."""
    lines = block.replace("\\\n", " ").splitlines()
    found = (" ".join(line.removeprefix("$ ").partition("#")[0].split()) for line in lines)
    return [command for command in found if command]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = {page.name: shown(page, "sh", "console", "") for page in PAGES}
OPENERS = {
    page.name: (found[1], found[2], found[3].splitlines())
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
    opening = OPENERS.get(page.name, ("", "", []))[1]
    known = {*ALSO_RUN, *PROGRAMS, *commands(opening)}
    left = [line for line in SHOWN[page.name] if line not in known]
    assert not left or page.name in NOT_RUN, f"{page.name}: no test runs {left}"


def test_the_tests_of_single_lines_exist() -> None:
    everything = {line for lines in SHOWN.values() for line in lines}
    assert ALSO_RUN.keys() <= everything
    assert all((ROOT / test).exists() for test in ALSO_RUN.values())


@pytest.mark.campaign
@pytest.mark.parametrize("line", PROGRAMS)
def test_a_program_that_takes_long_takes_these_words(line: str) -> None:
    module, *words = line.split()[2:]
    if module == "benchmarks.gpu_kernels":
        pytest.importorskip("torch", reason="torch is missing, beside which kernels are timed")
    if module == "benchmarks.hostile_coverage":
        pytest.importorskip("atheris", reason="atheris is missing, which no extra brings")
    assert "usage: " in run([sys.executable, "-m", module, *words, "--help"], ROOT)


@pytest.mark.campaign
def test_the_page_on_runtimes_runs_as_printed(tmp_path: Path) -> None:
    page = ROOT / "docs" / "runtimes.md"
    for number, command in enumerate(shown(page, "sh")):
        (tmp_path / str(number)).mkdir()
        onnx.save(pre_norm_model(), tmp_path / str(number) / "model.onnx")
        run(command.split(), tmp_path / str(number))
    (tmp_path / "models").symlink_to(ROOT / "models")
    (program,) = blocks("python", page.read_text(encoding="utf-8"))
    run([sys.executable, "-c", program], tmp_path)
    assert not onnx.load(tmp_path / "standard.onnx").functions


@pytest.mark.campaign
@pytest.mark.parametrize("page", sorted(OPENERS.keys() - OPENED_BY.keys()))
def test_a_page_begins_with_what_its_example_prints(page: str, tmp_path: Path) -> None:
    if page in NEEDS_TORCH:
        pytest.importorskip("torch", reason=TORCH_IS_MISSING)
    for name in ("custom_ops", "docker", "Makefile", "models", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    language, block, lines = OPENERS[page]
    if language == "python":
        printed = run([sys.executable, "-c", block], tmp_path)
    else:
        printed = "".join(run(shlex.split(command), tmp_path) for command in commands(block))
    assert len(lines) <= 8
    assert left_of(lines, printed.splitlines(), in_words=page in MEASURED) == []


def left_of(shown: list[str], printed: list[str], *, in_words: bool) -> list[str]:
    """Return the lines that are not printed in this order; "..." matches any lines."""

    def line(text: str) -> str:
        return " ".join(_NUMBER.sub("", text).split()) if in_words else text.rstrip()

    rest = iter([line(one) for one in printed])
    return [one for one in shown if one != "..." and line(one) not in rest]


@pytest.mark.parametrize("shown", [["a 1"], ["b 2", "a 2"], ["c"]])
def test_other_lines_than_the_printed_are_found(shown: list[str]) -> None:
    assert left_of(shown, ["a 2", "b 2"], in_words=False)
    assert left_of(["...", "a  1.5e-16", "b 1"], ["a 2", "b 2"], in_words=True) == []


def test_every_page_begins_with_an_example_and_its_output() -> None:
    names = {page.name for page in PAGES} - {"README.md", "index.md"}
    assert names == OPENERS.keys() - {"index.md"}
    assert all((ROOT / test).exists() for test in OPENED_BY.values())


def test_the_page_on_commands_names_every_command() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z-]+)[ `]", page.partition("## optimize or tune")[0]))
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group has them
    assert {name for name, command in known.items() if not command.hidden} <= named
