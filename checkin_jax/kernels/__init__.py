"""Pure jitted float64 functions: arrays in, arrays out, no validation, no state.

Call them inside `jax.enable_x64(True)`; every public function of `checkin_jax.accounting` does.
"""

from typing import cast

import numpy as np
from jax import Array

# XLA flushes numbers below 2.3e-308 to zero. A sum of up to 4,000 terms loses less than this by it; every bound adds
# it (times what the terms are multiplied by) on its own side.
FLUSHED = 1e-304


def host(value: object) -> Array:
    """A number or array of the host as a float64 kernel argument; it stays numpy until the kernel is entered.

    Arithmetic on jax arrays outside of jit compiles each operation by itself; on the host numpy serves.
    """
    return cast(Array, np.asarray(value, dtype=np.float64))
