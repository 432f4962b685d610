"""Brackets of composed check-ins of eps0-LDP messages on accelerators: a lane a row, in a few compiled programs.

The bounds and witnesses are those of `account`; `kernels.composition.composed_contour` composes them.
Rows whose bounds have no kernel here, and those that a lane answers with less than `account`, are left to the host.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from checkin_jax.kernels.execution.blockwise import on_lanes
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
# Events of a witness.
_EVENTS = 52
# Least lower end, as a share of the upper one, of rows that are not left to the host.
_NEAR = 0.98
# The first event is at this share of the second loss.
_FIRST = 1e-5


class BracketLane(NamedTuple):
    """A row: what `account` is asked, losses at which its profile is evaluated, [losses], and stages of the game."""

    num_clients: Array
    rate: Array
    epsilon0: Array
    num_rounds: Array
    log_delta: Array
    neg_log_tail: Array
    everybody: Array
    losses: Array
    stages: staged_games.Stages


def _hexagon(nodes: int, lane: BracketLane) -> list[pld.Atoms]:
    """The law of the smaller of T1+ and T1."""
    n, one = lane.num_clients, jnp.ones(())
    sums = staged_games.RoundSums(StepCounts(n, lane.rate, n[None], one[None]), lane.everybody)
    message = Message(lane.epsilon0, one)
    game = staged_games.sampled, sums, message, lane.stages, lane.losses
    return _above(lane, jnp.minimum(staged_games.profile_upper(*game, HEXAGON, nodes), _t1(lane)))


def _clones(lane: BracketLane) -> list[pld.Atoms]:
    """The law of T1."""
    return _above(lane, _t1(lane))


def _t1(lane: BracketLane) -> Array:
    law = clones.upper_law(lane.num_clients, lane.rate, lane.epsilon0)
    mix = mixture_profiles.buckets_upper(law, lane.neg_log_tail, _LABELS, ())
    tables = clones.signs(mix, lane.neg_log_tail, tails.STRIDED, False)
    return clones.profile_upper(mix, tables, lane.losses, lane.epsilon0, tails.STRIDED[1])


def _above(lane: BracketLane, values: Array) -> list[pld.Atoms]:
    """The law of a profile that vanishes at epsilon0; what is rare enough is put at infinite loss."""
    losses, values = jnp.append(lane.losses, lane.epsilon0), jnp.append(values, 0.0)
    rare = values <= search.ENOUGH * jnp.exp(lane.log_delta) / lane.num_rounds
    values = jnp.where(rare, values[jnp.argmax(rare)], values)
    side = pld.side_upper(losses, values)
    return [pld.join(losses, side, side, True)]


def _ternary(lane: BracketLane) -> list[pld.Atoms]:
    """The law of 3-ary randomized response, all others at a third record."""
    law = clones.lower_law(lane.num_clients, lane.rate, lane.epsilon0)
    mix = mixture_profiles.buckets_lower(law, lane.neg_log_tail, _LABELS)
    tables = clones.signs(mix, lane.neg_log_tail, tails.STRIDED, True)
    losses, side = pld.shells(
        *clones.lines_lower(mix, tables, _events(lane), lane.epsilon0, tails.STRIDED[1])
    )
    return [pld.join(losses, side, side, False)]


def _binary(lane: BracketLane) -> list[pld.Atoms]:
    """The laws of binary randomized response, all others at one of the two records, in both directions."""
    about = lane.num_clients, lane.rate, lane.epsilon0, lane.neg_log_tail
    mix = binary_response.check_in_messages(*about, clones_bounds.MESSAGE_BUCKETS)

    def side(reverse: bool) -> tuple[Array, pld.Side]:
        tables = binary_response.tabulate(mix, lane.epsilon0, lane.neg_log_tail, tails.STRIDED, reverse)
        given = _events(lane), lane.epsilon0, tails.STRIDED[1], reverse
        return pld.shells(*binary_response.lines_lower(mix, tables, *given))

    (ahead, plus), (behind, minus) = side(False), side(True)
    return [pld.join(ahead, plus, minus, False, behind), pld.join(behind, minus, plus, False, ahead)]


def _events(lane: BracketLane) -> Array:
    """Losses of the witness's events: some of the lane's, but positive."""
    losses = lane.losses[:: lane.losses.size // _EVENTS]
    return losses.at[0].set(_FIRST * losses[1])


@functools.cache
def _lanes(one: Callable[..., Any]) -> Callable[..., Any]:
    """The function of one lane, compiled for many."""
    return jax.jit(jax.vmap(one))


def _end(atoms: pld.Atoms, lane: BracketLane, upper: Array) -> Array:
    one_event = jax.tree.map(lambda part: part[None], atoms)
    return composed_contour.end(one_event, lane.num_rounds[None], lane.log_delta, upper)


def _composed(laws: Callable[[BracketLane], list[pld.Atoms]], upper: bool, lanes: BracketLane) -> Array:
    """Ends of all lanes, the largest over their laws; one program composes the laws of all bounds and witnesses."""
    flags = np.full(len(lanes.rate), upper)
    return functools.reduce(jnp.maximum, (_lanes(_end)(atoms, lanes, flags) for atoms in _lanes(laws)(lanes)))


_GAMES = {nodes: functools.partial(_hexagon, nodes) for nodes in (staged_games.USUAL, staged_games.MANY)}


class _Row(NamedTuple):
    """A row's lane, the bound of its upper end, and which witnesses are tried."""

    lane: BracketLane
    bound: Callable[[BracketLane], list[pld.Atoms]]
    ternary: bool
    binary: bool


def _row(n: float, rate: float, epsilon0: float, num_rounds: float, delta: float) -> _Row | None:
    """The lane of a row; None if `account` has bounds for it that are not here."""
    mass, cover = neg_log_tail(num_rounds, delta), Shuffled(int(n), rate)
    steps, sums = staged_clones.AnyMessage(epsilon0), cover.sums(mass)
    problem = staged_clones.problem(sums, steps, cover.everybody, mass)
    if problem is not None:
        _, _, _, stages, losses, _, nodes = problem.arguments
        bound = _GAMES[nodes]
    else:
        stages = staged_clones.stages(sums, cover.everybody, mass)
        if stages is None or cover.drift > clones_bounds.SPREADS[-1][0]:
            return None
        bound, p = _clones, math.exp(epsilon0)
        deviation = math.sqrt(2.0 * rate / (n * (p + 1.0))) * (p - 1.0)
        losses = np.log1p(staged_clones.distances(deviation, p - 1.0, mass, 2 * _EVENTS))
    numbers = n, rate, epsilon0, num_rounds, math.log(delta), mass, cover.everybody
    lane = BracketLane._make((*map(host, numbers), losses, stages))
    return _Row(lane, bound, *clones_bounds.tried(cover.number, epsilon0))


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
    bound = "clones" if row.bound is _clones else "hexagon"
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
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(rows):
        tried = (True, row.bound), (row.ternary, _ternary), (row.binary, _binary)
        for place, (wanted, laws) in enumerate(tried):
            if wanted:
                groups.setdefault((place, laws, row.lane.losses.size), []).append(i)
    for (place, laws, _), members in groups.items():
        lanes = jax.tree.map(lambda *parts: np.stack(parts), *(rows[i].lane for i in members))
        program = functools.partial(_composed, laws, place == 0)
        size = next((size for size in sizes if size * len(devices) >= len(members)), sizes[-1])
        under_way.append((members, place, on_lanes(program, lanes, devices, size)))
    for members, place, values in under_way:
        found[members, place] = values()
    return found
