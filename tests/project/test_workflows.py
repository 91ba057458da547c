"""CI recipes, ours and those for users: what they run exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from onnxfold.cli.application import app

ROOT = Path(__file__).resolve().parents[2]
OURS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
USERS = sorted((ROOT / "examples" / "ci").glob("*.yml"))
GATES = sorted((ROOT / "examples" / "ci" / "gate").glob("*.yml"))
PAGES = [ROOT / "docs" / "docker.md", ROOT / "docs" / "runtimes.md", ROOT / "README.md"]


def scripts(node: Any) -> Iterator[str]:
    """Yield every script below a node: `run` of GitHub, `script` of GitLab."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "run" and isinstance(value, str):
                yield value
            elif key == "script":
                yield from value
            else:
                yield from scripts(value)
    elif isinstance(node, list):
        for item in node:
            yield from scripts(item)


def commands(script: str) -> Iterator[list[str]]:
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def commands_of(path: Path) -> list[list[str]]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [words for script in scripts(document) for words in commands(script)]


def commands_of_page(path: Path) -> list[list[str]]:
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [words for block in blocks for words in commands(block)]


def assert_onnxfold_has(words: list[str]) -> int:
    """Check the commands and options that are given to onnxfold, or to its image; count them."""
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group has them
    programs = [
        place
        for place, word in enumerate(words[:-1])
        if word in ("onnxfold", "$IMAGE") and words[place + 1] in known
    ]
    if words[0] == "onnxfold" or "$IMAGE" in words:
        assert programs, words
    for place in programs:
        options = {name for option in known[words[place + 1]].params for name in option.opts}
        given = {
            word.partition("=")[0] for word in words[place + 2 :] if re.match(r"--?[a-z]", word)
        }
        assert given <= options, f"{words[place + 1]} has no {', '.join(given - options)}"
    return len(programs)


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_workflows_run_what_exists(path: Path) -> None:
    made = [words for words in commands_of(path) if words[0] == "make"]
    others = [words for words in commands_of(path) if words[0] != "make"]
    assert {word for words in made for word in words[1:]} <= targets()
    for words in others:
        if words[0] != "apt-get":
            assert words[0] in {"python", "build/bin/python"}, words
            assert words[1] == "-m", words
            assert words[2] in {"pip", "build", "cibuildwheel", "cyclonedx_py", "venv", "wheel"}


@pytest.mark.parametrize("path", [*OURS, *(p for p in USERS if p.stem == "github")], ids=str)
def test_actions_are_named_by_their_commit(path: Path) -> None:
    """A tag can be moved; zizmor asks for the same."""
    used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_only_the_job_that_attests_may_write() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    allowed = {
        name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job
    }
    assert allowed == {"attest": {"contents": "read", "id-token": "write", "attestations": "write"}}
    used = [step.get("uses", "").partition("@")[0] for step in workflow["jobs"]["attest"]["steps"]]
    assert {"actions/attest-build-provenance", "actions/attest-sbom"} <= set(used)
    assert set(workflow["jobs"]["attest"]["needs"]) == workflow["jobs"].keys() - {"attest"}


def test_the_wheel_with_cuda_is_built_with_options_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text("utf-8"))
    settings = workflow["jobs"]["cuda"]["env"]["CIBW_CONFIG_SETTINGS_LINUX"]
    options = re.findall(r"cmake\.define\.(\w+)=ON", settings)
    assert "ONNXFOLD_CUDA" in options
    known = (ROOT / "custom_ops" / "CMakeLists.txt").read_text(encoding="utf-8")
    for option in options:
        assert f"{option} " in known


def test_our_own_script_makes_what_exists() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    lines = re.findall(
        r"^(?:kernels=\(|longest_first=\(|run |lanes )(.*?)\)?$", script, re.MULTILINE
    )
    named = {word.strip('"') for line in lines for word in line.split() if "$" not in word}
    assert {"cuda", "test", "lint", "types", "test-serve", "test-training"} <= named <= targets()


def test_every_python_that_is_promised_is_tested() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert tested == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)


@pytest.mark.parametrize("path", USERS, ids=lambda path: path.name)
def test_the_recipes_use_commands_and_options_that_exist(path: Path) -> None:
    assert sum(assert_onnxfold_has(words) for words in commands_of(path)) == 2


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_pages_use_commands_and_options_that_exist(path: Path) -> None:
    assert sum(assert_onnxfold_has(words) for words in commands_of_page(path)) > 0


@pytest.mark.parametrize("path", GATES, ids=lambda path: path.name)
def test_the_gates_use_a_command_and_options_that_exist(path: Path) -> None:
    (script,) = [s for s in scripts(yaml.safe_load(path.read_text("utf-8"))) if "onnxfold v" in s]
    line = next(line for line in script.splitlines() if line.startswith("onnxfold"))
    words = shlex.split(line.partition("|")[0].partition(">")[0])
    assert assert_onnxfold_has([word for word in words if not word.startswith("$")]) == 1


@pytest.mark.parametrize("path", USERS, ids=lambda path: path.name)
def test_the_recipes_keep_the_report_of_a_failed_job(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "--report report.json" in text
    assert re.search(r"^ +- name: Keep.*\n +if: always\(\)|^ +when: always", text, re.MULTILINE)
    assert text.count("report.json") > 1
