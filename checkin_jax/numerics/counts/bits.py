"""Counts of independent bits in a round in which every client sends: privacy profiles of one count, and of two.

Each of k clients holds a bit, which is flipped with probability f. With w(s) the probability that the others' count is
s [docs/theory_mechanisms.md, section 7],

    H_c = max over s of (1 - 2 f) w(s) - (c - 1) (f w(s) + w(s + 1) + w(s + 2) + ...) .

The others' bits are arbitrary: all numbers of ones are tried, or runs of them, each with the bits that its numbers have
in common. NumPy float64.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from checkin_jax.kernels import host
from checkin_jax.kernels.messages import one_bit_profile
from checkin_jax.kernels.messages.likelihood_polytopes import Message
from checkin_jax.kernels.round_off import UNIT
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import occupancy
from checkin_jax.numerics.step_laws import fair_bit_epsilon0

# Runs of numbers of ones; the largest standard deviation of a count that is evaluated so, beyond which E+ serves.
_RUNS, _WIDEST = 128, 400.0
# Losses of a profile: up to the far end of the deviations in steps of this many, and geometrically beyond.
_SPACING, _BEYOND = 0.1, 48
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
    return np.append(near, np.geomspace(far, largest, _BEYOND)[1:])


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
