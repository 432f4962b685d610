"""Binomial log-probabilities and tails in mpmath; a float probability is taken at its exact binary value."""

from functools import lru_cache

import mpmath as mp

DIGITS = 60


@lru_cache(maxsize=4096)
def log_pmf(num_trials: int, successes: int, prob: float) -> mp.mpf:
    """log Pr[Bin(n, prob) = k], about 40 correct digits for n up to 1e12; -inf where impossible."""
    with mp.workdps(DIGITS):
        q = mp.mpf(prob)
        if not 0 <= successes <= num_trials:
            return mp.ninf
        if q in (0, 1):
            return mp.mpf(0) if successes == num_trials * int(q) else mp.ninf
        k, rest = mp.mpf(successes), mp.mpf(num_trials - successes)
        choose = mp.loggamma(k + rest + 1) - mp.loggamma(k + 1) - mp.loggamma(rest + 1)
        return choose + k * mp.log(q) + rest * mp.log1p(-q)


def pmf(num_trials: int, successes: int, prob: float) -> mp.mpf:
    """Pr[Bin(n, prob) = k]."""
    with mp.workdps(DIGITS):
        return mp.mpf(mp.exp(log_pmf(num_trials, successes, prob)))


def upper_tail(num_trials: int, least: int, prob: float) -> mp.mpf:
    """Pr[Bin(n, prob) >= least], summed from the side that does not hold the mean; about 40 digits.

    The number of terms is about 20 standard deviations, so n up to 1e8 is practical.
    """
    with mp.workdps(DIGITS):
        if least <= 0:
            return mp.mpf(1)
        if least <= num_trials * mp.mpf(prob):
            return 1 - _one_sided(num_trials, least - 1, prob, -1)
        return _one_sided(num_trials, least, prob, 1)


def lower_tail(num_trials: int, most: int, prob: float) -> mp.mpf:
    """Pr[Bin(n, prob) <= most]."""
    with mp.workdps(DIGITS):
        if most < 0:
            return mp.mpf(0)
        if most >= num_trials * mp.mpf(prob):
            return 1 - upper_tail(num_trials, most + 1, prob)
        return _one_sided(num_trials, most, prob, -1)


def _one_sided(num_trials: int, start: int, prob: float, step: int) -> mp.mpf:
    """Sum of the pmf from `start` outwards, until terms no longer count."""
    if not 0 <= start <= num_trials:
        return mp.mpf(0)
    q = mp.mpf(prob)
    if q in (0, 1):
        return mp.mpf(1 if (num_trials * int(q) - start) * step >= 0 else 0)
    term = total = pmf(num_trials, start, prob)
    odds, k = q / (1 - q), start
    while term > total * mp.mpf(10) ** -DIGITS:
        term *= odds * (num_trials - k) / (k + 1) if step > 0 else k / (odds * (num_trials - k + 1))
        total += term
        k += step
    return total


def upper_tail_betainc(num_trials: int, least: int, prob: float) -> mp.mpf:
    """Pr[Bin(n, prob) >= least] through the regularised incomplete beta function; moderate n only."""
    with mp.workdps(DIGITS):
        if least <= 0:
            return mp.mpf(1)
        return mp.betainc(least, num_trials - least + 1, 0, mp.mpf(prob), regularized=True)
