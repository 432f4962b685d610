"""Binomial log-probabilities in mpmath; a float probability is taken at its exact binary value."""

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
