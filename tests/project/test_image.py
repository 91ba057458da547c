"""The container image: built as docs/docker.md says, and used for the job it is made for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "digits_vit" / "digits_vit.onnx"
NAME = "localhost/onnxfold:test"
BUILDAH = "buildah"


def done(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result.stdout


@dataclass(frozen=True, slots=True)
class Image:
    """An image that was built, and the tool that runs it.

    docker makes a container for each run; buildah, which would copy the image each time, keeps one.
    """

    tool: str
    container: str

    def config(self) -> dict[str, Any]:
        if self.tool == "docker":
            text = done(["docker", "image", "inspect", "--format", "{{json .Config}}", NAME])
            return dict(json.loads(text))
        text = done([BUILDAH, "inspect", "--type", "image", NAME])
        return dict(json.loads(text)["Docker"]["config"])

    def run(
        self, folder: Path, *arguments: str, entry_point: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the image's program, or another, as the image's user with ``folder`` as /work."""
        folder.chmod(0o777)
        volume = ["--volume", f"{folder}:/work"]
        if self.tool == "docker":
            other = [] if entry_point is None else ["--entrypoint", entry_point]
            command = ["docker", "run", "--rm", *volume, *other, NAME, *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=False)
        program = self.config()["Entrypoint"] if entry_point is None else [entry_point]
        run = [BUILDAH, "run", "--isolation", "chroot", *volume, self.container, "--"]
        return subprocess.run(
            [*run, *program, *arguments], capture_output=True, text=True, check=False
        )


def tool_that_can_build() -> str | None:
    docker = shutil.which("docker")
    if docker is not None:
        answer = subprocess.run([docker, "version"], capture_output=True, check=False)
        if answer.returncode == 0:
            return "docker"
    installed = all(map(shutil.which, ("buildah", "debootstrap")))
    installable = os.environ.get("CI") == "true" and shutil.which("apt-get") is not None
    return "buildah" if os.geteuid() == 0 and (installed or installable) else None


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    tool = tool_that_can_build()
    if tool is None:
        pytest.skip("no docker daemon answers, and buildah with debootstrap is not here for root")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_DRIVER", storage_driver())
        done([str(ROOT / "docker" / "build.sh"), "-t", NAME])
        if tool == "docker":
            yield Image(tool, "")
            done(["docker", "rmi", NAME])
            return
        container = done([BUILDAH, "from", NAME]).strip()
        yield Image(tool, container)
        done([BUILDAH, "rm", container])
        done([BUILDAH, "rmi", NAME])


def storage_driver() -> str:
    """Return overlay where it can be mounted, as on no overlay: it copies no layer, vfs each."""
    if shutil.which(BUILDAH) is None:
        return "vfs"  # build.sh installs buildah
    asked = [BUILDAH, "--storage-driver", "overlay", "info"]
    mounts = subprocess.run(asked, capture_output=True, check=False).returncode == 0
    return "overlay" if mounts else "vfs"


def test_the_image_writes_the_bytes_that_are_written_outside(image: Image, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside.onnx"
    inside.mkdir()
    shutil.copy(MODEL, inside)
    result = image.run(inside, "optimize", MODEL.name, "-o", "fast.onnx", "--report", "report.json")
    assert result.returncode == 0, result.stdout + result.stderr
    done([sys.executable, "-m", "onnxfold", "optimize", str(MODEL), "-o", str(outside)])
    assert (inside / "fast.onnx").read_bytes() == outside.read_bytes()
    report = json.loads((inside / "report.json").read_text(encoding="utf-8"))
    assert report["inspect"]["summary"]["foldable"] > 0
    assert {path.name for path in inside.iterdir()} == {MODEL.name, "fast.onnx", "report.json"}


def test_the_exit_codes_come_out_of_the_image(image: Image, tmp_path: Path) -> None:
    (tmp_path / "torn.onnx").write_bytes(b"\x08\xff")
    torn = image.run(tmp_path, "optimize", "torn.onnx", "-o", "fast.onnx")
    assert torn.returncode == 3, torn.stdout + torn.stderr
    assert "torn.onnx" in torn.stderr
    assert image.run(tmp_path, "convert", "torn.onnx").returncode == 2


def test_the_image_is_healthy_with_its_kernels(image: Image, tmp_path: Path) -> None:
    assert image.config()["Healthcheck"]["Test"] == ["CMD", "onnxfold", "doctor"]
    result = image.run(tmp_path, "doctor", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(result.stdout)
    assert document["self_test"]["passed"]
    assert document["kernels"]["cpu"]["path"].startswith("/opt/onnxfold/")


def test_the_user_is_not_root_and_starts_in_the_work_folder(image: Image, tmp_path: Path) -> None:
    result = image.run(tmp_path, "-c", "id -u; pwd", entry_point="sh")
    assert result.stdout.split() == ["10001", "/work"]
    labels = image.config()["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"] not in {"", "unknown"}


def test_nothing_of_the_build_stays_in_the_image(image: Image, tmp_path: Path) -> None:
    leftovers = "ls -A /run/secrets /dist /src /opt/build 2>/dev/null; command -v c++; true"
    result = image.run(tmp_path, "-c", leftovers, entry_point="sh")
    assert result.stdout.replace("/run/secrets:", "").split() == []
    assert not [name for name in image.config()["Env"] if name.startswith("PIP_")]
