"""One unit of a protocol as a mixture over a public label, in few buckets.

`buckets_upper` and `buckets_lower` replace a `MixtureLaw` of counts by a mixture whose privacy profile is proved to
be at least, or at most, that of the law. `kernels.clones` has the laws and evaluates the mixtures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax import Array

from checkin_jax.kernels import ROUNDING, binomial, tails
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.execution.backend import quietly, xp


class MixtureLaw(NamedTuple):
    """The base law of one round: float64 scalars, or [parts] for a mixture over a public label.

    n: number of draws. special: pi, probability that a draw gives one of the two special labels. absent:
    probability that a draw with neither special label is an absent client, which adds `per_absent` to Z.
    other: addition to Z by a present client without a special label. always: B. scale: factor of the sum over
    n; for B = 0 the probability that the target is used when all n draws are counted. weight: of the part.
    """

    n: Array
    special: Array
    absent: Array
    other: Array
    always: Array
    scale: Array
    weight: Array
    per_absent: Array


class Buckets(NamedTuple):
    """A round as a mixture over a public label: N = number fair signs and a ratio y = Nabs / N.

    number: [labels]; ratio, weight: [labels, ratios]; weight bounds E_F[N / n] of the label on the side of
    the mixture.
    tail: bound on the weight of everything left out.
    """

    number: Array
    ratio: Array
    weight: Array
    tail: Array


# Up to this many draws every (N, Nabs) is a bucket of its own, and the mixture is the round itself.
SMALL = 48


def _over_parts(one: Callable[[MixtureLaw], Buckets], law: MixtureLaw) -> Buckets:
    """Concatenation of the parts' mixtures, times their weights."""
    mix = backend.vmap(one)(law)
    ratios = mix.ratio.shape[-1]
    weight = mix.weight * law.weight[:, None, None]
    return Buckets(
        mix.number.ravel(), mix.ratio.reshape(-1, ratios), weight.reshape(-1, ratios), law.weight @ mix.tail
    )


def with_mass(mix: Buckets) -> Buckets:
    """The mixture without labels of mass zero."""
    kept = np.flatnonzero(np.max(np.asarray(mix.weight), axis=1) > 0.0)
    kept = kept if kept.size else np.arange(1)
    return Buckets(mix.number[kept], mix.ratio[kept], mix.weight[kept], mix.tail)


@quietly
def buckets_exact(law: MixtureLaw, absences: int) -> Buckets:
    """The round itself, for n <= SMALL: one bucket for each (N, Nabs < absences), exact up to rounding.

    absences: SMALL, or 1 for a law with absent = 0.
    """

    def one(law: MixtureLaw) -> Buckets:
        n = law.n
        number = xp.arange(1.0, SMALL + 1.0)[:, None]
        away = xp.arange(0.0, absences)[None, :]
        valid = (number <= n) & (away <= n - number)
        number, others = xp.minimum(number, n), xp.maximum(n - number, 0.0)
        away = xp.minimum(away, others)
        log_weight = binomial.log_pmf(number - 1.0, n - 1.0, law.special)
        log_weight = log_weight + binomial.log_pmf(away, others, law.absent)
        weight = xp.where(valid, law.scale * law.special * xp.exp(log_weight), 0.0)
        ratio = (law.always + away * law.per_absent + (others - away) * law.other) / number
        return Buckets(number[:, 0], ratio, weight, xp.zeros_like(law.special))

    return _over_parts(one, law)


@quietly
def buckets_upper(law: MixtureLaw, neg_log_tail: Array, buckets: int, offsets: tuple[float, ...]) -> Buckets:
    """A mixture whose profile is at least that of the round, for every c >= 1.

    It covers all but 4 exp(-neg_log_tail) of the law. That weight is returned as `tail`, and its
    contribution to H_c is at most tail (p - c)_+ / 2.

    Args:
      law: of `upper_law` or `slots_law` (other = 0).
      buckets: number of runs of N, for each part.
      offsets: y given N is spread over its mean, these multiples of its standard deviation to both sides, and
        the two ends. () costs three points a bucket and suits large n; more points follow the tails for small
        n.
    """
    return _over_parts(lambda part: _bucket_upper(part, neg_log_tail, buckets, offsets), law)


def _bucket_upper(law: MixtureLaw, neg_log_tail: Array, buckets: int, offsets: tuple[float, ...]) -> Buckets:
    n, special, absent, _, always, scale, _, each = law
    cut = binomial.cells(n - 1.0, special, neg_log_tail, buckets)
    # cells() counts N - 1.
    first, last = xp.minimum(cut.first, n - 1.0) + 1.0, xp.minimum(cut.last, n - 1.0) + 1.0
    weight = scale * special * cut.mass_upper
    # E[y | N] = (always + (n - N) absent each) / N. 1/N is convex, so Jensen gives a lower bound on its mean,
    # and h is nonincreasing in y.
    at_first, at_last = ((always + (n - number) * (absent * each)) / number for number in (first, last))
    middle = (always + absent * each * n) / (cut.mean_upper + 1.0) - absent * each
    middle = xp.clip(middle, at_last, at_first)
    # Centred, Nabs / N is largest in convex order at the first N of the bucket.
    variance = (n - first) * absent * (1.0 - absent)
    radius = binomial.bernstein_radius(variance, neg_log_tail)
    up_end = xp.minimum((always + (n - first) * each) / first, at_first + each * radius / first) - middle
    down_end = middle - xp.maximum(at_last - each * radius / first, 0.0)
    steps = [k * each * xp.sqrt(variance) / first for k in offsets]
    # Absent clients per unit of y; a zero addition has no spread.
    per_ratio = first / xp.where(each > 0, each, 1.0)
    # E (y - middle)_+ = E (middle - y)_+: exact for a binomial law (de Moivre), plus the drift of its mean
    # within the bucket, and at most the value for a law on the two ends.
    both = xp.where(up_end + down_end > 0, up_end + down_end, 1.0)
    above = xp.minimum(xp.floor((n - first) * absent) + 1.0, n - first)
    exact = above * (1.0 - absent) * xp.exp(binomial.log_pmf(above, n - first, absent)) * each / first
    centre = xp.minimum(exact + at_first - middle, up_end * down_end / both)

    def side(drift: Array, end: Array, prob: Array) -> tuple[list[Array], list[Array]]:
        at, loss = _stop_loss(steps, drift, end, n - first, prob, per_ratio, neg_log_tail)
        return at, _weights(at, loss, centre)

    # Both sides in one call: two copies of the code would be compiled.
    at, share = backend.vmap(side)(
        xp.stack([at_first - middle, middle - at_last]),
        xp.stack([up_end, down_end]),
        xp.stack([absent, 1.0 - absent]),
    )
    (up_at, down_at), (up_share, down_share) = zip(*at), zip(*share)
    stay = xp.maximum(1.0 - sum(up_share) - sum(down_share), 0.0)
    ratio = xp.stack([middle, *(middle + u for u in up_at), *(middle - d for d in down_at)], axis=1)
    share = xp.stack([stay, *up_share, *down_share], axis=1)
    spread_out = xp.where((absent > 0) & (absent < 1), 2.0 * xp.exp(-neg_log_tail), 0.0)
    tail = scale * special * (cut.tail + spread_out)
    return Buckets(first, xp.maximum(ratio, 0.0), weight[:, None] * share, tail)


def _stop_loss(
    steps: list[Array],
    drift: Array,
    end: Array,
    trials: Array,
    prob: Array,
    number: Array,
    neg_log_tail: Array,
) -> tuple[list[Array], list[Array]]:
    """Points u beyond the middle, and bounds on E(|y - middle| - u)_+ on that side, for Bin(trials, prob).

    By de Moivre E(X - E X - t)_+ = prob (trials - a + 1) Pr[X = a - 1] - t Pr[X >= a], where a is the least
    whole number above E X + t.
    """
    inner = [xp.minimum(step, end) for step in steps]
    if not inner:
        return [end], [xp.zeros_like(end)]
    at = xp.stack(inner, axis=1)
    t = (at - drift[:, None]) * number[:, None]
    points, exact = tails.STRIDED
    tables = tails.tabulate(trials, prob, neg_log_tail, points, exact, False)
    m = trials[:, None]
    a = xp.clip(xp.floor(m * prob + xp.maximum(t, 0.0)) + 1.0, 1.0, m + 1.0)
    pmf, tail = tails.look_up(tables, prob, a, exact, False)
    # The difference of two terms of one sign loses at most (t / sd)^2 of its digits.
    exact = xp.maximum(prob * (m - a + 1.0) * pmf * (1.0 + ROUNDING) - t * tail, 0.0) / number[:, None]
    deviation = xp.sqrt(m * prob * (1.0 - prob)) / number[:, None]
    loss = xp.where(t > 0, exact, 0.5 * deviation + drift[:, None])
    loss = xp.where(at >= end[:, None], 0.0, loss)
    return [*inner, end], [*(loss[:, i] for i in range(len(inner))), xp.zeros_like(end)]


def _weights(points: list[Array], losses: list[Array], centre: Array) -> list[Array]:
    """Masses at the points of one side: second differences of the convex minorant of the stop-loss bounds.

    A convex function below the bounds, with value `centre` at 0, lies below their convex minorant.
    """
    x, bound = [xp.zeros_like(centre), *points], [centre, *losses]
    last = len(x) - 1
    hull = list(bound)
    for k in range(1, last):
        for i in range(k):
            for j in range(k + 1, last + 1):
                gap = x[j] - x[i]
                part = xp.where(gap > 0, (x[k] - x[i]) / xp.where(gap > 0, gap, 1.0), 1.0)
                hull[k] = xp.minimum(hull[k], bound[i] + part * (bound[j] - bound[i]))
    slopes = []
    for k in range(last):
        gap = x[k + 1] - x[k]
        slopes.append(xp.where(gap > 0, (hull[k] - hull[k + 1]) / xp.where(gap > 0, gap, 1.0), 0.0))
    # A gap of zero repeats a point, which takes the next slope and no mass.
    slopes.append(xp.zeros_like(centre))
    for k in range(last - 1, -1, -1):
        slopes[k] = xp.where(x[k + 1] > x[k], slopes[k], slopes[k + 1])
    return [xp.maximum(slopes[k - 1] - slopes[k], 0.0) for k in range(1, last + 1)]


@quietly
def buckets_lower(law: MixtureLaw, neg_log_tail: Array, buckets: int) -> Buckets:
    """A mixture whose profile is at most that of the round, for every c > 0; one ratio per label."""

    def one(law: MixtureLaw) -> Buckets:
        n, special, absent, other, always, scale, _, each = law
        cut = binomial.cells(n - 1.0, special, neg_log_tail, buckets)
        first, last = xp.minimum(cut.first, n - 1.0) + 1.0, xp.minimum(cut.last, n - 1.0) + 1.0
        # Upper bound on E[1/N]: h is nonincreasing in y.
        inverse = binomial.mean_inverse(first, last, xp.clip(cut.mean_lower + 1.0, first, last))
        ratio = (
            xp.maximum(n * inverse - 1.0, 0.0) * (absent * each + (1.0 - absent) * other) + always * inverse
        )
        weight = (scale * special * cut.mass_lower)[:, None]
        return Buckets(last, ratio[:, None], weight, xp.zeros_like(special))

    return _over_parts(one, law)
