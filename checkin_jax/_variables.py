"""Variables that `calibrate` may search: fields of protocols and randomizers."""

from __future__ import annotations

from typing import NamedTuple


class FreeVariable(NamedTuple):
    """A field that `calibrate` may search.

    Attributes:
      name: of the field.
      low, high: the range that is searched.
      power: epsilon goes about with this power of the value; its sign says on which side values are feasible.
      whole: whether values are whole numbers.
    """

    name: str
    low: float
    high: float
    power: float
    whole: bool = False
