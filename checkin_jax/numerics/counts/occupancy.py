r"""Number K of occupied slots when n clients send to one of m slots with probability p_0: one-sided laws.

K is a sum of independent Bernoulli variables, since its generating polynomial has real roots only. So
Bernstein's inequality holds with the exact variance of K. If the bulk is narrow, its probabilities are
computed as well: with q = 1 - e^{-p_0 n/m}, x = p_0 n / m and Poissonisation,

    Pr[K = k] = Pr[Bin(m, q) = k] (n! e^n / n^n) (1/2 pi) \int f_k,
    f_k = ((e^{x e^{it}} - 1)/(e^x - 1))^k e^{(1-p_0) n (e^{it} - 1)} e^{-i n t},

by the trapezoid rule with N nodes. Its error is positive, so the sums are upper bounds. NumPy float64.

In A_sldw client j sends to one of the slots j .. j + m - 1, uniformly. A group of clients that share a slot with a
given one could have shared any slot of the overlap of all their windows. The bounds on the law of a group's size and of
its overlap hold for every client, also if the server does not output every slot [docs/evaluation.md].
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import scipy

from checkin_jax.kernels import binomial, host
from checkin_jax.kernels.execution.backend import bisected, quietly

# Largest width of the bulk, and most clients, for which single probabilities are computed.
_MAX_BULK, _MAX_CLIENTS = 1024, 2e6
_BULK_SDS = 6.0
# Most probabilities times the root of the number of clients for which `probabilities` computes them.
_MOST_NODES = 1e6
# Most clients and slots for which `CommonThrows` lists exact laws.
_MOST_THROWN, _MOST_SLOTS = 20_000, 4096
# Most clients for which the birthday product is evaluated term by term.
_MAX_TERMS = 10**6
# Upper ends of the ranges of values, in standard deviations, and -log of the tail masses beyond.
_EDGES = (-2.0, -1.2, -0.7, -0.3, 0.0, 0.3, 0.7, 1.2, 2.0, 3.0, 4.2)
_TAILS = (24.0, 45.0)
# Ends of the few values of `levels`, in standard deviations above the mean, besides the last: for many slots, and for
# few, whose numbers differ more.
_STEPS, _WIDER = (0.3, 1.2, 2.5, 4.5), (-1.6, -1.1, -0.7, -0.3, 0.0, 0.4, 0.9, 1.5, 2.5, 4.5)
# Least standard deviation over the mean of few slots.
_SPREAD = 0.05
# At most so many values are all kept.
_ALL = 9
# Most values of laws: few, or single values if there are not many.
VALUES = (16, 64)
# Relative rounding error of the factors before the integral, with a wide margin.
_ROUNDING = 1e-9


def moments(num_clients: float, num_slots: float, prob: float) -> tuple[float, float]:
    """Mean of K, and its variance (rounded up)."""
    n, m, x = num_clients, num_slots, prob / num_slots
    log_empty = n * math.log1p(-x) if x < 1 else -math.inf
    empty = math.exp(log_empty)
    mean = -m * math.expm1(log_empty)
    if m == 1:
        return mean, empty * (1.0 - empty)
    # Pr[two given slots empty] / Pr[one empty]^2 = (1 - x^2 / (1 - x)^2)^n.
    square = (x / (1.0 - x)) ** 2
    together = n * math.log1p(-square) if square < 1 else -math.inf
    variance = m * empty * -math.expm1(log_empty) + m * (m - 1.0) * empty * empty * math.expm1(together)
    return mean, max(variance, 0.0) + 1e-12 * mean


def deviation(variance: float, neg_log_tail: float) -> float:
    """t with Pr[K - E K >= t] <= exp(-neg_log_tail) and Pr[K - E K <= -t] likewise (Bernstein)."""
    third = neg_log_tail / 3.0
    return third + math.sqrt(third * third + 2.0 * variance * neg_log_tail)


def most(num_clients: int, num_slots: int, prob: float, neg_log_tail: float) -> tuple[int, float]:
    """(k, mass): Pr[K > k] <= mass, where mass is exp(-neg_log_tail), or 0 at the largest possible k."""
    limit = min(num_clients, num_slots)
    mean, variance = moments(float(num_clients), float(num_slots), prob)
    found = math.ceil(mean * (1.0 + 1e-12) + deviation(variance, neg_log_tail))
    return (found, math.exp(-neg_log_tail)) if found < limit else (limit, 0.0)


def least(num_clients: int, num_slots: int, prob: float, neg_log_tail: float) -> int:
    """k with Pr[K < k] <= exp(-neg_log_tail), or 0."""
    mean, variance = moments(float(num_clients), float(num_slots), prob)
    return max(math.floor(mean * (1.0 - 1e-12) - deviation(variance, neg_log_tail)), 0)


def fewest(num_clients: float, prob: float, neg_log_tail: float) -> tuple[int, float]:
    """(k, mass): an upper bound on the probability that fewer than k clients send.

    The mass is about exp(-neg_log_tail), by Chernoff's bound.
    """
    if prob >= 1.0:
        return int(num_clients), 0.0
    mean = num_clients * prob
    found = math.floor(mean - math.sqrt(2.0 * mean * (neg_log_tail + 1.0)))
    if found <= 0:
        return 0, 0.0
    return found, math.exp(float(binomial.log_chernoff(found - 1.0, num_clients, prob)))


def many_empty(num_clients: int, num_slots: int, prob: float, least: int) -> float:
    """Upper bound on the probability that n clients leave at least `least` slots empty.

    j given slots are empty with probability (1 - p_0 j / m)^n, and `least` slots have binomial(least, j) sets of j.
    """
    taken = np.arange(1.0, least + 1.0)
    share = np.minimum(prob * taken / num_slots, 1.0)
    if num_clients > 0:
        with np.errstate(divide="ignore"):
            log_none = num_clients * np.log1p(-share)
    else:
        log_none = np.zeros_like(share)
    # log of binomial(m, j) / binomial(least, j).
    log_sets = np.cumsum(np.log(num_slots + 1.0 - taken) - np.log(least + 1.0 - taken))
    return math.exp(min(float(np.min(log_sets + log_none)) + 1e-9, 0.0))


@functools.lru_cache(maxsize=4)
def exact(num_clients: int, num_slots: int, prob: float) -> np.ndarray:
    """Law of K, [num_slots + 1], by recursion over clients; relative errors of num_clients roundings."""
    filled = np.arange(num_slots + 1.0)
    stay, step = 1.0 - prob + prob * filled / num_slots, prob * (num_slots - filled) / num_slots
    law = np.zeros(num_slots + 1)
    law[0] = 1.0
    for _ in range(num_clients):
        moved = law * step
        law *= stay
        law[1:] += moved[:-1]
    return law


def all_apart(num_clients: int, num_slots: int, prob: float) -> tuple[float, float]:
    """Lower and upper bound on Pr[K = n]: all clients send, no two into one slot (birthday problem)."""
    n, m = num_clients, num_slots
    if n > m:
        return 0.0, 0.0
    everybody = n * math.log(prob)
    if n <= _MAX_TERMS:
        log = everybody + float(np.log1p(-np.arange(1.0, n) / m).sum())
        return math.exp(log) * (1.0 - 1e-9), min(math.exp(log) * (1.0 + 1e-9), 1.0)
    # 1 - sum x <= prod (1 - x) <= exp(-sum x - sum x^2 / 2).
    pairs = 0.5 * n * (n - 1.0) / m
    squares = (n - 1.0) * n * (2.0 * n - 1.0) / (12.0 * m * m)
    low = math.exp(everybody) * max(1.0 - pairs * (1.0 + 1e-9), 0.0) * (1.0 - 1e-9)
    return low, math.exp(everybody - (pairs + squares) * (1.0 - 1e-9))


def _tail(variance: float, distance: np.ndarray) -> np.ndarray:
    """Upper bound on Pr[K - E K >= distance] (Bernstein); 1 where the distance is not positive."""
    d = np.maximum(distance, 0.0)
    return np.exp(-0.5 * d * d / np.maximum(variance + d / 3.0, 1e-300))


def _bulk(n: int, m: int, prob: float, low: int, high: int) -> np.ndarray:
    """Upper bounds on Pr[K = k] for k = low..high."""
    x = prob * n / m
    nodes = int(16.0 * math.sqrt(n)) + 64
    j = np.arange(nodes // 2 + 1)
    nodes = 2 * (len(j) - 1)
    angle = 2.0 * math.pi * j / nodes
    turn = -2.0 * np.sin(0.5 * angle) ** 2 + 1j * np.sin(angle)  # e^{it} - 1
    phase = np.exp(-2j * math.pi * ((n * j) % nodes) / nodes)
    # (e^{x e^{it}} - 1) / (e^x - 1) without overflow, and without cancellation for small x.
    ratio = (np.exp(x * turn) - math.exp(-x)) / -math.expm1(-x)
    small = np.expm1(x * (turn + 1.0)) / math.expm1(x) if x < 1 else ratio
    start = np.log(np.where(small == 0, 1e-300, small)) * low
    f = np.exp(start + (1.0 - prob) * n * turn) * phase
    # Interior nodes also stand for their conjugates.
    twice = np.where((j == 0) | (j == nodes // 2), 1.0, 2.0)
    values, sizes = np.empty(high - low + 1), np.empty(high - low + 1)
    for i in range(high - low + 1):
        values[i], sizes[i] = twice @ np.real(f), twice @ np.abs(f)
        f *= small
    occupied = np.arange(low, high + 1.0)
    # The less likely of the two: a probability near 1 has lost the digits of the other one.
    counted, likely = (occupied, -math.expm1(-x)) if x < 0.5 else (m - occupied, math.exp(-x))
    plain = np.exp(quietly(binomial.log_pmf)(counted, host(m), host(likely)))
    stirling = float(binomial.stirling_error(host(n)))
    scale = plain * math.sqrt(2.0 * math.pi * n) * math.exp(stirling)
    # Each node is a power of at most `high` and an exponential of at most n.
    rounding = (1e-13 * math.sqrt(nodes) + 1e-15 * (n + high)) * sizes
    return np.maximum(scale * ((values + rounding) / nodes) * (1.0 + _ROUNDING), 0.0)


def law(
    num_clients: int, num_slots: int, prob: float, neg_log_tail: float, upper: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(values, masses) of a law stochastically above K if `upper`, else below K.

    Args:
      num_clients, num_slots, prob: n, m and the probability p_0 that a client sends.
      neg_log_tail: if upper, the highest value has mass at least exp(-neg_log_tail).
    """
    most = min(num_clients, num_slots)
    mean, variance = moments(float(num_clients), float(num_slots), prob)
    sd = math.sqrt(variance)
    low = max(math.floor(mean - _BULK_SDS * sd) - 1, 0)
    high = min(math.ceil(mean + _BULK_SDS * sd) + 1, most)
    if most < VALUES[-1] - 3:
        low, high = 0, most
    size = next((size for size in VALUES if high - low < size - 3), VALUES[0])
    if high - low < size - 3:
        edges = np.arange(low, high + 1.0)
    else:
        edges = np.unique(np.clip(np.rint(mean + sd * np.asarray(_EDGES)), low, high))
    levels = [level for level in _TAILS if level < neg_log_tail] + [neg_log_tail]
    beyond = [math.floor(mean + deviation(variance, level)) for level in levels]
    below = [math.ceil(mean - deviation(variance, level)) for level in levels]
    # Pr[K > e] and Pr[K < e] for integers e: by Bernstein, and by sums over the bulk if it is computed.
    every = np.unique(np.clip(np.concatenate([edges, beyond, below, [most]]), 0, most))
    above, under = _tail(variance, every + 1.0 - mean), _tail(variance, mean - every + 1.0)
    above, under = np.where(every >= most, 0.0, above), np.where(every <= 0, 0.0, under)
    if high - low <= _MAX_BULK and num_clients <= _MAX_CLIENTS:
        pmf = _bulk(num_clients, num_slots, prob, low, high)
        outer_high = float(_tail(variance, np.asarray(high + 1.0 - mean))) if high < most else 0.0
        outer_low = float(_tail(variance, np.asarray(mean - low + 1.0))) if low > 0 else 0.0
        k = np.arange(low, high + 1.0)
        summed_above = np.array([pmf[k > e].sum() for e in every]) + outer_high
        summed_under = np.array([pmf[k < e].sum() for e in every]) + outer_low
        inside = (every >= low) & (every <= high)
        above = np.where(inside, np.minimum(above, summed_above), above)
        under = np.where(inside, np.minimum(under, summed_under), under)
    if upper:
        survival = np.minimum.accumulate(np.append(1.0, np.minimum(above, 1.0)))
        masses = survival[:-1] - survival[1:]
    else:
        # Small probabilities are not told from 1 - (1 - probability).
        every = np.append(0.0, every)
        masses = np.diff(np.maximum.accumulate(np.minimum(under, 1.0)), prepend=0.0, append=1.0)
    kept = masses > 0
    return _merge(every[kept], masses[kept], upper, size)


class Probabilities(NamedTuple):
    """Lower and upper bounds on Pr[K = k] for k = low, low + 1, ...; upper bound on the probability of the rest."""

    low: int
    least: np.ndarray
    most: np.ndarray
    rest: float


# Asked whether there are any, and then for them, of n and of n - 1 clients.
@functools.lru_cache(maxsize=8)
def probabilities(num_clients: int, num_slots: int, prob: float, neg_log_tail: float) -> Probabilities | None:
    """Probabilities of the values of K but for about exp(-neg_log_tail); None for too many values or clients."""
    empty = many_empty(num_clients, num_slots, prob, 1)
    if empty <= math.exp(-neg_log_tail):
        return Probabilities(num_slots, np.array([1.0 - empty]), np.ones(1), empty)
    low = least(num_clients, num_slots, prob, neg_log_tail)
    high, beyond = most(num_clients, num_slots, prob, neg_log_tail)
    if (high - low) * math.sqrt(num_clients) > _MOST_NODES:
        return None
    found = _bulk(num_clients, num_slots, prob, low, high)
    rest = beyond + (math.exp(-neg_log_tail) if low > 0 else 0.0)
    # No bound exceeds its probability by more than all bounds together do.
    excess = max(float(found.sum()) * (1.0 + 1e-12) - 1.0 + rest, 0.0)
    return Probabilities(low, np.maximum(found - excess, 0.0), found, rest)


class OccupiedLaws(NamedTuple):
    """Laws of the number k of occupied slots, with a target and without, k = 0 .. slots; or bounds on them.

    Attributes:
      used: Pr[the target is used, and k slots are occupied, its own included], or lower bounds.
      dummy: Pr[so, and its slot is empty without it], or upper bounds.
      present, without: Pr[k slots are occupied], with the target and without it, or upper bounds.
      rest: upper bound on the probability of the numbers k that `present`, or `without`, leaves out.
    """

    used: np.ndarray
    dummy: np.ndarray
    present: np.ndarray
    without: np.ndarray
    rest: float


class CommonThrows(NamedTuple):
    """n clients, the target among them, that each send to one of m slots with probability p_0."""

    num_clients: int
    num_slots: int
    prob: float

    def _laws(
        self, least: np.ndarray, present: np.ndarray, without: np.ndarray, beyond: float, rest: float
    ) -> OccupiedLaws:
        """least: lower bounds on those of `present`. beyond: upper bound on those where `without` is zero."""
        filled = np.arange(self.num_slots + 1.0)
        before = np.where(without > 0.0, without, beyond)[:-1]
        dummy = np.append(0.0, before * self.prob * (self.num_slots - filled[:-1]) / self.num_slots)
        return OccupiedLaws(least * filled / self.num_clients, dummy, present, without, rest)

    def exact(self) -> OccupiedLaws | None:
        """The laws, with relative errors of 2 n roundings; None for too many clients or slots."""
        if self.num_clients > _MOST_THROWN or self.num_slots > _MOST_SLOTS:
            return None
        present, without = (exact(each, *self[1:]) for each in (self.num_clients, self.num_clients - 1))
        return self._laws(present, present, without, 0.0, 0.0)

    def bounded(self, neg_log_tail: float) -> OccupiedLaws | None:
        """Bounds on the laws for many clients, which leave out about exp(-neg_log_tail); None for too many."""
        among, others = (
            probabilities(each, *self[1:], neg_log_tail) for each in (self.num_clients, self.num_clients - 1)
        )
        if among is None or others is None:
            return None
        least, present, without = np.zeros((3, self.num_slots + 1))
        least[among.low : among.low + len(among.least)] = among.least
        present[among.low : among.low + len(among.most)] = among.most
        without[others.low : others.low + len(others.most)] = others.most
        return self._laws(least, present, without, others.rest, max(among.rest, others.rest))


def _merge(values: np.ndarray, masses: np.ndarray, upper: bool, size: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `size` values: the lightest move to their neighbour, upwards if `upper`, else downwards."""
    values, masses = values.copy(), masses.copy()
    while len(values) > size:
        i = int(np.argmin(masses[:-1] if upper else masses[1:])) + (0 if upper else 1)
        masses[i + 1 if upper else i - 1] += masses[i]
        values, masses = np.delete(values, i), np.delete(masses, i)
    return values, masses


def levels(
    num_clients: int, num_slots: int, prob: float, neg_log_tail: float, upper: bool
) -> tuple[list[tuple[int, float]], float]:
    """(pairs, lost): a few (value, mass) of a law stochastically above K if `upper`, else below K, and the
    lost mass.

    Args:
      neg_log_tail: the lost mass is at most about exp(-neg_log_tail).
    """
    if num_clients == 0:
        return [(0, 1.0)], 0.0
    values, masses = law(num_clients, num_slots, prob, neg_log_tail + 1.0, upper)
    if not upper:
        # Values are negated, so that both directions use the same code.
        values, masses = -values[::-1], masses[::-1]
    beyond = np.append(np.cumsum(masses[::-1])[::-1][1:], 0.0)
    last = int(np.argmax(beyond <= math.exp(-neg_log_tail)))
    if last < _ALL:
        ends = np.arange(last + 1)
    else:
        mean, variance = moments(float(num_clients), float(num_slots), prob)
        sd = math.sqrt(variance)
        steps = (mean if upper else -mean) + sd * np.asarray(_WIDER if sd > _SPREAD * mean else _STEPS)
        ends = np.unique(np.append(np.clip(np.searchsorted(values, steps, "right") - 1, 0, last), last))
    found = zip(values[ends], np.add.reduceat(masses[: last + 1], np.append(0, ends[:-1] + 1)))
    # The factor covers rounding.
    return [(int(abs(value)), float(mass) * (1.0 + 1e-9)) for value, mass in found], float(beyond[last])


def taken(balls: float, filled: float) -> float:
    """Upper bound on E 1/(C + 1), C the number of balls in one of `filled` nonempty slots that hold `balls`
    balls in total.

    In convex order, C is below a Poisson variable conditioned to be positive with the same mean
    [docs/theory_allocation.md, 2]. So the bound is 1 / lambda - 1 / (e^lambda - 1) with lambda / (1 - e^-lambda) =
    balls / filled.
    """
    mean = balls / filled if filled > 0 else 1.0
    low, _ = bisected(lambda rate: rate < -math.expm1(-rate) * mean, 0.0, mean, 60)
    rate = float(low) * (1.0 - 1e-9)
    if rate < 1e-4:
        return 0.5
    return (1.0 / rate - 1.0 / math.expm1(min(rate, 700.0))) * (1.0 + 1e-9)


# Absolute rounding of a share, and relative rounding of a probability, with wide margins.
_SHARE, _PROBABILITY = 1e-13, 1e-11
# Longest window for which the law of occupied slots is computed; points of Gauss' rule, whose error is below 1e-12.
MOST_SLIDING, _POINTS = 256, 5
# Rows of probabilities below this are dropped; bound on all that is dropped.
_DROPPED, _REST = 1e-22, 1e-16


def overlap_sizes(window: int, neg_log_tail: float) -> tuple[np.ndarray, float]:
    """(probs, rest): Pr[s others are in a slot], s = 1, 2, ..., rounded up, and the probability of larger s.

    Each of m - 1 others is in the slot with probability 1/m.

    Args:
      window: m >= 2. neg_log_tail: larger s have total probability at most exp(-neg_log_tail).
    """
    found, power = [], 1.0
    for s in range(1, window):
        power *= (window - s) / (window * s)
        # The term is at most 1/s!, and all later terms add up to less than twice the first.
        if 2.0 * power < math.exp(-neg_log_tail):
            return np.array(found), 2.0 * power
        found.append(power * math.exp((window - 1.0 - s) * math.log1p(-1.0 / window)) * (1.0 + _PROBABILITY))
    return np.array(found), 0.0


def overlap_shares(window: int, others: int, at: np.ndarray) -> np.ndarray:
    """Upper bounds on the share of slots and groups of s others whose overlap is `at` or less, at = 0 .. m.

    (s + 1) C(R - 1, s - 1) groups have places (the target's included) that span R, each in m - R slots. So
    C(r, s + 1) + (m - r) C(r, s) of C(m, s + 1) have a larger overlap, r = m - 1 - at.

    Args:
      window: m. others: s, from 1 to m - 1. at: whole numbers.
    """
    at = np.asarray(at, dtype=np.float64)
    rest = window - 1.0 - at
    choose = np.ones_like(at)
    for j in range(others):
        choose = choose * np.maximum(rest - j, 0.0) / (window - j)
    # C(rest, s) / C(m, s + 1), and C(rest, s + 1) / C(m, s + 1).
    beyond = choose * ((at + 1.0) * (others + 1.0) + np.maximum(rest - others, 0.0)) / (window - others)
    share = np.where(at <= 0.0, 0.0, np.minimum(1.0 - beyond + _SHARE, 1.0))
    return np.maximum.accumulate(np.where(at >= window, 1.0, share))


class SlidingThrows(NamedTuple):
    """Clients with sliding windows, among them all 2 m - 2 whose windows meet the target's.

    num_slots: m, the length of a window.
    """

    num_slots: int

    def exact(self) -> OccupiedLaws:
        """The laws in the target's window, but for `_REST`, and for relative errors of 20 m roundings."""
        return _occupied(self.num_slots)

    def bounded(self, neg_log_tail: float) -> OccupiedLaws:
        """Bounds on the laws."""
        del neg_log_tail
        used, dummy, present, without, rest = _occupied(self.num_slots)
        more = 1.0 + _PROBABILITY
        return OccupiedLaws(used / more, (dummy + rest) * more, present * more, without * more, rest)


def _chosen(pending: np.ndarray, prob: float) -> list[np.ndarray]:
    """Probabilities that so many of the pending clients choose a slot, 0, 1, ... up to a number that is rare."""
    found: list[np.ndarray] = []
    for count in range(int(pending[-1]) + 1):
        others = np.maximum(pending - count, 0)
        chance = scipy.special.binom(pending, count) * prob**count * (1.0 - prob) ** others
        if count > prob * pending[-1] and chance.max() < _DROPPED:
            break
        found.append(np.where(pending < count, 0.0, chance))
    return found


@functools.lru_cache(maxsize=8)
def _occupied(window: int) -> OccupiedLaws:
    """The laws of `SlidingThrows`, by recursion over the slots of the target's window.

    A client whose window begins after the target's is pending from its first slot on, unless its choice is beyond the
    target's window; pending clients choose each remaining slot alike. A client whose window began before the target's
    is thrown at its last slot. The number C of others in the target's slot counts by u^C; E 1/(C + 1) is the integral
    over u in (0, 1). All derivatives are positive, so that Gauss' rule is below the integral.
    """
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    powers = 0.5 * (points + 1.0)[:, None, None]
    # By occupied slots but for the target's own, from `low` on, and pending clients, from `idle` on. First without a
    # target; then with one whose slot is not a later one, for each u.
    state, low, idle = np.zeros((1 + _POINTS, 1, 1)), 0, 0
    state[0] = 1.0
    for slot in range(window):
        rows, columns = (np.flatnonzero(state.sum(axis=others) > _DROPPED) for others in ((0, 2), (0, 1)))
        before = state[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        low, idle = low + int(rows[0]), idle + int(columns[0])
        if slot:
            inside = (window - slot) / window
            before = np.pad(before * (1.0 - inside), ((0, 0), (0, 0), (0, 1)))
            before[:, :, 1:] += state[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] * inside
        pending = np.arange(idle, idle + before.shape[2])
        chances = _chosen(pending, 1.0 / (window - slot))
        least = max(idle - len(chances) + 1, 0)
        state = np.zeros((1 + _POINTS, before.shape[1] + 2, idle - least + before.shape[2]))
        for count, chance in enumerate(chances):
            # Those of fewer pending clients than `count` have no chance.
            skipped, here = max(count - idle, 0), int(count > 0)
            moved = before[:, :, skipped:] * chance[skipped:]
            start = idle + skipped - count - least
            state[:, here : here + before.shape[1], start : start + moved.shape[2]] += moved
            joined = powers**count * moved[0] / window
            state[1:, : before.shape[1], start : start + moved.shape[2]] += joined
        idle = least
        if slot + 1 < window:
            occupied = low + np.arange(state.shape[1])[:, None]
            free, beside = (np.maximum(all_slots - occupied, 0.0) / window for all_slots in (slot + 1, slot))
            moved = state * np.stack([free, *[beside] * _POINTS])
            state[0] -= moved[0]
            state[1:] *= 1.0 - beside - (1.0 - powers) / window
            state[:, 1:] += moved[:, :-1]
    state = np.pad(state[:, :, 0], ((0, 0), (low, window)))[:, : window + 1]
    without, filled = state[0], np.arange(window + 1.0)
    used, dummy = np.append(0.0, 0.5 * weights @ state[1:, :-1]), np.zeros(window + 1)
    dummy[1:] = without[:-1] * (window - filled[:-1]) / window
    return OccupiedLaws(used, dummy, without * filled / window + dummy, without, _REST)
