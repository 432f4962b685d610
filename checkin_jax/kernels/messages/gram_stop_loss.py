r"""Upper bounds on stop-loss transforms of z - c z', the term of another client's Gaussian message.

In units of the noise's standard deviation, for a client at y and records x, x', put u = x - y, v = x' - y.
Under y's law z = e^{u.W - |u|^2/2} and z' = e^{v.W - |v|^2/2} are the likelihood ratios, W standard normal.
The centred term is d = (z - 1) - c (z' - 1), c >= 1. E f(d) depends on u and v through their Gram matrix
only, and increases with it (in the order of symmetric matrices) for every convex f: the smaller experiment is
a coarsening of the larger one [docs/evaluation.md].

E(d - k)_+ and E(-d - k)_+ are averages over omega = W.v/|v| of phi(F, s), a call or a put on F zeta at s,
where F is the conditional mean of z, zeta is lognormal and s is linear in z'. phi is convex in (F, s) and
monotone in F. On each interval between nodes of omega, the curve of (z', F) is replaced by a line on its safe
side (a chord or a tangent), and the law of z' by its two ends with the mean preserved. Both replacements only
raise the average.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, elementary, require_float64

# Intervals of omega, their range in standard deviations, and how much denser the middle is.
_PARTS, _REACH, _BEND = 72, 9.5, 2.0
# Relative rounding of a value, with a wide margin; and of the terms whose difference it is.
_RELATIVE, _ABSOLUTE = 1e-10, 2e-14
# Triples per batch.
_BATCH = 8


def _between(low: Array, high: Array) -> Array:
    """Pr[low < N < high], accurate in both tails."""
    right = low > 0
    ndtr = jax.scipy.special.ndtr
    return jnp.where(right, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


def _option(call: bool, forward: Array, strike: Array, volatility: Array) -> Array:
    """Upper bound on E(F zeta - s)_+, or on E(s - F zeta)_+; zeta = e^{q N - q^2/2}, F > 0, any s."""
    positive = strike > 0
    safe = jnp.where(positive, strike, 1.0)
    above = jnp.log(forward / safe) / volatility + 0.5 * volatility
    below = above - volatility
    # Strike and forward share one density: s phi(below) = F phi(above).
    density = forward * jnp.exp(-0.5 * jnp.square(above))

    def part(amount: Array, x: Array) -> Array:
        x = x if call else -x
        tail = density * elementary.scaled_tail(jnp.abs(x))
        return jnp.where(x > 0, amount - tail, tail)

    first, second = part(forward, above), part(safe, below)
    value = jnp.maximum(first - second if call else second - first, 0.0) * (1.0 + _RELATIVE)
    value += _ABSOLUTE * (1.0 + jnp.square(above)) * (first + second)
    outside = forward - strike if call else jnp.zeros_like(forward)
    return jnp.where(positive, value, outside * (1.0 + _RELATIVE))


def _one(c: Array, knots: Array, gram: Array) -> tuple[Array, Array]:
    """Both transforms of one triple: +-d = scale F zeta - other z' + ..., z' the ratio of smaller
    variance.
    """
    mirrored = gram[0] < gram[2]
    one = jnp.ones_like(c)
    scale, other = jnp.where(mirrored, c, one), jnp.where(mirrored, one, c)
    b = jnp.sqrt(jnp.minimum(gram[0], gram[2]))
    p = gram[1] / b
    volatility = jnp.sqrt(jnp.maximum(jnp.maximum(gram[0], gram[2]) - jnp.square(p), 1e-12))
    low, high = jnp.minimum(p, 0.0) - _REACH, jnp.maximum(p, b) + _REACH
    steps = jnp.sinh(_BEND * jnp.linspace(-1.0, 1.0, _PARTS + 1)) / math.sinh(_BEND)
    omega = 0.5 * (low + high) + 0.5 * (high - low) * steps
    place, forward = jnp.exp(b * omega - 0.5 * b * b), jnp.exp(p * omega - 0.5 * p * p)

    left, right = omega[:-1], omega[1:]
    mass, moved = _between(left, right), _between(left - b, right - b)
    to_right = jnp.clip((moved - place[:-1] * mass) / (place[1:] - place[:-1]), 0.0, mass)
    weight = (jnp.append(mass - to_right, 0.0) + jnp.append(0.0, to_right)) * (1.0 + _RELATIVE)

    # Tangents of F as a function of z' in the middle of each interval, at its ends; the safer one at every
    # node.
    middle = 0.5 * (left + right)
    at_middle, power = jnp.exp(p * middle - 0.5 * p * p), p / b
    at_left, at_right = (at_middle * (1.0 + power * jnp.expm1(b * (end - middle))) for end in (left, right))
    of_right, of_left = jnp.append(at_left, at_right[-1]), jnp.append(at_left[0], at_right)
    # F is a convex function of z' if its power is outside (0, 1).
    convex = (power >= 1.0) | (power <= 0.0)
    above = jnp.where(convex, forward, jnp.maximum(of_right, of_left)) * (1.0 + 1e-13)
    below = jnp.where(convex, jnp.minimum(of_right, of_left), forward) * (1.0 - 1e-13)

    # Mass beyond the nodes: of omega itself, and of omega shifted by p or b.
    out, out_forward, out_place = (
        jax.scipy.special.ndtr(omega[0] - moved) + jax.scipy.special.ndtr(moved - omega[-1])
        for moved in (0.0 * p, p, b)
    )
    up, down = knots + (scale - other), (scale - other) - knots
    calls = _option(True, scale * above[None, :], other * place[None, :] + up[:, None], volatility) @ weight
    puts = _option(False, scale * below[None, :], other * place[None, :] + down[:, None], volatility) @ weight
    calls += scale * out_forward + jnp.maximum(-up, 0.0) * out
    puts += other * out_place + jnp.maximum(down, 0.0) * out
    return jnp.where(mirrored, puts, calls) + FLUSHED, jnp.where(mirrored, calls, puts) + FLUSHED


@jax.jit
def transforms_upper(
    grams: Float64[Array, "triples 3"], c: Float64[Array, ""], knots: Float64[Array, " knots"]
) -> tuple[Float64[Array, "triples knots"], Float64[Array, "triples knots"]]:
    """Upper bounds on E(d - k)_+ and E(-d - k)_+ at the knots k >= 0, for each triple; [triples, knots].

    Args:
      grams: (|u|^2, u.v, |v|^2) of positive definite matrices, |u| and |v| in [1e-4, 4]. c: at least 1.
    """
    require_float64(grams, c, knots)
    return jax.lax.map(functools.partial(_one, c, knots), grams, batch_size=_BATCH)
