r"""A lower bound for shuffled messages: all other clients hold x', the target holds x or x'.

With F the law of the messages when all clients hold x', Z = (density of a message at x) / (density at x'),
and W the sum of n steps Z - 1, each present with probability gamma,

    P/F = 1 + W / n,    Q/F = 1,    H_c(P||Q) = E(1 + W/n - c)_+,    H_c(Q||P) = E(1 - c - c W/n)_+ .

Outputs are first merged into cells (P and Q masses added), a post-processing. Events A = {W + N > X}, where N
is a normal variable drawn by the adversary, are evaluated by contour integrals as in `stop_loss`. Poisson's
summation gives an upper bound on Pr[W + N > X], and E[W; W + N > X] up to images, whose bound is subtracted.
Outcomes with a step beyond the cut all belong to A. The other direction replaces W by -W.

If all other clients hold a third record and F is the law when all clients do, W is the sum of steps Z - Z',
and (P - Q)/F = W / n. Q[A] is the same integral with one of the n steps drawn under x' instead of the third
record.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
from jax import Array

from checkin_jax.kernels import FLUSHED, ROUNDING, gaussian_profile, stop_loss
from checkin_jax.kernels.elementary import UNIT, angle, cos, log1p, sin
from checkin_jax.kernels.execution import backend
from checkin_jax.kernels.execution.backend import quietly, xp
from checkin_jax.kernels.messages import hidden_messages

# Relative error of the cells' places and masses, as computed by the host.
_CELLS = 1e-12
# Orders, relative to the contour's, at which Chernoff's bound on the right images is tried.
_FURTHER = (1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0)
# -log of the moduli, relative to those at the order, up to which nodes are bounded but not evaluated.
_FAINT = 60.0
# Gauss-Legendre on [0, 1], for functions that are analytic on a cell.
_NODES, _WEIGHTS = (
    0.5 * (part + shift) for part, shift in zip(np.polynomial.legendre.leggauss(16), (1.0, 0.0))
)


class OutputCells(NamedTuple):
    """Z - 1, or 1 - Z, on cells of outputs: places and F-masses right and left of 0, increasing; [cells].

    If all others hold a third record, Z - Z' takes the place of Z - 1. right_other, left_other: masses of the
    target's message under the second measure. drawn: probabilities that the target is present, or would be if
    it sent, in each of the sums, [sums]. Else None.
    """

    right: Array
    right_mass: Array
    left: Array
    left_mass: Array
    right_other: Array | None = None
    left_other: Array | None = None
    drawn: Array | None = None


@quietly
def gaussian_cells(mu: Array, farthest: Array, count: int) -> tuple[OutputCells, OutputCells]:
    """Cells of one Gaussian message, all others at x': with Z - 1 to the right, and with 1 - Z to the right.

    count: cells on either side. farthest: beginning of the last cell, in standard deviations.
    """

    def side(sign: float) -> tuple[Array, Array]:
        # Outwards from Z = 1; the last cell is unbounded. Masses are differences of the nearer tail.
        step, places = (farthest + mu) / count, xp.arange(count, dtype=xp.float64)
        edges = 0.5 * mu + sign * step * places
        base = scipy.special.ndtr(-sign * edges)
        # Z - 1 has one sign on a cell. Quadrature of its mean keeps the digits that differences of tails lose
        # near Z = 1.
        along = step * (places[:, None] + _NODES[None, :])
        within = step * _NODES[None, :]
        density = _WEIGHTS[None, :] * xp.exp(-within * (sign * edges[:, None] + 0.5 * within))
        place = xp.sum(density * xp.expm1(sign * mu * along), axis=1) / xp.sum(density, axis=1)
        # Beyond the last edge e the ratio of both masses is e^{mu (e - mu/2)} times the Mills ratio at e - mu
        # over that at e; its logarithm has the slope x - hazard.
        ahead = gaussian_profile.hazard_beyond(sign * (edges[-1] - mu * _NODES)) @ _WEIGHTS
        last = xp.expm1(sign * mu * (step * (count - 1) + ahead))
        return sign * xp.append(place[:-1], last), base - xp.append(base[1:], 0.0)

    right, left = side(1.0), side(-1.0)
    return OutputCells(*right, *left), OutputCells(*left, *right)


def _steps(cells: OutputCells) -> hidden_messages.ChordLaw:
    """The law in the form that `hidden_messages` uses to choose a contour."""
    after = xp.cumsum(cells.right_mass[::-1])[::-1]
    # E(d - k)_+ at the knots.
    gaps = xp.diff(cells.right, prepend=0.0)
    beyond = xp.append(xp.cumsum((after * gaps)[::-1])[::-1], 0.0)
    knots = xp.concatenate([xp.zeros(1), cells.right])
    return hidden_messages.ChordLaw(
        knots, after, cells.left, cells.left_mass, cells.left_mass @ cells.left, beyond, xp.zeros(())
    )


@quietly
def paths_of(clients: Array, rate: Array, cells: OutputCells, orders: Array) -> hidden_messages.Paths:
    """Data from which `hidden_messages.choose` chooses contours for events near {W > -x}."""
    return hidden_messages.paths(_steps(cells), clients, rate, orders)


def _excess(orders: Array, rate: Array, at: Array, squares: Array, lost: Array, lost_mean: Array) -> Array:
    """gamma (E[e^{t d}; d not cut] - 1) at several t, where d has mean zero, so E[d; d not cut] = -lost_mean.

    orders: t [..., orders]. at, squares: places d and squares times masses, [..., places]. lost, lost_mean:
    mass that is cut off, and its first moment, [...].
    """
    curved = xp.sum(stop_loss.second(orders[..., None] * at[..., None, :]) * squares[..., None, :], axis=-1)
    return rate * (xp.square(orders) * curved - orders * lost_mean[..., None] - lost[..., None])


def _seen(heights: Array) -> int:
    """Number of first nodes, a multiple of SIDE, after which no height exceeds -_FAINT; [contours, nodes].

    NaN is kept. Under JAX the number of nodes is known beforehand: all.
    """
    if backend.of_jax(heights):
        return heights.shape[-1]
    last, side = np.flatnonzero(np.any(~(np.asarray(heights) <= -_FAINT), axis=0)), hidden_messages.SIDE
    return side * (1 + int(last[-1]) // side) if last.size else side


@quietly
def lines_lower(
    clients: Array, rate: Array, cells: OutputCells, choice: hidden_messages.ContourChoice, thresholds: Array
) -> tuple[Array, Array]:
    """(E[W; A], Pr[A]) for A near {W > threshold}, rounded down and up; [sums, contours, thresholds].

    Args:
      clients: n of several sums W that share contours, [sums]. rate: probability of each step.
      cells: of a step, with relative errors below 1e-12.
      choice: of `hidden_messages.choose`; every choice is valid. thresholds: > 0, near those of the choice,
        [sums, contours, thresholds].

    (0, 1) where there is no bound. If cells have masses of the target's message: (E[W; A], Q[A]), and no step
    is cut off.
    """
    if cells.right_other is not None:
        choice = choice._replace(cut=xp.full_like(choice.cut, cells.right.size))
    order, period = choice.order, choice.period
    # One row per contour; before it one axis for the sums.
    number = clients[:, None]
    right, right_mass, left, left_mass = (
        xp.broadcast_to(part, (order.size, part.size)) for part in cells[:4]
    )
    kept = xp.arange(cells.right.size)[None] < choice.cut[:, None]
    at = xp.concatenate([xp.where(kept, right, 0.0), -left], axis=-1)
    mass = xp.concatenate([xp.where(kept, right_mass, 0.0), left_mass], axis=-1)
    lost_mass = xp.where(kept, 0.0, right_mass)
    lost, lost_mean = xp.sum(lost_mass, axis=-1), xp.vecdot(lost_mass, right)
    contour = stop_loss.Contour(order, period, hidden_messages.SMOOTHING * period)
    theta = stop_loss.nodes(contour, hidden_messages.NODES)
    base = 2.0 * math.pi / period
    squares = mass * xp.square(at)
    # Orders for images; a tenth of the distance to each is used as a.
    tried = order[:, None] * xp.asarray((1.0, *_FURTHER))[None]
    excesses = _excess(tried, rate, at, squares, lost, lost_mean)
    real, further = excesses[:, 0], tried[:, 1:]

    tilted = mass * xp.exp(order[:, None] * at)
    means = tilted * at
    both = hidden_messages.transform(at, base, xp.stack([tilted, means], axis=1))
    kind = theta.dtype
    excess = rate.astype(kind) * both[:, 0] + real[:, None].astype(kind)
    log_step, size = stop_loss.log_one_plus(excess)
    modulus, distance = xp.sqrt(size), xp.abs(theta)
    log_real = log1p(real)
    spread = xp.abs(means)
    exponents = xp.abs(order[:, None] * at)
    # Roundings of a term, relative to its place and mass, whose relative errors are _CELLS; so are those of
    # the mean of a step and of the exponent.
    rounded = 4.0 * UNIT * (at.shape[-1] + 40.0 + 2.0 * exponents)
    moved_by = 4.0 * _CELLS * (1.0 + exponents)
    wrong = rate * xp.sum(spread * (rounded + moved_by), axis=-1)[:, None] * distance
    wrong = wrong + 16.0 * UNIT * xp.abs(excess)
    # |1 + excess| stays above the floor of log_one_plus wherever that matters; otherwise the error bound is
    # one.
    floored = xp.any(size <= 2.0 * stop_loss.FLOOR**2, axis=-1)
    # A factor |M / M(t)|, its error included, of n - 1 others at least.
    height = xp.real(log_step) - log_real[:, None] + 2.0 * wrong / modulus + 4.0 * wrong[:, :1]
    kernel = stop_loss.multiplicity(hidden_messages.NODES) / (period[:, None] * distance)
    seen = _seen((xp.min(clients) - 1.0) * height)
    tail = stop_loss.beyond(contour, hidden_messages.NODES) / (math.pi * hidden_messages.NODES)
    tail = tail + math.exp(1.0 - _FAINT) * xp.sum(kernel[:, seen:], axis=-1)
    theta, both, excess, log_step, size, modulus, distance, wrong, kernel = (
        part[..., :seen] for part in (theta, both, excess, log_step, size, modulus, distance, wrong, kernel)
    )
    start = stop_loss.start(contour, theta)
    log_ratio = log_step - log_real[:, None].astype(kind)
    total = stop_loss.ContourSum(
        start.log_mgf + number * log_real,
        start.log_ratio + log_ratio * number[..., None].astype(kind),
        2.0 * number[..., None] * wrong / modulus,
        xp.where(floored, 2.0 * xp.exp(number * (math.log(2.0 * stop_loss.FLOOR) - log_real)), 0.0),
    )
    slack = 4.0 * number * (wrong[:, 0] + 4.0 * UNIT * xp.abs(log_real)) + 1e-12

    # Of one of the n steps, M'/M: the tilted mean on the real axis.
    inner = both[:, 1] + xp.sum(means, axis=-1)[:, None].astype(kind)
    # Where log_one_plus raises |1 + excess|, the same is done here. The computed and the true product with
    # the mean together are below `absolute` times the modulus of the mean.
    kept_up = xp.where(size > stop_loss.FLOOR**2, 1.0 + excess, stop_loss.FLOOR)
    mean = rate.astype(kind) * inner / kept_up
    size_of_mean = xp.abs(mean)
    mean_size = rate * xp.sum(spread, axis=-1)
    mean_wrong = 12.0 * (at.shape[-1] + 40.0) * UNIT + 2.0 * moved_by
    mean_wrong = rate * xp.sum(spread * mean_wrong, axis=-1)[:, None]
    mean_wrong = (mean_wrong + 2.0 * wrong * size_of_mean) / modulus

    frequency = xp.imag(theta)
    ratio = xp.exp(xp.real(total.log_ratio))
    phase = xp.imag(total.log_ratio) - angle(frequency, order[:, None])
    turn = (kernel * ratio).astype(kind) * backend.complex_of(cos(phase), sin(phase))
    # Errors grow linearly with the threshold, which rounds the phases.
    off = stop_loss.inaccuracy(total) + UNIT * hidden_messages.NODES * ratio
    more = 16.0 * UNIT * frequency * ratio
    scale = xp.exp(total.log_mgf[..., None] - order[:, None] * thresholds)

    size_of_mean = size_of_mean + mean_wrong
    # For Q, the target's own step replaces one step.
    own, own_size, own_wrong = turn, xp.ones_like(distance), 0.0 * ratio
    if cells.right_other is not None:
        assert cells.left_other is not None
        assert cells.drawn is not None
        other = xp.exp(order[:, None] * at) * xp.concatenate([cells.right_other, cells.left_other])[None]
        change = xp.sum(
            xp.concatenate([cells.right_other, cells.left_other])[None] * xp.expm1(order[:, None] * at),
            axis=-1,
        )
        turned = hidden_messages.transform(at, base, other[:, None])[:, 0, :seen]
        moment = 1.0 + (rate * change)[:, None].astype(kind) + rate.astype(kind) * turned
        drawn = cells.drawn[:, None, None]
        swapped = (1.0 - drawn).astype(kind) + drawn.astype(kind) * moment / kept_up
        apart = rate * xp.sum(other * (rounded + moved_by) * (1.0 + exponents), axis=-1)[:, None]
        own, own_size = turn * swapped, xp.abs(swapped)
        own_wrong = ratio * (apart * (1.0 + distance) + 2.0 * wrong * own_size) / modulus
        own_wrong = own_wrong + total.absolute[..., None] * own_size[..., :1] / stop_loss.FLOOR
    sums = hidden_messages.along(xp.stack([own, turn * mean], axis=-2), base, thresholds)
    far, inside = sums[..., 0, :], sums[..., 1, :]
    # Error bounds per unit of the threshold, and constant ones, of both.
    errors = (
        more * own_size,
        off * own_size + own_wrong,
        more * size_of_mean,
        off * size_of_mean + ratio * mean_wrong,
    )
    grown, steady, grown_mean, steady_mean = (xp.sum(kernel * part, axis=-1)[..., None] for part in errors)
    far = far + thresholds * grown + steady + tail[:, None] * own_size[..., :1]
    unsure = thresholds * grown_mean + steady_mean + (tail * mean_size / (1.0 + real))[:, None]
    # Images on the left: E[W; ...] is at most E W_+. On the right: W_+ <= e^{a W} / (e a).
    left = xp.sqrt(number * rate * xp.sum(squares, axis=-1) + xp.square(number * rate * lost_mean))
    left = left * xp.exp(-order * period) / -xp.expm1(-order * period)
    apart = 0.9 * (further - order[:, None])
    fall = apart * period[:, None]
    log_m = number[..., None] * log1p(excesses[:, 1:])
    log_m = log_m + 0.5 * xp.square(contour.smoothing[:, None] * (order[:, None] + apart))
    log_m = log_m - fall - xp.log(-xp.expm1(-fall)) - 1.0 - xp.log(apart / 9.0)
    images = log_m[..., None, :] - (order[:, None] + apart)[:, None, :] * thresholds[..., None]
    right = xp.exp(xp.min(xp.where(xp.isnan(images), math.inf, images), axis=-1) + slack[..., None])
    up, down = xp.exp(slack)[..., None], xp.exp(-xp.sign(inside) * slack[..., None])
    moved = scale * number[..., None] * (down * inside - up * unsure)
    # Outcomes with a step beyond the cut: E W = 0, and the other outcomes have a known mean.
    without = number * log1p(-rate * lost)
    outside = number * rate * lost_mean * xp.exp(without)
    moved = moved + (outside * (1.0 - ROUNDING))[..., None]
    moved = moved - (left[..., None] + right) * (1.0 + ROUNDING) - FLUSHED
    far = far * scale * up - (xp.expm1(without) * (1.0 + ROUNDING))[..., None]
    fine = xp.isfinite(moved) & xp.isfinite(far) & (moved > 0)
    return xp.where(fine, moved, 0.0), xp.where(fine, xp.minimum(far, 1.0), 1.0)
