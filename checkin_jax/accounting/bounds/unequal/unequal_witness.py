"""Witnesses for unequal check-in rates (L1h), messages of any law: all other clients at one of two records.

Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from checkin_jax.accounting.bounds.messages.equal_records import (
    AtOneRecord,
    ByNumber,
    GaussianAtOneRecord,
    LabelsAtOneRecord,
)
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMixture, mixtures
from checkin_jax.accounting.bounds.profiles import GaussianProfile, LabelProfile
from checkin_jax.accounting.bounds.unequal.pool_cover import Others
from checkin_jax.numerics.counts import poisson_binomial
from checkin_jax.numerics.counts.pools import Runs
from checkin_jax.randomizers import LabelLaws

# Runs of the number of messages, and quantiles at which they are merged if there are more than _SINGLE.
_SINGLE = 6
_RUNS, _PASSED = 24, (0.2, 0.55, 0.9, 0.985)


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalMessagesOfOne(ByNumber):
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

    lost = 0.0

    @property
    def name(self) -> str:
        return self.law.name if isinstance(self.law, LabelLaws) else GaussianAtOneRecord.name

    @property
    def single(self) -> bool:
        """True if the view must show single messages, not sums."""
        return not isinstance(self.law, LabelLaws)

    @functools.cached_property
    def parts(self) -> tuple[tuple[np.ndarray, np.ndarray, AtOneRecord], ...]:  # type: ignore[override]
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
        seen = (theirs > 0.0) & (most > 0.0) & (least > 0.0)
        last, most, least, theirs, more = (each[seen] for each in (last, most, least, theirs, more))
        used = np.minimum(theirs / most, 1.0)
        raised = most * more / theirs
        profile = LabelProfile(self.law) if isinstance(self.law, LabelLaws) else GaussianProfile(self.law)
        found = mixtures(least, last, used, profile, self.neg_log_tail)
        return tuple((least[here], raised[here], self._of(one)) for here, one in found)

    def _of(self, messages: HiddenMixture) -> AtOneRecord:
        if isinstance(self.law, LabelLaws):
            return LabelsAtOneRecord(messages, self.law)
        return GaussianAtOneRecord(messages, messages, self.law)
