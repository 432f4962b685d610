"""Random check-ins as published [RCI], whose proofs shuffle; one shuffle by others [FMT21, FMT23, BBGN19, WPL24].

[RCI]: one message per slot, averaged updates, shuffling; numbers of dummies. View "messages", replace-one, a whole run
of one pass (not one round); epsilon in nats at `delta`, rounded up. A bound too large for float64 is infinite. Of one
shuffle, in which all n clients send, it is at most epsilon0. Arguments broadcast; values have the broadcast shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import ArrayLike

from checkin_jax import _validate
from checkin_jax.accounting.published import formula
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.kernels.execution.backend import bisected

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


_OF_A_SHUFFLE = "epsilon of a shuffle, nats"
# Halvings of the interval [0, epsilon0] in which epsilon is searched: beyond float64's digits.
_HALVINGS = 60
# Mass of the law of the number of clones that is counted as delta, over delta.
_LEFT_OUT = 1e-6
# Clients of a numerical bound at most: it sums over some ten standard deviations of the number of clones.
_MOST_COUNTED = 10**8


def _at_most_own(epsilon: np.ndarray, epsilon0: np.ndarray, label: str, source: str) -> PublishedBound:
    return PublishedBound(
        value=np.minimum(epsilon * _UP, epsilon0), label=label, source=source, quantity=_OF_A_SHUFFLE
    )


def clones_2021(num_clients: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike) -> PublishedBound:
    """[FMT21] closed form of the authors' code, for messages that may depend on earlier ones of the shuffle.

    With E = e^epsilon0 and s = 8 sqrt(E log(4/delta) / n) + 8 E / n the value is
    log(1 + s (1 - 1/E) / (1 + 1 / (E (1 + s)))) where epsilon0 <= log(n / (16 log(4/delta))); epsilon0 elsewhere. It is
    above Theorem 3.1 of the paper, log(1 + s (E - 1) / (E + 1)), by up to some 10%: for that, see `shuffle_epsilon`.

    Args:
      num_clients: n, 1 to 1e12.
      epsilon0: local privacy of a message, 0 to 50 nats.
      delta: of the shuffle, in (0, 1).

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    n, e0, d = formula.arguments(num_clients=num_clients, epsilon0=epsilon0, delta=delta)
    big = np.exp(e0)
    spread = 8 * np.sqrt(big * np.log(4 / d) / n) + 8 * big / n
    value = np.log1p(-np.expm1(-e0) * spread / (1 + np.exp(-e0) / (1 + spread)))
    value = np.where(n >= 16 * big * np.log(4 / d), value, e0)
    return _at_most_own(value, e0, "Feldman et al. 2021, closed form of their code", formula.FMT)


def clones_2023(num_clients: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike) -> PublishedBound:
    """[FMT23] Theorem 3.2, in closed form.

    log(1 + (E-1) (4 sqrt(2 log(4/delta) / ((E+1) n)) + 4 / n)) with E = e^epsilon0, where
    epsilon0 <= log(n / (8 log(2/delta)) - 1); epsilon0 elsewhere. Arguments and errors as `clones_2021`.
    """
    n, e0, d = formula.arguments(num_clients=num_clients, epsilon0=epsilon0, delta=delta)
    big = np.exp(e0)
    spread = 4 * np.sqrt(2 * np.log(4 / d) / ((big + 1) * n)) + 4 / n
    value = np.where(n >= 8 * (big + 1) * np.log(2 / d), np.log1p(np.expm1(e0) * spread), e0)
    return _at_most_own(value, e0, "Feldman et al. 2023, Theorem 3.2", formula.FMT23)


def privacy_blanket(
    num_clients: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike, *, inequality: str = "Bennett"
) -> PublishedBound:
    """[BBGN19] the blanket of any epsilon0-LDP message, with the sum's tail by an inequality.

    delta(epsilon) <= E(L_1 + ... + L_M)_+ / (gamma n), where M, a binomial number of mean gamma n with
    gamma = e^-epsilon0, counts the messages that come from the blanket, and each L has mean 1 - e^epsilon.
    Other arguments and errors as `clones_2021`.

    Args:
      inequality: "Hoeffding" (from the range of L) or "Bennett" (from its largest value and its variance).
    """
    tail = {"Hoeffding": _hoeffding, "Bennett": _bennett}[
        _validate.choice(("Hoeffding", "Bennett"), inequality=inequality)
    ]
    n, e0, d = formula.arguments(num_clients=num_clients, epsilon0=epsilon0, delta=delta)
    value = _least(lambda epsilon: tail(n, e0, epsilon), e0, d)
    return _at_most_own(value, e0, f"Balle et al. 2019, privacy blanket, {inequality}", formula.BBGN)


def _least(delta_at: Callable[[np.ndarray], np.ndarray], high: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Least epsilon of [0, high] with delta_at(epsilon) <= delta, rounded up; `high` if there is none below."""
    return bisected(lambda epsilon: delta_at(epsilon) > delta, np.zeros_like(high), high, _HALVINGS)[1]


def _hoeffding(n: np.ndarray, e0: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gap, width = np.expm1(epsilon), (np.exp(epsilon) + 1) * 2 * np.sinh(e0)
        left = np.exp(n * np.log1p(np.exp(-e0) * np.expm1(-2 * (gap / width) ** 2)))
        found = np.exp(e0) / n * width**2 / (4 * gap) * left
    return np.where(gap > 0, found, np.inf)


def _bennett(n: np.ndarray, e0: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    gamma = np.exp(-e0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gap, most = np.expm1(epsilon), np.exp(e0) * -np.expm1(epsilon - 2 * e0)
        variance = np.exp(e0) * (np.exp(2 * epsilon) + 1) - 2 * gamma * np.exp(epsilon - 2 * e0)
        ratio = gap * most / variance
        rate = variance / most**2 * ((1 + ratio) * np.log1p(ratio) - ratio)
        some = np.exp(n * np.log1p(gamma * np.expm1(-rate))) - np.exp(n * np.log1p(-gamma))
        found = np.exp(e0) / n * most / np.log1p(ratio) * some
    return np.where(gap > 0, found, np.inf)


def variation_ratio(
    num_clients: int, epsilon0: float, delta: float, *, total_variation: float | None = None
) -> PublishedBound:
    """[WPL24] messages of which the total variation between two records is known; numerically, one setting at a time.

    With the largest total variation (E-1)/(E+1), which is the default, it is the numerical bound of [FMT23].

    Args:
      num_clients: n, 1 to 1e8.
      epsilon0: local privacy of a message, in (0, 50] nats; likelihood ratios to a third record have the same limit.
      delta: of the shuffle, in (0, 1).
      total_variation: beta, the largest of two records' messages, in (0, (E-1)/(E+1)].

    Raises:
      ValueError, TypeError: an argument outside its range.
    """
    n = _validate.integer(1, _MOST_COUNTED, num_clients=num_clients)
    e0 = _validate.real(0, formula.MAX_EPSILON0, "(]", epsilon0=epsilon0)
    d = _validate.real(0, 1, "()", delta=delta)
    most = float(np.tanh(0.5 * e0))
    beta = most if total_variation is None else total_variation
    beta = _validate.real(0, most, "(]", total_variation=beta)
    value = _least(_delta_of_clones(n, e0, beta, d * _LEFT_OUT), np.asarray(e0), np.asarray(d))
    return _at_most_own(value, np.asarray(e0), "Wang et al. 2024, variation ratio", formula.WPL)


def _delta_of_clones(
    n: int, epsilon0: float, beta: float, left_out: float
) -> Callable[[np.ndarray], np.ndarray]:
    """delta of a shuffle at epsilon: C ~ Binomial(n - 1, 2 r) clones of the two records, and the client's own message.

    The own message is a clone of the own record with probability `own`, of the other record with probability `other`,
    and else none. left_out: mass of the law of C that is counted as delta.
    """
    shrink = -np.expm1(-epsilon0)
    own, other = beta / shrink, beta * np.exp(-epsilon0) / shrink
    law = scipy.stats.binom(n - 1, 2 * own * np.exp(-epsilon0))
    low, high = law.ppf(0.5 * left_out), law.isf(0.5 * left_out)
    # Totals of clones, the own message included; each follows from one total of the others, or the next smaller.
    # A total that cannot hold a clone from the client itself has no divergence.
    t = np.arange(low, high + 2)
    t = t[law.pmf(t - 1) > 0]
    equal, less = law.pmf(t), law.pmf(t - 1)

    def delta(epsilon: np.ndarray) -> np.ndarray:
        ratio = np.exp(epsilon)
        none = equal * (1 - own - other) * (1 - ratio)
        # Coefficients of the binomial laws of a - 1 and of a among t - 1 others.
        first, second = less * (own - ratio * other), less * (other - ratio * own)
        # With B the law of a among t, the first is 2 a / t B, the second 2 (t - a) / t B: the sum is linear in a.
        least = np.clip(np.ceil(-(none + 2 * second) * t / (2 * (first - second))), 0, t + 1)
        value = none * _at_least(least, t)
        value += first * _at_least(least - 1, t - 1) + second * _at_least(least, t - 1)
        return np.maximum(value, 0).sum() + left_out

    return delta


def _at_least(least: np.ndarray, size: np.ndarray) -> np.ndarray:
    """P(a >= least) for a binomial number of fair coins."""
    inside = scipy.special.betainc(np.clip(least, 1, None), np.clip(size - least + 1, 1, None), 0.5)
    return np.where(least <= 0, 1.0, np.where(least > size, 0.0, inside))
