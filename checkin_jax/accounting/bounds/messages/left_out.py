"""E*: Gaussian messages of everybody (rate 1), some clients spared to hide whose place the client has taken.

At rate 1 nobody is absent, so a displaced client's message must go somewhere: it joins those of r spared clients, from
which little can be told of who it was, since r + 1 shuffled messages hide each of them [docs/theory_gaussian.md, 1c].
How well they do is the same question with r + 1 clients: a chain, down to one message by itself. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.full_participation import G2Shuffled
from checkin_jax.accounting.bounds.interface import Instance, LocalGaussian, UnitBound
from checkin_jax.accounting.bounds.messages.gaussian_cover import TwoLawSlots, serves
from checkin_jax.accounting.bounds.messages.left_out_chain import CutWeights
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.accounting.bounds.tabulated import TabulatedMessages
from checkin_jax.kernels import ROUNDING

# Shares of the clients that may be spared (powers, so that plans meet again), and the fewest.
_SHARES, _FEWEST = tuple(0.5**power for power in range(1, 9)), 16
_LINKS = 4
# What sparing may cost, as exponents: below exp(17 - log_inverse_mass), about delta over the rounds; and below the
# allowance of the next longer chain. How far below an allowance masses still matter.
_ALLOWED, _LESS, _ROOM = 7.0, 2.0, 5.0
# The largest factor that a chain should be followed by another one with.
_MOST = 10.0
# From this mu on cut weights may serve, while e^(mu^2 + 4) < n, and how much less they shall leave of what the other
# chain leaves.
_WEAK, _FEW, _BETTER = 0.1, 4.0, 0.9
# Losses at which a profile is searched, and the largest.
_SEARCHED, _FAR = 4096, 40.0


def _factor(mu: float, allowed: float) -> float:
    """About the least B > 1 at which one message by itself is told from another with exp(-allowed) at most."""
    losses = np.linspace(0.0, _FAR, _SEARCHED)[1:]
    enough = np.flatnonzero(GaussianProfile(mu).delta(losses) <= math.exp(-allowed))
    return math.exp(float(losses[enough[0]])) if enough.size else math.inf


class _Link(NamedTuple):
    """How many are spared, and about what factor the messages of all are told apart by then."""

    spared: int
    factor: float


@functools.lru_cache(maxsize=256)
def _plan(num_clients: int, mu: float, allowed: float) -> tuple[_Link, ...]:
    """What should serve best, from n clients down. Any plan gives a bound."""
    one = _factor(mu, allowed)
    # Variance of T*, about, times 2 allowed.
    square = 4.0 * allowed * math.expm1(min(mu * mu, 600.0))

    @functools.cache
    def by_cut(clients: int) -> float:
        """B by G2, rather above: clones of either record are as many as of the other, but for chance."""
        epsilon0 = G2Shuffled(clients, mu, allowed + 17.0).cut(allowed)
        chance = 1.3 * math.sqrt(allowed * math.exp(epsilon0) / clients) if epsilon0 is not None else math.inf
        return (1.0 + chance) / (1.0 - chance) if chance < 1.0 else math.inf

    @functools.cache
    def best(clients: int, links: int) -> tuple[_Link, ...]:
        found = (_Link(0, math.inf),)
        for share in (0.0, *_SHARES):
            spared = int(share * clients)
            if 0 < spared < _FEWEST:
                break
            inner, rest = one, ()
            if spared:
                inner = by_cut(spared + 1)
                chained = best(spared + 1, links - 1) if links > 1 else ()
                # What sparing costs grows with the factor.
                if chained and chained[0].factor < min(inner, _MOST):
                    inner, rest = chained[0].factor, chained
            terms = max((clients - 1.0 - spared) / min(inner, one), 1e-300)
            factor = 1.0 + math.sqrt(square / terms) + one / terms
            if factor < found[0].factor:
                found = (_Link(spared, factor), *rest)
        return found

    return best(num_clients, _LINKS)


@dataclasses.dataclass(frozen=True)
class _Chain(TabulatedMessages):
    """n shuffled messages of everybody: (1/k) E(T*_1 + ... + T*_k)_+ + c D(1) D_r(N/k), N = n - 1 - r.

    D_r is this bound for r + 1 clients, D_0 the profile of one message. Symmetric.

    Attributes:
      plan: r, and how many are spared of r + 1 clients, and so on; then G2, or, after r = 0, one message by itself.
      allowed: D_r(N/k) shall be exp(-allowed) at most, which chooses k.
      two: whether two laws stand in for T*.
      inner: D_r, where it is not the plan's.
    """

    num_clients: int
    mu: float
    plan: tuple[_Link, ...]
    allowed: float
    two: bool = False
    inner: UnitBound | None = None

    name = "everybody"
    instances: tuple[Instance, ...] = ()

    @functools.cached_property
    def _spared(self) -> UnitBound:
        """D_r."""
        if self.inner is not None:
            return self.inner
        clients, allowed = (
            self.plan[0].spared + 1,
            self.allowed + _LESS + math.log(min(self.plan[0].factor, _MOST)),
        )
        if clients == 1:
            return LocalGaussian(1.0, self.mu)
        if len(self.plan) == 1:
            return G2Shuffled(clients, self.mu, allowed + 17.0)
        return _Chain(clients, self.mu, self.plan[1:], allowed)

    def _spared_upper(self, losses: np.ndarray) -> np.ndarray:
        return np.asarray(self._spared.upper(losses)) * (1.0 + ROUNDING)

    @functools.cached_property
    def _sum(self) -> HiddenSlots | None:
        """The sum of k terms; None if nothing is left of it."""
        left = self.num_clients - 1 - self.plan[0].spared
        losses = np.concatenate([[0.0], np.geomspace(1e-6, _FAR, _SEARCHED)])
        enough = np.flatnonzero(self._spared_upper(losses) <= math.exp(-self.allowed))
        kept = math.floor(left / math.exp(losses[enough[0]])) if enough.size else 0
        if kept < 1:
            return None
        made = TwoLawSlots if self.two and serves(kept, self.mu) else HiddenSlots
        return made(kept, 1.0, GaussianProfile(self.mu), max(self.allowed + _ROOM, 1.0))

    @functools.cached_property
    def _cost(self) -> float:
        """Upper bound on D(1) D_r(N/k)."""
        assert self._sum is not None
        ratio = (self.num_clients - 1 - self.plan[0].spared) / self._sum.slots
        # Rounded down: D_r falls.
        loss = np.array([0.0, max(math.log(ratio) * (1.0 - 1e-14) - 1e-15, 0.0)])
        apart = float(GaussianProfile(self.mu).delta(loss[:1])[0])
        return apart * float(self._spared_upper(loss)[1]) * (1.0 + ROUNDING)

    def _table(self) -> tuple[np.ndarray, np.ndarray] | None:
        if self._sum is None:
            return None
        losses = self._sum.losses
        value = np.asarray(self._sum.upper(losses)) + np.exp(losses) * self._cost
        return losses, value * (1.0 + ROUNDING)


def _by_cut_weights(bound: CutWeights, allowed: float) -> tuple[_Link, CutWeights | None]:
    """The link that should serve best among those whose D_r is one of the links of this bound."""
    losses = np.geomspace(1e-6, _FAR, _SEARCHED)
    found, best, spared = _Link(0, math.inf), None, bound.spared
    square = 4.0 * allowed * math.expm1(min(bound.mu**2, 600.0))
    for _ in _SHARES:
        if spared is None:
            break
        enough = np.flatnonzero(spared.upper(losses) <= math.exp(-allowed))
        if enough.size:
            terms = (bound.num_clients - spared.num_clients) / math.exp(losses[enough[0]])
            factor = 1.0 + math.sqrt(square / max(terms, 1e-300))
            if factor < found.factor:
                found, best = _Link(spared.num_clients - 1, factor), spared
        spared = spared.spared
    return found, best


@functools.lru_cache(maxsize=32)
def _cut_weights(
    num_clients: int, mu: float, mass: int, allowed: int
) -> tuple[CutWeights, float, _Chain | None]:
    """The chain of cut weights, and what it is D_r of, with its factor; near deltas share whole exponents."""
    weights = CutWeights(num_clients, mu, mass)
    link, inner = _by_cut_weights(weights, allowed)
    chain = None if inner is None else _Chain(num_clients, mu, (link,), allowed, True, inner)
    return weights, link.factor, chain


@functools.lru_cache(maxsize=32)
def _chain(num_clients: int, mu: float, allowed: float) -> _Chain:
    """Made once, since later calls start from it."""
    return _Chain(num_clients, mu, _plan(num_clients, mu, allowed), allowed, True)


@dataclasses.dataclass(frozen=True)
class SparedGaussian:
    """E*: n Gaussian messages, all clients' (rate 1), `messages` view, none depending on another; symmetric.

    For every r <= n - 2 and k <= N = n - 1 - r, with D the profile of one message and D_r that of r + 1 shuffled ones,

        H_c <= (1/k) E( T*_1 + ... + T*_k )_+ + c D(1) D_r(N/k) ,

    T* as in shuffled check-in, or two laws in its place (T**); r and k such that the second term hardly counts. D_r is
    the same again, or a chain of cut weights, which is a bound by itself, too.

    Attributes:
      num_clients: n >= 2. mu: 2 / noise_multiplier, at most MOST_HIDDEN_MU.
      log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter.
    """

    num_clients: int
    mu: float
    log_inverse_mass: float

    name = "everybody (Gaussian messages)"
    top = math.inf

    @property
    def instances(self) -> tuple[Instance, ...]:
        return G2Shuffled(self.num_clients, self.mu, self.log_inverse_mass).instances

    def upper(self, loss: np.ndarray) -> np.ndarray:
        allowed = max(self.log_inverse_mass - 17.0, 1.0) + _ALLOWED
        other = _chain(self.num_clients, self.mu, allowed)
        if not (self.mu >= _WEAK and self.mu**2 + _FEW < math.log(self.num_clients)):
            return other.upper(loss)
        weights, factor, chain = _cut_weights(
            self.num_clients, self.mu, math.ceil(self.log_inverse_mass), math.ceil(allowed)
        )
        if chain is None or factor - 1.0 >= _BETTER * (other.plan[0].factor - 1.0):
            chain = other
        return np.minimum(chain.upper(loss), weights.upper(loss))
