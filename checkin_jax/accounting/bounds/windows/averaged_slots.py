"""profile (T*) for averaged slots of which only the averages are seen: the noise of a slot's messages adds up.

Given the loads, the participants are a uniform ordered sample. A slot of L messages counts as one message of weight L
with noise z sqrt(L), since the terms of its clients are at most comonotone. Loads are those of a Poisson number of
clients. Proof: docs/theory_gaussian.md, 1e. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import UnitBound, Witness
from checkin_jax.accounting.bounds.messages.profile_cover_sums import HiddenSum, above_place
from checkin_jax.accounting.bounds.profiles import TINY, GaussianProfile, Profile
from checkin_jax.accounting.bounds.unequal.pool_cover import PoolSizes
from checkin_jax.kernels import ROUNDING, binomial, host
from checkin_jax.numerics.counts import chernoff, poisson_binomial

# Most loads that are told apart.
_LOADS = 48
# Most probability of too few clients, in units of the negligible mass.
_MISSING = 4.0
# Standard deviations by which the mean of a Poisson number of clients is below n.
_FEWER = np.linspace(0.25, 8.0, 32)


class PoissonClients(NamedTuple):
    """A Poisson number of clients in the place of n: the bound is `mass` times that on independent loads.

    Attributes:
      mass: mean inverse of a probability. clients: least number that is counted.
      load: mean load of a slot. missing: probability that there are not so many clients.
    """

    mass: float
    clients: float
    load: float
    missing: float = 0.0


def poisson_clients(others: PoolSizes, num_slots: int, prob: float, neg_log_tail: float) -> PoissonClients:
    """The number of participants, or of all clients, as a Poisson number, whichever bound is expected to be smaller.

    Pr[Bin(n, p) = k] is largest relative to the Poisson law at k = 1 + floor(n p), and there at most
    sqrt(n/(n - k)) e^(1/(12 n)) times as large. A Poisson number of all clients is between `clients` and n with
    some probability, whose inverse is averaged over n.

    Args:
      others: law of the number of clients but the target, stochastically from below.
    """
    sizes, masses = others.sizes[:, None] + 1.0, others.masses[:, None]
    n, found = others.mean + 1.0, []
    absent = n - 1.0 - math.floor(n * prob * (1.0 + 1e-15))
    if sizes.size == 1 and absent >= 1.0:
        found.append(PoissonClients(math.sqrt(n / absent) * math.exp(1.0 / n), n, n * prob / num_slots))
    # A Poisson number M of each of these means, that is counted from each of these least values on.
    means, least = np.meshgrid(n - _FEWER * math.sqrt(n), _FEWER * math.sqrt(n), indexing="ij")
    least = np.ceil(means - least)
    means, least = means[least >= 2.0], least[least >= 2.0]
    within = chernoff.at_most(sizes, means) - chernoff.fewer_than(least, means)
    enough = within > 0.0
    inverse = np.where(enough, masses / np.where(enough, within, 1.0), 0.0).sum(axis=0) * (1.0 + 1e-14)
    missing = np.where(enough, 0.0, masses).sum(axis=0) * (1.0 + 1e-14)
    for mean, fewest, mass, rest in zip(*(each.tolist() for each in (means, least, inverse, missing))):
        if rest <= _MISSING * math.exp(-neg_log_tail):
            found.append(PoissonClients(mass, fewest, mean * prob / num_slots, rest))
    return min(found, key=lambda each: each.mass / each.clients, default=PoissonClients(math.inf, n, 1.0))


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedSteps:
    """The centred step of a slot, in units of the mean load, as a profile: a mixture over the load L of L tau_L.

    tau_L is the step of a message with noise z sqrt(L). All loads of a range count with the weight of the largest, and
    with the noise of the smallest.

    Attributes:
      sizes: largest load of each range, in units of the mean load. profiles: of a sum of as many as the smallest load.
      probs: rounded up.
    """

    sizes: np.ndarray
    profiles: tuple[Profile, ...]
    probs: np.ndarray

    name = "averages"
    largest_loss = math.inf

    def delta(self, loss: np.ndarray) -> np.ndarray:
        place = np.expm1(np.asarray(loss, dtype=np.float64))
        shares = self.sizes * self.probs
        parts = zip(shares, self.sizes, self.profiles)
        found = np.full(place.shape, TINY)
        for share, size, each in parts:
            found = found + share * each.delta(np.log1p(place / size))
        return found

    def above_place(self, losses: np.ndarray, places: np.ndarray) -> np.ndarray:
        """E(d - place)_+, d the step at c = e^loss; broadcasts."""
        shares = self.sizes * self.probs
        parts = zip(shares, self.sizes, self.profiles)
        found = np.zeros(np.broadcast_shapes(np.shape(losses), np.shape(places)))
        for share, size, each in parts:
            found = found + share * above_place(each, losses, places / size)
        return found


def loaded_steps(
    load: float, summed: Callable[[int], Profile], neg_log_tail: float
) -> tuple[LoadedSteps, float]:
    """Steps of a slot with a Poisson load of this mean, and the probability of loads that are left out."""
    law = poisson_binomial.poisson_law(load, neg_log_tail)
    size = law.values.size
    ends = binomial.edges(host(0.0), host(size - 1.0), host(load - law.first), host(math.sqrt(load)), _LOADS)
    start, stop = (np.asarray(end).astype(np.int64) for end in ends)
    start = start[(stop >= start) & (start < size)]
    probs = np.add.reduceat(law.run_upper, start)
    first = law.first + law.stride * start
    last = np.append(first[1:] - 1.0, law.last)
    # A slot without messages has no step.
    seen = last > 0.0
    first, last, probs = np.maximum(first[seen], 1.0), last[seen], probs[seen]
    profiles = tuple(summed(int(each)) for each in first)
    return LoadedSteps(last / load, profiles, probs), law.below + law.above


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenAverages(HiddenSum):
    """T*' for averaged slots, view `aggregate`, or G4 where that is smaller; one record is replaced.

    Attributes:
      others: law of the number of others with rate `prob`, stochastically from below; num_slots, prob: m and p_0 < 1.
      ratio: of the target's rate to p_0, at most one. summed: profile of a sum of k messages.
      alone: G4, a bound by the target's slot alone. neg_log_tail: -log of the negligible mass.
    """

    others: PoolSizes
    num_slots: int
    prob: float
    ratio: float
    summed: Callable[[int], Profile]
    alone: UnitBound
    neg_log_tail: float
    witnesses: tuple[Witness, ...] = ()

    @property
    def name(self) -> str:
        gaussian = isinstance(self.summed(1), GaussianProfile)
        return "profile (Gaussian averages)" if gaussian else "profile (averages)"

    @functools.cached_property
    def _clients(self) -> PoissonClients:
        return poisson_clients(self.others, self.num_slots, self.prob, self.neg_log_tail)

    @property
    def gains(self) -> bool:
        """True if a Poisson number of clients can stand for n."""
        return math.isfinite(self._clients.mass)

    @functools.cached_property
    def _loaded(self) -> tuple[LoadedSteps, float]:
        return loaded_steps(self._clients.load, self.summed, self.neg_log_tail + math.log(self.num_slots))

    @property
    def profile(self) -> LoadedSteps:  # type: ignore[override]
        return self._loaded[0]

    @property
    def terms(self) -> tuple[float, float, float]:
        # Rounded down, since the bound falls with the number of clients.
        return self._clients.clients / self._clients.load * (1.0 - 1e-15), float(self.num_slots), 1.0

    @property
    def _rest(self) -> float:
        """Probability that all clients take part, or that a load is left out."""
        return math.exp(self._clients.clients * math.log(self.prob)) + self.num_slots * self._loaded[1]

    def _right(self, losses: np.ndarray, places: np.ndarray) -> np.ndarray:
        return self.profile.above_place(losses, places)

    def _seldom(self, losses: np.ndarray) -> np.ndarray:
        return self.summed(1).delta(losses)

    def hidden(self) -> np.ndarray:
        found = super().hidden() * self._clients.mass + self._clients.missing * self._seldom(self.losses)
        return found * self.ratio * (1.0 + ROUNDING)

    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        return np.asarray(self.alone.upper(losses))
