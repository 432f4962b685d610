r"""T**: one round of shuffled check-in of Gaussian messages, not adaptive within the round.

With laws X and Y whose mixtures dominate the centred term of every other client (`numerics.two_point_laws`),
n clients and a rate gamma < 1 the round's hockey-stick divergence at c >= 1 is at most
[docs/theory_gaussian.md, section 1b]

    gamma^n D(c) + (1/n) max_{0 <= m <= n-1} E( -n (c - 1) + Y_1 + ... + Y_m + X_{m+1} + ... + X_{n-1} + T* )_+ ,

with independent terms, each present with probability gamma, else 0. X, Y and T* become finite laws as in
`hidden_messages`, cut at one knot. The maximum over m is found as in `one_bit_profile`.

`transforms_upper` bounds stop-loss transforms of z - c z', the term of another client's Gaussian message. In units of
the noise's standard deviation, for a client at y and records x, x', put u = x - y, v = x' - y. Under y's law
z = e^{u.W - |u|^2/2} and z' = e^{v.W - |v|^2/2} are the likelihood ratios, W standard normal. The centred term is
d = (z - 1) - c (z' - 1), c >= 1. E f(d) depends on u and v through their Gram matrix only, and increases with it (in
the order of symmetric matrices) for every convex f: the smaller experiment is a coarsening of the larger one
[docs/evaluation.md].

E(d - k)_+ and E(-d - k)_+ are averages over omega = W.v/|v| of phi(F, s), a call or a put on F zeta at s, where F is
the conditional mean of z, zeta is lognormal and s is linear in z'. phi is convex in (F, s) and monotone in F. On each
interval between nodes of omega, the curve of (z', F) is replaced by a line on its safe side (a chord or a tangent), and
the law of z' by its two ends with the mean preserved. Both replacements only raise the average.
"""

from __future__ import annotations

import functools
import math

import chex
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, elementary, require_float64, stop_loss
from checkin_jax.kernels.execution.backend import quietly, xp
from checkin_jax.kernels.messages import hidden_messages, one_bit_profile


@quietly
def profile_upper(
    masses: Float64[Array, " sums"],
    clients: Float64[Array, " sums"],
    counts: Float64[Array, " sums"],
    rate: Float64[Array, ""],
    deviation: Float64[Array, ""],
    knots: Float64[Array, " knots"],
    paths: hidden_messages.Paths,
    losses: Float64[Array, " losses"],
    ceilings: Float64[Array, "losses sums"],
    right: Float64[Array, "2 3 knots"],
    left: Float64[Array, "2 3 knots"],
) -> Float64[Array, " losses"]:
    """Upper bounds on sum_i mass_i (1/n_i) max_m E(...)_+ at c = e^losses >= 1, all on one contour; [losses].

    Args:
      masses, clients: mass_i and n_i. counts: numbers of terms, T included, each present with probability `rate`; in
        the display both are n.
      deviation: approximate standard deviation of a sum. paths: for a law near X. Only sharpness depends on
        both.
      knots: increasing from 0. losses: increasing, near each other.
      ceilings: other upper bounds on the terms that are multiplied by mass_i.
      right, left: upper bounds on E(d - k)_+ and E(-d - k)_+ of X, Y and T* at the knots, at the first and
        the last loss; convex in c between.

    Infinity where no bound is proved.
    """
    require_float64(masses, clients, counts, rate, deviation, knots, paths, losses, ceilings, right, left)
    chex.assert_tree_shape_prefix((right, left), (2, 3))
    usual = -(clients @ masses) / xp.sum(masses) * xp.expm1(losses[losses.size // 2])
    every = [
        hidden_messages.steps_of(
            hidden_messages.StepTransforms(knots, right[end, law], knots, left[end, law])
        )
        for end in (0, 1)
        for law in (0, 1, 2)
    ]
    beyond = xp.max(xp.stack([law.beyond for law in every]), axis=0)
    left_beyond = xp.max(xp.stack([law.left_beyond for law in every]))
    choice = hidden_messages.choose(paths, usual, deviation)
    path = stop_loss.Contour(choice.order, choice.period, hidden_messages.SMOOTHING * choice.period)
    theta = stop_loss.nodes(path, hidden_messages.NODES)
    begun = stop_loss.start(path, theta)
    alone = begun._replace(log_mgf=0.0 * begun.log_mgf, log_ratio=0.0 * begun.log_ratio)
    finite = [hidden_messages.of_a_law(*hidden_messages.cut_at(law, choice.cut), rate) for law in every]
    between, one = hidden_messages.shares(losses), xp.ones_like(rate)

    def more(total: stop_loss.ContourSum, law: int) -> stop_loss.ContourSum:
        ends = [hidden_messages.step_on(path, *each, rate) for each in finite[law::3][: losses.size]]
        return hidden_messages.add(total, path, theta, hidden_messages.mixed(ends, between), one)

    sums, last = (more(begun, 2), more(alone, 0), more(alone, 1)), stop_loss.last(path, hidden_messages.NODES)
    total, cost = xp.zeros_like(losses), rate * xp.maximum(beyond[choice.cut], left_beyond)
    for mass, n, count, most in zip(masses, clients, counts, ceilings.T):
        x, others = -n * xp.expm1(losses), count - 1.0
        curve, rest = one_bit_profile.curve_between(path, theta, *sums, others, x, last)
        # All terms are cut.
        value = one_bit_profile.largest(curve, others, most * n) + rest + count * cost
        value = value / n * (1.0 + ROUNDING) + FLUSHED
        total = total + mass * xp.minimum(xp.where(xp.isfinite(value), value, xp.inf), most)
    return total * (1.0 + ROUNDING)


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
