"""The Gaussian mechanism's exact profile in mpmath, its inverse, and the bound G1 term by term.

Clients send clip_C(g) + N(0, z^2 C^2): replacement sensitivity 2C, so mu = 2/z for one message.
"""

from typing import Literal

import mpmath as mp

from .binomial import pmf

DIGITS = 50
View = Literal["messages", "aggregate"]
Real = float | mp.mpf


def delta_g(mu: Real, epsilon: Real) -> mp.mpf:
    """Hockey-stick divergence of N(mu, 1) against N(0, 1) at e^epsilon, any real epsilon, 50 digits."""
    mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
    if mu == 0:
        return mp.mpf(max(0, -mp.expm1(epsilon)))
    # the two terms agree up to a factor of about mu^2 / (1 + epsilon)
    lost = 2 * max(0, -mp.log10(mu)) + mp.log10(1 + abs(epsilon))
    with mp.workdps(2 * DIGITS + int(lost)):
        return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def mu_for(epsilon: Real, delta: Real) -> mp.mpf:
    """The mu at which delta_g(mu, epsilon) = delta, for epsilon >= 0 and 0 < delta < 1 (1e-300 included)."""
    with mp.workdps(DIGITS):
        target = mp.log(mp.mpf(delta))
        low = high = mp.mpf(1)
        while delta_g(low, epsilon) > delta:
            low /= 2
        while delta_g(high, epsilon) < delta:
            high *= 2
        for _ in range(4 * DIGITS):
            middle = mp.sqrt(low * high)
            below = mp.log(delta_g(middle, epsilon)) < target
            low, high = (middle, high) if below else (low, middle)
        return low


def _counts(num_clients: int, check_in_prob: float) -> range:
    """Check-in counts to sum over: all for n <= 2000, else 25 standard deviations plus 60."""
    if num_clients <= 2000:
        return range(1, num_clients + 1)
    mean = num_clients * check_in_prob
    width = 25 * float(mp.sqrt(mean * (1 - check_in_prob))) + 60
    return range(max(1, int(mean - width)), min(num_clients, int(mean + width)) + 1)


def _mu_of(mu: Real, k: int, view: View) -> mp.mpf:
    return mp.mpf(mu) / mp.sqrt(k) if view == "aggregate" else mp.mpf(mu)


def g1_profile(num_clients: int, check_in_prob: float, mu: Real, c: Real, view: View) -> mp.mpf:
    """G1: sum_k P[K=k] (k/n) delta_g(mu_k, log(1 + (c - 1) n/k)) for c = e^epsilon >= 1, 40 digits.

    c < 1 is the mirror image: H(c) = 1 - c + c H(1/c).
    """
    with mp.workdps(DIGITS):
        c = mp.mpf(c)
        if c < 1:
            return 1 - c + c * g1_profile(num_clients, check_in_prob, mu, 1 / c, view)
        total = mp.mpf(0)
        for k in _counts(num_clients, check_in_prob):
            share = mp.mpf(k) / num_clients
            inner = delta_g(_mu_of(mu, k, view), mp.log1p((c - 1) / share))
            total += pmf(num_clients, k, check_in_prob) * share * inner
        return total
