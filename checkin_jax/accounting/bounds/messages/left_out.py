"""The bound "everybody" for Gaussian messages (E*): r clients are left out, to hide the displaced client.

All clients send (rate 1), so the displaced client's message has to be accounted for. It joins those of the r clients
left out, and r + 1 shuffled messages hide each of their clients [docs/theory_gaussian.md, 1c]. Their bound is the same
bound for r + 1 clients: a chain that ends at one message. Call inside `devices.float64()`.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.full_participation import AllCut, TabulatedMessages
from checkin_jax.accounting.bounds.interface import LocalGaussian, UnitBound, Values, Witness
from checkin_jax.accounting.bounds.messages.gaussian_cover import TwoLawSlots, serves
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.kernels import ROUNDING

# Shares of the clients that may be left out (powers, so that plans share subproblems), and the fewest.
_SHARES, _FEWEST = tuple(0.5**power for power in range(1, 9)), 16
_LINKS = 4
# Exponents. _ALLOWED: allowed cost of leaving out, below exp(17 - neg_log_tail), about delta over the rounds.
# _LESS: how much less a chain may cost than the next longer one. _ROOM: negligible masses below the allowed cost.
_ALLOWED, _LESS, _ROOM = 7.0, 2.0, 5.0
# Larger allowed costs that are tried, as exponents; a chain is used if it has _MORE_TERMS times as many terms.
_MORE_COST, _LEAST_ALLOWED, _MORE_TERMS = (7.0, 14.0, 21.0), 8.0, 1.15
# The largest factor with which a chain is continued.
_MOST = 10.0
# Number of losses at which a profile is searched, and the largest.
_SEARCHED, _FAR = 4096, 40.0


def _factor(upper: Callable[[np.ndarray], Values], losses: np.ndarray, allowed: float) -> float:
    """The least B = e^loss of these with D(B) <= exp(-allowed), D = `upper` falling; infinite if there is none."""
    least = math.exp(-allowed)
    first = bisect.bisect_left(losses, True, key=lambda loss: float(upper(np.array([loss]))[0]) <= least)
    return math.exp(losses[first]) if first < losses.size else math.inf


class _Link(NamedTuple):
    """Number of clients left out, and the approximate factor by which the messages are then distinguished."""

    left_out: int
    factor: float


@functools.lru_cache(maxsize=256)
def _plan(num_clients: int, mu: float, allowed: float) -> tuple[_Link, ...]:
    """The chain expected to be best, from n clients down. Every plan gives a valid bound."""
    one = _factor(GaussianProfile(mu).delta, np.linspace(0.0, _FAR, _SEARCHED)[1:], allowed)
    # Approximate variance of T*, times 2 allowed.
    square = 4.0 * allowed * math.expm1(min(mu**2, 600.0))

    @functools.cache
    def by_cut(clients: int) -> float:
        """B by G2, rather above: the numbers of clones of the two records differ by chance only."""
        epsilon0 = AllCut(clients, LocalGaussian(1.0, mu), allowed + 17.0).cut(allowed)
        chance = 1.3 * math.sqrt(allowed * math.exp(epsilon0) / clients) if epsilon0 is not None else math.inf
        return (1.0 + chance) / (1.0 - chance) if chance < 1.0 else math.inf

    @functools.cache
    def best(clients: int, links: int) -> tuple[_Link, ...]:
        found = (_Link(0, math.inf),)
        for share in (0.0, *_SHARES):
            left_out = int(share * clients)
            if 0 < left_out < _FEWEST:
                break
            inner, rest = one, ()
            if left_out:
                inner = by_cut(left_out + 1)
                chained = best(left_out + 1, links - 1) if links > 1 else ()
                # The cost of leaving out grows with the factor.
                if chained and chained[0].factor < min(inner, _MOST):
                    inner, rest = chained[0].factor, chained
            terms = max((clients - 1.0 - left_out) / min(inner, one), 1e-300)
            factor = 1.0 + math.sqrt(square / terms) + one / terms
            if factor < found[0].factor:
                found = (_Link(left_out, factor), *rest)
        return found

    return best(num_clients, _LINKS)


@dataclasses.dataclass(frozen=True)
class _Chain(TabulatedMessages):
    """n shuffled messages of n clients: (1/k) E(T*_1 + ... + T*_k)_+ + c D(1) D_r(N/k), N = n - 1 - r. Symmetric.

    D_r is this bound for r + 1 clients, D_0 the profile of one message.

    Attributes:
      plan: r, then the number left out of r + 1 clients, and so on. The chain ends with G2, or, after r = 0, with one
        message.
      allowed: k is the largest with D_r(N/k) <= exp(-allowed).
      two: True if T** replaces T*.
    """

    num_clients: int
    mu: float
    plan: tuple[_Link, ...]
    allowed: float
    two: bool = False

    name = "everybody"
    witnesses: tuple[Witness, ...] = ()

    @property
    def alone(self) -> LocalGaussian:  # type: ignore[override]
        return LocalGaussian(1.0, self.mu)

    @property
    def _left(self) -> int:
        """N."""
        return self.num_clients - 1 - self.plan[0].left_out

    @functools.cached_property
    def _inner_bound(self) -> UnitBound:
        """D_r."""
        clients = self.plan[0].left_out + 1
        allowed = self.allowed + _LESS + math.log(min(self.plan[0].factor, _MOST))
        if clients == 1:
            return self.alone
        if len(self.plan) == 1:
            return AllCut(clients, self.alone, allowed + 17.0)
        return _Chain(clients, self.mu, self.plan[1:], allowed)

    def _inner_upper(self, losses: np.ndarray) -> np.ndarray:
        return np.asarray(self._inner_bound.upper(losses)) * (1.0 + ROUNDING)

    @functools.cached_property
    def _sum(self) -> HiddenSlots | None:
        """The sum of k terms; None if k = 0."""
        losses = np.concatenate([[0.0], np.geomspace(1e-6, _FAR, _SEARCHED)])
        kept = math.floor(self._left / _factor(self._inner_upper, losses, self.allowed))
        if kept < 1:
            return None
        law = TwoLawSlots if self.two and serves(kept, self.mu) else HiddenSlots
        return law(kept, 1.0, GaussianProfile(self.mu), max(self.allowed + _ROOM, 1.0))

    @property
    def terms(self) -> int:
        """k, to whose root epsilon is about inversely proportional."""
        return 0 if self._sum is None else self._sum.slots

    @functools.cached_property
    def _cost(self) -> float:
        """Upper bound on D(1) D_r(N/k)."""
        assert self._sum is not None
        ratio = self._left / self._sum.slots
        # Rounded down, since D_r falls.
        loss = np.array([0.0, max(math.log(ratio) * (1.0 - 1e-14) - 1e-15, 0.0)])
        apart = float(GaussianProfile(self.mu).delta(loss[:1])[0])
        return apart * float(self._inner_upper(loss)[1]) * (1.0 + ROUNDING)

    def _table(self) -> tuple[np.ndarray, np.ndarray] | None:
        if self._sum is None:
            return None
        losses = self._sum.losses
        return losses, (np.asarray(self._sum.upper(losses)) + np.exp(losses) * self._cost) * (1.0 + ROUNDING)


@functools.lru_cache(maxsize=64)
def _chain(num_clients: int, mu: float, allowed: float) -> _Chain:
    return _Chain(num_clients, mu, _plan(num_clients, mu, allowed), allowed, True)


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """E*: shuffled Gaussian messages, all n clients' (rate 1), none depending on another of its round. Symmetric.

    For every r <= n - 2 and k <= N = n - 1 - r, with D the profile of one message and D_r that of r + 1 shuffled ones,

        H_c <= (1/k) E( T*_1 + ... + T*_k )_+ + c D(1) D_r(N/k)

    with T* as in shuffled check-in, or replaced by T**. r and k make the second term small. D_r is this bound for r + 1
    clients.

    Attributes:
      num_clients: n >= 2. mu: of one message, at most MOST_HIDDEN_MU. neg_log_tail: -log of the negligible mass.
    """

    num_clients: int
    mu: float
    neg_log_tail: float

    name = "everybody (Gaussian messages)"
    largest_loss = math.inf

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return AllCut(self.num_clients, LocalGaussian(1.0, self.mu), self.neg_log_tail).witnesses

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return np.min([chain.upper(loss) for chain in self._chains], axis=0)

    @functools.cached_property
    def _chains(self) -> list[_Chain]:
        """Chains of ever more terms: where the divergence is larger, leaving out may cost more."""
        allowed = max(self.neg_log_tail - 17.0, 1.0) + _ALLOWED
        found = [_chain(self.num_clients, self.mu, allowed)]
        for less in _MORE_COST:
            if allowed - less < _LEAST_ALLOWED or found[-1].terms * _MORE_TERMS > self.num_clients:
                break
            chain = _chain(self.num_clients, self.mu, allowed - less)
            if chain.terms > _MORE_TERMS * found[-1].terms:
                found.append(chain)
        return found
