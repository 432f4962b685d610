r"""T2++: eps0-LDP messages in common slots, the target's slot under a random label; by staged domination.

With p = e^eps0, c = e^l >= 1 and m slots the unit's hockey-stick divergence is at most

    sum_i mass_i (1/n_i) E( -n_i (c - 1) + sum_{j <= m} d_j )_+ + lost (p - c)/(p + 1),

where every d is a centred step of the hexagon's game, chosen with knowledge of the steps before it
[docs/theory_hexagon.md, section 3]. All parts share the sum, its stages and its contour; only their starting
points differ.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from checkin_jax.kernels.messages import staged_games
from checkin_jax.kernels.messages.likelihood_polytopes import Game, Message
from checkin_jax.kernels.messages.staged_games import Stages


class LabelledSteps(NamedTuple):
    """m; real n_i > 0 and their masses, [parts]; lost: probability of the outcomes in no part."""

    slots: Array
    clients: Array
    masses: Array
    lost: Array


def labelled(
    rules: Game, nodes: int, step_counts: LabelledSteps, stages: Stages, message: Message, loss: Array
) -> Array:
    """T2++ at one loss; stages: for m steps."""
    c_minus_1, unit = jnp.expm1(loss), jnp.expm1(message.epsilon0)
    middle = -(step_counts.masses @ step_counts.clients) / jnp.sum(step_counts.masses) * c_minus_1 / unit
    end = staged_games.play(rules, nodes, message, stages, loss, step_counts.slots, middle)
    every = end.more(step_counts.slots - stages.before)

    def part(clients: Array) -> Array:
        x = -clients * c_minus_1 / unit
        debt = every.debt * jnp.exp(end.game.contour.order * x + every.total.log_mgf)
        return (end.stop_loss(every.total, x) + debt) * unit / clients

    alone = message.alone(loss)
    parts = jax.vmap(part)(step_counts.clients)
    parts = jnp.where(parts >= 0.0, jnp.minimum(parts, alone), alone)
    return staged_games.clipped(step_counts.masses @ parts + step_counts.lost * alone, alone)
