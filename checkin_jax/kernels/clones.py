r"""Check-ins of eps0-LDP messages: certified profiles (T1, T1h, T2, T2') and lower bounds (L1, 3-ary).

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
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, require_float64, tails
from checkin_jax.kernels.execution.backend import quietly, xp
from checkin_jax.kernels.mixture_profiles import (
    Buckets,
    MixtureLaw,
    buckets_exact,
    buckets_lower,
    buckets_upper,
    with_mass,
)


@quietly
def upper_law(num_clients: Array, rate: Array, epsilon0: Array) -> MixtureLaw:
    """T1: labels 0 and 1 have probability rate/(p+1) each; other draws are absent or add nothing; [1]."""
    p = xp.exp(epsilon0)
    neither = rate * xp.expm1(epsilon0) / (p + 1.0)
    zero, one = xp.zeros_like(p), xp.ones_like(p)
    law = MixtureLaw(
        num_clients, 2.0 * rate / (p + 1.0), share(1.0 - rate, neither), zero, zero, one, one, one
    )
    return MixtureLaw(*(xp.broadcast_to(part, (1,)) for part in law))


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
    mix: Buckets, tables: tails.Tables, loss: Array, epsilon0: Array, exact: bool, tail_upper: bool
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
    pmf, tail = tails.look_up(tables, None, a, exact, tail_upper)
    return pmf.reshape(share.shape), tail.reshape(share.shape), y


class Cut(NamedTuple):
    """Static choices for a law's mixture and its tables.

    buckets: 0 for the law itself, with absent counts below `absences`. offsets: of `buckets_upper`. table:
    the `tails.table_size` of the fair signs.
    """

    buckets: int
    absences: int
    offsets: tuple[float, ...]
    table: tuple[int, bool]


@quietly
def tabulated(law: MixtureLaw, neg_log_tail: Array, cut: Cut, upper: bool) -> tuple[Buckets, tails.Tables]:
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
def signs(mix: Buckets, neg_log_tail: Array, table: tuple[int, bool], upper: bool) -> tails.Tables:
    """Tables of a mixture's fair signs; tails from above if `upper` (for lower bounds on H), else
    from below.
    """
    return tails.tabulate(mix.number - 1.0, None, neg_log_tail, *table, upper)


@quietly
def lines_lower(
    mix: Buckets,
    tables: tails.Tables,
    loss: Float64[Array, " losses"],
    epsilon0: Float64[Array, ""],
    exact: bool,
) -> tuple[Float64[Array, " losses"], Float64[Array, " losses"]]:
    """(P(A) - Q(A), Q(A)) of the mixture for A = {privacy loss > loss}, rounded down and up; few losses > 0.

    P(A) - c Q(A) = first - (c - 1) second is H_c at c = e^loss, and a lower bound on H_c at every other
    c >= 1. By symmetry the same holds for Q||P.
    tables: from `tails.tabulate` for number - 1 fair signs with upper tails. exact: whether they are.
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
    tables: tails.Tables,
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
