"""Stop-loss transforms of sums by contour integrals, against exact enumeration and mpmath; one-sided."""

import math
from collections.abc import Sequence

import mpmath
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from hypothesis import given
from hypothesis import strategies as st

from checkin_jax.kernels import host, stop_loss
from checkin_jax.kernels.execution.backend import quietly

pytestmark = pytest.mark.usefixtures("x64")

Law = Sequence[tuple[float, float]]  # (value, probability), mean zero


def transform(law: Law, order: np.ndarray) -> np.ndarray:
    at, weights = np.array(law).T
    with np.errstate(invalid="ignore"):  # overflow must come through
        return (weights * at**2) @ np.asarray(stop_loss.second(np.multiply.outer(at, order)))


@quietly
def bound(
    laws: Sequence[tuple[Law, float, float]],
    x: float,
    order: float | None = None,
    period: float = 20.0,
    points: int = 1024,
    looked_at: int | None = None,
    counted: bool = True,
) -> float:
    """Upper bound on E(x + S)_+ for S the sum of (law, rate, count); period in standard deviations.

    looked_at: nodes that are left after the first law. counted: whether what the others add is.
    """
    deviation = math.sqrt(sum(n * rate * sum(w * d * d for d, w in law) for law, rate, n in laws))
    far = max(-x, 0.0) / deviation
    t = 0.5 * (far + math.sqrt(far * far + 8.0)) / deviation if order is None else order
    contour = stop_loss.Contour(host(t), host(period * deviation), host(0.02 * deviation))
    theta = stop_loss.nodes(contour, points)
    total, tail = stop_loss.start(contour, theta), None
    for i, (law, rate, count) in enumerate(laws):
        if i == 1 and looked_at is not None:
            total, tail = stop_loss.fewer(total, contour, theta, looked_at)
            theta, tail = theta[:looked_at], tail if counted else host(0.0)
        step = rate * transform(law, np.asarray(theta))
        real = rate * transform(law, np.array([t + 0j]))[0].real
        excess = theta * theta * step
        total = stop_loss.add_excess(total, contour, theta, excess, host(real), host(count))
    return float(stop_loss.stop_loss(total, contour, theta, host(x), tail))


def enumerated(laws: Sequence[tuple[Law, float, int]], x: float) -> float:
    """E(x + S)_+ by convolution over all values that occur."""
    values = {0.0: 1.0}
    for law, rate, count in laws:
        for _ in range(count):
            new: dict[float, float] = {}
            for s, mass in values.items():
                for d, w in [*law, (0.0, 0.0)]:
                    key = round(s + d, 12)
                    new[key] = new.get(key, 0.0) + mass * w * rate
                new[s] = new.get(s, 0.0) + mass * (1.0 - rate)
            values = new
    return math.fsum(mass * (x + s) for s, mass in values.items() if x + s > 0)


def two_point(up: float, share: float) -> Law:
    return [(up, share), (-up * share / (1.0 - share), 1.0 - share)]


@pytest.mark.parametrize("real", [-40.0, -3.0, -0.4, 0.0, 1e-9, 0.4, 3.0])
def test_second_keeps_its_digits(real):
    for imag in (0.0, 1e-12, 0.01, 0.9, 1.1, 7.0, 300.0):
        z = mpmath.mpc(real, imag)
        with mpmath.workdps(50):
            exact = mpmath.mpf("0.5") if z == 0 else (mpmath.exp(z) - 1 - z) / (z * z)
        ours = complex(stop_loss.second(np.array(complex(z))))
        largest = float(
            mpmath.mpf("0.5") if real == 0 else (mpmath.exp(real) - 1 - real) / mpmath.mpf(real) ** 2
        )
        # Relative to the value on the real axis, which bounds it: that is what errors are counted in.
        assert abs(ours - complex(exact)) <= 1e-14 * largest
        assert abs(ours) <= largest * (1 + 1e-12)


@pytest.mark.parametrize("excess", [1e-20 + 1e-22j, -1e-9 + 1e-5j, -0.5 + 0.5j, -0.999 - 1e-3j, 3.0 + 4.0j])
def test_log_one_plus(excess):
    ours, size = stop_loss.log_one_plus(np.array(excess, dtype=complex))
    with mpmath.workdps(50):
        one_plus = 1 + mpmath.mpmathify(excess)
        exact, modulus = mpmath.log(one_plus), abs(one_plus)
    error = 1e-14 * abs(excess) * (1 + abs(excess)) / float(modulus) ** 2
    assert abs(complex(ours) - complex(exact)) <= error
    assert float(size) == pytest.approx(float(modulus) ** 2, rel=1e-9)


@pytest.mark.parametrize("count", [30, 400])
@pytest.mark.parametrize("share", [0.5, 0.2])
def test_binomial_sums_deep_into_their_tail(count, share):
    """Within half a percent of mpmath's exact sum, and never below it, from 1 down to 1e-30."""
    up = 1.0
    down = up * share / (1.0 - share)
    deviation = math.sqrt(count * up * down)
    for far in (-3.0, 0.0, 1.0, 3.0, 6.0, 11.0):
        x = -far * deviation
        with mpmath.workdps(40):
            exact = mpmath.fsum(
                mpmath.binomial(count, k)
                * mpmath.mpf(share) ** k
                * (1 - mpmath.mpf(share)) ** (count - k)
                * max(x + up * k - mpmath.mpf(down) * (count - k), 0)
                for k in range(count + 1)
            )
        ours = bound([(two_point(up, share), 1.0, count)], x)
        assert ours >= float(exact) * (1 - ORACLE_ROUNDING)
        if count == 400 and far <= 6:
            # The added normal variable: a factor about e^{far^2 0.02^2 / 2}, and the lattice's steps.
            assert ours <= float(exact) * (1.01 if far < 6 else 1.05)


@given(
    st.lists(
        st.tuples(
            st.floats(0.05, 2.0),
            st.floats(0.05, 0.9),
            st.sampled_from([0.3, 1.0]),
            st.integers(0, 4),
        ),
        min_size=1,
        max_size=3,
    ).filter(lambda parts: sum(part[3] for part in parts) > 0),
    st.floats(-4.0, 4.0),
    st.floats(0.2, 4.0),
    st.sampled_from([3.0, 20.0]),
)
def test_any_order_and_period_gives_an_upper_bound(parts, x, order, period):
    """Few steps, far from normal; orders and periods that nobody would choose."""
    laws = [(two_point(up, share), rate, count) for up, share, rate, count in parts]
    exact = enumerated(laws, x)
    assert bound(laws, x, order, period) >= exact * (1 - 1e-9)  # 12 digits are kept of each sum
    assert bound(laws, x) >= exact * (1 - 1e-9)
    for looked_at in (1, 30, 200):
        assert bound(laws, x, order, period, looked_at=looked_at) >= exact * (1 - 1e-9)


def test_nodes_left_out_are_counted():
    """The mutation: a single step has its kinks, which without the other frequencies are cut off."""
    laws = [(two_point(1.0, 0.3), 1.0, 1), (two_point(1.0, 0.3), 1.0, 1)]
    exact = enumerated(laws, -1.9)
    assert bound(laws, -1.9, looked_at=12) >= bound(laws, -1.9) >= exact
    assert bound(laws, -1.9, looked_at=12, counted=False) < exact


def test_few_nodes_are_enough_for_many_steps():
    """What a lattice returns with at frequencies left out is all that they cost."""
    laws = [(two_point(1.0, 0.3), 1.0, 500), (two_point(1.0, 0.3), 1.0, 500)]
    for x in (0.0, -30.0, -100.0):
        every = bound(laws, x, period=12.5, points=640)
        assert every <= bound(laws, x, period=12.5, points=640, looked_at=256) <= every * (1 + 2e-5)


def test_a_million_million_steps():
    """E S_+ of n fair signs is sqrt(n / (2 pi)) (1 - 1/(4n) + ...): the cost does not grow, nor the error much."""
    n = 1e12
    exact = math.sqrt(n / (2.0 * math.pi))
    ours = bound([([(1.0, 0.5), (-1.0, 0.5)], 1.0, n)], 0.0)
    assert exact <= ours <= exact * (1 + 3e-4)


def test_what_nothing_is_known_about_is_infinite():
    """An order at which the moment overflows gives infinity, never a number below the truth, never NaN."""
    law = two_point(1.0, 0.5)
    for order in (50.0, 700.0, 1e4):
        assert bound([(law, 1.0, 200)], 5.0, order) >= 5.0
    assert bound([(law, 1.0, 200)], 5.0, 1e4) == math.inf


def test_a_sum_without_spread_is_still_bounded():
    """Steps that are nearly always zero: nothing is lost to the floor on |M|, and x_+ is a lower bound."""
    law = two_point(1.0, 0.5)
    for count in (1, 2, 3):
        assert bound([(law, 1.0, count)], 0.7) >= max(enumerated([(law, 1.0, count)], 0.7), 0.7)


def test_nodes_that_are_left_out_hardly_matter():
    """Of 300 steps, on one contour of two; overflow leaves none out."""
    law, count = two_point(0.7, 0.4), 300.0
    at, weights = np.array(law).T
    contour = stop_loss.Contour(host([0.1, 0.4]), host([60.0, 90.0]), host([0.2, 0.3]))
    theta = np.asarray(stop_loss.nodes(contour, 256))
    excess = theta**2 * np.stack([transform(law, row) for row in theta])
    real = np.array([[transform(law, np.array([t + 0j]))[0].real] for t in (0.1, 0.4)])
    kept, tail = stop_loss.lasting(contour, theta, excess[:, None], host(real), host(count))
    left = np.setdiff1d(np.arange(256), kept)
    assert 0 < kept.size < 200
    ratio = np.exp(theta[..., None] * at) @ weights / (np.exp(theta[:, :1].real[..., None] * at) @ weights)
    assert (count * np.log(np.abs(ratio[:, left])) <= -59.0).all()
    kernel = np.asarray(stop_loss.weights(contour, theta))[:, left]
    assert (math.exp(-59.0) * kernel.sum(axis=-1) <= np.asarray(tail)).all()
    # Errors of the steps count, too.
    off = np.full((2, 1, 256), 0.05)
    fewer = np.setdiff1d(
        np.arange(256), stop_loss.lasting(contour, theta, excess[:, None], host(real), host(count), off)[0]
    )
    top = 1.0 + np.square(theta[:, :1].real) * real - 0.05

    def faint(nodes: np.ndarray) -> bool:
        return bool((count * np.log((np.abs(1.0 + excess[:, nodes]) + 0.05) / top) <= -59.0).all())

    assert fewer.size > 0
    assert faint(fewer)
    assert not faint(left)
    with np.errstate(all="ignore"):
        overflown = excess * np.array([[1e200], [np.nan]])
        kept, _ = stop_loss.lasting(contour, theta, overflown[:, None], host(real * 1e200), host(count))
    assert kept.size == 256


def test_second_of_numbers_in_any_order_of_memory():
    real, imag = np.random.default_rng(0).normal(0.0, [[[1.0]], [[3.0]]], (2, 70, 130))
    z = real + 1j * imag
    found = np.asarray(stop_loss.second(z.T))  # type: ignore[arg-type]
    for place in ((0, 0), (64, 3), (129, 69)):
        with mpmath.workdps(30):
            at = mpmath.mpc(z.T[place])
            exact = complex((mpmath.exp(at) - 1 - at) / at**2)
        assert abs(found[place] - exact) <= 1e-14 * abs(exact)
