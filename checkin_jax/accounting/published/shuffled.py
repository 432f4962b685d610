"""Shuffled check-in as published [SCI]: Theorem 1 with Lemma 4, Theorem 2 and its repairs, and lower bounds, Theorem 3.

View "messages" (an untrusted aggregator behind a trusted shuffler), replace-one, one round. Renyi divergences are in
nats and add up over rounds. Arguments broadcast; values have the broadcast shape and one more axis, the orders.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from checkin_jax import _validate
from checkin_jax.accounting.published import formula
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.kernels import binomial
from checkin_jax.kernels.composition import pld, series
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.devices import float64

_FIXED_WEIGHT = (
    "given k check-ins the differing client is among them with probability k/n, not gamma; "
    "exact binary randomized response exceeds it"
)
_THEOREM_2 = (
    "Lemma 5 needs a moment that falls with k and is applied at the fixed weight gamma, while the weight is k/n; "
    "exact binary randomized response exceeds it where n gamma is small"
)


def _summed(
    ends_of,
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    orders: ArrayLike,
    windows,
    **static,
) -> tuple[np.ndarray, np.ndarray]:
    """Upper ends of a sum over k, `ends_of` of `series.over_settings`, and their distances to the lower ends."""
    given = formula.arguments(num_clients=num_clients, rate=rate, epsilon0=epsilon0)
    shape, columns = given[0].shape, [each.ravel() for each in given]
    checked = formula.whole_orders(orders)
    ends = np.empty((2, len(columns[0]), len(checked)))
    with float64():
        tab = series.table(checked)
        for (size, single), index in formula.grouped(columns[0], columns[1], windows).items():
            ready = functools.partial(
                series.over_settings, ends_of=ends_of, size=size, single=single, **static
            )
            group = [column[index] for column in columns]
            upper, lower = formula.in_batches(ready, group, tab)
            ends[0, index], ends[1, index] = upper[:, : len(checked)], lower[:, : len(checked)]
    upper, lower = ends.reshape(2, *shape, len(checked))
    finite = np.isfinite(upper)
    return upper, np.where(finite, upper - np.where(finite, lower, 0.0), np.inf)


def lemma_4(
    num_messages: ArrayLike, num_clients: ArrayLike, epsilon0: ArrayLike, orders: ArrayLike
) -> PublishedBound:
    """[SCI] Lemma 4: Renyi divergence of k shuffled messages, from k clients sampled out of n without replacement.

    The subsampled shuffle of [GDD21] at weight k/n, for eps0-LDP messages and whole orders. Rounded up.

    Args:
      num_messages: k, whole, 0 to num_clients.
      num_clients: n, 1 to 1e12.
      epsilon0: local privacy of a message, 0 to 50 nats.
      orders: whole Renyi orders, 2 to 4096, shape [orders].

    Raises:
      ValueError, TypeError: an argument outside its range, num_messages > num_clients, shapes that do not broadcast.
    """
    k, n, e0 = formula.arguments(num_messages=num_messages, num_clients=num_clients, epsilon0=epsilon0)
    if (k > n).any():
        raise ValueError(f"num_messages={k[k > n][0]:g}: expected at most num_clients, here {n[k > n][0]:g}")
    checked = formula.whole_orders(orders)
    with float64():
        columns = [each.ravel() for each in (k, n, e0)]
        (value,) = formula.in_batches(series.lemma_4, columns, series.table(checked))
    return formula.renyi(
        value[:, : len(checked)].reshape(*k.shape, len(checked)), "Lemma 4", f"{formula.SCI}; {formula.GDD}"
    )


def theorem_1(
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    orders: ArrayLike,
    *,
    most_values: int = formula.WINDOWS[-1],
    truncation: bool = True,
) -> PublishedBound:
    """[SCI] Theorem 1 with Lemma 4: log sum_k P[K=k] A_k / (lam - 1), the conditional weight being k/n.

    The sum is over single k if the window of all but 2 e^-60 of K's law has at most `most_values` values, otherwise
    over 4,096 runs at their worst corner. The tails are bounded run by run and included. `truncation_error` is the
    distance to the lower bound on the same sum. Cost: O(window x largest order) for all orders together.

    Args:
      num_clients: n, 1 to 1e12. rate: gamma in (0, 1]. epsilon0: 0 to 50 nats; these broadcast.
      orders: whole Renyi orders, 2 to 4096, shape [orders].
      most_values: 0 to 32768.
      truncation: True to compute `truncation_error`, which costs as much as the value for sums in runs; if False it may
        be NaN.

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    _validate.flag(truncation=truncation)
    _validate.integer(0, formula.WINDOWS[-1], most_values=most_values)
    windows = tuple(size for size in formula.WINDOWS if size <= most_values)
    setting = num_clients, rate, epsilon0, orders, windows
    value, error = _summed(series.lemma_4_ends, *setting, option=False, lower=truncation)
    return formula.renyi(value, "Theorem 1 with Lemma 4", truncation_error=error)


def theorem_1_fixed_weight(
    num_clients: ArrayLike, rate: ArrayLike, epsilon0: ArrayLike, orders: ArrayLike
) -> PublishedBound:
    """`theorem_1` with the weight gamma in place of k/n, as the proof of Theorem 2 has it. Not a bound."""
    setting = num_clients, rate, epsilon0, orders, formula.WINDOWS
    value, error = _summed(series.lemma_4_ends, *setting, option=True)
    return formula.renyi(
        value, "Theorem 1 with weight gamma", validity="invalid", reason=_FIXED_WEIGHT, truncation_error=error
    )


def subsampling_only(
    num_clients: ArrayLike, rate: ArrayLike, epsilon0: ArrayLike, orders: ArrayLike
) -> PublishedBound:
    """Theorem 1 without a gain from shuffling: given k the round is log(1 + (k/n)(e^eps0 - 1))-DP [BBG18].

    Arguments, rounding and errors as `theorem_1`.
    """
    setting = num_clients, rate, epsilon0, orders, formula.WINDOWS
    value, error = _summed(series.subsampling_ends, *setting, option=False)
    return formula.renyi(
        value, "Theorem 1, subsampling only", f"{formula.SCI}; {formula.BBG}", truncation_error=error
    )


def theorem_1_smaller(
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    orders: ArrayLike,
    *,
    truncation: bool = True,
) -> PublishedBound:
    """Theorem 1 with the smaller of Lemma 4 and subsampling for each k and order: the recommended repair.

    Valid, since both moments are valid for each k. Never above `theorem_1`, `subsampling_only` or `theorem_2_repaired`.
    Single k up to 4,096 values. Arguments, rounding and errors as `theorem_1`; cost O(window x orders x order).
    """
    _validate.flag(truncation=truncation)
    setting = num_clients, rate, epsilon0, orders, formula.WINDOWS[:2]
    value, error = _summed(series.subsampling_ends, *setting, option=True, lower=truncation)
    return formula.renyi(
        value,
        "Theorem 1, smaller of Lemma 4 and subsampling for each k",
        f"{formula.SCI}; {formula.BBG}",
        truncation_error=error,
    )


@jax.jit
def _theorem_2(n: Array, gamma: Array, epsilon0: Array, spread: Array, tab: series.OrderTable) -> Array:
    def one(n: Array, gamma: Array, epsilon0: Array, spread: Array) -> Array:
        big = jnp.exp(epsilon0)
        mean = n * gamma
        chernoff = -0.5 * spread * spread * mean
        least = jnp.floor((1.0 - spread) * mean / (2.0 * big)) + 1.0
        log_x = jnp.log(gamma) + pld.log_expm1(2.0 * epsilon0) - epsilon0
        half = 0.5 * tab.degrees
        first = jnp.log(4.0) + 2.0 * (jnp.log(gamma) + pld.log_expm1(epsilon0)) - epsilon0
        terms = tab.log_gamma + half * (2.0 * log_x + jnp.log(2.0))
        terms = jnp.where(tab.degrees == 2.0, first, terms)
        terms = terms + jnp.logaddexp(chernoff, -half * jnp.log(least))
        rest = jnp.logaddexp(chernoff, -(1.0 - spread) * mean / (8.0 * big))
        return jnp.logaddexp(terms, tab.degrees * log_x + rest)

    weights = jax.vmap(one)(n, gamma, epsilon0, spread)
    return jax.lax.map(lambda w: series.renyi(series.order_sum(w, tab), tab), weights)


def theorem_2(
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    orders: ArrayLike,
    *,
    spread: ArrayLike = 0.5,
) -> PublishedBound:
    """[SCI] Theorem 2, the closed form in O(lam). Not a bound in general: see `reason`.

    As in the appendix, with e^eps0 in the floor and in the exponent (the main text prints eps0). Rounded to nearest.

    Args:
      num_clients, rate, epsilon0, orders: as `theorem_1`.
      spread: the paper's Delta in [0, 1]: relative deviation of the number of messages below its mean.

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    given = formula.arguments(num_clients=num_clients, rate=rate, epsilon0=epsilon0, spread=spread)
    columns = [each.ravel() for each in given]
    checked = formula.whole_orders(orders)
    with float64():
        (value,) = formula.in_batches(_theorem_2, columns, series.table(checked), sizes=(1, 64, 8192))
    return formula.renyi(
        value[:, : len(checked)].reshape(*given[0].shape, len(checked)),
        "Theorem 2",
        validity="invalid",
        reason=_THEOREM_2,
    )


@functools.partial(jax.jit, static_argnames="size")
def _repaired(
    n: Array, gamma: Array, epsilon0: Array, k1: Array, k2: Array, tab: series.OrderTable, *, size: int
) -> Array:
    def one(n: Array, gamma: Array, epsilon0: Array, k1: Array, k2: Array) -> Array:
        r = binomial.runs(n, gamma, size)

        def log_mass(where: Array) -> Array:
            # A run across a boundary counts on both sides; probabilities are at most 1.
            return jnp.minimum(jax.nn.logsumexp(jnp.where(where, r.log_upper, -jnp.inf)), 0.0)

        masses = (log_mass(r.first <= k1), log_mass((r.last > k1) & (r.first <= k2)), log_mass(r.last > k2))
        sampled = pld.pure_excess(log1p(k1 / n * jnp.expm1(epsilon0)), tab.orders)
        moments = (
            sampled,
            series.subsampled_shuffle(k1 + 1.0, k2, n, epsilon0, tab),
            pld.pure_excess(epsilon0, tab.orders),
        )
        total = functools.reduce(jnp.logaddexp, (m + x for m, x in zip(masses, moments)))
        return series.renyi_above(total, tab)

    return jax.vmap(one)(n, gamma, epsilon0, k1, k2)


_RADII = (3.0, 5.0, 8.0, 12.0, 18.0, 27.0, 40.0, 55.0)


def theorem_2_repaired(
    num_clients: ArrayLike, rate: ArrayLike, epsilon0: ArrayLike, orders: ArrayLike
) -> PublishedBound:
    """[SCI] Theorem 2, repaired: three ranges of k, the middle one at its fewest messages and largest weight.

    A <= P[K <= k1] RR(log(1 + (k1/n)(E-1))) + P[k1 < K <= k2] A_{k1+1} with weight k2/n + P[K > k2] RR(eps0). It is
    valid for any k1 < k2. The result is the smallest over eight radii around the mean. Arguments, rounding and errors
    as `theorem_1`.
    """
    given = formula.arguments(num_clients=num_clients, rate=rate, epsilon0=epsilon0)
    columns = [each.ravel() for each in given]
    n, gamma, _ = columns
    checked = formula.whole_orders(orders)
    best = np.full((n.size, len(checked)), np.inf)
    with float64():
        tab = series.table(checked)
        for (size, _), index in formula.grouped(n, gamma, formula.WINDOWS).items():
            ready = functools.partial(_repaired, size=size)
            group = [column[index] for column in columns]
            for mass in _RADII:
                mean, radius = n[index] * gamma[index], formula.bernstein_radius(n[index], gamma[index], mass)
                k2 = np.clip(np.ceil(mean + radius), 1, n[index])
                k1 = np.clip(np.floor(mean - radius), 0, k2 - 1)
                (value,) = formula.in_batches(ready, [*group, k1, k2], tab)
                best[index] = np.minimum(best[index], value[:, : len(checked)])
    return formula.renyi(
        best.reshape(*given[0].shape, len(checked)),
        "Theorem 2, repaired",
        reason="three ranges of k instead of Lemma 5",
    )


def theorem_3(
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    orders: ArrayLike,
    *,
    spread: ArrayLike = 0.5,
) -> PublishedBound:
    """[SCI] Theorem 3, a LOWER bound at whole orders: no bound for all eps0-LDP randomizers is below it.

    A >= 1 + (1 - exp(-D^2 n gamma/(2 + D))) C(lam, 2) gamma^2 (E-1)^2 / ((1 + D) n gamma E). Rounded down.

    Args:
      num_clients, rate, epsilon0, orders: as `theorem_1`.
      spread: D in (0, 1].

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    spreads = formula.reals(0, 1, "(]", spread=spread)
    given = formula.arguments(num_clients=num_clients, rate=rate, epsilon0=epsilon0, spread=spreads)
    n, gamma, e0, d = (each[..., None] for each in given)
    likely = -np.expm1(-d * d * n * gamma / (2 + d))
    value = _lower(likely * gamma / ((1 + d) * n), e0, orders)
    return formula.renyi(value, "Theorem 3", direction="lower")


def theorem_3_sharper(
    num_clients: ArrayLike, rate: ArrayLike, epsilon0: ArrayLike, orders: ArrayLike
) -> PublishedBound:
    """A LOWER bound above Theorem 3: A >= 1 + C(lam, 2) (gamma/n) (E-1)^2 / E, whole orders only. Rounded down.

    The second moment of binary randomized response is exact. Higher whole orders follow by convexity, which fails for
    1 < lam < 2.
    Arguments and errors as `theorem_1`.
    """
    given = formula.arguments(num_clients=num_clients, rate=rate, epsilon0=epsilon0)
    n, gamma, e0 = (each[..., None] for each in given)
    return formula.renyi(
        _lower(gamma / n, e0, orders), "Theorem 3, sharper", validity="certified", direction="lower"
    )


def _lower(share: np.ndarray, epsilon0: np.ndarray, orders: ArrayLike) -> np.ndarray:
    lam = formula.whole_orders(orders)
    excess = share * 0.5 * lam * (lam - 1) * np.expm1(epsilon0) ** 2 * np.exp(-epsilon0)
    return np.log1p(excess) / (lam - 1) * (1 - 1e-12)
