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

from checkin_jax.accounting.bounds.interface import Witness
from checkin_jax.accounting.bounds.messages.profile_cover_sums import HiddenSum, above_place
from checkin_jax.accounting.bounds.messages.subsampling import SubsampledMessages, averaged
from checkin_jax.accounting.bounds.profiles import TINY, GaussianProfile, Profile
from checkin_jax.kernels import ROUNDING, binomial, host
from checkin_jax.numerics.counts import chernoff, poisson_binomial

# Most loads that are told apart.
_LOADS = 48
# Standard deviations by which the mean of a Poisson number of clients is below n.
_FEWER = np.linspace(0.25, 8.0, 32)


class PoissonClients(NamedTuple):
    """A Poisson number of clients in the place of n: the bound is `mass` times that on independent loads.

    Attributes:
      mass: inverse of a probability, at least one. clients: least number that is counted, at most n.
      load: mean load of a slot.
    """

    mass: float
    clients: float
    load: float


def poisson_clients(num_clients: int, num_slots: int, prob: float) -> PoissonClients:
    """The number of participants, or of all clients, as a Poisson number, whichever bound is expected to be smaller.

    Pr[Bin(n, p) = k] is largest relative to the Poisson law at k = 1 + floor(n p), and there at most
    sqrt(n/(n - k)) e^(1/(12 n)) times as large. A Poisson number of all clients is between `clients` and n with
    probability 1/mass.
    """
    n, found = float(num_clients), []
    absent = n - 1.0 - math.floor(n * prob * (1.0 + 1e-15))
    if absent >= 1.0:
        found.append(PoissonClients(math.sqrt(n / absent) * math.exp(1.0 / n), n, n * prob / num_slots))
    means = n - _FEWER * math.sqrt(n)
    least = np.ceil(2.0 * means - n)
    means, least = means[least >= 2.0], least[least >= 2.0]
    within = 1.0 - chernoff.more_than(n, means) - chernoff.fewer_than(least, means)
    for mean, fewest, prob_within in zip(means.tolist(), least.tolist(), within.tolist()):
        if prob_within > 0.0:
            found.append(PoissonClients(1.0 / prob_within, fewest, mean * prob / num_slots))
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


@dataclasses.dataclass(frozen=True)
class HiddenAverages(HiddenSum):
    """T* for averaged slots, view `aggregate`, or G4 where that is smaller; one record is replaced.

    Attributes:
      num_clients, num_slots, prob: n, m and p_0 < 1. summed: profile of a sum of k messages.
      neg_log_tail: -log of the negligible mass.
    """

    num_clients: int
    num_slots: int
    prob: float
    summed: Callable[[int], Profile]
    neg_log_tail: float
    witnesses: tuple[Witness, ...] = ()

    @property
    def name(self) -> str:
        return "profile (averages)" if self._gaussian is None else "profile (Gaussian averages)"

    @property
    def _gaussian(self) -> GaussianProfile | None:
        """Profile of one message if its noise is Gaussian."""
        one = self.summed(1)
        return one if isinstance(one, GaussianProfile) else None

    @functools.cached_property
    def _clients(self) -> PoissonClients:
        return poisson_clients(self.num_clients, self.num_slots, self.prob)

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
        return super().hidden() * self._clients.mass * (1.0 + ROUNDING)

    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        choices, gaussian = (self.num_clients, self.num_slots, self.prob), self._gaussian
        if gaussian is not None:
            return averaged(*choices, gaussian.mu, self.neg_log_tail).upper(losses)
        counted = averaged(*choices, 1.0, self.neg_log_tail)
        return SubsampledMessages(counted, self.prob, self.summed).upper(losses)
