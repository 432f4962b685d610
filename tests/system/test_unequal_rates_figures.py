"""Fleets of unequal rates (docs/theory_rates.md): what `account` says, and what they cost against a common rate."""

import runpy
import time
from pathlib import Path

import numpy as np
import pytest

import checkin_jax as cj
from tests import rows

# What `benchmarks/fleets.py` prints.
PRINTED = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "fleets.py"))
DELTA, MESSAGES, FLEET, LOW, HIGH, OTHERS = (
    PRINTED[name] for name in ("DELTA", "MESSAGES", "FLEET", "LOW", "HIGH", "OTHERS")
)
fleet = PRINTED["beside"]


@pytest.mark.parametrize("figure", list(PRINTED["figures"]()), ids=lambda figure: figure.what)
def test_every_figure_that_is_wanted_is_met(figure):
    assert figure.met(figure.found())


@pytest.mark.parametrize(
    ("rate", "upper", "lower"), [(0.3, 4.80, 4.45), (0.10339, 1.475, 1.37), (0.02, 0.2535, 0.235)]
)
def test_a_realistic_fleet(rate, upper, lower):
    known = cj.account(fleet(rate, FLEET), MESSAGES, delta=DELTA, client_rate=rate)
    assert lower <= known.lower <= known.epsilon <= upper
    # T1h+ is within one percent of 3-ary randomized response.
    assert known.epsilon <= known.lower * 1.01
    assert "hexagon" in known.method
    limits = cj.RateLimits(largest=HIGH, expected_check_ins=float(FLEET.sum()))
    run = cj.ShuffledCheckIn(num_clients=OTHERS + 1, check_in_prob=limits, num_rounds=6800)
    limited = cj.account(run, MESSAGES, delta=DELTA, client_rate=rate)
    assert known.epsilon <= limited.epsilon <= known.epsilon * 1.003


@pytest.mark.parametrize(("rate", "printed"), [(0.05, 0.0789), (0.95, 1.859)])
def test_half_rarely_half_nearly_always(rate, printed):
    run = fleet(rate, [0.05, 0.95], [10_000, 10_000], 200)
    found = cj.account(run, MESSAGES, delta=DELTA, client_rate=rate)
    assert found.lower > 0.985 * found.epsilon
    alone = rows.account("T1", run, MESSAGES, delta=DELTA, client_rate=rate)
    assert found.epsilon < alone.epsilon == pytest.approx(printed, rel=2e-3)


def test_clients_that_always_come_are_cover_too():
    """T1m where half always come; a coin capped at .99 does as well, and the statement says so."""
    run = fleet(0.1, [0.1, 1.0], [10_000, 10_000], 200)
    found = cj.account(run, MESSAGES, delta=DELTA, client_rate=0.1)
    assert 0.147 < found.lower < found.epsilon < 0.1585
    assert "clones" in found.method
    assert "cap rates at 0.99" in found.warnings[0]
    assert any("no client's message depends on another" in text for text in found.assumptions)
    alone = rows.account("T1", run, MESSAGES, delta=DELTA, client_rate=0.1)
    assert alone.epsilon == pytest.approx(0.567, rel=2e-3)
    capped = fleet(0.1, [0.1, 0.99], [10_000, 10_000], 200)
    assert cj.account(capped, MESSAGES, delta=DELTA, client_rate=0.1).epsilon < 0.160


def test_a_million_rates_cost_about_a_common_rate():
    """Warm: below a second, and at most five times the bracket of a common rate by the same kind of theorem."""
    rates = LOW * (HIGH / LOW) ** np.random.default_rng(0).random(10**6)
    unequal = cj.ShuffledCheckIn(num_clients=10**6, check_in_prob=cj.Rates(rates), num_rounds=6800)
    common = cj.ShuffledCheckIn(num_clients=10**6, check_in_prob=0.1, num_rounds=6800)

    def seconds(run, **options):
        cj.account(run, MESSAGES, delta=DELTA, **options)
        times = []
        for _ in range(3):
            start = time.process_time()
            cj.account(run, MESSAGES, delta=DELTA, **options)
            times.append(time.process_time() - start)
        return min(times)

    cost = seconds(unequal, client_rate=0.1, bounds="clones")
    # Binning a million numbers takes about 0.2 s of it.
    assert cost < 0.7 + 5.0 * seconds(common, bounds="clones")
