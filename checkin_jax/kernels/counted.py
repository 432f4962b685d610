r"""Many rounds of one client's own messages, given how often it took part: mixtures, every error on its side.

With K ~ Bin(T, rate) the number of rounds in which the client sends, which whoever sees its messages sees too, and which
is the same under both records,

    H_c = E H_c(K messages):    delta_G(mu sqrt(K), log c) for Gaussian noise,
    sum_s (p/(p+1))^{(K+s)/2} (1/(p+1))^{(K-s)/2} C(K, (K+s)/2) (1 - c e^{-s eps0})_+ for randomized response.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.kernels import FLUSHED, binomial, gaussian
from checkin_jax.kernels.lattice import UNIT

# Relative error of a binomial mass (its logarithm is good to 1e-13 of itself, and above -1e3), of a profile, and of the
# recursion below; each with a wide margin.
ROUNDING = 1e-9

counts = jax.jit(binomial.cells, static_argnames="buckets")


@jax.jit
def gaussian_profile(mu: Array, number: Array, mass: Array, loss: Array) -> Array:
    """sum_K mass_K delta_G(mu sqrt(K), loss) at losses >= 0 in nats, within `ROUNDING` relatively; [losses].

    mu sqrt(K) up to 1e3. No messages (K = 0) tell nothing.
    """
    shift = mu * jnp.sqrt(jnp.maximum(number, 1.0))
    value = jnp.exp(gaussian.log_delta(shift[None, :], loss[:, None]))
    return value @ jnp.where(number > 0, mass, 0.0)


def response_law(epsilon0: float, number: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Masses of the loss s eps0 of K randomized responses, s = 1, 2, ..., largest K; within `ROUNDING` relatively.

    number, mass: values of K, whole, from 0 on without gaps, and their masses. All terms are positive, so nothing
    cancels: each of 2^11 steps costs three roundings. Masses below the least float64 are lost.
    """
    most = int(number[-1])
    kept, flipped = 1.0 / (1.0 + np.exp(-epsilon0)), np.exp(-epsilon0) / (1.0 + np.exp(-epsilon0))
    # s = -most .. most; only every other one can be reached, and rows alternate.
    walk = np.zeros(2 * most + 1)
    walk[most] = 1.0
    law = mass[0] * walk
    for weight in mass[1:]:
        following = np.zeros_like(walk)
        following[1:] = kept * walk[:-1]
        following[:-1] += flipped * walk[1:]
        walk = following
        law += weight * walk
    return law[most + 1 :]


def response_profile(epsilon0: float, law: np.ndarray, loss: np.ndarray, upper: bool) -> np.ndarray:
    """sum_s law_s (1 - e^{loss - s eps0})_+ at losses >= 0 in nats, rounded up or down; [losses]."""
    at = epsilon0 * np.arange(1.0, law.size + 1.0)
    away = 8.0 * UNIT * at
    gap = at[None, :] - np.asarray(loss)[:, None] + (away if upper else -away)[None, :]
    value = -np.expm1(-np.maximum(gap, 0.0)) @ law
    return value * (1.0 + ROUNDING) + FLUSHED if upper else np.maximum(value * (1.0 - ROUNDING) - FLUSHED, 0.0)
