"""G7: empty and occupied slots in one sum; quadrature, the algorithm in cells, and what is NOT a bound."""

import dataclasses

import numpy as np
import pytest
from oracles import gaussian_slots
from oracles import random_check_ins as brute
from scipy.special import ndtr

from checkin_jax.accounting.bounds.windows.common_slots import CommonWindow, competing
from checkin_jax.accounting.bounds.windows.mixtures import PublicMixture, TwoSteps
from checkin_jax.accounting.bounds.windows.one_of_slots import UnequalSlots
from checkin_jax.numerics import allocation_losses
from checkin_jax.numerics.step_ratios import Lognormal

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0
LOSSES = np.concatenate([[0.0], np.geomspace(0.01, 2.0, 11)])


def quadrature(kinds, x, reverse):
    """E(S - x)_+ or E(-S - x)_+ of one term of either kind."""
    w = np.linspace(-9.0, 9.0, 1801)
    mass = np.exp(-0.5 * w * w)
    mass /= mass.sum()
    one, two = (k.weight * np.expm1(k.mu * w - 0.5 * k.mu**2) for k in kinds)
    total = one[:, None] + two[None, :]
    return mass @ np.maximum((-total if reverse else total) - x, 0.0) @ mass


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("mu", "weight"), [(0.4, 0.418), (1.1, 0.29), (0.8, 1.0)])
def test_sums_of_two_terms_against_quadrature(mu, weight, reverse):
    kinds = allocation_losses.EqualTerms(1, 0.5 * mu, 1.0), allocation_losses.EqualTerms(1, mu, weight)
    found = allocation_losses.Excess(kinds, MASS, reverse)
    x = np.array([0.0, 0.1, 0.3, 0.6] if reverse else [0.0, 0.1, 0.4, 1.0, 3.0])
    truth = np.array([quadrature(kinds, each, reverse) for each in x])
    assert (found.at(x) >= truth * (1.0 - 1e-5) - 1e-12).all()
    assert (found.at(x) <= truth * 1.08 + 1e-4).all()


def in_closed_form(kinds, x):
    """E(S - x)_+ of two terms of the first kind and one of the second, which is integrated in closed form."""
    w = np.linspace(-11.0, 14.0, 901)
    mass = np.exp(-0.5 * w * w) * (w[1] - w[0]) / np.sqrt(2.0 * np.pi)
    mu, weight = kinds[1].mu, kinds[1].weight
    one = kinds[0].weight * np.expm1(kinds[0].mu * w - 0.5 * kinds[0].mu ** 2)
    lack = (x - one[:, None] - one[None, :]) / weight + 1.0
    far = np.log(np.maximum(lack, 1e-300)) / mu
    value = np.where(lack > 0.0, ndtr(0.5 * mu - far) - lack * ndtr(-0.5 * mu - far), 1.0 - lack)
    return weight * float(mass @ value @ mass)


@pytest.mark.parametrize(("mu", "weight"), [(0.4, 0.2), (1.1, 0.29)])
def test_sums_far_out_on_the_ladder_against_quadrature(mu, weight):
    """Every scale, not the first alone; three terms as they are, without a term's lattice in the truth."""
    kinds = allocation_losses.EqualTerms(2, 0.5 * mu, 1.0), allocation_losses.EqualTerms(1, mu, weight)
    found = allocation_losses.Excess(kinds, MASS, False)
    x = np.geomspace(0.05, 40.0, 14)
    truth = np.array([in_closed_form(kinds, each) for each in x])
    matters = truth > 1e-12
    assert matters.sum() > 5
    value = found.at(x)
    assert (value >= truth * (1.0 - 1e-9) - 1e-15).all()
    assert (value <= truth * 1.1 + 1e-12)[matters].all()


@pytest.mark.parametrize("reverse", [False, True])
def test_what_has_been_asked_before_changes_no_value(reverse):
    kinds = allocation_losses.EqualTerms(30, 0.4, 1.0), allocation_losses.EqualTerms(70, 0.8, 0.37)
    x = np.append(0.0, np.geomspace(0.5, 40.0 if reverse else 2000.0, 24))
    at_once = allocation_losses.Excess(kinds, MASS, reverse).at(x)
    one_by_one, asked = np.empty_like(x), allocation_losses.Excess(kinds, MASS, reverse)
    for index in np.random.default_rng(5).permutation(x.size):
        one_by_one[index] = asked.at(x[index : index + 1])[0]
    assert np.array_equal(one_by_one, at_once)
    assert np.array_equal(asked.at(x), at_once)


def test_one_kind_is_the_allocation_of_one_message():
    """Twice the same terms, half of them each, as `numerics.allocation_losses` has them."""
    kinds = (allocation_losses.EqualTerms(300, 0.7, 1.0), allocation_losses.EqualTerms(200, 0.7, 1.0))
    losses = np.array([0.02, 0.1, 0.2, 0.4])
    for reverse in (False, True):
        one = allocation_losses.profile(Lognormal(0.7), 500, MASS, reverse, True)
        known = allocation_losses.profile_upper(one, Lognormal(0.7), 1.0, losses)
        x = 500.0 * (-np.expm1(-losses) if reverse else np.expm1(losses))
        scale = np.exp(losses) / 500.0 if reverse else 1.0 / 500.0
        found = scale * allocation_losses.Excess(kinds, MASS, reverse).at(x)
        assert found == pytest.approx(known, rel=0.03)


def test_weights_are_rounded_up_to_one_lattice():
    for weights in ((1.0, 0.4181), (1.0, 0.3), (0.5, 1.0), (1.0,)):
        spacing, units = allocation_losses._units(0.03, weights)
        for weight, count in zip(weights, units):
            assert weight * (1.0 - 1e-9) <= count * spacing <= weight * 1.03
        assert spacing <= 0.03 * (1.0 + 1e-9)


def compared(common: CommonWindow, bound: PublicMixture, seed: int) -> np.ndarray:
    """Truth over bound, added, removed and replaced, wherever the bound is above 1e-9."""
    m, mu, number = common.slots, common.mu, {1: 60, 2: 20, 3: 8}[common.slots]
    tree = gaussian_slots.random_tree(np.random.default_rng(seed), mu, m, number)
    trees = [brute.constant_tree(gaussian_slots.cells((-1.0, 1.0, 0.5), mu, number), m), tree]
    values = (*bound.upper_sides(LOSSES), TwoSteps(bound).upper(LOSSES))
    return gaussian_slots.ratios((common.num_clients, m, common.prob), trees, LOSSES, values)


@pytest.mark.parametrize(
    ("n", "m", "prob"), [(2, 1, 1.0), (2, 2, 1.0), (3, 2, 1.0), (4, 2, 0.5), (3, 3, 1.0)]
)
def test_the_algorithm_is_below_and_sometimes_near(n, m, prob):
    windows = [CommonWindow(n, m, prob, mu, MASS) for mu in (0.3, 1.7)]
    ratios = np.concatenate([compared(common, competing(common), n * m) for common in windows])
    assert ratios.size > 500
    assert ratios.max() <= 1.0 + 1e-9
    assert ratios.max() > 0.5


def with_others(common: CommonWindow, **changed: float) -> PublicMixture:
    """G7 with other facts about occupied slots, the last kind."""
    bound = competing(common)
    parts = []
    for weight, part in bound.parts:
        assert isinstance(part, UnequalSlots)
        kinds = (*part.kinds[:-1], part.kinds[-1]._replace(**changed))
        parts.append((weight, dataclasses.replace(part, kinds=kinds)))
    return PublicMixture(tuple(parts), bound.rest)


def test_a_displaced_client_is_no_dummy():
    common = CommonWindow(3, 1, 1.0, 1.2, MASS)
    assert compared(common, with_others(common, mu=0.6), 0).max() > 1.05


def test_the_mean_load_is_no_bound():
    """Four others in two slots, both occupied, say: 1/(C + 1) is more on average than at the mean load of two."""
    common = CommonWindow(4, 1, 1.0, 1.0, MASS)
    assert compared(common, with_others(common, weight=0.25), 0).max() <= 1.0 + 1e-9
    weights = brute.occupancy(5, 2, 1), brute.occupancy(4, 2, 1)
    exact = (float(weights[0][2]) * 2 / 5 - float(weights[1][1]) / 2) / float(weights[1][2])
    assert exact > 1.0 / 3.0 * (1.0 + 1e-3)
    _, both = competing(CommonWindow(5, 2, 1.0, 1.0, MASS)).parts[-1]
    assert isinstance(both, UnequalSlots)
    assert both.kinds[-1].weight >= exact
