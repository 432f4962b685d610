"""Sums of scores: their laws far out, and their events, beside sums over all outcomes in exact arithmetic."""

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from checkin_jax.accounting.bounds import label_pairs
from checkin_jax.accounting.bounds.interface import LocalLabels, LocalPureLDP
from checkin_jax.accounting.bounds.label_pairs import LabelSum, _power, label_sum
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.randomizers import LabelLaws

# Masses by score, and the number of scores.
SUMS = {
    "coins": ([0.5, 0.5], 60),
    "rare jumps": ([0.25, 0.734375, 0.0, 0.0, 0.0, 0.015625], 40),
    "mostly absent": ([0.0009765625, 0.998046875, 0.0009765625], 200),
    "gaps": ([0.25, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.25], 30),
    "hardly any mass far away": ([2.0**-460, *[0.0] * 98, 0.25, 0.25, 0.5], 5),
}


def exact_power(law, count):
    found = [Fraction(1)]
    for _ in range(count):
        wide = [Fraction(0)] * (len(found) + len(law) - 1)
        for i, one in enumerate(found):
            for j, other in enumerate(law):
                wide[i + j] += one * other
        found = wide
    return found


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("neg_log_tail", [5.0, 60.0])
def test_the_law_of_a_sum_is_right_up_to_its_rounding_far_out(name, neg_log_tail):
    law, count = SUMS[name]
    masses, noise, beyond = _power(np.array(law), count, neg_log_tail)
    exact = exact_power([Fraction(each) for each in law], count)
    peak = max(range(len(exact)), key=exact.__getitem__)
    # Where the window begins is not told: equal laws at other places are equal pairs.
    starts = {peak - i for i in np.flatnonzero(masses == masses.max())}
    assert any(_agrees(start, masses, noise, beyond, exact) for start in starts)
    least = math.exp(-neg_log_tail)
    assert sum(mass > 0.0 for mass in masses) >= sum(least < mass for mass in exact)


@pytest.mark.parametrize(("count", "prob"), [(10**8, 2.0**-17), (10**7, 2.0**-10)])
def test_draws_that_hardly_ever_move_keep_their_digits(monkeypatch, count, prob):
    """The wrong neighbour: NumPy's log1p of complex numbers is accurate relative to one only."""

    def excess():
        masses, noise, _ = _power(np.array([1.0 - prob, prob]), count, 40.0)
        start = math.floor((count + 1) * prob) - int(masses.argmax())
        places = np.flatnonzero(masses > 0.0)[::37]
        with mp.workdps(30):
            exact = [float(mp.binomial(count, start + int(i)) * mp.mpf(prob) ** (start + int(i))
                           * mp.mpf(1.0 - prob) ** (count - start - int(i))) for i in places]  # fmt: skip
        return float(np.max(np.abs(masses[places] - exact) / noise[places]))

    assert excess() < 0.1
    monkeypatch.setattr(label_pairs, "_power_of", lambda step, count: np.exp(count * np.log1p(step)))
    assert excess() > 1.0


def _agrees(start, masses, noise, beyond, exact):
    inside = range(max(start, 0), min(start + len(masses), len(exact)))
    near = all(abs(float(exact[i]) - masses[i - start]) <= noise[i - start] * (1 + 1e-9) for i in inside)
    outside = sum(float(mass) for i, mass in enumerate(exact) if i not in inside)
    return near and outside <= beyond


LAWS = {
    "at one of the two records": LabelLaws(np.array([0.75, 0.25]), np.array([0.25, 0.75]), "a", None, None),
    "at a third record": LabelLaws(
        np.array([0.625, 0.125, 0.25]), np.array([0.125, 0.625, 0.25]), "b", np.array([0.25, 0.25, 0.5]), None
    ),
    "a rare label": LabelLaws(
        np.array([0.5, 0.46875, 0.03125]), np.array([0.5, 0.4990234375, 0.0009765625]), "c", None, None
    ),
}


def divergence(draws, rate, used, laws, c):
    """H_c(P||Q) of all labels in order, which the sum of scores cannot exceed."""
    target, other = (np.append(rate * np.asarray(part), 1.0 - rate) for part in laws[:2])
    others = target * 0.0 + np.append(
        rate * np.asarray(laws.others if laws.others is not None else laws.other), 1.0 - rate
    )
    total = 0.0
    for outcome in itertools.product(range(len(target)), repeat=draws):
        both = []
        for mine in (target, other):
            chance = (1.0 - used) * math.prod(others[label] for label in outcome)
            for place in range(draws):
                rest = math.prod(others[label] for i, label in enumerate(outcome) if i != place)
                chance += used / draws * mine[outcome[place]] * rest
            both.append(chance)
        total += max(both[0] - c * both[1], 0.0)
    return total


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("draws", "rate", "used"), [(1, 1.0, 1.0), (4, 0.5, 1.0), (5, 1.0, 0.75)])
def test_events_of_a_sum_are_below_the_pair_and_near_it(name, draws, rate, used):
    with float64():
        one = LabelSum(name, draws, rate, used, LAWS[name], 40.0)
        losses = np.array([0.0, 0.01, 0.1, 0.3])
        found = one.lower(losses)
    for reverse, (apart, mass) in enumerate(found):
        laws = LAWS[name]
        if reverse:
            laws = laws._replace(
                target=laws.other,
                other=laws.target,
                others=laws.other if laws.others is None else laws.others,
            )
        for loss, above, far in zip(losses, apart, mass):
            exact = divergence(draws, rate, used, laws, math.exp(loss))
            value = above - math.expm1(loss) * far
            assert value <= exact * (1 + 1e-12) + 1e-15
            assert value >= exact * (1 - 1e-9) - 1e-12


@pytest.mark.filterwarnings("error")
def test_a_transform_near_zero_keeps_its_digits():
    step = np.array([-1.0, -1.0 + 1e-9j, -1.0 + 3e-12, -0.6 + 0.7j, 1e-17 + 1e-12j, 0.3])
    for count in (1, 2, 7):
        truth = [complex(mp.power(1 + mp.mpc(each), count)) for each in step.tolist()]
        np.testing.assert_allclose(label_pairs._power_of(step, count), truth, rtol=1e-4, atol=1e-15)


def test_a_law_whose_mass_is_missing_is_no_sum():
    """It would be made a law of larger masses."""
    laws = LAWS["at one of the two records"]
    less = laws._replace(target=0.5 * laws.target, other=0.5 * laws.other)
    bound = LocalPureLDP(0.5, 2.0)
    assert label_sum(LocalLabels(bound, 0.5, laws), 40.0) is not None
    assert label_sum(LocalLabels(bound, 0.5, less), 40.0) is None
