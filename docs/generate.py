"""Write the pages of docs/ that come from the code and from benchmarks/results.

    python docs/generate.py

writes laws.md, papers.md, parity.md, recipes.md, refusals.md and the tables within README.md,
theory.md, training.md and pipeline.md, each made in docs/pages/; a test fails when one is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

# A command has this folder on its path; a test that runs this file has not.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from pages.operators import laws, refusals
from pages.papers import papers
from pages.parity import parity
from pages.parts import with_budgets, with_chains, with_deferral, with_tables
from pages.precision import with_precision
from pages.recipes import recipes
from pages.tables import ROOT, read_rows
from pages.training import with_training
from pages.tune import with_tune

__all__ = ["main", "pages"]


def main() -> int:
    """Write every generated page and return the exit code."""
    for path, text in pages().items():
        changed = not path.exists() or path.read_text(encoding="utf-8") != text
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}{'' if changed else ': no change'}\n")
    return 0


def pages() -> dict[Path, str]:
    """Return the text of every generated page."""
    rows, left = read_rows("recipes.csv"), read_rows("recipes_left.csv")
    affine, timed = read_rows("recipes_affine.csv"), read_rows("models.csv")
    docs, readme = ROOT / "docs", ROOT / "README.md"
    theory, pipeline, verify = (docs / f"{name}.md" for name in ("theory", "pipeline", "verify"))
    training = docs / "training.md"
    return {
        docs / "tune.md": with_tune((docs / "tune.md").read_text(encoding="utf-8")),
        pipeline: with_chains(pipeline.read_text(encoding="utf-8")),
        docs / "precision.md": with_precision((docs / "precision.md").read_text(encoding="utf-8")),
        docs / "laws.md": laws(),
        docs / "papers.md": papers(),
        docs / "parity.md": parity(),
        docs / "recipes.md": recipes(
            rows,
            left,
            affine,
            timed,
            *(
                read_rows(f"{name}.csv")
                for name in ("counterexamples", "small_recipes", "families")
            ),
        ),
        docs / "refusals.md": refusals(),
        training: with_training(training.read_text(encoding="utf-8")),
        theory: with_deferral(theory.read_text(encoding="utf-8")),
        verify: with_budgets(verify.read_text(encoding="utf-8")),
        readme: with_tables(readme.read_text(encoding="utf-8"), rows),
    }


if __name__ == "__main__":
    sys.exit(main())
