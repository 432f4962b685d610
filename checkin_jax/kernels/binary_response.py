r"""Lower bounds (L1, L2) from binary randomized response, with all others and dummies at the record x'.

N0 of M messages show the label that x favours, N0 ~ Bin(M, 1/(p+1)) under Q, and

    P/Q = 1 + kappa D,     D = (p + 1) N0 - M,     kappa = (1 - 1/p) scale / n,

so Q is the base law, and D has mean zero given M. The profile given M is nondecreasing in M (a martingale,
Jensen), so a bucket of M is replaced by its first value. By de Moivre, E[D; N0 >= a] = (M - a + 1)
Pr[N0 = a - 1]. In the other direction, with B = M - N0, E[-D; B >= b] = p (M - b + 1) Pr[B = b - 1].
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from checkin_jax.kernels import FLUSHED, ROUNDING, binomial
from checkin_jax.kernels.elementary import UNIT
from checkin_jax.kernels.execution.backend import quietly, xp


class Messages(NamedTuple):
    """A round as a mixture over the number of messages: number, weight (a probability) and kappa, all [labels]."""

    number: Array
    weight: Array
    kappa: Array


@quietly
def check_in_messages(
    num_clients: Array, rate: Array, epsilon0: Array, neg_log_tail: Array, buckets: int
) -> Messages:
    """Shuffled check-in: the number of messages is binomial. Mass outside the window is dropped."""
    cut = binomial.cells(num_clients, rate, neg_log_tail, buckets)
    kappa = -xp.expm1(-epsilon0) / num_clients
    return Messages(cut.first, cut.mass_lower, xp.broadcast_to(kappa, cut.first.shape))


@quietly
def slot_messages(slots: Array, used: Array, weight: Array, epsilon0: Array) -> Messages:
    """Windows: `slots` messages, one of which is the target's with probability `use_prob`; all [labels]."""
    return Messages(slots, weight, -xp.expm1(-epsilon0) * used / slots)


@quietly
def lines_lower(
    mix: Messages, tables: binomial.Tables, loss: Array, epsilon0: Array, exact: bool, reverse: Array | bool
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
    pmf, tail = binomial.look_up(tables, _prob(epsilon0, reverse), a, exact, True)
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
def tabulate(
    mix: Messages, epsilon0: Array, neg_log_tail: Array, table: tuple[int, bool], reverse: Array | bool
) -> binomial.Tables:
    """Tables of the counts of one label, for `lines_lower`."""
    return binomial.tabulate(mix.number, _prob(epsilon0, reverse), neg_log_tail, *table, True)


def _prob(epsilon0: Array, reverse: Array | bool) -> Array:
    p = xp.exp(epsilon0)
    return xp.where(reverse, p, 1.0) / (p + 1.0)
