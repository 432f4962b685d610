"""Brackets of composed check-ins of eps0-LDP or one-bit messages on accelerators: a lane a row, in a few programs.

The bounds and witnesses are those of `account`; `kernels.composition.composed_contour` composes them.
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

from checkin_jax.accounting.bounds import clones_bounds
from checkin_jax.accounting.bounds.clones_bounds import SPREADS
from checkin_jax.accounting.bounds.interface import LocalPureLDP, neg_log_tail
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.bounds.messages.one_bit_bounds import OneBitCheckIn
from checkin_jax.accounting.bounds.select import BEST
from checkin_jax.accounting.composition import local_view, search
from checkin_jax.kernels import ROUNDING, binomial, clones, host
from checkin_jax.kernels.composition import composed_contour, pld
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.backend import unstacked
from checkin_jax.kernels.execution.devices import by_shares, float64, on_lanes
from checkin_jax.kernels.messages import one_bit_profile, staged_games
from checkin_jax.kernels.messages.equal_steps import StepCounts
from checkin_jax.kernels.messages.likelihood_polytopes import HEXAGON, Message
from checkin_jax.numerics import few_steps, staged_clones
from checkin_jax.protocols import REPLACE
from checkin_jax.randomizers import L2Mechanism, OneBit
from checkin_jax.sweeps.curves import any_pure, at_one_rate
from checkin_jax.sweeps.formulas import OneRate
from checkin_jax.sweeps.results import Question, Results

METHOD = "contour integral"
# Lanes per call on a device: for a few rows, and for many, of a gigabyte or two of memory; rows prepared at a time.
_LANES, _AT_ONCE = (8, 256), 2048
# Randomizers whose messages are one bit, which tells any two records apart.
_ONE_BIT = L2Mechanism, OneBit
# The range of deltas; least epsilon0.
_DELTAS, _LEAST_EPSILON0 = (1e-100, 0.1), 1e-3
# Buckets of the number of labels of clones and of 3-ary randomized response.
_LABELS = 128
# Least lower end, as a share of the upper one, of rows that are not left to the host: the bounds themselves are farther
# apart up to epsilon0 = _SMALL, and for few messages.
_NEAR, _NEAR_IF_SMALL, _NEAR_IF_FEW, _SMALL = 0.98, 0.95, 0.9, 1.0
# Losses of a lane and between them.
_BOTH = 2 * staged_clones.LOSSES
# Losses at once for one-bit messages.
_LOSSES_AT_ONCE = 13
# Atoms of a law, the most that a bound or witness has.
_ATOMS = 4 * staged_clones.LOSSES + 1
# The first event is at this share of the second loss.
_FIRST = 1e-5
# Losses of one round's second evaluation, as shares of the end of the first one and of epsilon0.
_BESIDE, _INSIDE = 0.8, 0.9999
# The last value of c - 1, as a share of e^epsilon0 - 1; losses of a lane beyond those of a game, and for T1 alone, on a
# logarithmic scale.
_LAST, _BEYOND, _SPREAD = 0.99, 16, 24
_NO_STAGES = staged_games.Stages(host(0.0), host(np.zeros(HEXAGON.stages)), host(0.0), host(0.0))


class BracketLane(NamedTuple):
    """A row: what `account` is asked, losses at which its profile is evaluated, and stages of the game.

    losses: of the game and of the witness's events; between: one after each of them, for T1's law besides.
    most: messages of the game of few. stages: of the game of many; zeros where there is another or none.
    """

    num_clients: Array
    rate: Array
    epsilon0: Array
    num_rounds: Array
    log_delta: Array
    neg_log_tail: Array
    everybody: Array
    losses: Array
    between: Array
    most: Array
    stages: staged_games.Stages


def _t1(offsets: tuple[float, ...], lane: BracketLane, losses: Array) -> Array:
    """T1's profile; offsets: support points of the number of absent clients, in standard deviations."""
    law = clones.upper_law(lane.num_clients, lane.rate, lane.epsilon0)
    mix = clones.buckets_upper(law, lane.neg_log_tail, _LABELS, offsets)
    tables = clones.signs(mix, lane.neg_log_tail, binomial.STRIDED, False)
    return clones.profile_upper(mix, tables, losses, lane.epsilon0, binomial.STRIDED[1])


def _bits(lane: BracketLane, losses: Array) -> Array:
    """The profile of one-bit messages, B0's."""
    about = lane.num_clients, lane.rate, Message(lane.epsilon0, jnp.ones(()))

    def some(losses: Array) -> Array:
        return one_bit_profile.profile_upper(*about, losses, jnp.full_like(losses, jnp.inf), lane.everybody)

    return jax.lax.map(some, losses.reshape(-1, _LOSSES_AT_ONCE)).ravel()


def _t1_plus(nodes: int, lane: BracketLane) -> Array:
    """T1+'s profile."""
    n, one = lane.num_clients, jnp.ones(())
    sums = staged_games.RoundSums(StepCounts(n, lane.rate, n[None], one[None]), lane.everybody)
    game = staged_games.sampled, sums, Message(lane.epsilon0, one), lane.stages
    return staged_games.profile_upper(*game, lane.losses, HEXAGON, nodes)


def _few(lane: BracketLane) -> Array:
    """The profile of the game of few messages."""
    about = lane.most, lane.num_clients, lane.rate, lane.epsilon0, lane.neg_log_tail, lane.everybody
    return few_steps.binomial_profile(*about, lane.losses)


def _smaller(lane: BracketLane, game: Array, here: Array, between: Array) -> tuple[Array, Array]:
    """The smaller of a game, whose profile is convex, and T1, at the losses and between them."""
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


def _ternary(lane: BracketLane) -> tuple[Array, Array]:
    """Events of 3-ary randomized response, all others at a third record, in both directions; [2, events] each."""
    law = clones.lower_law(lane.num_clients, lane.rate, lane.epsilon0)
    mix = clones.buckets_lower(law, lane.neg_log_tail, _LABELS)
    tables = clones.signs(mix, lane.neg_log_tail, binomial.STRIDED, True)
    apart, mass = clones.lines_lower(mix, tables, _events(lane), lane.epsilon0, binomial.STRIDED[1])
    return jnp.stack([apart, apart]), jnp.stack([mass, mass])


def _binary(lane: BracketLane) -> tuple[Array, Array]:
    """Events of binary randomized response, all others at one of the two records; as `_ternary`."""
    about = lane.num_clients, lane.rate, lane.epsilon0, lane.neg_log_tail
    mix = clones.check_in_messages(*about, clones_bounds.MESSAGE_BUCKETS)

    def lines(reverse: Array) -> tuple[Array, Array]:
        tables = clones.binary_tables(mix, lane.epsilon0, lane.neg_log_tail, binomial.STRIDED, reverse)
        given = _events(lane), lane.epsilon0, binomial.STRIDED[1], reverse
        return clones.binary_lines_lower(mix, tables, *given)

    return jax.vmap(lines)(jnp.asarray([False, True]))


def _events(lane: BracketLane) -> Array:
    """Losses of the witness's events: those of the lane, but positive."""
    return lane.losses.at[0].set(_FIRST * lane.losses[1])


def _below(apart: Array, mass: Array) -> list[pld.Atoms]:
    """The laws of both directions of the events."""
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
    """The upper end by T1 or B0 and, unless it is None, by a game; of one round if `single`."""

    law: _One
    game: _One | None
    single: bool

    @property
    def bound(self) -> str:
        """Name of the bound."""
        if self.law is _bits:
            return OneBitCheckIn.name
        return "clones" if self.game is None else "hexagon"

    def __call__(self, run: _Run, lanes: BracketLane, flags: Any) -> Any:
        found = run(self.law, lanes, lanes.losses), run(self.law, lanes, lanes.between)
        if self.game is not None:
            found = run(_smaller, lanes, run(self.game, lanes), *found)
        return (
            run(_crossed, lanes, *found)
            if self.single
            else run(_end, run(_above, lanes, *found), lanes, flags)
        )


class _Lower(NamedTuple):
    """The lower end by a witness, the larger of both directions; of one round if `single`."""

    witness: _One
    single: bool

    def __call__(self, run: _Run, lanes: BracketLane, flags: Any) -> Any:
        events = run(self.witness, lanes)
        if self.single:
            return run(_reached, lanes, *events)
        ahead, behind = (run(_end, atoms, lanes, flags) for atoms in run(_below, *events))
        return run(jnp.maximum, ahead, behind)


_Part = _Upper | _Lower
# T1 for a small `drift` and for a larger one, up to _DRIFT; the game of many messages by its number of nodes.
_DRIFT, _POINTS_OF_ABSENT = SPREADS[0][0], SPREADS[1][1]
_T1, _T1_ABSENT = functools.partial(_t1, ()), functools.partial(_t1, _POINTS_OF_ABSENT)
_STAGED = {nodes: functools.partial(_t1_plus, nodes) for nodes in (staged_games.USUAL, staged_games.MANY)}


_program = functools.cache(by_shares)


class _Programs:
    """Compiled programs of lanes' functions, for blocks of so many lanes; those of several parts compile side by side.

    Call an instance, with a function of one lane, on the arguments of a block.
    """

    def __init__(self, devices: tuple[Any, ...], lanes: int) -> None:
        self.devices, self.lanes = devices, lanes
        self._known: dict[_One, tuple[Any, Any]] = {}

    def __call__(self, one: _One, *given: Any) -> Any:
        return self._known[one][0](*given)

    def include(self, parts: Collection[_Part], lane: BracketLane) -> None:
        """Compiles the programs of these parts that are missing."""
        lowered: dict[_One, Any] = {}

        def lower(one: _One, *given: Any) -> Any:
            if one in self._known:
                return self._known[one][1]
            if one not in lowered:
                lowered[one] = _program(one, self.devices).lower(*given)
            return lowered[one].out_info

        shapes = jax.tree.map(lambda each: jax.ShapeDtypeStruct((self.lanes, *each.shape), each.dtype), lane)
        for part in parts:
            part(lower, shapes, jax.ShapeDtypeStruct((self.lanes,), bool))
        with ThreadPoolExecutor() as threads:
            compiled = threads.map(lambda each: each.compile(), lowered.values())
        self._known |= {one: (each, lowered[one].out_info) for one, each in zip(lowered, compiled)}


_programs = functools.cache(_Programs)


class _Row(NamedTuple):
    """A row's lane, its upper end, and its lower ends by either witness; None: not tried."""

    lane: BracketLane
    upper: _Upper
    lower: tuple[_Lower | None, _Lower | None]

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
    """The parts of a row's upper end, values of c - 1 at and between its losses, and those of its lane's game."""

    law: _One
    game: _One | None
    above: np.ndarray
    most: int = 0
    stages: staged_games.Stages = _NO_STAGES


def _plan(cover: Shuffled, epsilon0: float, mass: float) -> _Plan | None:
    """The plan for any eps0-LDP messages; None if `account` has bounds for them that are not here."""
    steps, sums, n = staged_clones.AnyMessage(epsilon0), cover.sums(mass), float(cover.num_clients)
    known, unit = (sums, steps, cover.everybody, mass), math.expm1(epsilon0)
    few = few_steps.problem(*known) if cover.number <= few_steps.MOST else None
    problem = few_steps.played_or_staged(few, lambda: staged_clones.problem(*known))
    if isinstance(problem, staged_clones.GameArguments):
        stages, nodes = problem.arguments[3], problem.arguments[-1]
        return _Plan(_T1, _STAGED[nodes], _farther(problem.above, unit), stages=stages)
    if not steps.idle:
        most = _most(n, cover.rate, -few_steps.log_rest(mass))
        if most > min(few_steps.MOST, n - 1.0):
            return None
        deviation = math.sqrt(cover.number * steps.variance) * unit / n
        return _Plan(_T1, _few, _resampled(few_steps.tried(deviation, unit), _BOTH), most)
    if cover.drift > _DRIFT:
        return None
    deviation = math.sqrt(2.0 * cover.rate / (n * (unit + 2.0))) * unit
    near = staged_clones.distances(deviation, unit, mass, _BOTH - _SPREAD)
    above = np.sort(np.append(near, np.geomspace(0.5 * near[1], _LAST * unit, _SPREAD)))
    return _Plan(_T1 if cover.drift <= SPREADS[-1][0] else _T1_ABSENT, None, above)


def _plan_of_bits(cover: Shuffled, epsilon0: float, mass: float) -> _Plan:
    """The plan for one-bit messages."""
    unit = math.expm1(epsilon0)
    deviation = math.sqrt(cover.number * math.exp(-epsilon0)) * unit / cover.num_clients
    near = staged_clones.distances(deviation, unit, mass, staged_clones.LOSSES)
    return _Plan(_bits, None, _farther(near, unit))


def _row(
    one_bit: bool, n: float, rate: float, epsilon0: float, num_rounds: float, delta: float
) -> _Row | None:
    """A row; None if `account` has bounds for it that are not here."""
    mass, cover = neg_log_tail(num_rounds, delta), Shuffled(int(n), rate)
    plan = (_plan_of_bits if one_bit else _plan)(cover, epsilon0, mass)
    if plan is None:
        return None
    losses = np.log1p(plan.above)
    numbers = n, rate, epsilon0, num_rounds, math.log(delta), mass, cover.everybody
    lane = BracketLane._make((*map(host, numbers), losses[::2], losses[1::2], host(plan.most), plan.stages))
    ternary, binary = (False, True) if one_bit else clones_bounds.tried(cover.number, epsilon0)
    single = num_rounds == 1
    lower = _Lower(_ternary, single) if ternary else None, _Lower(_binary, single) if binary else None
    return _Row(lane, _Upper(plan.law, plan.game, single), lower)


def served(question: Question, names: Collection[str]) -> bool:
    """True if accelerators have kernels for brackets at these arguments."""
    known = question.what == "bracket" and question.bounds == BEST
    messages = any_pure(question, names) or question.randomizer in _ONE_BIT
    return known and messages and at_one_rate(question, names, ("delta", "neighboring_relation"))


def on_devices(
    inputs: Mapping[str, np.ndarray], index: np.ndarray, devices: Sequence[Any], results: Results
) -> np.ndarray:
    """Fills in those rows among `index`, of a question that is `served`, that lanes answer; returns them."""
    started = time.perf_counter()
    given, delta = OneRate.of(inputs), np.asarray(inputs["delta"], dtype=np.float64)
    kept = given.legal & (given.rate < 1.0) & (given.epsilon0 >= _LEAST_EPSILON0)
    kept &= (delta >= _DELTAS[0]) & (delta <= _DELTAS[1])
    for name, usual in (("view", "messages"), ("neighboring_relation", REPLACE)):
        if name in inputs:
            kept &= inputs[name] == usual
    columns = given.num_clients, given.rate, given.epsilon0, given.num_rounds, delta
    rows, one_bit = dict[int, _Row](), results.question.randomizer in _ONE_BIT

    def prepared() -> Iterator[_Row]:
        for i in index[kept[index]].tolist():
            if (row := _row(one_bit, *(float(column[i]) for column in columns))) is not None:
                rows[i] = row
                yield row

    with float64(devices[0]):
        found = ends(prepared(), devices, int(kept[index].sum()))
        single = np.array([row.upper.single for row in rows.values()], dtype=bool)
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
        parts = [row.upper for row in itertools.compress(rows.values(), answered)]
        results.attempt(index, functools.partial(_columns, parts, found))
        results.columns["seconds"][index] = (time.perf_counter() - started) / len(index)
        # As `bracket.ordered`, by row: one of the ends is wrong.
        for i in index[found[:, 1:].max(axis=1) > found[:, 0] * (1.0 + 1e-6)].tolist():
            results.errors[i] = "the lower end is above the upper one: please report these settings"
    return index


def _columns(parts: Sequence[_Upper], found: np.ndarray) -> dict[str, Any]:
    """Columns of a table from the rows' ends, [rows, 3]."""
    upper, lower = found[:, 0], found[:, 1:].max(axis=1)
    methods = [f"{part.bound}, {'one unit' if part.single else METHOD}" for part in parts]
    witnesses = np.array([clones_bounds.THIRD_RECORD, clones_bounds.Binary.name], dtype=object)
    return {
        "epsilon": upper,
        "lower": np.minimum(lower, upper),
        "method": np.array(methods, dtype=object),
        "lower_method": witnesses[(found[:, 2] > found[:, 1]).astype(int)],
        "validity": "certified",
    }


def _as_account(row: _Row, upper: float, *lower: float) -> bool:
    """True unless `account` may find more: where the ends are not as near as its bounds are, or by the local view."""
    lane = row.lane
    if row.upper.game is _few:
        near = _NEAR_IF_FEW
    else:
        near = _NEAR if row.upper.law is _bits or lane.epsilon0 > _SMALL else _NEAR_IF_SMALL
    if not (math.isfinite(upper) and max(lower) >= near * upper > 0.0):
        return False
    local = LocalPureLDP(float(lane.rate), float(lane.epsilon0))
    return local_view.surely_above(local, int(lane.num_rounds), upper, math.exp(lane.log_delta))


def ends(
    rows: Iterable[_Row], devices: Sequence[Any], count: int, sizes: Sequence[int] = _LANES
) -> np.ndarray:
    """The upper end of every row, and its lower end by either witness, [rows, 3]; in `float64(device)`.

    Blocks of rows are evaluated while further rows are prepared. count: about the number of rows.
    """
    # One size for all parts: each compiles anew.
    size = next((size for size in sizes if size * len(devices) >= count), sizes[-1])
    run, given = _programs(tuple(devices), size * len(devices)), iter(rows)
    waiting: dict[tuple[int, _Part], list[tuple[int, BracketLane]]] = {}
    under_way: list[tuple[list[int], int, Callable[[], np.ndarray]]] = []

    def start(key: tuple[int, _Part], some: list[tuple[int, BracketLane]]) -> None:
        place, part = key
        lanes = jax.tree.map(lambda *parts: np.stack(parts), *(lane for _, lane in some))
        program = functools.partial(part, run, flags=np.full(run.lanes, place == 0))
        under_way.append(([i for i, _ in some], place, on_lanes(program, lanes, devices, size)))

    number = 0
    while some := list(itertools.islice(given, _AT_ONCE)):
        for row in some:
            for place, part in enumerate((row.upper, *row.lower)):
                if part is not None:
                    waiting.setdefault((place, part), []).append((number, row.lane))
            number += 1
        run.include([part for _, part in waiting], some[0].lane)
        for key, members in waiting.items():
            full = len(members) - len(members) % run.lanes
            if full and not (isinstance(key[1], _Upper) and key[1].game is _few):
                start(key, members[:full])
                del members[:full]
    for key, members in waiting.items():
        if members:
            # A block takes as long as its largest game of few messages.
            start(key, sorted(members, key=lambda member: float(member[1].most)))
    found = np.zeros((number, 3))
    for members, place, values in under_way:
        found[members, place] = values()
    return found
