"""Witnesses for unequal check-in rates (L1h), messages of any law: all other clients at one of two records.

Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from checkin_jax.accounting.bounds.interface import EventProfile, Lines, Profile, UnitBound
from checkin_jax.accounting.bounds.messages.equal_records import GaussianAtOneRecord, LabelsAtOneRecord
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.profiles import GaussianProfile, LabelProfile
from checkin_jax.accounting.bounds.unequal.pool_cover import Others
from checkin_jax.numerics.counts import poisson_binomial
from checkin_jax.numerics.counts.pools import Runs
from checkin_jax.randomizers import LabelLaws

# Runs of the number of messages, and quantiles at which they are merged if there are more than _SINGLE.
_SINGLE = 6
_RUNS, _PASSED = 24, (0.2, 0.55, 0.9, 0.985)


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalMessagesOfOne:
    """Witness: a mixture over runs of the observed number of messages.

    A run is filled up to its largest number with messages of others, a post-processing. The target's message is one of
    them with the mean probability of the run, rounded down.

    Attributes:
      rate: g in (0, 1]. others: all others' rates. law: of one message by labels; or mu of a Gaussian message.
    """

    rate: float
    others: Others
    neg_log_tail: float
    law: LabelLaws | float

    symmetric = False
    below_grid_bound = True

    @property
    def grid_bound(self) -> UnitBound:
        return EventProfile(self, self._profile.largest_loss)

    @property
    def single(self) -> bool:
        """True if the view must show single messages, not sums."""
        return not isinstance(self.law, LabelLaws)

    @functools.cached_property
    def _profile(self) -> Profile:
        return LabelProfile(self.law) if isinstance(self.law, LabelLaws) else GaussianProfile(self.law)

    @property
    def name(self) -> str:
        return self.law.name if isinstance(self.law, LabelLaws) else GaussianAtOneRecord.name

    @functools.cached_property
    def _parts(self) -> list[tuple[float, float, GaussianAtOneRecord | LabelsAtOneRecord]]:
        """Lower and upper bounds on the probability of each run, and its messages."""
        law, g = poisson_binomial.law(self.others.trials, self.neg_log_tail), self.rate
        runs = Runs(law, _RUNS)
        most, least = (
            (1.0 - g) * runs.next_upper + g * runs.upper,
            (1.0 - g) * runs.next_lower + g * runs.lower,
        )
        start = np.arange(least.size)
        if least.size > _SINGLE:
            start = np.unique(np.append(0, np.searchsorted(np.cumsum(least), np.array(_PASSED))))
            start = start[start < least.size]
        last = runs.last[np.append(start[1:], least.size) - 1]
        most = np.add.reduceat(most, start) * (1.0 + 1e-14)
        least = np.add.reduceat(least, start) * (1.0 - 1e-14)
        theirs = g * np.add.reduceat(runs.lower, start) * (1.0 - 2e-14)
        # Q is rounded up by the possible excess of the target's probability over the assumed one.
        more = g * np.add.reduceat(runs.upper, start) * (1.0 + 2e-14)
        used = np.where(most > 0.0, theirs / np.where(most > 0.0, most, 1.0), 0.0)
        found = []
        for i in range(start.size):
            if used[i] > 0.0 and least[i] > 0.0:
                messages = HiddenSlots(
                    int(last[i]), min(float(used[i]), 1.0), self._profile, self.neg_log_tail
                )
                one = (
                    LabelsAtOneRecord(messages, self.law)
                    if isinstance(self.law, LabelLaws)
                    else GaussianAtOneRecord(self.grid_bound, messages, self.law)
                )
                found.append((float(least[i]), float(most[i] * more[i] / theirs[i]), one))
        return found

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        total = np.zeros((2, 2, np.size(loss)))
        for least, most, one in self._parts:
            for side, (difference, mass) in zip(total, one.lower(loss)):
                side[0] += least * np.asarray(difference)
                side[1] += most * np.asarray(mass) * (1.0 + 1e-15)
        (one_way, other_way) = total
        return (one_way[0], one_way[1]), (other_way[0], other_way[1])
