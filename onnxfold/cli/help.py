"""Commands that list flags without a value, and say that they were interrupted.

Typer 0.29 does neither.
"""

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from onnxfold.errors import CommandInterruptedError


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

    def invoke(self, ctx: Any) -> Any:
        """Run a command.

        Raises CommandInterruptedError instead of KeyboardInterrupt, for which Typer prints nothing.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise CommandInterruptedError from error


def _without_values(parameters: Iterable[Any]) -> list[Any]:
    found = list(parameters)
    for parameter in found:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return found
