"""G2: Gaussian messages of all clients, against the multisets' own densities, for every place where laws are cut."""

import math

import numpy as np
import pytest
from oracles import checkin_gaussian as oracle
from oracles import gaussian as gaussian_oracle

import checkin_jax as cj
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.full_participation import AllCut
from checkin_jax.accounting.bounds.interface import LocalGaussian
from checkin_jax.accounting.bounds.messages.cover import Shuffled

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0
LOSSES = np.array([0.0, 0.2, 0.6, 1.2, 2.0])


@pytest.mark.parametrize("noise", [0.9, 2.0])
@pytest.mark.parametrize("others", [(), (-1.0,), (0.0,), (1.0, -1.0), (-1.0, -1.0), (0.3, -0.6)])
def test_g2_is_above_the_shuffled_messages(noise, others):
    n, cs = len(others) + 1, np.exp(LOSSES).tolist()
    cells = {1: 4000, 2: 600, 3: 90}[n]
    truth = np.max(
        [oracle.messages_hockey_stick((*others, x), (*others, -x), n, noise, cs, cells) for x in (1.0, -1.0)],
        axis=0,
    )
    bound = AllCut(n, LocalGaussian(1.0, 2.0 / noise), MASS)
    for epsilon0 in (0.2, 0.7, 1.5, 3.0, 6.0):
        assert (bound._with_cut(epsilon0, LOSSES) >= truth - 1e-12).all()
    assert (bound.upper(LOSSES) >= truth - 1e-12).all()


def test_cutting_is_not_free():
    """T1 at the eps0 where the Gaussian's laws are cut, without what is cut off, is exceeded many times over."""
    noise, epsilon0 = 0.5, 1.0
    free = np.asarray(Clones(Shuffled(2, 1.0), epsilon0, MASS).upper(LOSSES))
    truth = oracle.messages_hockey_stick((-1.0, 1.0), (-1.0, -1.0), 2, noise, np.exp(LOSSES).tolist(), 600)
    assert (np.asarray(truth) > 2.0 * free).any()


@pytest.mark.parametrize(("n", "noise", "rounds"), [(10**4, 4.0, 1), (10**5, 3.0, 20)])
@pytest.mark.thorough(but=1)
def test_g2_gains_where_clients_are_many(n, noise, rounds):
    protocol = cj.Shuffle(num_clients=n, num_rounds=rounds)
    g = cj.account(protocol, cj.Gaussian(noise_multiplier=noise), delta=1e-6, bounds="fast")
    assert g.method.startswith("everybody")
    alone = cj.account(protocol, cj.Gaussian(noise_multiplier=noise), delta=1e-6, view="local", bounds="fast")
    assert 0 < g.lower <= g.epsilon < alone.epsilon / 8


def test_the_sum_is_never_above_the_bracket():
    """The sum is a post-processing of the messages: no lower end may miss its exact epsilon."""
    mu = 1.0 / math.sqrt(400)
    g = cj.account(cj.Shuffle(num_clients=400), cj.Gaussian(noise_multiplier=2.0), delta=1e-4, bounds="fast")
    assert gaussian_oracle.delta_g(mu, g.epsilon) <= 1e-4
    assert gaussian_oracle.delta_g(mu, g.lower * (1 + 1e-6)) <= 1e-4
