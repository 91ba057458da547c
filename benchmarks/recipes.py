"""Fold counts of every recipe, and why each norm, gamma and beta that is left is left.

    python -m models gpt2 bert-base ... -o exports
    python -m benchmarks.recipes exports

reads exports/NAME.onnx or exports/NAME/model.onnx for every recipe of ``models``, and writes
benchmarks/results/recipes.csv (one row for a recipe), recipes_left.csv (one row for a norm that
stays a LayerNorm) and recipes_affine.csv (one row for a norm that keeps gamma or beta). Rows of
recipes without an export stay. Plans are made for ``--target kernels``. ``python docs/generate.py``
makes docs/recipes.md from these.

    python -m models roberta-base ... --small -o small
    python -m benchmarks.recipes small --small

counts small recipes, of the same blocks and fewer of them, in small_recipes.csv: tests/recipes has
most of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxfold
from benchmarks.harness import arguments
from benchmarks.rows import RESULTS, Row, merge
from models.table import RECIPES

__all__ = ["find_export", "main"]

_ANY_SIZE = 1 << 62
_TARGET = "kernels"  # which moves the most; the others leave what runtimes look for


def main(words: Sequence[str] | None = None) -> int:
    """Count the exports in a directory, put them into the three files and return the exit code."""
    given = arguments(__doc__, {"exports": Path, "--small": False}, words)
    directory: Path = given.exports
    if given.small:
        small = _small(directory)
        counted = {row.recipe for row in small}
        merge(RESULTS / "small_recipes.csv", small, "recipe", counted, list(RECIPES))
        return 0
    rows: list[Row] = []
    left: list[dict[str, str]] = []
    affine: list[dict[str, str]] = []
    for name in RECIPES:
        path = find_export(directory, name)
        if path is None:
            print(f"{name:22} no export in {directory}")
            continue
        document = onnxfold.inspect(path, target=_TARGET, paper=True)
        rows.append(_counts(name, path, document))
        left += _left(name, document)
        affine += _affine(name, document)
        print(f"{name:22} {rows[-1].foldable:3} of {rows[-1].layer_norms}")
    if not rows:
        print(f"no export of a recipe in {directory}", file=sys.stderr)
        return 2
    counted = {row.recipe for row in rows}
    for file, found in (("recipes", rows), ("recipes_left", left), ("recipes_affine", affine)):
        merge(RESULTS / f"{file}.csv", found, "recipe", counted, list(RECIPES))
    return 0


def _small(directory: Path) -> list[Row]:
    rows = []
    for name in RECIPES:
        path = find_export(directory, name)
        summary = {} if path is None else onnxfold.inspect(path, paper=True)["summary"]
        if summary.get("layer_norms"):
            wanted = ("layer_norms", "foldable", "algorithm1", "algorithm1_embed_centred", "d2")
            rows.append(Row(recipe=name, **{field: summary[field] for field in wanted}))
    return rows


def find_export(directory: Path, name: str) -> Path | None:
    """Return the export of a recipe in a directory, by either of the names it may have."""
    places = (directory / f"{name}.onnx", directory / name / "model.onnx")
    return next((path for path in places if path.exists()), None)


def _counts(name: str, path: Path, document: dict[str, Any]) -> Row:
    summary, model = document["summary"], document["model"]
    split = onnxfold.inspect(path, target=_TARGET, allow_split=_ANY_SIZE)["summary"]
    # Counts of one recipe. ``split_foldable`` and ``split_insertions`` are those of ``--allow-
    # split`` without a limit. ``algorithm1``, ``algorithm1_embed_centred`` and ``d2`` are the
    # paper's counts, of ``layer_norms``. ``gammas`` and ``betas`` are those that all norms have.
    return Row(
        recipe=name,
        parameters=model["parameters"],
        opset=model["opset"],
        norms=summary["norms"],
        layer_norms=summary["layer_norms"],
        foldable=summary["foldable"],
        inserted_centerings=summary["inserted_centerings"],
        split_foldable=split["foldable"],
        split_insertions=split["inserted_centerings"],
        algorithm1=summary["algorithm1"],
        algorithm1_embed_centred=summary["algorithm1_embed_centred"],
        d2=summary["d2"],
        gammas=sum("gamma" in norm["affine"] for norm in document["norms"]),
        betas=sum("beta" in norm["affine"] for norm in document["norms"]),
        gamma_fused=summary["gamma_fused"],
        beta_fused=summary["beta_fused"],
        scales_fused=summary["scales_fused"],
    )


def _left(name: str, document: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row for each LayerNorm that stays one."""
    return [
        {"recipe": name, "norm": norm["name"], "becomes": norm["action"], **_why(norm["reason"])}
        for norm in document["norms"]
        if norm["kind"] == "layer_norm" and not norm["foldable"]
    ]


def _affine(name: str, document: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row for each norm that keeps its gamma or its beta."""
    rows = []
    for norm in document["norms"]:
        kept = [part for part in norm["affine"] if not norm[f"{part}_fused"]]
        if kept:
            keeps = {"recipe": name, "norm": norm["name"], "keeps": " ".join(kept)}
            rows.append({**keeps, **_why(norm["affine_reason"])})
    return rows


def _why(reason: dict[str, str]) -> dict[str, str]:
    return {key: reason[key] for key in ("code", "sentence")}


if __name__ == "__main__":
    sys.exit(main())
