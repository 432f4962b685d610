"""Shuffled messages of everybody by a long chain of spared clients, in closed form: for noise too weak for one link.

What r + 1 shuffled messages tell of which of them are whose weighs another client's term by some rho. A single large
term does harm where it meets a large weight: what they tell and the term are independent, so that is a product of
small numbers. Many terms are left to Chernoff's bound, weights beyond a cut to D(c) [docs/theory_gaussian.md, 1c]. So
D_r need not be small by itself, and chains start from one message. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.interface import Instance
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import convex

# Values of c; the nearest to one is at this share of the deviation of T*'s mean over all clients.
_VALUES, _NEAREST = 140, 0.1
# Places of terms: their ratio, how far below mu (and one) they begin, how far below a place its tilts look.
_STEP, _LOWEST, _BELOW = 0.1, 1e-3, 92
# Masses of exp(-_ROOM) of those that matter are followed, too.
_ROOM = 12.0
# Tilts, times where terms are cut.
_TILTS = (0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 21.0, 25.0, 30.0, 40.0)
# The share of the weights that may be cut before nothing is counted on, and the distance over where terms are cut:
# of the last link, and of those below it.
_SHARES, _SINGLE = (
    ((0.02, 0.05, 0.1, 0.2, 0.4, 0.7), (0.15, 0.5)),
    ((1.1, 1.2, 1.35, 1.5, 1.7, 2.0, 2.5, 3.2), (1.4, 2.0, 3.0, 5.0)),
)
# Each link of the chain has about so many times as many clients as the next; it looks at two of them.
_RATIO, _SHORTEST = 2.0, 128
# What sums of positive numbers may have lost, differences of chords' slopes included.
_LOST = 1e-7
# The largest loss that is followed, and the largest exponent of a bound: far above one.
_FAR, _MOST = 100.0, 50.0


@dataclasses.dataclass(frozen=True, eq=False)
class Terms:
    """tau = T* + c - 1, of mean zero, at some c > 1, and what its cut exponentials grow by.

    Attributes:
      profile: of one message. c: [c]. places: k, rising by the factor e^_STEP; [places].
      at_zero: E tau_+ ; [c]. right, least: E(tau - k)_+ at the places, from above and from below; [c, places].
      growth: for each tilt a, upper bounds on the supremum over rho <= 1/k of E g(a min(rho tau, 1)) / rho, where
        g(u) = e^u - 1 - u; [tilts, c, places].
    """

    profile: GaussianProfile
    c: np.ndarray
    places: np.ndarray
    at_zero: np.ndarray
    right: np.ndarray
    least: np.ndarray
    growth: np.ndarray

    @classmethod
    def of(cls, profile: GaussianProfile, c: np.ndarray, far: float) -> Terms:
        """Those at these c, for terms up to about `far`."""
        lowest = _LOWEST * min(profile.mu, 1.0)
        count = max(math.ceil(math.log(far / lowest) / _STEP), 2)
        places = lowest * np.exp(_STEP * np.arange(-_BELOW, count + 1.0))
        column = c[:, None]
        right, left = _transforms(profile, column, places)
        nothing = _transforms(profile, column, np.zeros(1))
        up, down, flat = _bends()
        # Chords of g between 0 and places that are this one times e^(-m _STEP); beyond it slopes up to a, or none.
        views = (np.lib.stride_tricks.sliding_window_view(side, _BELOW + 1, axis=1) for side in (right, left))
        growth = sum(
            view @ bends[:, 1:].T + at_zero[:, :, None] * bends[:, 0]
            for view, at_zero, bends in zip(views, nothing, (up, down))
        )
        growth = np.moveaxis(np.asarray(growth), 2, 0) * (1.0 + _LOST)
        right, places = right[:, _BELOW:], places[_BELOW:]
        least = _right(profile, column, places, -1.0)
        growth -= flat[:, :, None] * least * (1.0 - _LOST)
        # E g rises with rho, so at most this much more before the next place.
        growth = growth * math.exp(_STEP)
        # Smaller rho than the last: what is beyond the last place is e^a at most where it is cut.
        half = np.searchsorted(places, 0.5 * places[-1], side="right") - 1
        growth[:, :, -1] += 2.0 * np.exp(np.array(_TILTS))[:, None] * right[:, half]
        growth = np.maximum.accumulate(growth[:, :, ::-1], axis=2)[:, :, ::-1]
        return cls(profile, c, places, nothing[0][:, 0], right, least, growth)

    def many(self, share: float, single: float) -> np.ndarray:
        """Upper bounds on E(sum of min(rho tau, y) - X)_+ / N over all weights rho <= y/k of sum N; [c, places].

        X = (1 - share) N (c - 1), y = X / single. By e^(tu - 1) / t >= u_+ at t = a / y:

            exp(-a single - 1 + N sup E g / rho) / (t N) .
        """
        above = (self.c - 1.0)[:, None]
        rest = (1.0 - share) * above
        found = np.full_like(self.right, math.inf)
        for tilt, growth in zip(_TILTS, self.growth):
            whole = tilt * single
            found = np.minimum(found, growth * (single / rest) - (whole + 1.0 + math.log(whole)))
        return rest * np.exp(np.minimum(found, _MOST)) * (1.0 + _LOST)

    def one(self, heights: np.ndarray) -> np.ndarray:
        """Upper bounds on E f(tau) over all f that are zero up to a place and beyond it below some convex function.

        Slopes up to 1, and values at the places up to `heights`. Chords: from 0 at the place before, then between
        heights; [c, places], by the place.
        """
        slopes = np.empty_like(heights)
        slopes[:, :-1] = np.diff(heights, axis=1) / np.diff(self.places)
        slopes[:, -1] = 1.0
        slopes = np.maximum.accumulate(np.maximum(slopes, 0.0), axis=1)
        first = heights / np.diff(self.places, prepend=0.0)
        before = np.concatenate([self.at_zero[:, None], self.right[:, :-1]], axis=1)
        beyond = np.zeros_like(heights)
        bends = np.diff(slopes, axis=1) * self.right[:, 1:]
        beyond[:, :-1] = np.cumsum(bends[:, ::-1], axis=1)[:, ::-1]
        more, less = np.maximum(slopes - first, 0.0), np.maximum(first - slopes, 0.0)
        return (first * before + more * self.right + beyond) * (1.0 + _LOST) - less * self.least * (
            1.0 - _LOST
        )


def _right(profile: GaussianProfile, c: np.ndarray, k: np.ndarray, side: float) -> np.ndarray:
    """E(tau - k)_+, rounded up (side 1) or down (-1); c: [c, 1], k: [places]; [c, places]."""
    # The transform grows with c - k.
    rest = 1.0 + np.maximum(c - 1.0 - k + side * 4e-16 * c, 0.0)
    near = rest * profile.delta(np.maximum(np.log(c / rest), 0.0))
    return np.where(k < c - 1.0, near, profile.delta(np.log1p(k))) * (1.0 + side * ROUNDING)


def _transforms(profile: GaussianProfile, c: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E(tau - k)_+ and E(-tau - k)_+, rounded up; c: [c, 1], k: [places]; [c, places]."""
    left = c * profile.delta(np.log1p(k / c))
    return _right(profile, c, k, 1.0), left * (1.0 + ROUNDING)


def _bends() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What chords of g(a v), and of g(-a v), bend by at 0 and at v = e^(-m _STEP), rising, to 1; [tilts, 1 + v].

    The second goes on with slopes up to a; by the last, [tilts, 1], the first becomes flat at 1.
    """
    v = np.append(0.0, np.exp(-_STEP * np.arange(_BELOW, -1.0, -1.0)))
    a = np.array(_TILTS)[:, None]
    both, ends = [], []
    for sign in (1.0, -1.0):
        slopes = np.diff(np.expm1(sign * a * v) - sign * a * v, axis=1) / np.diff(v)
        both.append(np.diff(slopes, axis=1, prepend=0.0))
        ends.append(slopes[:, -1:])
    up, down = (np.concatenate(pair, axis=1) for pair in zip(both, (np.zeros_like(a), a - ends[1])))
    return up, down, ends[0]


@dataclasses.dataclass(frozen=True)
class CutWeights:
    """n Gaussian messages, all clients', none depending on another; symmetric. E*, its second inequality, link by link.

    For every r <= n - 2, B >= 1, x in (0, 1) and y, t > 0, N = n - 1 - r and X = (1 - x) N (c - 1),

        H_c <= E f(tau) + exp(-t X - 1 + N sigma) / (t N) + D(c) D_r(B) / x ,

    f(u) = u D_r(y/u) for u > y/B and else 0, sigma = sup over rho <= B of E g(t min(rho tau, y)) / rho, where
    g(u) = e^u - 1 - u and tau = T* + c - 1.

    Attributes:
      num_clients: n >= 1. mu: 2 / noise_multiplier.
      log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter.
      whole: where it is a link below others, the clients of the last one; for it fewer x and y are tried.
    """

    num_clients: int
    mu: float
    log_inverse_mass: float
    whole: int = 0

    name = "everybody"
    top = math.inf
    instances: tuple[Instance, ...] = ()

    @property
    def _whole(self) -> int:
        return self.whole or self.num_clients

    @functools.cached_property
    def spared(self) -> CutWeights | None:
        """The next link, of r + 1 clients; None where one message by itself is."""
        fewer = int(self.num_clients / _RATIO)
        return dataclasses.replace(self, num_clients=fewer, whole=self._whole) if fewer >= _SHORTEST else None

    @property
    def _below(self) -> tuple[CutWeights | None, ...]:
        """The links that are tried as D_r; None: one message by itself."""
        if self.spared is None:
            return (None,) if self.num_clients > 1 else ()
        return (self.spared, self.spared.spared)

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray]:
        """c and upper bounds, from c = 1 to where one message by itself tells less than matters; convex."""
        shared = _shared(self.mu, math.ceil(self.log_inverse_mass), math.ceil(math.log2(self._whole)))
        terms = shared.terms
        alone = terms.profile.delta(np.log(terms.c)) * (1.0 + ROUNDING)
        value = alone
        for inner in self._below:
            left = self.num_clients - (1 if inner is None else inner.num_clients)
            for share, single, many in shared.sums[self.whole > 0]:
                # Where terms are cut, rounded down: D_r falls, and so does what is beyond.
                cut = (1.0 - share) / single * left * (terms.c - 1.0) * (1.0 - 1e-14)
                weights = cut[:, None] / terms.places
                told = self._told(inner, weights)
                found = np.where(weights >= 1.0, many + alone[:, None] * told / share, math.inf)
                if (found < value[:, None]).any():
                    value = np.minimum(value, (found + terms.one(terms.places * told)).min(axis=1))
        c = np.append(1.0, terms.c)
        one = float(terms.profile.delta(np.zeros(1))[0])
        value = np.minimum.accumulate(np.append(one, value) * (1.0 + 1e-12))
        kept = convex.hull(c - 1.0, value)
        return c[kept], value[kept]

    def _told(self, inner: CutWeights | None, weights: np.ndarray) -> np.ndarray:
        """Upper bounds on E(rho - B)_+ at these B > 0, for the r + 1 messages of `inner`, or one by itself."""
        c = np.maximum(weights, 1.0 / weights) * (1.0 - 1e-14)
        if inner is None:
            profile = GaussianProfile(self.mu)
            found = profile.delta(np.log(np.maximum(c, 1.0))) * (1.0 + ROUNDING)
        else:
            found = convex.falling(c, *inner._profile) * (1.0 + ROUNDING)
        # E(rho - B)_+ = 1 - B + B E(1 - rho/B)_+ .
        return np.where(weights >= 1.0, found, 1.0 - weights + weights * found)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss, dtype=np.float64)
        c, value = self._profile
        losses = np.log(c)
        chords = convex.chords(losses, value, np.minimum(loss, losses[-1]))
        found = np.where(loss >= losses[-1], value[-1], chords)
        return np.minimum(found, GaussianProfile(self.mu).delta(loss) * (1.0 + ROUNDING))


@dataclasses.dataclass(frozen=True, eq=False)
class _Shared:
    """What all links share: the terms, and (x, X/y, what many terms add at most); for the last link, those below."""

    terms: Terms
    sums: tuple[tuple[tuple[float, float, np.ndarray], ...], ...]


@functools.lru_cache(maxsize=8)
def _shared(mu: float, mass: int, doublings: int) -> _Shared:
    # Beyond this loss one message by itself tells less than matters.
    far = min(mu * (0.5 * mu + math.sqrt(2.0 * (mass + _ROOM))), _FAR)
    nearest = _NEAREST * min(
        math.exp(min(0.5 * (mu * mu - doublings * math.log(2.0)), -1.0)), math.expm1(far)
    )
    c = 1.0 + np.geomspace(nearest, math.expm1(far), _VALUES)
    terms = Terms.of(GaussianProfile(mu), c, math.exp(far))
    return _Shared(
        terms,
        tuple(
            tuple((x, y, terms.many(x, y)) for x in shares for y in single)
            for shares, single in zip(_SHARES, _SINGLE)
        ),
    )
