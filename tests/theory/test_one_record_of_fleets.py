"""L1h for messages of any law: below the mechanism it is, and above what sums and responses say."""

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds as exact

import checkin_jax as cj
from checkin_jax.accounting.bounds.unequal.pool_cover import Others
from checkin_jax.accounting.bounds.unequal.unequal_witness import UnequalMessagesOfOne, UnequalScores
from checkin_jax.kernels.execution.devices import float64

EVERYWHERE = np.exp(np.linspace(0.0, 2.5, 40))
LOSSES = np.array([0.05, 0.3, 0.8])


def by_runs(law, rate, theirs):
    return UnequalMessagesOfOne(rate, theirs, 30.0, law)


def by_scores(law, rate, theirs):
    return UnequalScores(rate, theirs, law, 30.0)


def lines(witness, law, rate, others):
    """(P(A) - Q(A), Q(A)) in both orders."""
    theirs = Others(np.array(others), np.ones(len(others)))
    with float64():
        return witness(law, rate, theirs).lower(LOSSES)


@pytest.mark.parametrize("witness", [by_runs, by_scores])
@pytest.mark.parametrize("third", [False, True])
@pytest.mark.parametrize("randomizer", [cj.HadamardResponse(epsilon0=1.5), cj.Rappor(epsilon0=1.5)])
@pytest.mark.parametrize(
    ("rate", "others"), [(0.3, (0.05, 0.9, 0.6)), (1.0, (0.2, 0.2, 1.0)), (0.05, (0.5,))]
)
def test_it_is_below_the_mechanism_and_near_it(witness, third, randomizer, rate, others):
    law = next(
        each for each in randomizer.label_laws if (each.others is not None) == third and not each.of_sums
    )
    target, other = np.asarray(law.target), np.asarray(law.other)
    everybody = np.asarray(law.others) if third else other
    held = [exact.histogram([*(everybody,) * len(others), x], [*others, rate]) for x in (target, other)]
    near = {by_runs: 0.35 if third else 0.7, by_scores: 0.95 if third else 0.99}[witness]
    for (difference, far), pair in zip(lines(witness, law, rate, others), (held, held[::-1])):
        truth = exact.leak(*pair, EVERYWHERE)
        value = np.asarray(difference)[:, None] - (EVERYWHERE - 1)[None, :] * np.asarray(far)[:, None]
        assert (value <= truth * (1 + ORACLE_ROUNDING) + 1e-14).all()
        assert value.max(axis=0)[1] > near * truth[1]
        # With the client always among those who come it is not below.
        assert rate == 1.0 or (value / rate > truth).any()
