r"""One round of messages whose terms are all bounded by the same dominating step, for any number of messages.

With p = e^eps0 and c = e^l in [1, p) the round's hockey-stick divergence is at most

    sum_i mass_i (1/n) E( (n - K_i)(1 - c) + sum_{j <= K_i} t_j )_+ ,

where the t_j are independent: each has the dominating law with probability `rate`, else it is 1 - c. The law
puts mass `pair` on p - c and on 1 - cp each, `high` on p (1 - c), `low` on 0 and the rest on 1 - c
[docs/theory_mechanisms.md: t*_beta of a total variation beta, t_k of k-ary randomized response; t* of T1 has
beta = (p-1)/(p+1)]. Centred, in units of p - 1, these places are 1, -c, -(c - 1), (c - 1)/(p - 1) and 0.
E(x + S)_+ is a contour integral (`stop_loss`) whose order is chosen for each c. Every choice gives a bound,
and the cost does not grow with the number of messages.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, stop_loss
from checkin_jax.kernels.elementary import log1p, sin
from checkin_jax.kernels.execution.backend import by_rows, complex_of, of_jax, quietly, times_each, xp

# Frequencies are _SIDE a + b: cosines and sines of both parts give all frequencies by one matrix product.
_SIDE = 32
NODES = 48 * _SIDE
# Period of the contour in standard deviations of the tilted sum, over the order, and in jumps; and the
# standard deviation of the added normal variable over the period. The last frequency times that deviation
# is 5.5.
_DEVIATIONS, _LEAST_TURNS, _JUMPS = 11.0, 16.0, 3.0
SMOOTHING = 5.5 / (2.0 * math.pi * NODES)
# Number of orders tried first; finer ones between them are tried next.
_ORDERS = 48
_MOST_ORDER = 150.0
# The rounding of `excess` is within that counted by `stop_loss` for t |d| up to this, and grows no faster than t |d|.
_USUAL_TILT = 40.0
# (x - sin x) / x^3 by powers of x^2, from the highest down, for |x| <= 1.
_CUBIC = tuple((-1.0) ** j / math.factorial(2 * j + 3) for j in reversed(range(8)))


class StepLaw(NamedTuple):
    """Probabilities of the dominating step, under which (z, z') has mean (1, 1): float64 scalars.

    pair: of (z, z') = (p, 1), and of (1, p). high: of (p, p). low: of (0, 0). The rest is at (1, 1).
    """

    pair: Array
    high: Array
    low: Array


class StepCounts(NamedTuple):
    """Numbers of steps whose sums bound a unit: n > 0 real, rate, counts K_i and their masses; [parts]."""

    clients: Array
    rate: Array
    counts: Array
    masses: Array


class CentredLaws(NamedTuple):
    """Laws of mean zero on the same places: at [..., values], weights [..., laws, values].

    The rest of the weights is at zero.
    """

    at: Array
    weights: Array

    def real(self, orders: Array) -> Array:
        """T(t) = (E e^{t d} - 1) / t^2 at real orders [..., orders]; [..., orders, laws]."""
        squares = self.weights * xp.square(self.at)[..., None, :]
        return stop_loss.second(orders[..., None] * self.at[..., None, :]) @ xp.swapaxes(squares, -1, -2)


class SumContour(NamedTuple):
    """A contour, those of its nodes where a sum matters, and theta^2 T and T(t) of some laws there.

    tail: bound on what the other nodes and higher frequencies add to a stop-loss transform over e^{t x} M(t). coarser:
    factor of the rounding of a step that `stop_loss` counts, [...].
    """

    path: stop_loss.Contour
    theta: Array
    tail: Array
    excess: Array
    real: Array
    coarser: Array

    def step(self, law: int) -> stop_loss.Repeated:
        """One step with this law."""
        one = stop_loss.repeated(self.path, self.theta, self.excess[..., law, :], self.real[..., law])
        return one._replace(drift=one.drift * self.coarser[..., None])


def places(c_minus_1: Array, epsilon0: Array) -> Array:
    """Places of the step at (p, 1), (1, p), (p, p), (0, 0), centred, in units of p - 1; [..., 4]."""
    one = xp.ones_like(c_minus_1)
    return xp.stack([one, -(1.0 + c_minus_1), -c_minus_1, c_minus_1 / xp.expm1(epsilon0)], axis=-1)


def saddle(laws: CentredLaws, count: Array, x: Array) -> tuple[Array, Array]:
    """Approximate saddle point of e^{t x} M(t) / t^2, and the standard deviation of the sum tilted there.

    The maximum over the laws is used. Every order is valid.
    """

    def best(low: Array, high: Array) -> Array:
        logs = xp.linspace(low, high, _ORDERS, axis=-1)
        orders = xp.exp(logs)
        log_mgf = count * log1p(xp.square(orders)[..., None] * laws.real(orders))
        height = orders * x[..., None] + xp.max(log_mgf, axis=-1) - 2.0 * logs
        least = xp.argmin(xp.where(xp.isnan(height), math.inf, height), axis=-1)
        return xp.take_along_axis(logs, least[..., None], axis=-1)[..., 0]

    squares = xp.square(laws.at)[..., None, :]
    deviation = xp.sqrt(count * xp.max(xp.sum(laws.weights * squares, axis=-1), axis=-1))
    low = xp.minimum(xp.log(0.3 / (deviation - x)), 0.0)
    high = xp.full_like(low, math.log(_MOST_ORDER))
    rough, step = best(low, high), (high - low) / (_ORDERS - 1.0)
    order = xp.exp(best(rough - step, rough + step))
    tilted = laws.weights * xp.exp(order[..., None] * laws.at)[..., None, :]
    total = 1.0 + xp.square(order)[..., None] * laws.real(order[..., None])[..., 0, :]
    mean = xp.sum(tilted * laws.at[..., None, :], axis=-1) / total
    variance = xp.sum(tilted * squares, axis=-1) / total - xp.square(mean)
    return order, xp.sqrt(count * xp.maximum(xp.max(variance, axis=-1), 0.0))


def contour(order: Array, deviation: Array, jump: Array) -> stop_loss.Contour:
    """Contour of this order for sums of this standard deviation whose steps are at most about `jump`."""
    period = xp.maximum(_DEVIATIONS * deviation, _LEAST_TURNS / order) + _JUMPS * jump
    return stop_loss.Contour(order, period, SMOOTHING * period)


def _turned(phase: Array) -> tuple[Array, Array, Array]:
    """1 - cos x, sin x and x - sin x for x = phase, none of them with cancellation near 0."""
    square, half, sine = xp.square(phase), sin(0.5 * phase), sin(phase)
    series = phase * square * xp.polyval(xp.asarray(_CUBIC), square)
    return 2.0 * half * half, sine, xp.where(square < 1.0, series, phase - sine)


def excess(path: stop_loss.Contour, laws: CentredLaws, real: Array, nodes: int) -> Array:
    """theta^2 T(theta) at the contour's first nodes, given T(t) [..., laws]; [..., laws, nodes].

    With x = t d and y = 2 pi k d / L, e^{x+iy} - 1 - x - iy is e^x - 1 - x - e^x (1 - cos y) + i (y (e^x - 1) -
    e^x (y - sin y)). For y = u + v

        1 - cos y = (1 - cos u) cos v + (1 - cos v) + sin u sin v,
        y - sin y = (u - sin u) + (v - sin v) + sin u (1 - cos v) + (1 - cos u) sin v.
    """
    tilt, base = path.order[..., None] * laws.at, 2.0 * math.pi / path.period[..., None] * laws.at
    fast = _turned(times_each(base, _SIDE * xp.arange(nodes // _SIDE, dtype=xp.float64)))
    slow = _turned(times_each(base, xp.arange(_SIDE, dtype=xp.float64)))
    one, nothing = xp.ones_like(slow[0]), xp.zeros_like(slow[0])
    left = xp.stack([fast[0], xp.ones_like(fast[0]), fast[1], fast[2]], axis=-3)
    right = xp.stack(
        [
            xp.stack([1.0 - slow[0], slow[1]], axis=-1),
            xp.stack([slow[0], slow[2]], axis=-1),
            xp.stack([slow[1], slow[0]], axis=-1),
            xp.stack([nothing, one], axis=-1),
        ],
        axis=-4,
    )
    tilted = laws.weights * xp.exp(tilt)[..., None, :]
    left = left[..., None, :, :, :] * tilted[..., None, :, None]
    inner, before = 4 * laws.at.shape[-1], left.shape[:-3]
    left = xp.swapaxes(left.reshape(*before, inner, -1), -1, -2)
    both = (left @ right.reshape(*base.shape[:-1], 1, inner, -1)).reshape(*before, nodes, 2)
    frequency = times_each(2.0 * math.pi / path.period, xp.arange(nodes, dtype=xp.float64))
    turning = xp.sum(laws.weights * (laws.at * xp.expm1(tilt))[..., None, :], axis=-1)
    flat = xp.square(path.order)[..., None] * real
    return complex_of(
        flat[..., None] - both[..., 0], turning[..., None] * frequency[..., None, :] - both[..., 1]
    )


def on_nodes(
    path: stop_loss.Contour, laws: CentredLaws, repeated: int, count: Array, nodes: int
) -> SumContour:
    """Laws at those of the contour's first nodes that matter for `count` steps of the first `repeated` laws."""
    real = laws.real(path.order[..., None])[..., 0, :]
    theta, steps = stop_loss.nodes(path, nodes), excess(path, laws, real, nodes)
    kept, tail = stop_loss.lasting(path, theta, steps[..., :repeated, :], real[..., :repeated], count)
    tilt = xp.max(xp.abs(path.order[..., None] * laws.at), axis=-1)
    coarser = xp.maximum(1.0, tilt / _USUAL_TILT)
    return SumContour(path, theta[..., kept], tail, steps[..., kept], real, coarser)


def present(counts: Array, masses: Array) -> tuple[Array, Array]:
    """The counts above 0 of positive mass, and their masses; NaN is kept, which gives no bound.

    Under JAX all of them, which must be such.
    """
    if of_jax(counts, masses):
        return counts, masses
    kept = ~((counts <= 0) | (masses <= 0))
    return counts[kept], masses[kept]


class PoolSteps(NamedTuple):
    """Pool of one client (T1h): n' other members with their masses, [parts]; theta; the client's rate g."""

    sizes: Array
    masses: Array
    theta: Array
    rate: Array

    def others(self) -> tuple[Array, Array, Array]:
        """The sizes above 0 of positive mass, their masses, and the mass at 0, where the client is alone."""
        return *present(self.sizes, self.masses), xp.sum(self.masses[self.sizes <= 0])


# Relative: rounding of places moves the mean of a step by less, for up to 1e12 steps.
PLACED = 1e-9


def stretched(at: Array, pool: PoolSteps, shift: Array) -> Array:
    """Places of a step times beta, at 1 - c, and last the absent client's alpha (1 - c); shift: of 1 - c [...]."""
    alpha, beta = (1.0 - pool.rate) / (1.0 - pool.theta), pool.rate / pool.theta
    shift = shift[..., None]
    at = beta * xp.concatenate([at, xp.zeros_like(shift)], axis=-1) - (beta - 1.0) * shift
    return xp.concatenate([at, (1.0 - alpha) * shift], axis=-1)


def _alone(law: StepLaw, epsilon0: Array, losses: Array) -> Array:
    """Upper bound on the divergence of one message."""
    return xp.maximum(xp.exp(losses) * xp.expm1(epsilon0 - losses), 0.0) * law.pair


def _mean(at: Array, weights: Array, counts: Array, masses: Array, x: Array, jump: Array) -> Array:
    """Upper bounds on the sum of masses_i E(x_i + S_i)_+, S_i the sum of counts_i steps of one law; [losses].

    at: [losses, values]. weights: [values]. counts, masses: [parts]. x: [losses, parts]. The contour is good for the
    largest count.
    """
    if not counts.size:
        return xp.zeros(len(at))
    many = CentredLaws(at, weights[None, None])
    path = contour(*saddle(many, xp.max(counts), x[:, xp.argmax(counts)]), jump)

    def mean(at: Array, x: Array, *path: Array) -> Array:
        some = on_nodes(stop_loss.Contour(*path), many._replace(at=at), 1, xp.min(counts), NODES)
        # One axis for the parts.
        each = stop_loss.Contour(*(part[:, None] for part in path))
        theta, step = some.theta[:, None], stop_loss.Repeated(*(part[:, None] for part in some.step(0)))
        total = stop_loss.times(stop_loss.start(each, theta), step, counts[None])
        return stop_loss.stop_loss(total, each, theta, x, some.tail[:, None]) @ masses

    return by_rows(mean, (at, x, *path), NODES * (2 + counts.size // 4))


@quietly
def pooled_upper(
    law: StepLaw, pool: PoolSteps, epsilon0: Float64[Array, ""], losses: Float64[Array, " losses"]
) -> Float64[Array, " losses"]:
    """Upper bounds on H at e^losses for clients of unequal rates, 0 <= losses < epsilon0; [losses].

    E over n = n' + 1 of (1/n) E( sum_{j <= n} t_j )_+ (T1h): t_j is alpha (1 - c), or beta times a step.
    """
    sizes, masses, nobody = pool.others()
    counts, unit = sizes + 1.0, xp.expm1(epsilon0)
    plain = xp.maximum(1.0 - 2.0 * law.pair - law.high - law.low, 0.0)
    weights = pool.theta * xp.stack([law.pair, law.pair, law.high, law.low, plain])
    weights = xp.append(weights, 1.0 - pool.theta)

    c_minus_1 = xp.expm1(losses)
    shift = c_minus_1 / unit
    at = stretched(places(c_minus_1, epsilon0), pool, shift)
    # x grows with the number of steps, so the saddle point hardly depends on that number: one contour serves
    # all parts.
    value = _mean(at, weights, counts, masses / counts, -counts * shift[:, None], pool.rate / pool.theta)
    alone = pool.rate * _alone(law, epsilon0, losses) * (1.0 + ROUNDING) + FLUSHED
    value = value * unit * (1.0 + PLACED) + nobody * alone + FLUSHED
    return xp.where(xp.isfinite(value), xp.minimum(value, alone), alone)


@quietly
def profile_upper(
    law: StepLaw, step_counts: StepCounts, epsilon0: Float64[Array, ""], losses: Float64[Array, " losses"]
) -> Float64[Array, " losses"]:
    """Upper bounds on the round's H at e^losses, both directions, 0 <= losses < epsilon0; [losses]."""
    # No steps contribute nothing.
    counts, masses = present(step_counts.counts, step_counts.masses)
    unit, clients = xp.expm1(epsilon0), step_counts.clients
    weights = step_counts.rate * xp.stack([law.pair, law.pair, law.high, law.low])

    c_minus_1 = xp.expm1(losses)
    x = xp.broadcast_to((-clients * c_minus_1 / unit)[:, None], (losses.size, counts.size))
    value = _mean(places(c_minus_1, epsilon0), weights, counts, masses, x, xp.ones_like(epsilon0))
    value = value * unit / clients * (1.0 + ROUNDING) + FLUSHED
    alone = _alone(law, epsilon0, losses) + FLUSHED
    return xp.where(xp.isfinite(value), xp.minimum(value, alone), alone)
