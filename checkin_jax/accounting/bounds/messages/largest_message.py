"""Witness for weak noise: the event that the largest message along x - x' exceeds a threshold.

All other clients are at x', the target at x or x'. Likelihood ratios have lognormal tails, so their sum is hardly
better than its largest term, whose event has a closed form. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy  # its parts are imported when they are used

from checkin_jax.accounting.bounds.interface import EventProfile, Lines, UnitBound
from checkin_jax.accounting.bounds.messages.subsampling import ShuffledGaussian
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import convex

# Single messages matter if their losses reach this share of log n.
_SINGLE = 0.5
# Number of thresholds, and the largest: normal tails do not underflow below it.
_PLACES, _FARTHEST = 2048, 37.0
# Upper bound on the relative error of ndtr.
_ACCURACY = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class Largest:
    """Witness: some message exceeds a threshold, along the way from the others' record to the target's.

    Attributes:
      gained, exceeding, not_exceeding: P(A) - Q(A), Q(A) and 1 - P(A) for the events A, [thresholds].
      single: True if the view must show single messages, not sums. below_grid_bound: as in `Witness`.
    """

    name: str
    gained: np.ndarray
    exceeding: np.ndarray
    not_exceeding: np.ndarray
    single: bool = True
    below_grid_bound: bool = False

    symmetric = False

    @property
    def grid_bound(self) -> UnitBound:
        return EventProfile(self)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        return (
            convex.best_event(self.gained, self.exceeding, loss),
            convex.best_event(self.gained, self.not_exceeding, loss),
        )


def largest_message(num_clients: int, rate: float, mu: float) -> Largest:
    """Witness: the largest Gaussian message along x - x' exceeds a threshold, all others at x'.

    Args:
      num_clients, rate: n and gamma. mu: 2 / noise_multiplier.
    """
    place = np.linspace(0.0, _FARTHEST, _PLACES)
    near, far = (rate * scipy.special.ndtr(at) for at in (-place, mu - place))
    others, low, high = num_clients - 1.0, 1.0 - _ACCURACY, 1.0 + _ACCURACY
    # log Pr(no other message exceeds the threshold), from below and above. Tails are rounded against the witness.
    one_less = np.log1p(-np.minimum(near * high, 1.0 - 1e-16))
    least = others * one_less * high
    most = others * np.log1p(-near * low) * low
    gained = np.exp(least) * np.maximum(far * low - near * high, 0.0) * (1.0 - ROUNDING)
    exceeding = -np.expm1(least + one_less * high) * (1.0 + ROUNDING)
    not_exceeding = np.minimum(np.exp(most) * (1.0 - far * low) * (1.0 + ROUNDING), 1.0)
    name = "the largest Gaussian message, all others at one of the two records"
    return Largest(name, gained, exceeding, not_exceeding)


LARGEST_IN_SLOTS = "the largest Gaussian message in slots, all others at the farthest record"


def largest_in_slots(slots: int, use_prob: float, empty_prob: float, mu: float, replaced: bool) -> Largest:
    """Witness in slots with hidden dummies: all others at -C, the target at C under P; dummies are at zero.

    Args:
      slots: m, those of the target. use_prob: lower bound on the probability that the target is used. empty_prob: upper
        bound on the probability that the others leave a slot empty; they choose slots independently. mu: 2 /
        noise_multiplier. replaced: under Q the target is at -C if True, absent if False.
    """
    place = np.linspace(0.0, _FARTHEST, _PLACES)
    other, dummy, mine = (scipy.special.ndtr(at * mu - place) for at in (0.0, 0.5, 1.0))
    # Expected number of slots that exceed the threshold without the target.
    expected = slots * (other + empty_prob * dummy) * (1.0 + ROUNDING)
    gained = mine * (1.0 - _ACCURACY) - (other if replaced else dummy) * (1.0 + _ACCURACY)
    gained = use_prob * np.maximum(1.0 - expected, 0.0) * np.maximum(gained, 0.0) * (1.0 - ROUNDING)
    exceeding = np.minimum(expected, 1.0)
    return Largest(LARGEST_IN_SLOTS, gained, exceeding, 1.0 - gained, below_grid_bound=True)


def largest_average(num_clients: int, num_slots: int, prob: float, mu: float, neg_log_tail: float) -> Largest:
    """Witness in averaged slots of which averages and loads are seen: all others at x', the target at x under P.

    The event: some slot's average exceeds x' by a threshold, in standard deviations of its noise.

    Args:
      num_clients, num_slots, prob: n, m and p_0. mu: 2 / noise_multiplier. neg_log_tail: -log of the negligible mass.
    """
    slots, others = float(num_slots), (num_clients - 1.0) * prob
    loads = ShuffledGaussian(num_clients, prob / num_slots, mu, True, neg_log_tail).mixture_below
    shifts, shares = np.asarray(loads.mu), slots * np.asarray(loads.weight) * (1.0 - ROUNDING)
    place = np.linspace(0.0, _FARTHEST, _PLACES)
    low, near = 1.0 - _ACCURACY, scipy.special.ndtr(-place) * (1.0 + _ACCURACY)
    apart = np.maximum(scipy.special.ndtr(shifts[:, None] - place) * low - near, 0.0)
    # The target's slot exceeds the threshold, and would not with x'. No other one does: there are at most so many
    # slots, or other participants.
    gained, most = shares @ apart, prob * scipy.special.ndtr(mu - place)
    gained = np.maximum(gained * (1.0 - slots * near), gained - most * others * near * (1.0 + ROUNDING))
    gained = np.maximum(gained, 0.0) * (1.0 - ROUNDING)
    exceeding = np.minimum(min(slots, prob + others) * near * (1.0 + ROUNDING), 1.0)
    name = "the largest Gaussian average, all others at one of the two records"
    return Largest(name, gained, exceeding, 1.0 - gained, single=False)


def singles_matter(number: float, mu: float, exponent: float) -> bool:
    """True if single ones of so many messages matter to a delta of exp(-exponent)."""
    return mu * math.sqrt(2.0 * max(exponent, 1.0)) >= _SINGLE * math.log(number)
