"""The two engines that kernels run on: NumPy and XLA agree within what bounds count, and NumPy's functions are exact.

Limits are in units of the last place against mpmath, as in test_xla.py; no count of rounding errors assumes less.
"""

import ast
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.fft
import scipy.special
from test_xla import of, powers, ulps, uniform

from checkin_jax import kernels
from checkin_jax.kernels import binomial, elementary, gaussian_profile, host
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution import backend

KERNELS = Path(kernels.__file__).parent


@pytest.mark.parametrize(
    ("ours", "exact", "x"),
    [
        (np.exp, mp.exp, uniform(-700.0, 700.0)),
        (np.exp, mp.exp, uniform(-1.0, 1.0)),
        (np.expm1, mp.expm1, uniform(-2.0, 2.0)),
        (np.expm1, mp.expm1, powers(-20, 2)),
        (np.log, mp.log, powers(-300, 300)),
        (np.log, mp.log, uniform(0.5, 2.0)),
        (np.log1p, mp.log1p, uniform(-0.999, 2.0)),
        (np.log1p, mp.log1p, -powers(-20, -0.01)),
        (np.sqrt, mp.sqrt, powers(-300, 300)),
        (np.cos, mp.cos, uniform(-math.pi, math.pi)),
        (np.sin, mp.sin, uniform(-math.pi, math.pi)),
        (np.cos, mp.cos, uniform(-3e6, 3e6)),
        (np.sin, mp.sin, uniform(-3e6, 3e6)),
        (np.arctan, mp.atan, powers(-5, 5)),
        (lambda y: np.arctan2(y, 0.7), lambda y: mp.atan2(y, mp.mpf(0.7)), powers(-5, 5)),
        (lambda y: np.arctan2(y, -0.7), lambda y: mp.atan2(y, mp.mpf(-0.7)), -powers(-5, 5)),
    ],
)
def test_elementary_functions_of_numpy(ours, exact, x):
    assert ulps(ours(x), of(exact, x)) <= 4.0


def test_log1p_on_the_host_is_numpys():
    x = uniform(-0.53, -0.28)
    assert np.array_equal(log1p(x), np.log1p(x))


def hazard(x):
    return mp.npdf(x) / mp.ncdf(-x) - x


@pytest.mark.parametrize(
    "x", [uniform(0.0, 60.0), uniform(1.99, 2.01), uniform(37.5, 37.7), uniform(-20.0, 0.0)]
)
def test_hazard_rate_on_the_host(x):
    # exp(y^2) doubles the relative error of y^2, which is 200 for the last range.
    assert ulps(gaussian_profile.hazard_beyond(x), of(hazard, x)) <= 800.0


def test_normal_tails_on_the_host_to_the_error_that_cells_allow():
    x = uniform(-30.0, 8.0)
    exact = of(mp.ncdf, x)
    worst = max(abs(mp.mpf(float(v)) / e - 1) for v, e in zip(scipy.special.ndtr(x), exact))
    assert worst < 2e-13
    logs = [mp.log(e) for e in exact]
    assert max(abs(mp.mpf(float(v)) - e) for v, e in zip(scipy.special.log_ndtr(x), logs)) < 2e-13


@pytest.mark.parametrize("points", [2**13, 2**17])
def test_fourier_transforms_of_numpy_within_their_constant(points):
    values = np.random.default_rng(3).exponential(size=points) ** 4
    exact = scipy.fft.rfft(values.astype(np.longdouble))
    if exact.dtype == np.complex128:
        pytest.fail("no long double to compare with")
    bound = elementary.of_fft(points)
    for found in (np.fft.rfft(values), np.fft.rfft(np.fft.irfft(np.fft.rfft(values), n=points))):
        apart = np.linalg.norm((found - exact).astype(np.complex128)) / np.linalg.norm(
            exact.astype(np.complex128)
        )
        # Twenty times below it; the count would not miss what is twenty times worse.
        assert apart < bound / 20.0
        assert np.max(np.abs(found - exact)) <= bound * math.sqrt(points) * np.linalg.norm(values) / 20.0


def test_a_binomial_mass_on_both_engines(x64):
    n, p = 10.0**12, 0.1
    k = host(np.rint(n * p + np.linspace(-20.0, 20.0, 41) * math.sqrt(n * p * (1 - p))))
    arguments = k, host(n), host(p)
    both = binomial.log_pmf(*arguments), np.asarray(jax.jit(binomial.log_pmf)(*arguments))
    for found in both:
        with mp.workdps(50):
            for at, value in zip(k, found):
                at, trials = mp.mpf(float(at)), mp.mpf(n)
                log = mp.loggamma(trials + 1) - mp.loggamma(at + 1) - mp.loggamma(trials - at + 1)
                log += at * mp.log(mp.mpf(p)) + (trials - at) * mp.log(1 - mp.mpf(p))
                assert abs(mp.mpf(float(value)) - log) <= 1e-13 * max(1, abs(log))


@pytest.mark.parametrize(
    ("values", "found"), [((1.0, np.ones(2)), False), (((1, jnp.ones(2)),), True), (([[], [0.0]],), False)]
)
def test_whose_arrays_they_are(values, found):
    assert backend.of_jax(*values) == found
    assert jax.jit(lambda x: float(backend.of_jax((0.0, [x]))))(1.0) == 1.0


def law(seed, size):
    """A law of 2 size + 1 losses, symmetric about 0 but for e^loss."""
    rng = np.random.default_rng(seed)
    losses = 0.02 * np.arange(size + 1.0)
    profile = np.maximum(0.05 * np.exp(-((losses / 0.3) ** 2)) + 1e-9 * rng.random(size + 1), 0.0)
    side = pld.side_upper(host(losses), host(np.minimum.accumulate(profile)))
    return pld.Atoms(*(host(part)[None] for part in pld.join(host(losses), side, side, True)))


@pytest.mark.parametrize("shift", [-3.0, 0.1, 2.9])
def test_a_crossing_is_found(shift):
    count = []

    def value(x):
        count.append(x)
        return (
            (np.expm1(x - shift), np.exp(x - shift)) if x < 5.0 else (np.float64(np.inf), np.float64(np.nan))
        )

    assert abs(backend.quietly(backend.crossing)(value, -30.0, 10.0, 40) - shift) <= 40.0 * 2.0**-40
    assert len(count) < 15


@pytest.mark.parametrize(("nowhere", "end"), [(-1.0, 1.0), (1.0, 0.0), (np.nan, 0.0)])
@pytest.mark.parametrize("slope", [np.nan, 0.0, 1e-3])
def test_what_crosses_nowhere_ends_at_an_end(nowhere, end, slope):
    values = np.float64(nowhere), np.float64(slope)
    assert abs(backend.quietly(backend.crossing)(lambda x: values, 0.0, 1.0, 40) - end) <= 2.0**-40


def test_bisections_of_many_are_those_of_each():
    """Ends too, where the predicate is true everywhere or nowhere."""
    turns = np.array([0.3, 0.7, -1.0, 2.0])
    low, high = backend.bisected(lambda x: x < turns, np.zeros(4), np.ones(4), 24)
    for turn, *ends in zip(turns, low, high, strict=True):
        assert [*backend.bisected(lambda x, turn=turn: x < turn, 0.0, 1.0, 24)] == ends
        assert ends[1] - ends[0] == 2.0**-24
        assert ends[0] <= np.clip(turn, 0.0, 1.0) <= ends[1]


def test_kernels_on_two_engines_change_nothing_in_place():
    """`x += y` is another array on XLA, and the same one in NumPy, which may be the caller's."""
    wrong = []
    for path in sorted(KERNELS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"engine import .*\bxp\b", text):
            continue
        hosted = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.AugAssign)]
        if "import jax.numpy" not in text:
            wrong += [f"{path.name}:{node.lineno}" for node in hosted]
    assert wrong == []


def test_callers_keep_their_arrays(x64):
    atoms, counts = law(0, 64), host([10.0])
    before = [np.array(part) for part in atoms]
    pld.rounds_at(atoms, host([0.5, 1.0]))
    pld.chernoff_tilt(atoms, counts, host(-10.0))
    for part, kept in zip(atoms, before):
        assert np.array_equal(part, kept)


@pytest.mark.parametrize("wanted", [False, True])
def test_rows_that_are_wanted_alone(wanted):
    rows, across = np.linspace(0.0, 1.0, 300), np.linspace(-1.0, 1.0, 5000)
    kept = rows > 0.4 if wanted else np.ones(rows.shape, dtype=bool)

    def kernel(rows):
        return backend.by_rows(
            lambda part: np.min(part[:, None] * across, axis=1), (rows,), across.size, kept
        )

    whole = np.min(rows[:, None] * across, axis=1)
    assert (kernel(rows) == np.where(kept, whole, 0.0)).all()


@pytest.mark.parametrize(
    "shape", [(128, 300, 256), (129, 300, 256), (3, 40_000, 5), (2, 3, 4), (1, 1200, 400)]
)
def test_products_in_parts_are_those_of_all_rows(shape):
    """Sizes on either side of those that OpenBLAS computes in one thread; whole numbers, so that sums are exact."""
    count, inner, across = shape
    rng = np.random.default_rng(count)
    for kind in (np.float64, np.complex128):
        rows = rng.integers(-9, 9, (2, count, inner)).astype(kind)
        matrix = rng.integers(-9, 9, (2, inner, across)).astype(kind)
        assert np.array_equal(backend.product(rows, matrix), np.einsum("bri,bic->brc", rows, matrix))
