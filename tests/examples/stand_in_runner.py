"""Runs the steps of a composite GitHub action, and the script of a GitLab job, on this machine.

What it knows of the two is what the examples use: inputs with defaults, `${{ inputs.NAME }}`, `env`
of a step, and bash with the options that GitHub gives it; a script that ends at the first command
that fails, and an after_script that runs in any case.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

_KNOWN_STEP = {"name", "shell", "env", "run"}
_KNOWN_JOB = {"image", "variables", "script", "after_script", "artifacts", "rules"}


def run_action(
    path: Path, given: Mapping[str, str], folder: Path, environment: Mapping[str, str]
) -> tuple[int, str]:
    """The exit code of the first step that fails, or 0, and all that was printed."""
    action = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    assert given.keys() <= action["inputs"].keys(), "an input that the action does not have"
    inputs = {
        name: str(given.get(name, of.get("default"))) for name, of in action["inputs"].items()
    }
    required = {name for name, of in action["inputs"].items() if of.get("required")}
    assert required <= given.keys(), f"the action needs {required - given.keys()}"

    def filled(text: str) -> str:
        whole = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)
        assert "${{" not in whole, f"an expression that is not known: {whole}"
        return whole

    printed = ""
    for step in action["runs"]["steps"]:
        assert step.keys() <= _KNOWN_STEP
        assert step["shell"] == "bash"
        variables = {name: filled(value) for name, value in step.get("env", {}).items()}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", filled(step["run"])]
        code, said = _run(command, folder, {**environment, **variables})
        printed += said
        if code:
            return code, printed
    return 0, printed


def run_job(
    path: Path, name: str, given: Mapping[str, str], folder: Path, environment: Mapping[str, str]
) -> tuple[int, str]:
    """The exit code of a job's script, and all that was printed."""
    job = yaml.safe_load(path.read_text(encoding="utf-8"))[name]
    assert job.keys() <= _KNOWN_JOB
    variables = {**environment, **job.get("variables", {}), **given}
    script = "set -eo pipefail\n" + "\n".join(job["script"])
    code, printed = _run(["bash", "-c", script], folder, variables)
    _, more = _run(["bash", "-c", "\n".join(job.get("after_script", ["true"]))], folder, variables)
    return code, printed + more


def _run(command: list[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env=dict(environment),
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout
