"""[SCI]'s bounds by approximate DP: valid ingredients, Lemma 3, and invalid bounds that use it; composition of rounds.

View "messages", replace-one. Arguments broadcast; Renyi divergences have one more axis, the orders. Composition: Renyi
divergences to epsilon, pure DP to Renyi, strong composition.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp
from numpy.typing import ArrayLike

from checkin_jax import _validate
from checkin_jax.accounting.published import formula
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.kernels import binomial, host
from checkin_jax.kernels.composition import pld, series
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.devices import float64

NOT_A_BOUND = (
    "Lemma 3 is the MINIMUM Renyi divergence of pairs with this (epsilon, delta), not a bound on all of them: "
    "a (0, delta)-DP mechanism can have infinite Renyi divergence"
)
_GOLDEN = 0.5 * (5.0**0.5 - 1.0)
# The width of the search, at most 700 nats, times 0.618^90 is below 1e-15.
_STEPS = 90


def _log_divergence_term(log_ratio: Array, order: Array) -> Array:
    """log(t^lam - 1 - lam (t - 1)) for t = e^log_ratio; by a series where the difference cancels."""
    v = jnp.expm1(log_ratio)
    y = order * log_ratio
    near = jnp.abs(order * v) < 1e-4
    series_ = 0.5 * order * (order - 1.0) * v * v
    series_ = series_ * (1.0 + (order - 2.0) * v / 3.0 * (1.0 + 0.25 * (order - 3.0) * v))
    large = y > 30.0
    middle = jnp.expm1(jnp.minimum(y, 30.0)) - order * jnp.minimum(v, 1e30)
    # For large y: (1 + lam v) e^-y with v = e^log_ratio - 1.
    tail = (1.0 - order) * jnp.exp(-y) + order * jnp.exp(log_ratio - y)
    value = jnp.log(jnp.where(near, series_, jnp.where(large | (middle <= 0), 1.0, middle)))
    return jnp.where(large, y + log1p(-jnp.where(large, tail, 0.0)), value)


@jax.jit
def log_least_excess(epsilon: Array, delta: Array, orders: Array) -> Array:
    """log(A - 1) of Lemma 3's minimum, at broadcast scalars; -inf at delta = 0, inf at delta >= 1.

    The minimum over pairs P = (r, 1-r), Q = (q, 1-q) with r - e^eps q = delta, convex in r, by golden section in
    log(r - delta). A - 1 is a sum of two nonnegative terms, so nothing cancels.
    """
    epsilon, delta, orders = jnp.broadcast_arrays(epsilon, delta, orders)
    proper = (delta > 0) & (delta < 1)
    d = jnp.where(proper, delta, 0.5)

    def excess(u: Array) -> Array:
        s = jnp.exp(u)
        q_rest = 1.0 - s * jnp.exp(-epsilon)
        gap = (d - s * jnp.expm1(-epsilon)) / q_rest
        up = u - epsilon + _log_divergence_term(log1p(d / s) + epsilon, orders)
        down = jnp.log(q_rest) + _log_divergence_term(log1p(-jnp.minimum(gap, 1.0)), orders)
        return jnp.logaddexp(up, jnp.where(jnp.isnan(down), -jnp.inf, down))

    # (lam - 1) delta is the minimum of the first term alone; the second falls with r.
    low = jnp.log(d) - 1.0
    high = log1p(-d)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)

    def halve(_: int, state: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, left, right, at_left, at_right = state
        go_left = at_left <= at_right
        low, high = jnp.where(go_left, low, left), jnp.where(go_left, right, high)
        probe = jnp.where(go_left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_probe = excess(probe)
        kept, at_kept = jnp.where(go_left, left, right), jnp.where(go_left, at_left, at_right)
        return (
            low,
            high,
            jnp.where(go_left, probe, kept),
            jnp.where(go_left, kept, probe),
            jnp.where(go_left, at_probe, at_kept),
            jnp.where(go_left, at_kept, at_probe),
        )

    at_left, at_right = jax.vmap(excess)(jnp.stack([left, right]))
    state = (low, high, left, right, at_left, at_right)
    state = jax.lax.fori_loop(0, _STEPS, halve, state)
    value = jnp.minimum(state[4], state[5])
    return jnp.where(proper, value, jnp.where(delta >= 1.0, jnp.inf, -jnp.inf))


def lemma_3(epsilon: ArrayLike, delta: ArrayLike, orders: ArrayLike) -> PublishedBound:
    """[SCI] Lemma 3: the least Renyi divergence of pairs with (epsilon, delta), printed as if it were the largest.

    epsilon + log(min_{delta<r<1} r^lam (r-delta)^(1-lam) + (1-r)^lam (e^eps - r + delta)^(1-lam)) / (lam - 1). Not a
    valid conversion. Relative error below 1e-11.

    Args:
      epsilon: 0 to 690 nats. delta: in [0, 1). orders: real orders in [2, 4096], shape [orders].

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    e, d = formula.reals(0, 690, epsilon=epsilon), formula.reals(0, 1, "[)", delta=delta)
    e, d = formula.arguments(epsilon=e, inner_delta=d)
    lam = formula.real_orders(2.0, formula.MAX_ORDER, orders)
    with float64():
        log_excess = np.asarray(log_least_excess(host(e[..., None]), host(d[..., None]), host(lam)))
    value = np.logaddexp(0.0, log_excess) / (lam - 1)
    return PublishedBound(
        value=value,
        label="Lemma 3",
        source=formula.SCI,
        quantity="Renyi divergence, nats",
        validity="invalid",
        reason=NOT_A_BOUND,
    )


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


_shuffled = jax.jit(shuffled)
_sampled = jax.jit(sampled)


def shuffle_epsilon(
    num_messages: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike, *, delta0: ArrayLike = 0.0
) -> PublishedBound:
    """[FMT21] Theorem 3.8 as [SCI] uses it: epsilon of k shuffled messages; `delta` of the result is its total.

    If epsilon0 > log(k / (16 log(2/delta))) the result is the randomizer's own (epsilon0, delta0). Rounded up.

    Args:
      num_messages: k, 0 to 1e12. epsilon0: 0 to 50 nats. delta: the theorem's own, in (0, 1).
      delta0: of a message, in [0, 1).

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    columns = formula.arguments(num_messages=num_messages, epsilon0=epsilon0, delta0=delta0, delta=delta)
    with float64():
        epsilon, total = (np.asarray(v) for v in _shuffled(*map(host, columns)))
    up, quantity = 1 + 1e-12, "epsilon of a round, nats"
    return PublishedBound(
        value=epsilon * up, label="Theorem 3.8", source=formula.FMT, quantity=quantity, delta=total * up
    )


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
    log_excess = log_least_excess(*given, host(orders[None, :]))
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
    given = formula.arguments(
        num_clients=num_clients, rate=rate, epsilon0=epsilon0, delta0=delta0, shuffle_delta=shuffle_delta
    )
    columns = [each.ravel() for each in given]
    checked = formula.whole_orders(orders)
    ends = np.empty((2, len(columns[0]), len(checked)))
    with float64():
        tab = series.table(checked)
        for (size, _), index in formula.grouped(columns[0], columns[1], _WINDOWS).items():
            for i in index:
                setting = [column[i] for column in columns]
                found = _approach(setting, tab, size=size, sample_first=sample_first)
                ends[:, i] = found[:, : len(checked)]
    upper, lower = ends.reshape(2, *given[0].shape, len(checked))
    finite = np.isfinite(upper)
    return formula.renyi(
        upper,
        "Approach 2" if sample_first else "Approach 1",
        validity="invalid",
        reason=NOT_A_BOUND,
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
    n, gamma, e0, d0, tail = formula.arguments(
        num_clients=num_clients, rate=rate, epsilon0=epsilon0, delta0=delta0, tail_delta=tail_delta
    )
    share = most_messages(n, gamma, tail) / n
    with float64():
        epsilon, delta = (np.asarray(v) for v in _sampled(host(e0), host(d0), host(share)))
    bound = lemma_3(epsilon, np.minimum(delta + tail, np.nextafter(1.0, 0.0)), formula.whole_orders(orders))
    return formula.renyi(bound.value, "Baseline", validity="invalid", reason=NOT_A_BOUND)


def most_messages(n: np.ndarray, gamma: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """l with P[Bin(n, gamma) > l] <= tail, by Bernstein, rounded up; host arrays."""
    return np.minimum(np.ceil(n * gamma + formula.bernstein_radius(n, gamma, -np.log(tail))), n)


def least_messages(n: np.ndarray, gamma: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """l with P[Bin(n, gamma) < l] <= tail, by Bernstein, rounded down; host arrays."""
    return np.maximum(np.floor(n * gamma - formula.bernstein_radius(n, gamma, -np.log(tail))), 0.0)


def epsilon(
    bound: PublishedBound, orders: ArrayLike, *, num_rounds: ArrayLike, delta: ArrayLike
) -> PublishedBound:
    """Epsilon of num_rounds rounds from their Renyi divergences: [SCI] Lemma 2, the best order. Rounded up.

    Valid if `bound` is; label, validity and reason are those of `bound`. `truncation_error` is that of the orders, at
    the best order.

    Args:
      bound: Renyi divergences of a round, upper, value [..., orders].
      orders: orders of the divergences, shape [orders].
      num_rounds: 1 to 1e9. delta: in (0, 1). They broadcast with the bound's shape without its last axis.

    Raises:
      ValueError, TypeError: a lower bound, orders that do not fit, an argument outside its range.
    """
    return epsilon_and_order(bound, orders, num_rounds=num_rounds, delta=delta)[0]


def epsilon_and_order(
    bound: PublishedBound, orders: ArrayLike, *, num_rounds: ArrayLike, delta: ArrayLike
) -> tuple[PublishedBound, np.ndarray]:
    """(`epsilon`, best order); arguments and errors as there."""
    _validate.instance(PublishedBound, bound=bound)
    lam = formula.real_orders(1.0, np.inf, orders)
    fits = bound.quantity.startswith("Renyi") and bound.direction == "upper"
    if not fits or bound.value.shape[-1:] != lam.shape:
        raise ValueError(
            f"bound={bound.label!r}, {bound.direction}, {bound.quantity}, shape {bound.value.shape}: "
            f"expected upper Renyi divergences of shape [..., {lam.size}]"
        )
    _, rounds, d = formula.arguments(bound=bound.value[..., 0], num_rounds=num_rounds, delta=delta)
    rounds, log_delta = rounds[..., None], np.log(d)[..., None]
    moments = rounds * bound.value * (lam - 1)
    with float64():
        arrays = map(host, np.broadcast_arrays(lam, moments, log_delta))
        by_order = np.asarray(pld.epsilon_from_log_moments(*arrays))
    best = np.argmin(by_order, axis=-1)[..., None]
    slack = np.broadcast_to(rounds * bound.truncation_error, by_order.shape)
    found = dataclasses.replace(
        bound,
        value=np.take_along_axis(by_order, best, axis=-1)[..., 0],
        quantity="epsilon of a run, nats",
        truncation_error=np.take_along_axis(slack, best, axis=-1)[..., 0],
    )
    return found, lam[best[..., 0]]


def pure_rdp(epsilon: ArrayLike, orders: ArrayLike) -> PublishedBound:
    """Renyi divergence of any epsilon-DP mechanism, at real orders > 1; attained by binary randomized response.

    log(p^lam q^(1-lam) + q^lam p^(1-lam)) / (lam - 1) with p = e^eps / (1 + e^eps), q = 1 - p. It is the valid
    conversion in place of [SCI] Lemma 3. Rounded up.

    Args:
      epsilon: 0 to 690 nats. orders: real, in (1, 1e9], shape [orders].

    Raises:
      ValueError, TypeError: an argument outside its range.
    """
    e = formula.reals(0, 690, epsilon=epsilon)[..., None]
    lam = formula.real_orders(1.0, 1e9, orders)
    with float64():
        value = np.asarray(_rdp_of_pure_dp(host(e), host(lam)))
    return PublishedBound(
        value=value,
        label="Pure DP to Renyi",
        source=formula.SCI,
        quantity="Renyi divergence, nats",
        validity="certified",
    )


_rdp_of_pure_dp = jax.jit(pld.rdp_of_pure_dp)


def strong(epsilon: ArrayLike, num_rounds: ArrayLike, slack: ArrayLike) -> np.ndarray:
    """[KOV15] Theorem 3.4: epsilon of num_rounds rounds of (epsilon, delta)-DP at delta 1 - (1-delta)^T (1-slack).

    The smallest of its three forms, rounded up; the total delta is at most T delta + slack.

    Args:
      epsilon: of a round, >= 0, infinity allowed. num_rounds: 1 to 1e9. slack: in (0, 1).

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    e = formula.reals(0, np.inf, epsilon=epsilon)
    e, t, d = formula.arguments(epsilon=e, num_rounds=num_rounds, slack=slack)
    drift = t * e * np.tanh(0.5 * e)
    root = np.sqrt(t) * e
    second = drift + root * np.sqrt(2 * np.log(np.e + root / d))
    return np.minimum(np.minimum(t * e, second), drift + root * np.sqrt(-2 * np.log(d))) * (1 + 1e-12)


def repeated(one: Callable[[np.ndarray], PublishedBound], num_rounds: float, delta: float) -> PublishedBound:
    """Strong composition of `one`, a bound at any delta: half of delta is for the rounds, half for the slack.

    For one round the result is `one` at the whole delta. Validity, label and reason are those of `one`.

    Raises:
      ValueError, TypeError: num_rounds not in [1, 1e9], delta not in (0, 1), or `one` no function.
    """
    num_rounds = _validate.integer(1, formula.MAX_ROUNDS, num_rounds=num_rounds)  # type: ignore[arg-type]
    delta = _validate.real(0, 1, "()", delta=delta)
    if not callable(one):
        raise _validate.type_error("a function of delta", one=one)
    if num_rounds == 1:
        return one(np.asarray(delta))
    single = one(np.asarray(0.5 * delta / num_rounds))
    value = strong(single.value, num_rounds, 0.5 * delta)
    return dataclasses.replace(single, value=value, label=f"{single.label}, strong composition", delta=None)


def strong_composition(
    num_clients: ArrayLike,
    rate: ArrayLike,
    epsilon0: ArrayLike,
    *,
    num_rounds: ArrayLike,
    delta: ArrayLike,
    delta0: ArrayLike = 0.0,
) -> PublishedBound:
    """Shuffled check-in without Renyi divergences, the approach that [SCI] improves on: a valid bound.

    In each round the number of messages is within Bernstein's radius, except with probability tau. The fewest messages
    enter [FMT21] Theorem 3.8, the largest share [BBG18]; rounds compose by [KOV15] Theorem 3.4. A quarter of delta goes
    to Theorem 3.8, a quarter to tau; the rest, minus the messages' delta0, is the slack of the composition. The result
    is the smaller of this and of no gain from shuffling; infinite if delta0 leaves no slack. Rounded up.

    Args:
      num_clients, rate, epsilon0: as `shuffled.theorem_1`. num_rounds: T, 1 to 1e9. delta: of the run, in (0, 1).
      delta0: of a message, in [0, 1).

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    n, gamma, e0, t, d, d0 = formula.arguments(
        num_clients=num_clients,
        rate=rate,
        epsilon0=epsilon0,
        num_rounds=num_rounds,
        delta=delta,
        delta0=delta0,
    )
    # Two tails of tau / 2 each.
    fewest = np.maximum(least_messages(n, gamma, d / t / 8), 1)
    most = np.maximum(most_messages(n, gamma, d / t / 8), 1)
    share = most / n
    amplified = shuffle_epsilon(fewest, e0, np.minimum(d / (4 * t * share), 0.5))
    gains = amplified.value < e0
    own = (
        np.minimum(d / (4 * t * share), 0.5)
        + (np.exp(amplified.value) + 1) * (1 + np.exp(-e0) / 2) * most * d0
    )
    options = []
    for round_epsilon, round_delta in ((np.where(gains, amplified.value, np.inf), own), (e0, d0)):
        left = d - t * share * round_delta - d / 4
        sampled = np.log1p(share * np.expm1(np.minimum(round_epsilon, 690)))
        total = strong(sampled, t, np.clip(left, 1e-300, 0.999))
        options.append(np.where((left > 0) & np.isfinite(round_epsilon), total, np.inf))
    return PublishedBound(
        value=np.minimum(*options) * (1 + 1e-12),
        label="Shuffling (Feldman et al. 2021), subsampling, strong composition",
        source=f"{formula.FMT}; {formula.BBG}; {formula.KOV}",
        quantity="epsilon of a run, nats",
    )
