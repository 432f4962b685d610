r"""E+: one shuffled round in which every client sends.

The target's message displaces another client's message, which is hidden among the messages of r left-out
clients. With m = r + 1 and N = n - m, for every kappa > 0 and 0 < tau < 1 [docs/theory_shuffle.md],

    n H_c <= E V_w(m min(T*, t)) + m D_m(c + t) + tau (p - c) (N / (p + 1) + m) ,

where V_w is the game of `kernels.messages.likelihood_polytopes` with steps of nearly even weights w_1, ...,
w_N, given by kappa and tau, and t >= 0 is any threshold. T* is the law given by a profile D of m shuffled
messages. D is this bound for m clients, recursively down to T1. If messages may depend on others of the
round, the pool comes first, and with w_1 = ... = w_k = N/k

    n H_c <= E V_w(m T*) + N c D(1) D_m(N/k) .

If messages are (eps0, delta0)-LDP, H_c of m messages is at most D_m + phi, and for any of several sets of step
laws, with a cost e of cutting steps to them,

    n H_c <= E V_w(m T*) + m c phi + N (c A (D_m(N/k) + phi) + e) .

NumPy float64. Profiles are stored as logarithms, since exponential moments
weigh their tails.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jax import Array

from checkin_jax import _validate
from checkin_jax.kernels import FLUSHED, ROUNDING, host, stop_loss
from checkin_jax.kernels.execution.backend import bisected, quietly
from checkin_jax.kernels.messages import staged_games
from checkin_jax.kernels.messages.likelihood_polytopes import HEXAGON, Game, Message
from checkin_jax.kernels.round_off import UNIT
from checkin_jax.numerics import convex
from checkin_jax.numerics.staged_clones import AnyMessage, Steps, distances, nodes_for

# Most links of the recursion; shares of left-out clients that are tried; below _FEWEST clients T1 alone is
# used.
_LINKS, _SHARES, _FEWEST = 3, (0.45, 0.3, 0.2, 0.1, 0.05), 100
# Constants of the forecast: largest variance of a link relative to T1's, largest distance of a weight from
# one, variance of the weights over the square of that distance, and variance added by a pool over its own.
_GAIN, _WIDEST, _VARIANCE, _POOLED = 0.99, 0.8, 0.37, 1.02
# Relative contribution allowed for uneven weights: at loss zero, and per squared loss in deviations.
_UNEVEN, _UNEVEN_FAR = 1e-3, 3e-4
# Masses of exp(-neg_log_tail + 12) are a third of delta.
_BELOW_DELTA = 12.0
# Shares of the largest weights at which tangents bound their partial sums.
_TOUCHING = (0.3, 0.12, 0.03)
# Exponents kappa, times a standard deviation of the pool's loss.
_KAPPAS = np.geomspace(1.5, 14.0, 48)
# Losses of a profile, in deviations: ends of the staged and of the contour range, spacing at zero, largest
# spacing, and ratio of neighbours beyond. Then the number of losses of the round itself.
_STAGED, _CONTOUR, _NEAR, _WIDE, _RATIO = 8.0, 12.0, 0.14, 0.45, 1.15
_LOSSES = 40
# T1 is tried where a value is above this share of T1's, about.
_HARDLY = 0.97
# Growth of the number of steps over a stage. One in _FIRST steps has T1's law.
_GROWS, _FIRST = 3.0, 2000.0
# Transforms below e^_SMALL and e^_VANISHES, relative to their value at the order, need no nodes and no pool.
# Both omissions are counted. Then numbers of nodes with a fast FFT, and grid points per node.
_SMALL, _VANISHES = -60.0, -50.0
_NODES, _PER_NODE = (32, 48, 64, 96, 128, 160, 192, 256, 320, 400, 480, 640, 800, 1024), 4
# Share of a forecast that the largest values of a pool may cost.
_CUT = 1e-6
# Nodes in a row whose phases are computed; relative rounding error of a pool's moment at the order.
_TOGETHER = 24
_POOL_ROUNDING = 1e-7
# Losses are also evaluated at these ratios of the loss at which the forecast is e^_SURE
# exp(-neg_log_tail), about delta over the number of units.
_SURE, _AROUND = 17.0, np.linspace(0.98, 1.08, 11)
# Orders of Chernoff's bound, relative to the best order of a normal law.
_ORDERS = np.geomspace(0.05, 60.0, 64)

# Nearly private messages: most links, and ratio of the numbers of clients that are tried. A longer chain is used if
# the floor or epsilon is below a shorter one's by these factors.
_LINKS_NEARLY, _FEWER, _LOWER, _LOWER_EPSILON = 4, 3, 0.97, 0.999
# Growth of the forecast distance of weights where steps are rare. Share of the value at the knot before that cuts may
# cost beyond the staged range.
_RARE_STEPS, _SPARED = 0.15, 1e-3


def _knots() -> np.ndarray:
    """Knots, in standard deviations, whose chords are close to a normal law's profile."""
    found = [0.0]
    while found[-1] < _CONTOUR:
        found.append(found[-1] + min(_NEAR * math.exp(found[-1] ** 2 / 6.0), _WIDE))
    return np.array(found)


_KNOTS = _knots()


class StepLaws(NamedTuple):
    """Laws of the step of one other client's message, at several c.

    at: centred values of a step, in units of p - 1, [losses, values]. laws: their probabilities, but for that of
    zero, [losses or 1, laws, values]; the last law, T1's or one as good, is above all steps in convex order. alone:
    upper bounds on the divergence of one message, [losses]. candidates: of the game.
    """

    at: Array
    laws: Array
    alone: Array
    candidates: Array

    def at_losses(self, kept: np.ndarray) -> StepLaws:
        """The laws at some of the losses."""
        laws = self.laws if len(self.laws) == 1 else self.laws[kept]
        return self._replace(at=self.at[kept], laws=laws, alone=self.alone[kept])

    @property
    def dominating(self) -> StepLaws:
        """The last law alone, with a candidate."""
        law = np.broadcast_to(self.laws[:, -1:], (*self.at.shape[:1], 1, *self.at.shape[1:]))
        used = np.flatnonzero(law.any(axis=(0, 1)))
        twice = host(np.repeat(law[..., used], 2, axis=1))
        return self._replace(at=host(self.at[:, used]), laws=twice, candidates=host([[1.0]]))

    def variances(self) -> np.ndarray:
        """Variances of the laws, [losses, laws]."""
        return np.asarray(self.laws @ np.square(self.at)[..., None])[..., 0]


@quietly
def step_laws(steps: Steps, above: np.ndarray) -> StepLaws:
    """Laws of a step at c = 1 + above < p."""
    losses = host(np.log1p(above))
    message = steps.message(losses)
    rules = steps.rules(message)
    laws = rules.laws(message)
    alone = host(message.alone(losses) * (1.0 + ROUNDING))
    at = rules.places(host(above), message)
    return StepLaws(at, laws if laws.ndim == 3 else laws[None], alone, host(rules.candidates))


@dataclasses.dataclass(frozen=True)
class DominatedSteps(AnyMessage):
    """Steps of T1's law, which needs the least cutting."""

    def rules(self, message: Message) -> Game:
        del message
        return HEXAGON._replace(laws=lambda message: HEXAGON.laws(message)[[-1, -1]], candidates=((1.0,),))


class LogProfile(NamedTuple):
    """Convex upper bound on hockey-stick divergences in both directions, linear in c between knots.

    above: c - 1, increasing from 0 to p - 1. logs: logarithms of the values, -inf at the last knot only.
    """

    above: np.ndarray
    logs: np.ndarray

    @property
    def log_slopes(self) -> np.ndarray:
        """Logarithms of the negative slopes between knots."""
        with np.errstate(divide="ignore"):
            return self.logs[:-1] + np.log(-np.expm1(np.diff(self.logs))) - np.log(np.diff(self.above))

    def log_at(self, above: float) -> float:
        """Logarithm of the value at c = 1 + above < p, rounded up."""
        right = int(np.searchsorted(self.above, above, side="right"))
        left = right - 1
        part = (self.above[right] - above) / (self.above[right] - self.above[left])
        ratio = math.exp(self.logs[right] - self.logs[left])
        return float(self.logs[left]) + math.log(ratio + (1.0 - ratio) * part) + 1e-12


def _log_hull(above: np.ndarray, logs: np.ndarray) -> LogProfile:
    """Largest convex function below points given by the logarithms of their values; the last
    value is zero.
    """
    kept: list[int] = []
    slopes: list[float] = []

    def log_slope(i: int, j: int) -> float:
        fall = logs[j] - logs[i]
        if fall >= 0.0:
            return -math.inf
        return logs[i] + math.log(-math.expm1(fall)) - math.log(above[j] - above[i])

    for i in range(len(above)):
        while len(kept) > 1 and log_slope(kept[-1], i) >= slopes[-1]:
            kept.pop()
            slopes.pop()
        if kept:
            slopes.append(log_slope(kept[-1], i))
        kept.append(i)
    return LogProfile(above[kept], logs[kept])


class Weights(NamedTuple):
    """Decreasing weights of the steps and lower bounds on their numbers; they majorize all nearly even
    weights.
    """

    values: np.ndarray
    counts: np.ndarray


def _arcosh_one_plus(y: np.ndarray) -> np.ndarray:
    return np.log1p(y + np.sqrt(y) * np.sqrt(y + 2.0))


def nearly_even(excess: float, kappa: float, count: int) -> Weights | None:
    """Weights that majorize every nonnegative rho of mean one with mean f(rho_i - rho_j) <= 1 + excess.

    f(u) is cosh(kappa u) up to |u| = N / (N - 1), N the count, and its tangents beyond (`Link.log_excess`).

    The sum of the largest q count of (rho_i - 1), over count, is at most q (1-q) omega(q), where
    omega(q) = arcosh(1 + excess / (2 q (1-q))) / kappa. The bound is concave in q, so each tangent bounds all
    partial sums. None if the largest weight exceeds 2, since omega would be beyond the tangents' start, or if
    there are fewer than two weights.
    """
    if count < 2:
        return None
    least = 1.0 / count
    q = np.array([0.5, *(share for share in _TOUCHING if share > 2.0 * least)])
    z = q * (1.0 - q)
    y = 0.5 * excess / z
    omega = _arcosh_one_plus(y)
    u = (1.0 - 2.0 * q) * (omega - np.sqrt(y / (y + 2.0))) / kappa
    u[0] = 0.0
    beyond = (z * omega / kappa - q * u) * (1.0 + 1e-12)
    last = (1.0 - least) * float(_arcosh_one_plus(np.array(0.5 * excess / (least * (1.0 - least))))) / kappa
    last *= 1.0 + 1e-12
    if last > 1.0 or not (np.diff(np.append(u, last)) > 0.0).all():
        return None
    u, beyond = np.append(u, last), np.append(beyond, 0.0)
    tails = -np.diff(beyond) / np.diff(u) * count
    # Integers that round every weight up: `more` weights of 1 + u or above, `fewer` of 1 - u or below.
    more, fewer = np.ceil(tails * (1.0 + 1e-12)), np.floor(tails * (1.0 - 1e-12))
    high, low = -np.diff(np.append(more, 0.0)), -np.diff(np.append(fewer, 0.0))
    middle = count - more[0] - fewer[0]
    if middle < 0.0 or (high < 0.0).any() or (low < 0.0).any():
        return None
    values = np.concatenate([(1.0 + u[:0:-1]), [1.0], 1.0 - u[1:]])
    counts = np.concatenate([high[::-1], [middle], low])
    return Weights(values[counts > 0.0], counts[counts > 0.0])


class PoolLaw(NamedTuple):
    """m min(T*, t) of m clients, centred, in units of p - 1: places, logarithms of masses, and of bounds on
    their errors.

    log_beyond: logarithm of E(T* - t)_+, rounded up; -inf if t is the largest place.
    """

    places: np.ndarray
    log_masses: np.ndarray
    log_errors: np.ndarray
    log_beyond: float


def _side(at: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logarithms of masses at at[1:] of a law with E(Y - at)_+ = exp(logs), of their errors, and of
    Pr[Y > at[0]].
    """
    with np.errstate(divide="ignore"):
        falls = -np.expm1(np.diff(logs))
        slopes = logs[:-1] + np.log(falls) - np.log(np.diff(at))
        off = slopes + np.log(64.0 * UNIT * (8.0 + np.abs(logs[:-1])) / falls)
        after = np.append(slopes[1:], -math.inf)
        masses = slopes + np.log(np.maximum(-np.expm1(np.minimum(after - slopes, 0.0)), 0.0))
    return masses, np.logaddexp(off, np.append(off[1:], -math.inf)), slopes


def pool_law(
    profile: LogProfile, above: float, clients: int, p_minus_1: float, log_negligible: float = -math.inf
) -> PoolLaw:
    """Law T* given by a profile of `clients` messages at c = 1 + above < p, with chords between knots.

    T* is cut at the first place t with log E(T* - t)_+ <= log_negligible.
    """
    c, a, logs, unit = 1.0 + above, profile.above, profile.logs, p_minus_1
    # Right: (c / (1 + a)) D(1 + a) at c a / (1 + a) up to c, then D(1 + a) at a.
    gap = 0.01 * float(a[1])
    nearer, farther = a < above - min(gap, 0.5 * above), a > above + gap
    farther[-1] = True
    inside, outside = a[nearer], a[farther]
    right = np.concatenate([c * inside / (1.0 + inside), [above], outside])
    right_logs = np.concatenate(
        [logs[nearer] + np.log(c / (1.0 + inside)), [profile.log_at(above)], logs[farther]]
    )
    last = max(int(np.argmax(right_logs <= log_negligible)), 1)
    right, right_logs = right[: last + 1], right_logs[: last + 1]
    masses, errors, slopes = _side(right, right_logs)
    # Left: E(y - Y)_+ = c D(1 + a) at y = -c a.
    left_masses, left_errors, left_slopes = _side(c * a, math.log(c) + logs)
    still = 1.0 - math.exp(slopes[0]) - math.exp(left_slopes[0])
    middle_error = np.logaddexp(errors[0], left_errors[0]) if len(errors) else -math.inf
    return PoolLaw(
        clients * np.concatenate([-c * a[:0:-1], [0.0], right[1:]]) / unit,
        np.concatenate([left_masses[::-1], [math.log(max(still, 1e-300))], masses]),
        np.concatenate([left_errors[::-1], [max(middle_error, math.log(64.0 * UNIT))], errors]),
        float(right_logs[-1]),
    )


def _with_pool(total: stop_loss.ContourSum, pool: PoolLaw, theta: Array) -> stop_loss.ContourSum:
    """The sum with one more independent variable, which has the pool's law.

    The transform is a sum of positive masses tilted at the order, so the error at the order bounds the error
    at every node.
    """
    order, frequency = float(np.real(theta[0])), np.imag(theta)
    tilted = pool.log_masses + order * pool.places
    peak = float(np.max(tilted))
    masses = np.exp(tilted - peak)
    whole = float(np.sum(masses))
    seen = np.flatnonzero(np.real(total.log_ratio) > _VANISHES)
    if not seen.size:
        # Few steps of a very large epsilon0 overflow.
        return total._replace(log_mgf=np.asarray(math.inf))
    last = int(seen[-1]) + 1
    # The phase at node i + j _TOGETHER is a product of two, so the sums over places are a product of matrices.
    near = np.exp(1j * frequency[: min(_TOGETHER, last), None] * pool.places)
    far = np.exp(1j * frequency[:last:_TOGETHER, None] * pool.places) * (masses / whole)
    ratio = (far @ near.T).ravel()[:last]
    turns = np.abs(frequency[last - 1] * pool.places)
    rounded = 8.0 * UNIT * (8.0 + np.abs(tilted) + np.abs(order * pool.places) + turns)
    off = (
        float(np.sum(rounded * masses) + np.sum(np.exp(pool.log_errors + order * pool.places - peak))) / whole
    )
    if not off < 0.1 * _POOL_ROUNDING:
        return total._replace(log_mgf=np.asarray(math.inf))
    with np.errstate(divide="ignore"):
        added = np.maximum(np.log(np.abs(ratio)), -1e4) + 1j * np.angle(ratio)
    log_ratio = total.log_ratio.copy()
    log_ratio[:last] += added
    # Omitted factors have |ratio| <= 1, at nodes where the transform is below e^_VANISHES.
    absolute = total.absolute + 4.0 * off + 2.0 * math.exp(_VANISHES)
    return stop_loss.ContourSum(
        total.log_mgf + peak + math.log(whole) + _POOL_ROUNDING, log_ratio, total.drift, absolute
    )


@quietly
def _played_out(
    laws: StepLaws, weights: Sequence[Weights], pools: list[PoolLaw] | None, extra: Array, x: Array
) -> Array:
    """Upper bounds on E V_w(x + pool)_+, [losses].

    extra: variance of a pool; only the choice of the contour depends on it.
    """
    one = np.max(laws.variances()[:, :-1], axis=1)
    number = np.array([np.sum(each.counts) for each in weights])
    squares = np.array([np.sum(np.square(each.values) * each.counts) for each in weights])
    deviation = host(np.sqrt(one * squares + extra))
    order, worth = staged_games.contoured(deviation, x)
    nodes = all_nodes = nodes_for(float(np.max(number)))

    def scaled(weight: np.ndarray) -> staged_games.Laws:
        at = host(weight[:, None] * laws.at)
        return staged_games.laws_on(laws.candidates, at, laws.laws, deviation, order, all_nodes, nodes)

    weight, count = _stages(weights, alone=laws.candidates.size == 1)
    allowed = 0.17 / np.sqrt(number) * worth / (np.count_nonzero(count, axis=0) * np.maximum(count, 1.0))
    game = scaled(weight[0])
    played = staged_games.begin(game, host(count[0]))
    left_out = stop_loss.beyond(game.contour, nodes)
    for stage in range(1, len(count)):
        enough = _enough(played.total)
        if enough < nodes:
            game, played, beyond = staged_games.fewer(game, played, enough)
            nodes, left_out = enough, left_out + beyond
        if (weight[stage] != weight[stage - 1]).any():
            game = scaled(weight[stage])
        share, failed = staged_games.stage_law(game, played, host(allowed[stage]), _PER_NODE, left_out)
        played = staged_games.add(game, played, share, host(count[stage]), failed)
    total = played.total
    if pools is not None:
        sums = (stop_loss.ContourSum(*each) for each in zip(*total))
        joined = [_with_pool(*each) for each in zip(sums, pools, game.theta)]
        total = stop_loss.ContourSum(*map(np.stack, zip(*joined)))  # type: ignore[arg-type]
    debt = played.debt * np.exp(order * x + total.log_mgf)
    # Omitted frequencies lie beyond the last node; each counts twice.
    tail = 2.0 * left_out / (game.contour.period * np.square(np.imag(game.theta[:, -1])))
    return stop_loss.stop_loss(total, game.contour, game.theta, x, tail) + debt


def _enough(total: stop_loss.ContourSum) -> int:
    """Number of nodes with a fast FFT, beyond which the transforms of the sums are below e^_SMALL."""
    large = np.flatnonzero(np.any(np.real(total.log_ratio) > _SMALL, axis=0))
    return next(size for size in _NODES if size > large[-1])


def _stages(weights: Sequence[Weights], alone: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Weight and number of steps of each stage, [stages, losses]; stages without steps are last.

    The first stage has T1's law, and is the only one of its weight if this is `alone`.
    """
    plans = [_stages_of(each, alone) for each in weights]
    longest = max(map(len, plans))
    padded = [plan + [(plan[-1][0], 0.0)] * (longest - len(plan)) for plan in plans]
    weight, count = np.array(padded).T
    return weight, count


def _stages_of(weights: Weights, alone: bool) -> list[tuple[float, float]]:
    """(weight, number of steps) of each stage at one c."""
    steps = float(np.sum(weights.counts))
    order = np.argsort(-weights.counts, kind="stable")
    kinds = list(zip(weights.values[order].tolist(), weights.counts[order].tolist()))
    done = kinds[0][1] if alone else min(max(4.0, round(steps / _FIRST)), kinds[0][1])
    plan = [(kinds[0][0], done)]
    left = kinds[0][1] - done
    for i, (weight, count) in enumerate(kinds):
        left = left if i == 0 else count
        while left > 0.0:
            some = min(left, round((_GROWS - 1.0) * done))
            if left - some < 0.5 * some and some < left and left <= 1.5 * (_GROWS - 1.0) * done:
                some = left
            plan.append((weight, float(some)))
            left -= some
            done += some
    return plan


@quietly
def _log_chernoff(
    at: Array, masses: Array, count: float, x: float, weight: float = 1.0, pool: PoolLaw | None = None
) -> float:
    """Logarithm of Chernoff's bound on E(x + S)_+, x < 0, S a sum of weighted steps of T1's law and a pool."""
    # The remaining mass is at zero.
    whole = np.append(masses, max(1.0 - float(np.sum(masses)), 0.0))
    places, whole = weight * np.append(at, 0.0)[whole > 0.0], whole[whole > 0.0]
    deviation = math.sqrt(count * float(whole @ np.square(places)))
    order = -x / deviation**2 * _ORDERS
    raised = np.outer(order, places)
    log_moment = count * np.logaddexp.reduce(raised + np.log(whole), axis=1)
    # The mean of a step is zero, so that its moment is at least one.
    peak = np.maximum(np.max(raised, axis=1), 0.0)
    rounding = 16.0 * UNIT * (count * (1.0 + peak) + np.abs(order * x))
    if pool is not None:
        tilted = np.logaddexp(pool.log_masses, pool.log_errors) + np.outer(order, pool.places)
        log_moment = log_moment + np.logaddexp.reduce(tilted, axis=1)
        rounding = rounding + 1e-12 + 16.0 * UNIT * np.max(np.abs(tilted), axis=1)
    return float(np.min(order * x + log_moment + rounding - 1.0 - np.log(order)))


def _log_cosh_excess(profile: LogProfile, kappa: np.ndarray, reach: float) -> np.ndarray:
    """Logarithm of 2 kappa^2 int_0^reach cosh(kappa t) D(1 + t) dt for each kappa, rounded up.

    Beyond `reach` the tangent replaces cosh, so losses there add nothing.
    """

    def log_sinh(x: np.ndarray) -> np.ndarray:
        return x + np.log(-0.5 * np.expm1(-2.0 * x))

    within = profile.above[:-1] < reach
    first, last = profile.above[:-1][within], np.minimum(profile.above[1:][within], reach)
    terms = profile.log_slopes[within] + math.log(2.0)
    terms = (
        terms
        + log_sinh(0.5 * kappa[:, None] * (first + last))
        + log_sinh(0.5 * kappa[:, None] * (last - first))
    )
    if reach < profile.above[-1]:
        # The integral by parts has a term at its end.
        beyond = np.log(kappa) + log_sinh(kappa * reach) + profile.log_at(reach)
        terms = np.column_stack([terms, beyond])
    return np.logaddexp.reduce(terms, axis=1) + math.log(2.0) + 1e-9


class _Plan(NamedTuple):
    """Forecast for n clients: approximate variance of one of n equivalent steps, and m, or 0 for T1 alone."""

    variance: float
    pooled: int


def _plan(
    clients: int, unit: float, variances: tuple[float, float], needed: float, links: int, adaptive: bool
) -> _Plan:
    """Forecast that chooses the number of left-out clients. Every choice gives a bound.

    Args:
      unit: p - 1. variances: the largest one of a step, and T1's. needed: log(1 / tau), approximately.
      adaptive: True if all weights are as large as the largest.
    """
    largest, t1 = variances
    best = _Plan(t1, 0)
    if clients < _FEWEST or links == 0:
        return best
    for share in _SHARES:
        pooled = round(share * clients)
        inner = _plan(pooled, unit, variances, needed, links - 1, adaptive).variance
        spread = math.sqrt(2.0 * (needed + math.log(4.0)) * inner / pooled) * unit
        unevenness = spread if adaptive else _VARIANCE * spread**2
        steps = (clients - pooled) * largest * (1.0 + unevenness)
        made = (steps + pooled * inner * _POOLED) / clients
        if spread < _WIDEST and made < min(best.variance, _GAIN * t1):
            best = _Plan(made, pooled)
    return best


class Link:
    """Bound for shuffled messages of n clients, m - 1 of whom are left out; T1 if m = 0.

    Attributes:
      pooled: m. deviation, t1_deviation: approximate standard deviations of the loss, and of T1's. apart: bound on
        the total variation of two messages.
      floor: the bound is the value and c times this. at_end: upper bound on the divergence at c = p.
    """

    floor = at_end = 0.0

    def __init__(
        self,
        steps: Steps,
        clients: int,
        neg_log_tail: float,
        adaptive: bool = False,
        links: int = _LINKS,
    ) -> None:
        """Chooses the number of left-out clients, recursively.

        Args:
          steps: of the mechanism. clients: n >= 1. links: largest depth of the recursion.
          neg_log_tail: masses up to exp(-neg_log_tail) are negligible.
          adaptive: True if messages may depend on others of the round.
        """
        self.steps, self.clients, self.adaptive, self.neg_log_tail = steps, clients, adaptive, neg_log_tail
        self.unit = math.expm1(steps.epsilon0)
        at_one = step_laws(steps, np.zeros(1))
        self.apart = float(at_one.alone[0])
        (each,) = at_one.variances()
        variances = float(np.max(each[:-1])), float(each[-1])
        needed = max(neg_log_tail - _BELOW_DELTA, 8.0)
        variance, self.pooled = _plan(clients, self.unit, variances, needed, links, adaptive)
        self.deviation = math.sqrt(variance / clients) * self.unit
        self.t1_deviation = math.sqrt(variances[1] / clients) * self.unit
        if self.pooled:
            self.inner = Link(steps, self.pooled, neg_log_tail, adaptive, links - 1)
            self.kappas = _KAPPAS / self.inner.deviation

    @functools.cached_property
    def pool(self) -> LogProfile:
        """Profile of the m clients."""
        return self.inner.profile

    @functools.cached_property
    def log_excess(self) -> np.ndarray:
        """log(C - 1) for each kappa; no distance of weights is above t_0 = N / (N - 1), see `nearly_even`."""
        others = self.clients - self.pooled
        return _log_cosh_excess(self.pool, self.kappas, others / (others - 1.0) * (1.0 + 1e-11))

    def _weights(self, tau: float, cost: float) -> tuple[Weights, float] | None:
        """Weights for the best kappa, and the cost of less even ones, which have probability at most tau."""
        log_excess = self.log_excess - math.log(tau)
        usable = log_excess < 600.0
        if not usable.any():
            return None
        excess, kappa = np.exp(log_excess[usable]), self.kappas[usable]
        best = int(np.argmin(_arcosh_one_plus(2.0 * excess) / kappa))
        found = nearly_even(float(excess[best]), float(kappa[best]), self.clients - self.pooled)
        return None if found is None else (found, cost)

    def _capped(self, above: float, allowed: float) -> tuple[Weights, float] | None:
        """Equal weights N/k, and the cost c A D_m(N/k) N/n of cutting others to them, about `allowed`."""
        others, pool = self.clients - self.pooled, self.pool
        each = (1.0 + above) * self.apart * others / self.clients * (1.0 + 1e-12)
        enough = np.flatnonzero(pool.logs <= math.log(allowed / each))
        number = math.floor(others / (1.0 + float(pool.above[enough[0]])))
        if number < 1:
            return None
        weight = others / number * (1.0 + 1e-15)
        beyond = others / number - 1.0
        cost = each * math.exp(pool.log_at(beyond * (1.0 - 1e-14))) if beyond < pool.above[-1] else 0.0
        return Weights(np.array([weight]), np.array([float(number)])), cost

    def _start(self, above: np.ndarray) -> Array:
        return host(-self.clients * above / self.unit)

    def _of_t1(self, laws: StepLaws, above: np.ndarray) -> np.ndarray:
        if not above.size:
            return above
        evenly = [Weights(np.ones(1), np.array([float(self.clients)]))] * above.size
        played = _played_out(laws.dominating, evenly, None, host(0.0), self._start(above))
        return np.asarray(played) * self.unit / self.clients

    def _log_of_t1(self, laws: StepLaws, above: np.ndarray) -> np.ndarray:
        """Logarithms of Chernoff's bounds for T1."""
        alone = laws.dominating
        steps = zip(alone.at, alone.laws[:, -1], np.asarray(self._start(above)).tolist())
        logs = [_log_chernoff(at, masses, self.clients, x) for at, masses, x in steps]
        return np.array(logs) + math.log(self.unit / self.clients) + 1e-12

    def _of_pool(self, laws: StepLaws, above: np.ndarray) -> np.ndarray:
        n, m, unit = self.clients, self.pooled, self.unit
        deviations = above / self.deviation
        expected = self.deviation * np.array([_normal_stop_loss(each) for each in deviations])
        # Upper bound on the divergence of outputs with uneven weights, if they were certain.
        uneven = ((n - m) * np.asarray(laws.alone) + m * (unit - above)) / n
        tau = np.minimum((_UNEVEN + _UNEVEN_FAR * deviations**2) * expected / uneven, 0.5)
        cost = tau * uneven
        if self.adaptive:
            made = [self._capped(*each) for each in zip(above, cost)]
        else:
            made = [self._weights(*each) for each in zip(tau, cost)]
        found = np.full(above.shape, math.inf)
        known = np.array([each is not None for each in made])
        pools = [
            pool_law(self.pool, each, m, unit, math.log(_CUT) + math.log(usual))
            for each, usual in zip(above[known], expected[known])
        ]
        if pools:
            weights, costs = zip(*(each for each in made if each is not None))
            beyond = m / n * np.exp([pool.log_beyond for pool in pools]) * (1.0 + ROUNDING)
            extra = host((m * self.inner.deviation / unit) ** 2)
            played = _played_out(laws.at_losses(known), weights, pools, extra, self._start(above[known]))
            found[known] = np.asarray(played) * unit / n + (costs + beyond)
        return found

    def values(self, above: np.ndarray) -> np.ndarray:
        """Upper bounds on the hockey-stick divergence at c = 1 + above < p, but for the floor, both directions."""
        laws = step_laws(self.steps, above)
        if not self.pooled:
            return _clipped(self._of_t1(laws, above), laws.alone)
        found = _clipped(self._of_pool(laws, above), laws.alone)
        expected = self.t1_deviation * np.array([_normal_stop_loss(u) for u in above / self.t1_deviation])
        tried = found > _HARDLY * expected
        found[tried] = _clipped(self._of_t1(laws.at_losses(tried), above[tried]), host(found[tried]))
        return found

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Values of c - 1 < p - 1 at which a profile is computed, near ones and far ones."""
        near = self.deviation * _KNOTS
        near = near[near < 0.9 * self.unit]
        far = [float(near[-1]) * _RATIO]
        while far[-1] * _RATIO < self.unit:
            far.append(far[-1] * _RATIO)
        return near, np.array([each for each in far if each < 0.999 * self.unit])

    @functools.cached_property
    def profile(self) -> LogProfile:
        """Profile at the losses that the next link needs."""
        near, far = self._places()
        above = np.append(near, far)
        laws, logs = step_laws(self.steps, above), np.empty(above.shape)
        staged, beyond = above <= _STAGED * self.deviation, above > near[-1]
        contoured = ~staged & ~beyond
        logs[staged] = np.log(self.values(above[staged])) + ROUNDING
        # Where hardly any step happens, contours prove nothing; one message is a bound.
        by_t1 = laws.at_losses(contoured)
        logs[contoured] = np.log(_clipped(self._of_t1(by_t1, above[contoured]), by_t1.alone))
        logs[beyond] = self._log_of_t1(laws.at_losses(beyond), far)
        return _log_hull(np.append(above, self.unit), np.append(logs, -math.inf))

    @functools.cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Increasing losses in nats from 0 to epsilon0, and proven upper bounds on the divergence at e^losses.

        The bounds are convex in e^loss, so every chord is a bound.
        """
        above = distances(self.deviation, self.unit, self.neg_log_tail, _LOSSES)
        asked = self.deviation * _deviations(math.exp(_SURE - self.neg_log_tail) / self.deviation)
        above = np.union1d(above, np.minimum(asked * _AROUND, above[-1]))
        upper = self.values(above) + (1.0 + above) * self.floor * (1.0 + ROUNDING)
        above, upper = convex.full_hull(np.append(above, self.unit), np.append(upper, self.at_end))
        return np.append(np.log1p(above[:-1]), self.steps.epsilon0), upper


class _Steps(NamedTuple):
    """Steps to which those of (eps0, delta0)-LDP messages are cut at a cost of at most c delta0 `cost`.

    variance: the largest of one step.
    """

    steps: Steps
    cost: float
    variance: float


class _Forecast(NamedTuple):
    """Forecast for n clients: variance of one of n equivalent steps, floor, and the numbers of clients of the pools."""

    variance: float
    floor: float
    pools: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _NearlyPrivate:
    """(eps0, delta0)-LDP messages and what their chains have in common.

    Attributes:
      unit: p - 1. needed: log(1/tau), approximately. neg_log_tail: masses up to exp(-neg_log_tail) are negligible.
    """

    epsilon0: float
    delta0: float
    neg_log_tail: float

    @property
    def needed(self) -> float:
        return max(self.neg_log_tail - _BELOW_DELTA, 8.0) + math.log(4.0)

    @property
    def unit(self) -> float:
        return math.expm1(self.epsilon0)

    @property
    def apart(self) -> float:
        """Upper bound on the total variation of two messages."""
        return self.unit / (self.unit + 2.0) * (1.0 + ROUNDING) + self.delta0

    @functools.cached_property
    def kinds(self) -> tuple[_Steps, _Steps]:
        """T1's law, and all laws of the hexagon."""
        steps = AnyMessage(self.epsilon0)
        (variances,) = step_laws(steps, np.zeros(1)).variances()
        of_t1 = _Steps(DominatedSteps(self.epsilon0), 1.0, float(variances[-1]))
        cost = 2.0 * (2.0 + math.exp(-self.epsilon0)) * (1.0 + ROUNDING)
        return of_t1, _Steps(steps, cost, float(np.max(variances[:-1])))

    def cut_all(self, clients: int) -> float:
        """Floor of T1, for whose sake all messages are cut (G2)."""
        if clients == 1:
            return self.delta0
        return 2.0 * self.delta0 * (1.0 + 2.0 * (clients - 1.0) * math.exp(-self.epsilon0)) * (1.0 + ROUNDING)

    def linked(self, clients: int, pooled: int, inner: float, cost: float) -> float:
        """Floor of a link, `inner` being the largest one of its pool."""
        others = clients - pooled
        each = self.apart * inner + cost * self.delta0
        return (pooled * inner + others * each) / clients * (1.0 + ROUNDING)

    def spread(self, chain: _Forecast, clients: int) -> float:
        """Approximate largest distance of a weight from one."""
        if clients == 1:
            return self.unit
        normal = math.sqrt(2.0 * self.needed * chain.variance / clients) * self.unit
        # Steps of large epsilon0 are rare: log c is about normal, and more where hardly any step is expected.
        return math.expm1(min(normal * (1.0 + _RARE_STEPS * normal**2), self.epsilon0))

    def extended(self, clients: int, pooled: int, inner: _Forecast, kind: _Steps) -> _Forecast:
        """One more link."""
        spread = self.spread(inner, pooled)
        made = (clients - pooled) * kind.variance * (1.0 + spread) + pooled * inner.variance * _POOLED
        most = inner.floor * (1.0 + spread) if pooled > 1 else inner.floor
        floor = self.linked(clients, pooled, most, kind.cost)
        return _Forecast(made / clients, floor, (pooled, *inner.pools))

    def chains(self, clients: int, kind: _Steps) -> list[_Forecast]:
        """Chains of at most _LINKS_NEARLY links, the first with steps of this kind, inner ones with T1's law."""
        t1 = self.kinds[0]

        @functools.cache
        def inner(clients: int, links: int) -> list[_Forecast]:
            longer = linked(clients, links - 1, t1) if links else []
            return _undominated([_Forecast(t1.variance, self.cut_all(clients), ()), *longer])

        def linked(clients: int, links: int, kind: _Steps) -> list[_Forecast]:
            found, pooled = [], clients
            while pooled > 1:
                pooled = max(pooled // _FEWER, 1)
                found += [self.extended(clients, pooled, each, kind) for each in inner(pooled, links)]
            return found

        return linked(clients, _LINKS_NEARLY - 1, kind)


def _undominated(chains: list[_Forecast]) -> list[_Forecast]:
    """Chains of which no other one has a smaller variance and hardly a larger floor."""
    found: list[_Forecast] = []
    for each in sorted(chains):
        if not found or each.floor < _LOWER * found[-1].floor:
            found.append(each)
    return found


class NearlyPrivateLink(Link):
    """Bound for shuffled (eps0, delta0)-LDP messages of n clients: H_c <= value + c floor, 1 <= c < p.

    Attributes:
      variance: approximate one of one of n equivalent steps.
    """

    # T1 has a larger floor.
    t1_deviation = math.inf

    def __init__(self, messages: _NearlyPrivate, clients: int, pools: tuple[int, ...], kind: _Steps) -> None:
        """Any numbers of clients of the pools, falling, give a bound."""
        self.messages, self.clients, self.adaptive, self.steps = messages, clients, True, kind.steps
        self.unit, self.pooled = messages.unit, pools[0] if pools else 0
        self.apart, self.at_end, self.neg_log_tail = messages.apart, messages.delta0, messages.neg_log_tail
        variance = kind.variance
        self.floor = messages.cut_all(clients)
        if pools:
            self.inner = NearlyPrivateLink(messages, pools[0], pools[1:], messages.kinds[0])
            self.floor = messages.linked(clients, pools[0], self.inner.largest_floor, kind.cost)
            variance *= 1.0 + messages.spread(_Forecast(self.inner.variance, 0.0, ()), pools[0])
        self.variance, self.deviation = variance, math.sqrt(variance / clients) * self.unit

    @functools.cached_property
    def largest_floor(self) -> float:
        """phi with H_c <= value + phi for all c >= 1: beyond any c the divergence is smaller than there."""
        if self.clients == 1:
            return self.floor
        found = self.profile
        return float(np.min(np.exp(found.logs) + (1.0 + found.above) * self.floor)) * (1.0 + ROUNDING)

    def _log_far(self, at: Array, masses: Array, above: float, allowed: float) -> float:
        """Logarithm of a bound by Chernoff's with T1's law, about `allowed` of which is the cost of cuts."""
        share = self.pooled / self.clients
        pool = pool_law(self.pool, above, self.pooled, self.unit, math.log(allowed / share))
        capped = self._capped(above, allowed)
        if capped is None:
            return 0.0
        weights, cost = capped
        number, weight = float(weights.counts[0]), float(weights.values[0])
        start = -self.clients * above / self.unit
        logs = _log_chernoff(at, masses, number, start, weight, pool)
        sums = math.exp(min(logs + math.log(self.unit / self.clients) + 1e-12, 0.0))
        value = (sums + cost + share * math.exp(pool.log_beyond)) * (1.0 + ROUNDING) + FLUSHED
        return math.log(value) + ROUNDING

    @functools.cached_property
    def profile(self) -> LogProfile:
        """Profile by the pool alone, since T1's floor is larger."""
        if self.clients == 1:
            alone = float(step_laws(self.steps, np.zeros(1)).alone[0])
            return LogProfile(np.array([0.0, self.unit]), np.array([math.log(alone), -math.inf]))
        if not self.pooled:
            return super().profile
        above = np.concatenate(self._places())
        staged = above <= _STAGED * self.deviation
        logs = np.full(above.shape, math.inf)
        logs[staged] = np.log(self.values(above[staged])) + ROUNDING
        alone = step_laws(self.steps, above).dominating
        for i, (at, masses, far) in enumerate(zip(alone.at, alone.laws[:, -1], above.tolist())):
            if i:
                found = self._log_far(at, masses, far, _SPARED * math.exp(logs[i - 1]))
                logs[i] = min(found, logs[i], logs[i - 1])
        return _log_hull(np.append(above, self.unit), np.append(logs, -math.inf))


@functools.lru_cache(maxsize=8)
def nearly_private(
    num_clients: int, neg_log_tail: float, epsilon0: float, delta0: float
) -> NearlyPrivateLink | None:
    """Bound for (eps0, delta0)-LDP messages of all clients; None if more than delta is lost by cutting.

    Clients send in uniform order, and messages may depend on earlier ones. Trust model: as `pure`.

    Args:
      num_clients, neg_log_tail: as in `pure`. epsilon0: nats, in (0, 50]. delta0: in (0, 1).
    """
    num_clients = _validate.integer(2, 2.0**42, num_clients=num_clients)
    neg_log_tail = _validate.real(1.0, 1e4, neg_log_tail=neg_log_tail)
    epsilon0 = _validate.real(0.0, 50.0, "(]", epsilon0=epsilon0)
    delta0 = _validate.real(0.0, 1.0, "()", delta0=delta0)
    messages = _NearlyPrivate(epsilon0, delta0, neg_log_tail)
    delta = math.exp(_SURE - neg_log_tail)
    best, forecast = None, messages.unit
    for kind in messages.kinds:
        for chain in messages.chains(num_clients, kind):
            if chain.floor >= delta:
                continue
            deviation = math.sqrt(chain.variance / num_clients) * messages.unit
            epsilon = deviation * _deviations((delta - chain.floor) / deviation)
            if epsilon < _LOWER_EPSILON * forecast:
                best, forecast = (chain.pools, kind), epsilon
    if best is None:
        return None
    return NearlyPrivateLink(messages, num_clients, *best)


def _clipped(value: np.ndarray, most: Array) -> np.ndarray:
    return np.array(staged_games.clipped(host(value), most))


def _normal_stop_loss(u: float) -> float:
    """Approximation of E(Z - u)_+ for a standard normal Z."""
    tail = 0.5 * math.erfc(u / math.sqrt(2.0))
    return max(math.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi) - u * tail, 1e-300)


def _deviations(value: float) -> float:
    """Approximate u at which `_normal_stop_loss` equals the value."""
    return float(bisected(lambda u: _normal_stop_loss(u) > value, 0.0, 40.0, 40)[0])


@functools.lru_cache(maxsize=8)
def pure(num_clients: int, neg_log_tail: float, steps: Steps, adaptive: bool = False) -> Link:
    """E+: one round in which every client sends one message through a shuffler; its `table` is the bound.

    Trust model: the adversary observes all messages, shuffled. One record is replaced; all other records are
    arbitrary and known. Call inside `devices.float64()`. The value is T1's where T1 is smaller, and everywhere if no
    clients are pooled, which is if there are too few for this epsilon0.

    Args:
      num_clients: n, whole, in [1, 2^42].
      neg_log_tail: masses up to exp(-neg_log_tail) are negligible, in [1, 1e4].
      steps: of the messages.
      adaptive: True if clients send in uniform order, and a message may depend on earlier ones of its round; False
        if no message depends on another one of its round.

    Cost of the table: about 0.1 s of one core per link, at most three links; twice that above 3e7 clients. No
    compilation.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """
    num_clients = _validate.integer(1, 2.0**42, num_clients=num_clients)
    neg_log_tail = _validate.real(1.0, 1e4, neg_log_tail=neg_log_tail)
    return Link(steps, num_clients, neg_log_tail, adaptive)
