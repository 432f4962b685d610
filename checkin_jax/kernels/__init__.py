"""Pure float64 functions, jitted or in NumPy: arrays in, arrays out, no validation, no state.

Call them inside `devices.float64()`, as every public function of `checkin_jax.accounting` does. Signatures
state the shapes (`Float64[Array, " knots"]`: one axis, of the same length wherever the name occurs), and the
tests check them.
"""

from typing import cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

# XLA flushes numbers below 2.3e-308 to zero. A sum of up to 4,000 terms loses less than this. Every bound
# adds it on its own side, times the factor that multiplies the terms.
FLUSHED = 1e-304

# Bound on the relative float64 rounding error of a profile value, with a wide margin. The largest part is the
# rounding of pi, amplified by n pi * deviation: below 1e-9 for n <= 1e12.
ROUNDING = 1e-8


def host(value: object) -> Array:
    """A number or array of the host as a float64 kernel argument, in NumPy until a kernel is entered.

    Outside of jit, arithmetic on jax arrays would compile each operation separately.
    """
    return cast(Array, np.asarray(value, dtype=np.float64))


def require_float64(*arguments: object) -> None:
    """Raises while a kernel is traced if an array among its arguments is not float64.

    Outside of `jax.enable_x64` JAX silently computes in float32, which voids every bound.
    """
    leaves = jax.tree.leaves(arguments)
    # chex takes a tenth of the time of a small kernel.
    if any(getattr(leaf, "dtype", None) != np.float64 for leaf in leaves):
        chex.assert_type(leaves, jnp.float64)


def float64_arrays(*values: ArrayLike) -> tuple[Array, ...]:
    """The arguments of a kernel that users call, as float64 arrays.

    Raises:
      RuntimeError: JAX computes in float32.
    """
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise RuntimeError(
            "jax_enable_x64 is off: expected jax.config.update('jax_enable_x64', True); float32 voids the error bounds"
        )
    return tuple(jnp.asarray(value, dtype=jnp.float64) for value in values)
