"""The bound "everybody" for messages that tell much (E* iterated): ever fewer clients are left out, in closed form.

The posterior over which of the r + 1 left-out messages is whose weighs every other client's term by a factor rho. A
large term is harmful only with a large rho; they are independent, which gives a product of small numbers. Sums of many
terms are bounded by Chernoff's bound, and rho beyond a cut by D(c) [docs/theory_gaussian.md, 1c]. So D_r need not be
small, and a chain can start from one message. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.interface import Witness
from checkin_jax.accounting.bounds.profiles import GaussianProfile, Profile
from checkin_jax.kernels import ROUNDING
from checkin_jax.numerics import convex

# Number of values of c; the smallest c - 1 is this share of the standard deviation of T*'s mean over all clients.
_VALUES, _NEAREST = 140, 0.1
# Thresholds of terms: log of their ratio; first one as a share of min(spread, 1); number of thresholds below each that
# its tilts use.
_STEP, _LOWEST, _BELOW = 0.1, 1e-3, 92
# Masses down to exp(-_ROOM) times the negligible one are followed.
_ROOM = 12.0
# Tilts, in units of 1 / (cut of the terms).
_TILTS = (0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 21.0, 25.0, 30.0, 40.0)
# x, the share of the weights that may be cut, and X/y, distance over cut of the terms: for the outermost link, and for
# inner ones.
_SHARES, _SINGLE = (
    ((0.02, 0.05, 0.1, 0.2, 0.4, 0.7), (0.15, 0.5)),
    ((1.1, 1.2, 1.35, 1.5, 1.7, 2.0, 2.5, 3.2), (1.4, 2.0, 3.0, 5.0)),
)
# Ratio of the numbers of clients of successive links, and the same where messages adapt; fewest clients of a link.
_RATIO, _ADAPTED, _SHORTEST = 2.0, 16.0, 128
# Relative rounding of sums of positive numbers, differences of chords' slopes included.
_SUM_ROUNDING = 1e-7
# The largest loss that is followed, and the largest log of a bound (any value above 0 is useless).
_FAR, _MOST = 100.0, 50.0
# Losses at which the mean square of T* is summed, and the end of a profile is searched.
_SUMMED = 2048


def spread(profile: Profile) -> float:
    """Approximate scale of one message's loss: mu of a Gaussian one."""
    if isinstance(profile, GaussianProfile):
        return profile.mu
    # D(1) is about mu / sqrt(2 pi).
    return math.sqrt(2.0 * math.pi) * float(profile.delta(np.zeros(1))[0])


def log_square(profile: Profile) -> float:
    """log(1 + v), v the approximate variance of T* at c = 1 where it is finite: mu^2 of a Gaussian message."""
    if isinstance(profile, GaussianProfile):
        return profile.mu**2
    above = np.append(0.0, np.geomspace(1e-6, math.exp(min(profile.largest_loss, _FAR)), _SUMMED))
    value = profile.delta(np.log1p(above))
    return math.log1p(4.0 * float(np.trapezoid(value - value[-1], above)))


def end(profile: Profile, mass: float) -> float:
    """Loss beyond which the profile of one message is below exp(-mass), at most _FAR; infinite if there is none."""
    if isinstance(profile, GaussianProfile):
        return min(profile.mu * (0.5 * profile.mu + math.sqrt(2.0 * mass)), _FAR)
    losses = np.linspace(0.0, _FAR, _SUMMED)[1:]
    enough = np.flatnonzero(profile.delta(losses) <= math.exp(-mass))
    return float(losses[enough[0]]) if enough.size else math.inf


@dataclasses.dataclass(frozen=True, eq=False)
class Terms:
    """tau = T* + c - 1, of mean zero, at some c > 1: its transforms, and exponential moments of the cut term.

    Attributes:
      profile: of one message. c: [c]. places: thresholds k, rising by the factor e^_STEP; [places].
      at_zero: E tau_+ ; [c]. right, least: E(tau - k)_+ at the thresholds, from above and from below; [c, places].
      growth: for each tilt a, upper bounds on the supremum over rho <= 1/k of E g(a min(rho tau, 1)) / rho, where
        g(u) = e^u - 1 - u; [tilts, c, places].
    """

    profile: Profile
    c: np.ndarray
    places: np.ndarray
    at_zero: np.ndarray
    right: np.ndarray
    least: np.ndarray
    growth: np.ndarray

    @classmethod
    def of(cls, profile: Profile, c: np.ndarray, far: float) -> Terms:
        """Terms at these c, followed up to about `far`."""
        lowest = _LOWEST * min(spread(profile), 1.0)
        count = max(math.ceil(math.log(far / lowest) / _STEP), 2)
        places = lowest * np.exp(_STEP * np.arange(-_BELOW, count + 1.0))
        column = c[:, None]
        right, left = _transforms(profile, column, places)
        nothing = _transforms(profile, column, np.zeros(1))
        up, down, flat = _bends()
        # Chords of g between 0 and the thresholds k e^(-m _STEP). Beyond k the slope is at most a, or 0.
        views = (np.lib.stride_tricks.sliding_window_view(side, _BELOW + 1, axis=1) for side in (right, left))
        growth = sum(
            view @ bends[:, 1:].T + at_zero[:, :, None] * bends[:, 0]
            for view, at_zero, bends in zip(views, nothing, (up, down))
        )
        growth = np.moveaxis(np.asarray(growth), 2, 0) * (1.0 + _SUM_ROUNDING)
        right, places = right[:, _BELOW:], places[_BELOW:]
        least = _right(profile, column, places, -1.0)
        growth -= flat[:, :, None] * least * (1.0 - _SUM_ROUNDING)
        # E g / rho rises by at most this factor before the next threshold, since E g rises with rho.
        growth = growth * math.exp(_STEP)
        # For rho below the last, the part of the term beyond the last threshold is at most e^a where it is cut.
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
        return rest * np.exp(np.minimum(found, _MOST)) * (1.0 + _SUM_ROUNDING)

    def one(self, heights: np.ndarray) -> np.ndarray:
        """Upper bounds on E f(tau), for f zero up to a threshold and beyond it at most a convex function; [c, places].

        That function has slopes up to 1, and at most `heights` at the thresholds. Its chords begin at 0 at the
        threshold before, and continue between heights.
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
        return (first * before + more * self.right + beyond) * (1.0 + _SUM_ROUNDING) - less * self.least * (
            1.0 - _SUM_ROUNDING
        )


def _right(profile: Profile, c: np.ndarray, k: np.ndarray, side: float) -> np.ndarray:
    """E(tau - k)_+, rounded up (side 1) or down (-1); c: [c, 1], k: [places]; [c, places]."""
    # The transform grows with c - k.
    rest = 1.0 + np.maximum(c - 1.0 - k + side * 4e-16 * c, 0.0)
    near = rest * profile.delta(np.maximum(np.log(c / rest), 0.0))
    return np.where(k < c - 1.0, near, profile.delta(np.log1p(k))) * (1.0 + side * ROUNDING)


def _transforms(profile: Profile, c: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E(tau - k)_+ and E(-tau - k)_+, rounded up; c: [c, 1], k: [places]; [c, places]."""
    left = c * profile.delta(np.log1p(k / c))
    return _right(profile, c, k, 1.0), left * (1.0 + ROUNDING)


def _bends() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Changes of slope of the chords of g(a v) and of g(-a v), at 0 and at v = e^(-m _STEP) up to 1; [tilts, 1 + v].

    The chords of g(-a v) continue with slope a. The last result, [tilts, 1], is the slope at which g(a v) ends at 1.
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
    """E*, second inequality, link by link: messages of all n clients, none depending on another. Symmetric.

    For every r <= n - 2, B >= 1, x in (0, 1) and y, t > 0, N = n - 1 - r and X = (1 - x) N (c - 1),

        H_c <= E f(tau) + exp(-t X - 1 + N sigma) / (t N) + D(c) D_r(B) / x ,

    f(u) = u D_r(y/u) for u > y/B and else 0, sigma = sup over rho <= B of E g(t min(rho tau, y)) / rho, where
    g(u) = e^u - 1 - u and tau = T* + c - 1.

    Attributes:
      num_clients: n >= 1. profile: of one message, falling to zero.
      neg_log_tail: -log of the negligible mass.
      whole: for an inner link, the number of clients of the outermost; inner links try fewer x and y.
      adaptive: True if messages may depend on messages of the same round. The pool of m = r + 1 messages then comes
        first, and with z = x/2 in place of x in the last term, and D(c) + z (c - 1) in place of D(c), the three terms
        count N/n, and D_r(c + z (c - 1) N/m) counts m/n.
    """

    num_clients: int
    profile: Profile
    neg_log_tail: float
    whole: int = 0
    adaptive: bool = False

    name = "everybody"
    witnesses: tuple[Witness, ...] = ()

    @property
    def largest_loss(self) -> float:
        return self.profile.largest_loss

    @property
    def _whole(self) -> int:
        return self.whole or self.num_clients

    @functools.cached_property
    def next_link(self) -> CutWeights | None:
        """The next link, for r + 1 clients; None if one message is next."""
        fewer = int(self.num_clients / (_ADAPTED if self.adaptive else _RATIO))
        return dataclasses.replace(self, num_clients=fewer, whole=self._whole) if fewer >= _SHORTEST else None

    @property
    def _below(self) -> tuple[CutWeights | None, ...]:
        """Links that are tried as D_r; None stands for one message."""
        if self.next_link is None:
            return (None,) if self.num_clients > 1 else ()
        return (self.next_link, self.next_link.next_link)

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray]:
        """c and upper bounds, convex, from c = 1 to where the profile of one message is negligible."""
        shared = _shared(self.profile, math.ceil(self.neg_log_tail), math.ceil(math.log2(self._whole)))
        terms = shared.terms
        alone = terms.profile.delta(np.log(terms.c)) * (1.0 + ROUNDING)
        value = alone
        for inner in self._below:
            pool = 1 if inner is None else inner.num_clients
            left, above = self.num_clients - pool, terms.c - 1.0
            for share, single, many in shared.sums[self.whole > 0 and not self.adaptive]:
                # The cut of the terms, rounded down: D_r falls, and so does the part beyond the cut.
                cut = (1.0 - share) / single * left * (terms.c - 1.0) * (1.0 - 1e-14)
                weights = cut[:, None] / terms.places
                excess = self._posterior_excess(inner, weights)
                cut_off, joined, counted = alone / share, 0.0, 1.0
                if self.adaptive:
                    kept = 0.5 * share
                    far = 1.0 + above * (1.0 + kept * left / pool) * (1.0 - 1e-14)
                    joined = pool / self.num_clients * self._posterior_excess(inner, far[:, None])[:, 0]
                    cut_off, counted = (alone + kept * above) / kept, left / self.num_clients
                found = np.where(weights >= 1.0, many + cut_off[:, None] * excess, math.inf)
                if (found < value[:, None]).any():
                    found = (found + terms.one(terms.places * excess)).min(axis=1)
                    value = np.minimum(value, (counted * found + joined) * (1.0 + ROUNDING))
        c = np.append(1.0, terms.c)
        one = float(terms.profile.delta(np.zeros(1))[0])
        value = np.minimum.accumulate(np.append(one, value) * (1.0 + 1e-12))
        kept = convex.hull(c - 1.0, value)
        return c[kept], value[kept]

    def _posterior_excess(self, inner: CutWeights | None, weights: np.ndarray) -> np.ndarray:
        """Upper bounds on E(rho - B)_+ at B = `weights` > 0, for the r + 1 messages of `inner`, or for one message."""
        c = np.maximum(weights, 1.0 / weights) * (1.0 - 1e-14)
        if inner is None:
            found = self.profile.delta(np.log(np.maximum(c, 1.0))) * (1.0 + ROUNDING)
        else:
            found = convex.falling(c, *inner._profile) * (1.0 + ROUNDING)
        # E(rho - B)_+ = 1 - B + B E(1 - rho/B)_+ .
        return np.where(weights >= 1.0, found, 1.0 - weights + weights * found)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss, dtype=np.float64)
        c, value = self._profile
        found = convex.held_chords(np.log(c), value, loss)
        return np.minimum(found, self.profile.delta(loss) * (1.0 + ROUNDING))


@dataclasses.dataclass(frozen=True, eq=False)
class _Shared:
    """Terms, and (x, X/y, bound on the sum of many terms) for the outermost link and for inner ones."""

    terms: Terms
    sums: tuple[tuple[tuple[float, float, np.ndarray], ...], ...]


@functools.lru_cache(maxsize=8)
def _shared(profile: Profile, mass: int, doublings: int) -> _Shared:
    far = min(end(profile, mass + _ROOM), _FAR)
    nearest = _NEAREST * min(
        math.exp(min(0.5 * (log_square(profile) - doublings * math.log(2.0)), -1.0)), math.expm1(far)
    )
    c = 1.0 + np.geomspace(nearest, math.expm1(far), _VALUES)
    terms = Terms.of(profile, c, math.exp(far))
    return _Shared(
        terms,
        tuple(
            tuple((x, y, terms.many(x, y)) for x in shares for y in single)
            for shares, single in zip(_SHARES, _SINGLE)
        ),
    )
