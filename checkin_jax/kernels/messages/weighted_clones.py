r"""T2+ and T2d: eps0-LDP messages in slots of two weights, by staged domination.

With p = e^eps0, c = e^l >= 1 and slots of two kinds the unit's hockey-stick divergence is at most

    sum_i mass_i (1/n_i) max_k E( -T_ik n_i (c - 1) + sum_{j <= K_i} d_j + w sum_{j <= K'_ik} d'_j )_+ ,

where every d is a centred step of the hexagon's game, chosen with knowledge of the steps before it, in any
order of both kinds [docs/theory_hexagon.md, sections 2 and 5]. Each kind has its own stages: a law that dominates
after some steps of one kind also does so after further independent steps of the other kind.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from checkin_jax.kernels import stop_loss
from checkin_jax.kernels.messages import staged_games
from checkin_jax.kernels.messages.likelihood_polytopes import Game, Message
from checkin_jax.kernels.messages.staged_games import Stages


class WeightedSteps(NamedTuple):
    """Real n > 0, numbers of steps of weight one and masses, [levels]; T and numbers of weight w, [levels, cells]."""

    clients: Array
    totals: Array
    whole: Array
    part: Array
    masses: Array
    weight: Array


def weighted(
    rules: Game,
    nodes: int,
    step_counts: WeightedSteps,
    stages: tuple[Stages, Stages],
    message: Message,
    loss: Array,
) -> Array:
    """T2+ or T2d at one loss; stages: of each kind."""
    c_minus_1, unit = jnp.expm1(loss), jnp.expm1(message.epsilon0)
    starts = -step_counts.clients[:, None] * step_counts.totals * c_minus_1 / unit
    at, laws = rules.places(c_minus_1, message), rules.laws(message)
    means = step_counts.masses @ step_counts.whole, step_counts.masses @ step_counts.part[:, 0]
    whole = means[0] + jnp.square(step_counts.weight) * means[1]
    deviation = staged_games.expected_deviation(at, laws, whole)
    middle = (step_counts.masses @ starts[:, 0]) / jnp.sum(step_counts.masses)
    order, worth = staged_games.contoured(deviation, middle)
    candidates = jnp.asarray(rules.candidates)

    kinds: list[tuple[Stages, staged_games.Staged]] = []
    for scale, mean, plan in zip((jnp.ones_like(step_counts.weight), step_counts.weight), means, stages):
        game = staged_games.laws_on(candidates, scale * at, laws, deviation, order, nodes)
        kinds.append((plan, staged_games.staged(game, plan, mean, worth)))
    ends = [end for _, end in kinds]
    contour, theta = ends[0].game.contour, ends[0].game.theta
    normal = stop_loss.start(contour, theta)
    # Steps of the other kind also lower the moduli.
    tail = jnp.minimum(ends[0].tail, ends[1].tail)
    late = (
        (step_counts.masses > 0)
        & (step_counts.whole >= stages[0].before)
        & (step_counts.part >= stages[1].before).all(axis=1)
    )

    def part(x: Array, whole: Array, rest: Array) -> Array:
        first, second = (end.more(count - plan.before) for (plan, end), count in zip(kinds, (whole, rest)))
        # Both sums include the normal variable.
        total = stop_loss.ContourSum(
            first.total.log_mgf + second.total.log_mgf - normal.log_mgf,
            first.total.log_ratio + second.total.log_ratio - normal.log_ratio,
            first.total.drift + second.total.drift,
            first.total.absolute + second.total.absolute,
        )
        # In any order of the kinds, a debt grows at most by all steps of the other kind.
        debt = first.debt * jnp.exp(second.growth) + second.debt * jnp.exp(first.growth)
        debt = debt * jnp.exp(order * x + total.log_mgf)
        return stop_loss.stop_loss(total, contour, theta, x, tail) + debt

    cells = jax.vmap(part, (0, None, 0))
    values = jax.vmap(cells)(
        starts,
        jnp.where(late, step_counts.whole, stages[0].before),
        jnp.where(late[:, None], step_counts.part, stages[1].before),
    ).max(axis=1)
    value = jnp.sum(jnp.where(late, step_counts.masses * values * unit / step_counts.clients, 0.0))
    alone = message.alone(loss)
    value = value + jnp.sum(jnp.where(late, 0.0, step_counts.masses)) * alone
    return staged_games.clipped(value, alone)
