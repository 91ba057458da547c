"""Tables within pages that are written by hand: README.md, theory.md, pipeline.md, verify.md."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pages.chains import best, every
from pages.tables import Row, between, read_rows, table

__all__ = ["gains", "with_budgets", "with_chains", "with_deferral", "with_tables"]

_BEGIN, _END = "<!-- recipes: written by docs/generate.py -->\n", "<!-- end of recipes -->"
_BEGIN_COUNTS, _END_COUNTS = (
    "<!-- deferral counts: written by docs/generate.py -->\n",
    "<!-- end of deferral counts -->",
)
_BEGIN_DEFER, _END_DEFER = (
    "<!-- deferral times: written by docs/generate.py -->\n",
    "<!-- end of deferral times -->",
)
_BEGIN_FORMS, _END_FORMS = "<!-- forms: written by docs/generate.py -->\n", "<!-- end of forms -->"
_BEGIN_PAID, _END_PAID = (
    "<!-- break-even: written by docs/generate.py -->\n",
    "<!-- end of break-even -->",
)
_BEGIN_BUDGETS = "<!-- budgets: written by docs/generate.py -->\n"
_END_BUDGETS = "<!-- end of budgets -->"
_BEGIN_BEST = "<!-- fewest nodes: written by docs/generate.py -->\n"
_END_BEST = "<!-- end of fewest nodes -->"
_BEGIN_CHAINS = "<!-- chains: written by docs/generate.py -->\n"
_END_CHAINS = "<!-- end of chains -->"
# Subject, axis and size of the rows of models.csv that the page of benchmarks shows.
_STEPS = ("no SkipLN fusion", "target ort, nothing folded", "target ort")
_GAINS = (
    ("minilm", "sequence", "128"),
    ("minilm-int8", "sequence", "128"),
    ("bert-base", "sequence", "128"),
    ("gpt2", "sequence", "128"),
    ("opt-125m", "sequence", "128"),
    ("vit-s16", "batch", "1"),
)
_README_RECIPES = "gpt2 vit-b16 clip-text whisper-tiny-encoder bert-base swin-t convnext-t".split()


def with_tables(readme: str, rows: Sequence[Row]) -> str:
    """Replace what is generated in README.md."""
    return between(readme, _BEGIN, _END, _folds(rows))


def with_deferral(theory: str) -> str:
    """Replace what is generated in theory.md."""
    counted = ("norm", "behind", "deferred", "saved")
    counts = table(
        (
            "figure",
            "block",
            "sizes of",
            "the norm",
            "s after every layer",
            "deferred",
            "saved after layers",
        ),
        [
            tuple(row[name] for name in ("figure", "block", "model", *counted))
            for row in read_rows("deferral_counts.csv")
        ],
    )
    theory = between(theory, _BEGIN_COUNTS, _END_COUNTS, counts)
    theory = between(theory, _BEGIN_DEFER, _END_DEFER, _times(read_rows("defer.csv")))
    theory = between(theory, _BEGIN_FORMS, _END_FORMS, _forms(read_rows("norm_forms.csv")))
    return between(theory, _BEGIN_PAID, _END_PAID, _paid(read_rows("break_even.csv")))


def with_chains(pipeline: str) -> str:
    """Replace what is generated in pipeline.md."""
    rows = read_rows("chains.csv")
    pipeline = between(pipeline, _BEGIN_BEST, _END_BEST, best(rows))
    return between(pipeline, _BEGIN_CHAINS, _END_CHAINS, every(rows))


def with_budgets(verify: str) -> str:
    """Replace what is generated in verify.md."""
    names = (
        "model",
        "conversion",
        "relative",
        "relative_worst",
        "cosine_worst",
        "top1",
        "kl_worst",
    )
    headings = ("model", "conversion", "relative", "worst", "1 - cosine", "top1", "kl", "lost")
    rows = [
        (*(row[name] for name in names), f"{float(row['task']):.0%}")
        for row in read_rows("budgets.csv")
    ]
    return between(verify, _BEGIN_BUDGETS, _END_BUDGETS, table(headings, rows))


def _paid(rows: Sequence[Row]) -> str:
    """Times of small models in each form, and of the fold."""
    cases: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row["model"], row["batch"], row["tokens"]), {})[row["form"]] = row

    def cell(row: Row) -> str:
        low, middle, high = (float(row[name]) for name in ("ratio_25", "ratio", "ratio_75"))
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"

    lines = [
        (
            model,
            batch if tokens == "0" else f"{batch} x {tokens}",
            f"{float(forms['layer']['milliseconds']):.1f} ms",
            *(cell(forms[form]) for form in ("rms", "crms", "none")),
            ", ".join(
                f"{float(forms['rms'][n]):.2f} s" for n in ("fold_seconds", "checked_seconds")
            ),
            f"{forms['rms']['paid_after']} runs" if forms["rms"]["paid_after"] else "not seen",
        )
        for (model, batch, tokens), forms in cases.items()
    ]
    names = ("RMSNorm", "CRMSNorm", "no norms", "fold, checked fold", "RMSNorm has paid after")
    return table(("model", "batch", "LayerNorm", *names), lines)


def _forms(rows: Sequence[Row]) -> str:
    """Times of RMSNorm and CRMSNorm against LayerNorm's, and the share that norms have."""
    cases: dict[tuple[str, ...], dict[tuple[str, str], Row]] = {}
    for row in rows:
        case = (_machine(row), row["model"], row["precision"], row["batch"], row["tokens"])
        by_form = cases.setdefault(case, {})
        by_form[row["form"], row["target"]] = row
    columns = [
        (form, target) for target in ("onnx", "kernels") for form in ("rms", "crms", "short")
    ]

    def cell(row: Row) -> str:
        low, middle, high = (float(row[name]) for name in ("ratio_25", "ratio", "ratio_75"))
        return f"{middle:.2f} ({low:.2f} to {high:.2f}), {float(row['norm_share']):.1%}"

    lines = []
    for (machine, model, precision, batch, tokens), by_form in cases.items():
        layer = by_form["layer", "onnx"]
        shape = batch if tokens == "0" else f"{batch} x {tokens}"
        ms = float(layer["milliseconds"])
        plain = f"{ms:.{0 if ms >= 10 else 2}f} ms, {float(layer['norm_share']):.1%}"
        named = model if precision == "fp32" else f"{model}, {precision}"
        lines.append((machine, named, shape, plain, *(cell(by_form[column]) for column in columns)))
    forms = ("RMSNorm", "CRMSNorm", "d - 1 given")
    headings = (
        "on",
        "model",
        "batch",
        "LayerNorm",
        *forms,
        *(f"{form}, kernels" for form in forms),
    )
    return table(headings, lines)


def _times(rows: Sequence[Row]) -> str:
    """Ratios of --defer all with one thread, and the range of those of the same file again."""
    cases: dict[tuple[str, ...], dict[tuple[str, str], Row]] = {}
    for row in rows:
        if row["threads"] == "1":
            case = (_machine(row), row["model"], row["target"], row["dtype"])
            cases.setdefault(case, {})[row["defer"], row["tokens"]] = row
    tokens = ("1", "128", "512")

    def cell(row: Row) -> str:
        low, middle, high = (float(row[name]) for name in ("ratio_q1", "ratio", "ratio_q3"))
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"

    def noise(found: dict[tuple[str, str], Row]) -> str:
        same = [float(found["auto", count]["ratio"]) for count in tokens]
        return f"{min(same):.2f} to {max(same):.2f}"

    lines = [
        (*case, *(cell(found["all", count]) for count in tokens), noise(found))
        for case, found in cases.items()
    ]
    counts = (f"{count} token{'s' * (count != '1')}" for count in tokens)
    return table(("on", "block", "target", "type", *counts, "the same file"), lines)


def _machine(row: Row) -> str:
    return row["device"].partition(",")[0] or "CPU"


def gains() -> str:
    """What ONNX Runtime gains on a CPU, from the last rows of each subject, and by what.

    Each of the three parts is what is gained beyond the ones before.
    """
    timed, recipes = read_rows("models.csv"), read_rows("recipes.csv")
    last = {(row["subject"], row["axis"], row["size"], row["method"]): row for row in timed}
    counted = {row["recipe"]: row for row in recipes}
    lines = []
    for subject in _GAINS:
        name, axis, size = subject
        norms = counted[name.removesuffix("-int8")]
        steps = [last[(*subject, method)] for method in _STEPS]
        reached = [float(row["to_stock"]) for row in steps]
        parts = (f"{now / before:.2f}" for before, now in pairwise((1.0, *reached)))
        both = (steps[-1], last[(*subject, "onnxfold")])
        spread = (f"{float(row['to_stock']):.2f} ({_range(row)})" for row in both)
        folds = f"{norms['foldable']} of {norms['layer_norms']}"
        lines.append((f"{name}, {axis} {size}", folds, *parts, *spread))
    headings = ("model", "norms fold", "one setting", "other fusions", "the fold",
                "all: `--target ort`", "with the kernels")  # fmt: skip
    return table(headings, lines)


def _range(row: Row) -> str:
    return f"{float(row['to_stock_p10']):.2f} to {float(row['to_stock_p90']):.2f}"


def _folds(rows: Sequence[Row]) -> str:
    """What folds in the recipes that README shows."""
    shown = [row for name in _README_RECIPES for row in rows if row["recipe"] == name]
    lines = [(row["recipe"], row["layer_norms"], row["foldable"]) for row in shown]
    return table(("model", "LayerNorms", "fold"), lines)
