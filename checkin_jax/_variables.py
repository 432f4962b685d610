"""Variables that `calibrate` may search: fields of protocols and randomizers."""

from __future__ import annotations

from typing import NamedTuple


class FreeVariable(NamedTuple):
    """A field that `calibrate` may search.

    Attributes:
      name: of the field.
      low, high: range of the search.
      power: epsilon is about proportional to this power of the value; its sign gives the feasible side.
      whole: True if values are whole numbers.
    """

    name: str
    low: float
    high: float
    power: float
    whole: bool = False
