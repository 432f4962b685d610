"""Bounds of one shuffle as published: their authors' numbers, and never below what concrete messages leak."""

import math

import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.accounting import compare as comparison
from checkin_jax.accounting import published
from checkin_jax.accounting.compare import tables
from tests.oracles import exact_rounds, krr

CLOSED = (published.clones_2021, published.clones_2023, published.privacy_blanket)


def rows(table):
    for row in tables()[table]["rows"]:
        kind, arguments = row["randomizer"]
        yield row["bound"], kind, row["protocol"][1]["num_clients"], arguments, row["delta"], row["published"]


def test_closed_form_of_clones_is_that_of_its_authors():
    found = {bound: value for bound, *_, value in rows("clones-2021")}
    value = published.clones_2021(100_000, 4.0, 1e-6).value
    assert value == pytest.approx(found["clones 2021, closed form"], rel=1e-11)


@pytest.mark.parametrize("inequality", ["Hoeffding", "Bennett"])
def test_privacy_blanket_is_that_of_its_authors(inequality):
    compared = 0
    for bound, kind, n, arguments, delta, value in rows("privacy-blanket"):
        if kind == "PureLDP" and bound.endswith(inequality):
            ours = published.privacy_blanket(n, arguments["epsilon0"], delta, inequality=inequality).value
            assert ours == pytest.approx(value, rel=1e-9)
            compared += 1
    assert compared >= 4


def variation(kind, epsilon0):
    """Total variation of two records' messages."""
    big, root = math.exp(epsilon0), math.exp(epsilon0 / 2)
    return {
        "PureLDP": None,
        "KaryResponse": (big - 1) / (big + 15),
        "Rappor": (root - 1) / (root + 1),
        "Laplace": 1 - 1 / root,
    }[kind]


@pytest.mark.parametrize("kind", ["PureLDP", "KaryResponse", "Rappor", "Laplace"])
def test_variation_ratio_is_that_of_its_authors(kind):
    """Their search stops within 5e-4 of epsilon above it."""
    compared = 0
    for _, other, n, arguments, delta, value in rows("variation-ratio"):
        if other == kind:
            beta = variation(kind, arguments["epsilon0"])
            ours = published.variation_ratio(n, arguments["epsilon0"], delta, total_variation=beta).value
            assert value * (1 - 5e-4) <= ours <= value
            compared += 1
    assert compared == 6


@pytest.mark.parametrize("epsilon0", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("n", [2, 3])
def test_bounds_of_one_shuffle_are_above_exact_randomized_response(n, epsilon0):
    channel = krr.krr_channel(2, math.exp(epsilon0))
    for delta in (0.2, 0.02, 1e-4):
        bounds = [bound(n, epsilon0, delta).value for bound in CLOSED]
        bounds.append(published.variation_ratio(n, epsilon0, delta).value)
        assert (exact_rounds.worst(channel, [1.0] * n, np.exp(bounds)) <= delta * (1 + 1e-12)).all()


@pytest.mark.parametrize(("n", "epsilon0", "delta"), [(10**4, 0.5, 1e-8), (10**5, 2.0, 1e-5)])
def test_bounds_of_one_shuffle_are_in_order_and_above_what_leaks(n, epsilon0, delta):
    numerical = published.variation_ratio(n, epsilon0, delta).value
    g = cj.account(cj.Shuffle(num_clients=n, num_rounds=1), cj.PureLDP(epsilon0=epsilon0), delta=delta)
    assert g.lower <= g.epsilon <= numerical * (1 + 1e-3)
    assert numerical <= published.clones_2023(n, epsilon0, delta).value
    assert published.variation_ratio(n, epsilon0, delta, total_variation=0.1).value < numerical


def test_a_smaller_blanket_would_not_be_a_bound():
    """The tail of a sum that is twice as likely to come from the blanket is below the truth."""
    n, epsilon0, delta = 3, 1.0, 0.02
    channel = krr.krr_channel(2, math.exp(epsilon0))
    wrong = float(published.variation_ratio(4 * n, epsilon0, delta).value)
    assert exact_rounds.worst(channel, [1.0] * n, [math.exp(wrong)]) > delta


def test_all_of_the_range_gives_numbers_up_to_epsilon0():
    n = np.array([1, 2, 1e3, 1e12])[:, None, None]
    epsilon0 = np.array([0.0, 1e-6, 1.0, 50.0])[:, None]
    delta = np.array([1e-300, 1e-6, 0.999])
    for bound in CLOSED:
        value = bound(n, epsilon0, delta).value
        assert value.shape == (4, 4, 3)
        assert ((value >= 0) & (value <= epsilon0)).all()


def test_compare_shows_them_for_a_shuffle():
    """Those of shuffled check-in, which take longer, are left to tests/unit/test_compare.py."""
    found = comparison._shuffling(comparison.Run(1, 1e-6, 0.5), 1_000)
    assert {
        "Feldman et al. 2021, closed form of their code",
        "Feldman et al. 2023, Theorem 3.2",
        "Balle et al. 2019, privacy blanket, Hoeffding",
        "Balle et al. 2019, privacy blanket, Bennett",
    } <= {bound.label for bound in found}
