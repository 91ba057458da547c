"""Reports on CUDA, from an absent or mocked driver and from a library's own record."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from onnxfold.runtime import cuda
from onnxfold.runtime.cuda import Build, CudaDevice, Driver, compiled_for, driver, obstacle


class PretendedDriver:
    """The calls of libcuda that are used, for devices of these names and capabilities."""

    def __init__(self, devices: list[tuple[str, int]], init: int = 0) -> None:
        self.devices, self.init = devices, init

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.init

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 13010
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.devices)
        return 0

    def cuDeviceGet(self, handle: Any, index: int) -> int:
        handle._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, handle: Any) -> int:
        assert size == 256
        name.value = self.devices[handle.value][0].encode()
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: Any) -> int:
        capability = self.devices[handle.value][1]
        value._obj.value = {75: capability // 10, 76: capability % 10}[attribute]
        return 0


def pretend(monkeypatch: pytest.MonkeyPatch, library: object) -> None:
    def load(name: str) -> object:
        assert name == "libcuda.so.1"
        if isinstance(library, OSError):
            raise library
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)


def test_a_machine_without_a_driver_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, OSError("libcuda.so.1: cannot open shared object file"))
    assert driver() == Driver(None)


def test_devices_have_names_and_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, PretendedDriver([("First", 90), ("Second", 75)]))
    assert driver() == Driver("13.1", (CudaDevice("First", 90), CudaDevice("Second", 75)))


def test_a_driver_that_cannot_start_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, PretendedDriver([("Only", 90)], init=100))
    assert driver() == Driver("13.1")


def test_a_library_tells_what_it_was_compiled_for(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    text = b"onnxfold-cuda runtime 12080 architectures 75 90 ptx 80\0"
    library.write_bytes(b"\x7fELF" + text + b"more")
    assert compiled_for(str(library)) == Build("12.8", (75, 90), 80)
    library.write_bytes(b"\x7fELF, no CUDA here")
    assert compiled_for(str(library)) is None


@pytest.mark.parametrize(
    ("capability", "expected"),
    [(70, False), (75, True), (80, True), (86, True), (87, True), (90, True), (110, True)],
)
def test_machine_code_serves_its_major_capability_and_ptx_all_later(
    capability: int, expected: bool
) -> None:
    assert Build("13.0", (75, 80, 90), 80).runs_on(capability) is expected


def test_machine_code_alone_does_not_serve_later_majors_nor_older_minors() -> None:
    build = Build("13.0", (86,), 120)
    assert [build.runs_on(capability) for capability in (80, 86, 89, 90, 120)] == [
        *(False, True, True, False, True)
    ]


def test_versions_read_as_people_write_them() -> None:
    assert [cuda._version(number) for number in (11080, 12000, 13010)] == ["11.8", "12.0", "13.1"]


@pytest.mark.parametrize(
    ("toolkit", "version", "capability", "expected"),
    [
        ("13.0", "13.0", 90, None),
        ("13.2", "13.0", 90, None),  # machine code runs on any driver of the major version
        ("12.8", "13.1", 90, None),
        ("12.8", "12.2", 86, None),
        (
            "13.0",
            "12.9",
            90,
            "built with CUDA 13.0 and the driver is for CUDA 12.9: update the driver",
        ),
        ("13.0", "12.9", 70, "or build them with CUDA 12"),
        ("13.0", "13.0", 70, "not compiled for GPU, compute capability 7.0"),
        ("12.8", "12.8", 120, None),  # by PTX
        ("12.8", "12.4", 120, "PTX of CUDA 12.8 alone for GPU, compute capability 12.0"),
    ],
)
def test_what_keeps_kernels_from_running_is_one_sentence(
    toolkit: str, version: str, capability: int, expected: str | None
) -> None:
    sentence = obstacle(Build(toolkit, (75, 80, 90), 80), version, CudaDevice("GPU", capability))
    assert (sentence is None) == (expected is None)
    assert expected is None or expected in str(sentence)
