"""Tails of Bin(M, q) from tables: bounded on the asked side, in the exact and in the strided form."""

import numpy as np
import pytest
from scipy.stats import binom

from checkin_jax.kernels import FLUSHED, binomial
from checkin_jax.kernels.execution.backend import quietly

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(("points", "exact"), [(512, True), (64, False), (256, False)])
@pytest.mark.parametrize("neg_log_tail", [12.0, 60.0])
@pytest.mark.parametrize("q", [0.5, 0.02, 0.37, 0.9])
@pytest.mark.thorough(but=12)
def test_tails_are_bounded_on_their_side(upper, points, exact, neg_log_tail, q):
    trials = np.array([0, 1, 2, 3, 10, 47, 100, 333, 900, 1500])
    prob = None if q == 0.5 else np.float64(q)
    mass = np.float64(neg_log_tail)
    tables = quietly(binomial.tabulate)(np.asarray(trials, np.float64), prob, mass, points, exact, upper)
    least = -(-trials // 2) + 1 if prob is None else np.floor(trials * q).astype(int) + 1
    a = least[:, None] + np.arange(0, 400, 3)[None, :]
    pmf, tail = quietly(binomial.look_up)(tables, prob, np.asarray(a, np.float64), exact, upper)
    exact_tail = binom.sf(a - 1, trials[:, None], q)
    exact_pmf = binom.pmf(a - 1, trials[:, None], q)
    # scipy itself is good to about 1e-13 here.
    if upper:
        assert (tail >= exact_tail * (1 - 1e-11)).all()
        assert (pmf <= exact_pmf * (1 + 1e-11)).all()
    else:
        # Both sides are rounded to the least number there is.
        assert (tail <= exact_tail * (1 + 1e-11) + 5e-324).all()
        # Smaller numbers are flushed to zero.
        assert (pmf >= exact_pmf * (1 - 1e-11) - FLUSHED).all()
    inside = exact_tail > 10 * np.exp(-neg_log_tail)
    np.testing.assert_allclose(pmf[inside], exact_pmf[inside], rtol=1e-11)
    # Strides of 1/8 of a standard deviation: (1/8)^2 / 2.
    np.testing.assert_allclose(tail[inside], exact_tail[inside], rtol=1e-11 if exact else 0.02, atol=1e-4)


@pytest.mark.parametrize("largest", [3.0, 100.0, 5000.0, 1e5, 1e12])
def test_an_exact_plan_holds_every_value_that_matters(largest):
    points, exact = binomial.table_size(largest, 40.0)
    reach = min((0.5 * largest * 40.0) ** 0.5, largest / 2)
    assert exact == (points >= reach + 1)
