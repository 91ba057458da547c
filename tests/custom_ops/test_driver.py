"""Builds kernel_driver, which tests the kernels without ONNX Runtime, and runs it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"

pytestmark = pytest.mark.slow


def build(folder: Path, *options: str) -> Path:
    """kernel_driver in a build folder that CMake is given these options for."""
    configure = ["cmake", "-S", str(ROOT / "custom_ops"), "-B", str(folder), "-DONNXFOLD_DRIVER=ON"]
    run([*configure, "-DONNXFOLD_STRICT=ON", *options])
    run(["cmake", "--build", str(folder)])
    return folder / "kernel_driver"


def run(command: Sequence[str], **environment: str) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def instruction_sets() -> tuple[str, ...]:
    return ("v2", "v3", "v4") if platform.machine() == "x86_64" else ("",)


def test_every_instruction_set_gives_what_float64_gives(tmp_path: Path) -> None:
    driver = build(tmp_path)
    for level in instruction_sets():
        assert "values compared, 0 failures" in run([str(driver)], ONNXFOLD_ISA=level)


def test_kernels_pass_under_the_sanitizers(tmp_path: Path) -> None:
    driver = build(tmp_path, "-DONNXFOLD_SANITIZE=ON")
    for level in instruction_sets():
        assert "values compared, 0 failures" in run([str(driver)], ONNXFOLD_ISA=level)


@pytest.mark.skipif(
    shutil.which(CROSS_COMPILER) is None or shutil.which(EMULATOR) is None,
    reason=f"needs {CROSS_COMPILER} and {EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
def test_kernels_are_right_on_aarch64(tmp_path: Path) -> None:
    driver = build(
        tmp_path,
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={CROSS_COMPILER}",
    )
    emulated = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(driver), "4100"]
    assert "values compared, 0 failures" in run(emulated)
