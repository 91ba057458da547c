"""One environment for each runtime, since their packages exclude one another (MNN takes an older
protobuf than onnx writes, onnx2torch and Olive bring torch).

An environment is made on first use and kept in `build/compatibility/environments`, which git
ignores; it is made again when its packages change.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["CACHE", "ENVIRONMENTS", "Environment", "UnavailableError", "ready"]

ROOT = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / "build" / "compatibility"
_TORCH = "torch==2.13.0"
_ONNX, _ORT = "onnx==1.23.2", "onnxruntime==1.32.0"
_INSTALL_LIMIT_S = 1500


class UnavailableError(Exception):
    """An environment cannot be built here; the message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Packages of one registry, pinned, and the program that runs a worker with them."""

    name: str
    packages: tuple[str, ...]
    npm: bool = False
    programs: tuple[str, ...] = ()  # that the machine must have

    @property
    def folder(self) -> Path:
        return CACHE / "environments" / self.name

    def command(self) -> list[str]:
        """Return the start of a command line that runs the worker of this environment."""
        worker = Path(__file__).parent / "workers"
        if self.npm:
            return [_program("node"), str(worker / "worker.js")]
        return [str(self.folder / "bin" / "python"), str(worker / "worker.py")]

    def variables(self) -> dict[str, str]:
        """Return what the worker needs to know of its surroundings."""
        return os.environ | {
            "NODE_PATH": str(self.folder / "node_modules"),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": "",
        }

    def version(self, package: str) -> str:
        """Return the installed version of a package; KeyError where there is none."""
        found: dict[str, str] = json.loads((self.folder / "versions.json").read_text())
        return found[package.lower()]


ENVIRONMENTS: Final = {
    environment.name: environment
    for environment in (
        Environment(
            "onnx",
            (
                _ONNX,
                _ORT,
                "onnxconverter-common==1.16.0",
                "onnxscript==0.7.2",
                "onnxsim==0.8.1",
                "onnxslim==0.1.98",
                "sympy==1.14.0",
                _TORCH,  # which the transformers optimizer imports
            ),
        ),
        Environment(
            "rewriters",
            (
                _ONNX,
                _ORT,
                "onnxoptimizer==0.4.2",
                "onnx_graphsurgeon==0.6.1",
                "polygraphy==0.53.6",
            ),
        ),
        Environment("openvino", ("openvino==2026.4.1",)),
        Environment("openvino-provider", ("onnxruntime-openvino==1.24.1",)),
        Environment("opencv-5", ("opencv-python-headless==5.0.0.93",)),
        Environment("opencv-4", ("opencv-python-headless==4.14.0.94",)),
        Environment("iree", ("iree-base-compiler[onnx]==3.13.0", "iree-base-runtime==3.13.0")),
        Environment("tract", ("tract==0.23.9", "numpy")),
        Environment("mnn", ("MNN==3.6.1", "numpy")),
        Environment("ncnn", ("pnnx==20261020", "ncnn==1.0.20261020", _TORCH)),
        Environment("onnx2torch", ("onnx2torch==1.5.15", _TORCH)),
        Environment("onnx2pytorch", ("onnx2pytorch==0.6.0", _TORCH)),
        Environment("onnx2tf", ("onnx2tf==1.29.24", "tensorflow==2.19.0", "onnx==1.19.1")),
        Environment("tvm", ("apache-tvm==0.27.0.post1", _ONNX)),
        Environment("tinygrad", ("tinygrad==0.14.0", "numpy"), programs=("clang",)),
        Environment("jax", ("jaxonnxruntime==0.3.0", "jax==0.10.2", "absl-py==2.3.1", _ONNX)),
        Environment("nncf", ("nncf==3.4.0", _ONNX, _ORT)),
        Environment("olive", ("olive-ai==0.13.0", "requests==2.32.5", _ORT, _TORCH)),
        Environment("quark", ("amd-quark==0.13", _ORT, _TORCH)),
        Environment(
            "neural-compressor",
            (
                "onnx-neural-compressor==1.0",
                # which it imports and does not ask for
                "prettytable==3.18.0",
                "scipy==1.17.1",
                _ONNX,
                _ORT,
            ),
        ),
        Environment("aimet", ("aimet-onnx==2.42.0", _ONNX, _ORT, _TORCH)),
        Environment("netron", ("netron==9.3.3", "numpy", _ONNX), programs=("chromium",)),
        Environment("node", ("onnxruntime-node@1.30.0", "onnxruntime-web@1.30.0"), npm=True),
    )
}


def ready(environment: Environment) -> Environment:
    """Build an environment unless it is there already.

    Raises:
        UnavailableError: it cannot be built; the message holds the last line of the installer.
    """
    for program in environment.programs:
        _program(program)
    stamp = environment.folder / "packages.txt"
    wanted = "\n".join(environment.packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(environment.folder, ignore_errors=True)
        environment.folder.mkdir(parents=True)
        sys.stderr.write(f"installing {' '.join(environment.packages)}\n")
        versions = (_npm if environment.npm else _pip)(environment)
        (environment.folder / "versions.json").write_text(json.dumps(versions))
        stamp.write_text(wanted)
    return environment


def _pip(environment: Environment) -> dict[str, str]:
    folder = environment.folder
    python = str(folder / "bin" / "python")
    constraints = folder / "constraints.txt"
    constraints.write_text(_TORCH + "\n")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([*pip, "install", "-q", "--no-compile", "-c", str(constraints), *environment.packages])
    listed = json.loads(_run([*pip, "list", "--format", "json"]))
    return {package["name"].lower(): package["version"] for package in listed}


def _npm(environment: Environment) -> dict[str, str]:
    # Without its script, which fetches libraries for CUDA, onnxruntime-node has the CPU's.
    options = ["--prefix", str(environment.folder), "--ignore-scripts", "--silent"]
    _run([_program("npm"), "install", *options, *environment.packages])
    return dict(package.rsplit("@", 1) for package in environment.packages)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UnavailableError(f"{name} is not installed")
    return found


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_INSTALL_LIMIT_S
        )
    except subprocess.TimeoutExpired as late:
        raise UnavailableError(f"installing took more than {_INSTALL_LIMIT_S} s") from late
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise UnavailableError(said[-1] if said else f"{command[0]} exits with {done.returncode}")
    return done.stdout
