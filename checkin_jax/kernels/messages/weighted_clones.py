r"""T2+ and T2d: eps0-LDP messages in slots of two weights, by staged domination.

With p = e^eps0, c = e^l >= 1 and slots of two kinds the unit's hockey-stick divergence is at most

    sum_i mass_i (1/n_i) E( -T_i n_i (c - 1) + sum_{j <= K_i} d_j + w sum_{j <= K'_i} d'_j )_+ ,

where every d is a centred step of the hexagon's game, chosen with knowledge of the steps before it, in any
order of both kinds [docs/theory_hexagon.md, sections 2 and 5]. Each kind has its own stages: a law that dominates
after some steps of one kind also does so after further independent steps of the other kind.

Slots of weight one may hold dummies that are fair bits. Their step is (c + 1)/(p + 1) or its negative at most, and no
adversary chooses its law.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jax import Array

from checkin_jax.kernels import ROUNDING, host, stop_loss
from checkin_jax.kernels.messages import staged_games
from checkin_jax.kernels.messages.likelihood_polytopes import Game, Message
from checkin_jax.kernels.messages.staged_games import Later, Stages


class WeightedSteps(NamedTuple):
    """Numbers (real) of steps of weight one, `whole`, and of `weight`, `part`; [levels].

    clients: real n > 0. totals: T, by which n is multiplied. T2+ has n = m / rho and T = 1.
    """

    clients: Array
    totals: Array
    whole: Array
    part: Array
    masses: Array
    weight: Array

    @property
    def variance(self) -> float:
        """That of the sum of the steps, relative to n, up to a common factor."""
        squares = self.whole + np.square(self.weight) * self.part
        return float(self.masses @ (squares / np.square(self.clients * self.totals)))


class _FairBits(NamedTuple):
    """Steps of dummies at the contour's first nodes, as `staged_games.Staged`; total: the normal variable alone."""

    total: stop_loss.ContourSum
    step: stop_loss.Repeated
    tail: Array

    @classmethod
    def of(cls, size: Array, deviation: Array, order: Array, nodes: int, least: Array) -> _FairBits:
        """Steps of this size in units of p - 1; least: the smallest number of them that is asked for."""
        law = host([[1.0]]), host(np.stack([size, -size], axis=-1)), host([[0.5, 0.5]])
        game = staged_games.laws_on(*law, deviation, order, nodes)
        share = host(np.ones_like(game.real))
        whole = stop_loss.times(
            stop_loss.start(game.contour, game.theta), staged_games.step_of(game, share)[0], least
        )
        _, tail = stop_loss.fewer(whole, game.contour, game.theta, staged_games.TURNED)
        few = staged_games.first_nodes(game)
        return cls(stop_loss.start(few.contour, few.theta), staged_games.step_of(few, share)[0], tail)

    def more(self, count: Array) -> Later:
        """`count` steps."""
        total = stop_loss.times(self.total, self.step, count)
        nothing = host(np.zeros_like(total.log_mgf))
        return Later(total, nothing, nothing)


def weighted(
    rules: Game,
    nodes: int,
    step_counts: WeightedSteps,
    stages: tuple[Stages | None, Stages],
    message: Message,
    loss: Array,
) -> Array:
    """T2+, T2++ or T2d; stages: of each kind; None: the first kind are fair bits."""
    c_minus_1, unit = host(np.expm1(loss)), np.expm1(message.epsilon0)
    alone = message.alone(loss)
    at, laws = rules.places(c_minus_1, message), rules.laws(message)
    means = step_counts.masses @ step_counts.whole, step_counts.masses @ step_counts.part
    before = host(0.0) if stages[0] is None else stages[0].before
    late = (step_counts.masses > 0) & (step_counts.whole >= before) & (step_counts.part >= stages[1].before)
    light = host(np.square(step_counts.weight) * means[1])
    size = host((c_minus_1 + 2.0) / (unit + 2.0) * (1.0 + ROUNDING))
    if stages[0] is None:
        squares = np.square(staged_games.expected_deviation(at, laws, light)) + means[0] * np.square(size)
        deviation = host(np.sqrt(squares))
    else:
        deviation = staged_games.expected_deviation(at, laws, means[0] + light)
    usual = step_counts.masses @ (step_counts.clients * step_counts.totals) / step_counts.masses.sum()
    order, worth = staged_games.contoured(deviation, -usual * c_minus_1 / unit)
    candidates = host(rules.candidates)

    def played(scale: Array | float, plan: Stages, mean: Array) -> staged_games.Staged:
        game = staged_games.laws_on(candidates, scale * at, laws, deviation, order, nodes)
        return staged_games.staged(game, plan, mean, worth)

    end = played(step_counts.weight, stages[1], means[1])
    if stages[0] is None:
        least = host(np.min(np.asarray(step_counts.whole)[late], initial=math.inf))
        heavy: staged_games.Staged | _FairBits = _FairBits.of(size, deviation, order, nodes, least)
    else:
        heavy = played(1.0, stages[0], means[0])
    normal = stop_loss.start(end.game.contour, end.game.theta)
    # Steps of the other kind also lower the moduli.
    end = end._replace(tail=np.minimum(heavy.tail, end.tail))

    def value(x: Array, first: Later, second: Later) -> Array:
        # Both sums include the normal variable.
        total = stop_loss.ContourSum(
            first.total.log_mgf + second.total.log_mgf - normal.log_mgf,
            first.total.log_ratio + second.total.log_ratio - normal.log_ratio,
            first.total.drift + second.total.drift,
            first.total.absolute + second.total.absolute,
        )
        # In any order of the kinds, a debt grows at most by all steps of the other kind.
        debt = first.debt * np.exp(second.growth) + second.debt * np.exp(first.growth)
        return end.stop_loss(total, x) + debt * np.exp(order * x + total.log_mgf)

    found = host(np.zeros(loss.shape))
    for hidden, mass, clients, total, whole, part in zip(
        late,
        step_counts.masses,
        step_counts.clients,
        step_counts.totals,
        step_counts.whole,
        step_counts.part,
    ):
        # One message alone times the sum of its shares, which rare levels' contour may miss.
        most = alone * (whole + step_counts.weight * part) / clients * (1.0 + ROUNDING)
        if hidden:
            later = heavy.more(whole - before), end.more(part - stages[1].before)
            level = value(total * (-clients * c_minus_1 / unit), *later) * unit / clients
            found = found + mass * np.where(level >= 0.0, np.minimum(level, most), most)
        else:
            # Beside colluders these shares may sum up to more than one.
            found = found + mass * np.maximum(alone, most)
    return staged_games.clipped(found, alone)
