"""Slots, all others at the farthest record: the lower witnesses against few slots themselves; brackets."""

import collections
import functools
import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from checkin_jax.accounting.bounds.messages.equal_records import LabelsAtOneRecord, opposite_gaussians
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.profiles import LabelProfile
from checkin_jax.accounting.bounds.windows import window_witnesses
from checkin_jax.accounting.bounds.windows.one_of_slots import gaussian_in_slots
from checkin_jax.numerics.counts import occupancy
from checkin_jax.numerics.counts.occupancy import MOST_SLIDING, CommonThrows, SlidingThrows

pytestmark = pytest.mark.usefixtures("x64")
LOSSES = np.array([0.0, 0.05, 0.2, 0.5, 1.0])


def two_slots(n: int, prob: float, mu: float, replaced: bool) -> tuple[np.ndarray, np.ndarray]:
    """What two slots show, in cells: the client at mu/2 among n - 1 others at -mu/2; missing, or at -mu/2 itself."""
    mine, other, dummy = gaussians(mu)

    def world(own: np.ndarray | None) -> np.ndarray:
        total = np.zeros((mine.size, mine.size))
        for first in range(n):
            for second in range(n - first):
                chance = math.comb(n - 1, first) * math.comb(n - 1 - first, second)
                chance *= (0.5 * prob) ** (first + second) * (1.0 - prob) ** (n - 1 - first - second)
                if chance == 0.0:
                    continue
                left, right = (other if load else dummy for load in (first, second))
                total += chance * (1.0 if own is None else 1.0 - prob) * np.multiply.outer(left, right)
                if own is not None:
                    here = np.multiply.outer((own + first * left) / (first + 1), right)
                    there = np.multiply.outer(left, (own + second * right) / (second + 1))
                    total += 0.5 * prob * chance * (here + there)
        return total

    return world(mine), world(other if replaced else None)


def below(n: int, prob: float, mu: float, replaced: bool) -> list:
    pair = gaussian_in_slots(2, prob, mu, 31.0)
    found = window_witnesses.CompetingGaussian(pair, CommonThrows(n, 2, prob), mu, replaced).lower(LOSSES)
    return [apart - np.expm1(LOSSES) * mass for apart, mass in found]


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("n", "prob", "mu"), [(2, 1.0, 1.0), (3, 0.6, 2.0), (6, 1.0, 0.5), (9, 1.0, 3.0)])
def test_it_is_below_two_slots_themselves_and_near_them(n, prob, mu, replaced):
    p, q = two_slots(n, prob, mu, replaced)
    for found, (one, other) in zip(below(n, prob, mu, replaced), ((p, q), (q, p))):
        truth = np.array([np.maximum(one - math.exp(loss) * other, 0.0).sum() for loss in LOSSES])
        # Cells hide a little of the truth.
        assert (found <= truth * (1.0 + 2e-3) + 1e-12).all()
        assert found[0] >= 0.75 * truth[0]


def test_fewer_others_are_not_below_it():
    p, q = two_slots(9, 1.0, 2.0, False)
    truth = np.array([np.maximum(p - math.exp(loss) * q, 0.0).sum() for loss in LOSSES])
    assert (below(4, 1.0, 2.0, False)[0] > 1.1 * truth)[:3].all()


@pytest.mark.parametrize(("n", "m", "prob"), [(1, 3, 1.0), (4, 3, 0.5), (30, 10, 1.0)])
def test_the_law_of_occupied_slots(n, m, prob):
    law = occupancy.exact(n, m, prob)
    assert law.sum() == pytest.approx(1.0, abs=1e-13)
    assert law @ np.arange(m + 1.0) == pytest.approx(m * (1.0 - (1.0 - prob / m) ** n), rel=1e-12)
    assert law[1] == pytest.approx(
        sum(math.comb(n, k) * prob**k * (1.0 - prob) ** (n - k) * m**-k * m for k in range(1, n + 1))
    )


@functools.cache
def thrown(m: int) -> list[tuple[tuple[int, ...], float]]:
    """Loads of the slots of the target's sliding window without the target, by going through all throws."""
    throws = itertools.product(*(range(j, j + m) for j in range(1 - m, m) if j))
    found = collections.Counter(tuple(throw.count(slot) for slot in range(m)) for throw in throws)
    return [(loads, count / found.total()) for loads, count in found.items()]


def sliding(m: int, own: np.ndarray | None, other: np.ndarray, dummy: np.ndarray) -> np.ndarray:
    """What the m slots of the target's window show, [values of each slot]."""
    total = np.zeros((other.size,) * m)
    for loads, chance in thrown(m):
        shown = [other if load else dummy for load in loads]
        for slot, load in enumerate(loads):
            here = shown[slot] if own is None else (own + load * other) / (load + 1.0)
            total += (
                chance / m * functools.reduce(np.multiply.outer, [*shown[:slot], here, *shown[slot + 1 :]])
            )
    return total


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_the_laws_of_occupied_slots_of_a_sliding_window(m):
    without, present, used, dummy = np.zeros((4, m + 1))
    for loads, chance in thrown(m):
        for load in loads:
            number = sum(each > 0 for each in loads)
            without[number] += chance / m
            present[number + (load == 0)] += chance / m
            used[number + (load == 0)] += chance / m / (load + 1.0)
            dummy[number + (load == 0)] += chance / m * (load == 0)
    found = SlidingThrows(m).exact()
    for one, truth in zip(found, (used, dummy, present, without)):
        assert one == pytest.approx(truth, rel=1e-12, abs=1e-14)


def test_the_law_of_long_sliding_windows():
    m = MOST_SLIDING
    (used, dummy, present, without, rest), bounds = SlidingThrows(m).exact(), SlidingThrows(m).bounded(40.0)
    filled = np.arange(m + 1.0)
    # A slot has m - 1 others' windows, of which m - 1 - d reach the slot at distance d too.
    empty, d = (1.0 - 1.0 / m) ** (m - 1), np.arange(1.0, m)
    pairs = 2.0 * ((m - d) * (1.0 - 1.0 / m) ** (2.0 * d) * (1.0 - 2.0 / m) ** (m - 1 - d)).sum()
    assert without.sum() == pytest.approx(1.0, abs=1e-12)
    assert without @ filled == pytest.approx(m * (1.0 - empty), rel=1e-12)
    assert without @ ((m - filled) * (m - filled - 1.0)) == pytest.approx(pairs, rel=1e-11)
    assert used.sum() == pytest.approx(1.0 - (1.0 - 1.0 / m) ** m, rel=1e-12)
    assert dummy.sum() == pytest.approx(empty, rel=1e-12)
    assert present @ filled == pytest.approx(m * (1.0 - empty) + empty, rel=1e-12)
    assert (bounds.used < used + rest).all()
    assert (bounds.dummy > dummy).all()
    assert (bounds.without >= without).all()


def bits(epsilon0: float) -> list[np.ndarray]:
    """Laws of the target's bit, of another's opposite bit and of a dummy's fair bit."""
    often = 1.0 / (1.0 + math.exp(-epsilon0))
    return [np.array([1.0 - often, often]), np.array([often, 1.0 - often]), np.array([0.5, 0.5])]


def gaussians(mu: float) -> list[np.ndarray]:
    """Laws in cells of Gaussian messages of the target, of another client and of a dummy."""
    edges = np.linspace(-0.5 * mu - 7.0, 0.5 * mu + 7.0, 500)
    return [np.diff(ndtr(edges - mean), prepend=0.0, append=1.0) for mean in (0.5 * mu, -0.5 * mu, 0.0)]


def leaks_at_most(throws, m: int, replaced: bool, mu: float | None, epsilon0: float) -> list:
    """The witness of these throws, Gaussian or of bits, and the truth of m sliding slots, in both directions."""
    mine, other, dummy = bits(epsilon0) if mu is None else gaussians(mu)
    p, q = sliding(m, mine, other, dummy), sliding(m, other if replaced else None, other, dummy)
    if mu is None:
        witness = window_witnesses.CompetingBits(throws, epsilon0, 40.0, replaced)
    else:
        pair = gaussian_in_slots(m, 1.0, mu, 31.0)
        witness = window_witnesses.CompetingGaussian(pair, throws, mu, replaced)
    truths = [
        [np.maximum(one - math.exp(loss) * two, 0.0).sum() for loss in LOSSES]
        for one, two in ((p, q), (q, p))
    ]
    return [
        (apart - np.expm1(LOSSES) * mass, np.array(truth))
        for (apart, mass), truth in zip(witness.lower(LOSSES), truths)
    ]


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    ("m", "mu", "epsilon0"), [(2, 1.0, 0), (2, 3.0, 0), (2, None, 1.0), (3, None, 2.0), (4, None, 0.3)]
)
def test_it_is_below_the_slots_of_sliding_windows_and_near_them(m, mu, epsilon0, replaced):
    for found, truth in leaks_at_most(SlidingThrows(m), m, replaced, mu, epsilon0):
        # Cells hide a little of the truth.
        assert (found <= truth * (1.0 + (1e-12 if mu is None else 2e-3)) + 1e-12).all()
        assert found[0] >= 0.75 * truth[0]
    # One rival alone, who may be in any slot, is not below them.
    wrong = leaks_at_most(CommonThrows(2, m, 1.0), m, replaced, mu, epsilon0)
    assert any((found > truth * 1.01).any() for found, truth in wrong)


def test_clients_that_hardly_ever_send_have_no_lower_end_above_zero():
    witness = window_witnesses.CompetingBits(CommonThrows(3, 4, 1e-14), 1.0, 40.0, False)
    assert all((apart == 0.0).all() for apart, _ in witness.lower(LOSSES))


def opposite(used: float, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Two slots in cells: the client at mu/2, or at -mu/2, in one of them with probability `used`, zeros elsewhere."""
    mine, other, dummy = gaussians(mu)

    def world(own: np.ndarray) -> np.ndarray:
        both = np.multiply.outer(own, dummy) + np.multiply.outer(dummy, own)
        return 0.5 * used * both + (1.0 - used) * np.multiply.outer(dummy, dummy)

    return world(mine), world(other)


def by_sums(used: float, mu: float):
    return window_witnesses.OppositeGaussian(gaussian_in_slots(2, used, mu, 31.0), 2, used, mu).lower(LOSSES)


def by_contours(used: float, mu: float):
    law = opposite_gaussians(mu, 31.0)
    return LabelsAtOneRecord(HiddenSlots(2, used, LabelProfile(law), 31.0), law).lower(LOSSES)


@pytest.mark.parametrize(("witness", "least"), [(by_sums, 0.9), (by_contours, 0.85)])
@pytest.mark.parametrize(("used", "mu"), [(1.0, 1.0), (0.6, 2.0), (0.3, 0.3)])
def test_opposite_records_are_below_two_slots_themselves(used, mu, witness, least):
    p, q = opposite(used, mu)
    truth = np.array([np.maximum(p - math.exp(loss) * q, 0.0).sum() for loss in LOSSES])
    for apart, mass in witness(used, mu):
        found = apart - np.expm1(LOSSES) * mass
        assert (found <= truth * (1.0 + 2e-3) + 1e-12).all()
        assert found[0] >= least * truth[0]
    # A client that is used more often is not below it.
    more = min(1.5 * used, 1.0)
    if more > used:
        (apart, mass), _ = witness(more, mu)
        assert (apart - np.expm1(LOSSES) * mass > 1.1 * truth)[:2].all()
