"""The table of all recipes, in the order in which they are listed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from models import plain, seq2seq, text_decoders, text_encoders, vision
from models.recipe import Recipe
from onnxfold.errors import UsageError

__all__ = ["RECIPES", "find"]

_FAMILIES: Final = (text_decoders, text_encoders, vision, seq2seq, plain)
RECIPES: Final[Mapping[str, Recipe]] = {
    recipe.name: recipe for family in _FAMILIES for recipe in family.RECIPES
}


def find(name: str) -> Recipe:
    """Return the recipe `name`.

    Raises:
        UsageError: there is none; the message names the closest.
    """
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name, RECIPES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(RECIPES)}"
    raise UsageError(f"no recipe is called {name!r}; {hint}")
