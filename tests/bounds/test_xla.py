"""What XLA makes of the kernels: how accurate its float64 functions are, against mpmath, on the ranges that bounds use.

Every count of rounding errors in `checkin_jax.kernels` rests on the limits below, which are what the counts assume, not
what was measured (that is in docs/accounting.md). To be run with every supported release of jax: `make numbers
JAX=0.10.0` runs this file with that one in an environment of its own; JAX is the oldest one when left out.
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import checkin_jax
from checkin_jax.kernels import FLUSHED, elementary, stop_loss
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.messages import hidden_messages_lower

pytestmark = pytest.mark.usefixtures("x64")

POINTS = 1000


def uniform(low, high):
    return np.random.default_rng(1).uniform(low, high, POINTS)


def powers(low, high):
    return 10.0 ** np.random.default_rng(2).uniform(low, high, POINTS)


def ulps(found, exact):
    """The largest error in units of the last place of what is exact."""
    with mp.workprec(300):
        apart = [abs(mp.mpf(float(f)) - e) / float(np.spacing(abs(float(e)))) for f, e in zip(found, exact)]
    return float(max(apart))


def of(function, x):
    with mp.workprec(300):
        return [function(mp.mpf(float(v))) for v in x]


LOG1P = [
    uniform(-0.53, -0.28),
    uniform(-0.41422, -0.41412),
    uniform(-1.0 + 1e-15, 2.0),
    -powers(-20, -0.01),
    powers(-20, 0),
    powers(0, 300),
    np.nextafter(-0.25, [-1.0, 1.0]),
]


@pytest.mark.parametrize("x", LOG1P)
def test_log1p(x):
    exact = of(mp.log1p, x)
    found = np.asarray(jax.jit(log1p)(x))
    assert ulps(found, exact) <= 3.0
    # 125 ulp, which XLA's own is off by on some CPUs (jax-ml/jax#39707), would not pass.
    assert ulps(found * (1.0 + 125 * 2.0**-53), exact) > 3.0


def test_log1p_at_its_ends():
    x = np.asarray([-1.0, -2.0, -np.inf, np.nan, 0.0, np.inf])
    np.testing.assert_array_equal(
        np.asarray(jax.jit(log1p)(x)), np.asarray([-np.inf, np.nan, np.nan, np.nan, 0.0, np.inf])
    )


def test_log1p_of_xla_is_used_nowhere_else():
    root = Path(checkin_jax.__file__).parent
    used = re.compile(r"\bjnp\.log1p|\blax\.log1p|softplus|xlog1py|jnp\.arctanh|jnp\.acosh|jnp\.arcsinh")
    found = [path.name for path in root.rglob("*.py") if used.search(path.read_text(encoding="utf-8"))]
    assert found == ["elementary.py"]


def test_logarithm_of_a_step_within_its_count():
    # excess = M(theta) - 1; the count is made for |excess| <= |theta|^2 T(t), here equal: the hardest.
    rng = np.random.default_rng(5)
    size = np.concatenate(
        [np.sqrt(1.0 + uniform(-0.53, -0.28)), np.sqrt(1.0 + uniform(-0.4143, -0.4141)), uniform(0.01, 1.5)]
    )
    excess = size * np.exp(1j * rng.uniform(0.0, np.pi, size.size)) - 1.0
    found, square = (np.asarray(part) for part in jax.jit(stop_loss.log_one_plus)(jnp.asarray(excess)))
    count = np.asarray(
        stop_loss.rounding(
            jnp.ones(size.size), jnp.asarray(excess), jnp.asarray(np.abs(excess)), jnp.asarray(square)
        )
    )
    with mp.workprec(200):
        exact = [mp.log(1 + mp.mpc(complex(e))) for e in excess]
        apart = np.asarray([float(abs(mp.mpc(complex(f)) - e)) for f, e in zip(found, exact)])
        # A log1p that is 129 ulp off for these |M|^2.
        wrong = np.asarray([float(129 * 2.0**-53 * abs(e.real)) for e in exact])
    share = apart / count
    assert np.max(share) < 0.2
    assert np.max(wrong / count) > 0.2


def tail(x):
    return mp.exp(x * x / 2) * mp.erfc(x / mp.sqrt(2)) / 2


# What every count of roundings takes for granted; the functions as they are called, compiled. (name, function, exact,
# ranges of its arguments, most ulp.)
UNARY = [
    ("exp", jnp.exp, mp.exp, uniform(-700, 700), 2.0),
    ("exp near 0", jnp.exp, mp.exp, uniform(-1, 1), 2.0),
    ("expm1", jnp.expm1, mp.expm1, uniform(-3, 3), 5.0),
    ("expm1 of tiny", jnp.expm1, mp.expm1, -powers(-20, 2), 5.0),
    ("expm1 of large", jnp.expm1, mp.expm1, uniform(1, 700), 5.0),
    ("log", jnp.log, mp.log, powers(-300, 300), 1.0),
    ("log near 1", jnp.log, mp.log, uniform(0.5, 2), 1.0),
    ("sqrt", jnp.sqrt, mp.sqrt, powers(-300, 300), 0.51),
    (
        "1 / sqrt, which XLA makes a reciprocal root",
        lambda x: 3.0 / jnp.sqrt(x),
        lambda x: 3 / mp.sqrt(x),
        powers(-300, 300),
        3.0,
    ),
    ("sin", elementary.sin, mp.sin, uniform(-4, 4), 2.0),
    ("sin of many turns", elementary.sin, mp.sin, uniform(-3e6, 3e6), 2.0),
    ("cos", elementary.cos, mp.cos, uniform(-4, 4), 2.0),
    ("cos of many turns", elementary.cos, mp.cos, uniform(-3e6, 3e6), 2.0),
    ("tanh", jnp.tanh, mp.tanh, uniform(-3, 3), 8.0),
    ("logaddexp", lambda x: jnp.logaddexp(0.0, x), lambda x: mp.log1p(mp.exp(x)), uniform(-30, 30), 5.0),
    # 1e-12 relatively is what docs/evaluation.md counts: 4,500 ulp.
    ("normal law", jax.scipy.special.ndtr, mp.ncdf, uniform(-37, 0), 4500.0),
    ("scaled tail", elementary.scaled_tail, tail, powers(-6, 2), 60.0),
    (
        "its fall",
        elementary.scaled_tail_fall,
        lambda x: 1 / mp.sqrt(2 * mp.pi) - x * tail(x),
        powers(-6, 2),
        120.0,
    ),
]


@pytest.mark.parametrize(
    ("function", "exact", "x", "most"), [row[1:] for row in UNARY], ids=[row[0] for row in UNARY]
)
def test_functions_that_bounds_rely_on(function, exact, x, most):
    assert ulps(np.asarray(jax.jit(function)(jnp.asarray(x))), of(exact, x)) <= most


PHASE, RADIUS = uniform(-np.pi, np.pi), powers(-12, 0)
COMPLEX = RADIUS * np.exp(1j * PHASE)


def test_modulus_and_angle():
    exact = [mp.mpc(complex(z)) for z in COMPLEX]
    with mp.workprec(200):
        assert ulps(np.asarray(jax.jit(jnp.abs)(jnp.asarray(COMPLEX))), [mp.fabs(z) for z in exact]) <= 3.0
        found = jax.jit(elementary.angle)(COMPLEX.imag, COMPLEX.real)
        assert ulps(np.asarray(found), [mp.arg(z) for z in exact]) <= 4.0


def test_angles_at_the_axes_are_those_of_the_library():
    y, x = (part.ravel() for part in np.meshgrid(*2 * [[-2.0, -1e-300, 0.0, 1e-300, 2.0]]))
    np.testing.assert_array_max_ulp(np.asarray(jax.jit(elementary.angle)(y, x)), np.arctan2(y, x), maxulp=1)


def test_sines_beyond_all_turns_are_off_by_roundings_of_their_arguments():
    """`stop_loss.inaccuracy` counts 16 roundings of the phase."""
    x = powers(6, 15)
    for function, exact in ((elementary.sin, mp.sin), (elementary.cos, mp.cos)):
        found = np.asarray(jax.jit(function)(x))
        apart = [abs(float(f - e)) for f, e in zip(found, of(exact, x))]
        assert np.max(apart / (2.0**-53 * (8.0 + x))) <= 1.0
        assert np.max(np.abs(found)) <= 1.01


@pytest.mark.parametrize(
    ("function", "exact", "units"),
    [
        (lambda z: elementary.complex_exp(30.0 * z), lambda z: mp.exp(30 * z), 40.0),
        (lambda z: z * z, lambda z: z * z, 4.0),
        (lambda z: (1.0 + 2.0j) / z, lambda z: mp.mpc(1, 2) / z, 8.0),
        (stop_loss.second, lambda z: (mp.exp(z) - 1 - z) / (z * z), 32.0),
    ],
    ids=["exp", "product", "quotient", "(e^z - 1 - z) / z^2"],
)
def test_complex_functions(function, exact, units):
    """In units of 2^-53, relatively; an exponent of up to 30 brings its own rounding."""
    found = np.asarray(jax.jit(function)(jnp.asarray(COMPLEX)))
    with mp.workprec(300):
        wanted = [exact(mp.mpc(complex(z))) for z in COMPLEX]
        apart = [abs(mp.mpc(complex(f)) - w) / abs(w) * 2**53 for f, w in zip(found, wanted)]
    assert max(apart) <= units


def spread(points):
    """Laws on a grid: a few atoms, a bell far narrower than the grid, and one that falls by e^-50."""
    rng = np.random.default_rng(points)
    atoms = np.zeros(points)
    atoms[rng.integers(0, points, 64)] = rng.dirichlet(np.ones(64))
    place = np.arange(points) - points / 3
    bell = np.exp(-0.5 * (place / (0.01 * points)) ** 2)
    falling = np.exp(-50.0 * np.arange(points) / points)
    return [atoms, bell / bell.sum(), falling / falling.sum()]


def half(values):
    """The 2-norm of a whole spectrum of which one half is held."""
    twice = np.full(len(values), 2.0)
    twice[[0, -1]] = 1.0
    return float(np.sqrt(np.sum(twice * np.abs(values) ** 2)))


@pytest.mark.parametrize("points", [1280, *(2**levels for levels in (3, 6, 10, 12, 13, 16, 19, 21))])
@pytest.mark.thorough(but=4)
def test_constant_of_the_fft(points):
    """At most half of `elementary.of_fft`, 7 u a level (docs/accounting.md): both ways, in XLA and NumPy."""
    allowed = 0.5 * elementary.of_fft(points)
    forward = jax.jit(jnp.fft.rfft)
    backward = jax.jit(lambda values: jnp.fft.irfft(values, n=points))
    for law in spread(points):
        exact = np.fft.rfft(law.astype(np.longdouble))
        rounded = np.asarray(exact, dtype=np.complex128)
        exact_back = np.fft.irfft(rounded.astype(np.clongdouble), n=points)
        for found, found_back in (
            (np.asarray(forward(law)), np.asarray(backward(rounded))),
            (np.fft.rfft(law), np.fft.irfft(rounded, n=points)),
        ):
            assert half(found - exact) <= allowed * half(exact)
            assert np.max(np.abs(found - exact)) <= allowed * np.sum(law)  # what numerics.tilted_sums counts
            assert np.linalg.norm((found_back - exact_back).astype(float)) <= allowed * np.linalg.norm(
                exact_back.astype(float)
            )
            # Off by a part in 2^44 of its norm at one frequency it would not pass.
            found = found.copy()
            found[1] += 2.0**-44 * half(exact)
            assert half(found - exact) > allowed * half(exact)


def test_the_long_double_transform_is_the_transform():
    """The reference above is NumPy's in 64 binary digits: against the sum itself at 300 bits."""
    law = spread(256)[0]
    found = np.fft.rfft(law.astype(np.longdouble))
    with mp.workprec(300):
        for k in (0, 1, 37, 128):
            exact = sum(mp.mpf(float(v)) * mp.expjpi(-mp.mpf(2 * k * j) / 256) for j, v in enumerate(law))
            got = mp.mpc(mp.mpf(repr(found[k].real).split("'")[1]), mp.mpf(repr(found[k].imag).split("'")[1]))
            assert abs(got - exact) <= 2.0**-60


def test_arithmetic_is_ieee_and_sums_are_not_reordered():
    """XLA does add constants up, x + c - c is x: kernels may not correct roundings that way, and none does."""
    x, y = np.asarray([1.0, 3.0, -5.0, 0.1, 7.0]), np.full(5, 1e16)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda v, w: (v + w) - w)(x, y)), (x + y) - y)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda v, w: v - (v - w))(x, y)), x - (x - y))
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda v, w: v / w)(x, y / 3.0)), x / (y / 3.0))
    # By a constant it is a product with the reciprocal, rounded twice.
    np.testing.assert_array_max_ulp(np.asarray(jax.jit(lambda v: v / 3.0)(x)), x / 3.0, maxulp=1)
    # Not a number stays one, and is above no delta.
    nan = np.asarray([np.nan, np.inf, -np.inf])
    assert np.isnan(np.asarray(jax.jit(lambda v: v - v)(nan))).all()
    assert np.isnan(np.asarray(jax.jit(lambda v: jnp.maximum(v, 0.0))(nan)))[0]
    assert not np.asarray(jax.jit(lambda v: ~(v <= 1e-6))(nan))[2]
    assert np.asarray(jax.jit(lambda v: ~(v <= 1e-6))(nan))[0]


def test_what_is_flushed_to_zero_is_counted():
    """4,000 numbers too small to be normal: their sum loses less than FLUSHED."""
    tiny = np.full(4000, 2.2e-308)
    assert abs(float(jax.jit(jnp.sum)(tiny)) - 8.8e-305) <= FLUSHED
    assert (
        abs(float(jax.jit(lambda v: jnp.sum(jnp.exp(v)))(np.full(4000, -709.0))) - 4000 * np.exp(-709.0))
        <= FLUSHED
    )


INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%\S+ = (\S+) ([a-z][a-z0-9-]*)\(.*?op_name=\"([^\"]*)\"", re.MULTILINE
)


def test_a_product_of_exponentials_made_one_would_be_seen():
    text = jax.jit(lambda a, b: jnp.exp(a) * jnp.exp(b)).lower(1.0, 2.0).compile().as_text()
    found = [(kind, name.rpartition("/")[2]) for _, kind, name in INSTRUCTION.findall(text)]
    # A release that does not do so passes too.
    assert found.count(("exponential", "mul")) == 1 or found.count(("exponential", "exp")) == 2


@pytest.mark.parametrize("mu", [1e-3, 0.03, 1.0, 5.0])
@pytest.mark.parametrize("farthest", [9.0, 30.0])
def test_cells_of_a_message_are_as_good_as_the_lower_end_counts_on(mu, farthest):
    """Masses and places within 1e-12; places by differences of tails would be off by 2e-11 at mu = 1e-3."""
    arguments = np.float64(mu), np.float64(farthest)
    _check_cells(hidden_messages_lower.gaussian_cells(*arguments, 128)[0], mu, farthest)


def _check_cells(cells, mu, farthest):
    count = cells.right.size
    step = (farthest + mu) / count
    for sign, places, masses in ((1, cells.right, cells.right_mass), (-1, cells.left, cells.left_mass)):
        for k in (0, 1, 2, 20, 70, count - 2, count - 1):
            with mp.workprec(300):
                ends = [mp.mpf(mu) / 2 + sign * mp.mpf(step) * j for j in (k, k + 1)]
                mass, other = (
                    mp.ncdf(-sign * (ends[0] - m)) - (mp.ncdf(-sign * (ends[1] - m)) if k < count - 1 else 0)
                    for m in (mp.mpf(0), mp.mpf(mu))
                )
                assert abs(float(masses[k]) / mass - 1) <= 1e-12
                assert abs(float(places[k]) / (sign * (other - mass) / mass) - 1) <= 1e-12
