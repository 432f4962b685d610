"""Slots known to hold fair bits: the game, whole windows, and what is NOT a bound."""

import math

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.accounting.bounds.theorems import own_steps
from checkin_jax.accounting.bounds.windows.window_witnesses import CompetingBits
from checkin_jax.kernels import host
from checkin_jax.kernels.messages import weighted_clones
from checkin_jax.numerics import convex, staged_clones
from checkin_jax.numerics.counts import occupancy

pytestmark = pytest.mark.usefixtures("x64")


def kernel(p: float, fair: int, chosen: int, weight: float, cs: np.ndarray) -> np.ndarray:
    levels = np.full(10, 300.0), np.ones(10), np.full(10, float(fair)), np.full(10, float(chosen))
    one = weighted_clones.WeightedSteps(*map(host, (*levels, np.eye(10)[0], weight)))
    steps = own_steps(cj.L2Mechanism(epsilon0=math.log(p)))
    assert steps is not None
    found = staged_clones.weighted(one, steps, 31.0, True)
    assert found is not None
    return convex.chords(*found.profile(), np.log(cs))


def game(p: float, kinds: list, weight: float, c: float) -> float:
    """The same, the last kind first, on a fine grid: True for a fair bit, False for the laws X and Y."""
    rare, h = 1.0 / (p + 1.0), math.sqrt(len(kinds) / p) / 500.0
    at = -300.0 * (c - 1.0) / (p - 1.0) + h * np.arange(-4500, 4501)
    value = np.maximum(at, 0.0)

    def mean(step: float, mass: float, other: float) -> np.ndarray:
        # 0 on the left, the sum on the right: from below.
        after = [np.where(at + d > at[-1], at + d, np.interp(at + d, at, value, 0.0)) for d in (step, other)]
        return mass * after[0] + (1.0 - mass) * after[1]

    for fair in kinds:
        size = (c + 1.0) * rare if fair else weight
        one = mean(size, 0.5, -size) if fair else mean(size, rare, -size / p)
        value = one if fair else np.maximum(one, mean(-size * c, rare, size * c / p))
    return float(value[4500]) * (p - 1.0) / 300.0


@pytest.mark.parametrize("given", [(1.3, 0.4, 0.006), (2.0, 1.0, 0.05), (9.0, 0.5, 0.1), (30.0, 1.0, 0.3)])
def test_above_the_game_in_any_order(given, monkeypatch):
    (p, weight, far), made = given, weighted_clones._FairBits.of
    cs = np.array([1.0, 1.0 + far])
    bound, mixed = kernel(p, 120, 90, weight, cs), [True, False, True, False, True, True, False] * 30
    orders = sorted(mixed), sorted(mixed, reverse=True), mixed
    least = np.array([[game(p, kinds, weight, c) for c in cs] for kinds in orders])
    assert (least <= bound * (1.0 + ORACLE_ROUNDING)).all()
    assert bound[0] <= (1.1 if p < 20.0 else 1.3) * least[0, 0]
    # Slots taken for empty that are not, where records are told apart well; and fair bits of half the size.
    assert p < 20.0 or kernel(p, 170, 40, weight, cs)[0] < least[0, 0]
    monkeypatch.setattr(weighted_clones._FairBits, "of", lambda size, *rest: made(0.5 * size, *rest))
    assert p > 3.0 or kernel(p, 120, 90, weight, cs)[0] < 0.9 * least[0, 0]


def leakage(n: int, m: int, p: float, others: float, losses: np.ndarray, removed: bool) -> np.ndarray:
    """Exact divergences, a record replaced or a client removed; others' bits are + with this probability."""
    bits = [[binom.pmf(np.arange(k + 1), k, q) for k in range(m + 1)] for q in (others, 0.5)]
    laws = np.zeros((3, m + 1))
    for k, (mass, without) in enumerate(zip(occupancy.exact(n, m, 1.0), occupancy.exact(n - 1, m, 1.0))):
        among = np.convolve(bits[0][k], bits[1][m - k])
        laws[2] += without * among
        rest = np.convolve(bits[0][max(k - 1, 0)], bits[1][m - k]) * mass * k / n
        for law, q in zip(laws, (p / (p + 1.0), 1.0 / (p + 1.0))):
            law += np.convolve([1.0 - q, q], rest)[: m + 1] + mass * (1.0 - k / n) * among
    pairs = [(0, 2), (2, 0), (1, 2), (2, 1)] if removed else [(0, 1), (1, 0)]
    return np.array(
        [[np.maximum(laws[i] - c * laws[j], 0.0).sum() for i, j in pairs] for c in np.exp(losses)]
    )


@pytest.mark.parametrize(("n", "m", "p"), [(158, 277, 1.3), (50, 228, 2.7), (240, 90, 1.5), (120, 200, 20.0)])
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_whole_windows_are_below(n, m, p, relation):
    losses = np.linspace(0.0, 3.0 * (p - 1.0) / math.sqrt(p * max(m, n)), 8)
    window, bits = cj.FixedWindow(num_clients=n, num_slots=m), cj.L2Mechanism(epsilon0=math.log(p))
    bound = np.asarray(unit_bound(window, bits, "messages", 1, 1e-5, relation=relation).bound.upper(losses))
    truth = [leakage(n, m, p, q, losses, "add" in relation) for q in (p / (p + 1.0), 1.0 / (p + 1.0), 0.5)]
    assert (0.8 if p < 3.0 else 0.4) < (np.array(truth) / bound[None, :, None]).max() <= 1.0


@pytest.mark.parametrize(("window", "p"), [(150, 3.0), (400, 9.0), (500, 60.0)])
def test_fair_bits_in_sliding_windows_are_below(window, p):
    """Exact leakage of windows whose others oppose the target, in convex events of the number of +."""
    losses, epsilon0 = np.linspace(0.0, 1.5 * (p - 1.0) / math.sqrt(p * window), 6), math.log(p)
    run, bits = cj.SlidingWindow(num_clients=3 * window, window=window), cj.L2Mechanism(epsilon0=epsilon0)

    bound = np.asarray(unit_bound(run, bits, "messages", 1, 1e-6).bound.upper(losses))
    others = occupancy.SlidingThrows(window)
    pairs = CompetingBits(others, epsilon0, 25.0, True).lower(losses)
    least = np.max([apart - np.expm1(losses) * mass for apart, mass in pairs], axis=0)
    assert (least <= bound).all()
    assert least[0] >= 0.3 * bound[0]
