"""Many rounds of one client's own Gaussian messages, given how many there are: mixtures over a binomial law.

With K ~ Bin(T, rate) the number of rounds in which the client sends, H_c = E delta_G(mu sqrt(K), log c).
"""

from __future__ import annotations

from jax import Array

from checkin_jax.kernels import gaussian_profile as gaussian
from checkin_jax.kernels.execution.backend import quietly, xp

# Relative error of a binomial mass (its logarithm is good to 1e-13 of itself, and above -1e3) and of a profile, with a
# wide margin.
ROUNDING = 1e-9


@quietly
def gaussian_profile(mu: Array, number: Array, mass: Array, loss: Array) -> Array:
    """sum_K mass_K delta_G(mu sqrt(K), loss) at losses >= 0 in nats, within `ROUNDING` relatively; [losses].

    mu sqrt(K) up to 1e3. No messages (K = 0) tell nothing.
    """
    shift = mu * xp.sqrt(xp.maximum(number, 1.0))
    value = xp.exp(gaussian.log_delta(shift[None, :], loss[:, None]))
    return value @ xp.where(number > 0, mass, 0.0)
