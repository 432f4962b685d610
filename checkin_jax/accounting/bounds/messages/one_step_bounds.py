"""Bounds by one dominating step: a total variation (A), k-ary responses (t_k), one bit (B0), and their witnesses.

One record is replaced. The adversary sees the messages of a round in random order, or slot by slot, and their number.
All clients use the same randomizer. Given public randomness whose law does not depend on the record, a one-bit message
is (a post-processing of) one eps0-LDP bit: the l2 mechanism of LDP-SGD, or binary randomized response
[docs/theory_mechanisms.md]. Call inside `devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math

import numpy as np
import scipy

from checkin_jax import _validate
from checkin_jax.accounting.bounds.clones_bounds import Binary, Mixture, OfMixture, third_record_laws
from checkin_jax.accounting.bounds.interface import UnitBound, Witness, binary_laws
from checkin_jax.accounting.bounds.messages.cover import Shuffled, StepCover, equal_draws, largest_loss
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool
from checkin_jax.kernels import clones, host
from checkin_jax.kernels.messages import equal_steps
from checkin_jax.kernels.messages.likelihood_polytopes import Message
from checkin_jax.numerics import convex

FAIR_BITS = "one bit (in one dimension, say), all others and dummies at zero updates"
# Knots of a profile: _EVEN of them evenly up to _NEAR standard deviations of the loss, _DENSE more where most of the
# mass is, then _FAR geometrically.
_NEAR, _EVEN, _DENSE, _FAR = 4.8, 80, 32, 100
# Least standard deviation of a loss, for rates that underflow.
_LEAST = 1e-100
# Fewest buckets of the number of messages that show one of the two records, or that there are in `fair_bits`.
_BUCKETS = 256


@functools.cache
def _places() -> np.ndarray:
    """Knots in [0, 1]: _EVEN of constant density plus _DENSE of density e^(-x^2/6), which is best for a normal law."""
    x = np.linspace(0.0, _NEAR, 4001)
    normal = scipy.special.erf(x / math.sqrt(6.0))
    number = _EVEN * x / _NEAR + _DENSE * normal / normal[-1]
    return np.interp(np.arange(_EVEN + _DENSE + 1.0), number, x / _NEAR)


def total_variation_law(epsilon0: float, total_variation: float) -> equal_steps.StepLaw:
    """The dominating step t*_beta."""
    p_minus_1 = math.expm1(epsilon0)
    pair = total_variation / p_minus_1
    # The mass at (p, p) is exactly 0 at the largest total variation.
    high = max(1.0 - (p_minus_1 + 2.0) * pair, 0.0) / (p_minus_1 + 1.0)
    return equal_steps.StepLaw(host(pair), host(high), host(max(1.0 - 2.0 * pair - high, 0.0)))


def most_total_variation(epsilon0: float) -> float:
    """(p - 1)/(p + 1), the largest total variation of an eps0-LDP message."""
    return math.tanh(0.5 * epsilon0)


def losses_of(
    law: equal_steps.StepLaw, step_counts: equal_steps.StepCounts, epsilon0: float, neg_log_tail: float
) -> np.ndarray:
    """Losses at which a round is evaluated: from 0 to where the divergence is negligible, then epsilon0."""
    top = math.expm1(epsilon0)
    weights = float(step_counts.rate) * np.asarray([law.pair, law.pair, law.high, law.low], dtype=float)
    masses = np.asarray(step_counts.masses)
    count, clients = float(np.max(np.where(masses > 0, step_counts.counts, 0.0))), float(step_counts.clients)
    deviation = max(math.sqrt(count * 2.0 * weights[0]) * top / clients, _LEAST)

    def height(above: np.ndarray) -> np.ndarray:
        """Upper bound on log E(x + S)_+, by Chernoff's bound."""
        at = np.stack([np.ones_like(above), -1.0 - above, -above, above / top], axis=-1)[:, None, :]
        x = -clients * above / top
        orders = np.geomspace(min(0.3 * top / (clients * deviation), 1.0), 300.0, 96)[None, :, None]
        log_m = count * np.log1p((weights * np.expm1(orders * at)).sum(axis=-1))
        found = orders[..., 0] * x[:, None] + log_m - np.log(orders[..., 0])
        return found.min(axis=1)

    tried = np.geomspace(min(0.1 * deviation, 0.5 * top), top, 128)
    matters = height(tried) + math.log(top / clients) > -neg_log_tail
    far = float(tried[min(int(matters.sum()) + 1, 127)])
    near = min(_NEAR * deviation, 0.5 * far)
    above = np.append(near * _places(), np.geomspace(near, far, _FAR)[1:])
    losses = np.log1p(above)
    return np.append(losses[losses < epsilon0], epsilon0)


class HiddenSteps(abc.ABC):
    """A symmetric bound made from one dominating step and a cover.

    Attributes of subclasses: step_cover: the cover. epsilon0: nats, in (0, 50]. neg_log_tail: -log of the
    negligible mass.
    """

    step_cover: StepCover
    epsilon0: float
    neg_log_tail: float

    sharp = True

    def __post_init__(self) -> None:
        _validate.real(0.0, 50.0, "(]", epsilon0=self.epsilon0)
        _validate.real(1.0, 1e4, neg_log_tail=self.neg_log_tail)

    @property
    @abc.abstractmethod
    def law(self) -> equal_steps.StepLaw:
        """The dominating step."""

    @property
    def largest_loss(self) -> float:
        return largest_loss(self.epsilon0, self.step_cover.use_prob)

    def evaluated(self) -> tuple[np.ndarray, np.ndarray]:
        """Losses from 0 to epsilon0, and upper bounds there."""
        step_counts = self.step_cover.sums(self.neg_log_tail)
        losses = losses_of(self.law, step_counts, self.epsilon0, self.neg_log_tail)
        return losses, self.step_cover.of_step(self.law, self.epsilon0, losses, self.neg_log_tail)

    @functools.cached_property
    def profile(self) -> tuple[np.ndarray, np.ndarray]:
        """(losses, upper bounds), linear in e^loss between losses."""
        losses, value = self.evaluated()
        value = np.where(losses >= self.epsilon0, 0.0, np.minimum.accumulate(value))
        above, value = convex.full_hull(np.expm1(losses), value)
        return np.log1p(above), value

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return np.where(np.asarray(loss) >= self.largest_loss, 0.0, convex.chords(*self.profile, loss))


@dataclasses.dataclass(frozen=True)
class TotalVariationBound(HiddenSteps):
    """A: eps0-LDP messages of one randomizer whose laws at any two records have total variation at most beta.

    Certified, in both directions, for messages that adapt within the round, at any rate up to 1.

    Args:
      step_cover: cover of the unit. epsilon0: nats, in (0, 50].
      total_variation: beta, in (0, 1]; no constraint above (p - 1)/(p + 1).
      neg_log_tail: -log of the negligible mass, in [1, 1e4].

    Raises:
      ValueError, TypeError: an argument outside its range.
    """

    step_cover: StepCover
    epsilon0: float
    total_variation: float
    neg_log_tail: float
    witnesses: tuple[Witness, ...] = ()

    name = "clones (of a total variation)"

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.real(0.0, 1.0, "(]", total_variation=self.total_variation)

    @property
    def law(self) -> equal_steps.StepLaw:
        """The dominating step t*_beta."""
        beta = min(self.total_variation, most_total_variation(self.epsilon0))
        return total_variation_law(self.epsilon0, beta)


@dataclasses.dataclass(frozen=True)
class KaryBound(HiddenSteps):
    """t_k: messages of k-ary randomized response, whose labels may be permuted adaptively within the round.

    Certified, in both directions, at any rate up to 1.

    Args:
      step_cover: cover of the unit. epsilon0: nats, in (0, 50]. num_values: k, whole, in [2, 2^42].
      neg_log_tail: -log of the negligible mass, in [1, 1e4].

    Raises:
      ValueError, TypeError: an argument outside its range.
    """

    step_cover: StepCover
    epsilon0: float
    num_values: int
    neg_log_tail: float

    name = "own-laws (k-ary randomized response)"

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer(2, 2**42, num_values=self.num_values)

    @property
    def law(self) -> equal_steps.StepLaw:
        """The dominating step t_k."""
        p_minus_1 = math.expm1(self.epsilon0)
        each = 1.0 / (p_minus_1 + self.num_values)
        return equal_steps.StepLaw(host(each), host(0.0), host(p_minus_1 * each))

    @property
    def chi_square(self) -> float:
        # With all others at a third record, or at one of the two records.
        each = 1.0 / (math.expm1(self.epsilon0) + self.num_values)
        variance = each * (2.0 if self.num_values > 2 else 1.0 + math.exp(-self.epsilon0))
        return self.step_cover.chi_square(self.epsilon0, variance, self.neg_log_tail)

    @functools.cached_property
    def _found(self) -> tuple[Witness, ...]:
        mass, draws = self.neg_log_tail, self.step_cover.draws(self.neg_log_tail)
        if draws is None:
            return ()
        if self.num_values == 2:
            return (_opposed(self),)
        p = math.exp(self.epsilon0)
        each = 1.0 / (math.expm1(self.epsilon0) + self.num_values)
        present, away = draws.rate * (1.0 - 2.0 * each), 1.0 - draws.rate
        ones = np.ones_like(draws.number)
        law = clones.MixtureLaw(
            host(draws.number),
            host(2.0 * draws.rate * each * ones),
            host(away / (away + present) * ones),
            host((self.num_values - 2.0) / (p + self.num_values - 3.0) * ones),
            host(draws.number * (1.0 - draws.use_prob) / draws.use_prob),
            host(draws.use_prob),
            host(draws.weight),
            host(ones),
        )
        mixture = Mixture(law, self.epsilon0, mass, coarsest=_BUCKETS)
        name = "k-ary randomized response, all others at a third record"
        labels = equal_draws(self.step_cover, third_record_laws(self.epsilon0, self.num_values), mass)
        return (OfMixture(self, mixture, name, equal_draws=labels),)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return self._found


@dataclasses.dataclass(frozen=True)
class OneBitCheckIn(HiddenSteps):
    """B0: one-bit messages in shuffled check-in at a rate below one. Certified, in both directions.

    A message may depend on messages of earlier rounds, not on other messages of its own round. Where A is smaller, at
    the bits' total variation, it is A.

    Args:
      step_cover: shuffled check-in, or a pool (B0h). epsilon0: nats, in (0, 50].
      neg_log_tail: -log of the negligible mass, in [1, 1e4].
      differ: upper bound on the probability, over the public coins, that the bits of two records differ; in (0, 1].
        Below 1 (B_nu) there are no witnesses.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """

    step_cover: StepCover
    epsilon0: float
    neg_log_tail: float
    differ: float = 1.0

    name = "own-laws (one bit)"

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.real(0.0, 1.0, "(]", differ=self.differ)
        if not isinstance(self.step_cover, ClientPool):
            cover = _validate.instance(Shuffled, step_cover=self.step_cover)
            _validate.real(0.0, 1.0, "()", rate=cover.rate)

    @property
    def law(self) -> equal_steps.StepLaw:
        """The dominating step of A."""
        return total_variation_law(self.epsilon0, self.differ * most_total_variation(self.epsilon0))

    @property
    def chi_square(self) -> float:
        variance = self.differ * math.exp(-self.epsilon0)
        return self.step_cover.chi_square(self.epsilon0, variance, self.neg_log_tail)

    def evaluated(self) -> tuple[np.ndarray, np.ndarray]:
        losses, plain = super().evaluated()
        message = Message(host(self.epsilon0), host(self.differ))
        assert isinstance(self.step_cover, Shuffled | ClientPool)
        value = self.step_cover.of_bits(message, losses, plain, self.neg_log_tail)
        return losses, np.minimum(plain, value)

    @functools.cached_property
    def _found(self) -> tuple[Witness, ...]:
        if self.differ < 1.0:
            return ()
        return (_opposed(self),)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return self._found


def _opposed(bound: KaryBound | OneBitCheckIn) -> Binary:
    """Witness: binary randomized response, all others at the opposite record."""
    cover, epsilon0, neg_log_tail = bound.step_cover, bound.epsilon0, bound.neg_log_tail
    labels = equal_draws(cover, binary_laws(epsilon0), neg_log_tail)
    return Binary(bound, cover.messages(epsilon0, neg_log_tail), epsilon0, neg_log_tail, equal_draws=labels)


def fair_bits(
    grid_bound: UnitBound, step_cover: StepCover, epsilon0: float, neg_log_tail: float
) -> OfMixture:
    """Witness: opposite records among zero updates, whose messages, like dummies, are fair bits. Symmetric.

    The likelihood ratio depends on the sum of the bits only, which is observed even where the number of messages is
    not.
    """
    # Shares of the base law in units of the rarer bit's: e^epsilon0, 1, and 1 / (2 rare) for absent clients.
    draws, rare = step_cover.draws(neg_log_tail), 1.0 / (1.0 + math.exp(epsilon0))
    assert draws is not None
    ones = np.ones_like(draws.number)
    law = clones.MixtureLaw(
        host(draws.number),
        host(draws.rate * ones),
        host(ones),
        host(0.0 * ones),
        host(draws.number * (1.0 - draws.use_prob) / draws.use_prob / (2.0 * rare)),
        host(draws.use_prob * (2.0 * rare)),
        host(draws.weight),
        host(0.5 / rare * ones),
    )
    mixture = Mixture(law, epsilon0, neg_log_tail, coarsest=_BUCKETS)
    labels = equal_draws(step_cover, binary_laws(epsilon0, np.full(2, 0.5)), neg_log_tail)
    return OfMixture(grid_bound, mixture, FAIR_BITS, equal_draws=labels)
