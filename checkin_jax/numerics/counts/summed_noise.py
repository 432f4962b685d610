"""Privacy profiles of sums in a round in which every client sends [docs/theory_mechanisms.md, 7].

Of counts of independent bits: each of k clients holds a bit, which is flipped with probability f. With w(s) the
probability that the others' count is s,

    H_c = max over s of (1 - 2 f) w(s) - (c - 1) (f w(s) + w(s + 1) + w(s + 2) + ...) .

The others' bits are arbitrary: all numbers of ones are tried, or runs of them, each with the bits that its numbers have
in common.

Of Laplace messages, whose noise together hides one.

The sum X of k Laplace variables of scale 1 is the difference of two gamma variables. Of 2 k exponential times in turn
i are left on one side with probability w_i when the other side is done, so that X > x has the probability
sum_{j < k} (w_{j+1} + ... + w_k) e^-x x^j/j!, x >= 0. For many terms the density, a Bessel function of the order
k - 1/2, is evaluated by Debye's expansion and integrated. NumPy float64.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are used

from checkin_jax.kernels import host
from checkin_jax.kernels.elementary import UNIT
from checkin_jax.kernels.messages import one_bit_profile
from checkin_jax.kernels.messages.likelihood_polytopes import Message
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import occupancy
from checkin_jax.numerics.step_laws import fair_bit_epsilon0

# More terms have Debye's expansion. Thresholds below twice the length of the interval, and above it.
_FEW_TERMS, _NEAR, _FAR = 256, 120, 500
# Nodes of a panel, and panels beyond the last threshold.
_NODES, _MORE = 8, 40
# Largest epsilon0 for which sums tell less than messages do.
MOST_SCALES = 50.0
# -log of the least tail, relative error of tails and densities, and least relative distance of knots.
_BEYOND, ERROR, _APART = 75.0, 1e-11, 1e-10


class Thresholds(NamedTuple):
    """Thresholds of a sum moved by epsilon0, or not, from epsilon0/2 on: likelihood ratios, and tails of either law."""

    ratios: np.ndarray
    moved: np.ndarray
    still: np.ndarray


class HalfLines(NamedTuple):
    """Events {X > s} of a sum X, moved by epsilon0 or not, s from epsilon0/2 on.

    Likelihood ratios at s, increasing; the difference of the probabilities, from below; both of them, from above.
    """

    ratios: np.ndarray
    apart: np.ndarray
    moved: np.ndarray
    still: np.ndarray


def laplace_sum(number: int, epsilon0: float) -> tuple[np.ndarray, np.ndarray]:
    """(losses, upper bounds on the profile at them) of a sum of k Laplace messages of an interval.

    Between losses the profile is below its chord in e^loss. It is zero at the last one, epsilon0.

    Args:
      number: k, from 1. epsilon0: length of the interval in scales of the noise.
    """
    ratios, moved, still = thresholds(number, epsilon0)
    # Half-lines are the best events. A ratio that is a little off has nearly the same best threshold.
    values = moved - ratios * still + ERROR * (moved + 2.0 * ratios * np.append(1.0, still[:-1]))
    return np.append(np.log(ratios), epsilon0), np.append(values, 0.0)


def half_lines(number: int, epsilon0: float) -> HalfLines:
    """Half-lines of a sum of k Laplace messages; arguments as of `laplace_sum`."""
    ratios, moved, still = thresholds(number, epsilon0)
    less, more = 1.0 - ERROR, 1.0 + ERROR
    return HalfLines(ratios, np.maximum(less * moved - more * still, 0.0), more * moved, more * still)


@functools.lru_cache(maxsize=512)
def thresholds(number: int, epsilon0: float) -> Thresholds:
    """Thresholds of increasing ratios; number: k. Relative errors are at most `ERROR`."""
    d, farthest = epsilon0, 1.2 * math.sqrt(4.0 * number * _BEYOND) + _BEYOND + epsilon0
    at = np.concatenate([np.linspace(0.5 * d, 2.0 * d, _NEAR), np.linspace(2.0 * d, farthest, _FAR)[1:]])
    law = _few if number <= _FEW_TERMS else _many
    (log_moved, more), (log_still, beyond) = law(number, at - d), law(number, at)
    with np.errstate(over="ignore", invalid="ignore"):
        ratios = np.where(more > math.exp(-_BEYOND), np.exp(log_moved - log_still), np.inf)
    ratios[0] = 1.0
    best = np.maximum.accumulate(ratios)
    increasing = (best[1:] > best[:-1] * (1.0 + _APART)) & (ratios[1:] < np.exp(d) * (1.0 - _APART))
    # However short the interval is, there is the knot at loss zero.
    kept = np.append(True, increasing)
    return Thresholds(ratios[kept], more[kept], beyond[kept])


def _few(number: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(logarithm of the density at x, probability of more than x) of few terms."""
    left, logs = np.arange(1.0, number + 1.0), scipy.special.gammaln
    weights = np.exp(
        logs(2.0 * number - left)
        - logs(float(number))
        - logs(number - left + 1.0)
        - (2.0 * number - left) * np.log(2.0)
    )
    far, j = np.abs(x)[:, None], left - 1.0
    poisson = np.exp(scipy.special.xlogy(j, far) - far - logs(left))
    tail = poisson @ np.cumsum(weights[::-1])[::-1]
    with np.errstate(divide="ignore"):
        return np.log(poisson @ weights), np.where(x < 0.0, 1.0 - tail, tail)


def _many(number: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`_few` of many terms; x: increasing, the last one so far out that little is beyond."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    ends = np.append(x, x[-1] + (x[-1] - x[-2]) * np.arange(1.0, _MORE + 1.0))
    half = 0.5 * np.diff(ends)
    inside = np.exp(_log_density(number, ends[:-1, None] + half[:, None] * (1.0 + nodes)))
    return _log_density(number, x), np.cumsum((half * (inside @ weights))[::-1])[::-1][: x.size]


def _log_density(number: int, x: np.ndarray) -> np.ndarray:
    """Logarithm of (|x|/2)^nu K_nu(|x|) / (sqrt(pi) Gamma(k)), nu = k - 1/2, for many terms [Olv54].

    Olver's bound on the remainder of four terms, the same for all x, is below 2e-13 [DLMF 10.41(iii)]; of three terms
    of Stirling's series less is left.
    """
    order = number - 0.5
    root = np.hypot(1.0, x / order)
    t, v = 1.0 / root, 1.0 / order
    t2, rise = t * t, np.square(x / order) / (1.0 + root)
    u4 = 4465125.0 - t2 * (94121676.0 - t2 * (349922430.0 - t2 * (446185740.0 - t2 * 185910725.0)))
    u3 = 30375.0 - t2 * (369603.0 - t2 * (765765.0 - t2 * 425425.0))
    u2, u1 = 81.0 - t2 * (462.0 - t2 * 385.0), 3.0 - 5.0 * t2
    vt = v * t
    series = -vt * (u1 / 24.0 - vt * (u2 / 1152.0 - vt * (u3 / 414720.0 - vt * u4 / 39813120.0)))
    at_zero = v * (1.0 / 24.0 - v * v * (7.0 / 2880.0 - v * v * 31.0 / 40320.0))
    falls = order * (rise - np.log1p(0.5 * rise)) + 0.5 * np.log(root)
    return at_zero - 0.5 * math.log(4.0 * math.pi * order) - falls + np.log1p(series)


# Runs of numbers of ones; the largest standard deviation of a count that is evaluated so, beyond which E+ serves.
_RUNS, _WIDEST = 128, 400.0
# Losses of a profile: up to the far end of the deviations in steps of this many, and geometrically beyond.
_SPACING, _BEYOND_LOSSES = 0.1, 48
# Relative errors of probabilities, and of values.
_PROBS, _ROUNDED = 1e-9, 1e-12
# A window leaves out masses of exp(-neg_log_tail - _ROOM) at either end.
_ROOM = 5.0


def two_counts(num_clients: int, epsilon0: float, neg_log_tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Privacy profile of two independent counts, one client's bit of each being replaced.

    Args:
      num_clients: k, from 1 to 2^42. epsilon0: of one bit, in nats, > 0.
      neg_log_tail: masses of exp(-neg_log_tail) do not matter.

    Returns:
      Increasing losses in nats from 0 to 2 epsilon0, and upper bounds on the hockey-stick divergence there in both
      directions, for all bits of all other clients; every chord in e^loss is a bound.
    """
    return _twice(num_clients, epsilon0, math.ceil(neg_log_tail))


@functools.lru_cache(maxsize=512)
def _twice(num_clients: int, epsilon0: float, neg_log_tail: int) -> tuple[np.ndarray, np.ndarray]:
    deviation = _deviation(num_clients, epsilon0)
    if deviation > _WIDEST:
        one = _many_bits(num_clients, epsilon0, neg_log_tail)
    else:
        one = one_count(num_clients, epsilon0, neg_log_tail)
    losses = _losses(math.sqrt(2.0) * math.tanh(0.5 * epsilon0) / deviation, 2.0 * epsilon0, neg_log_tail)
    value = composed(*one, losses)
    value[-1] = 0.0
    kept = convex.hull(np.expm1(losses), value)
    return losses[kept], value[kept]


def _deviation(num_clients: int, epsilon0: float) -> float:
    """Standard deviation of a count of so many bits."""
    return 0.5 * math.sqrt(num_clients) / math.cosh(0.5 * epsilon0)


def _losses(deviation: float, largest: float, neg_log_tail: float) -> np.ndarray:
    """Losses up to the largest one, where the loss has this standard deviation."""
    far = min(deviation * (math.sqrt(2.0 * neg_log_tail) + 2.0), 0.5 * largest)
    near = np.linspace(0.0, far, 2 + math.ceil(far / (_SPACING * deviation)))
    return np.append(near, np.geomspace(far, largest, _BEYOND_LOSSES)[1:])


def _many_bits(num_clients: int, epsilon0: float, neg_log_tail: int) -> tuple[np.ndarray, np.ndarray]:
    """`one_count` of more bits, by E+ [docs/theory_shuffle.md]: a few of them are dummies."""
    losses = _losses(math.tanh(0.5 * epsilon0) / _deviation(num_clients, epsilon0), epsilon0, neg_log_tail)
    rarely = float(neg_log_tail)
    left = Message(
        host(fair_bit_epsilon0(epsilon0, -math.expm1(-rarely / num_clients) * (1.0 + 1e-12))), host(1.0)
    )
    rate, none = host(math.exp(-rarely / num_clients)), host(math.exp(-rarely))
    clients, ceilings = host(float(num_clients)), host(np.full(losses.shape, math.inf))
    found = np.array(one_bit_profile.profile_upper(clients, rate, left, host(losses), ceilings, none))
    found[-1] = 0.0
    return losses, found


def one_count(num_clients: int, epsilon0: float, neg_log_tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Privacy profile of one count, as `two_counts`; losses are from 0 to epsilon0."""
    others, flipped = num_clients - 1, 1.0 / (1.0 + math.exp(epsilon0))
    apart = math.tanh(0.5 * epsilon0)
    missing = 4.0 * math.exp(-neg_log_tail - _ROOM)
    losses = _losses(apart / _deviation(num_clients, epsilon0), epsilon0, neg_log_tail)
    above, found = np.expm1(losses), np.zeros(losses.size)
    ends = np.unique(np.linspace(0, num_clients, min(_RUNS, num_clients) + 1).astype(np.int64))
    for first, last in zip(ends[:-1].tolist(), (ends[1:] - 1).tolist(), strict=True):
        zeros, ones = (_binomial(number, flipped, neg_log_tail) for number in (others - last, first))
        probs = np.convolve(zeros, ones[::-1])
        beyond = np.append(np.cumsum(probs[:0:-1])[::-1], 0.0)
        tails = (beyond + flipped * probs) * (1.0 - _PROBS - missing)
        lines = apart * (probs * (1.0 + _PROBS) + missing)
        best = convex.highest(lines, tails, above)
        found = np.maximum(found, lines[best] - above * tails[best])
    found = np.minimum(found + missing, apart) * (1.0 + _ROUNDED)
    found[-1] = 0.0
    return losses, found


def _binomial(number: int, prob: float, neg_log_tail: float) -> np.ndarray:
    """Probabilities of successive values of a binomial variable, without its rare ends, from above.

    They sum to one; those left out have a probability of 2 exp(-neg_log_tail - _ROOM) at most (Bernstein's inequality).
    """
    allowed, mean = neg_log_tail + _ROOM, number * prob
    reach = occupancy.deviation(mean * (1.0 - prob), allowed)
    first, last = max(math.floor(mean - reach) - 1, 0), min(math.ceil(mean + reach) + 1, number)
    places = np.arange(first, last, dtype=np.float64)
    steps = np.log((number - places) / (places + 1.0) * (prob / (1.0 - prob)))
    logs = np.append(0.0, np.cumsum(steps))
    masses = np.exp(logs - logs.max())
    return masses / masses.sum()


def composed(losses: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Upper bounds at losses `at` >= 0 on the profile of two independent outputs, each below this symmetric profile.

    losses, values: knots from 0 to the largest loss, where the profile is zero; linear in e^loss between them. The
    profile is that of a pair with likelihood ratios e^losses and their inverses. H_c is the mean, under the first
    output's P, of the second one's divergence at c over the first one's ratio [docs/theory.md, section 2].
    """
    above, values = convex.full_hull(np.expm1(losses), np.append(values[:-1], 0.0))
    knots = np.log1p(above)
    gaps = np.diff(above)
    slopes = np.append(np.diff(values) / gaps, 0.0)
    errors = np.append(8.0 * UNIT * values[:-1] / gaps, 0.0)
    # Probabilities under Q of the ratios above one; under P of their inverses.
    masses = np.maximum(np.diff(slopes), 0.0) + errors[1:] + errors[:-1]
    even = max(1.0 + 2.0 * slopes[0] - values[0], 0.0) + 4.0 * UNIT + 2.0 * errors[0]

    def profile(loss: np.ndarray) -> np.ndarray:
        value = convex.chords(knots, values, np.abs(loss))
        lower = np.minimum(loss, 0.0)
        return np.exp(lower) * value - np.expm1(lower)

    higher = profile(at[:, None] - knots[None, 1:]) @ (masses * np.exp(knots[1:]))
    lower = profile(at[:, None] + knots[None, 1:]) @ masses
    return np.minimum((higher + lower + even * profile(at)) * (1.0 + _PROBS), 1.0)
