r"""Check-ins of eps0-LDP messages: certified privacy profiles (T1, T1h, T2, T2') and lower bounds (L1, 3-ary).

With p = e^eps0 the pair of one unit of every protocol is, for counts of labels drawn n times under a base law F
(N0 and N1 of two special labels, Z a weighted count of the others),

    P/F = scale (p N0 + N1 + B + Z) / n,     Q/F = scale (N0 + p N1 + B + Z) / n,

with a constant B (`Law` says which). Given N = N0 + N1, N0 is Bin(N, 1/2), so with y = (B + Z) / N

    H_c = E_F[ scale (N / n) h(N, y; c) ],
    h = [ f ((p - c) - (c - 1) y) - (c - 1) R ((p + 1) + 2 y) ] / 2,

f = Pr[Bin(N-1, 1/2) = a-1], R = Pr[Bin(N-1, 1/2) >= a], a = the least N0 whose loss exceeds log c. Three
facts turn this two-dimensional sum into a few hundred terms, whatever n is, with every error on one side:

* F(N) N / n is pi times a binomial law of N - 1, pi = F's probability of a special label (`binomial.cells`).
* h is convex and nonincreasing in y: for the upper bound the law of y given N is spread over a few points with
  its mean kept; for the lower bound it is replaced by its mean (Jensen).
* At fixed y, h(N, y) is nonincreasing in N: it is the hockey-stick of an average of N signs, and averages
  shrink in convex order. A bucket of N is replaced by its first value (upper) or its last (lower).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float64, Int

from checkin_jax.kernels import FLUSHED, binomial, require_float64, tails
from checkin_jax.kernels.losses import in_blocks

# What all float64 rounding of a profile value can amount to, relatively, with a wide margin (the largest
# part is the rounding of pi, amplified by n pi * deviation: below 1e-9 for n <= 1e12).
ROUNDING = 1e-8


class Buckets(NamedTuple):
    """A round as a mixture over a public label: N = number fair signs and a ratio y = Nabs / N.

    number: [labels]; ratio, weight: [labels, ratios]; weight is E_F[N / n] of the label, bounded from the side that
    the mixture is for. tail: bound on the weight of everything left out.
    """

    number: Array
    ratio: Array
    weight: Array
    tail: Array


class Law(NamedTuple):
    """The base law of one round: float64 scalars, or [parts] for a mixture over a public label.

    n: number of draws. special: pi, probability that a draw gives one of the two special labels.
    absent: probability that a draw without a special label is an absent client's, which counts `per_absent` towards Z.
    other: what it counts else. always: B. scale: probability that the target is used when all n draws are counted, for
    B = 0; more generally what the sum over n is multiplied by. weight: of the part.
    """

    n: Array
    special: Array
    absent: Array
    other: Array
    always: Array
    scale: Array
    weight: Array
    per_absent: Array


@jax.jit
def upper_law(num_clients: Array, rate: Array, epsilon0: Array) -> Law:
    """T1: labels 0 and 1 with probability rate/(p+1) each; the others are absent or count nothing; shape [1]."""
    p = jnp.exp(epsilon0)
    neither = rate * jnp.expm1(epsilon0) / (p + 1.0)
    zero, one = jnp.zeros_like(p), jnp.ones_like(p)
    law = Law(num_clients, 2.0 * rate / (p + 1.0), share(1.0 - rate, neither), zero, zero, one, one, one)
    return Law(*(jnp.broadcast_to(part, (1,)) for part in law))


@jax.jit
def lower_law(num_clients: Array, rate: Array, epsilon0: Array) -> Law:
    """L1 with 3-ary randomized response, all other clients at a third record; shape [1].

    Labels 0 and 1 with probability rate/(p+2) each; the third label, with probability rate p/(p+2), counts 1/p.
    """
    p = jnp.exp(epsilon0)
    third = rate * p / (p + 2.0)
    zero, one = jnp.zeros_like(p), jnp.ones_like(p)
    law = Law(num_clients, 2.0 * rate / (p + 2.0), share(1.0 - rate, third), 1.0 / p, zero, one, one, one)
    return Law(*(jnp.broadcast_to(part, (1,)) for part in law))


@functools.partial(jax.jit, static_argnames="upper")
def slots_law(slots: Array, used: Array, weight: Array, epsilon0: Array, upper: bool) -> Law:
    """T2 (upper) or its instance with 3-ary randomized response, all [parts].

    slots: m >= 1, one message each. used: rho in (0, 1], probability that the target's message is one of them, in a
    uniform slot. T2' takes m = K and rho = K/n for each number K of occupied slots, with probabilities `weight`.
    """
    p = jnp.exp(epsilon0)
    zero = jnp.zeros_like(slots)
    special, other = (2.0 / (p + 1.0), zero) if upper else (2.0 / (p + 2.0), zero + 1.0 / p)
    return Law(slots, zero + special, zero, other, slots * (1.0 - used) / used, used, weight, zero)


@jax.jit
def pool_law(pool: Array, weight: Array, theta: Array, rate: Array, epsilon0: Array) -> Law:
    """T1h: the target comes with probability `rate`, each of `pool` other clients with probability theta.

    pool: n' >= 0, whole, [parts]. weight: of the parts, a public label. theta: in (0, 1). rate: g in (0, 1].
    An absent draw counts alpha = (1-g)/(1-theta), one of the labels beta = g/theta times what it counts in T1.
    """
    p, zero = jnp.exp(epsilon0), jnp.zeros_like(pool)
    neither = theta * jnp.expm1(epsilon0) / (p + 1.0)
    special, absent = zero + 2.0 * theta / (p + 1.0), zero + share(1.0 - theta, neither)
    ratio = zero + (1.0 - rate) * theta / ((1.0 - theta) * rate)
    return Law(pool + 1.0, special, absent, zero, zero, zero + rate / theta, weight, ratio)


def share(part: Array, rest: Array) -> Array:
    total = part + rest
    return jnp.where(total > 0, part / jnp.where(total > 0, total, 1.0), 0.0)


# Up to this many draws every (N, Nabs) is its own bucket and the mixture is the round itself.
SMALL = 48


def _over_parts(one: Callable[[Law], Buckets], law: Law) -> Buckets:
    """The parts' mixtures side by side, weighted."""
    mix = jax.vmap(one)(law)
    ratios = mix.ratio.shape[-1]
    weight = mix.weight * law.weight[:, None, None]
    return Buckets(
        mix.number.ravel(), mix.ratio.reshape(-1, ratios), weight.reshape(-1, ratios), law.weight @ mix.tail
    )


@functools.partial(jax.jit, static_argnames="absences")
def buckets_exact(law: Law, absences: int) -> Buckets:
    """The round itself, for n <= SMALL: one bucket for each (N, Nabs < absences); no error but rounding.

    absences: SMALL, or 1 for a law with absent = 0.
    """

    def one(law: Law) -> Buckets:
        n = law.n
        number = jnp.arange(1.0, SMALL + 1.0)[:, None]
        away = jnp.arange(0.0, absences)[None, :]
        valid = (number <= n) & (away <= n - number)
        number, others = jnp.minimum(number, n), jnp.maximum(n - number, 0.0)
        away = jnp.minimum(away, others)
        log_weight = binomial.log_pmf(number - 1.0, n - 1.0, law.special)
        log_weight += binomial.log_pmf(away, others, law.absent)
        weight = jnp.where(valid, law.scale * law.special * jnp.exp(log_weight), 0.0)
        ratio = (law.always + away * law.per_absent + (others - away) * law.other) / number
        return Buckets(number[:, 0], ratio, weight, jnp.zeros_like(law.special))

    return _over_parts(one, law)


@functools.partial(jax.jit, static_argnames=("buckets", "offsets"))
def buckets_upper(law: Law, log_inverse_mass: Array, buckets: int, offsets: tuple[float, ...]) -> Buckets:
    """A mixture whose profile is at least that of the round, for every c >= 1.

    All but 4 exp(-log_inverse_mass) of the law is inside; that much weight is returned as `tail`, and its
    contribution to H_c is at most tail (p - c)_+ / 2.

    Args:
      law: of `upper_law` or `slots_law` (other = 0).
      buckets: number of runs of N, for each part.
      offsets: y given N is spread over its mean, these multiples of its standard deviation to both sides, and
        the two ends. () costs three points a bucket and suits large n; more points follow small n's tails.
    """
    return _over_parts(lambda part: _bucket_upper(part, log_inverse_mass, buckets, offsets), law)


def _bucket_upper(law: Law, log_inverse_mass: Array, buckets: int, offsets: tuple[float, ...]) -> Buckets:
    n, special, absent, _, always, scale, _, each = law
    cut = binomial.cells(n - 1.0, special, log_inverse_mass, buckets)
    # cells() counts N - 1.
    first, last = jnp.minimum(cut.first, n - 1.0) + 1.0, jnp.minimum(cut.last, n - 1.0) + 1.0
    weight = scale * special * cut.mass_upper
    # E[y | N] = (always + (n - N) absent each) / N: 1/N is convex, so Jensen bounds its average from below, and
    # h is nonincreasing in y.
    at_first, at_last = ((always + (n - number) * (absent * each)) / number for number in (first, last))
    middle = (always + absent * each * n) / (cut.mean_upper + 1.0) - absent * each
    middle = jnp.clip(middle, at_last, at_first)
    # Centred, Nabs / N is largest in convex order at the first N of the bucket.
    variance = (n - first) * absent * (1.0 - absent)
    radius = binomial.bernstein_radius(variance, log_inverse_mass)
    up_end = jnp.minimum((always + (n - first) * each) / first, at_first + each * radius / first) - middle
    down_end = middle - jnp.maximum(at_last - each * radius / first, 0.0)
    steps = [k * each * jnp.sqrt(variance) / first for k in offsets]
    # Absent clients for one unit of y; what does not count spreads nothing.
    per_ratio = first / jnp.where(each > 0, each, 1.0)
    # E (y - middle)_+ = E (middle - y)_+: exact for a binomial law (de Moivre), plus the drift of its mean within
    # the bucket, and at most what the two ends can hold.
    both = jnp.where(up_end + down_end > 0, up_end + down_end, 1.0)
    above = jnp.minimum(jnp.floor((n - first) * absent) + 1.0, n - first)
    exact = above * (1.0 - absent) * jnp.exp(binomial.log_pmf(above, n - first, absent)) * each / first
    centre = jnp.minimum(exact + at_first - middle, up_end * down_end / both)

    def side(drift: Array, end: Array, prob: Array) -> tuple[list[Array], list[Array]]:
        at, loss = _stop_loss(steps, drift, end, n - first, prob, per_ratio, log_inverse_mass)
        return at, _weights(at, loss, centre)

    # Both sides at once: two copies of the code would be compiled.
    at, share = jax.vmap(side)(
        jnp.stack([at_first - middle, middle - at_last]),
        jnp.stack([up_end, down_end]),
        jnp.stack([absent, 1.0 - absent]),
    )
    (up_at, down_at), (up_share, down_share) = zip(*at), zip(*share)
    stay = jnp.maximum(1.0 - sum(up_share) - sum(down_share), 0.0)
    ratio = jnp.stack([middle, *(middle + u for u in up_at), *(middle - d for d in down_at)], axis=1)
    share = jnp.stack([stay, *up_share, *down_share], axis=1)
    spread_out = jnp.where((absent > 0) & (absent < 1), 2.0 * jnp.exp(-log_inverse_mass), 0.0)
    tail = scale * special * (cut.tail + spread_out)
    return Buckets(first, jnp.maximum(ratio, 0.0), weight[:, None] * share, tail)


def _stop_loss(
    steps: list[Array],
    drift: Array,
    end: Array,
    trials: Array,
    prob: Array,
    number: Array,
    log_inverse_mass: Array,
) -> tuple[list[Array], list[Array]]:
    """Points u beyond the middle and bounds on E(|y - middle| - u)_+ on that side, for counts Bin(trials, prob).

    By de Moivre E(X - E X - t)_+ = prob (trials - a + 1) Pr[X = a - 1] - t Pr[X >= a], a the least whole number above.
    """
    inner = [jnp.minimum(step, end) for step in steps]
    if not inner:
        return [end], [jnp.zeros_like(end)]
    at = jnp.stack(inner, axis=1)
    t = (at - drift[:, None]) * number[:, None]
    points, exact = tails.STRIDED
    tables = tails.tabulate(trials, prob, log_inverse_mass, points, exact, False)
    m = trials[:, None]
    a = jnp.clip(jnp.floor(m * prob + jnp.maximum(t, 0.0)) + 1.0, 1.0, m + 1.0)
    pmf, tail = tails.look_up(tables, prob, a, exact, False)
    # The difference of two terms of one sign loses (t / sd)^2 of its digits at most.
    exact = jnp.maximum(prob * (m - a + 1.0) * pmf * (1.0 + ROUNDING) - t * tail, 0.0) / number[:, None]
    deviation = jnp.sqrt(m * prob * (1.0 - prob)) / number[:, None]
    loss = jnp.where(t > 0, exact, 0.5 * deviation + drift[:, None])
    loss = jnp.where(at >= end[:, None], 0.0, loss)
    return [*inner, end], [*(loss[:, i] for i in range(len(inner))), jnp.zeros_like(end)]


def _weights(points: list[Array], losses: list[Array], centre: Array) -> list[Array]:
    """Masses at the points of one side: second differences of the convex minorant of the stop-loss bounds.

    A convex function below the bounds, with value `centre` at 0, lies below their convex minorant.
    """
    x, bound = [jnp.zeros_like(centre), *points], [centre, *losses]
    last = len(x) - 1
    hull = list(bound)
    for k in range(1, last):
        for i in range(k):
            for j in range(k + 1, last + 1):
                gap = x[j] - x[i]
                part = jnp.where(gap > 0, (x[k] - x[i]) / jnp.where(gap > 0, gap, 1.0), 1.0)
                hull[k] = jnp.minimum(hull[k], bound[i] + part * (bound[j] - bound[i]))
    slopes = []
    for k in range(last):
        gap = x[k + 1] - x[k]
        slopes.append(jnp.where(gap > 0, (hull[k] - hull[k + 1]) / jnp.where(gap > 0, gap, 1.0), 0.0))
    # A gap of zero repeats a point: it takes the slope after it, and no mass.
    slopes.append(jnp.zeros_like(centre))
    for k in range(last - 1, -1, -1):
        slopes[k] = jnp.where(x[k + 1] > x[k], slopes[k], slopes[k + 1])
    return [jnp.maximum(slopes[k - 1] - slopes[k], 0.0) for k in range(1, last + 1)]


@functools.partial(jax.jit, static_argnames="buckets")
def buckets_lower(law: Law, log_inverse_mass: Array, buckets: int) -> Buckets:
    """A mixture whose profile is at most that of the round, for every c > 0; one ratio a label."""

    def one(law: Law) -> Buckets:
        n, special, absent, other, always, scale, _, each = law
        cut = binomial.cells(n - 1.0, special, log_inverse_mass, buckets)
        first, last = jnp.minimum(cut.first, n - 1.0) + 1.0, jnp.minimum(cut.last, n - 1.0) + 1.0
        # E[1/N] from above: h is nonincreasing in y.
        inverse = binomial.mean_inverse(first, last, jnp.clip(cut.mean_lower + 1.0, first, last))
        ratio = (
            jnp.maximum(n * inverse - 1.0, 0.0) * (absent * each + (1.0 - absent) * other) + always * inverse
        )
        weight = (scale * special * cut.mass_lower)[:, None]
        return Buckets(last, ratio[:, None], weight, jnp.zeros_like(special))

    return _over_parts(one, law)


def _terms(
    mix: Buckets, tables: tails.Tables, loss: Array, epsilon0: Array, exact: bool, tail_upper: bool
) -> tuple[Array, Array, Array]:
    """f, R and y, each [labels, ratios, losses] or broadcasting to it, for A = {loss of N0 > loss}.

    N1 / N < ((p - c) - (c - 1) y) / ((p - 1) (c + 1)), divided through by p c so that p = e^50 loses nothing.
    """
    y, loss = mix.ratio[:, :, None], loss[None, None, :]
    per_c, per_p = jnp.exp(-loss), jnp.exp(-epsilon0)
    room = per_c * -jnp.expm1(loss - epsilon0) + per_p * jnp.expm1(-loss) * y
    share = jnp.clip(room / (-jnp.expm1(-epsilon0) * (1.0 + per_c)), 0.0, 0.5)
    n = mix.number[:, None]
    a = n - jnp.ceil(n * share.reshape(n.shape[0], -1)) + 1.0
    pmf, tail = tails.look_up(tables, None, a, exact, tail_upper)
    return pmf.reshape(share.shape), tail.reshape(share.shape), y


class Cut(NamedTuple):
    """Static choices for a law's mixture and its tables.

    buckets: 0 for the law itself, absent counts below `absences`. offsets: of `buckets_upper`. plan: of `tails.plan`,
    for the fair signs.
    """

    buckets: int
    absences: int
    offsets: tuple[float, ...]
    plan: tuple[int, bool]


@functools.partial(jax.jit, static_argnames=("cut", "upper"))
def tabulated(law: Law, log_inverse_mass: Array, cut: Cut, upper: bool) -> tuple[Buckets, tails.Tables]:
    """A mixture on one side of the law, and tables of its fair signs, tails rounded to that side."""
    if cut.buckets == 0:
        mix = buckets_exact(law, cut.absences)
    elif upper:
        mix = buckets_upper(law, log_inverse_mass, cut.buckets, cut.offsets)
    else:
        mix = buckets_lower(law, log_inverse_mass, cut.buckets)
    return mix, signs(mix, log_inverse_mass, cut.plan, not upper)


@functools.partial(jax.jit, static_argnames=("plan", "upper"))
def signs(mix: Buckets, log_inverse_mass: Array, plan: tuple[int, bool], upper: bool) -> tails.Tables:
    """Tables of the fair signs of a mixture, tails bounded from above (for lower bounds) or from below."""
    return tails.tabulate(mix.number - 1.0, None, log_inverse_mass, *plan, upper)


def lines_at(
    mix: Buckets, tables: tails.Tables, loss: Array, epsilon0: Array, exact: bool
) -> tuple[Array, Array]:
    """`lines_lower` at a few losses, from tables of `tails.tabulate` for number - 1 fair signs, upper tails."""
    weight = 0.5 * mix.weight[:, :, None]
    p = jnp.exp(epsilon0)
    pmf, tail, y = _terms(mix, tables, loss, epsilon0, exact, True)
    q_mass = jnp.sum(weight * (pmf * (1.0 + y) + tail * (p + 1.0 + 2.0 * y)), axis=(0, 1))
    difference = jnp.sum(weight * pmf, axis=(0, 1))
    return difference * jnp.expm1(epsilon0) * (1.0 - ROUNDING), q_mass * (1.0 + ROUNDING) + FLUSHED


@functools.partial(jax.jit, static_argnames="exact")
def lines_lower(
    mix: Buckets,
    tables: tails.Tables,
    loss: Float64[Array, " losses"],
    count: Int[Array, ""],
    epsilon0: Float64[Array, ""],
    exact: bool,
) -> tuple[Float64[Array, " losses"], Float64[Array, " losses"]]:
    """(P(A) - Q(A), Q(A)) of the mixture for A = {privacy loss > loss}, rounded down and up; loss > 0.

    P(A) - c Q(A) = first - (c - 1) second is H_c at c = e^loss and a lower bound on H_c at every other c >= 1; by
    symmetry the same holds for Q||P. For the first `count` of `losses.MOST` losses; exact: whether the tables are.
    """
    require_float64(mix.weight, loss, epsilon0)
    return in_blocks(lambda some: lines_at(mix, tables, some, epsilon0, exact), loss, count)  # type: ignore[return-value]


def profile_at(mix: Buckets, tables: tails.Tables, loss: Array, epsilon0: Array, exact: bool) -> Array:
    """`profile_upper` at a few losses, from tables of `tails.tabulate` for number - 1 fair signs, lower tails."""
    p = jnp.exp(epsilon0)
    pmf, tail, y = _terms(mix, tables, loss, epsilon0, exact, False)
    c_minus_1 = jnp.expm1(loss)[None, None, :]
    # p - c without cancellation near c = p.
    room = jnp.maximum(jnp.exp(loss) * jnp.expm1(epsilon0 - loss), 0.0)
    h = pmf * (room[None, None, :] - c_minus_1 * y) - c_minus_1 * tail * (p + 1.0 + 2.0 * y)
    inside = jnp.sum(mix.weight[:, :, None] * jnp.maximum(h, 0.0), axis=(0, 1))
    value = 0.5 * (inside + (mix.tail + FLUSHED) * room)
    return jnp.where(loss >= epsilon0, 0.0, value * (1.0 + ROUNDING))


@functools.partial(jax.jit, static_argnames="exact")
def profile_upper(
    mix: Buckets,
    tables: tails.Tables,
    loss: Float64[Array, " losses"],
    count: Int[Array, ""],
    epsilon0: Float64[Array, ""],
    exact: bool,
) -> Float64[Array, " losses"]:
    """Upper bound on H at e^loss for one round, loss >= 0; zero from epsilon0 on. See `lines_lower`."""
    require_float64(mix.weight, loss, epsilon0)
    (value,) = in_blocks(lambda some: (profile_at(mix, tables, some, epsilon0, exact),), loss, count)
    return value
