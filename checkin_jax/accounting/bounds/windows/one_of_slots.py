"""Laws of one client's message in one of several slots, of which the bounds on Gaussian windows are made.

`OneOfSlots`, and `UnequalSlots` for slots of several kinds: the client is there or not. `OppositeRecords`: it has one
of two records. `Displacing`: it is there in place of another client. mu is the largest shift of one slot's mean over
the noise's standard deviation: 2 / noise_multiplier, or half of that if the client replaces a dummy. Proofs:
docs/theory_allocation.md. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np

from checkin_jax.accounting.bounds.interface import (
    MAX_LOSS,
    AsymmetricBound,
    Lines,
    Minimum,
    OwnWitness,
    UnitBound,
    Witness,
)
from checkin_jax.accounting.bounds.messages.profile_cover import OneInSlots
from checkin_jax.accounting.bounds.profiles import TINY, GaussianProfile, Profile
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import hidden_messages
from checkin_jax.numerics import allocation_losses, step_ratios
from checkin_jax.numerics.step_ratios import GivenRatio, Lognormal, SharedLognormal

# Range of mu in which lattices are worth their time; the kernels allow mu up to 100.
LEAST_MU, MOST_LATTICE_MU = 1e-6, 12.0
# Names of concrete pairs.
OTHERS_ALIKE = "Gaussian messages in slots, all others at one record"
RANDOM_ALLOCATION = "the pair of random allocation"
# Bounds and witnesses of one unit often need the same profile.
_profile = functools.lru_cache(maxsize=16)(allocation_losses.profile)
_excess = functools.lru_cache(maxsize=128)(allocation_losses.Excess)
# neg_log_tail of unequal slots is rounded up to a multiple of this, so that calls with other deltas share them.
_ALIKE = 8.0


@dataclasses.dataclass(frozen=True)
class OneOfSlots(AsymmetricBound):
    """One client's message in a uniform one of m slots: upper bounds on both profiles, and a witness where attained.

    H(P||Q) of P = (1-rho) Q + (rho/m) sum_i (the client in slot i) is bounded by the law of independent likelihood
    ratios, one a slot.

    Attributes:
      slots: m >= 1. Above `allocation_losses.MAX_SLOTS` the upper bound is that of MAX_SLOTS slots, and the lower bound
        is zero.
      use_prob: rho in (0, 1], the probability that the client is in one of the slots.
      ratio: law above that of one slot's likelihood ratio in convex order.
      neg_log_tail: profiles are followed down to about exp(-neg_log_tail).
      attained: True if `ratio` is the law of a concrete pair: the bound is exact up to rounding, and its own witness.
    """

    slots: int
    use_prob: float
    ratio: Lognormal | SharedLognormal | GivenRatio
    neg_log_tail: float
    name: str = "allocation"
    attained: bool = False
    largest_loss: float = math.inf

    symmetric = False
    below_grid_bound = True

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return (self,) if self.attained else ()

    @property
    def grid_bound(self) -> UnitBound:
        return self

    @functools.cached_property
    def _above(self) -> list[allocation_losses.StopLossTails]:
        """Upper bounds on the stop-loss transforms of the sum, and of its negative."""
        return [
            _profile(self.ratio, self.slots, self.neg_log_tail, reverse, True) for reverse in (False, True)
        ]

    @functools.cached_property
    def _below(self) -> list[allocation_losses.StopLossTails]:
        return [
            _profile(self.ratio, self.slots, self.neg_log_tail, reverse, False) for reverse in (False, True)
        ]

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        value = allocation_losses.profile_upper(
            self._above[backward], self.ratio, self.use_prob, np.ravel(loss)
        )
        return value.reshape(np.shape(loss))

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        loss, ratio = np.asarray(loss), self.ratio
        assert not isinstance(ratio, SharedLognormal)
        forward, backward = (allocation_losses.lines_lower(each, self.use_prob, loss) for each in self._below)
        # Lattices do not reach the far tail, which is that of a single term.
        forward = _higher(
            loss, forward, allocation_losses.large_term_lines(ratio, self.slots, self.use_prob, loss)
        )
        if isinstance(ratio, GivenRatio):
            backward = _higher(
                loss, backward, allocation_losses.small_terms_lines(ratio, self.slots, self.use_prob, loss)
            )
        return forward, backward


def gaussian_in_slots(
    slots: int, use_prob: float, mu: float, neg_log_tail: float, name: str = OTHERS_ALIKE
) -> OneOfSlots:
    """The pair P = (1-rho) N(0, I) + (rho/m) sum_i N(mu e_i, I) against Q = N(0, I); mu in [LEAST_MU, MOST_LATTICE_MU].

    This is A_fix or A_sldw with Gaussian messages, all others and the dummies at one record, under add-or-remove
    [random allocation: Feldman, Shenfeld 2025].
    """
    return OneOfSlots(slots, use_prob, Lognormal(mu), neg_log_tail, name, attained=True)


def gaussian_among_others(slots: int, use_prob: float, mu: float, neg_log_tail: float) -> OneOfSlots:
    """G3: add-or-remove with hidden dummies; the others' records are arbitrary. Valid for adaptive randomizers.

    If the target is used, it replaces a dummy (shift at most mu/2) or, in at most half of all cases, another client
    (shift at most mu). Every slot has a law above both terms in convex order.
    """
    return OneOfSlots(slots, use_prob, SharedLognormal(mu), neg_log_tail)


def step_in_slots(slots: int, use_prob: float, step: UnitBound, neg_log_tail: float) -> OneOfSlots:
    """The pair of a step in one of m steps [Feldman, Shenfeld 2026].

    step: bounds on the step's pair, with and without the record; its own witness where it is attained.
    """
    # A step that is its own witness has both sides and the events of a `GivenPair`.
    pair: Any = step if isinstance(step, AsymmetricBound) else Minimum((step,))
    attained, largest = isinstance(step, OwnWitness), step.largest_loss
    return OneOfSlots(slots, use_prob, GivenRatio(pair), neg_log_tail, RANDOM_ALLOCATION, attained, largest)


def _higher(loss: np.ndarray, one: Lines, other: Lines) -> Lines:
    """At each loss the event with the larger P(A) - c Q(A)."""
    above = np.expm1(np.minimum(loss, MAX_LOSS))
    better = other[0] - above * other[1] > one[0] - above * one[1]
    return np.where(better, other[0], one[0]), np.where(better, other[1], one[1])


@dataclasses.dataclass(frozen=True)
class ButForRareEvent:
    """Witness that equals `pair` outside of an event with the same probability, at most `failure_prob`, under P and Q.

    public: True if the adversary sees whether the event happens.
    """

    pair: OneOfSlots
    failure_prob: float
    public: bool

    symmetric = False
    below_grid_bound = True

    @property
    def name(self) -> str:
        return self.pair.name

    @property
    def grid_bound(self) -> UnitBound:
        return self.pair

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        # Outcomes in the event are not counted. If it is hidden, they may lower the difference by its probability.
        against = 0.0 if self.public else self.failure_prob
        forward, backward = (
            (
                np.maximum((1.0 - self.failure_prob) * np.asarray(apart) - against, 0.0),
                np.asarray(far) + against,
            )
            for apart, far in self.pair.lower(loss)
        )
        return forward, backward


@dataclasses.dataclass(frozen=True)
class _OppositeStep:
    """E(d - k)_+ at c = 1 and k = e^loss - 1, for a term d of `OppositeRecords`."""

    mu: float

    name = "Gaussian"
    largest_loss = math.inf

    def delta(self, loss: np.ndarray) -> np.ndarray:
        return step_ratios.opposite_transform(self.mu, 1.0, np.expm1(loss), False) + TINY


@dataclasses.dataclass(frozen=True)
class OppositeRecords(OneInSlots):
    """A message at one of two opposite records in a uniform one of `slots` slots, dummies in the others. Symmetric.

    Upper bounds for P = (1 - rho) F + (rho/m) sum_i N(mu/2 e_i, I) and Q with -mu/2, F = N(0, I).

    Attributes:
      slots: m >= 1. use_prob: rho in (0, 1]. mu: distance of the two records. neg_log_tail: as in `HiddenSlots`.
    """

    slots: int
    use_prob: float
    mu: float
    neg_log_tail: float
    profile: Profile = dataclasses.field(init=False)
    witnesses: tuple[Witness, ...] = ()

    name = "allocation"
    # The law changes little with c.
    apart: ClassVar[float] = 0.4
    share: ClassVar[float] = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "profile", _OppositeStep(self.mu))

    @property
    def _alone(self) -> Profile:
        return GaussianProfile(self.mu)

    def _law(self, losses: np.ndarray) -> hidden_messages.StepTransforms:
        knots, c = self.steps[0], np.exp(losses)[:, None]
        right = np.broadcast_to(knots, (len(losses), knots.size))
        left = c * knots
        values = (
            step_ratios.opposite_transform(self.mu, c, at, below)
            for at, below in ((right, False), (left, True))
        )
        right_value, left_value = values
        return hidden_messages.StepTransforms(
            *(host(each) for each in (right, right_value, left, left_value))
        )


@dataclasses.dataclass(frozen=True)
class Displacing(AsymmetricBound):
    """The pair (1 - r) Q + r P against Q, with P and Q of `OppositeRecords` at rho = 1.

    With probability r = `use_prob` the target is in a uniform slot, in place of the other client under Q.
    """

    pair: OppositeRecords
    use_prob: float

    name = "allocation"

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        loss = np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS)
        above, used = np.expm1(loss), self.use_prob
        if not backward:
            return used * self.pair.upper(np.log1p(above / used) * (1.0 - 1e-14)) * (1.0 + ROUNDING)
        # ((1 - c (1 - r)) Q - c r P)_+, the weight of Q rounded up.
        left = np.maximum(used - above * (1.0 - used), 0.0) + 1e-15 * (1.0 + above)
        ratio = np.maximum(loss + np.log(used) - np.log(left), 0.0)
        return np.minimum(left, 1.0) * self.pair.upper(ratio * (1.0 - 1e-14)) * (1.0 + ROUNDING)


@dataclasses.dataclass(frozen=True)
class UnequalSlots(AsymmetricBound):
    """One client's message in slots of several kinds, P = Q (1 + unit sum_i w_i (L_i - 1)).

    Attributes:
      kinds: numbers, shifts and weights w of the slots.
      unit: weight of a slot at w = 1.
      neg_log_tail: as in `OneOfSlots`.
    """

    kinds: tuple[allocation_losses.EqualTerms, ...]
    unit: float
    neg_log_tail: float

    name = "allocation"

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        loss = np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS)
        at = (-np.expm1(-loss) if backward else np.expm1(loss)) / self.unit * (1.0 - 1e-14)
        scale = self.unit * np.exp(loss) if backward else self.unit
        followed = _ALIKE * math.ceil(self.neg_log_tail / _ALIKE)
        return np.minimum(scale * _excess(self.kinds, followed, backward).at(at), 1.0)
