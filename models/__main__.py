"""Command line of the recipes: ``python -m models NAME [-o PATH]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnx

from models.exporter import DTYPES, EXPORTERS, export
from models.table import RECIPES
from onnxfold.errors import OnnxfoldError

_NORM_OPS = ("LayerNormalization", "RMSNormalization", "ReduceMean")


def main(arguments: Sequence[str] | None = None) -> int:
    """Export what `arguments` ask for and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        _list()
        return 0
    if not options.names:
        parser.error("name a recipe, or see --list")
    if len(options.names) > 1 and options.output.suffix == ".onnx":
        parser.error(f"{options.output} is one file, but there are {len(options.names)} recipes")
    try:
        for name in options.names:
            _export(name, options)
    except OnnxfoldError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models", description="Export architectures to ONNX, one file for each NAME."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a recipe, see --list")
    parser.add_argument("--list", action="store_true", help="list the recipes and exit")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path(),
        metavar="PATH",
        help="a directory, or the file itself when it ends in .onnx (default: here)",
    )
    parser.add_argument("--opset", type=int, default=18, help="default: 18")
    parser.add_argument("--exporter", choices=list(EXPORTERS), default="dynamo")
    parser.add_argument("--dtype", choices=list(DTYPES), default="fp32")
    parser.add_argument("--attention", choices=["eager", "sdpa"], default="eager")
    parser.add_argument("--small", action="store_true", help="two narrow layers, for quick tests")
    parser.add_argument("--seed", type=int, default=0, help="of the untrained weights, default: 0")
    parser.add_argument(
        "--external-data",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="weights in a second file (default: above 100 MiB)",
    )
    parser.add_argument(
        "--single-file",
        dest="external_data",
        action="store_false",
        default=None,
        help="the same as --no-external-data",
    )
    return parser


def _export(name: str, options: argparse.Namespace) -> None:
    started = time.perf_counter()
    path = export(
        name,
        options.output,
        opset=options.opset,
        exporter=options.exporter,
        dtype=options.dtype,
        small=options.small,
        attention=options.attention,
        seed=options.seed,
        external_data=options.external_data,
    )
    seconds = time.perf_counter() - started
    model = onnx.load(path, load_external_data=False)
    ops = Counter(node.op_type for node in model.graph.node)
    norms = ", ".join(f"{ops[op]} {op}" for op in _NORM_OPS)
    print(
        f"{path}: {_bytes(path) / 1e6:.1f} MB, {sum(ops.values())} nodes, {norms}, {seconds:.1f} s"
    )


def _bytes(path: Path) -> int:
    data = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def _list() -> None:
    width = max(map(len, RECIPES))
    for recipe in RECIPES.values():
        print(f"{recipe.name:{width}}  {recipe.layers}; {recipe.why}")


if __name__ == "__main__":
    sys.exit(main())
