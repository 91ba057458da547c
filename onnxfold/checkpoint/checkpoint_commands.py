"""onnxfold checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxfold.cli import terminal
from onnxfold.cli.options import JsonOption, OverwriteOption, with_options, written_file
from onnxfold.cli.terminal import Verbosity
from onnxfold.errors import UsageError

if TYPE_CHECKING:
    from onnxfold.checkpoint import CheckpointResult


@with_options("exclude")
def checkpoint(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="config.json and model.safetensors or its shards.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="A new folder.")
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="[weightless|rms]",
            help="**weightless**: gamma and beta move into the linear layers that read them; "
            "**rms**: everything that writes into the stream of LayerNorms is centered.",
        ),
    ] = "weightless",
    *,
    chosen: dict[str, Any],
    report: Annotated[
        Path | None,
        typer.Option(parser=written_file, metavar="FILE.json", help="Write what was done."),
    ] = None,
    as_json: JsonOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan and print, write nothing.")
    ] = False,
    force: OverwriteOption = False,
) -> None:
    """Fold a Hugging Face checkpoint: the same function, the same files, cheaper norms.

    For llama.cpp, vLLM, transformers and all other readers of safetensors. Names, types, shapes,
    shards and metadata stay; numbers change.

    --to weightless: the gamma (and beta) of a norm move into the linear layers after it, W
    diag(gamma) and b + W beta. In the file gamma is 1 and beta 0, so that a runtime may leave them
    out (FlashNorm). For Llama, Mistral, Mixtral, Qwen 2 and 3, Phi, Granite, GPT-2, GPT-J,
    GPT-NeoX, OPT, StableLM, StarCoder2.

    --to rms: in a model with LayerNorms, everything that adds to the residual stream loses its
    mean, which LayerNorms ignore. The stream then has mean 0, and RMSNorm computes what LayerNorm
    does. The architecture keeps its LayerNorms: transformers loads it as before, and a runtime
    gains only if it is configured for RMSNorm, with the same epsilon, gamma and beta.

    For both, run the command twice. What cannot change stays, with the reason: a final norm whose
    head is the embedding, the norms of queries and keys, Gemma's 1 + g. An unknown architecture is
    refused. Logits stay the same; with --to rms hidden states lose their mean, and with --to
    weightless the last one its gamma.

    `onnxfold checkpoint Llama-3.2-3B -o Llama-3.2-3B-weightless`

    `onnxfold checkpoint pythia-160m -o pythia-160m-rms --to rms`

    `onnxfold checkpoint pythia-160m --dry-run -v` shows every norm and why it stays.
    """
    from onnxfold.checkpoint import fold_checkpoint

    exclude = chosen["exclude"]
    verbosity: Verbosity = context.obj
    if output is None and not dry_run:
        raise UsageError(f"specify where to write the checkpoint of '{folder}' with -o OUT")
    if report is not None:
        terminal.check_reports([report], force=force, kinds=(".json",))
    target = None if dry_run else output
    parent = None if target is None else target.absolute().parent
    with terminal.progress(verbosity, folder, parent, lines=not as_json) as progress:
        result = fold_checkpoint(folder, target, to=to, exclude=exclude, progress=progress)
    if report is not None:
        from onnxfold.report.document import write_report

        write_report(report, result.to_json())
    if exclude is not None and not as_json:
        from onnxfold.report import cautions

        terminal.warn(cautions.unmatched(exclude, [*result.folded, *result.left]))
    if as_json:
        terminal.print_json(result.to_json())
    else:
        _print(result, verbosity)


def _print(result: CheckpointResult, verbosity: Verbosity) -> None:
    console = terminal.console(verbosity)
    verbose = verbosity is Verbosity.VERBOSE
    if verbose:
        for norm, layers in result.folded.items():
            into = f"into {', '.join(layers)}" if layers else "reads a stream of mean 0"
            console.print(f"{norm}: {into}", markup=False)
    reasons: dict[str, list[str]] = {}
    for norm, reason in result.left.items():
        reasons.setdefault(reason, []).append(norm)
    for reason, norms in reasons.items():
        shown = norms if verbose else norms[:1]
        more = f" and {len(norms) - len(shown)} more" if len(norms) > len(shown) else ""
        console.print(f"left: {', '.join(shown)}{more}: {reason}", markup=False)
    if result.not_copied:
        console.print(f"not copied: {', '.join(result.not_copied)}", markup=False)
    what = "are weightless" if not result.centred else "read a stream of mean 0"
    total = len(result.folded) + len(result.left)
    console.print(f"{result.architecture}: {len(result.folded)} of {total} norms {what}")
    if result.nbytes is not None:
        console.print(
            f"{result.changed} of {result.tensors} tensors changed, {result.nbytes:,} bytes"
        )
