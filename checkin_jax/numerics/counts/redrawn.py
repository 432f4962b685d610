"""Shares of a client's message in slots if the label of its own slot is randomized (T2++), or drawn anew (T2d).

T2++: the others occupy K of m common slots, and every slot is labelled occupied or empty. The label of the slot with
the target's message may be false, so that slots of both labels have nearly the same share of that message
[docs/theory_hexagon.md, section 3]. T2d:

Every client has a key; a slot shows the client with the smallest one. Given the labels of all other slots the target
would be shown in slot s with probability W_s <= (1 - e^(-G))/G, G the sum of 1/(1 + S_i) over the clients i that may
be in s and are drawn nowhere else, S_i the sum of 1 - key drawn over the other slots of i's window. In a slot with a
colluder, if an honest client is there, W_s <= 1/G. A multiple of G is hardly more dispersed than a binomial number, and
moments of sums over slots are at most those of independent terms [docs/theory_hexagon.md, section 5]. NumPy float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import chernoff, occupancy

# Above this number of clients or slots the law of K is bounded, not computed.
_COUNTED = 5_000
# Ends of the ranges of K, in standard deviations from the mean.
_EDGES = np.concatenate([[-8.0, -5.0], np.linspace(-3.6, 3.6, 37), [5.0, 8.0]])
# Levels for the deviations of K and of the number of others: negative logarithms of tail masses.
_LABEL_LEVELS = (1.6, 2.0, 2.6, 3.5, 5.0, 7.5, 12.0, 20.0)
# Bounds on relative errors: of quotients of the law of K, and of sums of masses.
_QUOTIENT, _SUMMED = 1e-11, 1e-9
# Masses below this have inaccurate quotients and count as lost.
_LEAST = 1e-290


class LabelledShares(NamedTuple):
    """m T / (p_0 w) of each part, its mass (with T included) and named slots, [parts]; and the mass in no part.

    w: upper bound on every slot's share of the target's message, in units of p_0/m. T: lower bound on the
    probability of the labels, over their probability without the target. named: numbers of slots with a client's
    label, from above.
    """

    clients: np.ndarray
    masses: np.ndarray
    named: np.ndarray
    lost: float


def counted(num_clients: int, num_slots: int) -> bool:
    """True if the law of K is computed, false if it is bounded."""
    return max(num_clients, num_slots) <= _COUNTED


def labelled(num_clients: int, num_slots: int, prob: float, neg_log_tail: float) -> LabelledShares | None:
    """Shares of n clients' messages in m common slots; each sends with probability `prob`. None
    if unknown.

    Args:
      num_clients: n > 1. neg_log_tail: the lost mass is about exp(-neg_log_tail).
    """
    if counted(num_clients, num_slots):
        found = _counted(num_clients, num_slots, prob, neg_log_tail)
    else:
        found = _bounded(num_clients, num_slots, prob, neg_log_tail)
    if found is None:
        return None
    shares, totals, masses, named, lost = (np.asarray(each, dtype=np.float64) for each in found)
    kept = masses > 0.0
    shares, totals, masses, named = shares[kept], totals[kept], masses[kept], named[kept]
    clients = num_slots * totals / (prob * shares) * (1.0 - 1e-14)
    weights = masses * totals * (1.0 + _SUMMED)
    return LabelledShares(clients, weights, named, float(lost))


def _true(filled: np.ndarray, seen: np.ndarray, fewer: np.ndarray, crowded: bool) -> np.ndarray:
    """Pr[an empty slot taken by the target keeps its label] for each K. Any number in [0, 1] is sound.

    Shares are even where true[k] = seen + fewer (filled - true[k-1]). The recursion runs upwards while errors
    shrink, and downwards from the last K, at which no label is false unless K = m (`crowded`).
    """
    true, turn = np.ones(seen.size), int(np.count_nonzero(fewer < 1.0))
    before = 1.0
    for i in range(turn if crowded else min(turn, seen.size - 1)):
        before = true[i] = min(max(seen[i] + fewer[i] * (filled[i] - before), 0.0), 1.0)
    for i in range(seen.size - 1, turn, -1):
        true[i - 1] = min(max(filled[i] + (seen[i] - true[i]) / fewer[i], 0.0), 1.0)
    return true


def shares(num_clients: int, num_slots: int, prob: float, law: np.ndarray, low: int, high: int) -> tuple:
    """(w, T) for K = low, ..., high, w rounded up and T down. Outside, and at `high`, no label is false.

    Args:
      law: law of K, with relative errors of at most _QUOTIENT / 4.
    """
    n, m = num_clients, num_slots
    k = np.arange(low, high + 1.0)
    before = np.append(law[low - 1] if low else 0.0, law[low:high])
    fewer = before / law[low : high + 1] * (m - k + 1.0) / np.maximum(k, 1.0)
    away = m * (1.0 - prob) / prob
    seen = (k + away) / n
    true = _true(k / n, seen, fewer, high == m)
    false = fewer * (1.0 - np.append(1.0, true[:-1]))
    # Probability that the target is drawn in an occupied slot, plus false labels of slots of its own.
    occupied = seen - fewer * (1.0 - k / n) + false
    filled = k / m
    total = 1.0 - prob + prob * (filled * (1.0 + false) + (1.0 - filled) * true)
    off = _QUOTIENT * (1.0 + fewer + seen)
    share = np.maximum(np.where(k < m, true, 0.0), np.where(k > 0.0, occupied, 0.0)) + off
    return share, total - prob * off


def _counted(n: int, m: int, prob: float, mass: float) -> tuple:
    """Shares, T, masses and last K of ranges of K, and the mass outside, from the computed law of K."""
    law = occupancy.exact(n - 1, m, prob)
    matters = np.flatnonzero(law > max(math.exp(-mass - 8.0), _LEAST))
    low, high = int(matters[0]), int(matters[-1])
    share, total = shares(n, m, prob, law, low, high)
    mean, variance = occupancy.moments(n - 1.0, float(m), prob)
    ends = np.rint(mean + math.sqrt(variance) * _EDGES)
    # The last K is a range of its own, in which no label is false.
    ends = np.unique(np.clip(np.append(ends, [high - 1.0, float(high)]), low, high)).astype(int) - low
    starts = np.append(0, ends[:-1] + 1)
    masses = np.add.reduceat(law[low : high + 1], starts)
    outside = float(law[:low].sum() + law[high + 1 :].sum()) * (1.0 + _SUMMED) + _LEAST
    most = low + ends.astype(float)
    return np.maximum.reduceat(share, starts), np.minimum.reduceat(total, starts), masses, most, outside


def _bounded(n: int, m: int, prob: float, mass: float) -> tuple | None:
    """Shares, T, masses and largest K of levels of K and the number of others, and the mass outside, if known."""
    exponents = chernoff.levels(_LABEL_LEVELS, mass)
    mean, variance = occupancy.moments(n - 1.0, float(m), prob)
    away = np.array([occupancy.deviation(variance, each) for each in exponents])
    least, most = np.maximum(np.floor(mean - away) - 1.0, 0.0), np.minimum(np.ceil(mean + away) + 1.0, m)
    others = np.full(exponents.shape, n - 1.0)
    fewest, highest = others, others
    if prob < 1.0:
        fewest, highest = chernoff.fewest(n - 1.0, prob, exponents), chernoff.most(n - 1.0, prob, exponents)
    if (most >= fewest).any() or least[-1] < 1.0:
        return None
    fewer = most * (most - 1.0) / ((fewest + most) * (fewest + 1.0 - most))
    share = (most + fewer) / (fewest + 1.0)
    seen = least / (highest + 1.0)
    taken = np.array([occupancy.taken(*each) for each in zip(fewest, most)])
    at_least = np.maximum(seen - taken, 0.0) / (1.0 - seen)
    total = 1.0 - prob + prob * (least / m * (1.0 - most / (fewest + 1.0)) * (1.0 + at_least) + seen)
    sides = 2.0 if prob >= 1.0 else 4.0
    beyond = np.minimum(sides * np.exp(-exponents), 1.0)
    masses = -np.diff(np.append(1.0, np.minimum.accumulate(beyond)))
    return share * (1.0 + 1e-12), total * (1.0 - 1e-12), masses, most, 3.0 * beyond[-1]


# Error of a logarithm of a moment, at most, for each of the factors.
_ERROR = 2e-14
# Arguments of moments, relative to sqrt(x / m), and the largest.
_ARGUMENTS, _MOST_ARGUMENT = np.geomspace(0.5, 8.0, 60), 0.4
# Of sums over a window: arguments of moments times sqrt(m), and parts of the mean below which they are rare.
_TILTS, _PARTS = np.geomspace(0.3, 30.0, 60), np.linspace(0.02, 0.98, 33)
# Of loads: keys; deviations by which the numbers of slots occupied are below their means; arguments of moments, and
# numbers less the mean, in units of its root; the part of a load at which a chord begins.
_KEYS, _FEWER, _PART = 64, np.append(np.linspace(0.5, 6.0, 12), np.linspace(7.0, 15.0, 9)), 0.6
_ORDERS = np.geomspace(0.05, 60.0, 80)
_APART = np.concatenate([np.linspace(-0.5, 8.0, 80), np.geomspace(8.1, 60.0, 30)])
# Levels: -log of the mass beyond.
_LEVELS = (0.7, 1.4, 2.1, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 17.0, 20.0, 24.0, 28.0, 34.0)
# Without colluders: levels, the first one with its mean kept. In units of the mean share over sqrt(m): deviations of
# shares, places of their scale, its least value, and what is usual at most and at least. Cells of the mean share, and
# the exponent of a normal law at which choices are compared.
_KEPT_LEVELS = (6.0, 7.0, 9.0, 12.0, 16.0, 21.0, 27.0)
_DEVIATIONS = np.append(1e-9, np.geomspace(0.02, 12.0, 90))
_PLACES = np.array([-1.0, -0.4, 0.0, 0.4, 0.8, 1.4, 2.2, 3.4, 5.5, 9.0])
_LEAST_SCALES, _USUAL = (0.8, 1.8, 2.5), tuple(itertools.product((2.0, 2.5, 3.0, 4.0, 6.0), repeat=2))
_CELLS, _TYPICAL, _NEGLIGIBLE = 64, 6.0, 15.0
# Fewest heavy slots, whose steps have stages; the least T of a level beside colluders, and without them.
_FEWEST, _LEAST_TOTAL, _ANY_TOTAL = 34.0, 0.3, 1e-3
# Fewest slots for which the tails are small.
SMALLEST = 100
# Beside colluders: fewest honest clients of a slot, shares of the slots that excesses and shortfalls may be worth, and
# factors of the least share that may be cut.
_FEWEST_HONEST = 3.0
_BUDGETS, _CUTS = (1e-4, 3e-4, 0.001, 0.003, 0.01, 0.03, 0.1), (1.0, 1.1, 1.3, 2.0)
# Largest load of common slots: beyond, nearly all show an honest message, and T2' is as small.
_MOST_LOAD = 20.0


class Redrawn(NamedTuple):
    """Levels: masses of the labels, T from below, and the target's shares: `values` in `numbers` of slots, else 0.

    masses, totals: [levels]. values, numbers: [levels, kinds], decreasing values; numbers from above.
    lost: mass of the labels at no level, times the largest sum of shares there. Without colluders shares are
    over T, and masses include it.
    """

    masses: np.ndarray
    totals: np.ndarray
    values: np.ndarray
    numbers: np.ndarray
    lost: float

    @property
    def two_kinds(self) -> tuple[np.ndarray, np.ndarray]:
        """Values and numbers of two kinds, [levels, kinds]; of more kinds the last two are one, and the others."""
        if self.values.shape[1] == 2:
            return self.values, self.numbers
        sums, values = self.values * self.numbers, self.values[:, [0, -2]]
        numbers = np.stack([sums[:, :-2].sum(axis=1), sums[:, -2:].sum(axis=1)], axis=1) / values
        numbers[:, 0] = np.maximum(numbers[:, 0], _FEWEST)
        return values, np.ceil(numbers * (1.0 + 1e-12))


def _largest(
    log_moment: Callable[[np.ndarray], np.ndarray],
    factors: float,
    x: np.ndarray,
    most: float = _MOST_ARGUMENT,
) -> np.ndarray:
    """Numbers that a sum exceeds with probability e^-x at most; log_moment: of the sum, `factors` factors."""
    t = np.minimum(_ARGUMENTS * np.sqrt(x[:, None] / factors), most)
    return ((log_moment(t) + factors * _ERROR + x[:, None]) / t).min(axis=1)


def _key_left(t: np.ndarray, rate: float) -> np.ndarray:
    """log E e^(t (1 - E)), E the smaller of 1 and an exponential variable of this rate."""
    more = np.where(rate + t == 0.0, 1e-300, rate + t)
    with np.errstate(over="ignore"):
        return np.log1p(rate * np.expm1(more) / more) - rate


class _BinomialLoads(NamedTuple):
    """Binomial numbers N that a multiple of G is not more dispersed than, but for few clients; [choices].

    G is the sum of 1/(1 + S_i) over L_s. For convex monotone f with slopes in [-1, 1] E f(scale G) is at most
    E f(N) + missing, N ~ Bin(honest, scale / window).
    """

    window: float
    honest: float
    scale: np.ndarray
    missing: np.ndarray

    @classmethod
    def of(cls, window: int, honest: float) -> _BinomialLoads:
        """N for least numbers of a client's slots that others occupy with smaller keys than its own."""
        m, keys = float(window), np.arange(_KEYS) / _KEYS
        # Probability that a slot is occupied by an honest client with a key below these.
        shown = -np.expm1((honest - 1.0) * np.log1p(-keys / m))
        mean, spread = (m - 1.0) * shown, np.sqrt((m - 1.0) * shown * (1.0 - shown))
        fewest = np.maximum(mean - _FEWER[:, None] * spread, 0.0)
        t = _arguments((m - 1.0) * shown[-1])
        log_moment = (m - 1.0) * (np.log1p(shown[:, None] * np.expm1(-t)) + _ERROR)
        missing = np.where(fewest > 0.0, _stop_loss(log_moment, t, -fewest), 0.0).mean(axis=1)
        scale = 1.0 + fewest.mean(axis=1) * (1.0 - 1e-13)
        return cls(m, honest, scale, honest / m * missing * (1.0 + 1e-9))

    @property
    def _mean(self) -> float:
        """Mean of N, of the first choice."""
        return self.honest * self.scale[0] / self.window

    @property
    def away(self) -> np.ndarray:
        """Distances of loads from their mean, relative to it."""
        return _APART / np.sqrt(self._mean)

    @property
    def _t(self) -> np.ndarray:
        return _arguments(self._mean)

    def _log_moments(self, sign: float) -> np.ndarray:
        """log E e^(sign t N) from above, [choices, arguments]."""
        rate = self.scale[:, None] / self.window
        return self.honest * (np.log1p(rate * np.expm1(sign * self._t)) + _ERROR)

    def shortage(self, at: np.ndarray) -> np.ndarray:
        """E(at - G)_+ from above, [choices, at]."""
        return self._apart(-1.0, at)

    def excess(self, at: np.ndarray) -> np.ndarray:
        """E(G - at)_+ from above, [choices, at]."""
        return self._apart(1.0, at)

    def _apart(self, sign: float, at: np.ndarray) -> np.ndarray:
        """E(sign (G - at))_+ from above, [choices, at]."""
        found = _stop_loss(self._log_moments(sign)[:, None], self._t, sign * self.scale[:, None] * at)
        return (found + self.missing[:, None]) / self.scale[:, None]

    def beyond(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Loads below which, and above which, G is with probability e^-x at most."""
        # Either N is far off, or more than one client is missing.
        half = x[:, None] + np.log(2.0)
        rare = self.missing <= np.exp(-half)
        low, high = (
            ((self._log_moments(sign) + half[..., None]) / self._t).min(axis=2) for sign in (-1.0, 1.0)
        )
        least = np.where(rare, (-low - 1.0) / self.scale, 0.0).max(axis=1)
        return np.maximum(least, 0.0), np.where(rare, (high + 1.0) / self.scale, np.inf).min(axis=1)


def _arguments(mean: float) -> np.ndarray:
    """Arguments of moments of a sum of indicators with this mean."""
    return np.minimum(_ORDERS / np.sqrt(mean), 6.0)


def _left(slots: float, able: float) -> float:
    """Mean of 1 - kappa in a slot in which so many clients may be."""
    return 1.0 + slots / (able + 1.0) * np.expm1((able + 1.0) * np.log1p(-1.0 / slots))


def _share(number: np.ndarray) -> np.ndarray:
    """(1 - e^-x)/x."""
    return -np.expm1(-number) / number


def _stop_loss(log_moment: np.ndarray, t: np.ndarray, at: np.ndarray, power: float = 1.0) -> np.ndarray:
    """E(X - at)_+^k from above, k the power, log_moment of X at every t, as u_+^k <= (k/t)^k e^(tu-k).

    Such moments of numbers of clients are never above e^700.
    """
    factor = power * (np.log(power / t) - 1.0)
    return np.exp(np.minimum((log_moment + factor - t * at[..., None]).min(axis=-1), 700.0))


def _beyond(log_moment: np.ndarray, t: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Pr[X > at] from above (Chernoff)."""
    return np.exp(np.minimum((log_moment - t * at[..., None]).min(axis=-1), 0.0))


def excesses(window: int, shares: np.ndarray) -> np.ndarray:
    """E(W_s - a)_+ from above at every share a, all other clients being there."""
    m = float(window)
    loads = _BinomialLoads.of(window, m - 1.0)
    at = (m - 1.0) / m * np.maximum(1.0 - loads.away, 0.015)
    part = _PART * at
    reached = _share(at) * (1.0 + 1e-13)
    # Chords of the share from zero, and from a part of the load.
    near, far = (_share(part) - _share(at)) / (at - part), (1.0 - _share(part)) / part
    means = near * loads.shortage(at) + (far - near) * loads.shortage(part)
    return _best(reached, means.min(axis=0) * (1.0 + 1e-9), shares)


def shortfalls(window: int, shares: np.ndarray) -> np.ndarray:
    """E(a - W_s)_+ from above at every share a, all other clients being there."""
    m = float(window)
    loads, (sums, seldom) = _BinomialLoads.of(window, m - 1.0), _small_sums(window, m - 1.0)
    at, factor = (m - 1.0) / m * np.maximum(1.0 + loads.away, 0.015), _steepest(sums)[:, None]
    ratio = factor * at
    reached = _share(ratio) * (1.0 - 1e-13)
    # A tangent of the share.
    steep = (reached * (1.0 + 1e-12) - np.exp(-ratio)) / ratio * factor
    means = steep * loads.excess(at).min(axis=0) * (1.0 + 1e-9) + 0.5 * seldom[:, None]
    return _best(-reached.ravel(), means.ravel(), -shares)


def _small_sums(window: int, honest: float) -> tuple[np.ndarray, np.ndarray]:
    """Numbers, and the probability that the sum S of one client is below each."""
    m = float(window)
    least = (m - 1.0) * _left(m, honest - 1.0)
    t = _arguments(least)
    keys = (m - 1.0) * (_key_left(-t, (honest - 1.0) / m) + _ERROR)
    sums = _PARTS * least
    return sums, _beyond(keys, t, -sums)


def _steepest(sums: np.ndarray) -> np.ndarray:
    """-(1 + S) log(1 - 1/(1 + S)) from above."""
    return -(1.0 + sums) * np.log1p(-1.0 / (1.0 + sums)) * (1.0 + 1e-9)


def _best(at: np.ndarray, means: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The least of the means at numbers that are not above the wanted ones; 1 where there is none."""
    order = np.argsort(at)
    least = np.append(1.0, np.minimum.accumulate(means[order]))
    return np.minimum(least[np.searchsorted(at[order], wanted, side="right")] * (1.0 + 1e-12), 1.0)


class _BoundedLoads(NamedTuple):
    """Loads of a slot, and a bound at each."""

    loads: np.ndarray
    bounds: np.ndarray

    def first(self, limits: np.ndarray, largest: bool) -> np.ndarray:
        """The largest load, or the smallest, with a bound of at most this limit; NaN if there is none."""
        side = 1.0 if largest else -1.0
        order = np.argsort(self.bounds)
        best = np.append(-np.inf, np.maximum.accumulate(side * self.loads[order]))
        found = best[np.searchsorted(self.bounds[order], limits, side="right")]
        return np.where(np.isfinite(found), side * found, np.nan)


def deficits(window: int, honest: float) -> _BoundedLoads:
    """E(1 - G/g)_+ from above at loads g below 1; so many honest clients may be in every slot."""
    loads = _BinomialLoads.of(window, honest)
    at = honest / window * np.maximum(1.0 - loads.away, 0.015)
    rare = _rare_deficits(window, honest)
    at, bounds = np.append(at, rare.loads), np.append(loads.shortage(at).min(axis=0) / at, rare.bounds)
    return _BoundedLoads(at[at < 1.0], bounds[at < 1.0] * (1.0 + 1e-12))


def _rare_deficits(window: int, honest: float) -> _BoundedLoads:
    """The same by the number of the clients in L_s, which is smaller where hardly any client may be missing.

    With g = l/(1 + sigma) the loss is at most (1 - |L_s|/l)_+, and (S_i - sigma)_+/((1 + sigma) l) for each of L_s.
    """
    m = float(window)
    sums = (m - 1.0) * _left(m, honest)
    number = honest * (1.0 + sums) / m
    t, then = _arguments(number), _arguments(sums)
    clients = number * np.maximum(1.0 - _APART / np.sqrt(number), 0.015)
    sums = sums * (1.0 + _APART / np.sqrt(sums))
    few = _stop_loss(fewer_named_nowhere_else(window, honest, t), t, -clients)
    high = (m - 1.0) * (_key_left(then, -honest * np.log1p(-1.0 / m)) + _ERROR)
    # A client is in L_s with probability (1 + S)/m.
    beyond = _stop_loss(high, then, sums) + _stop_loss(high, then, sums, 2.0) / (1.0 + sums)
    bounds = (few[:, None] + honest / m * beyond) / clients[:, None]
    loads = clients[:, None] / (1.0 + sums) * (1.0 - 1e-13)
    return _BoundedLoads(loads.ravel(), bounds.ravel())


def fewer_named_nowhere_else(window: int, honest: float, t: np.ndarray) -> np.ndarray:
    """log E e^(-t |L_s|) from above, t >= 0; so many honest clients may be in every slot."""
    m = float(window)
    return (m - 1.0) * (_key_left((honest - 2.0) / m * np.expm1(-t), honest / m) + _ERROR)


def surpluses(window: int, honest: float) -> _BoundedLoads:
    """E(G/g - 1)_+/2 from above at loads g, G the sum of 1/S_i over L_s; where an S_i is small shares count as lost."""
    loads, m = _BinomialLoads.of(window, honest), float(window)
    sums, seldom = _small_sums(window, honest)
    at = honest / m * np.maximum(1.0 + loads.away, 0.015)
    factor = 1.0 + 1.0 / sums[:, None]
    reached, small = factor * at, honest / m * ((1.0 + sums) * seldom)[:, None]
    bounds = 0.5 * loads.excess(at).min(axis=0) / at + np.maximum(1.0, 1.0 / reached) * small
    return _BoundedLoads(np.ravel(reached * (1.0 + 1e-12)), np.ravel(bounds * (1.0 + 1e-12)))


def redrawn(slots: int, window: int, neg_log_tail: float) -> Redrawn | None:
    """Levels for `slots` successive slots of a window, all other clients being there; None for small windows.

    neg_log_tail: the lost mass is about exp(-neg_log_tail).
    """
    if window < SMALLEST:
        return None
    exponents, number = chernoff.levels(_KEPT_LEVELS, neg_log_tail), float(slots)
    # Each of five events of a level has this probability, those of all slots and of all clients together.
    seldom = exponents + np.log(5.0)
    high, low = _extremes(window, seldom + np.log(number), seldom + np.log(2.0 * window))
    usual = _least_mean(window, seldom)
    keys = _largest(_key_sum(number, (window - 1.0) / window), number, seldom) / number
    shapes = _Labels(slots, float(window), high, low, np.maximum(usual, low), keys)
    usable = np.count_nonzero(np.logical_and.accumulate(shapes.totals(shapes.mean) >= _ANY_TOTAL))
    if not usable:
        return None
    shapes = _Labels(slots, float(window), *(each[:usable] for each in shapes[2:]))
    beyond = np.exp(-exponents[:usable])
    choices = [_leveled(shapes, beyond, kept) for kept in _kept_means(shapes)]
    return min(
        (each for each in choices if each is not None),
        key=_typical(slots * shapes.middle**2, neg_log_tail),
        default=None,
    )


def _extremes(window: int, slots: np.ndarray, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All W_s from above and below, by tails of G, and of the sums S of all clients, with these exponents.

    A client's sum over its window without one slot is within one of that without another.
    """
    m = float(window)
    least, most = _BinomialLoads.of(window, m - 1.0).beyond(slots)
    sums = -_largest(lambda t: (m - 1.0) * _key_left(-t, (m - 2.0) / m), m, clients) - 1.0
    high = np.minimum(_share(np.maximum(least, 1e-9)) * (1.0 + 1e-13), 1.0)
    low = _least_share(_steepest(np.maximum(sums, 1e-3)) * most)
    return high, np.where(sums > 1e-3, low, 0.0)


def _least_mean(window: int, x: np.ndarray) -> np.ndarray:
    """Numbers below which the mean share is with probability e^-x at most."""
    m, half = float(window), x + np.log(2.0)
    most = _BinomialLoads.of(window, m - 1.0).beyond(half)[1]
    sums, seldom = _small_sums(window, m - 1.0)
    # Clients with small sums are few, by Markov's inequality.
    lost = 0.5 * seldom * np.exp(half)[:, None]
    return np.maximum((_least_share(_steepest(sums) * most[:, None]) - lost).max(axis=1), 0.0)


def _least_share(number: np.ndarray) -> np.ndarray:
    """(1 - e^-x)/x from below; x may be infinite."""
    return np.where(number < 600.0, _share(np.minimum(number, 600.0)), 0.0) * (1.0 - 1e-9)


class _Labels(NamedTuple):
    """Numbers of the target's shown slots and of a window's; and bounds on every W_s and on the mean key, [levels]."""

    slots: int
    window: float
    high: np.ndarray
    low: np.ndarray
    mean: np.ndarray
    keys: np.ndarray

    @property
    def middle(self) -> float:
        """Mean of a key, and of a share, rounded up."""
        return (1.0 - _left(self.window, self.window - 1.0)) * (1.0 + 1e-13)

    def totals(self, share: np.ndarray) -> np.ndarray:
        """T, from below, at these means of W_s, [..., levels]: not less than their sum over m."""
        part = self.slots / self.window
        return np.maximum(1.0 + part * (share - self.keys), part * share) - 1e-12


class _KeptMean(NamedTuple):
    """Law of omega/T at the first level; shares are majorized by omega (1 + e) and omega (1 - e').

    above, below: 1 + e and 1 - e'. at, bounds: places k and E(omega - k T)_+ from above.
    """

    above: float
    below: float
    at: np.ndarray
    bounds: np.ndarray


def _kept_means(labels: _Labels) -> Iterator[_KeptMean]:
    """Choices for the first level."""
    slots, m, middle = float(labels.slots), labels.window, labels.middle
    unit = middle / np.sqrt(m)
    high, low = middle + _DEVIATIONS * unit, (middle - _DEVIATIONS * unit)[::-1]
    high, low = high[high < 1.0], low[low > 0.0]
    excess, shortfall = excesses(int(m), high), shortfalls(int(m), low)
    t = _TILTS / np.sqrt(slots)
    rise = _key_sum(slots, (m - 1.0) / m)(t) + slots * _ERROR
    fall = _key_sum(slots, -m * np.log1p(-1.0 / m))(-t) + slots * _ERROR

    def over(key: np.ndarray) -> np.ndarray:
        """E(mean key - key)_+."""
        return _stop_loss(rise, t, slots * key) / slots

    at = middle + _PLACES * unit
    at = at[(at > 0.0) & (at < m / slots)]
    # W - k T = (1 - kv/m)(W - a) + (kv/m)(mean key - b), for any a.
    k = at[:, None]
    each = k * (slots / m)
    above = (1.0 - each) * excess + each * over((k - (1.0 - each) * high) / each)
    under = _stop_loss(fall, t, -slots * (k - (1.0 - each) * low) / each) / slots
    below = middle - k + (1.0 - each) * shortfall + each * under
    bounds = np.minimum(above.min(axis=1), below.min(axis=1))
    for least in middle - np.array(_LEAST_SCALES) * unit:
        raised = np.interp(least, low, shortfall)
        rare = (each * (over((k + each * low - least) / each) + shortfall)).min(axis=1)
        kept = np.append(middle + raised, bounds + np.minimum(rare, raised))
        for most, fewest in _USUAL:
            top, bottom = middle + most * unit, middle - fewest * unit
            if bottom > 0.0:
                part = bottom / top
                moved = np.interp(bottom, low, shortfall) + part * np.interp(top, high, excess)
                yield _KeptMean(
                    float(labels.high[0] / least) * (1.0 + 1e-12),
                    part * (1.0 - 1e-12),
                    np.append(0.0, at),
                    (kept + moved / (1.0 - part)) * (1.0 + 1e-12),
                )


def _leveled(labels: _Labels, beyond: np.ndarray, kept: _KeptMean) -> Redrawn | None:
    """Levels of one choice; None if shares of the first may sum up to more than one. beyond: mass beyond each."""
    apart, between = 1.0 - kept.below, (kept.above - kept.below) * (1.0 - 1e-12)
    # The mean share is in one of the cells; w and w/T there.
    edges = np.linspace(labels.mean, labels.high, _CELLS + 1)
    over = edges[1:] - labels.low
    wide = over * labels.high / (apart * (labels.high - labels.low) + kept.below * over)
    scale = np.maximum(np.maximum(wide, edges[1:]), labels.high / kept.above)
    totals = labels.totals(edges[:-1])
    ratio = np.maximum.accumulate((scale / totals).max(axis=0) * (1.0 + 1e-12))
    # The law that has chords between places for its transform.
    used = kept.at < ratio[0]
    at, bounds = np.append(kept.at[used], ratio[0]), np.append(kept.bounds[used], 0.0)
    corners = convex.hull(at, bounds)
    at, bounds = at[corners], bounds[corners]
    usual = np.diff(np.append(np.diff(bounds) / np.diff(at), 0.0)) + 1e-14 / np.diff(at).min()
    rare = -np.diff(beyond) * np.maximum.accumulate(totals.max(axis=0))[1:]
    ratios = np.append(at[1:], ratio[1:])
    light = np.ceil(labels.slots * (kept.above - 1.0) / between)
    whole = max(np.ceil(labels.slots * apart / between), _FEWEST)
    if ratio[0] * (kept.above * whole + kept.below * light) > labels.window * (1.0 - 1e-12):
        return None
    return Redrawn(
        np.append(usual, rare),
        np.ones(ratios.size),
        ratios[:, None] * [kept.above, kept.below],
        np.tile([whole, light], (ratios.size, 1)),
        float(beyond[-1]),
    )


def _typical(usual: float, neg_log_tail: float) -> Callable[[Redrawn], float]:
    """About the mean of normal laws' excesses over _TYPICAL, relative to that of this sum of squared shares.

    Lost mass counts relative to a unit's share of delta, of which neg_log_tail is the logarithm but for _NEGLIGIBLE.
    """

    def size(found: Redrawn) -> float:
        ratio = _squares(found) / np.square(found.totals) / usual
        mean = found.masses @ (np.sqrt(ratio) * np.exp(_TYPICAL * (1.0 - 1.0 / ratio)))
        return float(mean) + found.lost * np.exp(neg_log_tail - _NEGLIGIBLE)

    return size


def _key_sum(slots: float, rate: float) -> Callable[[np.ndarray], np.ndarray]:
    """Log moment of the sum of so many keys, each the smaller of 1 and an exponential variable of this rate."""
    return lambda t: slots * (t + _key_left(-t, rate))


def beside_colluders(slots: int, window: int, neg_log_tail: float, colluding: int) -> Redrawn | None:
    """`redrawn` beside colluders: labels name as many honest clients of every slot; None for too few of them.

    All others are known, too: their slots, their keys, and their messages.

    Args:
      colluding: number of all colluders, from above.
    """
    m, v, honest = float(window), float(slots), window - 1.0 - colluding
    if honest < _FEWEST_HONEST:
        return None
    below, above = deficits(window, honest), surpluses(window, honest)
    # Shares above any multiple of this one may be lost.
    largest = 1.0 / below.first(2.0 * m / v * np.exp(-np.array([neg_log_tail])), True)[0]
    exponents = chernoff.levels(_LEVELS, neg_log_tail)
    # Each of five events of a level has this probability.
    events = exponents + np.log(5.0)
    known = _most_known(v, colluding * v / m, colluding, events)
    shown = _left(m, honest) * (1.0 + 1e-9)

    beyond, choices = np.append(1.0, np.exp(-exponents)), []
    for size, factor in itertools.product(_BUDGETS, _CUTS):
        cut = factor * largest
        load, most = below.first(size * np.exp(-events), True), above.first(size * np.exp(-events), False)
        # No share from below is above the cut.
        most = np.maximum(most, 1.0 / cut)
        keys = _keys_less_shares(v, known, honest / m, (1.0 - 1.0 / m) * m / honest, most, events)
        totals = np.minimum.accumulate(1.0 - (keys + size * v) / m - 1e-12)
        values, numbers = _beside_known(v, known, shown, load, events)
        # Shares above those of this load: of weight 1 alone, and beside somebody known.
        numbers[:, 0] += size * v
        over = 0.5 * size * v / np.maximum(cut - values[:, 0], 1e-300)
        numbers = np.insert(numbers, 0, over, axis=1)
        values = np.insert(values, 0, cut, axis=1)
        usable = np.isfinite(values.sum(axis=1)) & (values[:, 1] < cut) & (totals >= _LEAST_TOTAL)
        last = np.count_nonzero(np.logical_and.accumulate(usable))
        if last:
            lost = float(beyond[last] * cut + np.exp(-neg_log_tail))
            masses, numbers = -np.diff(beyond[: last + 1]), np.ceil(numbers[:last] * (1.0 + 1e-12))
            choices.append(Redrawn(masses, totals[:last], values[:last], numbers, lost))
    usual = max(shown * (m / honest) ** 2, float(_share(np.array(honest / m))) ** 2)
    return min(choices, key=_typical(v * usual, neg_log_tail), default=None)


def _most_known(slots: float, others: float, colluding: int, exponents: np.ndarray) -> np.ndarray:
    """Numbers of slots with somebody known: colluders, and of honest clients `others` on average."""
    handed = _largest(lambda t: others * np.expm1(t), max(others, 1.0), exponents, 20.0)
    return np.minimum(np.ceil(colluding + handed), slots)


def _beside_known(
    slots: float, known: np.ndarray, shown: float, load: np.ndarray, exponents: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values and numbers of three kinds, [levels, kinds], above the shares at this load, [levels].

    In `known` slots at most is somebody known, and with probability `shown` each an honest client is shown there, of
    share 1/load. A vector of this share and of a smaller one than that of other slots is above both of their kinds.
    """
    counted = max(float(known[-1]) * shown, 1.0)
    more = _largest(
        lambda t: known[-1] * (np.log1p(shown * np.expm1(t)) - shown * t + _ERROR), counted, exponents, 5.0
    )
    beside, share = (1.0 + 1e-13) / load, np.minimum(_share(load) * (1.0 + 1e-13), 1.0)
    rest = np.maximum((share - shown * beside) / (1.0 - shown), 0.0)
    values = np.stack([beside, share, rest], axis=1)
    return values, np.stack([shown * known + more, slots - known, (1.0 - shown) * known], axis=1)


def _keys_less_shares(
    slots: float, known: np.ndarray, rate: float, most: float, load: np.ndarray, exponents: np.ndarray
) -> np.ndarray:
    """Sum over the slots of the shown key less the share at this load, from above; [levels].

    A key is above u with probability at most e^(-rate u). In `known` slots at most is somebody known: there a share is
    at most `most`, below which the summand grows with the other's key, and 0 if no honest client is shown.
    """
    alone, beside = _share(load) * (1.0 - 1e-13), np.minimum(1.0 / load, most) * (1.0 - 1e-13)
    t = _TILTS / np.sqrt(slots)
    without = t * (1.0 - alone[:, None]) + _key_left(-t, rate)
    # Both means grow with x.
    x = np.where(np.abs(t - rate) < 1e-3, 1e-3, t - rate)
    means = np.expm1(x) / x
    there = np.log(means + rate * np.exp(-t * beside[:, None]) * (means - 1.0) / x)
    some = slots * without + np.maximum(known[:, None] * (there - without), 0.0)
    return ((some + slots * 1e-12 + exponents[:, None]) / t).min(axis=1)


def in_common_slots(
    others: int, slots: int, prob: float, neg_log_tail: float, colluding: int
) -> Redrawn | None:
    """Levels of one cell for common slots with colluders; None where none are known.

    Shares depend on the labels by two sums: of names, and of keys. So all slots but the heavy ones have the same bound.

    Args:
      others: number of honest clients besides the target. prob: of each of them to take part.
      neg_log_tail: the lost mass is about exp(-neg_log_tail). colluding: number of colluders, each in its own slot.
    """
    if not 0 < colluding < slots or not 0 < others * prob <= _MOST_LOAD * slots:
        return None
    m, each = float(slots), prob / slots
    exponents = chernoff.levels(_LEVELS, neg_log_tail)
    # Each of six events of a level has this probability.
    seldom = exponents + np.log(6.0)
    mean, variance = occupancy.moments(float(others), m, prob)
    away = np.array([occupancy.deviation(variance, level) for level in seldom]) + 1e-12 * mean
    named = np.minimum(np.ceil(mean + away), min(others, slots))
    fewest, most = others - named, others - np.maximum(np.floor(mean - away), 0.0) + 1.0
    # Sums of 1 - key over all slots, the time that others do not take part counted likewise.
    absent, often = m * (1.0 - prob) / prob, -others * np.log1p(-each)
    keys = np.maximum(-_largest(lambda t: m * _key_left(-t, others * each), m, seldom), 0.0)
    high = absent + np.minimum(_largest(lambda t: m * _key_left(t, often), m, seldom), named)
    low = np.maximum(absent + keys - 1.0, 0.0) * (1.0 - 1e-13)
    if fewest[-1] < 1.0:
        return None
    known = np.full(exponents.size, float(min(colluding, slots)))
    load, rate = fewest / (1.0 + high) * (1.0 - 1e-13), others * each
    shown = (1.0 + np.expm1((others + 1.0) * np.log1p(-each)) / (each * (others + 1.0))) * (1.0 + 1e-9)
    values, numbers = _beside_known(m, known, shown, load, seldom)
    least = most / np.maximum(low, 1e-300) * (1.0 + 1e-9)
    totals = 1.0 - each * _keys_less_shares(m, known, rate, (1.0 - each) / rate, least, seldom) - 1e-12
    if totals.min() < _LEAST_TOTAL:
        return None
    beyond = np.append(1.0, np.exp(-exponents))
    lost = float(beyond[-1] * (1.0 + values[-1, 0]))
    return Redrawn(-np.diff(beyond), totals, values, np.ceil(numbers * (1.0 + 1e-12)), lost)


def _squares(found: Redrawn) -> np.ndarray:
    """Sums of the squared shares, of two kinds, [levels]."""
    values, numbers = found.two_kinds
    return (np.square(values) * numbers).sum(axis=1)
