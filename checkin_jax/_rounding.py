"""Formats numbers: upper ends rounded up, lower ends down; counts with plurals."""

from __future__ import annotations

import decimal
import math
import re


def up(value: float, digits: int = 6) -> str:
    """Text of an upper end, rounded up."""
    return _cut(value, digits, decimal.ROUND_CEILING)


def down(value: float, digits: int = 6) -> str:
    """Text of a lower end, rounded down."""
    return _cut(value, digits, decimal.ROUND_FLOOR)


def bracket(lower: float, epsilon: float, spec: str) -> str:
    """Both ends in a format such as ".4", four significant digits: "1.355 <= epsilon <= 1.361".

    Raises:
      ValueError: another format.
    """
    if not re.fullmatch(r"\.[1-9][0-9]?", spec):
        raise ValueError(f"format {spec!r}: expected a number of significant digits, such as .4")
    digits = int(spec[1:])
    return f"{down(lower, digits)} <= epsilon <= {up(epsilon, digits)}"


def counted(count: int, one: str, more: str = "") -> str:
    """`1 round`, `2,000 rounds`: a count with its noun, whose plural has an s by default."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def _cut(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(float(value))
    # The shortest decimal of this float, so that 0.1 stays 0.1.
    cut = decimal.Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(cut):.{digits}g}"
