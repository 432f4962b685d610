"""Kernels of the moments' series A(lam) - 1 = sum_{j=2}^lam C(lam, j) W_j with W_j >= 0, in log space.

[SCI] Lemma 4 and Theorem 2 have this form after expanding (1+x)^lam - 1 - lam x. A sum over k is taken once for all
orders, nothing cancels, and no order overflows.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array
from jax.scipy.special import logsumexp

from checkin_jax.accounting.published import counts
from checkin_jax.kernels import host
from checkin_jax.kernels.elementary import log1p

# Binomials up to this degree are products; above, differences of log-gammas, with an error of 1e-12 at order 4096.
_PRODUCTS = 32
_CHUNK = 512


class Table(NamedTuple):
    """Values that depend on the orders alone, padded to powers of two, so that few sizes are compiled.

    Attributes:
      degrees: 2, 3, ..., [J].
      log_gamma: log(j Gamma(j/2)), [J].
      log_comb: log C(lam, j), -inf for j > lam, [L, J].
      orders: lam, [L]; 2 in the padding.
    """

    degrees: Array
    log_gamma: Array
    log_comb: Array
    orders: Array


def table(orders: np.ndarray) -> Table:
    """The table of some whole orders >= 2."""
    padded = np.full(1 << max(2, math.ceil(math.log2(len(orders)))), 2.0)
    padded[: len(orders)] = orders
    degrees = np.arange(2.0, 2.0 + (1 << max(5, math.ceil(math.log2(orders.max() - 1)))))
    lam, j = padded[:, None], degrees[None, :]
    rest = np.maximum(lam - j, 0.0)
    log_comb = scipy.special.gammaln(lam + 1) - scipy.special.gammaln(j + 1) - scipy.special.gammaln(rest + 1)
    ratios = np.maximum(lam - j + 1, 1.0) / j
    log_comb[:, :_PRODUCTS] = np.log(lam) + np.cumsum(np.log(ratios[:, :_PRODUCTS]), axis=1)
    log_gamma = np.log(degrees) + scipy.special.gammaln(degrees / 2)
    return Table(host(degrees), host(log_gamma), host(np.where(j <= lam, log_comb, -np.inf)), host(padded))


def log_expm1(x: Array) -> Array:
    """log(e^x - 1) for x >= 0; -inf at 0."""
    return x + jnp.log(-jnp.expm1(-x))


def order_sum(log_weights: Array, tab: Table) -> Array:
    """log sum_j C(lam, j) W_j: [J] to [L]."""
    return logsumexp(tab.log_comb + log_weights[None, :], axis=1)


def renyi(log_excess: Array, tab: Table) -> Array:
    """log(1 + e^log_excess) / (lam - 1): the Renyi divergence of a moment given as log(A - 1)."""
    return jnp.logaddexp(0.0, log_excess) / (tab.orders - 1.0)


def renyi_above(log_excess: Array, tab: Table) -> Array:
    """`renyi`, raised by the rounding of its logarithms."""
    return renyi(log_excess, tab) * (1.0 + _rounding(log_excess, tab))


def renyi_below(log_excess: Array, tab: Table) -> Array:
    """`renyi`, lowered by the rounding of its logarithms."""
    return renyi(log_excess, tab) * (1.0 - _rounding(log_excess, tab))


def _rounding(log_excess: Array, tab: Table) -> Array:
    nats = jnp.where(jnp.isfinite(log_excess), jnp.abs(log_excess), 0.0)
    return 1e-12 + 2e-15 * (tab.orders + nats)


def ceil_messages(k: Array, epsilon0: Array) -> Array:
    """kbar = floor((k - 1) / (2 e^eps0)) + 1 of Lemma 4, for k >= 1."""
    return jnp.floor((k - 1.0) / (2.0 * jnp.exp(epsilon0))) + 1.0


def lemma_4_weights(log_g: Array, log_kbar: Array, log_decay: Array, epsilon0: Array, tab: Table) -> Array:
    """log W_j of A_k, [k, J]: the subsampled shuffle at weights g with kbar and decay e^{-(k-1)/(8E)}, all [k]."""
    log_x = log_g + log_expm1(2.0 * epsilon0) - epsilon0
    degrees = tab.degrees[None, :]
    log_base = log_x + 0.5 * (math.log(2.0) - log_kbar)
    first = math.log(4.0) + 2.0 * log_g + 2.0 * log_expm1(epsilon0) - epsilon0 - log_kbar
    series = tab.log_gamma[None, :] + degrees * log_base[:, None]
    series = jnp.where(degrees == 2.0, first[:, None], series)
    return jnp.logaddexp(series, degrees * log_x[:, None] + log_decay[:, None])


def pure_excess(epsilon: Array, orders: Array) -> Array:
    """log(A - 1) of binary randomized response, the largest of any epsilon-DP pair; any order > 1.

    A - 1 = (e^{lam e} - 1)(1 - e^{(1-lam) e}) / (1 + e^e), without cancellation.
    """
    e = epsilon
    return log_expm1(orders * e) + jnp.log(-jnp.expm1((1.0 - orders) * e)) - jnp.logaddexp(0.0, e)


def _weight(count: Array, n: Array) -> Array:
    """log(k/n), -inf at k = 0."""
    return jnp.where(count >= 1.0, jnp.log(jnp.maximum(count, 1.0) / n), -jnp.inf)


def _count_weights(log_g: Array, k: Array, epsilon0: Array, tab: Table) -> Array:
    """`lemma_4_weights` for counts k >= 1."""
    decay = -(k - 1.0) / (8.0 * jnp.exp(epsilon0))
    return lemma_4_weights(log_g, jnp.log(ceil_messages(k, epsilon0)), decay, epsilon0, tab)


def _over_runs(log_mass: Array, weights, *columns: Array) -> Array:
    """log sum over runs of e^log_mass * e^weights(columns), 512 runs at a time; weights gives [runs, J]."""
    size = min(_CHUNK, len(log_mass))
    count = math.ceil(len(log_mass) / size)

    def chunked(column: Array, fill: float) -> Array:
        padded = jnp.full(count * size, fill, dtype=jnp.float64).at[: len(column)].set(column)
        return padded.reshape(count, size)

    def one(chunk: tuple[Array, ...]) -> Array:
        mass, *rest = chunk
        return logsumexp(mass[:, None] + weights(*rest), axis=0)

    chunks = (chunked(log_mass, -jnp.inf), *(chunked(column, 1.0) for column in columns))
    return logsumexp(jax.lax.map(one, chunks), axis=0)


def _ends(r: counts.Runs, weights, size: int, single: bool, lower: bool) -> tuple[Array, Array]:
    """(upper, lower): `_over_runs` with largest g and smallest k of each run, and with smallest g and largest k.

    For windows of single values only the tails' runs separate the ends. lower: whether the lower end is needed; if not,
    it is NaN where it would need a sum of its own.
    """
    window, tails = slice(0, size), slice(size, None)

    def most(part: slice) -> Array:
        return _over_runs(r.log_upper[part], weights, r.last[part], jnp.maximum(r.first[part], 1.0))

    upper = most(window)
    if single:
        least = upper
    elif lower:
        least = _over_runs(r.log_lower[window], weights, r.first[window], jnp.maximum(r.last[window], 1.0))
    else:
        least = jnp.full_like(upper, jnp.nan)
    return jnp.logaddexp(upper, most(tails)), least


@functools.partial(jax.jit, static_argnames=("size", "single", "fixed_weight", "lower"))
def theorem_1_lemma_4(
    n: Array,
    gamma: Array,
    epsilon0: Array,
    low: Array,
    tab: Table,
    *,
    size: int,
    single: bool,
    fixed_weight: bool,
    lower: bool = True,
) -> tuple[Array, Array]:
    """Renyi divergences (upper, lower), [settings, L], of sum_k P[K=k] A_k; settings are vectors of one length.

    lower: as in `_ends`.
    """

    def one(n: Array, gamma: Array, epsilon0: Array, low: Array) -> tuple[Array, Array]:
        r = counts.runs(n, gamma, low, size, single)

        def weights(g_count: Array, k: Array) -> Array:
            # The proof of Theorem 2 has gamma in place of k/n; the weight is 0 at k = 0.
            log_g = (
                jnp.where(g_count >= 1.0, jnp.log(gamma), -jnp.inf) if fixed_weight else _weight(g_count, n)
            )
            return _count_weights(log_g, k, epsilon0, tab)

        above, below = _ends(r, weights, size, single, lower)
        return renyi_above(order_sum(above, tab), tab), renyi_below(order_sum(below, tab), tab)

    return jax.vmap(one)(n, gamma, epsilon0, low)


@functools.partial(jax.jit, static_argnames=("size", "single", "smaller", "lower"))
def theorem_1_subsampling(
    n: Array,
    gamma: Array,
    epsilon0: Array,
    low: Array,
    tab: Table,
    *,
    size: int,
    single: bool,
    smaller: bool,
    lower: bool = True,
) -> tuple[Array, Array]:
    """As `theorem_1_lemma_4` with subsampling's moment given k; if `smaller`, the smaller of it and Lemma 4's."""

    def one(n: Array, gamma: Array, epsilon0: Array, low: Array) -> tuple[Array, Array]:
        r = counts.runs(n, gamma, low, size, single)

        def excess(g_count: Array, k: Array) -> Array:
            epsilon = log1p(g_count / n * jnp.expm1(epsilon0))[:, None]
            sampled = pure_excess(epsilon, tab.orders[None, :])
            if not smaller:
                return sampled
            weights = _count_weights(_weight(g_count, n), k, epsilon0, tab)
            return jnp.minimum(sampled, jax.lax.map(lambda w: order_sum(w, tab), weights))

        above, below = _ends(r, excess, size, single, lower)
        return renyi_above(above, tab), renyi_below(below, tab)

    return jax.vmap(one)(n, gamma, epsilon0, low)


def subsampled_shuffle(k: Array, g_count: Array, n: Array, epsilon0: Array, tab: Table) -> Array:
    """log(A - 1), [L], of Lemma 4 with k messages at the weight g_count / n; scalars."""
    weights = _count_weights(_weight(g_count, n)[None], jnp.maximum(k, 1.0)[None], epsilon0, tab)[0]
    return order_sum(weights, tab)


@jax.jit
def lemma_4(k: Array, n: Array, epsilon0: Array, tab: Table) -> Array:
    """Renyi divergence of the subsampled shuffle with k of n messages, [settings, L], rounded up."""

    def one(k: Array, n: Array, epsilon0: Array) -> Array:
        return renyi_above(subsampled_shuffle(k, k, n, epsilon0, tab), tab)

    return jax.vmap(one)(k, n, epsilon0)
