"""Argument checks: every error names the argument, its value and its legal range."""

from __future__ import annotations

import datetime
import math
import numbers
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_SHOWN = 200  # characters of a value in an error


def error(expected: str, **value: object) -> ValueError:
    """The error of an illegal value: the one keyword's name and value, and the legal values in words."""
    return ValueError(_told(expected, value))


def type_error(expected: str, **value: object) -> TypeError:
    """The error of a value of a wrong type: the one keyword's name and value, and the legal values in words."""
    return TypeError(_told(expected, value))


def _told(expected: str, value: dict[str, object]) -> str:
    ((name, x),) = value.items()
    return f"{name}={shown(x)}: expected {expected}"


def real(low: float, high: float, ends: str = "[]", **value: float) -> float:
    """The one keyword's value as a float, if it lies in the interval; NaN lies in none.

    Args:
      ends: brackets of the interval, as in mathematics: "[]", "()", "(]" or "[)".

    Raises:
      ValueError: outside the interval, with the argument's name, value and legal range.
      TypeError: not a real number (booleans and strings are not).
    """
    ((name, x),) = value.items()
    legal = interval(low, high, ends)
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        raise type_error(f"a real number in {legal}", **value)
    try:
        x = float(x) + 0.0  # of -0.0, 0.0
    except OverflowError:  # an integer of more than 308 digits
        x = math.inf if x > 0 else -math.inf
    if not lies_in(x, low, high, ends):
        raise error(f"a number in {legal}", **{name: x})
    return x


def array(name: str, values: object) -> np.ndarray:
    """A copy of the numbers as float64.

    Raises:
      TypeError: no numbers; texts, truth values and None are none. ValueError: an integer of more than 308 digits.
    """
    try:
        if not (isinstance(values, np.ndarray) and values.dtype.kind in "iuf"):
            # NumPy takes texts for numbers, True for 1 and None for NaN.
            given = np.asarray(values, dtype=object).flat
            if any(isinstance(each, bool | np.bool_ | str | bytes) or each is None for each in given):
                raise TypeError
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise error("numbers that a float64 can hold", **{name: values}) from None
    except (TypeError, ValueError):
        raise type_error("numbers", **{name: values}) from None


def column(name: str, values: object, *, or_number: bool = False) -> np.ndarray:
    """A copy of a list of numbers as float64; ValueError for other shapes. or_number: one number will do, too."""
    found = array(name, values)
    if found.ndim > 1 or (found.ndim == 0 and not or_number):
        raise ValueError(f"{name} of shape {found.shape}: expected a list of numbers")
    return found


def lies_in(x: Any, low: float, high: float, ends: str) -> Any:
    """True for numbers, or entries of an array, in the interval; False for NaN."""
    return (x > low if ends[0] == "(" else x >= low) & (x < high if ends[1] == ")" else x <= high)


def interval(low: float, high: float, ends: str) -> str:
    """The interval as errors show it."""
    return f"{ends[0]}{low:g}, {high:g}{ends[1]}"


def integer(low: int, high: float = math.inf, **value: int) -> int:
    """The one keyword's value as an int, if it is whole and lies in [low, high].

    Whole floats such as 1e9 are accepted, the usual notation of large counts.

    Raises:
      ValueError: outside the range or not whole.
      TypeError: not a number.
    """
    (x,) = value.values()
    legal = f"[{low}, {high:g}]"
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        raise type_error(f"a whole number in {legal}", **value)
    # An integer too large for a float is whole.
    if not (low <= x <= high and (isinstance(x, numbers.Integral) or float(x).is_integer())):
        raise error(f"a whole number in {legal}", **value)
    return int(x)


def optional(check: Callable[..., T], *legal: Any, **value: Any) -> T | None:
    """The one keyword's value as `check` returns it, given its legal range; None stays None."""
    (x,) = value.values()
    return None if x is None else check(*legal, **value)


def choice(options: tuple[str, ...], **value: str) -> str:
    """The one keyword's value, if it is one of `options`; ValueError otherwise."""
    (x,) = value.values()
    if not isinstance(x, str) or x not in options:
        raise error(f"one of {', '.join(map(repr, options))}", **value)
    return x


def day(**value: str) -> str:
    """The one keyword's value, if it is the ISO date of a day up to today; ValueError otherwise."""
    (x,) = value.values()
    try:
        found = datetime.date.fromisoformat(x)
    except (TypeError, ValueError):
        raise error("a date such as 2026-01-31", **value) from None
    # Somewhere it is tomorrow.
    if found > datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1):
        raise error("a day up to today", **value)
    return found.isoformat()


def flag(**value: bool) -> bool:
    """The one keyword's value, if it is True or False; TypeError otherwise."""
    (x,) = value.values()
    if not isinstance(x, bool):
        raise type_error("True or False", **value)
    return x


def instance(kind: type[T], **value: object) -> T:
    """The one keyword's value, if it is an instance of `kind`; TypeError otherwise."""
    (x,) = value.values()
    if not isinstance(x, kind):
        raise type_error(f"a {kind.__name__}", **value)
    return x


def function(**value: Callable[..., Any]) -> Callable[..., Any]:
    """The one keyword's value, if it can be called; TypeError otherwise."""
    (x,) = value.values()
    if not callable(x):
        raise type_error("a function", **value)
    return x


def words(**value: str) -> str:
    """The one keyword's value, if it is a text that is not empty; ValueError otherwise."""
    (x,) = value.values()
    if not isinstance(x, str) or not x.strip():
        raise error("a text that is not empty", **value)
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
