"""Round-off of float64: the unit, and error bounds for discrete Fourier transforms and powers of them.

Kernels and host numerics count the same errors.
"""

from __future__ import annotations

import math
from typing import Any

from checkin_jax.kernels.execution.backend import xp

# Unit round-off; and twice the constant of FFTs in use: for M = 2^k points the relative error in the 2-norm
# is below 7 u log2 M, as for radix 2 in [Hig02], Theorem 24.2. docs/accounting.md counts the radices of real
# libraries.
UNIT = 2.0**-53
_FFT = 14.0


def of_fft(points: int) -> float:
    """Bound on the relative error of a transform of `points` values, a product of 2, 3 and 5, either way.

    It holds for all outputs together in the 2-norm, and for every single output against the 1-norm of the
    inputs, each of which reaches it on one path of log2(points) butterflies. So the error of an output is at
    most this times the smaller of the inputs' 1-norm and sqrt(points) times their 2-norm.
    """
    return _FFT * UNIT * math.log2(points)


def of_power(size: Any, off: Any, counts: Any, points: int) -> Any:
    """Bound on the error of prod_i phi_i^counts_i at each frequency, and of a transform of up to `points`.

    If |phi| has error at most a in the supremum norm, |phi^T - computed| <= T a (|phi| + a)^(T-1).

    Args:
      size: |phi_i| as computed by a real transform, [events, frequencies]. off: a, [events, 1] or a number.
      counts: T_i, [events]. points: of the transform, static.
    """
    padded = size + off
    log_padded = xp.log(padded)

    def summed(values: Any) -> Any:
        # No matrix product: BLAS starts threads for it.
        return xp.sum(counts[:, None] * values, axis=0)

    relative = summed(off / padded + 8.0 * UNIT * (4.0 + xp.abs(log_padded))) + of_fft(points)
    return xp.exp(summed(log_padded)) * relative
