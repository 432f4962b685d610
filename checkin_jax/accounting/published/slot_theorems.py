"""Random check-ins as published [RCI]: one message per slot, averaged updates, shuffling; numbers of dummies.

View "messages", replace-one, a whole run of one pass (not one round); epsilon in nats at `delta`, rounded up. A bound
too large for float64 is infinite. Arguments broadcast; values have the broadcast shape.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from checkin_jax import _validate
from checkin_jax.accounting.published import formula
from checkin_jax.accounting.published.formula import PublishedBound

_QUANTITY = "epsilon of a run, nats"
_UP = 1 + 1e-12


def _relaxed(log_a2: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """R(a2, delta) = a2/2 + sqrt(2 a2 log(1/delta)), the composition step of all theorems of the paper."""
    with np.errstate(over="ignore"):
        a2 = np.exp(log_a2)
        return (0.5 * a2 + np.sqrt(2.0 * a2) * np.sqrt(-np.log(delta))) * _UP


def _log_gap(epsilon0: np.ndarray) -> np.ndarray:
    """log(e^eps0 - 1), -inf at 0."""
    with np.errstate(divide="ignore"):
        return epsilon0 + np.log(-np.expm1(-epsilon0))


def _bound(value: np.ndarray, label: str, **more) -> PublishedBound:
    return PublishedBound(
        value=np.asarray(value), label=label, source=formula.RCI, quantity=_QUANTITY, **more
    )


def fixed_window(
    num_slots: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike, *, check_in_prob: ArrayLike = 1.0
) -> PublishedBound:
    """[RCI] Theorem 3.2 = Theorem A.4, A_fix: a2 = p_0^2 E (E - 1)^2 / m.

    Args:
      num_slots: m, 1 to 1e12.
      epsilon0: local privacy of a message, 0 to 50 nats.
      delta: of the run, in (0, 1).
      check_in_prob: p_0 in (0, 1]; Theorem A.4's largest slot weight.

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    m, e0, d, p0 = formula.arguments(
        num_slots=num_slots, epsilon0=epsilon0, delta=delta, check_in_prob=check_in_prob
    )
    return _bound(_relaxed(2 * np.log(p0) + e0 + 2 * _log_gap(e0) - np.log(m), d), "Theorem 3.2")


def sliding_window(num_slots: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike) -> PublishedBound:
    """[RCI] Theorem 4.3, A_sldw with windows of m slots: Theorem 3.2 at p_0 = 1. Arguments as `fixed_window`."""
    return dataclasses.replace(fixed_window(num_slots, epsilon0, delta), label="Theorem 4.3")


def weighted_shuffle(norm: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike) -> PublishedBound:
    """[RCI] Theorem A.5: a2 = E^4 (E - 1)^2 x^2 with x = ||loads||_2 / n, in (0, 1].

    Other arguments and errors as `fixed_window`.
    """
    x, e0, d = formula.arguments(norm=norm, epsilon0=epsilon0, delta=delta)
    return _weighted(x, e0, d, "Theorem A.5")


def _weighted(x: np.ndarray, e0: np.ndarray, d: np.ndarray, label: str, **more) -> PublishedBound:
    return _bound(_relaxed(4 * e0 + 2 * _log_gap(e0) + 2 * np.log(x), d), label, **more)


def averaged_updates(
    num_clients: ArrayLike, num_slots: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike, delta2: ArrayLike
) -> PublishedBound:
    """[RCI] Theorem 4.1, A_avg: Theorem A.5 at sqrt(1/n + 1/m) + sqrt(log(1/delta2)/n), with total delta + delta2.

    The loads' norm is the theorem's bound, even if above 1. Arguments and errors as `fixed_window`; num_clients: n, 1
    to 1e12; delta2 in (0, 1). `PublishedBound.delta` is the sum.
    """
    n, m, e0, d, d2 = formula.arguments(
        num_clients=num_clients, num_slots=num_slots, epsilon0=epsilon0, delta=delta, delta2=delta2
    )
    x = np.sqrt(1 / n + 1 / m) + np.sqrt(-np.log(d2) / n)
    return _weighted(x, e0, d, "Theorem 4.1", delta=d + d2, reason="delta is the sum delta + delta2")


def shuffle(num_clients: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike) -> PublishedBound:
    """[RCI] Theorem 5.1 = Theorem A.7, adaptive shuffling of n clients: a2 = E^3 (E - 1)^2 / n.

    Arguments and errors as `fixed_window`.
    """
    n, e0, d = formula.arguments(num_clients=num_clients, epsilon0=epsilon0, delta=delta)
    return _bound(_relaxed(3 * e0 + 2 * _log_gap(e0) - np.log(n), d), "Theorem 5.1")


def shuffle_2019(num_clients: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike) -> PublishedBound:
    """Erlingsson et al. 2019, Theorem 7, as [RCI] quotes it for comparison: a = 2 E^2 (E - 1).

    epsilon = a (e^{a/n} - 1) + a sqrt(2 log(1/delta) / n). Arguments and errors as `fixed_window`.
    """
    n, e0, d = formula.arguments(num_clients=num_clients, epsilon0=epsilon0, delta=delta)
    a = 2 * np.exp(2 * e0) * np.expm1(e0)
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.where(a > 0, a * np.expm1(a / n), 0.0) + a * np.sqrt(-2 * np.log(d) / n)
    return PublishedBound(
        value=value * _UP, label="Erlingsson et al. 2019, Theorem 7", source=formula.EFM, quantity=_QUANTITY
    )


def delta0_limit(epsilon0: ArrayLike, delta1: ArrayLike) -> np.ndarray:
    """Largest delta0 of the (epsilon0, delta0) versions at delta1, rounded down.

    (1 - e^-eps0) delta1 / (4 E (2 + ceil(log(2/delta1) / log(1/(1 - e^{-5 eps0}))))). Errors as `fixed_window`.
    """
    e0, d1 = formula.arguments(epsilon0=epsilon0, delta1=delta1)
    missed = np.exp(-5 * e0)
    with np.errstate(divide="ignore"):
        # Each form avoids cancellation: for `missed` near 0, or near 1.
        rate = -np.where(missed < 0.5, np.log1p(-missed), np.log(-np.expm1(-5 * e0)))
        repeats = np.ceil((np.log(2) - np.log(d1)) / rate * (1 + 1e-12))
    return -np.expm1(-e0) * d1 / (4 * np.exp(e0) * (2 + repeats)) * (1 - 1e-12)


def approximate_ldp(
    pure: PublishedBound,
    units: ArrayLike,
    epsilon0: ArrayLike,
    delta: ArrayLike,
    delta0: ArrayLike,
    delta1: ArrayLike,
) -> PublishedBound:
    """The (epsilon0, delta0)-LDP version of a theorem of this module, from its value at 8 epsilon0.

    epsilon is `pure`, which must be computed at 8 epsilon0. The total delta is delta + M (e^epsilon + 1) delta1, with M
    = m for Theorems 3.2 and 4.3 and M = n for 5.1, A.5 and 4.1 (for some of which the paper prints m). For 4.1 pass the
    sum delta + delta2 as delta.

    Args:
      pure: the theorem at 8 epsilon0, at the same delta.
      units: M.
      epsilon0: at most 6.25, so that 8 epsilon0 is in range.
      delta, delta1: in (0, 1).
      delta0: of a message; at most `delta0_limit(epsilon0, delta1)`.

    Raises:
      ValueError, TypeError: an argument outside its range, in particular delta0 above its limit.
    """
    _validate.instance(PublishedBound, pure=pure)
    e0 = formula.reals(0, formula.MAX_EPSILON0 / 8, epsilon0=epsilon0)
    _, size, e0, d, d1, d0 = formula.arguments(
        value=pure.value, units=units, epsilon=e0, delta=delta, delta1=delta1, delta0=delta0
    )
    limit = delta0_limit(e0, d1)
    if (d0 > limit).any():
        raise ValueError(
            f"delta0={float(d0.max())!r}: expected at most {float(limit.min()):.6g}, the theorem's limit"
        )
    with np.errstate(over="ignore"):
        total = (d + size * (np.exp(pure.value) + 1) * d1) * _UP
    # A guarantee with delta >= 1 is void.
    value = np.where(total < 1, pure.value, np.inf)
    return dataclasses.replace(
        pure,
        value=value,
        delta=total,
        label=f"{pure.label}, (epsilon0, delta0)",
        reason="value at 8 epsilon0",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corollary33:
    """[RCI] Corollary 3.3: A_fix run n/m times by all clients; epsilons at one total delta, see `corollary_3_3`."""

    first: PublishedBound
    exact: PublishedBound
    relaxed: PublishedBound
    closed: PublishedBound


def corollary_3_3(
    num_clients: ArrayLike, num_slots: ArrayLike, epsilon0: ArrayLike, beta: ArrayLike, delta: ArrayLike
) -> Corollary33:
    """[RCI] Corollary 3.3: n/m repetitions of A_fix with p_0 = m/n, so that all n updates are made.

    `first` is one repetition, Theorem 3.2 at delta = beta. `exact` composes it: eps1 sqrt(2 (n/m) log(1/delta)) +
    (n/m) eps1 (e^eps1 - 1). `relaxed` composes inequality (6), 2 sqrt(2 a2 log(1/beta)), instead. `closed` is the
    corollary's own form, by e^eps1 - 1 <= 3 eps1 / 2. Total delta: delta + (n/m) beta.

    Args:
      num_clients: n. num_slots: m <= n. epsilon0: 0 to 50 nats. beta, delta: in (0, 1).

    Raises:
      ValueError, TypeError: an argument outside its range, m > n, or shapes that do not broadcast.
    """
    n, m, e0, b, d = formula.arguments(
        num_clients=num_clients, num_slots=num_slots, epsilon0=epsilon0, beta=beta, delta=delta
    )
    _at_most_clients(m, n)
    first = fixed_window(m, e0, b, check_in_prob=m / n)
    half = np.sqrt(2 * m * np.exp(e0) * -np.log(b)) / n * np.expm1(e0)
    total = (d + n / m * b) * _UP

    def composed(eps1: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            second = np.where(eps1 > 0, n / m * eps1 * np.expm1(eps1), 0.0)
            return (eps1 * np.sqrt(-2 * n / m * np.log(d)) + second) * _UP

    relaxed = 2 * half
    closed = (relaxed * np.sqrt(-2 * n / m * np.log(d)) + 1.5 * n / m * relaxed**2) * _UP
    return Corollary33(
        first=dataclasses.replace(first, label="Corollary 3.3, one repetition"),
        exact=_bound(composed(first.value), "Corollary 3.3", delta=total),
        relaxed=_bound(composed(relaxed * _UP), "Corollary 3.3 with inequality (6)", delta=total),
        closed=_bound(closed, "Corollary 3.3, closed form", delta=total),
    )


# Sums of up to this many terms are exact, longer ones have as many runs.
_TERMS = 1 << 16


def _unrelaxed(
    size: np.ndarray, log_weight: np.ndarray, rise: np.ndarray, base: np.ndarray, d: np.ndarray, label: str
) -> PublishedBound:
    """The sum of eps_i tanh(eps_i/2), and sqrt(2 log(1/d) sum eps_i^2), up to i = size, rounded up.

    eps_i = log(1 + e^log_weight / (base + rise (i - 1))) is monotone in i: the ends of a run bound its terms.
    """
    ends = []
    for m, weight, more, first, log_delta in np.stack([size, log_weight, rise, base, np.log(d)], -1).reshape(
        -1, 5
    ):
        share = np.arange(_TERMS + 1) / _TERMS
        edges = np.arange(m + 1.0) if m <= _TERMS else np.round(m * share)
        count = np.diff(edges)
        at = [
            np.logaddexp(0.0, weight - np.log(first + more * each)) for each in (edges[:-1], edges[1:] - 1.0)
        ]
        for epsilon, rounding in ((np.maximum(*at), _UP), (np.minimum(*at), 2 - _UP)):
            drift = np.sum(count * epsilon * np.tanh(0.5 * epsilon))
            ends.append((drift + np.sqrt(-2.0 * log_delta * np.sum(count * epsilon * epsilon))) * rounding)
    upper, lower = (np.reshape(each, size.shape) for each in (ends[::2], ends[1::2]))
    return _bound(upper, label, truncation_error=upper - lower)


def fixed_window_unrelaxed(
    num_slots: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike, *, check_in_prob: ArrayLike = 1.0
) -> PublishedBound:
    """Theorem 3.2 before its sum is relaxed: eps_i = log(1 + p_0 E (E-1) / (i - 1 + E (m - i + 1))).

    The sum has single terms up to 65,536 slots, then as many runs; the value includes `truncation_error`. Arguments and
    errors as `fixed_window`.
    """
    m, e0, d, p0 = formula.arguments(
        num_slots=num_slots, epsilon0=epsilon0, delta=delta, check_in_prob=check_in_prob
    )
    # From the last slot backwards, i - 1 + E (m - i + 1) is m + (E - 1), m + 2 (E - 1), ...
    rise = np.expm1(e0)
    return _unrelaxed(m, np.log(p0) + e0 + _log_gap(e0), rise, m + rise, d, "Theorem 3.2, un-relaxed sum")


def shuffle_unrelaxed(num_clients: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike) -> PublishedBound:
    """Theorem 5.1 before its sum is relaxed: eps_i = log(1 + E^2 (E-1) / (E^2 + (i-1) + (n-i) E)).

    As `fixed_window_unrelaxed`.
    """
    n, e0, d = formula.arguments(num_clients=num_clients, epsilon0=epsilon0, delta=delta)
    rise = np.expm1(e0)
    base = np.exp(2 * e0) + n - 1
    return _unrelaxed(n, 2 * e0 + _log_gap(e0), rise, base, d, "Theorem 5.1, un-relaxed sum")


def _dummies(value: np.ndarray, label: str) -> PublishedBound:
    quantity = "expected dummies"
    return PublishedBound(value=value, label=label, source=formula.RCI, quantity=quantity, direction="exact")


def fixed_window_dummies(
    num_clients: ArrayLike, num_slots: ArrayLike, check_in_prob: ArrayLike = 1.0
) -> PublishedBound:
    """[RCI] Proposition 3.4: expected dummies of A_fix, m (1 - p_0/m)^n (the exponent's place is misprinted).

    Args:
      num_clients: n, 1 to 1e12. num_slots: m, 1 to 1e12. check_in_prob: p_0 in (0, 1].

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    n, m, p0 = formula.arguments(num_clients=num_clients, num_slots=num_slots, check_in_prob=check_in_prob)
    with np.errstate(divide="ignore"):
        value = m * np.exp(n * np.log1p(-p0 / m))
    return _dummies(value, "Proposition 3.4")


def sliding_window_dummies(num_clients: ArrayLike, num_slots: ArrayLike) -> PublishedBound:
    """[RCI] Proposition 4.4: expected dummy updates of A_sldw, (n - m + 1)(1 - 1/m)^m, at most (n - m + 1)/e.

    Args:
      num_clients: n, 1 to 1e12. num_slots: the window m, at most n.

    Raises:
      ValueError, TypeError: an argument outside its range, m > n, or shapes that do not broadcast.
    """
    n, m = formula.arguments(num_clients=num_clients, num_slots=num_slots)
    _at_most_clients(m, n)
    with np.errstate(divide="ignore"):
        value = (n - m + 1) * np.exp(m * np.log1p(-1 / m))
    return _dummies(value, "Proposition 4.4")


def _at_most_clients(m: np.ndarray, n: np.ndarray) -> None:
    """Raises ValueError unless there are at most as many slots as clients."""
    if (m > n).any():
        raise _validate.error(f"at most num_clients={float(n.min())!r}", num_slots=float(m.max()))
