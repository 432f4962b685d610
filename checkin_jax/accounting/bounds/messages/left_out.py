"""The bound "everybody" (E*, E+): r clients are left out, to hide the displaced client.

All clients send (rate 1), so the displaced client's message has to be accounted for. It joins those of the r clients
left out, and r + 1 shuffled messages hide each of their clients [docs/theory_gaussian.md, 1c]. Their bound is the same
bound for r + 1 clients: a chain that ends at one message. E* is for messages of a known profile, E+ for eps0-LDP and
nearly eps0-LDP ones [docs/theory_shuffle.md]. Call inside `devices.float64()`.
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
from checkin_jax.accounting.bounds.interface import LocalGaussian, LocalMessages, UnitBound, Values, Witness
from checkin_jax.accounting.bounds.messages.gaussian_cover import TwoLawSlots, serves
from checkin_jax.accounting.bounds.messages.left_out_chain import CutWeights, end, log_square, spread
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots, OneInSlots
from checkin_jax.accounting.bounds.profiles import GaussianProfile, Profile
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import convex, left_out_clones

# Shares of the clients that may be left out (powers, so that plans share subproblems), and the fewest.
_SHARES, _FEWEST = tuple(0.5**power for power in range(1, 9)), 16
# The same where messages adapt, which makes the clients that are left out count.
_SMALLER = tuple(0.25**power for power in range(2, 11))
_LINKS = 4
# Exponents. _ALLOWED: allowed cost of leaving out, below exp(17 - neg_log_tail), about delta over the rounds.
# _LESS: how much less a chain may cost than the next longer one. _ROOM: negligible masses below the allowed cost.
_ALLOWED, _LESS, _ROOM = 7.0, 2.0, 5.0
# Larger allowed costs that are tried, as exponents; a chain is used if it has _MORE_TERMS times as many terms.
_MORE_COST, _LEAST_ALLOWED, _MORE_TERMS = (7.0, 14.0, 21.0), 8.0, 1.15
# The largest factor with which a chain is continued.
_MOST = 10.0
# `CutWeights` are tried from a spread of _WEAK on while the variance of T* times e^_FEW is below n.
_WEAK, _FEW = 0.1, 4.0
# Number of losses at which a profile is searched, and the largest.
_SEARCHED, _FAR = 4096, 40.0
# What every message reveals with certainty counts this often in the allowed cost, at least.
_CERTAINLY = 4.0
# Where messages adapt: shares of the distance that are kept for the pool, in units of sqrt(m/N), and the largest.
_POOLED, _MOST_POOLED = (1.0, 2.0, 4.0, 10.0, 30.0), 0.8


def alone(profile: Profile) -> LocalGaussian | LocalMessages:
    """Bound on one message by itself."""
    gaussian = isinstance(profile, GaussianProfile)
    return LocalGaussian(1.0, profile.mu) if gaussian else LocalMessages(1.0, profile)


def _possible(profile: Profile, allowed: float) -> float:
    """`allowed`, or less where a message reveals its record with certainty more often: nothing costs less than that."""
    certain = _CERTAINLY * float(profile.delta(np.array([_FAR]))[0])
    # Where hardly anything is hidden no plan is good, and any will do.
    return max(min(allowed, -math.log(certain)), 1.0) if certain > 0.0 else allowed


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
def _plan(num_clients: int, profile: Profile, allowed: float, adaptive: bool) -> tuple[_Link, ...]:
    """The chain expected to be best, from n clients down. Every plan gives a valid bound."""
    one = _factor(profile.delta, np.linspace(0.0, _FAR, _SEARCHED)[1:], allowed)
    # Approximate variance of T*, times 2 allowed.
    square = 4.0 * allowed * math.expm1(min(log_square(profile), 600.0))

    @functools.cache
    def by_cut(clients: int) -> float:
        """B by G2, rather above: the numbers of clones of the two records differ by chance only."""
        epsilon0 = AllCut(clients, alone(profile), allowed + 17.0).cut(allowed)
        chance = 1.3 * math.sqrt(allowed * math.exp(epsilon0) / clients) if epsilon0 is not None else math.inf
        return (1.0 + chance) / (1.0 - chance) if chance < 1.0 else math.inf

    @functools.cache
    def best(clients: int, links: int) -> tuple[_Link, ...]:
        found = (_Link(0, math.inf),)
        for share in (0.0, *(_SMALLER if adaptive else _SHARES)):
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
            distance = (
                1.0 - _POOLED[1] * math.sqrt((left_out + 1.0) / (clients - left_out)) if adaptive else 1.0
            )
            if distance < 0.5:
                continue
            factor = 1.0 + math.sqrt(square / terms) / distance + one / terms
            if factor < found[0].factor:
                found = (_Link(left_out, factor), *rest)
        return found

    return best(num_clients, _LINKS)


@dataclasses.dataclass(frozen=True)
class _Nearer(OneInSlots):
    """(1/(k d)) E(tau_1 + ... + tau_k - d k (c - 1))_+, tau = T* + c - 1, d the `distance`; k: `slots`."""

    slots: int
    distance: float
    profile: Profile
    neg_log_tail: float

    use_prob = 1.0

    @property
    def _rest(self) -> float:
        return 0.0

    @property
    def terms(self) -> tuple[float, float, float]:
        return self.slots * self.distance * (1.0 - 1e-15), float(self.slots), 1.0

    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        return np.full(np.shape(losses), math.inf)

    @property
    def last(self) -> float:
        """Loss up to which `upper` is a bound. The mean is convex in c, and may grow beyond its least value."""
        return float(self.losses[np.argmin(self.values)])


@dataclasses.dataclass(frozen=True)
class _Chain(TabulatedMessages):
    """n shuffled messages of n clients: (1/k) E(T*_1 + ... + T*_k)_+ + c D(1) D_r(N/k), N = n - 1 - r. Symmetric.

    D_r is this bound for r + 1 clients, D_0 the profile of one message. If messages adapt, the pool of m = r + 1
    messages comes first, and with x = share (c - 1)

        H_c <= (N/n) ( (1/k) E(T*_1 + ... + T*_k + k x)_+ + c D(1) D_r(N/k) ) + (m/n) D_r(c + x N/m) .

    Attributes:
      plan: r, then the number left out of r + 1 clients, and so on. The chain ends with G2, or, after r = 0, with one
        message.
      allowed: k is the largest with D_r(N/k) <= exp(-allowed).
      two: True if T** replaces T*.
      inner: D_r, if not the plan's.
      adaptive: True if messages may depend on messages of the same round.
    """

    num_clients: int
    profile: Profile
    plan: tuple[_Link, ...]
    allowed: float
    two: bool = False
    inner: UnitBound | None = None
    adaptive: bool = False

    name = "everybody"
    witnesses: tuple[Witness, ...] = ()

    @property
    def alone(self) -> LocalGaussian | LocalMessages:  # type: ignore[override]
        return alone(self.profile)

    @property
    def _left(self) -> int:
        """N."""
        return self.num_clients - 1 - self.plan[0].left_out

    @functools.cached_property
    def _inner_bound(self) -> UnitBound:
        """D_r."""
        if self.inner is not None:
            return self.inner
        clients = self.plan[0].left_out + 1
        allowed = self.allowed + _LESS + math.log(min(self.plan[0].factor, _MOST))
        allowed = _possible(self.profile, allowed)
        if clients == 1:
            return self.alone
        if len(self.plan) == 1:
            return AllCut(clients, self.alone, allowed + 17.0)
        return _Chain(clients, self.profile, self.plan[1:], allowed, adaptive=self.adaptive)

    def _inner_upper(self, losses: np.ndarray) -> np.ndarray:
        return np.asarray(self._inner_bound.upper(losses)) * (1.0 + ROUNDING)

    @functools.cached_property
    def _sum(self) -> HiddenSlots | None:
        """The sum of k terms; None if k = 0."""
        losses = np.concatenate([[0.0], np.geomspace(1e-6, _FAR, _SEARCHED)])
        kept = math.floor(self._left / _factor(self._inner_upper, losses, self.allowed))
        if kept < 1:
            return None
        profile, mass = self.profile, max(self.allowed + _ROOM, 1.0)
        if self.two and isinstance(profile, GaussianProfile) and serves(kept, profile.mu):
            return TwoLawSlots(kept, 1.0, profile, mass)
        return HiddenSlots(kept, 1.0, profile, mass)

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
        apart = float(self.profile.delta(loss[:1])[0])
        return apart * float(self._inner_upper(loss)[1]) * (1.0 + ROUNDING)

    def _table(self) -> tuple[np.ndarray, np.ndarray] | None:
        if self._sum is None:
            return None
        losses = self._sum.losses
        cost = np.exp(losses) * self._cost
        if not self.adaptive:
            return losses, (np.asarray(self._sum.upper(losses)) + cost) * (1.0 + ROUNDING)
        pool = self.plan[0].left_out + 1
        value = np.full(losses.shape, math.inf)
        for times in _POOLED:
            share = times * math.sqrt(pool / self._left)
            if share > _MOST_POOLED:
                break
            nearer = _Nearer(self._sum.slots, 1.0 - share, self.profile, self._sum.neg_log_tail)
            if not np.isfinite(nearer.values).all():
                break
            # Rounded down, since D_r falls.
            far = np.expm1(losses) * (1.0 + share * self._left / pool) * (1.0 - 1e-14)
            joined = self._inner_upper(np.log1p(far) * (1.0 - 1e-14))
            spared = (1.0 - share) * np.where(losses <= nearer.last, nearer.upper(losses), math.inf) + cost
            value = np.minimum(value, (self._left * spared + pool * joined) / self.num_clients)
        return losses, value * (1.0 + ROUNDING)


def _by_cut_weights(bound: CutWeights, allowed: float) -> tuple[_Link, CutWeights | None]:
    """The link expected to be best among those with a link of this bound as D_r."""
    losses = np.geomspace(1e-6, _FAR, _SEARCHED)
    found, best, left_out = _Link(0, math.inf), None, bound.next_link
    square = 4.0 * allowed * math.expm1(min(log_square(bound.profile), 600.0))
    for _ in _SHARES:
        if left_out is None:
            break
        terms = (bound.num_clients - left_out.num_clients) / _factor(left_out.upper, losses, allowed)
        pool = left_out.num_clients / (bound.num_clients - left_out.num_clients)
        distance = 1.0 - (_POOLED[1] * math.sqrt(pool) if bound.adaptive else 0.0)
        if terms > 0.0 and distance > 0.0:
            factor = 1.0 + math.sqrt(square / max(terms, 1e-300)) / distance
            if factor < found.factor:
                found, best = _Link(left_out.num_clients - 1, factor), left_out
        left_out = left_out.next_link
    return found, best


@functools.lru_cache(maxsize=32)
def _cut_weights(num_clients: int, profile: Profile, mass: int, adaptive: bool) -> CutWeights:
    """The chain of cut weights; a rounded exponent serves many deltas."""
    return CutWeights(num_clients, profile, mass, adaptive=adaptive)


@functools.lru_cache(maxsize=64)
def _chain_of_weights(
    num_clients: int, profile: Profile, mass: int, allowed: int, adaptive: bool
) -> _Chain | None:
    """The chain with a link of cut weights as D_r."""
    link, inner = _by_cut_weights(_cut_weights(num_clients, profile, mass, adaptive), allowed)
    if inner is None:
        return None
    return _Chain(num_clients, profile, (link,), allowed, not adaptive, inner, adaptive)


@functools.lru_cache(maxsize=64)
def _chain(num_clients: int, profile: Profile, allowed: float, adaptive: bool) -> _Chain:
    allowed = _possible(profile, allowed)
    plan = _plan(num_clients, profile, allowed, adaptive)
    return _Chain(num_clients, profile, plan, allowed, not adaptive, adaptive=adaptive)


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """E*: shuffled messages of a known profile, all n clients' (rate 1). Symmetric.

    For every r <= n - 2 and k <= N = n - 1 - r, with D the profile of one message and D_r that of r + 1 shuffled ones,

        H_c <= (1/k) E( T*_1 + ... + T*_k )_+ + c D(1) D_r(N/k)

    if no message depends on another of its round, T* as in shuffled check-in, or replaced by T** for Gaussian messages.
    r and k make the second term small. D_r is this bound for r + 1 clients, or `CutWeights`, which is a bound on its
    own, too. If messages adapt, `_Chain` alone serves.

    Attributes:
      num_clients: n >= 2. profile: of one message; Gaussian ones have a mu of at most MOST_HIDDEN_MU.
      neg_log_tail: -log of the negligible mass.
      adaptive: True if messages may depend on messages of the same round.
    """

    num_clients: int
    profile: Profile
    neg_log_tail: float
    adaptive: bool = False

    @property
    def name(self) -> str:
        return "everybody (Gaussian messages)" if isinstance(self.profile, GaussianProfile) else "everybody"

    @property
    def largest_loss(self) -> float:
        return self.profile.largest_loss

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return AllCut(self.num_clients, alone(self.profile), self.neg_log_tail).witnesses

    def upper(self, loss: np.ndarray) -> np.ndarray:
        found = np.min([chain.upper(loss) for chain in self._chains], axis=0)
        return np.minimum(found, self._weights.upper(loss)) if self._weak else found

    @property
    def _mass(self) -> int:
        return math.ceil(self.neg_log_tail)

    @property
    def _weights(self) -> CutWeights:
        return _cut_weights(self.num_clients, self.profile, self._mass, self.adaptive)

    @functools.cached_property
    def _chains(self) -> list[_Chain]:
        """Chains of ever more terms: where the divergence is larger, leaving out may cost more."""
        allowed = max(self.neg_log_tail - 17.0, 1.0) + _ALLOWED
        found = [self._best(allowed)]
        for less in _MORE_COST:
            if allowed - less < _LEAST_ALLOWED or found[-1].terms * _MORE_TERMS > self.num_clients:
                break
            chain = self._best(allowed - less)
            if chain.terms > _MORE_TERMS * found[-1].terms:
                found.append(chain)
        return found

    def _best(self, allowed: float) -> _Chain:
        """The chain of most terms at this cost."""
        chain = _chain(self.num_clients, self.profile, allowed, self.adaptive)
        if not self._weak:
            return chain
        other = _chain_of_weights(
            self.num_clients, self.profile, self._mass, math.ceil(allowed), self.adaptive
        )
        return other if other is not None and other.terms > chain.terms else chain

    @property
    def _weak(self) -> bool:
        """True if `CutWeights` are tried."""
        many = log_square(self.profile) + _FEW < math.log(self.num_clients)
        return (
            many
            and spread(self.profile) >= _WEAK
            and math.isfinite(end(self.profile, self.neg_log_tail + 24.0))
        )


@dataclasses.dataclass(frozen=True)
class LeftOutLDP:
    """E+: n shuffled messages, eps0-LDP or nearly, one of each client. Symmetric.

    Attributes:
      link: of all clients.
    """

    link: left_out_clones.Link

    name = "everybody"
    witnesses: tuple[Witness, ...] = ()

    @property
    def largest_loss(self) -> float:
        return math.inf if self.link.at_end else self.link.steps.epsilon0

    def upper(self, loss: np.ndarray) -> Values:
        loss, epsilon0 = np.asarray(loss), self.link.steps.epsilon0
        within = convex.chords(*self.link.table, np.minimum(loss, epsilon0))
        return np.where(loss >= epsilon0, self.link.at_end, within)
