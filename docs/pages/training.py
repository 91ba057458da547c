"""The tables of docs/training.md, from the rows of benchmarks/training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean, stdev

from pages.tables import Row, between, read_rows, table

__all__ = ["with_training"]

_PARTS = ("linear", "norm", "activation")


def with_training(page: str) -> str:
    """Replace what is generated in training.md."""
    tables: dict[str, Callable[[], str]] = {
        "inexact": _inexact,
        "fine-tuning": _fine_tuning,
        "centering": _centring,
        "forms": _forms,
    }
    for name, made in tables.items():
        begin = f"<!-- {name}: written by docs/generate.py -->\n"
        page = between(page, begin, f"<!-- end of {name} -->", made())
    return page


def _spread(cells: Iterable[str], digits: int) -> str:
    """Return the mean, and the deviation where there is more than one."""
    numbers = [float(cell) for cell in cells]
    middle = f"{mean(numbers):z.{digits}f}"
    return f"{middle} ± {stdev(numbers):.{digits}f}" if len(numbers) > 1 else middle


def _groups(rows: Sequence[Row], *keys: str) -> dict[tuple[str, ...], list[Row]]:
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def _last(rows: Sequence[Row], key: str) -> list[Row]:
    end = max(int(row[key]) for row in rows)
    return [row for row in rows if int(row[key]) == end]


def _beside(rows: Sequence[Row], others: Sequence[Row], column: str, digits: int) -> str:
    """Return the mean difference between rows of the same seed, and its deviation."""
    other = {row["seed"]: float(row[column]) for row in others}
    return _spread((str(float(row[column]) - other[row["seed"]]) for row in rows), digits)


def _inexact() -> str:
    lines = []
    groups = _groups(read_rows("training_inexact.csv"), "task", "variant")
    for (task, variant), rows in groups.items():
        end, own = _last(rows, "step"), _last(groups[task, "layer_norm"], "step")
        lines.append(
            (
                task,
                variant,
                f"{end[0]['folded_norms']} and {end[0]['forced_norms']} of {end[0]['norms']}",
                str(len(end)),
                _spread((row["held_out_loss"] for row in end), 3),
                _beside(end, own, "held_out_loss", 4),
                _spread((row["score"] for row in end), 3),
            )
        )
    heads = (
        "task",
        "variant",
        "folded and forced",
        "seeds",
        "held-out loss",
        "less LayerNorm's, by seed",
        "score",
    )
    return table(heads, lines)


def _fine_tuning() -> str:
    lines = []
    groups = _groups(
        [
            {**row, "name": name, "stage": stage.split()[0]}
            for row in read_rows("training_language.csv")
            for name, _, stage in (row["setting"].partition(", "),)
        ],
        "width",
        "layers",
        "dropout",
        "name",
    )
    for (*size, dropout, setting), rows in groups.items():
        stages = _groups(rows, "stage")
        own = _groups(groups[(*size, dropout, "layer_norm")], "stage")
        values = [_spread((r["perplexity"] for r in stages[at,]), 2) for at in ("before", "after")]
        seeds = str(len(stages["after",]))
        less = _beside(stages["after",], own["after",], "perplexity", 3)
        steps = " + ".join(stages[at,][0]["steps"] for at in ("before", "after"))
        lines.append((" x ".join(size), dropout, steps, setting, seeds, *values, less))
    heads = (
        "width, layers",
        "dropout",
        "steps",
        "setting",
        "seeds",
        "before",
        "after",
        "after, less LayerNorm's, by seed",
    )
    return table(heads, lines)


def _centring() -> str:
    rows = read_rows("training_centring.csv")
    lines = []
    order = sorted(_groups(rows, "depth", "residual"), key=lambda net: (int(net[0]), net[1]))
    for depth, residual in order:
        own = [row for row in rows if (row["depth"], row["residual"]) == (depth, residual)]
        for (variant,), found in _groups(own, "variant").items():
            end = [row for row in _last(found, "epoch") if int(row["at"]) == int(depth) - 1]
            by_part = {key[0]: part for key, part in _groups(end, "what").items()}
            lines.append(
                (
                    f"{depth}{', residual' if residual == 'True' else ''}",
                    variant,
                    str(len(by_part["norm"])),
                    _spread((row["accuracy"] for row in by_part["norm"]), 2),
                    *(
                        _spread((row[column] for row in by_part[part]), digits)
                        for column, digits in (("share", 2), ("length", 1))
                        for part in _PARTS
                    ),
                )
            )
    heads = (
        "layers",
        "norm",
        "seeds",
        "accuracy",
        *(f"{what} of what the {part} reads" for what in ("share", "length") for part in _PARTS),
    )
    return table(heads, lines)


def _forms() -> str:
    lines = []
    groups = _groups(read_rows("training_forms.csv"), "width", "variant")
    for (width, variant), rows in sorted(groups.items(), key=lambda item: int(item[0][0])):
        end = _last(rows, "step")
        ratios = [float(row["ratio"]) for row in rows]
        lines.append(
            (
                width,
                variant,
                str(len(end)),
                _spread((row["held_out_loss"] for row in end), 4),
                _spread((row["score"] for row in end), 3),
                f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            )
        )
    heads = (
        "width",
        "norms",
        "seeds",
        "held-out loss",
        "sentences right",
        "times as fast as LayerNorm",
    )
    return table(heads, lines)
