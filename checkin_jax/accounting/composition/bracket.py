"""What the composer returns: both ends, and how they were found."""

from __future__ import annotations

import dataclasses

NO_INSTANCE = "zero (no instance leaks more at this delta)"


@dataclasses.dataclass(frozen=True)
class Bracket:
    """lower <= epsilon <= upper, how the ends were found, and the numerical part of the upper end's delta.

    bound: the theorem behind the upper end where it is not the units' own; else empty. names: of the bounds without
    which the upper end would be larger, one name a unit; empty where no unit was followed.
    """

    lower: float
    upper: float
    method: str
    lower_method: str = NO_INSTANCE
    optimal_order: float | None = None
    numerical_error: float = 0.0
    bound: str = ""
    names: tuple[str, ...] = ()


def ordered(found: Bracket) -> Bracket:
    """Lets the ends meet where rounding made them cross; anything more is a defect that must not be papered over.

    Raises:
      ArithmeticError: the lower end is above the upper one, so one of them is wrong.
    """
    if found.lower > found.upper * (1.0 + 1e-6) + 1e-15:
        raise ArithmeticError(
            f"lower={found.lower!r} is above upper={found.upper!r} ({found.method}): please report these settings"
        )
    return dataclasses.replace(found, lower=min(found.lower, found.upper))
