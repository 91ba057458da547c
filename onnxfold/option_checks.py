"""Checks of the numbers that options take, and their lists of names."""

from collections.abc import Iterable
from math import inf
from numbers import Integral, Real

from onnxfold.errors import UsageError

_MOST_BITS = 120  # of a power of two by which float32 numbers can be multiplied


def check_scale(chosen: str | int) -> None:
    """Raise UsageError for an invalid choice of --scale-streams."""
    known = str(chosen) in ("auto", "off")
    number = str(chosen).isdecimal() and 1 <= int(chosen) <= _MOST_BITS
    if not (known or number):
        raise UsageError(
            f"--scale-streams takes auto, off or a number of bits from 1 to {_MOST_BITS}, "
            f"not '{chosen}'"
        )


def check_split(chosen: str | float) -> None:
    """Raise UsageError for an invalid choice of --split-gamma."""
    if str(chosen) in ("auto", "off"):
        return
    try:
        number = float(chosen)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise UsageError(f"--split-gamma takes auto, off or a number from 0 to 1, not '{chosen}'")


def check_number(name: str, number: float | None) -> None:
    """Raise UsageError if the number of an option is negative or not a number."""
    if number is not None and not (isinstance(number, Real) and number >= 0):
        raise UsageError(f"{name} must be 0 or more, not {number!r}")


def check_count(name: str, number: int | None) -> None:
    """Raise UsageError if the number of an option is negative or not whole."""
    check_number(name, number)
    if number is not None and not isinstance(number, Integral):
        raise UsageError(f"{name} must be a whole number, not {number!r}")


def bytes_of(gigabytes: float | None) -> int | None:
    """Return GB in bytes; raises UsageError if it is not a positive number."""
    if gigabytes is None:
        return None
    if not 0 < gigabytes < inf:
        raise UsageError(f"the memory of the check must be positive, not {gigabytes:g} GB")
    return max(1, int(gigabytes * 1e9))


def listed(names: Iterable[str]) -> tuple[str, ...]:
    """Return several names; one text is one name, not its letters."""
    return (names,) if isinstance(names, str) else tuple(names)
