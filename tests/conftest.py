"""Strict numerics for every test, and the tolerance policy.

Policy: float64 kernels agree with mpmath to 1e-12 relative, or to the error their docstring states; bounds are
compared one-sidedly (`upper >= exact * (1 - 1e-12)`), since a tolerance is where a wrong bound hides; nothing is
looser than 1e-9 without a comment that names the source of the error.
"""

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Kernels compile once per static shape, which no deadline should judge.
settings.register_profile("checkin", deadline=None, derandomize=True, max_examples=25, database=None)
settings.load_profile("checkin")

# One-sided comparisons allow for the rounding of the oracle itself, which works in float64.
ORACLE_ROUNDING = 1e-11


@pytest.fixture
def x64():
    """Kernels are called inside `jax.enable_x64(True)`, as the library does."""
    with jax.enable_x64(True):
        yield
