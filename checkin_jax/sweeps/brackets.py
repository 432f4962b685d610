"""Brackets of composed check-ins of eps0-LDP messages on accelerators: a lane a row, in a few programs.

The bounds and witnesses are those of `account`, as data: one law that dominates every step, laws among which an
adversary chooses, label laws with all others at one record. `kernels.composition.composed_contour` composes them.
Rows whose bounds have no kernel here, and those that a lane answers with less than `account`, are left to the host.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.accounting import witnesses
from checkin_jax.accounting.bounds import clones_bounds, theorems
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.full_participation import BesideDummies
from checkin_jax.accounting.bounds.hexagon import StagedClones
from checkin_jax.accounting.bounds.interface import LocalPureLDP, binary_laws, neg_log_tail
from checkin_jax.accounting.bounds.messages import equal_records
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.bounds.messages.one_step_bounds import (
    KaryBound,
    OneBitCheckIn,
    TotalVariationBound,
)
from checkin_jax.accounting.bounds.select import BEST
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.composition import local_view, search
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.composition import composed_contour, pld
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.backend import unstacked
from checkin_jax.kernels.execution.devices import by_shares, float64, on_lanes
from checkin_jax.kernels.messages import (
    equal_steps,
    hidden_messages,
    hidden_messages_lower,
    one_bit_profile,
    staged_games,
)
from checkin_jax.kernels.messages.hidden_messages_lower import OutputCells
from checkin_jax.kernels.messages.likelihood_polytopes import HEXAGON, Game, Message, OwnLaws
from checkin_jax.numerics import few_steps, staged_clones
from checkin_jax.numerics.staged_clones import Steps
from checkin_jax.numerics.step_laws import OwnSteps
from checkin_jax.protocols import REPLACE, Shuffle
from checkin_jax.randomizers import (
    HadamardResponse,
    KaryResponse,
    L2Mechanism,
    LabelLaws,
    Laplace,
    OneBit,
    PureLDP,
    Randomizer,
    Rappor,
)
from checkin_jax.randomizers.randomizer import TERNARY
from checkin_jax.sweeps.curves import at_one_rate
from checkin_jax.sweeps.formulas import OneRate
from checkin_jax.sweeps.results import Question, Results

METHOD = "contour integral"
# Lanes per call on a device: for a few rows, and for many, of a gigabyte or two of memory; rows prepared at a time.
_LANES, _AT_ONCE = (8, 256), 512
# Randomizers that are described by epsilon0 and, k-ary response, a number of values.
_RANDOMIZERS = PureLDP, L2Mechanism, OneBit, KaryResponse, HadamardResponse, Rappor, Laplace
# The range of deltas; least epsilon0.
_DELTAS, _LEAST_EPSILON0 = (1e-100, 0.1), 1e-3
# Numbers of labels on either side of an even one, and of witnesses.
_LABELS, _WITNESSES = (4, 64), 2
# Events that share a contour, and its period in standard deviations of the sum, and over the place.
_TOGETHER, _PERIOD, _PLACE = 4, 20.0, 2.5
# Least lower end, as a share of the upper one, of rows that are not left to the host: the bounds themselves are farther
# apart up to epsilon0 = _SMALL, and for few messages or a mechanism's own laws.
_NEAR, _NEAR_IF_SMALL, _NEAR_OF_GAMES, _SMALL = 0.98, 0.95, 0.9, 1.0
# Losses of a lane and between them.
_BOTH = 2 * staged_clones.LOSSES
# Losses at once on contours of equal steps.
_LOSSES_AT_ONCE = 13
# Atoms of a law, the most that a bound or witness has.
_ATOMS = 4 * staged_clones.LOSSES + 1
# The first event is at this share of the second loss.
_FIRST = 1e-5
# Losses of one round's second evaluation, as shares of the end of the first one and of epsilon0.
_BESIDE, _INSIDE = 0.8, 0.9999
# The last value of c - 1, as a share of e^epsilon0 - 1; losses of a lane beyond those of a game, and for one law alone,
# on a logarithmic scale.
_LAST, _BEYOND, _SPREAD = 0.99, 16, 24
_NO_STAGES = staged_games.Stages(host(0.0), host(np.zeros(HEXAGON.stages)), host(0.0), host(0.0))


class Hidden(NamedTuple):
    """The sample of messages in which the game hides the target, beside a few dummies if all clients send (E+).

    rate, epsilon0, everybody: of these messages, scalars. none_prob: probability of no dummy, in which event `all_sent`
    dominates every step; 0 where there are none.
    """

    rate: Array
    epsilon0: Array
    everybody: Array
    none_prob: Array
    all_sent: equal_steps.StepLaw


class BracketLane(NamedTuple):
    """A row: what `account` is asked, losses at which its profile is evaluated, and stages of the game.

    losses: of the game and of the witness's events; between: one after each of them, for one law alone.
    law: one that dominates every step. hidden: of the game and of B0. most: messages of the game of few. stages: of
    the game of many; zeros where there is another or none.
    """

    num_clients: Array
    rate: Array
    epsilon0: Array
    num_rounds: Array
    log_delta: Array
    neg_log_tail: Array
    losses: Array
    between: Array
    law: equal_steps.StepLaw
    hidden: Hidden
    most: Array
    stages: staged_games.Stages


def _sums(lane: BracketLane, rate: Array) -> equal_steps.StepCounts:
    n = lane.num_clients
    return equal_steps.StepCounts(n, rate, n[None], jnp.ones(1))


def _some_by_some(profile: Callable[[Array], Array], losses: Array) -> Array:
    return jax.lax.map(profile, losses.reshape(-1, _LOSSES_AT_ONCE)).ravel()


def _of_one_law(lane: BracketLane, losses: Array) -> Array:
    """The profile of sums of the dominating law: T1's, A's or t_k's."""
    about = lane.law, _sums(lane, lane.rate), lane.epsilon0
    return _some_by_some(lambda some: equal_steps.profile_upper(*about, some), losses)


def _with_rest(lane: BracketLane, hidden: Array, losses: Array) -> Array:
    """The profile of messages beside dummies, from that in the event that there is one."""
    about = lane.hidden.all_sent, _sums(lane, lane.rate), lane.hidden.epsilon0
    rest = _some_by_some(lambda some: equal_steps.profile_upper(*about, some), losses)
    return (hidden + lane.hidden.none_prob * rest) * (1.0 + ROUNDING)


def _bits(lane: BracketLane, losses: Array) -> Array:
    """The profile of one-bit messages, B0's."""
    rate, epsilon0, everybody, *_ = lane.hidden
    about = lane.num_clients, rate, Message(epsilon0, jnp.ones(()))

    def profile(some: Array) -> Array:
        return one_bit_profile.profile_upper(*about, some, jnp.full_like(some, jnp.inf), everybody)

    return _some_by_some(profile, losses)


def _bits_beside(lane: BracketLane, losses: Array) -> Array:
    """The profile of one-bit messages beside dummies."""
    return _with_rest(lane, _bits(lane, losses), losses)


def _of_many(rules: Game, nodes: int, lane: BracketLane, own: OwnLaws | None) -> Array:
    """The profile of the game of many messages, T1+ or B."""
    rate, epsilon0, everybody, *_ = lane.hidden
    sums = staged_games.RoundSums(_sums(lane, rate), everybody)
    game = staged_games.sampled, sums, Message(epsilon0, jnp.ones(()), own), lane.stages
    return staged_games.profile_upper(*game, lane.losses, rules, nodes)


def _of_many_beside(rules: Game, nodes: int, lane: BracketLane, own: OwnLaws | None) -> Array:
    """The profile of that game beside dummies."""
    return _with_rest(lane, _of_many(rules, nodes, lane, own), lane.losses)


def _of_few(rules: Game, lane: BracketLane, own: OwnLaws | None) -> Array:
    """The profile of the game of few messages."""
    rate, epsilon0, everybody, *_ = lane.hidden
    message = Message(epsilon0, jnp.ones(()), own)
    about = lane.most, lane.num_clients, rate, message, lane.neg_log_tail, everybody
    return few_steps.binomial_profile(*about, lane.losses, rules)


def _smaller(lane: BracketLane, game: Array, here: Array, between: Array) -> tuple[Array, Array]:
    """The smaller of a game, whose profile is convex, and one law's, at the losses and between them."""
    at, values = jnp.expm1(jnp.append(lane.losses, lane.epsilon0)), jnp.append(game, 0.0)
    # H_{1/c} = 1 - 1/c + H_c / c, and H is convex on both sides of c = 1, where it is below the chords to the mirror.
    at_one = jnp.minimum(values[0], jnp.min((2.0 * values + at) / (at + 2.0)) * (1.0 + ROUNDING))
    values = values.at[0].set(jnp.where(at[0] > 0.0, values[0], at_one))
    share = (jnp.expm1(lane.between) - at[:-1]) / (at[1:] - at[:-1])
    chord = (values[:-1] + share * (values[1:] - values[:-1])) * (1.0 + ROUNDING)
    return jnp.minimum(values[:-1], here), jnp.minimum(chord, between)


def _merged(lane: BracketLane, here: Array, between: Array) -> tuple[Array, Array]:
    """All losses in order, and the profile there; it vanishes at epsilon0."""
    pairs = (lane.losses, lane.between), (here, between)
    losses, values = (jnp.ravel(jnp.stack(parts, axis=1)) for parts in pairs)
    return jnp.append(losses, lane.epsilon0), jnp.append(values, 0.0)


def _above(lane: BracketLane, here: Array, between: Array) -> pld.Atoms:
    """The law of a profile; what is rare enough is put at infinite loss."""
    losses, values = _merged(lane, here, between)
    rare = values <= search.ENOUGH * jnp.exp(lane.log_delta) / lane.num_rounds
    values = jnp.where(rare, values[jnp.argmax(rare)], values)
    side = pld.side_upper(losses, values)
    return _padded(pld.join(losses, side, side, True))


def _crossed(lane: BracketLane, here: Array, between: Array) -> Array:
    """The loss at which the chords of one round's profile fall to delta."""
    losses, values = _merged(lane, here, between)
    delta, at = jnp.exp(lane.log_delta) * (1.0 - ROUNDING), jnp.expm1(losses)
    after = jnp.argmax(values <= delta)
    before = jnp.maximum(after - 1, 0)
    share = (values[before] - delta) / (values[before] - values[after])
    crossed = log1p(at[before] + share * (at[after] - at[before])) * (1.0 + ROUNDING)
    return jnp.where(after == 0, losses[0], jnp.minimum(crossed, losses[after]))


def _padded(atoms: pld.Atoms) -> pld.Atoms:
    """The law with atoms of mass zero up to `_ATOMS`, so that one program composes all laws."""
    losses, masses = (jnp.pad(part, (0, _ATOMS - part.size)) for part in atoms[:2])
    return pld.Atoms(losses, masses, atoms.infinite)


class WitnessData(NamedTuple):
    """Label laws with all others at one record, in both directions.

    cells: of one message, in units of e^epsilon0 - 1, [2, ...]. mirrored: 1 if that record is one of the two.
    """

    cells: OutputCells
    mirrored: Array


def _positive(lane: BracketLane) -> Array:
    """The lane's losses, but positive."""
    return lane.losses.at[0].set(_FIRST * lane.losses[1])


def _events(lane: BracketLane, of: WitnessData) -> tuple[Array, Array]:
    """P(A) - Q(A) and Q(A) for events A: the sum of likelihood ratios exceeds a place; in both directions, [2, events].

    The places are those at which the loss exceeds one of the lane's.
    """
    n, unit, losses = lane.num_clients, jnp.expm1(lane.epsilon0), _positive(lane)
    # 1 + W/n > c and, if all others hold the second record, 1 > c (1 + W/n).
    places = jnp.stack(
        [jnp.expm1(losses), jnp.where(of.mirrored > 0.0, -jnp.expm1(-losses), jnp.expm1(losses))]
    )

    def lines(cells: OutputCells, places: Array) -> tuple[Array, Array]:
        at = jnp.concatenate([cells.right, -cells.left])
        masses = lane.rate * jnp.concatenate([cells.right_mass, cells.left_mass])
        far = (n * places / unit).reshape(-1, _TOGETHER)
        middle = far[:, _TOGETHER // 2]
        each = (
            jnp.broadcast_to(at, (middle.size, at.size)),
            jnp.broadcast_to(masses, (middle.size, 1, at.size)),
        )
        order, tilted = equal_steps.saddle(equal_steps.CentredLaws(*each), n, -middle)
        deviation = jnp.sqrt(n * jnp.sum(masses * jnp.square(at)))
        period = jnp.maximum(_PERIOD * jnp.maximum(deviation, tilted), _PLACE * middle)
        choice = hidden_messages.ContourChoice(order, jnp.full(order.shape, cells.right.size), period)
        with jax.numpy_rank_promotion("allow"):  # the kernel broadcasts as NumPy does
            apart, mass = hidden_messages_lower.lines_lower(n[None], lane.rate, cells, choice, far[None])
        # Of an event too rare for the contour nothing is known: the empty event takes its place.
        mass = jnp.where(apart > 0.0, mass * (1.0 + ROUNDING), 0.0)
        return (apart * (unit / n)).ravel() * (1.0 - ROUNDING), mass.ravel()

    return jax.vmap(lines)(of.cells, places)


def _below(lane: BracketLane, apart: Array, mass: Array) -> list[pld.Atoms]:
    """The laws of both directions of the events, of which the best at each loss is kept."""
    above = jnp.expm1(_positive(lane))[None, :, None]
    best = jnp.argmax(apart[:, None, :] - above * mass[:, None, :], axis=-1)
    apart, mass = (jnp.take_along_axis(part, best, axis=-1) for part in (apart, mass))
    losses, sides = jax.vmap(pld.shells)(apart, mass)
    plus, minus = unstacked(sides)
    pairs = (losses[0], plus, minus, losses[1]), (losses[1], minus, plus, losses[0])
    return [_padded(pld.join(ahead, here, there, False, behind)) for ahead, here, there, behind in pairs]


def _reached(lane: BracketLane, apart: Array, mass: Array) -> Array:
    """The largest loss at which an event of one round shows a divergence above delta."""
    most = (apart - jnp.exp(lane.log_delta) * (1.0 + ROUNDING)) / mass
    return log1p(jnp.maximum(jnp.max(most), 0.0)) * (1.0 - ROUNDING)


def _end(atoms: pld.Atoms, lane: BracketLane, upper: Array) -> Array:
    one_event = jax.tree.map(lambda part: part[None], atoms)
    rounds = lane.num_rounds[None]
    order = composed_contour.order(one_event, rounds, lane.log_delta)
    composed = composed_contour.compose(one_event, rounds, order, upper)
    return composed_contour.end(composed, lane.log_delta, upper)[0]


# A function of one lane; the evaluation of such functions on a block of lanes.
_One = Callable[..., Any]
_Run = Callable[..., Any]


class _Upper(NamedTuple):
    """The upper end by one law or B0 and, unless it is None, by a game; of one round if `single`."""

    law: _One
    game: _One | None
    single: bool

    def __call__(self, run: _Run, lanes: BracketLane, own: Any, flags: Any) -> Any:
        found = run(self.law, lanes, lanes.losses), run(self.law, lanes, lanes.between)
        if self.game is not None:
            found = run(_smaller, lanes, run(self.game, lanes, own), *found)
        return (
            run(_crossed, lanes, *found)
            if self.single
            else run(_end, run(_above, lanes, *found), lanes, flags)
        )


class _Lower(NamedTuple):
    """The lower end by a witness, the larger of both directions; of one round if `single`."""

    single: bool

    def __call__(self, run: _Run, lanes: BracketLane, witness: Any, flags: Any) -> Any:
        events = run(_events, lanes, witness)
        if self.single:
            return run(_reached, lanes, *events)
        ahead, behind = (run(_end, atoms, lanes, flags) for atoms in run(_below, lanes, *events))
        return run(jnp.maximum, ahead, behind)


_Part = _Upper | _Lower


@functools.cache
def _game(play: Callable[..., Array], rules: Game, *nodes: int) -> _One:
    """One function for each game, so that its programs are found again."""
    return functools.partial(play, rules, *nodes)


_program = functools.cache(by_shares)


def _shapes(tree: Any) -> Any:
    """Hashable: structure and shapes."""
    return jax.tree.structure(tree), tuple(np.shape(leaf) for leaf in jax.tree.leaves(tree))


class _Programs:
    """Compiled programs of lanes' functions, for blocks of so many lanes; those of several parts compile side by side.

    Call an instance, with a function of one lane, on the arguments of a block.
    """

    def __init__(self, devices: tuple[Any, ...], lanes: int) -> None:
        self.devices, self.lanes = devices, lanes
        self._known: dict[tuple[_One, Any], tuple[Any, Any]] = {}

    def __call__(self, one: _One, *given: Any) -> Any:
        return self._known[one, _shapes(given)][0](*given)

    def include(self, parts: Mapping[_Part, Collection[_Lane]]) -> None:
        """Compiles the programs of these parts that are missing, for lanes of these shapes."""
        lowered: dict[tuple[_One, Any], Any] = {}

        def lower(one: _One, *given: Any) -> Any:
            key = one, _shapes(given)
            if key in self._known:
                return self._known[key][1]
            if key not in lowered:
                lowered[key] = _program(one, self.devices).lower(*given)
            return lowered[key].out_info

        for part, lanes in parts.items():
            for lane in lanes:
                shapes = jax.tree.map(
                    lambda each: jax.ShapeDtypeStruct((self.lanes, *each.shape), each.dtype), lane
                )
                part(lower, shapes[0], shapes[1], jax.ShapeDtypeStruct((self.lanes,), bool))
        with ThreadPoolExecutor() as threads:
            compiled = threads.map(lambda each: each.compile(), lowered.values())
        self._known |= {key: (each, lowered[key].out_info) for key, each in zip(lowered, compiled)}


_programs = functools.cache(_Programs)

# The profile of a game, and its number of nodes; a lane, and what one of its parts takes besides.
_Play = tuple[Any, ...]
_Lane = tuple[BracketLane, OwnLaws | WitnessData | None]


class _Row(NamedTuple):
    """A row's lane, and what its parts take besides.

    law: the profile of one law, or B0's. play: that of a game, and its number of nodes; None: there is none. steps: of
    the game. witnesses: of the lower end, with their names. bound: name of the bound.
    """

    lane: BracketLane
    law: _One
    play: _Play | None
    steps: Steps | None
    witnesses: tuple[tuple[str, WitnessData], ...]
    bound: str

    @property
    def single(self) -> bool:
        """True for one round."""
        return float(self.lane.num_rounds) == 1.0

    def parts(self) -> list[tuple[_Part, _Lane]]:
        """The upper end, and the lower end by every witness; with their data."""
        game, own = None, None
        if self.play is not None and self.steps is not None:
            message, (play, *nodes) = self.steps.message(self.lane.losses), self.play
            game, own = _game(play, self.steps.rules(message), *nodes), message.own
        lower = _Lower(self.single)
        return [
            (_Upper(self.law, game, self.single), (self.lane, own)),
            *((lower, (self.lane, data)) for _, data in self.witnesses),
        ]

    def nearer(self, upper: float) -> _Row:
        """The same row with losses just below this upper end."""
        top = min(upper, _INSIDE * float(self.lane.epsilon0))
        losses = host(np.linspace(_BESIDE * top, top, _BOTH))
        return self._replace(lane=self.lane._replace(losses=losses[::2], between=losses[1::2]))


def _most(n: float, rate: float, exponent: float) -> int:
    """About the least number that Bin(n, rate) exceeds with a probability of at most e^-exponent (Chernoff)."""

    def seldom(most: int) -> bool:
        rest = (n - most) * math.log1p((n * rate - most) / (n - n * rate))
        return most * math.log(most / (n * rate)) + rest > exponent + 0.01

    last = min(few_steps.MOST, int(n) - 1)
    return bisect.bisect_left(range(last + 1), True, lo=min(math.floor(n * rate) + 1, last + 1), key=seldom)


def _resampled(above: np.ndarray, number: int) -> np.ndarray:
    """So many increasing values, as dense as these."""
    return np.interp(np.linspace(0.0, len(above) - 1.0, number), np.arange(len(above)), above)


def _farther(above: np.ndarray, unit: float) -> np.ndarray:
    """Values of c - 1 for the losses of a lane and between them: as dense as these, with some beyond the last."""
    number, last = _BOTH, _LAST * unit
    if above[-1] >= 0.5 * last:
        return _resampled(above, number)
    farther = above[-1] * (last / above[-1]) ** (np.arange(1.0, _BEYOND + 1.0) / _BEYOND)
    return np.append(_resampled(above, number - _BEYOND), farther)


class _Plan(NamedTuple):
    """Values of c - 1 at and between a row's losses, and its game: function, messages or stages."""

    above: np.ndarray
    play: _Play | None = None
    most: int = 0
    stages: staged_games.Stages = _NO_STAGES


def _plan(cover: Shuffled, steps: Steps, law: equal_steps.StepLaw, unit: float, mass: float) -> _Plan | None:
    """The plan of a game, or of one law where no game gains; None if `account` has bounds that are not here.

    unit: e^epsilon0 - 1 of all messages, whose losses end there.
    """
    sums, n = cover.sums(mass), float(cover.num_clients)
    few = None
    if cover.number <= few_steps.MOST_CHEAP:
        few = few_steps.problem(sums, steps, cover.everybody, mass)
    if few is None or not few.cheap:
        chosen = None if steps.idle else staged_clones.stages(sums, cover.everybody, mass)
        if chosen is not None:
            mean, deviation = staged_clones.scale(sums, steps)
            above = staged_clones.distances(deviation, unit, mass, staged_clones.LOSSES)
            # Laws of a mechanism that serve far losses, too, are larger.
            above = _resampled(above, _BOTH) if isinstance(steps, OwnSteps) else _farther(above, unit)
            return _Plan(above, (_of_many, staged_clones.nodes_for(mean)), stages=chosen)
    if not steps.idle:
        most = _most(n, cover.rate, -few_steps.log_rest(mass))
        if most > min(few_steps.MOST, n - 1.0) or (isinstance(steps, OwnSteps) and steps.merged):
            return None
        deviation = math.sqrt(cover.number * steps.variance) * unit / n
        return _Plan(_resampled(few_steps.tried(deviation, unit), _BOTH), (_of_few,), most)
    return _plan_of_one_law(cover, law, unit, mass)


def _plan_of_one_law(cover: Shuffled, law: equal_steps.StepLaw, unit: float, mass: float) -> _Plan:
    """The plan of one law that dominates every step."""
    deviation = math.sqrt(2.0 * float(law.pair) * cover.rate / cover.num_clients) * unit
    near = staged_clones.distances(deviation, unit, mass, _BOTH - _SPREAD)
    return _Plan(np.sort(np.append(near, np.geomspace(0.5 * near[1], _LAST * unit, _SPREAD))))


def _plan_of_bits(cover: Shuffled, epsilon0: float, unit: float, mass: float) -> _Plan:
    """The plan for one-bit messages; unit as in `_plan`."""
    deviation = math.sqrt(cover.number * math.exp(-epsilon0)) * unit / cover.num_clients
    near = staged_clones.distances(deviation, unit, mass, staged_clones.LOSSES)
    return _Plan(_farther(near, unit))


class _Bound(NamedTuple):
    """A row's upper end: its plan, a profile, the one law that dominates every step, the game's steps, what hides."""

    plan: _Plan | None
    profile: _One
    law: equal_steps.StepLaw
    steps: Steps | None
    hidden: Hidden
    name: str


def _bound(cover: Shuffled, randomizer: Randomizer, mass: float) -> _Bound:
    epsilon0, kary = randomizer.largest_loss, randomizer.kary
    if kary is None:
        one = TotalVariationBound(cover, epsilon0, randomizer.total_variation, mass)
    else:
        one = KaryBound(cover, epsilon0, kary, mass)
    law = one.law
    hidden = Hidden._make((*map(host, (cover.rate, epsilon0, cover.everybody, 0.0)), law))
    unit = math.expm1(epsilon0)
    name = Clones.name if TERNARY in randomizer.included_mechanisms else one.name
    alone = _Bound(_plan_of_one_law(cover, law, unit, mass), _of_one_law, law, None, hidden, name)
    if kary is not None:
        return alone
    if cover.rate == 1.0:
        all_send = Shuffle(num_clients=cover.num_clients)
        found = theorems.e_plus(Unit(all_send, randomizer, "messages", REPLACE, mass))
        return _beside(found, law, unit, mass) if isinstance(found, BesideDummies) else alone
    if randomizer.one_bit is not None:
        plan = _plan_of_bits(cover, epsilon0, unit, mass)
        return alone._replace(plan=plan, profile=_bits, name=OneBitCheckIn.name)
    own = theorems.own_steps(randomizer)
    if own is not None:
        return alone._replace(plan=_plan(cover, own, law, unit, mass), steps=own, name="own-laws")
    steps = staged_clones.AnyMessage(epsilon0)
    plan = _plan(cover, steps, law, unit, mass)
    return alone._replace(plan=plan, steps=steps, name="hexagon" if plan and plan.play else name)


def _beside(found: BesideDummies, law: equal_steps.StepLaw, unit: float, mass: float) -> _Bound:
    """The bound E+; unit as in `_plan`. Its plan is None where few messages are left."""
    left, all_sent = found.hidden, found.all_sent
    assert isinstance(left, OneBitCheckIn | StagedClones)
    assert isinstance(left.step_cover, Shuffled)
    assert isinstance(all_sent, TotalVariationBound)
    cover, epsilon0 = left.step_cover, all_sent.epsilon0
    numbers = cover.rate, epsilon0, cover.everybody, found.none_prob
    hidden = Hidden._make((*map(host, numbers), all_sent.law))
    if isinstance(left, OneBitCheckIn):
        plan = _plan_of_bits(cover, epsilon0, unit, mass)
        return _Bound(plan, _bits_beside, law, None, hidden, found.name)
    plan = _plan(cover, left.steps, law, unit, mass)
    play, *nodes = (None,) if plan is None or plan.play is None else plan.play
    if plan is None or play is not _of_many:
        return _Bound(None, _of_one_law, law, None, hidden, found.name)
    plan = plan._replace(play=(_of_many_beside, *nodes))
    return _Bound(plan, _of_one_law, law, left.steps, hidden, found.name)


def _told(randomizer: Randomizer, cover: Shuffled, mass: float) -> list[LabelLaws]:
    """Label laws of the witnesses that `account` tries."""
    epsilon0 = randomizer.largest_loss
    included = randomizer.included_mechanisms
    if not included:
        laws = [law for law in randomizer.label_laws if not law.of_sums]
        return witnesses.promising(cover.number, laws, mass)[:_WITNESSES]
    ternary, binary = clones_bounds.tried(cover.number, epsilon0) if TERNARY in included else (False, True)
    found = []
    if ternary:
        law = clones_bounds.third_record_laws(epsilon0, 3)
        found.append(law._replace(name=clones_bounds.THIRD_RECORD))
    if binary:
        found.append(binary_laws(epsilon0)._replace(name=clones_bounds.Binary.name))
    return found


def _witness(laws: LabelLaws, cover: Shuffled, unit: float) -> WitnessData | None:
    """Data of a witness; cells without mass make up one of a few numbers. None if steps are too rare for a contour."""
    mirrored = laws.others is None
    if mirrored:
        laws = laws._replace(others=laws.other)
    elif equal_records.without_rare(laws, cover.number) is not laws:
        return None
    drawn = np.array([1.0 - 1e-14])
    both = equal_records.label_cells(laws, drawn)
    most = max(part.size for cells in both for part in (cells.right, cells.left))
    size = next(size for size in _LABELS if size >= most)

    def padded(cells: OutputCells) -> OutputCells:
        scaled = cells._replace(right=cells.right / unit, left=cells.left / unit, drawn=None)
        parts = jax.tree.map(lambda part: np.pad(part, (0, size - part.size)), scaled)
        return parts._replace(drawn=host(drawn))

    cells = jax.tree.map(lambda *parts: np.stack(parts), *map(padded, both))
    return WitnessData(cells, host(float(mirrored)))


def _row(randomizer: Randomizer, n: float, rate: float, num_rounds: float, delta: float) -> _Row | None:
    """A row; None if `account` has bounds for it that are not here."""
    mass, cover = neg_log_tail(num_rounds, delta), Shuffled(int(n), rate)
    plan, profile, law, steps, hidden, name = _bound(cover, randomizer, mass)
    if plan is None:
        return None
    epsilon0, data = randomizer.largest_loss, []
    for told in _told(randomizer, cover, mass):
        witness = _witness(told, cover, math.expm1(epsilon0))
        if witness is None:
            return None
        data.append((told.name, witness))
    losses = np.log1p(plan.above)
    numbers = n, rate, epsilon0, num_rounds, math.log(delta), mass
    about = losses[::2], losses[1::2], law, hidden, host(plan.most), plan.stages
    lane = BracketLane._make((*map(host, numbers), *about))
    return _Row(lane, profile, plan.play, steps, tuple(data), name)


def served(question: Question, names: Collection[str]) -> bool:
    """True if accelerators have kernels for brackets at these arguments."""
    if question.what != "bracket" or question.bounds != BEST or "epsilon0" not in names:
        return False
    known = question.kind_of_randomizer(names) in _RANDOMIZERS
    return known and at_one_rate(question, names, ("delta", "neighboring_relation", "num_values"))


def on_devices(
    inputs: Mapping[str, np.ndarray], index: np.ndarray, devices: Sequence[Any], results: Results
) -> np.ndarray:
    """Fills in those rows among `index`, of a question that is `served`, that lanes answer; returns them."""
    started, question = time.perf_counter(), results.question
    given, delta = OneRate.of(inputs), np.asarray(inputs["delta"], dtype=np.float64)
    kept = given.legal & (given.epsilon0 >= _LEAST_EPSILON0)
    kept &= (delta >= _DELTAS[0]) & (delta <= _DELTAS[1])
    for name, usual in (("view", "messages"), ("neighboring_relation", REPLACE)):
        if name in inputs:
            kept &= inputs[name] == usual
    rows, about = dict[int, _Row](), [name for name in ("epsilon0", "num_values") if name in inputs]
    columns = given.num_clients, given.rate, given.num_rounds, delta

    def prepared() -> Iterator[_Row]:
        for i in index[kept[index]].tolist():
            try:
                randomizer = question.built({name: inputs[name][i].item() for name in about})
            except (TypeError, ValueError):  # the host says why
                continue
            assert isinstance(randomizer, Randomizer)
            if (row := _row(randomizer, *(float(column[i]) for column in columns))) is not None:
                rows[i] = row
                yield row

    with float64(devices[0]):
        found = ends(prepared(), devices, int(kept[index].sum()))
        single = np.array([row.single for row in rows.values()], dtype=bool)
        single &= np.isfinite(found[:, 0]) & (found[:, 0] > 0.0)
        again = [
            row.nearer(upper) for row, upper in itertools.compress(zip(rows.values(), found[:, 0]), single)
        ]
        finer = ends(again, devices, len(again))
    found[single] = np.column_stack(
        [np.minimum(found[single, 0], finer[:, 0]), np.maximum(found[single, 1:], finer[:, 1:])]
    )
    index = np.fromiter(rows, dtype=np.int64, count=len(rows))
    answered = [_as_account(row, *each) for row, each in zip(rows.values(), found.tolist())]
    index, found = index[answered], found[answered]
    if index.size:
        kept_rows = list(itertools.compress(rows.values(), answered))
        results.attempt(index, functools.partial(_columns, kept_rows, found))
        results.columns["seconds"][index] = (time.perf_counter() - started) / len(index)
        # As `bracket.ordered`, by row: one of the ends is wrong.
        for i in index[found[:, 1:].max(axis=1) > found[:, 0] * (1.0 + 1e-6)].tolist():
            results.errors[i] = "the lower end is above the upper one: please report these settings"
    return index


def _columns(rows: Sequence[_Row], found: np.ndarray) -> dict[str, Any]:
    """Columns of a table from the rows' ends, [rows, 1 + witnesses]."""
    upper, lower, best = found[:, 0], found[:, 1:].max(axis=1), found[:, 1:].argmax(axis=1)
    methods = [f"{row.bound}, {'one unit' if row.single else METHOD}" for row in rows]
    names = [row.witnesses[place][0] for row, place in zip(rows, best.tolist())]
    return {
        "epsilon": upper,
        "lower": np.minimum(lower, upper),
        "method": np.array(methods, dtype=object),
        "lower_method": np.array(names, dtype=object),
        "validity": "certified",
    }


def _as_account(row: _Row, upper: float, *lower: float) -> bool:
    """True unless `account` may find more: where the ends are not as near as its bounds are, or by the local view."""
    lane = row.lane
    if float(lane.most) > 0.0 or isinstance(row.steps, OwnSteps):
        near = _NEAR_OF_GAMES
    else:
        near = _NEAR if row.law in (_bits, _bits_beside) or lane.epsilon0 > _SMALL else _NEAR_IF_SMALL
    if not (math.isfinite(upper) and max(lower) >= near * upper > 0.0):
        return False
    local = LocalPureLDP(float(lane.rate), float(lane.epsilon0))
    return local_view.surely_above(local, int(lane.num_rounds), upper, math.exp(lane.log_delta))


def _of_block(part: _Part, run: _Run, flags: np.ndarray, lanes: _Lane) -> Array:
    lane, data = lanes
    return part(run, lane, data, flags)


def ends(
    rows: Iterable[_Row], devices: Sequence[Any], count: int, sizes: Sequence[int] = _LANES
) -> np.ndarray:
    """The upper end of every row, and its lower end by every witness, [rows, 1 + witnesses]; in `float64(device)`.

    Blocks of rows are evaluated while further rows are prepared. count: about the number of rows.
    """
    # One size for all parts: each compiles anew.
    size = next((size for size in sizes if size * len(devices) >= count), sizes[-1])
    run, given = _programs(tuple(devices), size * len(devices)), iter(rows)
    # Rows, and places in them, of parts whose lanes have equal shapes.
    waiting: dict[tuple[bool, _Part, Any], list[tuple[int, int, _Lane]]] = {}
    under_way: list[tuple[list[int], list[int], Callable[[], np.ndarray]]] = []

    def start(key: tuple[bool, _Part, Any], some: list[tuple[int, int, _Lane]]) -> None:
        upper, part, _ = key
        lanes = jax.tree.map(lambda *parts: np.stack(parts), *(lane for *_, lane in some))
        program = functools.partial(_of_block, part, run, np.full(run.lanes, upper))
        numbers, places = [number for number, *_ in some], [place for _, place, _ in some]
        under_way.append((numbers, places, on_lanes(program, lanes, devices, size)))

    number = 0
    while some := list(itertools.islice(given, _AT_ONCE)):
        for row in some:
            for place, (part, lane) in enumerate(row.parts()):
                waiting.setdefault((place == 0, part, _shapes(lane)), []).append((number, place, lane))
            number += 1
        fresh: dict[_Part, list[_Lane]] = {}
        for (_, part, _), members in waiting.items():
            if members:
                fresh.setdefault(part, []).append(members[0][2])
        run.include(fresh)
        for key, members in waiting.items():
            full = len(members) - len(members) % run.lanes
            if full and not float(members[0][2][0].most) > 0.0:
                start(key, members[:full])
                del members[:full]
    for key, members in waiting.items():
        if members:
            # A block takes as long as its largest game of few messages.
            start(key, sorted(members, key=lambda member: float(member[2][0].most)))
    found = np.zeros((number, 1 + _WITNESSES))
    for numbers, places, values in under_way:
        found[numbers, places] = values()
    return found
