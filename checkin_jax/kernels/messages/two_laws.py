r"""One round of shuffled check-in of Gaussian messages (T**), not adaptive within the round.

With laws X and Y whose mixtures are above the centred term of every other client (`numerics.two_laws`), n clients and
a rate gamma < 1 the round's hockey-stick divergence at c >= 1 is at most [docs/theory_gaussian.md, section 1b]

    gamma^n D(c) + (1/n) max_{0 <= m <= n-1} E( -n (c - 1) + Y_1 + ... + Y_m + X_{m+1} + ... + X_{n-1} + T* )_+ ,

all independent, each term with probability gamma, else 0. X, Y and T* become finite laws as in `hidden_messages`, cut
at one knot; the largest over m is found as in `one_bit`.
"""

from __future__ import annotations

import functools

import chex
import jax
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, require_float64, stop_loss
from checkin_jax.kernels.execution import engine
from checkin_jax.kernels.execution.engine import hosted, xp
from checkin_jax.kernels.messages import hidden_messages, one_bit

# Values of c treated at a time.
_BATCH = 16


def _one(
    clients: Array, rate: Array, deviation: Array, knots: Array, one: tuple[Array, Array, Array, Array]
) -> Array:
    loss, ceiling, right, left = one
    x, others = -clients * xp.expm1(loss), clients - 1.0
    steps = engine.vmap(
        lambda up, down: hidden_messages.steps_of(hidden_messages.Law(knots, up, knots, down))
    )(right, left)
    beyond, left_beyond = xp.max(steps.beyond, axis=0), xp.max(steps.left_beyond)
    # The contour is chosen for X, what is lost for all of them.
    first = jax.tree.map(lambda part: part[0], steps)
    choice = hidden_messages.choose(
        first._replace(beyond=beyond, left_beyond=left_beyond), clients, rate, x, deviation
    )
    at, weights = engine.vmap(lambda law: hidden_messages.cut_at(law, choice.cut))(steps)
    path = stop_loss.Contour(choice.order, choice.period, hidden_messages.SMOOTHING * choice.period)
    theta = stop_loss.nodes(path, hidden_messages.NODES)
    begun = stop_loss.start(path, theta)
    alone = begun._replace(log_mgf=0.0 * begun.log_mgf, log_ratio=0.0 * begun.log_ratio)

    def more(total: stop_loss.Sum, law: int) -> stop_loss.Sum:
        count = xp.ones_like(rate)
        return hidden_messages.add(total, path, theta, at[law], weights[law], rate, count)

    curve, rest = one_bit.curve_between(
        path, theta, more(begun, 2), more(alone, 0), more(alone, 1), others, x
    )
    value = one_bit.largest(curve, others, ceiling * clients) + rest
    # n steps are cut.
    lost = rate * xp.maximum(beyond[choice.cut], left_beyond)
    fits = rate * xp.max(xp.sum(weights, axis=1)) <= 1.0
    value = (value / clients + lost) * (1.0 + ROUNDING) + FLUSHED
    return xp.where(xp.isfinite(value) & fits, value, xp.inf)


@hosted()
def profile_upper(
    clients: Float64[Array, ""],
    rate: Float64[Array, ""],
    deviation: Float64[Array, ""],
    knots: Float64[Array, " knots"],
    losses: Float64[Array, " losses"],
    ceilings: Float64[Array, " losses"],
    right: Float64[Array, "losses 3 knots"],
    left: Float64[Array, "losses 3 knots"],
) -> Float64[Array, " losses"]:
    """Upper bounds on (1/n) max_m E(...)_+ at c = e^losses >= 1; [losses].

    Args:
      clients: n. rate: gamma. deviation: about a standard deviation of the sum; only sharpness depends on it.
      knots: increasing from 0. right, left: E(d - k)_+ and E(-d - k)_+ of X, Y and T* there, or bounds on them.
      ceilings: other upper bounds; above them nothing is refined.

    Infinity where nothing is proved.
    """
    require_float64(clients, rate, deviation, knots, losses, ceilings, right, left)
    chex.assert_tree_shape_prefix((right, left, ceilings), (losses.size,))
    one = functools.partial(_one, clients, rate, deviation, knots)
    return engine.one_by_one(one, (losses, ceilings, right, left), _BATCH)
