"""Recipes that export real architectures to ONNX, run as ``python -m models NAME``.

The weights come from seeded initializers, not from a download, except where a recipe says so; what
matters to onnxfold is the graph that an exporter writes for the architecture.
"""

from __future__ import annotations

from models.exporter import export
from models.recipe import Recipe
from models.table import RECIPES, find

__all__ = ["RECIPES", "Recipe", "export", "find"]
