"""The options of commands, made from their declarations; and those on paths and output.

:class:`onnxfold.options.Options` and its like declare each option once. A command takes those that
it names by :func:`with_options`, as one mapping of keywords for the Python function of its name.
"""

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from onnxfold.cli.terminal import chosen_verbosity
from onnxfold.errors import UsageError
from onnxfold.options import Options, Told

# Options of every command that rewrites a model, and of every one that folds it.
CHECKED = (
    *("allow_split", "exclude", "check", "rtol", "atol", "inputs", "seed", "providers", "memory"),
    *("save_as_external_data", "strip_metadata", "fail_if_unchanged"),
)
FOLDED = (
    *CHECKED,
    *("fold", "fuse_affine", "defer", "defer_means", "range_limit", "fuse_residual", "norm_form"),
)
# Options on output and destinations, which do not affect the result.
_ABOUT_OUTPUT = frozenset({"as_json", "force", "output", "quiet", "report", "verbose"})
_OURS = frozenset({"type", "flag", "off"})  # of what Told says; the rest is Typer's
_NAMED, _NONE = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty


def written_file(name: str) -> Path:
    """Return the path of a file to write; raises ModelError for the name of a directory."""
    from onnxfold.model_io import file_to_write  # imported here, because help does not need onnx

    return file_to_write(name)


Model = Annotated[Path, typer.Argument(metavar="IN", help="The ONNX model, .onnx.")]
OutArgument = Annotated[
    Path | None,
    typer.Argument(parser=written_file, metavar="OUT", help="Where to write; the same as -o OUT."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", parser=written_file, metavar="OUT", help="Where to write."),
]
ThreadsOption = Annotated[int, typer.Option(metavar="N", help="Threads within an operator.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ReportOption = Annotated[
    list[Path] | None,
    typer.Option(
        parser=written_file,
        metavar="FILE",
        help="Write the full report, .json or .html; repeat for both.",
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--force", help="Replace reports and figures that onnxfold did not write.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say only errors and warnings.")]


def _told(of: type) -> dict[str, tuple[Any, Told]]:
    """Return the type and the help of every field of a class that has help."""
    hints = get_type_hints(of, include_extras=True)
    return {
        each.name: (get_args(hints[each.name])[0], told)
        for each in fields(of)
        for told in get_args(hints[each.name])[1:]
        if isinstance(told, Told)
    }


def like(of: type, name: str) -> Any:
    """Return the option that a class declares, for a command that has another type for it."""
    told = _told(of)[name][1]
    return typer.Option(help=told.text, metavar=told.cli["metavar"])


@dataclass(frozen=True, slots=True)
class _Declared:
    """An option of a command: the field that declares it, its default, and its help."""

    field: str
    default: Any
    kind: Any
    told: Told

    @property
    def name(self) -> str:
        """The name of the parameter of the command."""
        negative = self.default is True and "flag" not in self.told.cli
        return f"no_{self.field}" if negative else self.field

    @property
    def off(self) -> tuple[str, Any, str] | None:
        """The flag that sets the option to a fixed value, that value, and the help of the flag."""
        return self.told.cli.get("off")

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Return the parameters of a command that it needs: one, or two with a flag `off`."""
        told = {name: value for name, value in self.told.cli.items() if name not in _OURS}
        kind, default = self.told.cli.get("type", self.kind), self.default
        words = [self.told.cli["flag"]] if "flag" in self.told.cli else []
        if get_origin(kind) is tuple:
            kind = list[str] | None
        if bool in (kind, *get_args(kind)) and not words:
            words, default, kind = [f"--{self.name.replace('_', '-')}"], False, bool
        if isinstance(default, tuple):
            default = None
        if self.off is not None:
            told["show_default"], default, kind = str(default), None, kind | None
        yield _parameter(self.name, default, kind, *words, help=self.told.text, **told)
        if self.off is not None:
            flag, _, text = self.off
            yield _parameter(_of_flag(flag), False, bool, flag, help=text)

    def value(self, given: dict[str, Any]) -> Any:
        """Take it out of what a command was given, converted for Python.

        Raises UsageError if it is given together with its flag `off`.
        """
        value = given.pop(self.name)
        if self.off is not None:
            return self._or_off(value, given)
        if self.name != self.field:
            return not value
        if isinstance(self.default, tuple):
            return tuple(value or self.default)
        return None if self.default is None and value is False else value

    def _or_off(self, value: Any, given: dict[str, Any]) -> Any:
        flag, off, _ = self.told.cli["off"]
        if not given.pop(_of_flag(flag)):
            return self.default if value is None else value
        if value in (None, off):
            return off
        words = f"{flag} and --{self.name.replace('_', '-')}"
        raise UsageError(f"{words} exclude one another; leave one out")


def _parameter(name: str, default: Any, kind: Any, *words: str, **told: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*words, **told)]
    return inspect.Parameter(name, _NAMED, default=default, annotation=annotation)


def _of_flag(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def with_options(
    *names: str, of: type = Options, into: str = "chosen"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options that the class `of` declares to a command; without names, all of them.

    They replace the parameter ``into`` of the command, which gets them as keywords of the Python
    function. Typer reads the signature, so only that is changed.
    """
    told = _told(of)
    defaults = {e.name: _NONE if e.default is MISSING else e.default for e in fields(of)}
    options = [_Declared(name, defaults[name], *told[name]) for name in names or told]

    def add(command: Callable[..., None]) -> Callable[..., None]:
        own = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name == into:
                parameters += (each for option in options for each in option.parameters())
            else:
                parameters.append(parameter.replace(annotation=own[parameter.name]))

        @wraps(command)
        def spread(**given: Any) -> None:
            given[into] = {option.field: option.value(given) for option in options}
            command(**given)

        _declare(spread, parameters)
        return spread

    return add


def given_options(context: typer.Context) -> dict[str, str]:
    """Return the options that affect the result and are not at their default, by name."""
    given = {}
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        decides = parameter.param_type_name == "option" and parameter.name not in _ABOUT_OUTPUT
        if decides and value not in (parameter.default, None, ()):
            several = isinstance(value, list | tuple)  # a tuple before Typer 0.16
            given[str(parameter.name)] = ", ".join(value) if several else str(value)
    return given


def words_of(context: typer.Context, without: Collection[str]) -> list[str]:
    """Return command-line words that repeat the options given by the user."""
    words: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in without or source is None or source.name == "DEFAULT":
            continue
        value, (option, *_) = context.params[name], parameter.opts
        if isinstance(value, bool):
            words += [option] if value else [*parameter.secondary_opts[:1]]
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                words.append(f"{option}={each}")
    return words


def with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """Add --verbose and --quiet to a command, which are also allowed before its name."""
    hints = get_type_hints(command, include_extras=True)
    own = list(inspect.signature(command).parameters.values())
    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
    takes_context = any(parameter.name == "context" for parameter in own)
    if not takes_context:
        context = inspect.Parameter("context", _NAMED, annotation=typer.Context)
        parameters.insert(0, context)
    for name, kind in (("verbose", VerboseOption), ("quiet", QuietOption)):
        parameters.append(inspect.Parameter(name, _NAMED, default=False, annotation=kind))

    @wraps(command)
    def spread(**given: Any) -> None:
        context = given["context"] if takes_context else given.pop("context")
        verbose, quiet = given.pop("verbose"), given.pop("quiet")
        if verbose or quiet:
            context.obj = chosen_verbosity(verbose=verbose, quiet=quiet)
        command(**given)

    _declare(spread, [parameter.replace(kind=_NAMED) for parameter in parameters])
    return spread


def _declare(command: Callable[..., None], parameters: list[inspect.Parameter]) -> None:
    """Declare the parameters of a function that Typer reads.

    An unreadable file is reported by its reader, with exit code 3; Typer would exit with 2.
    """
    for parameter in parameters:
        for told in get_args(parameter.annotation)[1:]:
            told.readable = False
    # mypy knows no attribute for it; inspect.signature documents it.
    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
