"""onnxfold optimize."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from onnxfold.cli import options, terminal
from onnxfold.cli.optimize_many import optimize_many
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import UsageError


@options.with_options(
    "target",
    "device",
    *options.FOLDED,
    *("scale_streams", "scale_margin", "rotate", "rotation_seed", "split_gamma", "drop_means"),
    *("data", "max_error", "dry_run", "share_weights", "force"),
)
def optimize(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="IN",
            help="The ONNX model, .onnx, and where to write; with --output-dir models and folders "
            "of them.",
        ),
    ],
    *,
    output: options.OutputOption = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Optimize every IN, and every .onnx file under one that is a folder, into DIR.",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="With --output-dir: models at once.")
    ] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --output-dir: optimize on this Ray cluster, HOST:PORT, whose nodes find all "
            "files under their paths; **local** starts one.",
        ),
    ] = None,
    chosen: dict[str, Any],
    report: options.ReportOption = None,
    as_json: options.JsonOption = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="What onnxfold measure wrote of IN: the report shows it with each norm.",
        ),
    ] = None,
) -> None:
    """Fold every LayerNorm that can exactly become an RMSNorm; prove, check and write the result.

    Nothing is written unless the proof and the check pass. OUT runs wherever IN does, unless
    --target is more specific; IN is never changed. Without OUT, model.onnx becomes
    model.folded.onnx.

    `onnxfold optimize model.onnx -o fast.onnx`

    `onnxfold optimize model.onnx -o fast.onnx --report report.html` keeps the details.

    `onnxfold optimize model.onnx --dry-run` shows the plan and writes nothing.

    `onnxfold optimize model.onnx -o fast.onnx --inputs ids:1,128 --inputs mask:mask.npy`
    checks on inputs of this shape and on your own data.

    `onnxfold optimize a.onnx models --output-dir folded --jobs 4` folds a.onnx and every model
    under the folder models, each in a separate process; a failure stops only its own model.
    """
    from onnxfold import api
    from onnxfold.report.provenance import provenance

    verbosity: Verbosity = context.obj
    dry_run, force = chosen["dry_run"], chosen["force"]
    if _are_many(paths, output, output_dir, dry_run=dry_run):
        if measured is not None:
            raise UsageError("--measured is about one model")
        optimize_many(
            context, [Path(path) for path in paths], output_dir, jobs, ray, report, as_json=as_json
        )
        return
    if ray is not None:
        raise UsageError("--ray is for several models, which --output-dir takes")
    model, output = _one(paths, output, dry_run=dry_run, force=force)
    terminal.check_reports(report, model, output, measured, force=force)
    told = {"run": provenance(model, options.given_options(context))} if report or as_json else {}
    if measured is not None:
        told |= _measurement(measured, told)
    folder = None if output is None else output.parent
    with terminal.progress(verbosity, model, folder, lines=not as_json) as progress:
        result = api.optimize(
            model,
            output,
            progress=progress,
            **chosen,
        )
    terminal.tell_result(result.report | told, report, verbosity, as_json=as_json, source=model)


def _measurement(path: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurement for a report; raises UsageError if no report is requested."""
    from onnxfold.geometry.reports import measurement_of

    if not told:
        raise UsageError("--measured is shown in a report; ask for one (--report FILE, or --json)")
    return {"measurement": measurement_of(path, told["run"]["input"]["sha256"])}


def _are_many(
    paths: list[str], output: Path | None, output_dir: Path | None, *, dry_run: bool
) -> bool:
    """Whether several models, or a folder, are optimized; raises UsageError for a mixture."""
    if output_dir is not None:
        if output is not None:
            raise UsageError("-o names one file and --output-dir a folder; leave one out")
        return True
    folders = [path for path in paths if os.path.isdir(path)]
    if len(paths) < 3 and not (folders and (folders[0] == paths[0])):
        return False
    if not dry_run:
        what = f"'{folders[0]}' is a folder" if folders else f"{len(paths)} paths are given"
        raise UsageError(f"{what}: name a folder for the results (--output-dir DIR)")
    return True


def _one(
    paths: list[str], output: Path | None, *, dry_run: bool, force: bool
) -> tuple[Path, Path | None]:
    """Return the model and its destination: OUT, or a name derived from the model's."""
    model = Path(paths[0])
    out = options.written_file(paths[1]) if len(paths) > 1 else None
    if out is None and output is None:
        return model, None if dry_run else model.with_name(f"{model.stem}.folded.onnx")
    if out is not None and output is None and not dry_run:
        from onnxfold import model_io

        try:
            model_io.check_replaceable(out, source=model, force=force)
        except UsageError as error:
            raise UsageError(f"{error}; --output-dir DIR takes several models") from error
    return model, destination(out, output, dry_run=dry_run)


def destination(out: Path | None, output: Path | None, *, dry_run: bool) -> Path | None:
    """Return where to write; raises UsageError if OUT is given twice, or is missing."""
    if out is not None and output is not None:
        raise UsageError(f"OUT is given twice, as '{out}' and as '-o {output}'")
    chosen = out or output
    if chosen is None and not dry_run:
        raise UsageError("specify the output path with -o OUT, or use --dry-run")
    if chosen == Path("-"):
        raise UsageError("a model is written to a file, not to standard output; give -o OUT")
    return chosen
