"""Kernels refuse, while they are traced, what would make a bound silently wrong: float32, knots of another side."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax import Array
from shapes import VARIABLE, checked

from checkin_jax.kernels import clones, gaussian_profile
from checkin_jax.kernels.composition import composed_contour, pld
from checkin_jax.kernels.messages import equal_steps, hidden_messages, one_bit_profile, staged_games

KERNELS = (
    pld.epsilon_from_log_moments,
    gaussian_profile.log_delta,
    pld.side_upper,
    pld.side_lower,
    pld.join,
    pld.log_moments_within,
    composed_contour.compose,
    clones.lines_lower,
    clones.profile_upper,
    equal_steps.profile_upper,
    one_bit_profile.profile_upper,
    staged_games.profile_upper,
    hidden_messages.hidden_upper,
)
KNOTS = np.linspace(0.0, 1.0, 5)
TESTS = Path(__file__).parents[1]


def side(size: int) -> pld.Side:
    masses = jnp.full(size, 0.01)
    return pld.Side(masses, masses, jnp.float64(0.1), jnp.float64(0.0))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__module__.rpartition(".")[2])
def test_signatures_state_shapes(kernel):
    hints = inspect.get_annotations(inspect.unwrap(kernel))
    assert any("Float64" in str(hint) for hint in hints.values())


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    "traced",
    ["bounds/test_engines.py", "system/test_lowering.py::test_every_kernel_lowers_for_cuda_in_float64"],
)
@pytest.mark.thorough
def test_kernels_keep_to_their_signatures_while_they_are_traced(traced):
    """Of both engines, and of every kernel: by tests that trace them, in a process that checks."""
    if os.environ.get(VARIABLE):
        pytest.skip("checked in this process already")
    files = ["unit/test_shapes.py", traced]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(str(TESTS / file) for file in files)],
        env={**os.environ, VARIABLE: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


here = pytest.mark.skipif(
    not os.environ.get(VARIABLE), reason="signatures are checked in a process of its own"
)


@here
def test_signatures_are_checked():
    knots = jnp.asarray(KNOTS, jnp.float32)
    with pytest.raises(jaxtyping.TypeCheckError, match="losses"):
        pld.side_upper(knots, knots)


def test_without_the_hook_float32_is_refused_too():
    knots = jnp.asarray(KNOTS, jnp.float32)
    for kernel, arguments in (
        (pld.side_upper, (knots, knots)),
        (pld.side_lower, (knots, knots[1:], knots[1:])),
        (gaussian_profile.log_delta, (knots, knots)),
        (pld.epsilon_from_log_moments, (knots, knots, knots[0])),
    ):
        with pytest.raises(AssertionError, match="float64"):
            inspect.unwrap(kernel)(*arguments)


@pytest.mark.usefixtures("x64")
def test_sides_of_other_knots_are_refused():
    pld.join(jnp.asarray(KNOTS), side(4), side(4), True)
    for plus, minus in ((side(1), side(4)), (side(4), side(3)), (side(1), side(1))):
        with pytest.raises((AssertionError, TypeError)):
            pld.join(jnp.asarray(KNOTS), plus, minus, True)
    with pytest.raises((AssertionError, TypeError)):
        pld.side_lower(jnp.asarray(KNOTS), jnp.ones(1), jnp.ones(4))


@pytest.mark.usefixtures("x64")
def test_values_never_trace_anew_and_shapes_do():
    """`chex.assert_max_traces` is the counter: one trace for any numbers, another one for another length."""
    kernel = jax.jit(chex.assert_max_traces(inspect.unwrap(pld.rdp_of_pure_dp), n=1))
    for epsilon in (0.1, 1.0, 3.0):
        kernel(jnp.float64(epsilon), jnp.asarray(KNOTS + 2.0))
    with pytest.raises(AssertionError, match="traced"):
        kernel(jnp.float64(1.0), jnp.asarray(KNOTS[1:] + 2.0))


@here
@pytest.mark.usefixtures("x64")
def test_an_axis_of_one_name_has_one_length():
    with pytest.raises(Exception, match="orders"):
        jax.jit(pld.epsilon_from_log_moments)(jnp.ones(3) + 1.0, jnp.ones(2), jnp.float64(-1.0))
    assert pld.epsilon_from_log_moments(jnp.ones(3) + 1.0, jnp.ones(3), jnp.float64(-1.0)).shape == (3,)


def test_the_check_passes_numbers_of_the_host():
    def double(x: jaxtyping.Float64[Array, " n"]) -> jaxtyping.Float64[Array, " n"]:
        return x + x

    assert checked(double)(1.0) == 2.0
    with pytest.raises(TypeError, match="double: x is float32"):
        checked(double)(jnp.zeros(3, jnp.float32))
