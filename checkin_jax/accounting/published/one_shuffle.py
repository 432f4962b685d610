"""One shuffle as published: clones [FMT21, FMT23], the privacy blanket [BBGN19], variation ratio [WPL24].

View "messages", replace-one, one shuffle in which all n clients send; epsilon in nats at `delta`, rounded up, at most
epsilon0. Arguments broadcast; values have the broadcast shape.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import ArrayLike

from checkin_jax import _validate
from checkin_jax.accounting.published import formula
from checkin_jax.accounting.published.formula import PublishedBound

_QUANTITY = "epsilon of a shuffle, nats"
_UP = 1 + 1e-12
# Halvings of the interval [0, epsilon0] in which epsilon is searched: beyond float64's digits.
_HALVINGS = 60
# Mass of the law of the number of clones that is counted as delta, over delta.
_LEFT_OUT = 1e-6
# Clients of a numerical bound at most: it sums over some ten standard deviations of the number of clones.
_MOST_COUNTED = 10**8


def _bound(epsilon: np.ndarray, epsilon0: np.ndarray, label: str, source: str) -> PublishedBound:
    return PublishedBound(
        value=np.minimum(epsilon * _UP, epsilon0), label=label, source=source, quantity=_QUANTITY
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
    return _bound(value, e0, "Feldman et al. 2021, closed form of their code", formula.FMT)


def clones_2023(num_clients: ArrayLike, epsilon0: ArrayLike, delta: ArrayLike) -> PublishedBound:
    """[FMT23] Theorem 3.2, in closed form.

    log(1 + (E-1) (4 sqrt(2 log(4/delta) / ((E+1) n)) + 4 / n)) with E = e^epsilon0, where
    epsilon0 <= log(n / (8 log(2/delta)) - 1); epsilon0 elsewhere. Arguments and errors as `clones_2021`.
    """
    n, e0, d = formula.arguments(num_clients=num_clients, epsilon0=epsilon0, delta=delta)
    big = np.exp(e0)
    spread = 4 * np.sqrt(2 * np.log(4 / d) / ((big + 1) * n)) + 4 / n
    value = np.where(n >= 8 * (big + 1) * np.log(2 / d), np.log1p(np.expm1(e0) * spread), e0)
    return _bound(value, e0, "Feldman et al. 2023, Theorem 3.2", formula.FMT23)


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
    return _bound(value, e0, f"Balle et al. 2019, privacy blanket, {inequality}", formula.BBGN)


def _least(delta_at: Callable[[np.ndarray], np.ndarray], high: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Least epsilon of [0, high] with delta_at(epsilon) <= delta, rounded up; `high` if there is none below."""
    low, high = np.zeros_like(high), high.copy()
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        enough = delta_at(middle) <= delta
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


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
    return _bound(value, np.asarray(e0), "Wang et al. 2024, variation ratio", formula.WPL)


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
