r"""Check-ins of eps0-LDP messages: certified profiles (T1, T1h, T2, T2') and lower bounds (L1, L2, 3-ary).

With p = e^eps0, the pair of one unit of every protocol is, for counts of labels in n draws from a base law F
(N0 and N1 of two special labels, Z a weighted count of the others),

    P/F = scale (p N0 + N1 + B + Z) / n,     Q/F = scale (N0 + p N1 + B + Z) / n,

with a constant B (fields of `Law`). Given N = N0 + N1, N0 is Bin(N, 1/2), so with y = (B + Z) / N

    H_c = E_F[ scale (N / n) h(N, y; c) ],
    h = [ f ((p - c) - (c - 1) y) - (c - 1) R ((p + 1) + 2 y) ] / 2,

f = Pr[Bin(N-1, 1/2) = a-1], R = Pr[Bin(N-1, 1/2) >= a], a = the least N0 whose loss exceeds log c. Three
facts reduce this two-dimensional sum to a few hundred terms for every n, with one-sided errors:

* F(N) N / n is pi times a binomial law of N - 1, where pi is F's probability of a special label
  (`binomial.cells`).
* h is convex and nonincreasing in y. The upper bound spreads the law of y given N over a few points with the
  same mean; the lower bound uses the mean (Jensen).
* At fixed y, h(N, y) is nonincreasing in N: it is the hockey-stick divergence of an average of N signs, and
  averages shrink in convex order. A bucket of N is replaced by its first value (upper bound) or its last
  (lower bound).

`buckets_upper` and `buckets_lower` replace a `MixtureLaw` of counts, a unit as a mixture over a public label, by a
mixture of few buckets whose privacy profile is proved to be at least, or at most, that of the law.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, binomial, require_float64
from checkin_jax.kernels.elementary import UNIT
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
    points, exact = binomial.STRIDED
    tables = binomial.tabulate(trials, prob, neg_log_tail, points, exact, False)
    m = trials[:, None]
    a = xp.clip(xp.floor(m * prob + xp.maximum(t, 0.0)) + 1.0, 1.0, m + 1.0)
    pmf, tail = binomial.look_up(tables, prob, a, exact, False)
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


@quietly
def upper_law(num_clients: Array, rate: Array, epsilon0: Array) -> MixtureLaw:
    """T1: labels 0 and 1 have probability rate/(p+1) each; other draws are absent or add nothing; [settings or 1]."""
    p = xp.exp(epsilon0)
    neither = rate * xp.expm1(epsilon0) / (p + 1.0)
    zero, one = xp.zeros_like(p), xp.ones_like(p)
    law = MixtureLaw(
        num_clients, 2.0 * rate / (p + 1.0), share(1.0 - rate, neither), zero, zero, one, one, one
    )
    shape = xp.broadcast_shapes((1,), xp.shape(num_clients + rate + p))
    return MixtureLaw(*(xp.broadcast_to(part, shape) for part in law))


@quietly
def lower_law(num_clients: Array, rate: Array, epsilon0: Array) -> MixtureLaw:
    """L1 for 3-ary randomized response, all other clients at a third record; shape [1].

    Labels 0 and 1 have probability rate/(p+2) each. The third label has probability rate p/(p+2) and adds
    1/p.
    """
    p = xp.exp(epsilon0)
    third = rate * p / (p + 2.0)
    zero, one = xp.zeros_like(p), xp.ones_like(p)
    law = MixtureLaw(
        num_clients, 2.0 * rate / (p + 2.0), share(1.0 - rate, third), 1.0 / p, zero, one, one, one
    )
    return MixtureLaw(*(xp.broadcast_to(part, (1,)) for part in law))


@quietly
def slots_law(slots: Array, used: Array, weight: Array, epsilon0: Array, upper: bool) -> MixtureLaw:
    """T2 (`upper`), or its lower bound by 3-ary randomized response; all [parts].

    slots: m >= 1, one message each. use_prob: rho in (0, 1], probability that the target's message is in one of
    them, uniformly. T2' has m = K and rho = K/n for each number K of occupied slots, with probabilities
    `weight`.
    """
    p = xp.exp(epsilon0)
    zero = xp.zeros_like(slots)
    special, other = (2.0 / (p + 1.0), zero) if upper else (2.0 / (p + 2.0), zero + 1.0 / p)
    return MixtureLaw(slots, zero + special, zero, other, slots * (1.0 - used) / used, used, weight, zero)


@quietly
def pool_law(pool: Array, weight: Array, theta: Array, rate: Array, epsilon0: Array) -> MixtureLaw:
    """T1h: the target checks in with probability `rate`, each of `pool` other clients with probability theta.

    pool: n' >= 0, whole, [parts]. weight: of the parts, a public label. theta: in (0, 1). rate: g in (0, 1].
    An absent draw adds alpha = (1-g)/(1-theta). A present one adds beta = g/theta times its value in T1.
    """
    p, zero = xp.exp(epsilon0), xp.zeros_like(pool)
    neither = theta * xp.expm1(epsilon0) / (p + 1.0)
    special, absent = zero + 2.0 * theta / (p + 1.0), zero + share(1.0 - theta, neither)
    ratio = zero + (1.0 - rate) * theta / ((1.0 - theta) * rate)
    return MixtureLaw(pool + 1.0, special, absent, zero, zero, zero + rate / theta, weight, ratio)


def share(part: Array, rest: Array) -> Array:
    total = part + rest
    return xp.where(total > 0, part / xp.where(total > 0, total, 1.0), 0.0)


def _terms(
    mix: Buckets, tables: binomial.Tables, loss: Array, epsilon0: Array, exact: bool, tail_upper: bool
) -> tuple[Array, Array, Array]:
    """f, R and y, each [labels, ratios, losses] or broadcasting to it, for A = {loss of N0 > loss}.

    A is N1 / N < ((p - c) - (c - 1) y) / ((p - 1) (c + 1)), divided by p c so that p = e^50 loses no digits.
    """
    y, loss = mix.ratio[:, :, None], loss[None, None, :]
    per_c, per_p = xp.exp(-loss), xp.exp(-epsilon0)
    room = per_c * -xp.expm1(loss - epsilon0) + per_p * xp.expm1(-loss) * y
    share = xp.clip(room / (-xp.expm1(-epsilon0) * (1.0 + per_c)), 0.0, 0.5)
    n = mix.number[:, None]
    a = n - xp.ceil(n * share.reshape(n.shape[0], -1)) + 1.0
    pmf, tail = binomial.look_up(tables, None, a, exact, tail_upper)
    return pmf.reshape(share.shape), tail.reshape(share.shape), y


class Cut(NamedTuple):
    """Static choices for a law's mixture and its tables.

    buckets: 0 for the law itself, with absent counts below `absences`. offsets: of `buckets_upper`. table:
    the `binomial.table_size` of the fair signs.
    """

    buckets: int
    absences: int
    offsets: tuple[float, ...]
    table: tuple[int, bool]


@quietly
def tabulated(law: MixtureLaw, neg_log_tail: Array, cut: Cut, upper: bool) -> tuple[Buckets, binomial.Tables]:
    """A mixture on one side of the law, and tables of its fair signs with tails rounded to that side."""
    if cut.buckets == 0:
        mix = buckets_exact(law, cut.absences)
    elif upper:
        mix = buckets_upper(law, neg_log_tail, cut.buckets, cut.offsets)
    else:
        mix = buckets_lower(law, neg_log_tail, cut.buckets)
    mix = with_mass(mix)
    return mix, signs(mix, neg_log_tail, cut.table, not upper)


@quietly
def signs(mix: Buckets, neg_log_tail: Array, table: tuple[int, bool], upper: bool) -> binomial.Tables:
    """Tables of a mixture's fair signs; tails from above if `upper` (for lower bounds on H), else
    from below.
    """
    return binomial.tabulate(mix.number - 1.0, None, neg_log_tail, *table, upper)


@quietly
def lines_lower(
    mix: Buckets,
    tables: binomial.Tables,
    loss: Float64[Array, " losses"],
    epsilon0: Float64[Array, ""],
    exact: bool,
) -> tuple[Float64[Array, " losses"], Float64[Array, " losses"]]:
    """(P(A) - Q(A), Q(A)) of the mixture for A = {privacy loss > loss}, rounded down and up; few losses > 0.

    P(A) - c Q(A) = first - (c - 1) second is H_c at c = e^loss, and a lower bound on H_c at every other
    c >= 1. By symmetry the same holds for Q||P.
    tables: from `binomial.tabulate` for number - 1 fair signs with upper tails. exact: whether they are.
    """
    require_float64(mix.weight, loss, epsilon0)
    weight = 0.5 * mix.weight[:, :, None]
    p = xp.exp(epsilon0)
    pmf, tail, y = _terms(mix, tables, loss, epsilon0, exact, True)
    q_mass = xp.sum(weight * (pmf * (1.0 + y) + tail * (p + 1.0 + 2.0 * y)), axis=(0, 1))
    difference = xp.sum(weight * pmf, axis=(0, 1))
    return difference * xp.expm1(epsilon0) * (1.0 - ROUNDING), q_mass * (1.0 + ROUNDING) + FLUSHED


@quietly
def profile_upper(
    mix: Buckets,
    tables: binomial.Tables,
    loss: Float64[Array, " losses"],
    epsilon0: Float64[Array, ""],
    exact: bool,
) -> Float64[Array, " losses"]:
    """Upper bound on H at e^loss for one round, few losses >= 0; zero from epsilon0 on.

    tables: as of `lines_lower`, with lower tails.
    """
    require_float64(mix.weight, loss, epsilon0)
    p = xp.exp(epsilon0)
    pmf, tail, y = _terms(mix, tables, loss, epsilon0, exact, False)
    c_minus_1 = xp.expm1(loss)[None, None, :]
    # p - c without cancellation near c = p.
    room = xp.maximum(xp.exp(loss) * xp.expm1(epsilon0 - loss), 0.0)
    h = pmf * (room[None, None, :] - c_minus_1 * y) - c_minus_1 * tail * (p + 1.0 + 2.0 * y)
    inside = xp.sum(mix.weight[:, :, None] * xp.maximum(h, 0.0), axis=(0, 1))
    value = 0.5 * (inside + (mix.tail + FLUSHED) * room)
    return xp.where(loss >= epsilon0, 0.0, value * (1.0 + ROUNDING))


class BinaryMessages(NamedTuple):
    """A round as a mixture over the number of messages: number, weight (a probability) and kappa, all [labels].

    All others and dummies are at the record x' (L1, L2). N0 of M messages show the label that x favours, N0 ~ Bin(M,
    1/(p+1)) under Q, and

        P/Q = 1 + kappa D,     D = (p + 1) N0 - M,     kappa = (1 - 1/p) scale / n,

    so Q is the base law, and D has mean zero given M. The profile given M is nondecreasing in M (a martingale, Jensen),
    so a bucket of M is replaced by its first value. By de Moivre, E[D; N0 >= a] = (M - a + 1) Pr[N0 = a - 1]. In the
    other direction, with B = M - N0, E[-D; B >= b] = p (M - b + 1) Pr[B = b - 1].
    """

    number: Array
    weight: Array
    kappa: Array


@quietly
def check_in_messages(
    num_clients: Array, rate: Array, epsilon0: Array, neg_log_tail: Array, buckets: int
) -> BinaryMessages:
    """Shuffled check-in: the number of messages is binomial. Mass outside the window is dropped."""
    cut = binomial.cells(num_clients, rate, neg_log_tail, buckets)
    kappa = -xp.expm1(-epsilon0) / num_clients
    return BinaryMessages(cut.first, cut.mass_lower, xp.broadcast_to(kappa, cut.first.shape))


@quietly
def slot_messages(slots: Array, used: Array, weight: Array, epsilon0: Array) -> BinaryMessages:
    """Windows: `slots` messages, one of which is the target's with probability `use_prob`; all [labels]."""
    return BinaryMessages(slots, weight, -xp.expm1(-epsilon0) * used / slots)


@quietly
def binary_lines_lower(
    mix: BinaryMessages,
    tables: binomial.Tables,
    loss: Array,
    epsilon0: Array,
    exact: bool,
    reverse: Array | bool,
) -> tuple[Array, Array]:
    """(P(A) - Q(A), Q(A)) for A = {privacy loss > loss}, rounded down and up; few losses > 0.

    As `clones.lines_lower`; of Q||P if `reverse`.
    """
    p = xp.exp(epsilon0)
    m, kappa = mix.number[:, None], mix.kappa[:, None]
    # One code path for both directions: each copy would be compiled.
    sign, times = xp.where(reverse, -1.0, 1.0), xp.where(reverse, p, 1.0)
    least = (times * m + sign * xp.expm1(sign * loss)[None, :] / kappa) / (p + 1.0)
    # Every threshold gives a valid line; rounding only moves it off the best one.
    a = xp.clip(xp.floor(least) + 1.0, 1.0, m + 1.0)
    pmf, tail = binomial.look_up(tables, _prob_of_usual(epsilon0, reverse), a, exact, True)
    # The probability of the usual label is rounded, which moves that of the rare one by up to `lost` of itself: the
    # logarithm of a mass by (a - 1 - m q) / (q (1 - q)) times the rounding of q.
    away = xp.abs(m - a + 1.0 - m / (p + 1.0)) + 1.0
    lost = xp.where(reverse, 4.0 * UNIT * (p + 1.0) * away, 0.0)
    apart = kappa * (m - a + 1.0) * pmf * times * xp.maximum(1.0 - lost, 0.0)
    tail = xp.minimum(tail * (1.0 + 2.0 * lost), 1.0)
    difference = xp.sum(mix.weight[:, None] * apart, axis=0) * (1.0 - ROUNDING)
    base = xp.sum(mix.weight[:, None] * tail, axis=0) * (1.0 + ROUNDING)
    # Q is the base law. In the reverse direction the second measure is P = base - apart.
    return difference, base - xp.where(reverse, difference, 0.0) + FLUSHED


@quietly
def binary_tables(
    mix: BinaryMessages, epsilon0: Array, neg_log_tail: Array, table: tuple[int, bool], reverse: Array | bool
) -> binomial.Tables:
    """Tables of the counts of one label, for `binary_lines_lower`."""
    return binomial.tabulate(mix.number, _prob_of_usual(epsilon0, reverse), neg_log_tail, *table, True)


def _prob_of_usual(epsilon0: Array, reverse: Array | bool) -> Array:
    p = xp.exp(epsilon0)
    return xp.where(reverse, p, 1.0) / (p + 1.0)
