"""What the comparison of kernels on a GPU does with methods that fail, on ones that need none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch", reason="torch is missing, beside which kernels are timed")

from benchmarks import gpu_kernels, gpu_models, norm_forms  # noqa: E402  # they import torch
from benchmarks.gpu_methods import OURS, Call, Operation, Tensors, UnavailableError  # noqa: E402

SHAPE = gpu_kernels.Shape("rms", "float32", 2, 8, warm=True)
X = torch.arange(16.0).reshape(2, 8) - 7.5
TENSORS = cast(
    Tensors,
    SimpleNamespace(x=[X], y=[torch.empty(2, 8)], residual=[None], scale=torch.ones(8), bias=None),
)


def right(driver: Path, operation: Operation, tensors: Tensors) -> Call:
    del driver, operation
    y = tensors.x[0] / (tensors.x[0].square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return lambda i: (y, i)


def wrong(driver: Path, operation: Operation, tensors: Tensors) -> Call:
    del driver, operation
    return lambda i: (tensors.x[i], i)


def missing(driver: Path, operation: Operation, tensors: Tensors) -> Call:
    raise UnavailableError(driver, operation, tensors)


def broken(driver: Path, operation: Operation, tensors: Tensors) -> Call:
    raise AttributeError("no symbol\nin this version")


def uncapturable(driver: Path, operation: Operation, tensors: Tensors) -> Call:
    call = right(driver, operation, tensors)
    calls = iter((call, None))

    def once(i: int) -> Any:
        first = next(calls)
        if first is None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return first(i)

    return once


def test_a_method_that_fails_is_one_line_and_the_others_are_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = {m.__name__: m for m in (right, wrong, missing, broken, uncapturable)}
    monkeypatch.setattr(gpu_kernels, "graph_of", lambda call, shape: (call(0), []))
    monkeypatch.setattr(gpu_kernels, "copy_call", lambda shape: lambda i: None)
    graphs = gpu_kernels.graphs_of(SHAPE, TENSORS, Path(), methods)
    assert list(graphs) == ["right", gpu_kernels.COPY]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("): ")[1].split(" (")[0] for line in lines] == [
        "wrong is wrong and is not timed",
        "broken: FAILED, AttributeError: no symbol in this version",
        "uncapturable: FAILED, RuntimeError: operation not permitted when stream is capturing",
    ]


def test_a_shape_that_fails_is_one_line_and_the_next_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tried: list[int] = []

    def measure(shape: gpu_kernels.Shape, driver: Path, methods: Any, repeats: int) -> list[Any]:
        del driver, methods, repeats
        tried.append(shape.size)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu_kernels, "measure", measure)
    monkeypatch.setattr(gpu_kernels, "device", lambda: SimpleNamespace(name="none"))
    words = ["gpu_kernels", "--driver", "x.so", "--operations", "crms", "--dtypes", "float32"]
    monkeypatch.setattr("sys.argv", [*words, "--no-small", "--out", str(tmp_path / "rows.csv")])
    assert gpu_kernels.main() == 1
    assert tried == list(gpu_kernels.ODD)
    assert capsys.readouterr().out.count(": FAILED, RuntimeError: out of memory (") == len(tried)


@pytest.mark.parametrize(("methods", "status"), [((OURS, "torch"), 0), (("torch",), 1)])
def test_a_shape_that_ours_did_not_compute_sets_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, methods: tuple[str, ...], status: int
) -> None:
    rows = [SimpleNamespace(method=name) for name in methods]
    monkeypatch.setattr(gpu_kernels, "measure", lambda *_: rows)
    monkeypatch.setattr(gpu_kernels, "device", lambda: SimpleNamespace(name="none"))
    for name in ("append", "tell"):
        monkeypatch.setattr(gpu_kernels, name, lambda *_: None)
    words = ["gpu_kernels", "--driver", "x.so", "--operations", "crms", "--dtypes", "float32"]
    monkeypatch.setattr("sys.argv", [*words, "--no-small", "--out", str(tmp_path / "rows.csv")])
    assert gpu_kernels.main() == status


def test_models_that_fail_or_come_too_late_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "fp32").mkdir()
    for name in ("gpt2", "vit-b16"):
        (tmp_path / "fp32" / f"{name}.onnx").write_bytes(b"no model")
    words = [str(tmp_path), "--provider", "cpu", "--dtypes", "fp32", "--models", "gpt2", "vit-b16"]
    assert gpu_models.main(words) == 2
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("gpt2 fp32: FAILED, DecodeError: ")
    assert second.startswith("vit-b16 fp32: FAILED, DecodeError: ")
    assert gpu_models.main([*words, "--budget", "-1"]) == 2
    assert "the budget is spent: gpt2 fp32 is not complete" in capsys.readouterr().out
    monkeypatch.setattr(norm_forms, "exported", lambda name, folder: folder / f"{name}.onnx")
    monkeypatch.setattr("sys.argv", ["norm_forms", "--models", "vit-ti", "vit-s"])
    assert norm_forms.main() == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("vit-ti: FAILED, ModelError: ")
    assert second.startswith("vit-s: FAILED, ModelError: ")
