"""Kernels of the moments' series A(lam) - 1 = sum_{j=2}^lam C(lam, j) W_j with W_j >= 0, in log space.

[SCI] Lemma 4 and Theorem 2 have this form after expanding (1+x)^lam - 1 - lam x. A sum over k is taken once for all
orders, nothing cancels, and no order overflows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array
from jax.typing import ArrayLike

from checkin_jax.kernels import binomial, float64_arrays, host
from checkin_jax.kernels.composition.pld import log_expm1, pure_excess
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.backend import logsumexp

# Binomials up to this degree are products; above, differences of log-gammas, with an error of 1e-12 at order 4096.
_PRODUCTS = 32
_CHUNK = 512
# Consecutive degrees of one exponential.
_BLOCK = 16


class OrderTable(NamedTuple):
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


def table(orders: np.ndarray) -> OrderTable:
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
    return OrderTable(
        host(degrees), host(log_gamma), host(np.where(j <= lam, log_comb, -np.inf)), host(padded)
    )


def order_sum(log_weights: Array, tab: OrderTable) -> Array:
    """log sum_j C(lam, j) W_j: [J] to [L]."""
    return logsumexp(tab.log_comb + log_weights[None, :], axis=1)


def renyi(log_excess: Array, tab: OrderTable) -> Array:
    """log(1 + e^log_excess) / (lam - 1): the Renyi divergence of a moment given as log(A - 1)."""
    return jnp.logaddexp(0.0, log_excess) / (tab.orders - 1.0)


def renyi_above(log_excess: Array, tab: OrderTable) -> Array:
    """`renyi`, raised by the rounding of its logarithms."""
    return renyi(log_excess, tab) * (1.0 + _rounding(log_excess, tab))


def renyi_below(log_excess: Array, tab: OrderTable) -> Array:
    """`renyi`, lowered by the rounding of its logarithms."""
    return renyi(log_excess, tab) * (1.0 - _rounding(log_excess, tab))


def _rounding(log_excess: Array, tab: OrderTable) -> Array:
    nats = jnp.where(jnp.isfinite(log_excess), jnp.abs(log_excess), 0.0)
    # A logarithm of degree j has terms of up to 28 j nats.
    return 1e-12 + 1e-14 * tab.orders + 2e-15 * nats


def lemma_4_weights(
    log_g: Array, log_kbar: Array, log_decay: Array, epsilon0: Array, tab: OrderTable
) -> Array:
    """log W_j of A_k, [k, J]: the subsampled shuffle at weights g with kbar and decay e^{-(k-1)/(8E)}, all [k]."""
    log_x = log_g + log_expm1(2.0 * epsilon0) - epsilon0
    degrees = tab.degrees[None, :]
    log_base = log_x + 0.5 * (math.log(2.0) - log_kbar)
    first = math.log(4.0) + 2.0 * log_g + 2.0 * log_expm1(epsilon0) - epsilon0 - log_kbar
    series = tab.log_gamma[None, :] + degrees * log_base[:, None]
    series = jnp.where(degrees == 2.0, first[:, None], series)
    return jnp.logaddexp(series, degrees * log_x[:, None] + log_decay[:, None])


def _weight(count: Array, n: Array) -> Array:
    """log(k/n), -inf at k = 0."""
    return jnp.where(count >= 1.0, jnp.log(jnp.maximum(count, 1.0) / n), -jnp.inf)


def _count_weights(log_g: Array, k: Array, epsilon0: Array, tab: OrderTable) -> Array:
    """`lemma_4_weights` for counts k >= 1."""
    big = jnp.exp(epsilon0)
    log_kbar = jnp.log(_few_messages((k - 1.0) / (2.0 * big)))
    return lemma_4_weights(log_g, log_kbar, -(k - 1.0) / (8.0 * big), epsilon0, tab)


def _over_runs(log_sum, log_mass: Array, *columns: Array) -> Array:
    """log_sum(log_mass, *columns), a logarithm of a sum over runs, from sums over 512 runs each."""
    size = min(_CHUNK, len(log_mass))
    count = math.ceil(len(log_mass) / size)

    def chunked(column: Array, fill: float) -> Array:
        padded = jnp.full(count * size, fill, dtype=jnp.float64).at[: len(column)].set(column)
        return padded.reshape(count, size)

    chunks = (chunked(log_mass, -jnp.inf), *(chunked(column, 1.0) for column in columns))
    return logsumexp(jax.lax.map(lambda chunk: log_sum(*chunk), chunks), axis=0)


def _ends(r: binomial.BinomialRuns, log_sum, size: int, single: bool, lower: bool) -> tuple[Array, Array]:
    """(upper, lower): `_over_runs` with largest g and smallest k of each run, and with smallest g and largest k.

    For windows of single values only the tails' runs separate the ends. lower: whether the lower end is needed; if not,
    it is NaN where it would need a sum of its own.
    """
    window, tails = slice(0, size), slice(size, None)

    def most(part: slice) -> Array:
        return _over_runs(log_sum, r.log_upper[part], r.last[part], jnp.maximum(r.first[part], 1.0))

    upper = most(window)
    if single:
        least = upper
    elif lower:
        least = _over_runs(log_sum, r.log_lower[window], r.first[window], jnp.maximum(r.last[window], 1.0))
    else:
        least = jnp.full_like(upper, jnp.nan)
    return jnp.logaddexp(upper, most(tails)), least


def _powers(log_mass: Array, log_base: Array, tab: OrderTable) -> Array:
    """log sum over runs of e^(log_mass + j log_base) for every degree j, [J]; |log_base| at most 28.

    With one exponential a run for _BLOCK degrees and the next _BLOCK - 1 powers by products. Terms that are flushed to
    zero are below e^-280 of the sum.
    """
    mass = log_mass > -jnp.inf
    log_base = jnp.where(mass, log_base, 0.0)
    top = jax.lax.stop_gradient(jnp.max(jnp.where(mass, log_base, -jnp.inf)))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    low = jnp.arange(_BLOCK, dtype=jnp.float64)
    powers = jnp.exp((log_base - top)[:, None] * low[None, :])
    size = log_mass[None, :] + tab.degrees[::_BLOCK, None] * log_base[None, :]
    peak = jax.lax.stop_gradient(jnp.max(size, axis=1, keepdims=True))
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
    total = jnp.exp(size - peak) @ powers
    none = total == 0
    log_total = jnp.where(none, -jnp.inf, jnp.log(jnp.where(none, 1.0, total)))
    return (log_total + peak + low[None, :] * top).ravel()


@jax.custom_jvp
def _few_messages(x: Array) -> Array:
    """kbar = floor(x) + 1 of Lemma 4 at x = (k - 1) / (2 e^eps0); its derivative is 0 below 1, then that of x + 1/2."""
    return jnp.floor(x) + 1.0


_few_messages.defjvps(lambda tangent, _, x: jnp.where(x < 1.0, 0.0, tangent))


def _log_weights(
    log_mass: Array, share: Array, fewest: Array, epsilon0: Array, tab: OrderTable, fixed: Array | None
) -> Array:
    """log sum over runs of e^log_mass W_j, [J]: Lemma 4 at sampling probability `share` and `fewest` messages.

    fixed: a sampling probability in place of all positive `share`.
    """
    sent = share > 0
    log_mass = jnp.where(sent, log_mass, -jnp.inf)
    log_g = jnp.log(jnp.where(sent, share if fixed is None else fixed, 1.0))
    big, log_x = jnp.exp(epsilon0), log_expm1(2.0 * epsilon0) - epsilon0
    log_kbar = jnp.log(_few_messages((fewest - 1.0) / (2.0 * big)))
    first = math.log(4.0) + 2.0 * log_expm1(epsilon0) - epsilon0
    factors = tab.log_gamma + tab.degrees * (log_x + 0.5 * math.log(2.0))
    factors = jnp.where(tab.degrees == 2.0, first, factors)
    main = factors + _powers(log_mass, log_g - 0.5 * log_kbar, tab)
    rest = tab.degrees * log_x + _powers(log_mass - (fewest - 1.0) / (8.0 * big), log_g, tab)
    return logsumexp(jnp.stack([main, rest]), axis=0)


def lemma_4_ends(
    n: Array,
    gamma: Array,
    epsilon0: Array,
    tab: OrderTable,
    size: int,
    single: bool,
    fixed: bool,
    lower: bool,
) -> tuple[Array, Array]:
    """Renyi divergences (upper, lower), [L], of sum_k P[K=k] A_k, for epsilon0 > 0, A_k by Lemma 4.

    fixed: True for the weight gamma in place of k/n. lower: as in `_ends`.
    """

    def over(log_mass: Array, g_count: Array, k: Array) -> Array:
        # The proof of Theorem 2 has gamma in place of k/n.
        return _log_weights(log_mass, g_count / n, k, epsilon0, tab, gamma if fixed else None)

    above, below = _ends(binomial.runs(n, gamma, size), over, size, single, lower)
    return renyi_above(order_sum(above, tab), tab), renyi_below(order_sum(below, tab), tab)


def subsampling_ends(
    n: Array,
    gamma: Array,
    epsilon0: Array,
    tab: OrderTable,
    size: int,
    single: bool,
    smaller: bool,
    lower: bool,
) -> tuple[Array, Array]:
    """As `lemma_4_ends` with subsampling's moment given k; if `smaller`, the smaller of it and Lemma 4's."""

    def excess(log_mass: Array, g_count: Array, k: Array) -> Array:
        epsilon = log1p(g_count / n * jnp.expm1(epsilon0))[:, None]
        sampled = pure_excess(epsilon, tab.orders[None, :])
        if smaller:
            weights = _count_weights(_weight(g_count, n), k, epsilon0, tab)
            sampled = jnp.minimum(sampled, jax.lax.map(lambda w: order_sum(w, tab), weights))
        return logsumexp(log_mass[:, None] + sampled, axis=0)

    above, below = _ends(binomial.runs(n, gamma, size), excess, size, single, lower)
    return renyi_above(above, tab), renyi_below(below, tab)


@functools.partial(jax.jit, static_argnames=("ends_of", "size", "single", "option", "lower"))
def over_settings(
    n: Array,
    gamma: Array,
    epsilon0: Array,
    tab: OrderTable,
    *,
    ends_of: Callable[..., tuple[Array, Array]],
    size: int,
    single: bool,
    option: bool,
    lower: bool = True,
) -> tuple[Array, Array]:
    """`lemma_4_ends` or `subsampling_ends` of settings in vectors: [settings, L]; option: `fixed`, or `smaller`."""

    def one(n: Array, gamma: Array, epsilon0: Array) -> tuple[Array, Array]:
        return ends_of(n, gamma, epsilon0, tab, size, single, option, lower)

    return jax.vmap(one)(n, gamma, epsilon0)


def theorem_1_rdp(
    num_clients: ArrayLike, rate: ArrayLike, epsilon0: ArrayLike, orders: ArrayLike, *, size: int = 4096
) -> Array:
    """Renyi divergence of a round by [SCI] Theorem 1 with Lemma 4, nats, [orders]; rounded up.

    For the user's own jax.jit, jax.vmap and jax.grad. `published.theorem_1` checks arguments and chooses sizes.

    Args:
      num_clients: n, 1 to 1e12, float64 scalar; whole, but differentiated as a real number.
      rate: in (0, 1], float64 scalar; derivatives are right below 1.
      epsilon0: 0 to 50, float64 scalar.
      orders: whole numbers from 2 to 4096, known when compiled.
      size: runs of k in the window of all but 2 e^-60 of the law. If more values are in it, the value is above the sum:
        measured at n from 1e5 to 1e7, by a relative 6e-4 at size 256, by 2e-6 at 4096.

    Derivatives in epsilon0 follow the trend of Lemma 4's whole numbers, not their steps.

    Raises:
      RuntimeError: JAX computes in float32.
    """
    n, gamma, epsilon0 = float64_arrays(num_clients, rate, epsilon0)
    whole = np.asarray(orders, dtype=np.float64)
    private = epsilon0 > 0
    tab, safe = table(whole), jnp.where(private, epsilon0, 1.0)
    found, _ = lemma_4_ends(n, gamma, safe, tab, size, False, False, False)
    return jnp.where(private, found[: len(whole)], 0.0)


def subsampled_shuffle(k: Array, g_count: Array, n: Array, epsilon0: Array, tab: OrderTable) -> Array:
    """log(A - 1), [L], of Lemma 4 with k messages at the weight g_count / n; scalars."""
    weights = _count_weights(_weight(g_count, n)[None], jnp.maximum(k, 1.0)[None], epsilon0, tab)[0]
    return order_sum(weights, tab)


@jax.jit
def lemma_4(k: Array, n: Array, epsilon0: Array, tab: OrderTable) -> Array:
    """Renyi divergence of the subsampled shuffle with k of n messages, [settings, L], rounded up."""

    def one(k: Array, n: Array, epsilon0: Array) -> Array:
        return renyi_above(subsampled_shuffle(k, k, n, epsilon0, tab), tab)

    return jax.vmap(one)(k, n, epsilon0)
