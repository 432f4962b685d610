"""The figures of docs/theory_rates.md, and what they cost against the bracket of a common rate."""

import time

import jax
import numpy as np
import pytest

from checkin_jax.accounting.bounds.clones import ShuffledPureLDP
from checkin_jax.accounting.bounds.unequal.pooled import Others, UnequalPureLDP
from checkin_jax.accounting.composition import composer
from checkin_jax.numerics import pools

DELTA = 1e-6
LOW, HIGH, OTHERS = 0.02, 0.3, 60_000
FLEET = LOW * (HIGH / LOW) ** ((np.arange(OTHERS) + 0.5) / OTHERS)


def bracket(rates, counts, theta, rate, num_rounds, known=True, epsilon0=2.0):
    with jax.enable_x64(True):
        mass = composer.log_inverse_mass(num_rounds, DELTA)
        fleet = Others(np.asarray(rates), np.asarray(counts, float))
        if known:
            pool = pools.known(fleet.rates, fleet.counts, theta, mass)
        else:
            pool = pools.limited(float(fleet.rates @ fleet.counts) / theta, mass)
        one = UnequalPureLDP(rate, theta, pool, epsilon0, mass, fleet if known else None)
        return composer.bracket([(one, num_rounds)], DELTA)


@pytest.mark.parametrize(
    ("rate", "upper", "lower"), [(0.3, 4.80, 4.45), (0.10339, 1.475, 1.37), (0.02, 0.2535, 0.235)]
)
def test_a_realistic_fleet(rate, upper, lower):
    known = bracket(FLEET, np.ones(OTHERS), HIGH, rate, 6800)
    assert lower <= known.lower <= known.upper <= upper
    limited = bracket(FLEET, np.ones(OTHERS), HIGH, rate, 6800, known=False)
    assert known.upper <= limited.upper <= known.upper * 1.003


@pytest.mark.parametrize(("rate", "printed"), [(0.05, 0.0789), (0.95, 1.859)])
def test_half_rarely_half_nearly_always(rate, printed):
    found = bracket([0.05, 0.95], [10_000, 10_000], 0.95, rate, 200)
    assert found.upper == pytest.approx(printed, rel=2e-3)
    assert found.lower > 0.93 * found.upper


def test_a_million_rates_cost_about_a_common_rate():
    rates = LOW * (HIGH / LOW) ** np.random.default_rng(0).random(10**6)

    def unequal():
        bracket(rates, np.ones_like(rates), HIGH, 0.1, 6800)

    def common():
        with jax.enable_x64(True):
            mass = composer.log_inverse_mass(6800, DELTA)
            composer.bracket([(ShuffledPureLDP(10**6, 0.1, 2.0, mass), 6800)], DELTA)

    def seconds(run):
        run()
        times = []
        for _ in range(3):
            start = time.process_time()
            run()
            times.append(time.process_time() - start)
        return min(times)

    # Binning a million numbers takes about 0.2 s of it.
    assert seconds(unequal) < 1.0 + 5.0 * seconds(common)
