"""T2d: shares of a client's message in its window's slots if the label of its own slot is drawn anew.

Every client has a key; a slot shows the client with the smallest one. Given the labels of all other slots the target
would be shown in slot s with probability W_s <= (1 - e^(-G))/G, G the sum of 1/(1 + S_i) over the clients i that may
be in s and are drawn nowhere else, S_i the sum of 1 - key drawn over the other slots of i's window. In a slot with a
colluder, if an honest client is there, W_s <= 1/G. Moments of these sums are at most those of independent terms, by
negative association [docs/theory_hexagon.md, section 5]. NumPy float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import chernoff, occupancy

# Error of a logarithm of a moment, at most, for each of the factors.
_ERROR = 2e-14
# Arguments of moments, relative to sqrt(x / m), and the largest; numbers of exponents x.
_ARGUMENTS, _MOST_ARGUMENT, _EXPONENTS = np.geomspace(0.5, 8.0, 60), 0.4, 90
# Of mean excesses and shortfalls: arguments of moments times sqrt(m), thresholds less the mean over sqrt(m), and
# parts of a threshold below which a sum is rare. The largest value of x |phi'(x)|, rounded up.
_TILTS, _PARTS = np.geomspace(0.3, 30.0, 60), np.linspace(0.02, 0.98, 33)
_AWAY = np.append(np.linspace(-0.1, 2.5, 40), np.linspace(2.7, 12.0, 30))
_STEEPEST = 0.298426
# Levels: -log of the mass beyond.
_LEVELS = (0.7, 1.2, 2.0, 3.2, 5.0, 8.0, 12.0, 18.0, 26.0)
# Without colluders: levels, the first one with its mean kept. In units of the mean share over sqrt(m): deviations of
# shares, places of their scale, its least value, and what is usual at most and at least. Cells of the mean share, and
# the exponent of a normal law at which choices are compared.
_KEPT_LEVELS = (6.0, 7.0, 9.0, 12.0, 16.0, 21.0, 27.0)
_DEVIATIONS = np.append(1e-9, np.geomspace(0.02, 12.0, 90))
_PLACES = np.array([-1.0, -0.4, 0.0, 0.4, 0.8, 1.4, 2.2, 3.4, 5.5, 9.0])
_LEAST_SCALES, _USUAL = (0.8, 1.8, 2.5), ((3.0, 3.0), (4.0, 3.0), (4.0, 4.0), (6.0, 6.0))
_CELLS, _TYPICAL = 64, 6.0
# Mean excesses allowed, in units of m^(-1/2); numbers of bounds on a share.
_EXCESS, _SHARES = np.geomspace(0.01, 2.0, 24), 1500
# Fewest heavy slots, whose steps have stages; the least T of a level beside colluders, and without them.
_FEWEST, _LEAST_TOTAL, _ANY_TOTAL = 34.0, 0.3, 1e-3
# Fewest slots for which the tails are small, without colluders and beside them.
SMALLEST, SMALLEST_BESIDE = 150, 250
# Largest load of common slots: beyond, nearly all show an honest message, and T2' is as small.
_MOST_LOAD = 20.0


class Redrawn(NamedTuple):
    """Levels: masses of the labels; the target's share is `heavy` in `whole` slots, `share` in others, else 0.

    A level is as large as the largest of its cells: T from below and the number of slots of this share, from above,
    both [levels, cells]. heavy, whole: [levels]. lost: mass of the labels at no level, times the largest sum of shares
    that it may have. Without colluders a level has one cell; shares are over T, and masses include it.
    """

    masses: np.ndarray
    shares: np.ndarray
    totals: np.ndarray
    numbers: np.ndarray
    heavy: np.ndarray
    whole: np.ndarray
    lost: float


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
    return np.log1p(rate * np.expm1(more) / more) - rate


class _Tails(NamedTuple):
    """Bounds at every exponent x: each holds but for probability e^-x.

    fewest, most: number of the clients in L_s. low, high: S_i.
    """

    x: np.ndarray
    fewest: np.ndarray
    most: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def shares(self, clients: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """W_s from above and below, by tails of the number of clients and of the keys with these exponents.

        A client's sum over its window without one slot is within one of that without another.
        """
        at, then = np.searchsorted(self.x, clients), np.searchsorted(self.x, keys)
        high = _share(np.maximum(self.fewest[at], 1e-9) / (2.0 + self.high[then])) * (1.0 + 1e-13)
        low = _share(self.most[at] / np.maximum(self.low[then] - 1.0, 1e-9)) * (1.0 - 1e-9)
        return np.minimum(high, 1.0), low


def _tails(window: int, largest: float, colluding: int = 0) -> _Tails | None:
    """Tails if so many of the clients that may be in a slot collude; None for too many."""
    m, honest = float(window), window - 1.0 - colluding
    x = np.geomspace(0.25, largest, _EXPONENTS)
    if honest < 1.0:
        return None
    # Probability that a client is named in another slot, from above and from below.
    often, seldom = _named(m, honest), _named(m, m)
    allowed = _falling(_TILTS / np.sqrt(m), often)
    if not allowed.size:
        return None
    # The 2 m slots in which one of L_s may be named count as alike.
    drawn = _largest(
        lambda t: 2.0 * m * np.log1p(0.5 * honest / m * often * np.expm1(t)), 2.0 * m, x, allowed[-1]
    )
    least = -_largest(lambda t: 2.0 * (m - 1.0) * np.log1p(0.5 * seldom * np.expm1(-t)), 2.0 * m, x)
    high = _largest(lambda t: (m - 1.0) * _key_left(t, -m * np.log1p(-1.0 / m)), m, x)
    low = -_largest(lambda t: (m - 1.0) * _key_left(-t, honest / m), m, x)
    return _Tails(x, honest - drawn, m - 1.0 - least, low, high)


def _falling(t: np.ndarray, named: float) -> np.ndarray:
    """Of increasing arguments those at which E e^(-t |L_s|) falls with the number of clients that may be in s."""
    return t[named * np.expm1(t) <= t]


def _named(slots: float, able: float) -> float:
    """Probability that the others' labels name a client, `able` clients being possible in each of the slots but one."""
    return (1.0 - slots) * np.expm1(able * np.log1p(-1.0 / slots)) / able


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


def excesses(window: int, colluding: int, shares: np.ndarray) -> np.ndarray:
    """E(W_s - a)_+ from above at every share a; `_tails` says for which numbers of colluders."""
    m, honest = float(window), window - 1.0 - colluding
    named, most = _named(m, honest), (m - 1.0) * _left(m, m)
    t = _TILTS / np.sqrt(m)
    keys = (m - 1.0) * (_key_left(t, -m * np.log1p(-1.0 / m)) + _ERROR)
    falling = _falling(t, named)
    clients = 2.0 * m * (np.log1p(0.5 * honest / m * named * np.expm1(falling)) + _ERROR) - falling * honest

    away = _AWAY * np.sqrt(m)
    number, sums = np.maximum(honest * (1.0 - named) - away, 1.0), most + np.maximum(away, -most)
    parts, rate = _PARTS * number[:, None], -_STEEPEST * np.log(_PARTS) / (1.0 - _PARTS)
    few = rate * (_stop_loss(clients, falling, -number) / number)[:, None] + _beyond(clients, falling, -parts)
    ratio = number[:, None] / (1.0 + sums)
    reached = _share(ratio) * (1.0 + 1e-13)
    # A client is in L_s with probability (1 + S)/m.
    beyond = _stop_loss(keys, t, sums) + _stop_loss(keys, t, sums, 2.0) / (1.0 + sums)
    much = ((reached - np.exp(-ratio)) * beyond)[..., None] / number + _beyond(clients, falling, -number)
    means = few.min(axis=1)[:, None] + much.min(axis=2)
    return _best(reached.ravel(), means.ravel(), shares)


def shortfalls(window: int, colluding: int, shares: np.ndarray) -> np.ndarray:
    """E(a - W_s)_+ from above at every share a; `_tails` says for which numbers of colluders."""
    m, honest = float(window), window - 1.0 - colluding
    named = _named(m, m)
    t = _TILTS / np.sqrt(m)
    keys = (m - 1.0) * (_key_left(-t, (honest - 1.0) / m) + _ERROR)
    clients = 2.0 * m * (np.log1p(0.5 * (m - 1.0) / m * named * np.expm1(-t)) + _ERROR) + t * (m - 1.0)

    away = _AWAY * np.sqrt(m)
    number = (m - 1.0) * (1.0 - named) + away
    sums = np.maximum((m - 1.0) * _left(m, honest - 1.0) - away, 1.0)
    parts = _PARTS * sums[:, None]
    low = ((1.0 + sums) / sums * _stop_loss(keys, t, -sums))[:, None] / parts
    ratio = number[:, None] / sums
    reached = _share(ratio) * (1.0 - 1e-13)
    steep = (reached * (1.0 + 1e-12) - np.exp(-ratio)) / ratio
    most = steep * _stop_loss(clients, t, number)[:, None] / sums
    means = most + (steep[..., None] * low + (m - 1.0) * _beyond(keys, t, -parts)).min(axis=2)
    return _best(-reached.ravel(), means.ravel(), -shares)


def _best(at: np.ndarray, means: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The least of the means at numbers that are not above the wanted ones; 1 where there is none."""
    order = np.argsort(at)
    least = np.append(1.0, np.minimum.accumulate(means[order]))
    return np.minimum(least[np.searchsorted(at[order], wanted, side="right")] * (1.0 + 1e-12), 1.0)


def _bounded(shares: np.ndarray, means: np.ndarray, size: float, masses: np.ndarray) -> np.ndarray:
    """The first share, level by level, whose mean excess is at most size times mass (Markov); NaN if there is none."""
    enough = means[None, :] <= size * masses[:, None]
    return np.where(enough.any(axis=1), shares[np.argmax(enough, axis=1)], np.nan)


def redrawn(slots: int, window: int, neg_log_tail: float) -> Redrawn | None:
    """Levels for `slots` successive slots of a window, all other clients being there; None for small windows.

    neg_log_tail: the lost mass is about exp(-neg_log_tail).
    """
    longest = 2.0 * np.log(window) + neg_log_tail + 20.0
    tails = _tails(window, longest) if window >= SMALLEST else None
    if tails is None:
        return None
    exponents, number = chernoff.levels(_KEPT_LEVELS, neg_log_tail), float(slots)
    # Each of five events of a level has this probability, those of all slots and of all clients together.
    seldom = exponents + np.log(5.0)
    high, low = tails.shares(seldom + np.log(number), seldom + np.log(2.0 * window))
    keys = _largest(_key_sum(number, (window - 1.0) / window), number, seldom) / number
    shapes = _Labels(slots, float(window), high, low, keys)
    usable = np.count_nonzero(np.logical_and.accumulate(shapes.totals(low) >= _ANY_TOTAL))
    if not usable:
        return None
    shapes = shapes._replace(high=high[:usable], low=low[:usable], keys=keys[:usable])
    beyond = np.exp(-exponents[:usable])
    choices = [_leveled(shapes, beyond, kept) for kept in _kept_means(shapes)]
    return min((each for each in choices if each is not None), key=_typical(shapes), default=None)


class _Labels(NamedTuple):
    """Numbers of the target's shown slots and of a window's; and bounds on every W_s and on the mean key, [levels]."""

    slots: int
    window: float
    high: np.ndarray
    low: np.ndarray
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
    excess, shortfall = excesses(int(m), 0, high), shortfalls(int(m), 0, low)
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
    edges = np.linspace(labels.low, labels.high, _CELLS + 1)
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
    ones = np.ones((ratios.size, 1))
    light = np.ceil(labels.slots * (kept.above - 1.0) / between)
    whole = max(np.ceil(labels.slots * apart / between), _FEWEST)
    if ratio[0] * (kept.above * whole + kept.below * light) > labels.window * (1.0 - 1e-12):
        return None
    return Redrawn(
        np.append(usual, rare),
        ratios * kept.below,
        ones,
        light * ones,
        ratios * kept.above,
        np.full(ratios.size, whole),
        float(beyond[-1]),
    )


def _typical(labels: _Labels) -> Callable[[Redrawn], float]:
    """About the mean of normal laws' excesses over _TYPICAL, relative to equal shares."""

    def size(found: Redrawn) -> float:
        ratio = _squares(found)[:, 0] / (labels.slots * labels.middle**2)
        return float(found.masses @ (np.sqrt(ratio) * np.exp(_TYPICAL * (1.0 - 1.0 / ratio))))

    return size


def _key_sum(slots: float, rate: float) -> Callable[[np.ndarray], np.ndarray]:
    """Log moment of the sum of so many keys, each the smaller of 1 and an exponential variable of this rate."""
    return lambda t: slots * (t + _key_left(-t, rate))


def beside_colluders(
    slots: int, window: int, neg_log_tail: float, cells: int, colluding: int
) -> Redrawn | None:
    """`redrawn` beside colluders.

    Args:
      cells: of each level.
      colluding: number of all colluders, from above. One may be in each of these slots; none of them hides anybody,
        wherever it is.
    """
    tails = (
        _tails(window, 2.0 * np.log(window) + neg_log_tail + 20.0, colluding)
        if window >= SMALLEST_BESIDE
        else None
    )
    if tails is None:
        return None
    m, use, known = float(window), slots / window, min(colluding, slots)
    others, honest = slots - known, m - 1.0 - colluding
    exponents = chernoff.levels(_LEVELS, neg_log_tail)
    # Each of seven events of a level has this probability.
    events = 7.0
    seldom, unit = np.exp(-exponents) / events, 1.0 / np.sqrt(m)

    drawn = _largest(_key_sum(float(slots), honest / m), float(slots), exponents + np.log(events)) / slots
    beside = _shown_beside(tails, known, window, honest, exponents + np.log(events))
    middle = -np.expm1(-honest / m) / (honest / m)
    away = np.geomspace(0.01 * unit, middle, _SHARES)
    low, high = middle - away, middle + away[away < 1.0 - middle]
    excess, shortfall = excesses(window, colluding, high), shortfalls(window, colluding, low)
    least = [_bounded(low, shortfall, size * unit, seldom) - size * unit for size in _EXCESS]
    lowest = np.nanmax(np.stack([np.zeros(seldom.size), *least]), axis=0)

    beyond, best = np.append(1.0, np.exp(-exponents)), None
    for size in _EXCESS * unit:
        share = _bounded(high, excess, size, seldom)
        ones = size / (1.0 - share) * (1.0 + 1e-12)
        whole = np.maximum(np.ceil(others * ones) + beside.most, _FEWEST)
        # The mean share is in one of the cells.
        edges = np.linspace(lowest, share + size, cells + 1, axis=1)
        totals = 1.0 + (others * edges[:, :-1] + (beside.least - slots * drawn)[:, None]) / m
        totals = totals - 1e-13 * (1.0 + use)
        numbers = np.ceil(others * (edges[:, 1:] - ones[:, None]) / share[:, None] * (1.0 + 1e-13))
        enough = (totals.min(axis=1) >= _LEAST_TOTAL) & (others * ones <= 0.5 * slots)
        # Labels beyond the last level at which all bounds are known are at no level.
        last = np.count_nonzero(np.logical_and.accumulate(enough & np.isfinite(beside.share)))
        if not last:
            continue
        lost = float(beyond[last]) * (1.0 + float(beside.share[last - 1]))
        found = Redrawn(
            -np.diff(beyond[: last + 1]),
            share[:last],
            totals[:last],
            np.maximum(numbers[:last], 0.0),
            beside.share[:last],
            whole[:last],
            lost,
        )
        if best is None or (found.lost, spread(found, slots)) < (best.lost, spread(best, slots)):
            best = found
    return best


def in_common_slots(
    others: int, slots: int, prob: float, neg_log_tail: float, colluding: int
) -> Redrawn | None:
    """Levels of one cell for common slots with colluders; None where none are known.

    Shares depend on the labels by two sums: of names, and of keys. So all slots but the heavy ones have the same bound.

    Args:
      others: number of honest clients besides the target. prob: of each of them to take part.
      neg_log_tail: the lost mass is about exp(-neg_log_tail). colluding: number of colluders, each in its own slot.
    """
    known = min(colluding, slots)
    if not 0 < known < slots or not 0 < others * prob <= _MOST_LOAD * slots:
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
    share = np.minimum(_share(fewest / (1.0 + high)) * (1.0 + 1e-13), 1.0)
    heavy = np.maximum((1.0 + high) / fewest * (1.0 + 1e-13), share)
    shown = -np.expm1(-often)
    whole = chernoff.most(float(known), min(shown * (1.0 + 1e-12), 1.0), seldom)
    least = chernoff.fewest(float(known), shown * (1.0 - 1e-12), seldom) * low / most
    even = _share(most / np.maximum(low, 1e-300)) * (1.0 - 1e-9)
    totals = 1.0 + each * ((m - known) * even + least - m + keys) - 1e-12
    if totals.min() < _LEAST_TOTAL:
        return None
    beyond = np.append(1.0, np.exp(-exponents))
    numbers = np.full((exponents.size, 1), m - known)
    lost = float(beyond[-1] * (1.0 + heavy[-1]))
    return Redrawn(-np.diff(beyond), share, totals[:, None], numbers, heavy, np.maximum(whole, _FEWEST), lost)


class _ShownBeside(NamedTuple):
    """Slots with a colluder in which an honest client is shown, level by level.

    most: their number, from above. share: the target's in each, from above, 1 at least. least: sum of the target's
    shares there, from below.
    """

    most: np.ndarray
    share: np.ndarray
    least: np.ndarray


def _shown_beside(
    tails: _Tails, known: int, window: int, honest: float, exponents: np.ndarray
) -> _ShownBeside:
    """Bounds each of which fails with probability e^-exponent at most; known: number of slots with a colluder."""
    m = float(window)
    often, seldom = (-np.expm1(n * np.log1p(-1.0 / m)) for n in (m, honest))
    most = _largest(lambda t: known * np.log1p(often * np.expm1(t)), float(known), exponents)
    least = -_largest(lambda t: known * np.log1p(seldom * np.expm1(-t)), float(known), exponents)
    # In every slot, and for each of the clients that may be there.
    at = np.searchsorted(tails.x, exponents + np.log(known * (m + 1.0)))
    with np.errstate(divide="ignore"):
        share = np.where(tails.fewest > 0.0, (1.0 + tails.high) / tails.fewest, np.inf)[at]
    lowest = np.maximum(tails.low, 0.0)[at] / tails.most[at] * (1.0 - 1e-13)
    return _ShownBeside(
        np.minimum(np.ceil(most), known),
        np.maximum(share * (1.0 + 1e-13), 1.0),
        np.maximum(least, 0.0) * lowest,
    )


def spread(found: Redrawn, slots: int) -> float:
    """Variance of the sum of the steps over that of `slots` of weight one, in units of T."""
    squares = (_squares(found) / np.square(found.totals)).max(axis=1)
    return float(found.masses @ squares) / slots + found.lost


def _squares(found: Redrawn) -> np.ndarray:
    """Sums of the squared shares, [levels, cells]."""
    return (np.square(found.heavy) * found.whole)[:, None] + np.square(found.shares)[:, None] * found.numbers
