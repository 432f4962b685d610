r"""T**: one round of shuffled check-in of Gaussian messages, not adaptive within the round.

With laws X and Y whose mixtures dominate the centred term of every other client (`numerics.two_point_laws`),
n clients and a rate gamma < 1 the round's hockey-stick divergence at c >= 1 is at most
[docs/theory_gaussian.md, section 1b]

    gamma^n D(c) + (1/n) max_{0 <= m <= n-1} E( -n (c - 1) + Y_1 + ... + Y_m + X_{m+1} + ... + X_{n-1} + T* )_+ ,

with independent terms, each present with probability gamma, else 0. X, Y and T* become finite laws as in
`hidden_messages`, cut at one knot. The maximum over m is found as in `one_bit_profile`.
"""

from __future__ import annotations

import chex
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, require_float64, stop_loss
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
