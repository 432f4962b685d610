"""Pure jitted float64 functions: arrays in, arrays out, no validation, no state.

Call them inside `devices.float64()`; every public function of `checkin_jax.accounting` does. Shapes stand in the
signatures (`Float64[Array, " knots"]`: one axis, of the same length wherever it has that name); the tests check them.
"""

from typing import cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# XLA flushes numbers below 2.3e-308 to zero. A sum of up to 4,000 terms loses less than this by it; every bound adds
# it (times what the terms are multiplied by) on its own side.
FLUSHED = 1e-304

# What all float64 rounding of a profile value can amount to, relatively, with a wide margin (the largest
# part is the rounding of pi, amplified by n pi * deviation: below 1e-9 for n <= 1e12).
ROUNDING = 1e-8


def host(value: object) -> Array:
    """A number or array of the host as a float64 kernel argument; it stays numpy until the kernel is entered.

    Arithmetic on jax arrays outside of jit compiles each operation by itself; on the host numpy serves.
    """
    return cast(Array, np.asarray(value, dtype=np.float64))


def require_float64(*arguments: object) -> None:
    """Fails, while a kernel is traced, where an array among its arguments is not float64.

    Outside of `jax.enable_x64` JAX halves the digits without a word, and a bound would no longer be one.
    """
    chex.assert_type(jax.tree.leaves(arguments), jnp.float64)
