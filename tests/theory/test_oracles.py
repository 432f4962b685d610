"""Oracles whose errors no bound would show: too small they would prove nothing, and no test against them would fail."""

from math import exp

import numpy as np
import pytest
from oracles import checkin_gaussian, composition, krr, large, pairs


def test_binned_messages_increase_to_the_exact_value():
    data, neighbour, cs = [0.0, 0.3, 1.0], [0.0, 0.3, -1.0], [1.0, 1.5]
    exact = checkin_gaussian.mixture_hockey_stick(data, neighbour, 1.0, cs)
    (coarse, fine) = (
        checkin_gaussian.messages_hockey_stick(data, neighbour, 1, 1.0, cs, cells) for cells in (100, 800)
    )
    for low, high, value in zip(coarse, fine, exact):
        assert low <= value * (1 + 1e-13)
        assert value * (1 - 1e-4) <= high <= value * (1 + 1e-13)  # cells of 0.02 standard deviations


def test_permanents_agree_with_histograms():
    """With everybody in and three cells, the messages are a finite channel of `krr`."""
    records, others, cs = [1.0, -1.0], [0.2, -0.5], [1.0, 1.3]
    channel = checkin_gaussian.binned_channel([*records, *others], 1.0, np.linspace(-8, 8, 2)).tolist()
    laws = [krr.histogram_law((2, 3, x), channel, 1.0) for x in (0, 1)]
    direct = checkin_gaussian.messages_hockey_stick(
        [*others, records[0]], [*others, records[1]], 3, 1.0, cs, 3
    )
    assert direct == pytest.approx([krr.hockey_stick(*laws, c) for c in cs], rel=1e-12)


def test_quadrature_is_exact_for_polynomials():
    values, pmf = large.binomial_window(50, 0.3)
    points, weights = large.binomial_quadrature(50, 0.3, 6)
    for degree in range(12):
        assert weights @ points**degree == pytest.approx(pmf @ values.astype(float) ** degree, rel=1e-12)


def test_composition_on_a_grid_is_below_the_exact_one_and_near_it():
    law = composition.loss_law(pairs.enumerate_pair(pairs.t1_labels(exp(1.5), 0.4), 12))
    exact, found = composition.compose_exactly(law, 2), composition.compose_on_grid(law, 2, 1e-4)
    for epsilon in (0.0, 0.3, 0.9, 1.4):
        assert 0.998 * exact.delta(epsilon) <= found.delta(epsilon) <= exact.delta(epsilon) + 1e-14
