"""Subsampling: a client's message is used by chance, and nothing else is taken to hide it.

A public label tells how likely the client's message is among those that are used, and how loud it is there, so that

    H_c <= sum over labels of weight D(1 + (c - 1)/q),    in both directions,

D the profile of one message there, q the chance, and weight the mean of q over the label [BBG18, Theorem 2]. Bounds
differ in the law of the label. docs/accounting.md, docs/theory_allocation.md. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from jax import Array

from checkin_jax.accounting.bounds.interface import Instance, Lines, UnitBound, bucket_count
from checkin_jax.accounting.bounds.profiles import TINY, Profile
from checkin_jax.kernels import ROUNDING, binomial, host
from checkin_jax.kernels.messages import subsampled_gaussian
from checkin_jax.kernels.messages.subsampled_gaussian import GaussianBuckets
from checkin_jax.numerics.counts.pools import Pool


class Subsampled:
    """A bound on Gaussian messages by a law of labels: mu, 1/q and weight of each, and the weight that is left out."""

    mixture: GaussianBuckets

    top = math.inf

    def upper(self, loss: np.ndarray) -> np.ndarray:
        flat = np.ravel(np.asarray(loss, dtype=np.float64))
        return np.reshape(subsampled_gaussian.profile_upper(self.mixture, flat), np.shape(loss))


@dataclasses.dataclass(frozen=True, eq=False)
class SubsampledGaussian(Subsampled):
    """Gaussian messages by a law of labels that is known: mixture.

    What the mixture leaves out happens in a public event in which a message leaks no more than by itself.
    """

    mixture: GaussianBuckets
    name: str = "subsampling"
    instances: tuple[Instance, ...] = ()


def sometimes(used: float, mu: float, rest: float = 0.0) -> SubsampledGaussian:
    """The client's message is used with probability at most `used`, all else revealed; a record is replaced (R1).

    rest: the probability of a public event in which it may be used for certain, counted as lost.
    """
    return SubsampledGaussian(GaussianBuckets(host([mu]), host([1.0 / used]), host([used]), host(rest)))


def loaded_slot(
    seen: float, prob: float, others: int, pick: float, mu: float, log_inverse_mass: float
) -> SubsampledGaussian:
    """A message is added or removed where dummies are hidden, its slot and the slot's load revealed (R1').

    With k ~ Bin(others, pick) other clients in the slot the client is shown with probability prob / (k + 1), in place
    of the dummy (shift mu/2) if k = 0, else of another client (shift at most mu):

        H_c <= seen prob E_k[ delta_G(mu_k, log(1 + (c - 1) (k + 1) / prob)) / (k + 1) ],    in both directions.

    Args:
      seen: the probability that the client's slot is shown at all. prob: that the client is in it.
      others, pick: how many others may be in that slot, each with probability `pick`.
      mu: 2 / noise_multiplier. log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter.

    Proof: docs/theory_allocation.md, section 1.
    """
    number = float(others)
    cut = binomial.cells(
        host(number), host(pick), host(log_inverse_mass), buckets=bucket_count(number * pick)
    )
    first, last = (np.minimum(np.asarray(part), number) for part in (cut.first, cut.last))
    # The bound falls with k >= 1, so that a bucket takes its first; 0 is a label of its own.
    count = np.append(0.0, np.maximum(first, 1.0))
    empty = math.exp(number * math.log1p(-pick)) if pick < 1.0 else float(number == 0.0)
    mass = np.append(empty * (1.0 + 1e-9), np.where(last >= 1.0, np.asarray(cut.mass_upper), 0.0))
    mixture = GaussianBuckets(
        host(np.where(count == 0.0, 0.5 * mu, mu)),
        host((count + 1.0) / prob),
        host(seen * prob * mass / (count + 1.0)),
        host(seen * prob * float(cut.tail)),
    )
    return SubsampledGaussian(mixture)


def averaged(
    num_clients: int,
    num_slots: int,
    prob: float,
    mu: float,
    log_inverse_mass: float,
    sharing: Pool | None = None,
) -> SubsampledGaussian:
    """Averages of all messages of a slot, a record replaced: p_0 E delta_G(mu / sqrt(k), eps), symmetric (G4).

    k - 1 ~ Bin(n - 1, p_0 / m) is how many others share the slot; everything but the noise is revealed.

    Args:
      num_clients, num_slots, prob: n, m and p_0. mu: 2 / noise_multiplier.
      sharing: the law of k - 1, from below, where the others' rates differ.
    """
    if sharing is not None:
        first, tail = sharing.sizes + 1.0, 0.0
        weight = prob * (1.0 + ROUNDING) * sharing.masses
    else:
        others, rate = float(num_clients - 1), prob / num_slots
        cut = binomial.cells(
            host(others), host(rate), host(log_inverse_mass), buckets=bucket_count(others * rate)
        )
        first, tail = np.minimum(np.asarray(cut.first), others) + 1.0, prob * float(cut.tail)
        weight = prob * np.asarray(cut.mass_upper)
    mixture = GaussianBuckets(host(mu / np.sqrt(first)), host(np.ones_like(first)), host(weight), host(tail))
    return SubsampledGaussian(mixture, "subsampling (noise of the sum)")


@dataclasses.dataclass(frozen=True)
class ShuffledGaussian(Subsampled):
    """Shuffled check-in at one rate (G1); below, the sum, a post-processing of the messages."""

    num_clients: int
    rate: float
    mu: float
    summed: bool
    log_inverse_mass: float

    @property
    def name(self) -> str:
        return "subsampling (noise of the sum)" if self.summed else "subsampling"

    @property
    def instances(self) -> tuple[Instance, ...]:
        summed = self if self.summed else dataclasses.replace(self, summed=True)
        return (GaussianSum(summed, summed),)

    def arguments(self) -> tuple[Array, Array, Array, Array, int]:
        """n, rate, mu and mass for the kernels, and how many buckets to cut into."""
        buckets = bucket_count(self.num_clients * self.rate)
        n, rate, mu, mass = (host(v) for v in (self.num_clients, self.rate, self.mu, self.log_inverse_mass))
        return n, rate, mu, mass, buckets

    @functools.cached_property
    def mixture(self) -> GaussianBuckets:  # type: ignore[override]
        return subsampled_gaussian.buckets_upper(*self.arguments(), self.summed)

    @functools.cached_property
    def mixture_below(self) -> GaussianBuckets:
        """The sum's mixture from below."""
        return subsampled_gaussian.buckets_lower(*self.arguments(), True)


@dataclasses.dataclass(frozen=True)
class GaussianSum:
    """The sum of Gaussian messages with all other clients at one record."""

    scale: UnitBound
    messages: ShuffledGaussian

    name = "subsampled Gaussian sum, all others at one record"
    symmetric = False
    below_scale = True

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        return subsampled_gaussian.lines_lower(self.messages.mixture_below, loss)


@dataclasses.dataclass(frozen=True, eq=False)
class SubsampledMessages:
    """Messages of any privacy profile, by the visible number of messages alone.

    Attributes: counted: whose labels tell how likely the client is among those who come; their noise is not asked for.
    rate: with which the client sends. profile: of one message.
    """

    counted: Subsampled
    rate: float
    profile: Profile
    instances: tuple[Instance, ...] = ()

    name = "subsampling"

    @property
    def top(self) -> float:
        return self.profile.top

    def upper(self, loss: np.ndarray) -> np.ndarray:
        shape = np.shape(loss)
        losses, mix = np.asarray(loss, dtype=np.float64).ravel(), self.counted.mixture
        inverse, weight = np.asarray(mix.inverse_rate)[:, None], np.asarray(mix.weight)
        with np.errstate(divide="ignore"):
            above = np.log(np.expm1(losses))[None, :]
        # log(1 + (c - 1) / q)
        stretched = np.logaddexp(above + np.log(inverse), 0.0)
        value = weight @ self.profile.delta(stretched) * (1.0 + ROUNDING) + float(mix.tail) + TINY
        alone = self.rate * self.profile.delta(losses) * (1.0 + ROUNDING)
        return np.where(losses >= self.top, 0.0, np.minimum(value, alone)).reshape(shape)
