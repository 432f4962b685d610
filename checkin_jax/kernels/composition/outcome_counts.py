"""Profile of many rounds of one client's own Gaussian messages: a mixture over their binomial number.

With K ~ Bin(T, rate) the number of rounds in which the client sends, H_c = E delta_G(mu sqrt(K), log c).
"""

from __future__ import annotations

from jax import Array

from checkin_jax.kernels import gaussian_profile as gaussian
from checkin_jax.kernels.execution.backend import quietly, xp

# Relative error of a binomial mass (its logarithm is above -1e3, with relative error 1e-13) and of a profile,
# with a wide margin.
ROUNDING = 1e-9


@quietly
def gaussian_profile(mu: Array, number: Array, mass: Array, loss: Array) -> Array:
    """sum_K mass_K delta_G(mu sqrt(K), loss) at losses >= 0 in nats, relative error `ROUNDING`; [losses].

    mu sqrt(K) is at most 1e3. The term K = 0 is zero.
    """
    shift = mu * xp.sqrt(xp.maximum(number, 1.0))
    value = xp.exp(gaussian.log_delta(shift[None, :], loss[:, None]))
    return value @ xp.where(number > 0, mass, 0.0)
