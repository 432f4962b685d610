"""The result of the composition: both ends of epsilon, and their methods."""

from __future__ import annotations

import dataclasses

NO_WITNESS = "zero (no witness leaks more at this delta)"


@dataclasses.dataclass(frozen=True)
class Bracket:
    """lower <= epsilon <= upper, the methods of the ends, and the numerical part of the upper end's delta.

    bound: name of the bound of the upper end if it is not the units' own; else empty. names: for each unit, the bounds
    without which the upper end would be larger; empty if no unit was followed.
    """

    lower: float
    upper: float
    method: str
    lower_method: str = NO_WITNESS
    optimal_order: float | None = None
    numerical_error: float = 0.0
    bound: str = ""
    names: tuple[str, ...] = ()


def ordered(found: Bracket) -> Bracket:
    """The bracket, its lower end clipped to the upper one if rounding made them cross.

    Raises:
      ArithmeticError: the lower end is above the upper one by more than a relative 1e-6, so one of them is wrong.
    """
    if found.lower > found.upper * (1.0 + 1e-6) + 1e-15:
        raise ArithmeticError(
            f"lower={found.lower!r} is above upper={found.upper!r} ({found.method}): please report these settings"
        )
    return dataclasses.replace(found, lower=min(found.lower, found.upper))
