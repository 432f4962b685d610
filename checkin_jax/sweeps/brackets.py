"""Brackets of composed check-ins of eps0-LDP messages on accelerators: a lane a row, in a few compiled programs.

The bounds and witnesses are those of `account`; `kernels.composition.composed_contour` composes them.
Rows whose bounds have no kernel here, and those that a lane answers with less than `account`, are left to the host.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.accounting import extremes
from checkin_jax.accounting.bounds import clones_bounds
from checkin_jax.accounting.bounds.interface import LocalPureLDP, neg_log_tail
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.bounds.select import BEST
from checkin_jax.accounting.composition import local_view, search
from checkin_jax.accounting.composition.bracket import Bracket, ordered
from checkin_jax.kernels import binary_response, clones, host, mixture_profiles, tails
from checkin_jax.kernels.composition import composed_contour, pld
from checkin_jax.kernels.execution.backend import unstacked
from checkin_jax.kernels.execution.blockwise import on_lanes, shared
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.kernels.messages import staged_games
from checkin_jax.kernels.messages.equal_steps import StepCounts
from checkin_jax.kernels.messages.likelihood_polytopes import HEXAGON, Message
from checkin_jax.numerics import staged_clones
from checkin_jax.protocols import REPLACE
from checkin_jax.sweeps.curves import pure_at_one_rate
from checkin_jax.sweeps.formulas import OneRate
from checkin_jax.sweeps.results import Question, Results

METHOD = "contour integral"
# Lanes per call on a device: for a few rows, and for many, of a gigabyte or two of memory.
_LANES = (8, 256)
# The range of deltas; least epsilon0.
_DELTAS, _LEAST_EPSILON0 = (1e-100, 0.1), 1e-3
# Buckets of the number of labels of clones and of 3-ary randomized response.
_LABELS = 128
# Least lower end, as a share of the upper one, of rows that are not left to the host.
_NEAR = 0.98
# Atoms of a law, the most that a bound or witness has.
_ATOMS = 4 * staged_clones.LOSSES + 1
# The first event is at this share of the second loss.
_FIRST = 1e-5


class BracketLane(NamedTuple):
    """A row: what `account` is asked, losses at which its profile is evaluated, and stages of the game.

    losses: of T1+ and of the witness's events; between: beside them, of T1 where it is the bound, [losses] each.
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
    stages: staged_games.Stages


def _t1(lane: BracketLane, losses: Array) -> Array:
    """T1's profile."""
    law = clones.upper_law(lane.num_clients, lane.rate, lane.epsilon0)
    mix = mixture_profiles.buckets_upper(law, lane.neg_log_tail, _LABELS, ())
    tables = clones.signs(mix, lane.neg_log_tail, tails.STRIDED, False)
    return clones.profile_upper(mix, tables, losses, lane.epsilon0, tails.STRIDED[1])


def _t1_plus(nodes: int, lane: BracketLane) -> Array:
    """T1+'s profile."""
    n, one = lane.num_clients, jnp.ones(())
    sums = staged_games.RoundSums(StepCounts(n, lane.rate, n[None], one[None]), lane.everybody)
    game = staged_games.sampled, sums, Message(lane.epsilon0, one), lane.stages
    return staged_games.profile_upper(*game, lane.losses, HEXAGON, nodes)


def _of_both(lane: BracketLane, game: Array, alone: Array) -> pld.Atoms:
    """The law of the smaller of T1+ and T1."""
    return _above(lane, lane.losses, jnp.minimum(game, alone))


def _of_t1(lane: BracketLane, here: Array, between: Array) -> pld.Atoms:
    """The law of T1, with twice as many losses."""
    losses, values = (
        jnp.ravel(jnp.stack(parts, axis=1)) for parts in ((lane.losses, lane.between), (here, between))
    )
    return _above(lane, losses, values)


def _above(lane: BracketLane, losses: Array, values: Array) -> pld.Atoms:
    """The law of a profile that vanishes at epsilon0; what is rare enough is put at infinite loss."""
    losses, values = jnp.append(losses, lane.epsilon0), jnp.append(values, 0.0)
    rare = values <= search.ENOUGH * jnp.exp(lane.log_delta) / lane.num_rounds
    values = jnp.where(rare, values[jnp.argmax(rare)], values)
    side = pld.side_upper(losses, values)
    return _padded(pld.join(losses, side, side, True))


def _padded(atoms: pld.Atoms) -> pld.Atoms:
    """The law with atoms of mass zero up to `_ATOMS`, so that one program composes all laws."""
    losses, masses = (jnp.pad(part, (0, _ATOMS - part.size)) for part in atoms[:2])
    return pld.Atoms(losses, masses, atoms.infinite)


def _ternary(lane: BracketLane) -> tuple[Array, Array]:
    """Events of 3-ary randomized response, all others at a third record, in both directions; [2, events] each."""
    law = clones.lower_law(lane.num_clients, lane.rate, lane.epsilon0)
    mix = mixture_profiles.buckets_lower(law, lane.neg_log_tail, _LABELS)
    tables = clones.signs(mix, lane.neg_log_tail, tails.STRIDED, True)
    apart, mass = clones.lines_lower(mix, tables, _events(lane), lane.epsilon0, tails.STRIDED[1])
    return jnp.stack([apart, apart]), jnp.stack([mass, mass])


def _binary(lane: BracketLane) -> tuple[Array, Array]:
    """Events of binary randomized response, all others at one of the two records; as `_ternary`."""
    about = lane.num_clients, lane.rate, lane.epsilon0, lane.neg_log_tail
    mix = binary_response.check_in_messages(*about, clones_bounds.MESSAGE_BUCKETS)

    def lines(reverse: Array) -> tuple[Array, Array]:
        tables = binary_response.tabulate(mix, lane.epsilon0, lane.neg_log_tail, tails.STRIDED, reverse)
        given = _events(lane), lane.epsilon0, tails.STRIDED[1], reverse
        return binary_response.lines_lower(mix, tables, *given)

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


def _end(atoms: pld.Atoms, lane: BracketLane, upper: Array) -> Array:
    one_event = jax.tree.map(lambda part: part[None], atoms)
    rounds = lane.num_rounds[None]
    order = composed_contour.order(one_event, rounds, lane.log_delta)
    composed = composed_contour.compose(one_event, rounds, order, upper)
    return composed_contour.end(composed, lane.log_delta, upper)[0]


# Evaluates a function of one lane on a block of lanes; a part of the bracket made of such functions.
_Run = Callable[..., Any]
_Part = Callable[..., Any]


def _upper(game: Callable[[BracketLane], Array] | None, run: _Run, lanes: BracketLane, flags: Any) -> Any:
    """Upper ends by T1+ and T1, or by T1 alone if `game` is None."""
    here = run(_t1, lanes, lanes.losses)
    if game is None:
        atoms = run(_of_t1, lanes, here, run(_t1, lanes, lanes.between))
    else:
        atoms = run(_of_both, lanes, run(game, lanes), here)
    return run(_end, atoms, lanes, flags)


def _lower(witness: Callable[[BracketLane], Any], run: _Run, lanes: BracketLane, flags: Any) -> Any:
    """Lower ends by a witness, the larger of both directions."""
    ahead, behind = (run(_end, atoms, lanes, flags) for atoms in run(_below, *run(witness, lanes)))
    return run(jnp.maximum, ahead, behind)


_T1 = functools.partial(_upper, None)
_GAMES = {
    nodes: functools.partial(_upper, functools.partial(_t1_plus, nodes))
    for nodes in (staged_games.USUAL, staged_games.MANY)
}
_TERNARY, _BINARY = (functools.partial(_lower, witness) for witness in (_ternary, _binary))


@functools.cache
def _program(one: Callable[..., Any], devices: tuple[Any, ...]) -> Any:
    """The function of one lane, for blocks of lanes that devices share."""
    return jax.jit(jax.vmap(one), in_shardings=shared(devices), out_shardings=shared(devices))


def _compiled(parts: Sequence[_Part], rows: Sequence[_Row], size: int, devices: Sequence[Any]) -> _Run:
    """Runs the programs of these parts, for blocks of so many lanes a device; all are compiled side by side."""
    lowered = {}

    def lower(one: Callable[..., Any], *given: Any) -> Any:
        if one not in lowered:
            lowered[one] = _program(one, tuple(devices)).lower(*given)
        return lowered[one].out_info

    count = size * len(devices)
    for part in parts:
        lanes = jax.tree.map(
            lambda each: jax.ShapeDtypeStruct((count, *each.shape), each.dtype), rows[0].lane
        )
        part(lower, lanes, jax.ShapeDtypeStruct((count,), bool))
    with ThreadPoolExecutor() as threads:
        programs = dict(zip(lowered, threads.map(lambda each: each.compile(), lowered.values())))
    return lambda one, *given: programs[one](*given)


class _Row(NamedTuple):
    """A row's lane, and the parts that give its upper end and its lower end by either witness; None: not tried."""

    lane: BracketLane
    parts: tuple[_Part | None, ...]


def _row(n: float, rate: float, epsilon0: float, num_rounds: float, delta: float) -> _Row | None:
    """The lane of a row; None if `account` has bounds for it that are not here."""
    mass, cover = neg_log_tail(num_rounds, delta), Shuffled(int(n), rate)
    steps, sums = staged_clones.AnyMessage(epsilon0), cover.sums(mass)
    problem = staged_clones.problem(sums, steps, cover.everybody, mass)
    if problem is not None:
        _, _, _, stages, losses, _, nodes = problem.arguments
        upper, between = _GAMES[nodes], losses
    else:
        stages = staged_clones.stages(sums, cover.everybody, mass)
        if stages is None or cover.drift > clones_bounds.SPREADS[-1][0]:
            return None
        p = math.exp(epsilon0)
        deviation = math.sqrt(2.0 * rate / (n * (p + 1.0))) * (p - 1.0)
        finer = np.log1p(staged_clones.distances(deviation, p - 1.0, mass, 2 * staged_clones.LOSSES))
        upper, losses, between = _T1, finer[::2], finer[1::2]
    numbers = n, rate, epsilon0, num_rounds, math.log(delta), mass, cover.everybody
    lane = BracketLane._make((*map(host, numbers), losses, between, stages))
    ternary, binary = clones_bounds.tried(cover.number, epsilon0)
    return _Row(lane, (upper, _TERNARY if ternary else None, _BINARY if binary else None))


def served(question: Question, names: Collection[str]) -> bool:
    """True if accelerators have kernels for brackets at these arguments."""
    known = question.what == "bracket" and question.bounds == BEST
    return known and pure_at_one_rate(question, names, ("delta", "neighboring_relation"))


def on_devices(
    inputs: Mapping[str, np.ndarray], index: np.ndarray, devices: Sequence[Any], results: Results
) -> np.ndarray:
    """Fills in those rows among `index`, of a question that is `served`, that lanes answer; returns them."""
    started = time.perf_counter()
    given, delta = OneRate.of(inputs), np.asarray(inputs["delta"], dtype=np.float64)
    kept = given.legal & (given.rate < 1.0) & (given.num_rounds > 1) & (given.epsilon0 >= _LEAST_EPSILON0)
    kept &= (delta >= _DELTAS[0]) & (delta <= _DELTAS[1])
    for name, usual in (("view", "messages"), ("neighboring_relation", REPLACE)):
        if name in inputs:
            kept &= inputs[name] == usual
    columns = given.num_clients, given.rate, given.epsilon0, given.num_rounds, delta
    with float64(devices[0]):
        rows = {
            int(i): row
            for i in index[kept[index]]
            if (row := _row(*(float(column[i]) for column in columns))) is not None
        }
        found = ends(list(rows.values()), devices)
    answered = [
        (i, one)
        for (i, row), each in zip(rows.items(), found)
        if _as_account(row.lane, one := _bracket(row, *each.tolist()))
    ]
    spent = (time.perf_counter() - started) / max(len(answered), 1)
    for i, one in answered:
        results.attempt(i, functools.partial(_columns, one))
        results.columns["seconds"][i] = spent
    return np.array([i for i, _ in answered], dtype=np.int64)


def _bracket(row: _Row, upper: float, ternary: float, binary: float) -> Bracket:
    bound = "clones" if row.parts[0] is _T1 else "hexagon"
    witness = clones_bounds.THIRD_RECORD if ternary >= binary else clones_bounds.Binary.name
    return Bracket(max(ternary, binary), upper, METHOD, witness, bound=bound)


def _columns(found: Bracket) -> dict[str, Any]:
    found = ordered(found)
    return {
        "epsilon": found.upper,
        "lower": found.lower,
        "method": f"{found.bound}, {found.method}",
        "lower_method": found.lower_method,
        "validity": "certified",
    }


def _as_account(lane: BracketLane, found: Bracket) -> bool:
    """True unless `account` may find more: for few messages, at extreme epsilons, or by the local view."""
    delta, rounds = math.exp(lane.log_delta), int(lane.num_rounds)
    if extremes.extreme(found, delta) or not found.lower >= _NEAR * found.upper > 0.0:
        return False
    local = LocalPureLDP(float(lane.rate), float(lane.epsilon0))
    return local_view.surely_above(local, rounds, found.upper, delta)


def ends(rows: Sequence[_Row], devices: Sequence[Any], sizes: Sequence[int] = _LANES) -> np.ndarray:
    """The upper end of every row, and its lower end by either witness, [rows, 3]; in `float64(device)`."""
    found, under_way = np.zeros((len(rows), 3)), []
    groups: dict[tuple[int, _Part], list[int]] = {}
    for i, row in enumerate(rows):
        for place, part in enumerate(row.parts):
            if part is not None:
                groups.setdefault((place, part), []).append(i)
    # One size for all groups: each compiles anew.
    size = next((size for size in sizes if size * len(devices) >= len(rows)), sizes[-1])
    run = _compiled([part for _, part in groups], rows, size, devices)
    for (place, part), members in groups.items():
        lanes = jax.tree.map(lambda *parts: np.stack(parts), *(rows[i].lane for i in members))
        flags = np.full(size * len(devices), place == 0)
        program = functools.partial(part, run, flags=flags)
        under_way.append((members, place, on_lanes(program, lanes, devices, size)))
    for members, place, values in under_way:
        found[members, place] = values()
    return found
