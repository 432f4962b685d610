"""G1 from above and the summed witness from below, against exact densities of the real mechanism."""

import math

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import checkin_gaussian, large_gaussian
from oracles import gaussian as oracle

from checkin_jax.accounting.bounds.messages.subsampling import ShuffledGaussian

pytestmark = pytest.mark.usefixtures("x64")
MASS = 45.0
LOSSES = np.array([0.0, 0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0])


def upper(n, rate, mu, summed):
    return np.asarray(ShuffledGaussian(n, rate, mu, summed, MASS).upper(LOSSES))


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(("n", "rate", "mu"), [(1, 0.5, 1.0), (4, 0.3, 0.4), (12, 1.0, 2.0), (60, 0.2, 1.2)])
def test_profile_is_above_g1_by_its_definition(n, rate, mu, summed):
    view = "aggregate" if summed else "messages"
    exact = np.array([float(oracle.g1_profile(n, rate, mu, math.exp(l), view)) for l in LOSSES])
    ours = upper(n, rate, mu, summed)
    assert (ours >= exact * (1 - ORACLE_ROUNDING)).all()
    assert (ours <= exact * (1 + 1e-6) + 1e-15).all()


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(("n", "rate"), [(60_000, 0.1), (10**7, 1e-4), (10**9, 1e-3)])
def test_profile_at_large_n_is_above_and_near(n, rate, summed):
    mu, view = 0.8, "aggregate" if summed else "messages"
    scale = rate * (mu / math.sqrt(n * rate) if summed else mu)
    losses = scale * np.array([0.0, 0.3, 1.0, 2.0])
    ours = np.asarray(ShuffledGaussian(n, rate, mu, summed, MASS).upper(losses))
    if n * rate < 1e5:  # the oracle sums over every k
        exact = np.asarray(large_gaussian.g1_profile_on_grid(n, rate, mu, losses, view))
        assert (ours >= exact * (1 - ORACLE_ROUNDING)).all()
        assert (ours <= exact * 1.005).all()
    assert np.isfinite(ours).all()


@pytest.mark.parametrize("others", [(-1.0, -1.0), (1.0, 1.0), (0.3, -0.7)])
@pytest.mark.parametrize("rate", [0.2, 0.7, 1.0])
def test_aggregate_is_above_the_real_sum_and_the_witness_is_below_it(others, rate):
    """Three clients with records in [-1, 1] and noise z = 1.3; the differing one goes from 1 to -1 or back."""
    z, cs = 1.3, np.exp(LOSSES)
    data, neighbour = (1.0, *others), (-1.0, *others)
    forward = np.asarray(checkin_gaussian.aggregate_hockey_stick(data, neighbour, rate, z, cs))
    backward = np.asarray(checkin_gaussian.aggregate_hockey_stick(neighbour, data, rate, z, cs))
    bound = upper(3, rate, 2 / z, True)
    assert (bound >= np.maximum(forward, backward) * (1 - 1e-9) - 1e-13).all()  # quadrature of the oracle
    if others == (-1.0, -1.0):
        sides = ShuffledGaussian(3, rate, 2 / z, True, MASS).witnesses[0].lower(LOSSES[1:])
        for (difference, far), truth in zip(sides, (forward, backward)):
            line = np.asarray(difference)[:, None] - np.expm1(LOSSES)[None, :] * np.asarray(far)[:, None]
            assert (line <= truth[None, :] * (1 + 1e-9) + 1e-13).all()
            touching = np.diagonal(line[:, 1:])
            np.testing.assert_allclose(touching, truth[1:], atol=1e-7)


@pytest.mark.parametrize(("n", "rate", "mu"), [(1, 1.0, 8.0), (1, 0.5, 8.0), (2, 0.99, 11.3), (4, 1.0, 16.0)])
def test_lower_lines_stay_below_at_losses_that_rounding_cannot_tell(n, rate, mu):
    """Found by review: P(A) as a difference lost all its digits from losses of about 20 on."""
    one = ShuffledGaussian(n, rate, mu, True, 40.0)
    losses = np.linspace(15.0, 60.0, 181)
    for difference, far in one.witnesses[0].lower(losses):
        line = np.asarray(difference) - np.expm1(losses) * np.asarray(far)
        assert (line <= np.asarray(one.upper(losses)) * (1 + 1e-7) + 1e-300).all()


def test_messages_is_above_the_real_multiset_of_messages():
    z, cs = 1.3, np.exp(LOSSES)
    for others in ((-1.0,), (1.0,), (0.2,)):
        for data, neighbour in (((1.0, *others), (-1.0, *others)), ((-1.0, *others), (1.0, *others))):
            truth = checkin_gaussian.messages_mechanism_hockey_stick(data, neighbour, 0.5, z, cs, [200, 60])
            assert (upper(2, 0.5, 2 / z, False) >= np.asarray(truth) * (1 - 1e-9)).all()


def test_replacement_sensitivity_is_twice_the_clip_norm():
    """mu = 1/z instead of 2/z, the add-or-remove figure, is exceeded by the real mechanism."""
    truth = checkin_gaussian.aggregate_hockey_stick((1.0,), (-1.0,), 1.0, 1.3, np.exp(LOSSES))
    assert (upper(1, 1.0, 1 / 1.3, True)[:6] < np.asarray(truth)[:6]).all()
