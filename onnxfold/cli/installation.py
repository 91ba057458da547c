"""onnxfold doctor and onnxfold lib-path: what is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import JsonOption
from onnxfold.report.fitted_tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

_ABSENT = "not built; models run without them, by the bodies of their functions"


def doctor(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show versions, execution providers and the kernel library, and test the kernels."""
    from onnxfold.runtime.doctor import examine

    document = examine()
    if as_json:
        terminal.print_json(document)
    else:
        print_examination(terminal.console(context.obj), document)
    if not document["healthy"]:
        raise typer.Exit(3)


def lib_path(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Print the absolute path of the kernel library, for ONNX Runtime, Triton and C++."""
    from onnxfold.runtime.library import get_library_path

    terminal.say(get_library_path(device))


def print_examination(console: Console, document: Mapping[str, Any]) -> None:
    """Print the result of ``runtime.doctor.examine``: one line per fact, then the verdict."""
    from rich.text import Text

    runtime = document["onnxruntime"]
    providers = ", ".join(runtime["providers"])
    remedy = f"not installed: {runtime['install']}"
    facts = {
        "python": f"{document['python']}, {document['machine']}",
        **{name: found or "not installed" for name, found in document["packages"].items()},
        "onnxruntime": f"{runtime['version']} ({providers})" if runtime["version"] else remedy,
        **{
            f"{on} kernels": kernels["path"] or _ABSENT
            for on, kernels in document["kernels"].items()
        },
        "weights": document["weights"] or "not built; numpy edits them, slower",
        "cuda": _cuda_line(document["cuda"]),
        "self-test": _test_line(document["self_test"]),
    }
    if document["cuda_self_test"] is not None:
        facts["cuda self-test"] = _test_line(document["cuda_self_test"])
    rows = [(Text(name, "bold"), fact) for name, fact in facts.items()]
    print_table(console, ("", ""), rows, names=(1,), full=True)
    for problem in document["problems"]:
        console.print(f"problem: {problem}", style="bold red")
    if document["healthy"]:
        console.print("healthy: everything that is installed works", style="bold green")


def _cuda_line(found: Mapping[str, Any]) -> str:
    from onnxfold.runtime.cuda import capability_text

    parts = ["no driver"]
    if found["driver"] is not None:
        devices = [f"{d['name']} ({capability_text(d['capability'])})" for d in found["devices"]]
        parts = [f"driver for CUDA {found['driver']}", ", ".join(devices) or "no device"]
    if found["compiled"] is not None:
        build = found["compiled"]
        *known, ptx = map(capability_text, (*build["architectures"], build["ptx"]))
        parts.append(f"kernels of CUDA {build['runtime']} for {', '.join(known)}, PTX {ptx}")
    return "; ".join(parts)


def _test_line(test: Mapping[str, Any] | None) -> str:
    if test is None:
        return "not run"
    verdict = "passed" if test["passed"] else "FAILED"
    return f"{verdict}: {test['cases']} cases, worst error {test['worst']:.2g} of its bound"
