"""subsampling: the target's message is used with some probability; other messages are not counted as hiding it.

Given a public label, the target's message is used with probability q, and its profile is D. So in both directions

    H_c <= sum over labels of weight D(1 + (c - 1)/q),

where weight is the mean of q on the label [BBG18, Theorem 2]. Bounds differ in the law of the label. Proofs:
docs/accounting.md, docs/theory_allocation.md. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array

from checkin_jax.accounting.bounds.interface import Lines, UnitBound, Witness, bucket_count
from checkin_jax.accounting.bounds.profiles import TINY, Profile
from checkin_jax.accounting.bounds.unequal.pool_cover import PoolSizes
from checkin_jax.kernels import ROUNDING, binomial, host
from checkin_jax.kernels.messages import subsampled_gaussian
from checkin_jax.kernels.messages.subsampled_gaussian import GaussianBuckets

# Numbers of messages within this share of the least one have its profile; share, and runs, where profiles cost little.
_ALIKE, _NEARLY, _RUNS = 0.02, 0.01, 16


class Subsampled:
    """Base of bounds on Gaussian messages by a mixture over labels: mu, 1/q, weights, and the missing weight."""

    mixture: GaussianBuckets

    largest_loss = math.inf

    def upper(self, loss: np.ndarray) -> np.ndarray:
        flat = np.ravel(np.asarray(loss, dtype=np.float64))
        return np.reshape(subsampled_gaussian.profile_upper(self.mixture, flat), np.shape(loss))


@dataclasses.dataclass(frozen=True, eq=False)
class SubsampledGaussian(Subsampled):
    """Gaussian messages with a given law of labels.

    Attributes:
      mixture: the labels. Its `tail` is the probability of a public event that counts at infinite loss.
    """

    mixture: GaussianBuckets
    name: str = "subsampling"
    witnesses: tuple[Witness, ...] = ()


def sometimes(used: float, mu: float, rest: float = 0.0) -> SubsampledGaussian:
    """R1: the target's message is used with probability at most `use_prob`, all else is revealed; replace-one.

    failure_prob: probability of a public event in which the message may certainly be used; it counts at infinite loss.
    """
    return SubsampledGaussian(GaussianBuckets(host([mu]), host([1.0 / used]), host([used]), host(rest)))


def loaded_slot(
    shown: float, prob: float, num_rivals: int, rival_prob: float, mu: float, neg_log_tail: float
) -> SubsampledGaussian:
    """R1': add-or-remove with hidden dummies; the target's slot and the slot's load k are revealed.

    Given k ~ Bin(num_rivals, rival_prob) other clients in the slot, the slot uses the target with probability
    prob / (k + 1). The target replaces the dummy (shift mu/2) if k = 0, else another client (shift at most mu):

        H_c <= shown prob E_k[ delta_G(mu_k, log(1 + (c - 1) (k + 1) / prob)) / (k + 1) ],    in both directions.

    Args:
      shown: probability that the server outputs the target's slot. prob: probability that the target is in it.
      num_rivals, rival_prob: number of other clients that may be in that slot, each with probability `rival_prob`.
      mu: 2 / noise_multiplier. neg_log_tail: -log of the negligible mass.

    Proof: docs/theory_allocation.md, section 1.
    """
    number = float(num_rivals)
    cut = binomial.cells(
        host(number), host(rival_prob), host(neg_log_tail), buckets=bucket_count(number * rival_prob)
    )
    first, last = (np.minimum(np.asarray(part), number) for part in (cut.first, cut.last))
    # The bound decreases in k >= 1, so each bucket takes its first k; k = 0 is a label of its own.
    count = np.append(0.0, np.maximum(first, 1.0))
    empty = math.exp(number * math.log1p(-rival_prob)) if rival_prob < 1.0 else float(number == 0.0)
    mass = np.append(empty * (1.0 + 1e-9), np.where(last >= 1.0, np.asarray(cut.mass_upper), 0.0))
    mixture = GaussianBuckets(
        host(np.where(count == 0.0, 0.5 * mu, mu)),
        host((count + 1.0) / prob),
        host(shown * prob * mass / (count + 1.0)),
        host(shown * prob * float(cut.tail)),
    )
    return SubsampledGaussian(mixture)


def averaged(
    num_clients: int,
    num_slots: int,
    prob: float,
    mu: float,
    neg_log_tail: float,
    sharing: PoolSizes | None = None,
) -> SubsampledGaussian:
    """G4: averages of all messages of a slot, replace-one: H_c <= p_0 E delta_G(mu / sqrt(k), log c). Symmetric.

    k - 1 ~ Bin(n - 1, p_0 / m) is the number of other clients in the target's slot. Everything except the noise is
    revealed.

    Args:
      num_clients, num_slots, prob: n, m and p_0. mu: 2 / noise_multiplier.
      sharing: a law stochastically below k - 1, if the others' rates differ.
    """
    if sharing is not None:
        first, tail = sharing.sizes + 1.0, 0.0
        weight = prob * (1.0 + ROUNDING) * sharing.masses
    else:
        others, rate = float(num_clients - 1), prob / num_slots
        cut = binomial.cells(
            host(others), host(rate), host(neg_log_tail), buckets=bucket_count(others * rate)
        )
        first, tail = np.minimum(np.asarray(cut.first), others) + 1.0, prob * float(cut.tail)
        weight = prob * np.asarray(cut.mass_upper)
    mixture = GaussianBuckets(host(mu / np.sqrt(first)), host(np.ones_like(first)), host(weight), host(tail))
    return SubsampledGaussian(mixture, "subsampling (noise of the sum)")


@dataclasses.dataclass(frozen=True)
class ShuffledGaussian(Subsampled):
    """G1: shuffled check-in at one rate. Its witness is the sum, a post-processing of the messages.

    summed: True for the view "aggregate", where the noise of all messages adds up.
    """

    num_clients: int
    rate: float
    mu: float
    summed: bool
    neg_log_tail: float

    @property
    def name(self) -> str:
        return "subsampling (noise of the sum)" if self.summed else "subsampling"

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        summed = self if self.summed else dataclasses.replace(self, summed=True)
        return (GaussianSum(summed, summed),)

    def arguments(self) -> tuple[Array, Array, Array, Array, int]:
        """n, rate, mu and neg_log_tail for the kernels, and the number of buckets."""
        buckets = bucket_count(self.num_clients * self.rate)
        n, rate, mu, mass = (host(v) for v in (self.num_clients, self.rate, self.mu, self.neg_log_tail))
        return n, rate, mu, mass, buckets

    @functools.cached_property
    def mixture(self) -> GaussianBuckets:  # type: ignore[override]
        return subsampled_gaussian.buckets_upper(*self.arguments(), self.summed)

    @functools.cached_property
    def mixture_below(self) -> GaussianBuckets:
        """Mixture that the sum dominates, for lower bounds."""
        return subsampled_gaussian.buckets_lower(*self.arguments(), True)


@dataclasses.dataclass(frozen=True)
class GaussianSum:
    """Witness: the sum of Gaussian messages, all other clients at one record; `messages` has a `mixture_below`."""

    grid_bound: UnitBound
    messages: Any

    name = "subsampled Gaussian sum, all others at one record"
    symmetric = False
    below_grid_bound = True

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        return subsampled_gaussian.lines_lower(self.messages.mixture_below, loss)


@dataclasses.dataclass(frozen=True, eq=False)
class SubsampledMessages:
    """G1 or G1h for messages, or sums of messages, that are not Gaussian. Symmetric.

    Attributes:
      counted: bound for Gaussian messages, or their sums, of mu = 1; a label has mu = 1/sqrt(k), k the number of
        summed messages.
      rate: probability that the target sends. profile: of a sum of k messages. cheap: True if profiles cost little.
    """

    counted: Subsampled
    rate: float
    profile: Callable[[int], Profile]
    witnesses: tuple[Witness, ...] = ()
    cheap: bool = False

    name = "subsampling"

    @property
    def largest_loss(self) -> float:
        return self.profile(1).largest_loss

    @functools.cached_property
    def _runs(self) -> list[tuple[Profile, np.ndarray]]:
        """Profiles at the least numbers of messages of runs of labels, and which labels these are; [labels]."""
        numbers = np.rint(np.square(1.0 / np.asarray(self.counted.mixture.mu)))
        found, least = [], float(numbers.min())
        alike = 1.0 + _ALIKE
        if self.cheap:
            alike = 1.0 + min(_NEARLY, (float(numbers.max()) / least - 1.0) / _RUNS)
        while math.isfinite(least):
            among = (numbers >= least) & (numbers <= least * alike)
            found.append((self.profile(int(least)), among))
            least = float(np.min(numbers, where=numbers > least * alike, initial=math.inf))
        return found

    def upper(self, loss: np.ndarray) -> np.ndarray:
        losses, mix = np.ravel(np.asarray(loss, dtype=np.float64)), self.counted.mixture
        weight, inverse = np.asarray(mix.weight), np.asarray(mix.inverse_rate)
        value = np.full(losses.shape, float(mix.tail) + TINY)
        for profile, among in self._runs:
            stretched = subsampled_gaussian.stretch(host(losses[None, :]), host(inverse[among, None]))
            value += weight[among] @ profile.delta(np.asarray(stretched)) * (1.0 + ROUNDING)
        value = np.minimum(value, self.rate * self.profile(1).delta(losses) * (1.0 + ROUNDING))
        return np.where(losses >= self.largest_loss, 0.0, value).reshape(np.shape(loss))
