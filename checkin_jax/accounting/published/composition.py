"""Composition of published bounds: Renyi divergences to epsilon, pure DP to Renyi, strong composition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import numpy as np
from numpy.typing import ArrayLike

from checkin_jax import _validate
from checkin_jax.accounting.published import approximate, formula
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.execution.devices import float64


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
    fewest = np.maximum(approximate.least_messages(n, gamma, d / t / 8), 1)
    most = np.maximum(approximate.most_messages(n, gamma, d / t / 8), 1)
    share = most / n
    amplified = approximate.shuffle_epsilon(fewest, e0, np.minimum(d / (4 * t * share), 0.5))
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
