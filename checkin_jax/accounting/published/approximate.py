"""[SCI]'s bounds by approximate DP: valid ingredients, and invalid bounds that use Lemma 3.

View "messages", replace-one. Arguments broadcast; Renyi divergences have one more axis, the orders.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp
from numpy.typing import ArrayLike

from checkin_jax.accounting.published import counts, formula, least_divergence
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.kernels import binomial, host
from checkin_jax.kernels.composition import series
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.devices import float64

_WINDOWS = (256,)


def shuffled(k: Array, epsilon0: Array, delta0: Array, shuffle_delta: Array) -> tuple[Array, Array]:
    """(epsilon, delta) of k shuffled messages by [FMT21] Theorem 3.8; (epsilon0, delta0) if it does not apply."""
    k = jnp.maximum(k, 1.0)
    big = jnp.exp(epsilon0)
    applies = epsilon0 <= jnp.log(k / (16.0 * jnp.log(2.0 / shuffle_delta)))
    gain = 8.0 * jnp.sqrt(big * jnp.log(4.0 / shuffle_delta) / k) + 8.0 * big / k
    epsilon = log1p(jnp.tanh(0.5 * epsilon0) * gain)
    more = (jnp.exp(epsilon) + 1.0) * (1.0 + 0.5 * jnp.exp(-epsilon0)) * k * delta0
    # The theorem may exceed the randomizer's own guarantee, which holds, too.
    return jnp.where(applies, epsilon, epsilon0), jnp.where(applies, shuffle_delta + more, delta0)


def sampled(epsilon: Array, delta: Array, share: Array) -> tuple[Array, Array]:
    """(log(1 + g (e^eps - 1)), g delta): subsampling without replacement, [BBG18]."""
    return log1p(share * jnp.expm1(epsilon)), share * delta


def _sampled_weights(log_excess: Array, share: Array, tab: series.OrderTable) -> Array:
    """log W_j of [WBK19] Theorem 9, [k, J], from log(A - 1) at the orders 2, 3, ...; unbounded losses.

    min(4 (A_2 - 1), 2 A_2) for j = 2, and 2 A_j beyond, times g^j.
    """
    whole = jnp.log(2.0) + jnp.logaddexp(0.0, log_excess)
    first = jnp.minimum(jnp.log(4.0) + log_excess, whole)
    return jnp.where(tab.degrees[None, :] == 2.0, first, whole) + tab.degrees[None, :] * jnp.log(share)


@jax.jit
def _subsample_rdp(log_excess: Array, share: Array, tab: series.OrderTable) -> Array:
    weights = _sampled_weights(log_excess, share[:, None], tab)
    return jax.vmap(lambda w: series.renyi_above(series.order_sum(w, tab), tab))(weights)


_shuffled = jax.jit(shuffled)
_sampled = jax.jit(sampled)


def _epsilon(epsilon: np.ndarray, delta: np.ndarray, label: str, source: str) -> PublishedBound:
    """(epsilon, delta) of a round, rounded up."""
    up, quantity = 1 + 1e-12, "epsilon of a round, nats"
    return PublishedBound(value=epsilon * up, label=label, source=source, quantity=quantity, delta=delta * up)


def shuffle_epsilon(
    num_messages: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike, *, delta0: ArrayLike = 0.0
) -> PublishedBound:
    """[FMT21] Theorem 3.8 as [SCI] uses it: epsilon of k shuffled messages; `delta` of the result is its total.

    If epsilon0 > log(k / (16 log(2/delta))) the result is the randomizer's own (epsilon0, delta0). Rounded up.

    Args:
      num_messages: k, 1 to 1e12. epsilon0: 0 to 50 nats. delta: the theorem's own, in (0, 1).
      delta0: of a message, in [0, 1).

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    columns = (
        formula.wholes(1, formula.MAX_CLIENTS, num_messages=num_messages),
        formula.epsilons(epsilon0),
        formula.reals(0, 1, "[)", delta0=delta0),
        formula.deltas(delta),
    )
    formula.broadcast(num_messages=columns[0], epsilon0=columns[1], delta0=columns[2], delta=columns[3])
    with float64():
        epsilon, total = (np.asarray(v) for v in _shuffled(*map(host, columns)))
    return _epsilon(epsilon, total, "Theorem 3.8", formula.FMT)


def subsample_epsilon(epsilon: ArrayLike, delta: ArrayLike, share: ArrayLike) -> PublishedBound:
    """[BBG18], sampling a share g without replacement: log(1 + g (e^epsilon - 1)) at g delta. Rounded up.

    Args:
      epsilon: 0 to 690 nats. delta: in [0, 1]. share: g in (0, 1].

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    columns = (
        formula.reals(0, 690, epsilon=epsilon),
        formula.reals(0, 1, delta=delta),
        formula.reals(0, 1, "(]", share=share),
    )
    formula.broadcast(epsilon=columns[0], delta=columns[1], share=columns[2])
    with float64():
        epsilon, total = (np.asarray(v) for v in _sampled(*map(host, columns)))
    return _epsilon(epsilon, total, "Theorem 9", formula.BBG)


def subsample_rdp(renyi: ArrayLike, share: ArrayLike) -> PublishedBound:
    """[WBK19] Theorem 9 for a mechanism of unbounded loss: Renyi divergence after sampling a share g.

    Args:
      renyi: of the mechanism at the orders 2, 3, ..., lam, in nats, >= 0, shape [lam - 1].
      share: g in (0, 1], any shape.

    Returns:
      At the same orders, shape [..., lam - 1], rounded up.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """
    base = formula.reals(0, np.inf, renyi=renyi)
    if base.ndim != 1 or not 1 <= base.size < formula.MAX_ORDER:
        raise ValueError(f"renyi of shape {base.shape}: expected the orders 2 to at most {formula.MAX_ORDER}")
    g = formula.reals(0, 1, "(]", share=share)
    orders = np.arange(2.0, base.size + 2.0)
    # log(A - 1) = log(e^y - 1) with y = (lam - 1) renyi.
    y = (orders - 1) * base
    with np.errstate(divide="ignore"):
        log_excess = y + np.log(-np.expm1(-y))
    with float64():
        tab = series.table(orders)
        padded = np.full(tab.degrees.shape, -np.inf)
        padded[: base.size] = log_excess
        value = np.asarray(_subsample_rdp(host(padded[None, :]), host(g.ravel()), tab))
    return formula.renyi(value[:, : base.size].reshape(*g.shape, base.size), "Theorem 9", formula.WBK)


class _Corners(NamedTuple):
    """Values of each run of k at its worst and its best corner: arrays of shape [2, runs].

    Attributes:
      log_mass: log probability of the run, from above and from below.
      share: k/n. epsilon, delta: arguments of Lemma 3.
    """

    log_mass: Array
    share: Array
    epsilon: Array
    delta: Array


@functools.partial(jax.jit, static_argnames=("size", "sample_first"))
def _corners(
    n: Array,
    gamma: Array,
    epsilon0: Array,
    delta0: Array,
    shuffle_delta: Array,
    *,
    size: int,
    sample_first: bool,
) -> _Corners:
    r = binomial.runs(n, gamma, size)
    share = jnp.stack([r.last, r.first]) / n
    epsilon, delta = shuffled(jnp.stack([r.first, r.last]), epsilon0, delta0, shuffle_delta)
    if sample_first:
        epsilon, delta = sampled(epsilon, jnp.minimum(delta, 1.0), share)
    return _Corners(jnp.stack([r.log_upper, r.log_lower]), share, epsilon, delta)


@functools.partial(jax.jit, static_argnames=("sample_first",))
def _over_runs(corners: _Corners, log_excess: Array, tab: series.OrderTable, *, sample_first: bool) -> Array:
    """Renyi divergences of a round from above and from below, [2, orders], from Lemma 3's log(A - 1), [2 runs, J]."""
    # Every pair satisfies delta >= 1, equal laws included.
    log_excess = jnp.where(corners.delta.ravel()[:, None] >= 1.0, -jnp.inf, log_excess)
    if not sample_first:
        # The subsampled Renyi divergence of [WBK19] Theorem 9, from Lemma 3's at every order up to lam.
        weights = _sampled_weights(log_excess, corners.share.ravel()[:, None], tab)
        log_excess = jax.lax.map(lambda w: series.order_sum(w, tab), weights)
    terms = corners.log_mass[:, :, None] + log_excess.reshape(*corners.log_mass.shape, -1)
    return jax.vmap(series.renyi, (0, None))(logsumexp(terms, axis=1), tab)


def _approach(
    setting: Sequence[np.ndarray], tab: series.OrderTable, *, size: int, sample_first: bool
) -> np.ndarray:
    """Both ends at one setting, [2, orders]. Lemma 3, the slowest to compile, is one program for all settings."""
    corners = _corners(*map(host, setting), size=size, sample_first=sample_first)
    given = (host(np.ravel(column)[:, None]) for column in (corners.epsilon, corners.delta))
    orders = tab.orders if sample_first else tab.degrees
    log_excess = least_divergence.log_least_excess(*given, host(orders[None, :]))
    return np.asarray(_over_runs(corners, log_excess, tab, sample_first=sample_first))


def _approaches(
    sample_first: bool,
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    orders: ArrayLike,
    shuffle_delta: ArrayLike,
    delta0: ArrayLike,
) -> PublishedBound:
    more = {"delta0": formula.reals(0, 1, "[)", delta0=delta0)}
    more["shuffle_delta"] = formula.deltas(shuffle_delta, "shuffle_delta")
    shape, columns = formula.settings(num_clients, rate, epsilon0, **more)
    checked = formula.whole_orders(orders)
    ends = np.empty((2, len(columns[0]), len(checked)))
    with float64():
        tab = series.table(checked)
        for (size, _), index in counts.grouped(columns[0], columns[1], _WINDOWS).items():
            for i in index:
                setting = [column[i] for column in columns]
                found = _approach(setting, tab, size=size, sample_first=sample_first)
                ends[:, i] = found[:, : len(checked)]
    upper, lower = ends.reshape(2, *shape, len(checked))
    finite = np.isfinite(upper)
    return formula.renyi(
        upper,
        "Approach 2" if sample_first else "Approach 1",
        validity="invalid",
        reason=least_divergence.NOT_A_BOUND,
        truncation_error=np.where(finite, upper - np.where(finite, lower, 0.0), np.inf),
    )


def approach_1(
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    orders: ArrayLike,
    *,
    shuffle_delta: ArrayLike,
    delta0: ArrayLike = 0.0,
) -> PublishedBound:
    """[SCI] Approach 1: given k, Theorem 3.8's (epsilon, delta), Lemma 3, then [WBK19]'s subsampling; Theorem 1.

    Not a bound: it uses Lemma 3. Summed over k in at most 256 runs; `truncation_error` is the difference of their
    corners.

    Args:
      num_clients, rate, epsilon0, orders: as `shuffled.theorem_1`.
      shuffle_delta: Theorem 3.8's delta, in (0, 1). delta0: of a message, in [0, 1).

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    return _approaches(False, num_clients, rate, epsilon0, orders, shuffle_delta, delta0)


def approach_2(
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    orders: ArrayLike,
    *,
    shuffle_delta: ArrayLike,
    delta0: ArrayLike = 0.0,
) -> PublishedBound:
    """[SCI] Approach 2: given k, Theorem 3.8's (epsilon, delta), [BBG18]'s subsampling, then Lemma 3; Theorem 1.

    Not a bound, arguments and errors as `approach_1`.
    """
    return _approaches(True, num_clients, rate, epsilon0, orders, shuffle_delta, delta0)


def baseline(
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    orders: ArrayLike,
    *,
    tail_delta: ArrayLike,
    delta0: ArrayLike = 0.0,
) -> PublishedBound:
    """[SCI]'s baseline: subsampling at l/n with P[K > l] <= tail_delta, no gain from shuffling, then Lemma 3.

    Not a bound: it uses Lemma 3. l is the least such number by the Chernoff-Hoeffding bound.

    Args:
      num_clients, rate, epsilon0, orders: as `shuffled.theorem_1`.
      tail_delta: in (0, 1), added to the message's delta0 l/n. delta0: in [0, 1).

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    more = {"delta0": formula.reals(0, 1, "[)", delta0=delta0)}
    more["tail_delta"] = formula.deltas(tail_delta, "tail_delta")
    shape, (n, gamma, e0, d0, tail) = formula.settings(num_clients, rate, epsilon0, **more)
    share = most_messages(n, gamma, tail) / n
    with float64():
        epsilon, delta = (np.asarray(v) for v in _sampled(host(e0), host(d0), host(share)))
    bound = least_divergence.lemma_3(
        epsilon, np.minimum(delta + tail, np.nextafter(1.0, 0.0)), formula.whole_orders(orders)
    )
    return formula.renyi(
        bound.value.reshape(*shape, -1), "Baseline", validity="invalid", reason=least_divergence.NOT_A_BOUND
    )


def most_messages(n: np.ndarray, gamma: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """l with P[Bin(n, gamma) > l] <= tail, by Bernstein, rounded up; host arrays."""
    return np.minimum(np.ceil(n * gamma + counts.bernstein_radius(n, gamma, -np.log(tail))), n)


def least_messages(n: np.ndarray, gamma: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """l with P[Bin(n, gamma) < l] <= tail, by Bernstein, rounded down; host arrays."""
    return np.maximum(np.floor(n * gamma - counts.bernstein_radius(n, gamma, -np.log(tail))), 0.0)
