r"""T2+ and T2d: eps0-LDP messages in slots of two weights, by staged domination.

With p = e^eps0, c = e^l >= 1 and slots of two kinds the unit's hockey-stick divergence is at most

    sum_i mass_i (1/n_i) E( -T_i n_i (c - 1) + sum_{j <= K_i} d_j + w sum_{j <= K'_i} d'_j )_+ ,

where every d is a centred step of the hexagon's game, chosen with knowledge of the steps before it, in any
order of both kinds [docs/theory_hexagon.md, sections 2 and 5]. Each kind has its own stages: a law that dominates
after some steps of one kind also does so after further independent steps of the other kind.
"""

from __future__ import annotations

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


def weighted(
    rules: Game,
    nodes: int,
    step_counts: WeightedSteps,
    stages: tuple[Stages, Stages],
    message: Message,
    loss: Array,
) -> Array:
    """T2+ or T2d; stages: of each kind."""
    c_minus_1, unit = host(np.expm1(loss)), np.expm1(message.epsilon0)
    alone = message.alone(loss)
    at, laws = rules.places(c_minus_1, message), rules.laws(message)
    means = step_counts.masses @ step_counts.whole, step_counts.masses @ step_counts.part
    whole = means[0] + np.square(step_counts.weight) * means[1]
    deviation = staged_games.expected_deviation(at, laws, whole)
    usual = step_counts.masses @ (step_counts.clients * step_counts.totals) / step_counts.masses.sum()
    order, worth = staged_games.contoured(deviation, -usual * c_minus_1 / unit)
    candidates = host(rules.candidates)

    def played(scale: Array | float, plan: Stages, mean: Array) -> staged_games.Staged:
        game = staged_games.laws_on(candidates, scale * at, laws, deviation, order, nodes)
        return staged_games.staged(game, plan, mean, worth)

    scales = 1.0, step_counts.weight
    ends = [played(*each) for each in zip(scales, stages, means)]
    normal = stop_loss.start(ends[0].game.contour, ends[0].game.theta)
    # Steps of the other kind also lower the moduli.
    ends[0] = ends[0]._replace(tail=np.minimum(ends[0].tail, ends[1].tail))

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
        return ends[0].stop_loss(total, x) + debt * np.exp(order * x + total.log_mgf)

    found = host(np.zeros(loss.shape))
    for mass, clients, total, whole, part in zip(
        step_counts.masses, step_counts.clients, step_counts.totals, step_counts.whole, step_counts.part
    ):
        # One message alone times the sum of its shares, which rare levels' contour may miss.
        most = alone * (whole + step_counts.weight * part) / clients * (1.0 + ROUNDING)
        if mass > 0 and whole >= stages[0].before and part >= stages[1].before:
            late = (end.more(count - plan.before) for end, count, plan in zip(ends, (whole, part), stages))
            level = value(total * (-clients * c_minus_1 / unit), *late) * unit / clients
            found = found + mass * np.where(level >= 0.0, np.minimum(level, most), most)
        else:
            # Beside colluders these shares may sum up to more than one.
            found = found + mass * np.maximum(alone, most)
    return staged_games.clipped(found, alone)
