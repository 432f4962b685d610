"""Elementary functions where XLA's own are less accurate than a bound counts on; tests/bounds/test_xla.py has limits.

`jnp.log1p` stands nowhere else in this package.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from checkin_jax.kernels import engine


def log1p(x: ArrayLike) -> Array:
    """log(1 + x) in float64, within 3 ulp for every x > -1; -inf at -1, NaN below.

    XLA's `log-plus-one` on the CPU is up to 129 ulp off for x in about [-0.53, -0.28] (jax-ml/jax#39707). Below -1/4
    the logarithm of 1 + x is used, whose one rounding counts for 1.7 ulp at most.
    """
    if engine.on_host():
        return np.log1p(x)  # type: ignore[return-value]
    return jnp.where(jnp.less(x, -0.25), jnp.log(jnp.add(1.0, x)), jnp.log1p(x))
