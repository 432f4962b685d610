r"""Sums of m likelihood ratios on lattices: both profiles of the random allocation of a step.

With L_i independent likelihood ratios of a step, each of mean one, S = sum_i (L_i - 1) and Y = 1 + (rho/m) S,

    H_c(P||Q) = (rho/m) E(S - x)_+ ,    x = m (c - 1)/rho,    P = (1-rho) Q + (rho/m) sum_i (the record in step i),
    H_c(Q||P) = (c rho/m) E(-S - x)_+ , x = m (1 - 1/c)/rho,  Q: the record in no step.

For upper bounds, L is replaced by a lattice law above it in convex order: mass moves to both neighbouring
levels and the mean is preserved. For lower bounds, the stop-loss transform of L is replaced by a
smaller convex function. One FFT per exponential tilt gives the law of the sum. Every error is counted on the
side of the bound. Heavy tails use a ladder of lattices, since, for every B,

    E(S - x)_+ <= E(sum_i min(L_i, B) - m - x)_+ + m E(L - B)_+ ,    with equality for x + m <= B,

and -S > x forces every L_i below m - x. `Excess` allows terms of several shifts and weights. Proofs:
docs/evaluation.md. NumPy float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from checkin_jax.kernels import ROUNDING
from checkin_jax.kernels.elementary import UNIT
from checkin_jax.numerics.step_ratios import (
    GivenRatio,
    Lognormal,
    LowerRatio,
    StepRatio,
    gaussian_sd,
    law_lower,
    law_upper,
)
from checkin_jax.numerics.tilted_sums import (
    LatticeSteps,
    Sum,
    Tail,
    outweighs,
    steps_of,
    tail_of,
)

# Lattice spacing shrinks below _FEW steps and grows above _MANY.
_FEW, _MANY = 100.0, 1e4
_MAX_POINTS, _MAX_POINTS_FAR = 2**20, 2**15
_RATIO = 4.0
_MAX_SCALES = 200
# Change of a sum's mean by cutting its large terms, in standard deviations, for lower bounds and for upper ones; and
# levels that are tried.
_BARELY, _LEVELS = (1e-4, 1e-5), 256
# Most lattice points of one scale.
_MAX_GRID = 2**23
# Most lattice points of the law of one term, for sums of several kinds.
_MAX_LAW = 2**24
_MAX_LEVELS = 2**16
# Losses are capped here, so that c = e^loss stays finite in float64.
_MAX_LOSS = 690.0
# Smaller probabilities are not told from zero.
_LEAST_HELD = 1e-290
# Larger numbers of slots are replaced by this one: H decreases with m, so the upper end only grows.
MAX_SLOTS = 10**9
# For sums of several kinds: spacing in standard deviations of the smallest term, and most points of the
# lattice of sums.
_FINE_STEP, _MOST_POINTS, _MOST_POINTS_FAR = 0.1, 2**18, 2**16
# The subsampling bound is also evaluated below _FEW_SLOTS slots, and where the bound is at most _NEAR_END
# times the last value of the ladder.
_FEW_SLOTS, _NEAR_END = 4.0, 1e3
# Relative rounding error of lattice points, with a wide margin.
_PLACED = 1e-14


class StopLossTails(NamedTuple):
    """Stop-loss tails on a ladder of scales; `ends`: the largest x of each scale, or least sum if
    `reverse`.

    number: m, the number of terms. At a sum k, tails are read at k - number, or at shift - k if `reverse`.
    """

    number: float
    reverse: bool
    ends: list[float]
    shifts: list[float]
    tails: list[Tail]


def profile(ratio: StepRatio, number: int, neg_log_tail: float, reverse: bool, upper: bool) -> StopLossTails:
    """Bounds on E(S - x)_+, or E(-S - x)_+ if `reverse`, x >= 0, down to `number` exp(-neg_log_tail).

    Args:
      ratio: law of L; one of `LowerRatio` for lower bounds.
      number: m, the number of terms. Above MAX_SLOTS, the upper bound uses MAX_SLOTS terms and the lower one
        is empty.
      upper: upper bound if true, lower bound if false.
    """
    m = float(min(number, MAX_SLOTS))
    found = StopLossTails(m, reverse, [], [], [])
    if number > MAX_SLOTS and not upper:
        return found
    least, most = ratio.ends(neg_log_tail)
    least = least if least > 0.3 else 0.0
    width = math.sqrt(2.0 * neg_log_tail) + 1.0
    small = math.exp(-neg_log_tail) * m
    reached = 0.0
    for _ in range(30):
        reached = width * math.sqrt(m) * ratio.sd(min(most, m if reverse else m + reached))
    # One scale covers x from start to end, or sums from start down to end.
    start, end = (m, max(m - reached, 0.25 * m)) if reverse else (0.0, reached)
    for scale in range(_MAX_SCALES):
        high = min(most, start if reverse else m + end)
        if not reverse:
            # A term of this size exceeds any deficit of the others, so truncation there costs little.
            high = min(high, 1.0 + 2.5 * end)
        if high <= least:
            break  # truncated terms have no smaller sum: this scale covers the rest
        step = ratio.sd(high)
        sd = math.sqrt(m) * step
        spacing = ratio.resolution * step * min(1.0, math.sqrt(m / _FEW)) * max(m / _MANY, 1.0) ** 0.125
        points = _MAX_POINTS if scale == 0 else _MAX_POINTS_FAR
        if scale > 0:
            spacing = max(spacing, (start if reverse else end + 10.0 * min(sd, m)) / (0.125 * points))
        most_levels = _MAX_POINTS if upper else 2.0 * _MAX_LEVELS
        if ratio.heavy and (ratio.bounded or not upper) and (reverse or scale == 0):
            # The law has little mass within one spacing.
            finest = 0.02 * (start / m if reverse else 1.0)
            spacing = min(spacing, max(finest, (high - least) / min(_MAX_LEVELS, most_levels)))
        if reverse and scale == 0 and high - least > most_levels * max(spacing, 24.0 * sd / points):
            high = _barely_cut(ratio, m, high, _BARELY[upper])
        spacing = max(spacing, 24.0 * sd / points, (high - least) / most_levels)
        spacing = min(spacing, 0.1 * (high - least))
        law = (law_upper if upper else law_lower)(ratio, least, high, spacing)  # type: ignore[arg-type]
        if law is None:
            break
        ends = ((-start, -end) if scale else (0.0, m - end)) if reverse else (start, end)
        centred = scale == 0 or not reverse
        if (ends[1] - ends[0]) / law.spacing > _MAX_GRID:
            break  # terms with nearly no spread, far from their mean
        steps = steps_of(law, reverse, centred)
        tail = tail_of(Sum(((steps, m),)), ends, not reverse, points, upper)
        if upper:
            shift, extra = m * law.slack, m * (law.below if reverse else law.above)
        elif reverse:
            shift, extra = -m * law.slack, 0.0 if high >= start else -m * law.above
        else:
            shift, extra = -m * law.slack, m * (law.above * outweighs(steps, m, end, high, sd) - law.below)
        found.tails.append(tail._replace(start=tail.start + shift, value=tail.value + extra))
        found.shifts.append(m if centred else 0.0)
        found.ends.append(end)
        if found.tails[-1].value[-1] <= small or (not reverse and end > m * most):
            break
        start, end = end, end / _RATIO if reverse else _RATIO * end
        if not 1e-290 < end < 1e290:
            break
    return found


def _barely_cut(ratio: StepRatio, number: float, high: float, share: float) -> float:
    """Level, at most `high`, at which cutting terms lowers the mean of their sum by this share of its deviation.

    In reverse, E(-S - x)_+ changes by this alone, and a lattice up to rare large terms would be coarse.
    """
    levels = np.geomspace(1.5, high, _LEVELS) if high > 1.5 else np.array([high])
    allowed = share * ratio.sd(high) / math.sqrt(number)
    enough = np.flatnonzero(ratio.excess(levels) <= allowed)
    return float(levels[enough[0]]) if enough.size else high


def _sums(number: float, used: float, loss: np.ndarray, reverse: bool) -> np.ndarray:
    """x for the forward direction, or the sum k for the reverse one, at losses >= 0."""
    if not reverse:
        with np.errstate(over="ignore"):
            return np.minimum(number * np.expm1(np.minimum(loss, 700.0)) / used, 1e300)
    return number * np.exp(-loss) if used == 1.0 else number * (1.0 + np.expm1(-loss) / used)


def _margin(number: float, used: float, reverse: bool) -> tuple[float, float]:
    """Bounds on the relative and absolute error of `_sums`, with a wide margin."""
    return 16.0 * UNIT, (16.0 * UNIT * number / used if reverse and used < 1.0 else 0.0)


def profile_upper(above: StopLossTails, ratio: StepRatio, used: float, loss: np.ndarray) -> np.ndarray:
    """Upper bound on H_c(P||Q), or on H_c(Q||P) if above.reverse, at c = e^loss, loss >= 0 in nats.

    The smaller of the sum's bound and of subsampling without other slots: that of one step at 1 + (c - 1)/rho, times
    rho.
    """
    m, reverse = above.number, above.reverse
    sums = _sums(m, used, loss, reverse)
    relative, absolute = _margin(m, used, reverse)
    sums = np.maximum(sums * (1.0 + relative) + absolute, 0.0) if reverse else sums * (1.0 - relative)
    value = np.full(sums.shape, math.inf)
    left = np.ones(sums.shape, dtype=bool)
    last, reached = len(above.ends) - 1, math.inf
    for i, (end, shift, tail) in enumerate(zip(above.ends, above.shifts, above.tails)):
        here = left & ((sums >= end) if reverse else (sums <= end)) if i < last else left
        # Values decrease in x, so the last value of a scale bounds all beyond it; lattices of later scales are coarser.
        at = shift - np.maximum(sums[here], end) if reverse else np.minimum(sums[here], end)
        value[here] = np.minimum(tail.above(at), reached)
        reached = min(reached, float(tail.above(np.array([shift - end if reverse else end]))[0]))
        left &= ~here
    # With many slots, the subsampling bound can only be smaller near the end of the ladder.
    least = float(above.tails[-1].value[-1]) if above.tails else math.inf
    few = np.isinf(value) | (value <= _NEAR_END * least) | (m < _FEW_SLOTS) | ratio.bounded
    value = value / m
    some = sums[few] / m
    value[few] = np.minimum(value[few], ratio.excess(some if reverse else 1.0 + some))
    with np.errstate(divide="ignore", over="ignore"):
        scale = np.log(used) + (loss if reverse else 0.0)
        bound = np.exp(scale + np.log(value))
    return np.where(sums > 0, bound, 0.0 if reverse else bound) * (1.0 + ROUNDING)


def lines_lower(below: StopLossTails, used: float, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(P(A) - Q(A), Q(A)) for a set A near {privacy loss > loss}, with P and Q exchanged if below.reverse.

    The difference is rounded down and the mass up. Zeros where the ladder has no value.
    """
    m, reverse = below.number, below.reverse
    sums = _sums(m, used, loss, reverse)
    difference, far = np.zeros(sums.shape), np.zeros(sums.shape)
    left = np.ones(sums.shape, dtype=bool)
    for end, shift, tail in zip(below.ends, below.shifts, below.tails):
        here = left & ((sums >= end) if reverse else (sums <= end))
        at = shift - sums[here] if reverse else sums[here]
        index = np.clip(np.floor((at - tail.start) / tail.spacing), 0, tail.value.size - 1).astype(np.int64)
        above = np.expm1(np.minimum(loss[here], _MAX_LOSS))
        best = np.zeros(at.shape)
        # The higher line of the two neighbouring grid points.
        for beside in (index, np.minimum(index + 1, tail.value.size - 1)):
            apart, away = _line(tail, beside, m, used, shift if reverse else None)
            value = apart - above * away
            better = value > best
            best = np.where(better, value, best)
            difference[here] = np.where(better, apart, difference[here])
            far[here] = np.where(better, away, far[here])
        left &= ~here
    return difference, far


def large_term_lines(
    ratio: LowerRatio, number: int, used: float, loss: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(P(A) - Q(A), Q(A)) for A = {one of the m terms is large}, rounded as in `lines_lower`.

    With q and p the probabilities of a large term without and with the record, P(A) - Q(A) = rho (1-q)^(m-1) (p - q),
    and Q(A) <= m q. A term is large if it alone brings the likelihood ratio to e^loss.
    """
    with np.errstate(divide="ignore"):
        level = np.logaddexp(0.0, math.log(number / used) + np.log(np.expm1(np.minimum(loss, _MAX_LOSS))))
    apart, far = ratio.beyond(level)
    none = np.maximum(1.0 - number * far * (1.0 + 1e-9), 0.0)
    difference = used * none * apart * (1.0 - 1e-9)
    # A probability that float64 cannot hold is not zero: there is no event then.
    held = far > _LEAST_HELD
    return np.where(held, np.maximum(difference, 0.0), 0.0), np.where(held, number * far * (1.0 + 1e-9), 0.0)


def small_terms_lines(
    ratio: GivenRatio, number: int, used: float, loss: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(Q(A) - P(A), P(A)) for A = {all m terms are small}, rounded as in `lines_lower`.

    With q and p the probabilities of a small term without and with the record, Q(A) - P(A) = rho q^(m-1) (q - p), and
    P(A) <= Q(A). Terms are small if all together, at that level, bring the likelihood ratio to e^-loss.
    """
    share = 1.0 + np.expm1(-np.minimum(loss, _MAX_LOSS)) / used
    with np.errstate(divide="ignore"):
        level = np.where(share > 0.0, -np.log(np.maximum(share, 1e-300)), _MAX_LOSS)
    # A hair before it, so that terms of exactly this size are small.
    apart, near = ratio.below(np.maximum(level * (1.0 - 1e-9), 0.0))
    held = (share > 0.0) & (apart + near > 0.0)
    with np.errstate(divide="ignore"):
        others = np.exp((number - 1.0) * np.log(np.where(held, apart + near, 1.0) * (1.0 - 2e-10)))
    most = np.exp((number - 1.0) * np.log(np.where(held, apart + near, 1.0) * (1.0 + 2e-10)))
    difference = used * others * apart * (1.0 - 1e-9)
    mass = most * ((1.0 - used) * (apart + near) + used * near) * (1.0 + 1e-9)
    return np.where(held, np.maximum(difference, 0.0), 0.0), np.where(held, mass, 0.0)


def _line(
    tail: Tail, index: np.ndarray, m: float, used: float, shift: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Line of `lines_lower` for sums beyond one point of the tail; zeros where the tail is not positive.

    shift: of `StopLossTails` if reverse, else None.
    """
    x = tail.start + tail.spacing * index
    value, low, high = tail.value[index], tail.mass_lower[index], tail.mass_upper[index]
    known = value > 0
    value = np.where(known, value, 0.0)
    if shift is not None:
        share = 1.0 - (shift - x) / m
        apart = used * (np.where(share > 0, low, high) * share + value / m)
        away = high * (1.0 - used) + (used / m) * (high * (shift - x) - value)
    else:
        apart, away = (used / m) * (value + np.where(x > 0, low, high) * x), high
    good = known & (apart > 0)
    return (
        np.where(good, apart, 0.0) * (1.0 - ROUNDING),
        np.where(good, np.maximum(away, 0.0), 0.0) * (1.0 + ROUNDING),
    )


class EqualTerms(NamedTuple):
    """`number` independent terms weight (L - 1), L with shift mu; 0 < weight <= 1."""

    number: int
    mu: float
    weight: float


def _units(spacing: float, weights: tuple[float, ...]) -> tuple[float, list[int]]:
    """(spacing, units): a spacing near the given one, and each weight in units of it, rounded up."""
    first = min(weights)
    best, found = math.inf, (spacing, [1])
    fewest = max(math.ceil(first / spacing), 2)
    for units in range(fewest, 2 * fewest + 2):
        fine = first / units
        others = [math.ceil(weight / fine * (1.0 - 1e-12)) for weight in weights]
        excess = max(count * fine / weight for count, weight in zip(others, weights))
        if excess < best * (1.0 - 1e-6):
            best, found = excess, (fine, others)
    return found


def _spreads(kinds: tuple[EqualTerms, ...], end: float, reverse: bool) -> tuple[list[float], list[float]]:
    """Truncation level of each L, and approximate standard deviation of each truncated term.

    Forward, a term at the truncation level exceeds any deficit of the others. In reverse, such large terms
    hardly count.
    """
    highs = [
        math.exp(min(5.0 * kind.mu + 0.5 * kind.mu**2, 600.0)) if reverse else 1.0 + 2.5 * end / kind.weight
        for kind in kinds
    ]
    return highs, [kind.weight * gaussian_sd(kind.mu, max(high, 1.5)) for kind, high in zip(kinds, highs)]


class Excess:
    """Upper bound on E(S - x)_+, or on E(-S - x)_+ if reverse, for x >= 0, down to about
    exp(-neg_log_tail) per term.

    Scales of the ladder are computed on first use.

    Raises:
      ValueError: from `at`, if the law of one term needs too many lattice points: in reverse with mu above
        2.4, or below that with unequal weights.
    """

    def __init__(self, kinds: tuple[EqualTerms, ...], neg_log_tail: float, reverse: bool) -> None:
        self._kinds, self._mass, self._reverse = kinds, neg_log_tail, reverse
        width = math.sqrt(2.0 * neg_log_tail) + 1.0
        whole = math.fsum(kind.number * kind.weight for kind in kinds)
        self._small = math.exp(-neg_log_tail) * whole
        end = 0.0
        for _ in range(30):
            _, sds = _spreads(kinds, end, reverse)
            end = width * math.sqrt(math.fsum(kind.number * sd * sd for kind, sd in zip(kinds, sds)))
        self._end = min(end, 0.75 * whole) if reverse else end
        self._tails: dict[int, Tail] = {}

    def _ends(self, scale: int) -> tuple[float, float]:
        end = self._end * _RATIO**scale
        return (end / _RATIO if scale else 0.0), end

    def _tail(self, scale: int) -> Tail:
        if scale not in self._tails:
            self._tails[scale] = _scale(self._kinds, self._ends(scale), self._mass, self._reverse)
        return self._tails[scale]

    def _last(self, scale: int) -> bool:
        """True at the last scale: the rest is negligible, or coarser lattices miss the smaller terms."""
        _, end = self._ends(scale)
        return (
            self._reverse
            or _far_spacing(_RATIO * end) > 0.5 * min(kind.weight for kind in self._kinds)
            or float(self._tail(scale).above(np.array([end]))[0]) <= self._small
        )

    def at(self, x: np.ndarray) -> np.ndarray:
        """Upper bound at each x, any shape. Beyond the last scale its last value is used."""
        value = np.full(np.shape(x), math.inf)
        left, scale = np.ones(np.shape(x), dtype=bool), 0
        while left.any():
            _, end = self._ends(scale)
            beyond = left & (x > end)
            here = left if beyond.any() and self._last(scale) else left & ~beyond
            if here.any():
                value[here] = self._tail(scale).above(np.minimum(x[here], end))
            left, scale = left & ~here, scale + 1
        return value * (1.0 + ROUNDING)


def _far_spacing(end: float) -> float:
    return end / (0.12 * _MOST_POINTS_FAR)


def _scale(
    kinds: tuple[EqualTerms, ...], ends: tuple[float, float], neg_log_tail: float, reverse: bool
) -> Tail:
    """Upper tail on one scale, from ends[0] to ends[1]."""
    start, end = ends
    highs, sds = _spreads(kinds, end, reverse)
    spreads = [kind.mu * math.sqrt(2.0 * (neg_log_tail + 7.0)) + 0.5 * kind.mu**2 for kind in kinds]
    highs = [max(min(high, math.exp(min(spread, 600.0))), 1.5) for high, spread in zip(highs, spreads)]
    total = math.sqrt(math.fsum(kind.number * sd * sd for kind, sd in zip(kinds, sds)))
    points = _MOST_POINTS if start == 0.0 else _MOST_POINTS_FAR
    span = max(kind.weight * high for kind, high in zip(kinds, highs))
    spacing = max(_FINE_STEP * min(sds), span / points, 24.0 * total / points)
    if start > 0.0:
        spacing = max(spacing, _far_spacing(end))
    spacing, units = _units(spacing, tuple(kind.weight for kind in kinds))
    steps, slack, beyond = [], 0.0, 0.0
    for kind, high, count in zip(kinds, highs, units):
        if high * count > _MAX_LAW:
            raise ValueError(
                f"mu={kind.mu!r} at weight={kind.weight!r}: expected a law of at most {_MAX_LAW:,} lattice points, not "
                f"of {high * count:.3g}: a smaller mu, or weights nearer to each other"
            )
    for kind, spread, high, count in zip(kinds, spreads, highs, units):
        low, scale = math.exp(-spread), count * spacing
        # 1 is a lattice point: `count` spacings.
        law = law_upper(Lognormal(kind.mu), low if low > 0.3 else 0.0, high, 1.0 / (count - 0.5))
        first = round(law.start * count) - count
        masses = law.masses[::-1] if reverse else law.masses
        least = -(first + law.masses.size - 1) if reverse else first
        steps.append((LatticeSteps(least * spacing, spacing, masses), float(kind.number)))
        slack += kind.number * (scale * law.slack + _PLACED * scale * high)
        beyond += kind.number * scale * (law.below if reverse else law.above)
    tail = tail_of(Sum(tuple(steps)), ends, start > 0.0, points, True)
    return tail._replace(start=tail.start + slack, value=tail.value + beyond)
