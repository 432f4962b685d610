"""Witnesses for unequal check-in rates (L1h), messages of any law: all other clients at one of two records.

Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.label_pairs import ScoreSum, told
from checkin_jax.accounting.bounds.messages.equal_records import (
    AtOneRecord,
    ByNumber,
    GaussianAtOneRecord,
    LabelsAtOneRecord,
)
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMixture, mixtures
from checkin_jax.accounting.bounds.profiles import GaussianProfile, LabelProfile
from checkin_jax.accounting.bounds.unequal.pool_cover import Others, Runs
from checkin_jax.numerics.counts import poisson_binomial
from checkin_jax.randomizers import LabelLaws

# Few messages, of which no two numbers are merged; places of their sums of scores, standard deviations and largest
# scores that these hold; largest relative error of the probability of a number.
FEW, _PLACES, _DEVIATIONS, _MOST_SCORES, _ACCURATE = 300.0, 2048, 28.0, 16.0, 1e-9
# Runs of the number of messages, and quantiles at which they are merged if there are more than _SINGLE.
_SINGLE = 6
_RUNS, _PASSED = 24, (0.2, 0.55, 0.9, 0.985)


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalScores(ScoreSum):
    """Witness: the number of messages, and the sum of whole scores of their labels.

    Sums of the others' scores are convolved message by message, within a window: all terms are positive.

    Attributes:
      rate: g in (0, 1]. theirs: all others' rates. laws: of one message by labels.
      follows_outcomes: as of `LabelSum`.
    """

    rate: float
    theirs: Others
    laws: LabelLaws
    neg_log_tail: float
    follows_outcomes: bool = True

    places = _PLACES

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.laws.name

    @property
    def expected(self) -> float:
        return float(self.theirs.trials.mean) + self.rate

    @functools.cached_property
    def _sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:  # type: ignore[override]
        g, law = self.rate, poisson_binomial.law(self.theirs.trials, self.neg_log_tail)
        low, others, apart, other = self.scored
        known = law.upper <= law.lower * (1.0 + _ACCURATE)
        masses = np.where(known, law.lower, 0.0)
        most = float(law.last) + 1.0
        reach = _DEVIATIONS * self.spread + _MOST_SCORES * float(np.abs(self.scores).max())
        before = math.floor(min(reach, -most * low))
        size = before + math.floor(min(reach, most * (low + others.size - 1))) + 1
        kept = slice(-low, size - low)
        sums, outside = np.zeros(size), 0.0
        sums[before] = 1.0
        found, beyond = [], law.below + law.above + float(np.sum(law.upper, where=~known))
        for number in range(int(most)):
            one_more = np.convolve(sums, others)
            outside += float(one_more[: kept.start].sum() + one_more[kept.stop :].sum())
            at = number - int(law.first)
            if at >= 0:
                # So many others send, and the target, or one other more.
                there, absent = g * masses[at], (1.0 - g) * (masses[at + 1] if at + 1 < masses.size else 0.0)
                second = absent * one_more[kept] + there * np.convolve(sums, other)[kept]
                found.append((second, there * np.convolve(sums, apart)[kept]))
                beyond += (there + absent) * outside
            sums = one_more[kept]
        second, difference = (np.concatenate(part) for part in zip(*found))
        both = np.abs(difference) + second
        seldom = both < math.exp(-self.neg_log_tail) / both.size
        beyond += float(np.sum(both, where=seldom))
        second, difference, both = second[~seldom], difference[~seldom], both[~seldom]
        rounded = _ACCURATE + most * (others.size + 4.0) * 2.0**-52
        return second, difference, rounded * both, beyond * (1.0 + 1e-9)


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


def unequal_labels(
    rate: float, theirs: Others, neg_log_tail: float, law: LabelLaws
) -> UnequalScores | UnequalMessagesOfOne:
    """Witness of messages of this law: exact by their number and scores if few are expected."""
    if float(theirs.trials.mean) <= FEW and told(law):
        return UnequalScores(rate, theirs, law, neg_log_tail)
    return UnequalMessagesOfOne(rate, theirs, neg_log_tail, law)
