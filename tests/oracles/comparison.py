"""Divergences of actual mechanisms against a bound, counted, so that few or distant comparisons are no evidence."""

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING

TINY = 1e-12


def sizes(quick: int, many: int) -> pytest.MarkDecorator:
    """The number of random mechanisms: a sample, or the large run."""
    return pytest.mark.parametrize("trials", [quick, pytest.param(many, marks=pytest.mark.slow)])


class Comparison:
    """Counts comparisons, and those that exceed the bound; keeps the largest ratio at c >= 1."""

    def __init__(self):
        self.count, self.largest, self.above = 0, 0.0, 0

    def look(self, actual, bounds, cs=1.0):
        """`actual`: one row for each neighbouring pair, one column for each c."""
        actual = np.atleast_2d(np.asarray(actual, float))
        self.above += int((actual > bounds * (1 + 1e-9) + TINY).sum())
        self.count += actual.size
        seen = (np.asarray(cs) >= 1) & (bounds > 1e-9)
        self.largest = (actual.max(axis=0)[seen] / bounds[seen]).max(initial=self.largest)

    def below(self, actual, bounds, cs=1.0):
        """Fails where the bound is exceeded."""
        actual = np.atleast_2d(np.asarray(actual, float))
        assert (actual <= bounds * (1 + ORACLE_ROUNDING) + 1e-15).all(), (actual, bounds, cs)
        self.look(actual, bounds, cs)

    def was_close(self, trials, ratio=0.9):
        """The comparisons were many and came close, so they mean something."""
        assert self.count >= 10 * trials
        assert self.largest > ratio
