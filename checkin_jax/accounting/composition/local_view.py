"""The exact local view of many units, as a mixture over the number of messages of the client.

The local view shows the units in which the client sends. Their law is the same under both records, so the profile is
the mean of those given this number [docs/theory.md, 2]. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

from checkin_jax.accounting.bounds.interface import Exact, LocalGaussian, LocalPureLDP, UnitBound
from checkin_jax.accounting.composition.bracket import Bracket, refine
from checkin_jax.kernels import FLUSHED, binomial, gaussian_profile, host
from checkin_jax.kernels.elementary import UNIT
from checkin_jax.kernels.execution.backend import quietly

METHOD = "mixture over the number of messages"
# Sizes for the number of values of the number of messages (each compiles once); more are composed like other units.
_SIZES, _MOST_GAUSSIAN = (64, 512, 2048), 512
# Losses that are evaluated at once.
_POINTS = 8
# The range of mu sqrt(K) in which the Gaussian profile is accurate enough.
_LEAST_MU, _MOST_MU = 1e-8, 1e4
# The rounding of masses matters below this epsilon0.
_LEAST_EPSILON0 = 1e-9
# Relative error of a binomial mass (its logarithm is above -1e3, with relative error 1e-13) and of a Gaussian profile,
# with a wide margin.
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class _Counts:
    """The law of the number of messages, from both sides; `tail`: upper bound on the mass of other values."""

    number: np.ndarray
    upper: np.ndarray
    lower: np.ndarray
    tail: float


def _counts(rate: float, count: int, neg_log_tail: float) -> _Counts | None:
    """The law of the number of messages; None if too many values matter."""
    third = neg_log_tail / 3.0
    variance = count * rate * (1.0 - rate)
    radius = third + math.sqrt(third * third + 2.0 * variance * neg_log_tail) if variance > 0 else 0.0
    low, high = max(count * rate - radius, 0.0), min(count * rate + radius, float(count))
    size = next((size for size in _SIZES if size >= high - low + 4.0), None)
    if size is None:
        return None
    cut = binomial.cells(host(float(count)), host(rate), host(neg_log_tail), buckets=size)
    number, upper, lower = (np.asarray(part) for part in (cut.first, cut.mass_upper, cut.mass_lower))
    known = (upper > 0) & (np.asarray(cut.last) == number)
    return _Counts(number[known], upper[known], lower[known], float(cut.tail))


# Relative error of masses and profiles, with a wide margin.
RESPONSE_ROUNDING = 1e-9


def response_law(epsilon0: float, number: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Masses of the loss s eps0 of K randomized responses, s = 1, ..., largest K, with relative error
    `RESPONSE_ROUNDING`.

    number, mass: whole values of K, from 0 on without gaps, and their masses. At most 2^11 steps of three
    roundings each; no cancellation. Masses below the least float64 are lost.
    """
    most = int(number[-1])
    kept, flipped = 1.0 / (1.0 + np.exp(-epsilon0)), np.exp(-epsilon0) / (1.0 + np.exp(-epsilon0))
    # s = -most .. most. Rows alternate between even and odd s.
    walk = np.zeros(2 * most + 1)
    walk[most] = 1.0
    law = mass[0] * walk
    for weight in mass[1:]:
        following = np.zeros_like(walk)
        following[1:] = kept * walk[:-1]
        following[:-1] += flipped * walk[1:]
        walk = following
        law += weight * walk
    return law[most + 1 :]


def response_profile(epsilon0: float, law: np.ndarray, loss: np.ndarray, upper: bool) -> np.ndarray:
    """sum_s law_s (1 - e^{loss - s eps0})_+ at losses >= 0 in nats, rounded up if `upper`, else down;
    [losses].
    """
    at = epsilon0 * np.arange(1.0, law.size + 1.0)
    away = 8.0 * UNIT * at
    gap = at[None, :] - np.asarray(loss)[:, None] + (away if upper else -away)[None, :]
    value = -np.expm1(-np.maximum(gap, 0.0)) @ law
    return (
        value * (1.0 + RESPONSE_ROUNDING) + FLUSHED
        if upper
        else np.maximum(value * (1.0 - RESPONSE_ROUNDING) - FLUSHED, 0.0)
    )


@dataclasses.dataclass(frozen=True)
class ComposedProfile:
    """The profile of all units together, from both sides, at losses in nats; below any delta at `largest_loss`."""

    upper: Callable[[np.ndarray], np.ndarray]
    lower: Callable[[np.ndarray], np.ndarray]
    largest_loss: float


def profile_of(one: UnitBound, count: int, delta: float) -> ComposedProfile | None:
    """The profile of `count` units of a local bound down to this delta; None if it is not known exactly."""
    neg_log_tail = 17.0 - math.log(delta)
    if isinstance(one, LocalGaussian):
        return _gaussian(one, count, neg_log_tail)
    return _response(one, count, neg_log_tail) if isinstance(one, LocalPureLDP) else None


def _gaussian(one: LocalGaussian, count: int, neg_log_tail: float) -> ComposedProfile | None:
    if not _LEAST_MU <= one.mu <= _MOST_MU:
        return None
    counts = _counts(one.rate, count, neg_log_tail)
    if counts is None or counts.number.size > _MOST_GAUSSIAN:
        return None
    if not (most := one.mu * math.sqrt(float(counts.number[-1]))) <= _MOST_MU:
        return None
    padded = next(size for size in _SIZES if size >= counts.number.size)
    pad = (0, padded - counts.number.size)
    number, upper, lower = (np.pad(each, pad) for each in (counts.number, counts.upper, counts.lower))
    shift = one.mu * np.sqrt(np.maximum(number, 1.0))

    @quietly
    def mean(mass: np.ndarray, loss: np.ndarray) -> np.ndarray:
        """H_c = E delta_G(mu sqrt(K), log c) for the number K ~ Bin(T, rate) of messages, which is zero at K = 0."""
        value = np.exp(gaussian_profile.log_delta(host(shift[None, :]), host(loss[:, None])))
        return value @ np.where(number > 0, mass, 0.0)

    def above(loss: np.ndarray) -> np.ndarray:
        return mean(upper, loss) * (1.0 + ROUNDING) + counts.tail + FLUSHED

    def below(loss: np.ndarray) -> np.ndarray:
        return mean(lower, loss) * (1.0 - ROUNDING) - FLUSHED

    return ComposedProfile(above, below, 0.5 * most * most + 40.0 * most)


def _response(one: LocalPureLDP, count: int, neg_log_tail: float) -> ComposedProfile | None:
    if one.epsilon0 < _LEAST_EPSILON0:
        return None
    counts = _counts(one.rate, count, neg_log_tail)
    if counts is None or counts.number[-1] > _SIZES[-1]:
        return None
    first = int(counts.number[0])
    number = np.arange(counts.number[-1] + 1.0)
    upper, lower = (
        response_law(one.epsilon0, number, np.concatenate([np.zeros(first), each]))
        for each in (counts.upper, counts.lower)
    )

    def above(loss: np.ndarray) -> np.ndarray:
        return response_profile(one.epsilon0, upper, loss, True) + counts.tail

    def below(loss: np.ndarray) -> np.ndarray:
        return response_profile(one.epsilon0, lower, loss, False)

    return ComposedProfile(above, below, one.epsilon0 * float(number[-1]) * (1.0 + 1e-12))


def bracket(one: UnitBound, count: int, delta: float, both: bool = True) -> Bracket | None:
    """Bracket of `count` units of a local bound; None for other units, or if too many counts matter.

    delta: in [1e-300, 1). both: compute the lower end, too; else it is zero.
    """
    profile = profile_of(one, count, delta)
    if profile is None:
        return None
    if float(profile.upper(np.zeros(_POINTS))[0]) <= delta:
        return Bracket(0.0, 0.0, METHOD)
    upper = refine(lambda grid: profile.upper(grid) <= delta, profile.largest_loss, _POINTS)[1]
    if not float(profile.upper(np.full(_POINTS, upper))[0]) <= delta:
        return None
    found = Bracket(0.0, upper, METHOD)
    if both and float(profile.lower(np.zeros(_POINTS))[0]) > delta:
        lower = refine(lambda grid: ~(profile.lower(grid) > delta), upper * (1.0 + 1e-9), _POINTS)[0]
        found = dataclasses.replace(found, lower=lower, lower_method=one.name)
    return found


def surely_above(one: Exact, count: int, epsilon: float, delta: float) -> bool:
    """Cheap sufficient test that `count` units violate (epsilon, delta): some K or more messages do."""
    if not math.isfinite(epsilon):
        return False
    if isinstance(one, LocalPureLDP) and one.epsilon0 < _LEAST_EPSILON0:
        return True  # the epsilon0 of such units add up
    if isinstance(one, LocalPureLDP) and epsilon < one.epsilon0 and one.rate < 1.0:
        # One message or more.
        leaked = -math.expm1(epsilon - one.epsilon0) / (1.0 + math.exp(-one.epsilon0))
        if -math.expm1(count * math.log1p(-one.rate)) * leaked > 2.0 * delta:
            return True
    mean = count * one.rate
    around = mean + math.sqrt(mean) * np.linspace(-3.0, 8.0, 34)
    number = np.unique(np.clip(np.rint(np.append(np.geomspace(1.0, count, 30), around)), 1.0, count))
    often = scipy.special.betainc(number, count - number + 1.0, one.rate) if one.rate < 1.0 else 1.0
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        if isinstance(one, LocalGaussian):
            mu = one.mu * np.sqrt(number)
            first, second = (scipy.special.log_ndtr(sign * 0.5 * mu - epsilon / mu) for sign in (1.0, -1.0))
            leaked = np.exp(first) * -np.expm1(np.minimum(epsilon + second - first, 0.0))
        else:
            least = np.floor(0.5 * (epsilon / one.epsilon0 + number)) + 1.0
            least = least[:, None] + np.array([0.0, math.ceil(0.5 / one.epsilon0)])[None, :]
            gap = (2.0 * least - number[:, None]) * one.epsilon0 - epsilon
            held = np.clip(number[:, None] - least + 1.0, 0.5, None)
            enough = scipy.special.betainc(least, held, 1.0 / (1.0 + math.exp(-one.epsilon0)))
            enough = np.where(least <= number[:, None], enough, 0.0)
            leaked = np.max(enough * -np.expm1(-np.maximum(gap, 0.0)), axis=1)
        # The factor 2 covers rounding.
        return bool(np.nanmax(often * leaked) > 2.0 * delta)
