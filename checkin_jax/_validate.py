"""Argument checks: every error names the argument, its value and its legal range."""

from __future__ import annotations

import datetime
import math
import numbers
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_SHOWN = 200  # characters of a value in an error


def real(
    low: float, high: float, *, open_low: bool = False, open_high: bool = False, **value: float
) -> float:
    """The one keyword's value as a float, if it lies in the interval; NaN lies in none.

    Raises:
      ValueError: outside the interval, with the argument's name, value and legal range.
      TypeError: not a real number (booleans and strings are not).
    """
    ((name, x),) = value.items()
    legal = interval(low, high, open_low, open_high)
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        raise TypeError(f"{name}={shown(x)}: expected a real number in {legal}")
    try:
        x = float(x)
    except OverflowError:  # an integer of more than 308 digits
        x = math.inf if x > 0 else -math.inf
    # Written so that NaN fails every comparison.
    above = x > low if open_low else x >= low
    below = x < high if open_high else x <= high
    if not (above and below):
        raise ValueError(f"{name}={shown(x)}: expected a number in {legal}")
    return x


def array(name: str, values: object) -> np.ndarray:
    """A copy of the numbers as float64.

    Raises:
      TypeError: no numbers. ValueError: an integer of more than 308 digits.
    """
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise ValueError(f"{name}={shown(values)}: expected numbers that a float64 can hold") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name}={shown(values)}: expected numbers") from None


def interval(low: float, high: float, open_low: bool = False, open_high: bool = False) -> str:
    """The interval as errors show it."""
    return f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"


def integer(low: int, high: float = math.inf, **value: int) -> int:
    """The one keyword's value as an int, if it is whole and lies in [low, high].

    Whole floats such as 1e9 are accepted, the usual notation of large counts.

    Raises:
      ValueError: outside the range or not whole.
      TypeError: not a number.
    """
    ((name, x),) = value.items()
    legal = f"[{low}, {high:g}]"
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        raise TypeError(f"{name}={shown(x)}: expected a whole number in {legal}")
    # An integer too large for a float is whole.
    if not (low <= x <= high and (isinstance(x, numbers.Integral) or float(x).is_integer())):
        raise ValueError(f"{name}={shown(x)}: expected a whole number in {legal}")
    return int(x)


def choice(options: tuple[str, ...], **value: str) -> str:
    """The one keyword's value, if it is one of `options`; ValueError otherwise."""
    ((name, x),) = value.items()
    if not isinstance(x, str) or x not in options:
        raise ValueError(f"{name}={shown(x)}: expected one of {', '.join(map(repr, options))}")
    return x


def day(**value: str) -> str:
    """The one keyword's value, if it is the ISO date of a day up to today; ValueError otherwise."""
    ((name, x),) = value.items()
    try:
        found = datetime.date.fromisoformat(x)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={shown(x)}: expected a date such as 2026-01-31") from None
    # Somewhere it is tomorrow.
    if found > datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1):
        raise ValueError(f"{name}={x!r}: expected a day up to today")
    return found.isoformat()


def flag(**value: bool) -> bool:
    """The one keyword's value, if it is True or False; TypeError otherwise."""
    ((name, x),) = value.items()
    if not isinstance(x, bool):
        raise TypeError(f"{name}={shown(x)}: expected True or False")
    return x


def instance(kind: type[T], **value: object) -> T:
    """The one keyword's value, if it is an instance of `kind`; TypeError otherwise."""
    ((name, x),) = value.items()
    if not isinstance(x, kind):
        raise TypeError(f"{name}={shown(x)}: expected a {kind.__name__}")
    return x


def shown(value: object) -> str:
    """The value as errors show it: one line, truncated if long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # an integer of more digits than Python prints
        return f"{type(value).__name__} of thousands of digits"
    return cut(text)


def cut(text: str, most: int = _SHOWN) -> str:
    """The text, truncated to `most` characters."""
    return text if len(text) <= most else f"{text[:most]}..."
