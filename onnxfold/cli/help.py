"""Commands whose help lists flags without a value, which Typer 0.29 would show."""

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command of onnxfold."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options."""
        return _without_values(super().get_params(ctx))


class Group(TyperGroup):
    """All commands of onnxfold."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options before the command."""
        return _without_values(super().get_params(ctx))


def _without_values(parameters: Iterable[Any]) -> list[Any]:
    found = list(parameters)
    for parameter in found:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return found
