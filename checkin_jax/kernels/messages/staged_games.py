r"""T1+: one round of shuffled check-in of eps0-LDP messages by staged domination, asymptotically exact.

With p = e^eps0, c = e^l >= 1 and a rate below one, the round's hockey-stick divergence is at most the value
of a game [docs/theory_hexagon.md]: K clients check in, and each step z - c z' has any law with mean (1, 1) on
the hexagon of the likelihood ratios z, z', whose corners are (p, 1), (1, p), (p, p), (1/p, 1/p), (1, 1/p),
(1/p, 1). T1 replaces every step by one dominating law. T1+ does so for the first few steps only. Once their
sum is smooth, all laws are dominated *after* that sum by a mixture: a share `eta` of T1's law, and a law of
nearly the largest variance (3-ary randomized response, or binary randomized response and its mirror image).
The number of steps grows geometrically over the stages. In each stage the least eta is found on a grid; a
bound on the remaining failure of domination for all x, relative to e^{t x}, is added.

Steps are centred and in units of p - 1. The cost does not grow with the number of clients.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jaxtyping import Float64

from checkin_jax.kernels import FLUSHED, ROUNDING, elementary, require_float64, stop_loss
from checkin_jax.kernels.elementary import complex_exp, log1p, sin
from checkin_jax.kernels.execution.backend import (
    complex_of,
    in_turn,
    irfft,
    mixed,
    of_jax,
    quietly,
    scan,
    unstacked,
    xp,
)
from checkin_jax.kernels.messages.equal_steps import StepCounts
from checkin_jax.kernels.messages.likelihood_polytopes import HEXAGON, Game, Message, OwnLaws

# Contour nodes, usually and for very many steps, where T1's share is small and the mass beyond the period
# must be as small.
USUAL, MANY = 640, 1024
# Nodes per period in standard deviations of the sum, grid points per node for the check of domination, and
# the standard deviation of the added normal variable (its square is lost in variance).
_PER_DEVIATION, _POINTS, _SMOOTHING = 51.2, 2, 0.02
# Interpolation error for spacing h: f exceeds the chord by at most |second difference|/8 + (5/192) h^4 max
# |f''''|.
_FOURTH = 5.0 / 192.0
# The candidate is chosen on every _PART-th grid point.
_PART = 8
# Nodes of the final sum whose phases are evaluated.
TURNED = 256
# Expected share of T1's law, times the standard deviation of the sum in units of p - 1.
_FEW = 1.0
# Losses at once in XLA.
_LOSSES_AT_ONCE = 13


class Laws(NamedTuple):
    """The laws of a game at the nodes of a contour, for one c or several, [...]; the last is above the others in
    convex order.

    laws: T(theta_k), complex [..., laws, nodes]. real: T(t), [..., laws]. orders: one real order above t and one
    below zero, for Chernoff's bounds, [..., 2]; at_orders: T there, [..., laws, 2]. candidates: those of the game.
    """

    contour: stop_loss.Contour
    theta: Array
    laws: Array
    real: Array
    orders: Array
    at_orders: Array
    candidates: Array


class Played(NamedTuple):
    """The replaced steps: their sum S, log M_S at the two orders of `Laws`, and the failure of domination.

    ratio: M_S(theta_k) / M_S(t), complex [..., nodes], stored because XLA would recompute it for each law. debt:
    this times e^{t x} M_S(t) is added to E(x + S)_+. growth: logarithm of the factor by which all steps
    multiply a debt.
    """

    total: stop_loss.ContourSum
    ratio: Array
    far: Array
    debt: Array
    growth: Array


def _of_share(share: Array, rows: Array) -> Array:
    """share [..., rows] times rows [..., rows, any], real or complex."""
    times = mixed if xp.iscomplexobj(rows) else xp.matmul
    return times(share[..., None, :], rows)[..., 0, :]


def _as_complex(value: Array) -> Array:
    return value.astype(xp.complex128)


def _real_second(z: Array) -> Array:
    return xp.real(stop_loss.second(_as_complex(z)))


def laws_on(
    candidates: Array,
    at: Array,
    weights: Array,
    deviation: Array,
    order: Array,
    nodes: int,
    first: int | None = None,
) -> Laws:
    """The game on a contour for sums of this standard deviation; only its `first` nodes if given.

    at: [..., values]. weights: [..., laws, values]. deviation, order: [...].
    """
    contour = stop_loss.Contour(order, nodes / _PER_DEVIATION * deviation, _SMOOTHING * deviation)
    theta = stop_loss.nodes(contour, nodes if first is None else first)
    squares = xp.square(at)
    steps = stop_loss.second(theta[..., None, :] * _as_complex(at)[..., :, None])
    laws = mixed(weights * squares[..., None, :], steps)
    orders = xp.stack([order, order + 5.0 / deviation, -3.0 / deviation], axis=-1)
    real = weights @ (squares[..., None] * _real_second(at[..., None] * orders[..., None, :]))
    return Laws(contour, theta, laws, real[..., 0], orders[..., 1:], real[..., 1:], candidates)


def first_nodes(game: Laws) -> Laws:
    """The game at the nodes whose phases are evaluated."""
    return game._replace(theta=game.theta[..., :TURNED], laws=game.laws[..., :TURNED])


def step_of(game: Laws, share: Array) -> tuple[stop_loss.Repeated, Array]:
    """A step with the mixture `share` [..., laws], and its T(t)."""
    real = xp.sum(share * game.real, axis=-1)
    excess = game.theta * game.theta * _of_share(share, game.laws)
    return stop_loss.repeated(game.contour, game.theta, excess, real), real


def add(game: Laws, played: Played, share: Array, count: Array, failed: Array) -> Played:
    """Adds `count` steps with the mixture `share` [..., laws]; each fails to dominate by failed e^{t x} M_S(t)."""
    step, real = step_of(game, share)
    total, number = stop_loss.times(played.total, step, count), xp.asarray(count)[..., None]
    growth, debt = _grown(game, played, real, count, failed)
    return Played(
        total,
        complex_exp(total.log_ratio),
        played.far + number * log1p(xp.square(game.orders) * _of_share(share, game.at_orders)),
        debt,
        growth,
    )


def _grown(game: Laws, played: Played, real: Array, count: Array, failed: Array) -> tuple[Array, Array]:
    """Growth and debt after `count` more steps with T(t) = real, each failing by `failed`."""
    square = xp.square(game.contour.order)
    largest = xp.max(game.real[..., :-1], axis=-1)
    # A step multiplies e^{t x} by at most its largest moment. The debt is in units of M_S(t).
    growth = count * (log1p(square * xp.maximum(largest, real)) - log1p(square * real))
    return played.growth + growth, (played.debt + count * failed) * xp.exp(growth)


def t1_alone(game: Laws) -> Array:
    """The mixture that is T1's law."""
    return xp.concatenate([xp.zeros_like(game.real[..., :-1]), xp.ones_like(game.real[..., -1:])], axis=-1)


def nothing_played(game: Laws) -> Played:
    """The normal variable alone."""
    nothing = xp.zeros_like(game.contour.order)
    normal = stop_loss.start(game.contour, game.theta)
    far = 0.5 * xp.square(game.contour.smoothing[..., None] * game.orders)
    return Played(normal, complex_exp(normal.log_ratio), far, nothing, nothing)


def begin(game: Laws, first: Array) -> Played:
    """The normal variable and `first` steps with T1's law, which dominates every law by theorem."""
    return add(game, nothing_played(game), t1_alone(game), first, xp.zeros_like(game.contour.order))


def _grid(game: Laws, played: Played) -> Array:
    """e^{-t x} (E f(x + d) - f(x)) / M_S(t), f(x) = E(x + S)_+, on one period; [..., laws, points]."""
    points = _POINTS * game.theta.shape[-1]
    ratio = played.ratio * _as_complex(points / game.contour.period)[..., None]
    return irfft(ratio[..., None, :] * game.laws, points)


def _larger(a: Array, b: Array | float) -> Array:
    """The larger number, three times as fast as XLA's maximum on a CPU. NaN may be lost; `noise`
    is NaN then.
    """
    return xp.where(a > b, a, b) if of_jax(a, b) else np.maximum(a, b)  # type: ignore[return-value]


def _largest(rows: Array) -> Array:
    """Largest of the rows [..., rows, any]; [..., any]."""
    return functools.reduce(_larger, [rows[..., i, :] for i in range(rows.shape[-2])])


def _peak(values: Array) -> Array:
    """Upper bound on the maximum of sampled periodic functions [..., functions, points], without the
    fourth-derivative term.
    """

    def inside(values: Array) -> Array:
        bend = _larger(2.0 * values[..., 1:-1] - values[..., :-2] - values[..., 2:], 0.0)
        ends = _larger(values[..., 1:-2], values[..., 2:-1])
        return xp.max(ends + 0.125 * _larger(bend[..., :-1], bend[..., 1:]), axis=(-2, -1))

    seam = xp.concatenate([values[..., -3:], values[..., :3]], axis=-1)
    return _larger(inside(values), inside(seam))


def _failure(game: Laws, played: Played, grid: Array, share: Array) -> Array:
    """F with E f(x + d) <= E f(x + w) + F e^{t x} M_S(t) for all x and laws of d; w has the
    mixture `share`.

    F is the largest excess on the grid, plus terms for points between (second differences and fourth
    derivatives), beyond the nodes (the normal variable alone) and the period (Chernoff), and rounding.
    """
    period, total, nodes, points = game.contour.period, played.total, game.theta.shape[-1], grid.shape[-1]
    size = stop_loss.multiplicity(nodes) * xp.exp(xp.real(total.log_ratio))
    frequency = xp.imag(game.theta)
    here = _peak(grid[..., :-1, :] - _of_share(share, grid)[..., None, :])
    apart = xp.abs(_of_share(share, game.laws)[..., None, :] - game.laws[..., :-1, :])
    weighed = size * xp.square(frequency * frequency)
    fourth = xp.max((apart @ weighed[..., None])[..., 0], axis=-1) / period
    between = _FOURTH * (period / points) ** 4 * fourth

    largest = xp.max(game.real, axis=-1)
    noise = size * (elementary.of_fft(points) * math.sqrt(points))
    noise += stop_loss.multiplicity(nodes) * stop_loss.inaccuracy(total)
    # Factor 3/2, for second differences of rounded values.
    unresolved = (
        3.0 * largest / period * (xp.sum(noise, axis=-1) + 2.0 * stop_loss.beyond(game.contour, nodes))
    )

    # (u)_+ <= e^{a u} / (e a), a > t, on the left; the same for (u)_- with a < 0 on the right. The window is
    # placed where both bounds are equal.
    away = xp.abs(game.orders - game.contour.order[..., None])
    left, right = away[..., 0], away[..., 1]
    steps = log1p(xp.square(game.orders) * xp.max(game.at_orders, axis=-2))
    beyond = played.far + steps - 1.0 - xp.log(xp.abs(game.orders)) - total.log_mgf[..., None]
    outside = (left * beyond[..., 1] + right * beyond[..., 0] - left * right * period) / (left + right)
    wrapped = 4.0 * xp.exp(outside) / -xp.expm1(-xp.minimum(left, right) * period)
    return xp.maximum(here, 0.0) + between + unresolved + wrapped


def _choose(game: Laws, grid: Array, allowed: Array) -> Array:
    """Mixture of T1's law and one candidate with the smallest moment at t, up to the allowed failure; [..., laws].

    On the grid, (1 - eta) candidate + eta T1 may be below a law by at most `allowed` [...]. The candidate is
    chosen on a part of the grid; every candidate is valid.
    """
    tried, among = game.candidates, game.candidates.shape[1]

    def least(candidates: Array, grid: Array) -> Array:
        main = candidates @ grid[..., :among, :]
        missing = _largest(grid[..., :-1, :])[..., None, :] - main - allowed[..., None, None]
        room = grid[..., -1:, :] - main
        shares = xp.where(missing < room, missing / room, 1.0)
        return xp.max(xp.where(missing > 0, shares, 0.0), axis=-1)

    rough = least(tried, grid[..., ::_PART])
    moments = (1.0 - rough) * (game.real[..., :among] @ tried.T) + rough * game.real[..., -1:]
    best = xp.take(tried, xp.argmin(moments, axis=-1), axis=0)
    eta = least(best[..., None, :], grid)
    others = xp.zeros_like(game.real[..., : game.real.shape[-1] - 1 - among])
    return xp.concatenate([(1.0 - eta) * best, others, eta], axis=-1)


def stage_law(game: Laws, played: Played, allowed: Array) -> tuple[Array, Array]:
    """Law of a stage, [..., laws], and a bound on its failure to dominate; `allowed` only affects sharpness."""
    grid = _grid(game, played)
    share = _choose(game, grid, allowed)
    # T1's law dominates by theorem.
    return share, xp.where(share[..., -1] >= 1.0, 0.0, _failure(game, played, grid, share))


class Later(NamedTuple):
    """The sum of all steps, its growth and its debt, as in `Played`."""

    total: stop_loss.ContourSum
    growth: Array
    debt: Array


class Staged(NamedTuple):
    """The game after the law of all later steps is chosen, at the contour's first nodes.

    share: of the law, [..., laws]. failed: bound on its failure to dominate. tail: contribution of the other
    nodes to a stop-loss transform. later: a step with this law, and real: its T(t).
    """

    game: Laws
    played: Played
    share: Array
    failed: Array
    tail: Array
    later: stop_loss.Repeated
    real: Array

    def more(self, count: Array) -> Later:
        """These and `count` later steps."""
        total = stop_loss.times(self.played.total, self.later, count)
        return Later(total, *_grown(self.game, self.played, self.real, count, self.failed))

    def stop_loss(self, total: stop_loss.ContourSum, x: Array) -> Array:
        """E(x + S)_+ for an S that includes all steps in `played`."""
        return stop_loss.stop_loss(total, self.game.contour, self.game.theta, x, self.tail)

    def value(self, count: Array, x: Array) -> Array:
        """E(x + S)_+ plus debts, S having `count` later steps."""
        total, _, debt = self.more(count)
        return self.stop_loss(total, x) + debt * xp.exp(self.game.contour.order * x + total.log_mgf)


def _binomial(
    end: Staged, rate: Array, before: Array, shift: Array
) -> Callable[[Array, Array], tuple[Array, Array]]:
    """A function of n and x: upper bounds on (E(x + S)_+ plus debts for S of K steps, K >= before; Pr[K < before]).

    K is Bin(n, rate). Every step is also shifted by `shift` >= 0; x includes the shifts of the first `before` steps.

    For any s in (0, 1], with g the rate, sum_{K >= J} Pr[K] M^(K-J) is (1 - g + g M)^n M^-J up to an error of
    at most E = (1 - g + g s)^n s^-J if |M| >= s, and is at most E if |M| < s. E bounds Pr[K < J]. E is least
    at s = J (1 - g) / ((n - J) g).
    """
    game, played, total, order = end.game, end.played, end.played.total, end.game.contour.order
    plain = _of_share(end.share, game.laws)
    # e^{theta shift} - 1, without cancellation.
    grown, phase = xp.expm1(order * shift), xp.imag(game.theta) * shift[..., None]
    turned = complex_of(-2.0 * xp.square(sin(0.5 * phase)), sin(phase))
    moved = _as_complex(grown)[..., None] + _as_complex(1.0 + grown)[..., None] * turned
    step = plain + moved * (1.0 / (game.theta * game.theta) + plain)
    real = end.real + grown * (1.0 / xp.square(order) + end.real)

    excess = game.theta * game.theta * step

    def at_nodes(excess: Array, real: Array) -> tuple[stop_loss.Repeated, Array]:
        return stop_loss.repeated(game.contour, game.theta, excess, real), 1.0 + stop_loss.squared(excess)

    # A step, and one that is taken with probability `rate`.
    pair = xp.stack([excess, _as_complex(rate) * excess]), xp.stack([real, rate * real])
    (taken, size), (steps, _) = unstacked(in_turn(at_nodes, pair))
    # A step multiplies e^{t x} by at most Q, and E (K - J)_+ Q^(K-J) <= n gamma Q (1 - gamma + gamma Q)^(n-1)
    # Q^-J.
    most = xp.square(order) * xp.maximum(end.real, xp.max(game.real[..., :-1], axis=-1))
    growth = most + grown * (1.0 + most)

    def value(clients: Array, x: Array) -> tuple[Array, Array]:
        def log_sum(excess: Array) -> Array:
            return clients * log1p(rate * excess) - before * log1p(excess)

        edge = xp.clip(before * (1.0 - rate) / ((clients - before) * rate), 1e-3, 1.0)
        log_edge = log_sum(edge - 1.0) + math.log(2.0)  # for the rounding of |M|
        counted = stop_loss.times(total, steps, clients)
        kept = size >= xp.square(edge)
        late = stop_loss.ContourSum(
            counted.log_mgf - before * taken.log_mgf,
            xp.where(
                kept, counted.log_ratio - _as_complex(before) * taken.log_ratio, _as_complex(xp.asarray(-1e4))
            ),
            xp.where(kept, counted.drift + before * taken.drift, 0.0),
            counted.absolute + xp.exp(log_edge - log_sum(xp.square(order) * real)),
        )
        further = clients * rate * (1.0 + growth) / (1.0 + rate * growth)
        debt = (played.debt + end.failed * further) * xp.exp(log_sum(growth) + total.log_mgf + order * x)
        return end.stop_loss(late, x) + debt, xp.exp(log_edge)

    return value


class Stages(NamedTuple):
    """Numbers of steps: `first` with T1's law, then `sizes` [stages]; from `before` on one law for all.

    tolerance: relative error allowed for failures of domination.
    """

    first: Array
    sizes: Array
    before: Array
    tolerance: Array


def expected_deviation(at: Array, weights: Array, mean: Array) -> Array:
    """Approximate standard deviation of about `mean` steps, [...]; it only chooses the contour.

    at, weights: as in `laws_on`; the last law is above the others.
    """
    variances = mean * (weights @ xp.square(at)[..., None])[..., 0]
    largest = xp.max(variances[..., :-1], axis=-1)
    # With few large steps, most have T1's law.
    share = xp.minimum(_FEW / xp.sqrt(largest), 1.0)
    return xp.sqrt(largest + share * xp.maximum(variances[..., -1] - largest, 0.0))


def contoured(deviation: Array, x: Array) -> tuple[Array, Array]:
    """Saddle point t of a normal sum of this deviation, starting at x; and about E(x + S)_+ e^{-t
    x} / M(t).
    """
    distance = -x / deviation
    saddle = 0.5 * (distance + xp.sqrt(distance * distance + 8.0))
    worth = xp.exp(-0.5 * xp.square(saddle - distance)) / (2.5 * (1.0 + distance) ** 2)
    return saddle / deviation, worth * deviation


def staged(game: Laws, stages: Stages, mean: Array, worth: Array) -> Staged:
    """Plays the steps before `stages.before` and chooses the later law; mean and worth only
    affect choices.
    """
    counts = xp.append(stages.sizes, xp.maximum(mean - stages.before, 1.0))
    shares = stages.tolerance / (counts.size * xp.maximum(counts, 1.0))
    allowed = shares.reshape(-1, *(1,) * worth.ndim) * worth

    def stage(state: tuple[Played, Array, Array], now: tuple[Array, Array]) -> tuple[Played, Array, Array]:
        (played, share, failed), (count, allowed) = state, now
        played = add(game, played, share, count, failed)
        return played, *stage_law(game, played, allowed)

    start = nothing_played(game), t1_alone(game), xp.zeros_like(worth)
    played, share, failed = scan(stage, start, (xp.append(stages.first, stages.sizes), allowed))
    total, tail = stop_loss.fewer(played.total, game.contour, game.theta, TURNED)
    few = first_nodes(game)
    begun = played._replace(total=total, ratio=played.ratio[..., :TURNED])
    return Staged(few, begun, share, failed, tail, *step_of(few, share))


def play(
    rules: Game, nodes: int, message: Message, stages: Stages, loss: Array, mean: Array, x: Array
) -> Staged:
    """`staged` of a game; mean, x: approximate number of steps and starting point."""
    at, weights = rules.places(xp.expm1(loss), message), rules.laws(message)
    deviation = expected_deviation(at, weights, mean)
    order, worth = contoured(deviation, x)
    game = laws_on(xp.asarray(rules.candidates), at, weights, deviation, order, nodes)
    return staged(game, stages, mean, worth)


def clipped(value: Array, most: Array) -> Array:
    """The value rounded up, or `most` where that is smaller or no bound was found."""
    value = value * (1.0 + ROUNDING) + FLUSHED
    return xp.where(xp.isfinite(value) & (value >= 0.0), xp.minimum(value, most), most)


class RoundSums(NamedTuple):
    """The sums that bound a round; everybody: upper bound on the probability that no other client hides the target."""

    step_counts: StepCounts
    everybody: Array


def _start(of: RoundSums, message: Message, loss: Array) -> tuple[Array, Array]:
    """Approximate number of steps, and the starting point."""
    step_counts = of.step_counts
    total = xp.sum(step_counts.masses)
    mean = step_counts.rate * (step_counts.masses @ step_counts.counts) / total
    clients = step_counts.masses @ xp.broadcast_to(step_counts.clients, step_counts.masses.shape) / total
    return mean, -clients * xp.expm1(loss) / xp.expm1(message.epsilon0)


def sampled(rules: Game, nodes: int, of: RoundSums, stages: Stages, message: Message, loss: Array) -> Array:
    """T1+: step_counts.counts is [n], and the number of steps is Bin(n, step_counts.rate) with rate < 1."""
    step_counts, (mean, x) = of.step_counts, _start(of, message, loss)
    end = play(rules, nodes, message, stages, loss, mean, x)
    late = _binomial(end, step_counts.rate, stages.before, xp.zeros_like(x))
    # With fewer steps than the stages have, and where no absent client hides the target, the divergence of one
    # message is the bound.
    value, early = late(step_counts.counts[0], x)
    alone = message.alone(loss)
    return clipped(
        value * xp.expm1(message.epsilon0) / step_counts.clients + (early + of.everybody) * alone, alone
    )


def counted(rules: Game, nodes: int, of: RoundSums, stages: Stages, message: Message, loss: Array) -> Array:
    """Sums of known numbers of steps, step_counts.counts; those of T2++ begin at different places.

    step_counts.clients may then be an array, [parts].
    """
    step_counts, (mean, x) = of.step_counts, _start(of, message, loss)
    end = play(rules, nodes, message, stages, loss, mean, x)
    c_minus_1, unit, alone = xp.expm1(loss), xp.expm1(message.epsilon0), message.alone(loss)
    late = (step_counts.masses > 0) & (step_counts.counts >= stages.before)
    clients, differ = xp.broadcast_to(step_counts.clients, late.shape), xp.ndim(step_counts.clients) > 0
    found = (xp.sum(step_counts.masses[~late]) + of.everybody) * alone
    for mass, count, n in zip(step_counts.masses[late], step_counts.counts[late], clients[late]):
        value = end.value(count - stages.before, -n * c_minus_1 / unit) * unit / n
        if differ:
            # Rare parts begin far from the usual place, for which the contour is chosen.
            value = xp.where(value >= 0.0, xp.minimum(value, alone), alone)
        found = found + mass * value
    return clipped(found, alone)


class Pool(NamedTuple):
    """Pool of other clients of rate theta who hide a client of rate g <= theta: docs/theory_rates.md, T1h+.

    number: n' + 1, [parts]. masses: of the parts, [parts]. theta, rate: scalars. lost: upper bound on the probability
    that the target takes part and the pool, all present or empty, does not hide it.
    """

    number: Array
    masses: Array
    theta: Array
    rate: Array
    lost: Array


def pooled(rules: Game, nodes: int, pool: Pool, stages: Stages, message: Message, loss: Array) -> Array:
    """T1h+; stages: for the smallest pool."""
    c_minus_1, unit = xp.expm1(loss), xp.expm1(message.epsilon0)
    alone = message.alone(loss)
    beta = pool.rate / pool.theta
    # (n - k)(1 - c) / rho + k (1 - c) increases in k.
    per_absent = (1.0 - pool.rate) / (1.0 - pool.theta) / beta
    shift = c_minus_1 / unit * xp.maximum(per_absent - 1.0, 0.0)
    middle = xp.max(pool.number)
    start = -middle / beta * c_minus_1 / unit
    end = play(rules, nodes, message, stages, loss, pool.theta * middle, start)
    late, total = _binomial(end, pool.theta, stages.before, shift), pool.lost * alone
    for mass, number in zip(pool.masses, pool.number):
        value, early = late(number, -(number * per_absent * c_minus_1) / unit + stages.before * shift)
        total = total + mass * (value * unit * beta / number + early * pool.rate * alone)
    # For larger phases the rounding of the shift is not counted.
    turned = xp.max(xp.imag(end.game.theta), axis=-1) * shift
    return clipped(xp.where(turned < 16.0, total, xp.inf), pool.rate * alone * (1.0 + ROUNDING))


@quietly
def profile_upper(
    value: Callable[..., Array],
    of: Any,
    message: Message,
    stages: Stages | tuple[Stages, Stages],
    losses: Float64[Array, " losses"],
    rules: Game = HEXAGON,
    nodes: int = USUAL,
) -> Float64[Array, " losses"]:
    """Upper bounds on H at e^losses, both directions, 0 <= losses < epsilon0; [losses].

    Args:
      value: the bound at losses: `sampled`, `counted`, `pooled` or `weighted_clones.weighted`; `sampled` takes JAX's
        arrays, too. of: its `RoundSums`, `Pool` or `WeightedSteps`.
      stages: from `checkin_jax.numerics.staged_clones`; every other choice also gives a bound, only a larger
        one.
      rules: the game. nodes: of the contour; more than USUAL is better for very many steps only.
    """
    require_float64(of, message, stages, losses)
    bound = functools.partial(value, rules, nodes, of, stages)
    if not of_jax(losses):
        return bound(message, losses)

    def at(one: tuple[Array, OwnLaws | None]) -> Array:
        loss, own = one
        return bound(message._replace(own=own), loss)

    return jax.lax.map(at, (losses, message.own), batch_size=_LOSSES_AT_ONCE)
