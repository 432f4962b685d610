"""Sums of the messages in many slots, all others at the farthest record: the witness against drawn and exact throws."""

import functools
import math

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import summed_rivals
from checkin_jax.accounting.bounds.windows.summed_rivals import (
    CompetingSum,
    Rivals,
    SummedBits,
    SummedGaussians,
)
from checkin_jax.accounting.bounds.windows.window_witnesses import CompetingBits
from checkin_jax.numerics.counts.occupancy import CommonThrows, SlidingThrows

pytestmark = pytest.mark.usefixtures("x64")
DRAWS = 30_000


def sliding(window: int, observed: int, own: int) -> Rivals:
    others = window - 1
    return Rivals(observed, own, others, 1.0 / window, 1.0 - (own + 1.0) / (3.0 * others))


def bits(epsilon0: float) -> SummedBits:
    often = 1.0 / (1.0 + math.exp(-epsilon0))
    return SummedBits(often, 0.5, 1.0 - often)


@functools.cache
def thrown(window: int, observed: int, own: int) -> np.ndarray:
    """Loads without the target of the observed slots 0, 1, ...; [draws, observed]. The target may be in the first."""
    generator, loads = np.random.default_rng(7), np.zeros((DRAWS, observed), dtype=np.int64)
    rows = np.arange(DRAWS)
    for client in range(1 - window, observed):
        slot = client + generator.integers(window, size=DRAWS)
        here = (slot >= 0) & (slot < observed) & (client != 0)
        loads[rows[here], slot[here]] += 1
    return loads


def truth(summed, at: np.ndarray, loads: np.ndarray, prob: float, own: int, replaced: bool):
    """P(A) - Q(A) and Q(A) for the events that the sum is at least each threshold, averaged over the throws."""
    slots, occupied = loads.shape[1], (loads > 0).sum(axis=1)
    alone = (loads[:, :own] == 0).sum(axis=1) * prob
    shared = ((loads[:, :own] > 0) / (loads[:, :own] + 1.0)).sum(axis=1) * prob
    weights = [np.bincount(occupied, each, slots + 1) / DRAWS for each in (np.ones(DRAWS), alone, shared)]
    apart, mass = np.zeros(at.size), np.zeros(at.size)
    for k in np.flatnonzero(weights[0]):
        number, empty, full = (each[k] for each in weights)
        # The sum without the target, with one of its record in an empty slot, and in another's place.
        if isinstance(summed, SummedBits):
            law = functools.partial(bit_tail, summed, at, slots)
        else:
            law = functools.partial(gaussian_tail, summed.size, at, slots)
        without, another = law(k, None), law(k, "another")
        mine, instead = law(k, "mine"), law(k - 1, "mine") if k else 0.0
        seldom = mine - (another if replaced else without)
        apart += empty * seldom + full * (instead - without)
        mass += number * without + (empty * (another - without) if replaced else 0.0)
    return apart, mass


def bit_tail(summed: SummedBits, at: np.ndarray, slots: int, k: int, one: str | None) -> np.ndarray:
    number = slots - k - (one is not None)
    if number < 0:  # there is no empty slot
        return np.zeros(at.size)
    others, rest = (
        binom.pmf(np.arange(k + 1), k, summed.other),
        binom.pmf(np.arange(number + 1), number, summed.dummy),
    )
    law = np.convolve(others, rest)
    if one is not None:
        chance = summed.mine if one == "mine" else summed.other
        law = np.convolve(law, [1.0 - chance, chance])
    return np.cumsum(law[::-1])[::-1][at.astype(int)]


def gaussian_tail(size: float, at: np.ndarray, slots: int, k: int, one: str | None) -> np.ndarray:
    shift = {None: 0.0, "mine": size, "another": -size}[one]
    return ndtr((shift - size * k - at) / math.sqrt(slots))


def lines(summed, others: Rivals, replaced: bool):
    """Thresholds, and the witness's own P(A) - Q(A), Q(A) and 1 - P(A)."""
    slots = others.observed
    at = summed.thresholds(slots, others.occupied(replaced))
    (apart, above), (_, below) = CompetingSum(others, (summed,), math.inf, replaced)._lines
    return at, apart, above, below


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    ("summed", "near"),
    [
        (bits(0.5), 0.1),
        (bits(2.0), 0.3),
        (SummedBits(0.4, 0.1, 0.02), 0.15),
        (SummedGaussians(0.2), 0.1),
        (SummedGaussians(0.8), 0.2),
    ],
)
@pytest.mark.parametrize(("window", "observed", "own"), [(60, 60, 60), (30, 48, 30), (50, 20, 20)])
def test_it_is_below_drawn_throws_and_near_them(summed, near, replaced, window, observed, own):
    others = sliding(window, observed, own)
    at, apart, above, below = lines(summed, others, replaced)
    true_apart, true_mass = truth(summed, at, thrown(window, observed, own), others.prob, own, replaced)
    # Where draws tell them well.
    usual = (true_mass > 2e-3) & (true_mass < 1.0 - 2e-3)
    assert usual.sum() >= 5
    assert (apart[usual] <= 1.004 * true_apart[usual]).all()
    assert (above[usual] >= 0.99 * true_mass[usual]).all()
    assert (below[usual] >= 0.99 * (1.0 - true_mass - true_apart)[usual]).all()
    inside = (true_mass > 0.1) & (true_mass < 0.9)
    if window == 60:
        assert (apart[inside] >= (1.0 - 1.3 * near) * true_apart[inside]).all()
        assert (above[inside] <= (1.0 + near) * true_mass[inside]).all()


def below(witness, losses: np.ndarray) -> list[np.ndarray]:
    return [apart - np.expm1(losses) * mass for apart, mass in witness.lower(losses)]


LOSSES = np.array([0.0, 0.01, 0.03, 0.1, 0.3])


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("epsilon0", [0.3, 1.5])
@pytest.mark.parametrize(
    ("throws", "others"),
    [
        (SlidingThrows(3), sliding(3, 3, 3)),
        (SlidingThrows(40), sliding(40, 40, 40)),
        (SlidingThrows(256), sliding(256, 256, 256)),
        (CommonThrows(300, 200, 0.7), Rivals(200, 200, 299, 0.7 / 200, 1.0)),
        (CommonThrows(30, 200, 1.0), Rivals(200, 200, 29, 1.0 / 200, 1.0)),
        (CommonThrows(1200, 200, 1.0), Rivals(200, 200, 1199, 1.0 / 200, 1.0)),
        (CommonThrows(5000, 200, 0.8), Rivals(200, 200, 4999, 0.8 / 200, 1.0)),
    ],
)
def test_it_is_below_exact_laws(throws, others, epsilon0, replaced):
    exact = below(CompetingBits(throws, epsilon0, 40.0, replaced), LOSSES)
    found = below(CompetingSum(others, (bits(epsilon0),), epsilon0, replaced), LOSSES)
    # The exact laws leave out a mass of e^-40.
    assert all((one <= other * (1.0 + 1e-8) + 1e-17).all() for one, other in zip(found, exact))
    if others.own > 100:
        assert all(one[0] >= 0.85 * other[0] for one, other in zip(found, exact))
    # A target that is there more often, or in full slots beside half as many, is not below it.
    often = Rivals(others.observed, others.own, others.number, min(2.0 * others.prob, 0.49), others.shared)
    if others.number * others.prob > 4.0:
        often = Rivals(others.observed, others.own, others.number // 2, others.prob, others.shared)
    wrong = below(CompetingSum(often, (bits(epsilon0),), epsilon0, replaced), LOSSES)
    if others.own > 100:
        assert any((one > 1.02 * other).any() for one, other in zip(wrong, exact))


def test_long_windows_and_sums_have_it():
    run = cj.SlidingWindow(num_clients=10**6, window=3000, num_epochs=500)
    for randomizer in (cj.L2Mechanism(epsilon0=0.3), cj.Gaussian(noise_multiplier=6.0)):
        found = cj.account(run, randomizer, delta=1e-7, neighboring_relation="add-or-remove-one")
        assert found.lower >= 0.8 * found.epsilon
    run = cj.SlidingWindow(num_clients=10**6, window=3000, num_epochs=500, minibatch=7)
    found = cj.account(
        run,
        cj.Gaussian(noise_multiplier=6.0),
        delta=1e-7,
        neighboring_relation="add-or-remove-one",
        view="aggregate",
    )
    assert found.lower >= 0.7 * found.epsilon


def test_the_largest_number_of_slots_is_quick_and_no_nan():
    slots = summed_rivals.MOST_SLOTS
    witness = CompetingSum(sliding(slots, slots, slots), (bits(1.0),), 1.0, False)
    assert all(np.isfinite(each).all() for line in witness.lower(LOSSES) for each in line)
    assert witness.lower(np.zeros(1))[0][0][0] > 0.0


@pytest.mark.parametrize("randomizer", [cj.L2Mechanism(epsilon0=1.0), cj.Gaussian(noise_multiplier=4.0)])
def test_crowded_slots_are_left_out(randomizer):
    """Loads of millions are not followed, which no memory holds; loads of thousands are."""
    for clients, followed in ((10**12, False), (10**8, True)):
        run = cj.FixedWindow(num_clients=clients, num_slots=10**5)
        unit = Unit(run, randomizer, "messages", "replace-one", 40.0)
        others = summed_rivals.rivals(unit)
        assert (others is not None) == followed
        assert others is None or others.loads.size < 10**5
