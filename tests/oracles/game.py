"""The hexagon's game of weighted steps, from its definition."""

from collections.abc import Callable, Sequence

from .hexagon import weighted_game


def game(weights: Sequence[float], p: float, c: float) -> Callable[[float], float]:
    """V_w(s), the last weight first, with the hexagon's extreme laws."""
    return weighted_game(p, c, weights[::-1], None)
