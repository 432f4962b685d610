"""The game of few steps, played on a lattice; `staged_clones` has that of many.

V_0(s) = s_+, and V_k(s) is the largest mean of V_{k-1}(s + w d) over the laws of a step d, w its weight
[docs/theory_hexagon.md, docs/theory_mechanisms.md]. Steps are moved to both neighbouring points of the lattice with
their mean kept, which raises V_k, since it is convex. All sums are of positive numbers, so rounding errors are
relative. NumPy float64.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.kernels import FLUSHED, ROUNDING, binomial, host
from checkin_jax.kernels.execution.backend import product
from checkin_jax.kernels.messages.equal_steps import StepCounts
from checkin_jax.kernels.messages.likelihood_polytopes import HEXAGON, Game, Message, OwnLaws
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import chernoff
from checkin_jax.numerics.staged_clones import GameArguments, Steps

# Spacing of the lattice in standard deviations of a step, the most by which it is coarser, and from so many messages
# on; its reach beyond the start and zero in standard deviations of the sum, and in units of p - 1.
_SPACING, _COARSER, _MANY, _REACH, _BEYOND = 0.05, 2.4, 16.0, 6.0, 1.5
# Most points of the lattice, most products for one c, and up to which a game is played though it could be staged.
_POINTS, _WORK, _CHEAP = 1 << 12, 1.5e8, 6e7
# Time of one step besides its products, in products.
_OVERHEAD = 5e4
# More messages are never cheap.
MOST_CHEAP = _CHEAP / _OVERHEAD
# Losses: evenly to so many standard deviations of the loss, then geometrically.
_NEAR, _EVEN, _FAR = 4.0, 24, 28
# The most messages of a compiled program.
MOST = 192
# Relative rounding error of a value after at most _POINTS steps.
_ROUNDED = 1e-10


@dataclasses.dataclass(frozen=True)
class _Lattice:
    """Points start + spacing (i - before), i < size; before: index of the start."""

    start: float
    spacing: float
    before: int
    size: int

    @classmethod
    def around(cls, start: float, reach: float, spacing: float) -> _Lattice:
        """From `reach` below the start to `reach` above zero; coarser where there would be too many points."""
        length = 2.0 * reach - start
        spacing = max(spacing, length / _POINTS)
        return cls(start, spacing, math.ceil(reach / spacing), math.ceil(length / spacing) + 1)

    def at(self, value: np.ndarray, places: np.ndarray) -> np.ndarray:
        """A convex function's values at places of the lattice's range, from above: chords between its points."""
        return np.interp((places - self.start) / self.spacing + self.before, np.arange(self.size), value)

    def nothing(self) -> np.ndarray:
        """V_0 at all points."""
        return np.maximum(self.start + self.spacing * (np.arange(self.size) - self.before), 0.0)

    def moves(self, at: np.ndarray, laws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Steps as numbers of points, increasing, and their probabilities under every law, [laws, moves]."""
        place = at / self.spacing
        low = np.floor(place)
        offsets, which = np.unique(np.concatenate([low, low + 1.0, [0.0]]).astype(int), return_inverse=True)
        still = np.maximum(1.0 - laws.sum(axis=1, keepdims=True), 0.0)
        shares = np.zeros((len(laws), offsets.size))
        moved = np.concatenate([laws * (1.0 - (place - low)), laws * (place - low), still], axis=1)
        for column, move in zip(moved.T, which):
            shares[:, move] += column
        return offsets, shares

    def after(self, value: np.ndarray, offsets: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """The largest mean of a value function after one more step; it does not fall, and has slopes at most one."""
        fewer, more = max(-int(offsets[0]), 0), max(int(offsets[-1]), 0)
        rising = self.spacing * np.arange(1.0, more + 1.0)
        wide = np.concatenate([np.full(fewer, value[0]), value, value[-1] + rising])
        seen = np.stack([wide[fewer + offset : fewer + offset + self.size] for offset in offsets])
        return np.asarray(product(host(shares), host(seen))).max(axis=0)


def tried(deviation: float, unit: float) -> np.ndarray:
    """Values of c - 1 at which a game is played; deviation: of the loss. unit: e^epsilon0 - 1."""
    near = min(_NEAR * deviation, 0.5 * unit)
    return np.append(near * np.linspace(0.0, 1.0, _EVEN), np.geomspace(near, 0.98 * unit, _FAR)[1:])


def log_rest(neg_log_tail: Any) -> Any:
    """Logarithm of the probability of more messages than are played."""
    return -neg_log_tail - 3.0


@dataclasses.dataclass(frozen=True, eq=False)
class FewSteps:
    """A game of few messages of a few weights, each at most 1/n, in the worst order.

    Attributes:
      clients: n. steps: laws among which the adversary chooses. neg_log_tail: -log of the negligible mass.
      rest: upper bound on the probability that nobody hides the target, or of what is not played.
      weights: of the kinds of messages, times n. counts: numbers of messages of each kind, [cases, kinds].
      mean: upper bound on the mean of a value given for each case.
      square: approximate sum of the squared weights; only the losses and the lattice depend on it.
      starts: places at which cases begin, over -(c - 1)/(p - 1), [cases]; None: n, in every case.
    """

    clients: float
    steps: Steps
    neg_log_tail: float
    rest: float
    weights: tuple[float, ...]
    counts: np.ndarray
    mean: Callable[[np.ndarray], float]
    square: float
    starts: np.ndarray | None = None

    @property
    def _most(self) -> int:
        """Largest number of messages."""
        return int(self.counts.sum(axis=1).max())

    @functools.cached_property
    def _cases(self) -> dict[tuple[int, ...], np.ndarray]:
        """Indices of the cases of each number of messages of every kind."""
        numbers, which = np.unique(self.counts, axis=0, return_inverse=True)
        return {tuple(each): np.flatnonzero(which.ravel() == i) for i, each in enumerate(numbers.tolist())}

    @functools.cached_property
    def _begin(self) -> np.ndarray:
        """`starts`, in every case."""
        return np.broadcast_to(self.clients if self.starts is None else self.starts, len(self.counts))

    def played(self, lattice: _Lattice, at: np.ndarray, laws: np.ndarray) -> float:
        """Mean value of the game; the lattice is around the lowest start."""
        moves = [lattice.moves(weight * at, laws) for weight in self.weights]
        places, most = lattice.start * (self._begin / self._begin.max()), self.counts.max(axis=0)
        values, found = {(0,) * len(moves): lattice.nothing()}, np.zeros(places.size)
        for number in range(self._most + 1):
            for played, value in values.items():
                if played in self._cases:
                    cases = self._cases[played]
                    found[cases] = lattice.at(value, places[cases])
            if number == self._most:
                break
            longer: dict[tuple[int, ...], np.ndarray] = {}
            for played, value in values.items():
                for kind, move in enumerate(moves):
                    more = (*played[:kind], played[kind] + 1, *played[kind + 1 :])
                    if more[kind] <= most[kind]:
                        after = lattice.after(value, *move)
                        longer[more] = np.maximum(longer[more], after) if more in longer else after
            values = longer
        return self.mean(found)

    def _message(self, above: float) -> Message:
        """Parameters of a step at c = 1 + above."""
        message = self.steps.message(host([math.log1p(above)]))
        return message._replace(own=jax.tree.map(lambda part: part[0], message.own))

    def _laws(self, message: Message, above: float) -> tuple[np.ndarray, np.ndarray]:
        rules = self.steps.rules(message)
        laws = np.unique(np.asarray(rules.laws(message))[:-1], axis=0)
        return np.asarray(rules.places(host(above), message)), laws

    @property
    def deviation(self) -> float:
        """Approximate standard deviation of the sum, in units of p - 1."""
        return math.sqrt(self.square * self.steps.variance)

    def lattice(self, above: float) -> _Lattice:
        start = -float(self._begin.max()) * above / math.expm1(self.steps.epsilon0)
        # Kinks of the value are smoothed by many messages. The largest step is a lattice point.
        coarser = min(max(math.sqrt(self.square / _MANY), 1.0), _COARSER)
        spacing = 1.0 / math.ceil(1.0 / (coarser * _SPACING * math.sqrt(self.steps.variance)))
        return _Lattice.around(start, _REACH * self.deviation + _BEYOND, spacing)

    @functools.cached_property
    def _work(self) -> float:
        """Number of products for one c; infinity if the lattice is too large."""
        at, laws = self._laws(self._message(0.0), 0.0)
        lattice, kinds = self.lattice(0.0), len(self.weights)
        plays = kinds * (math.comb(self._most + kinds, kinds) - 1)
        moves = lattice.moves(at, laws)[0].size
        each = float(lattice.size * moves * len(laws)) + _OVERHEAD
        return plays * each if lattice.size < _POINTS else math.inf

    @property
    def affordable(self) -> bool:
        """True if the game can be played at all."""
        return self._work <= _WORK

    @property
    def cheap(self) -> bool:
        """True if playing costs little."""
        return self._work <= _CHEAP

    def value(self, above: float) -> float:
        """Upper bound on the divergence at c = 1 + above, both directions."""
        message, unit = self._message(above), math.expm1(self.steps.epsilon0)
        alone = float(message.alone(host(math.log1p(above))))
        mean = self.played(self.lattice(above), *self._laws(message, above)) * (1.0 + _ROUNDED)
        value = mean * unit / self.clients + self.rest * alone
        return min(value * (1.0 + ROUNDING) + FLUSHED, alone)

    def profile(self) -> tuple[np.ndarray, np.ndarray]:
        """Losses in nats and proven upper bounds there, convex; the last loss is epsilon0."""
        unit = math.expm1(self.steps.epsilon0)
        above: list[float] = []
        upper: list[float] = []
        for each in tried(self.deviation * unit / self.clients, unit).tolist():
            above.append(each)
            upper.append(self.value(each))
            if upper[-1] < math.exp(-self.neg_log_tail):
                break
        places, values = convex.full_hull(np.array([*above, unit]), np.array([*upper, 0.0]))
        return np.append(np.log1p(places[:-1]), self.steps.epsilon0), values


def problem(step_counts: StepCounts, steps: Steps, everybody: float, neg_log_tail: float) -> FewSteps | None:
    """The game of few messages; None for many or none, or if one dominating law is nearly as good.

    Args:
      step_counts: the law of the number of messages, binomial if step_counts.rate < 1; clients is a number, or given
        for each of the numbers of messages.
      everybody: upper bound on the probability that no other client hides the target.
      neg_log_tail: masses up to exp(-neg_log_tail) are negligible, in [1, 1e4].
    """
    rate, rest = float(step_counts.rate), everybody
    counts, masses = np.asarray(step_counts.counts), np.asarray(step_counts.masses)
    clients = np.broadcast_to(np.asarray(step_counts.clients), counts.shape)
    if everybody >= 1.0:
        return None
    if rate < 1.0:
        every, needed = float(counts[0]), -log_rest(neg_log_tail)
        last = min(float(chernoff.most(every, rate, np.array(needed))), every - 1.0)
        if last > _POINTS:
            return None
        counts, clients = np.arange(last + 1.0), np.full(int(last) + 1, every)
        masses = np.exp(np.asarray(binomial.log_pmf(counts, every, rate))) * (1.0 + 1e-10)
        if last < every - 1.0:
            rest += math.exp(-needed)
    return _game(_Cases(counts, clients, masses / clients), steps, rest, neg_log_tail)


class _Cases(NamedTuple):
    """Numbers of messages, places at which the game begins over -(c - 1)/(p - 1), and weights; [cases].

    weights: factors of the values in units of p - 1; their sum is about the weight of one message.
    """

    counts: np.ndarray
    starts: np.ndarray
    weights: np.ndarray


def _game(cases: _Cases, steps: Steps, rest: float, neg_log_tail: float) -> FewSteps | None:
    """The game of messages of one weight; None for many or none, or if it is idle."""
    counts, starts, weights = (part[cases.weights > 0.0] for part in cases)
    if (
        steps.idle
        or not counts.size
        or not 1.0 <= counts.max() <= _POINTS
        or (counts != np.floor(counts)).any()
    ):
        return None
    clients = 1.0 / float(weights.sum())
    shares = weights * clients
    known = clients, steps, neg_log_tail, rest, (1.0,), counts.astype(int)[:, None]
    found = FewSteps(*known, lambda values: float(shares @ values), float(shares @ counts), starts)
    return found if found.affordable else None


def played_or_staged(
    few: FewSteps | None, staged: Callable[[], GameArguments | None]
) -> FewSteps | GameArguments | None:
    """The game as it is to be evaluated: played, which is sharper, if that is cheap or the only way, else staged."""
    return few if few is not None and few.cheap else staged() or few


def pool(
    sizes: np.ndarray, masses: np.ndarray, theta: float, rate: float, steps: Steps, neg_log_tail: float
) -> FewSteps | None:
    """T1h+ for unequal check-in rates: a target hidden in a pool. None as for `problem`.

    Args: as for `staged_clones.pool`, without an order of the rates.
    """
    needed = -log_rest(neg_log_tail)
    rest = rate * float(masses @ np.exp(sizes * math.log(theta))) * (1.0 + 1e-9)
    # The target's message is one more than those of the pool.
    last = min(float(chernoff.most(float(sizes.max()), theta, np.array(needed))) + 1.0, float(sizes.max()))
    if not 1.0 <= last <= _POINTS:
        return None
    if last < sizes.max():
        rest += rate * math.exp(-needed)
    number, counts = (
        part.ravel() for part in np.meshgrid(sizes + 1.0, np.arange(1.0, last + 1.0), indexing="ij")
    )
    mass, here = np.repeat(masses, int(last)), counts < number
    number, counts, mass = number[here], counts[here], mass[here]
    members = np.exp(np.asarray(binomial.log_pmf(counts, number, theta))) * (1.0 + 1e-10)
    # Rounded down: the bound falls with it.
    absent = (1.0 - rate) * theta / ((1.0 - theta) * rate)
    starts = ((number - counts) * absent + counts) * (1.0 - 1e-14)
    return _game(_Cases(counts, starts, mass * members * rate / (theta * number)), steps, rest, neg_log_tail)


def binomial_profile(
    most: Array,
    clients: Array,
    rate: Array,
    message: Message,
    neg_log_tail: Array,
    everybody: Array,
    losses: Array,
    rules: Game = HEXAGON,
) -> Array:
    """Upper bounds of `problem` on the profile of messages with these laws, in one compiled program; [losses].

    Args:
      most: whole, at most n - 1 and `MOST`; more clients check in with a probability of at most e^`log_rest`.
      clients: n. rate: in (0, 1), of everyone. everybody: as in `problem`; scalars.
      message, rules: of the game; laws of a mechanism are those at the losses. losses: in [0, epsilon0).
    """
    unit, step = jnp.expm1(message.epsilon0), jnp.sqrt(rules.largest_variance(message))
    masses = jnp.exp(binomial.log_pmf(jnp.arange(MOST + 1.0), clients, rate)) * (1.0 + 1e-10)
    rest = everybody + jnp.exp(log_rest(neg_log_tail))
    reach = _REACH * step * jnp.sqrt(clients * rate) + _BEYOND
    index = jnp.arange(_POINTS)

    def value(one: tuple[Array, OwnLaws | None]) -> Array:
        loss, own = one
        step_laws, above = message._replace(own=own), jnp.expm1(loss)
        laws = rules.laws(step_laws)[:-1]
        still = jnp.maximum(1.0 - jnp.sum(laws, axis=1), 0.0)
        start = -clients * above / unit
        spacing = jnp.maximum(
            1.0 / jnp.ceil(1.0 / (_SPACING * step)), (2.0 * reach - start) / (_POINTS - 2.0)
        )
        before = jnp.ceil(reach / spacing).astype(int)
        place = rules.places(above, step_laws) / spacing
        low = jnp.floor(place)

        # Points that the places move to, [places, points + 1], also those beside the lattice.
        here, up = low.astype(int)[:, None] + jnp.arange(_POINTS + 1)[None], (place - low)[:, None]
        beyond = spacing * jnp.maximum(here - (_POINTS - 1), 0).astype(float)
        here = jnp.clip(here, 0, _POINTS - 1)

        def play(number: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            values, mean = state
            # No value is below the first, and slopes are at most one.
            at = values[here] + beyond
            means = laws @ ((1.0 - up) * at[:, :-1] + up * at[:, 1:]) + still[:, None] * values[None]
            values = jnp.max(means, axis=0)
            return values, mean + masses[number] * values[before]

        nothing = jnp.maximum(start + spacing * (index - before).astype(float), 0.0)
        begun = nothing, masses[0] * nothing[before]
        _, mean = jax.lax.fori_loop(1, most.astype(int) + 1, play, begun)
        alone = step_laws.alone(loss)
        found = mean * (1.0 + _ROUNDED) * unit / clients + rest * alone
        return jnp.minimum(found * (1.0 + ROUNDING) + FLUSHED, alone)

    return jax.lax.map(value, (losses, message.own))
