"""Errors for the user, each with its exit code of the command line."""

import os
import re
from typing import ClassVar

from onnxfold.wording import worded


class OnnxfoldError(Exception):
    """Base of every error that onnxfold raises on purpose; the message is one line for a person."""

    exit_code: ClassVar[int] = 3

    def __str__(self) -> str:
        """Return the message, which names arguments in Python, and flags on the command line."""
        return worded(self.sentence)

    @property
    def sentence(self) -> str:
        """The message as it was written, with flags, for documents and other processes."""
        return super().__str__()


class VerificationError(OnnxfoldError):
    """The rewritten model does not compute the same function, or the proof of a fold failed."""

    exit_code: ClassVar[int] = 1


class PassCheckError(VerificationError):
    """The check failed, and may pass without one of the optional passes."""

    def __init__(self, message: str, name: str):
        super().__init__(message)
        self.name = name


class WeightOverflowError(VerificationError):
    """A weight contains inf or NaN, or its type cannot represent its edited values.

    This is only found when the weight is computed; the plan is then made again without it.
    """


class UnchangedError(OnnxfoldError):
    """Nothing could be improved, and the user asked for an error in this case."""

    exit_code: ClassVar[int] = 1


class CommandInterruptedError(OnnxfoldError):
    """The user ended a command, as by Ctrl-C; the message reports what was written by then."""

    exit_code: ClassVar[int] = 130

    def __init__(self, written: str = "nothing was written") -> None:
        super().__init__(f"interrupted, {written}")


class UsageError(OnnxfoldError):
    """An option or argument is invalid, alone or with the others."""

    exit_code: ClassVar[int] = 2


class ModelError(OnnxfoldError):
    """The model cannot be read, is invalid, is unsupported, or cannot be written."""

    exit_code: ClassVar[int] = 3


class DataError(OnnxfoldError):
    """A data file cannot be read, or its data does not fit the model."""

    exit_code: ClassVar[int] = 3


class DependencyError(OnnxfoldError, ImportError):
    """A package is missing, or older than another one requires."""


class InvariantError(OnnxfoldError):
    """A stage broke its own contract: a defect of onnxfold, never the user's fault."""

    exit_code: ClassVar[int] = 3


def misfit(error: Exception) -> DependencyError | None:
    """Return the problem of the installed packages that caused an import error, with the remedy."""
    if isinstance(error, ImportError):
        ours = str(error.name).startswith("onnxfold")
    else:
        kind = type(error)  # not imported, because older versions of protobuf lack VersionError
        ours = kind.__name__ != "VersionError" or not kind.__module__.startswith("google.protobuf")
    if ours:
        return None
    return DependencyError(
        f"the installed packages do not fit together: {one_line(error)}; install versions that "
        "do: pip install --upgrade onnxfold onnx protobuf"
    )


def printable(text: str, also: str = "") -> str:
    """Return a text with invisible characters escaped, except the characters of `also`.

    Names in a model are arbitrary: they may move a terminal's cursor, end a line or reverse the
    direction of reading.
    """
    return "".join(c if c.isprintable() or c in also else ascii(c)[1:-1] for c in text)


_LONGEST_LINE = 300
# ONNX Runtime starts with a number and the path, and names a place in its sources.
_NUMBER = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?")
_PLACE = re.compile(r"/\S*onnxruntime_src/\S+:\d+ [^()]*\((?:[^()]|\([^()]*\))*\)( const)? ")


def one_line(error: Exception) -> str:
    """Return the message of another library's error, as one line of at most 300 characters."""
    text = _PLACE.sub("", _NUMBER.sub("", " ".join(str(error).split())))
    return text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "..."


# A message ends with the fault, so a long name is cut in the middle.
_HEAD, _TAIL = 240, 160


def escaped(text: str) -> str:
    """Return a text with line breaks and other control characters escaped, of bounded length."""
    if len(text) > _HEAD + _TAIL:
        text = f"{text[:_HEAD]}...{text[-_TAIL:]}"
    return printable(text)


def show(path: str | os.PathLike[str]) -> str:
    """Return a path as it appears in a message."""
    return escaped(os.fspath(path))


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return the path of a written file as short as it can be named from the working folder."""
    if not os.path.exists("."):  # the working folder was removed
        return os.fspath(path)
    return os.fspath(path).removeprefix(os.path.join(os.path.realpath("."), ""))


def first_cause(error: BaseException) -> str:
    """Return the first line of the deepest cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return escaped(lines[0]) if lines else type(error).__name__
