r"""T2++: eps0-LDP messages in common slots, the target's slot under a random label; by staged domination.

With p = e^eps0, c = e^l >= 1 and m slots the unit's hockey-stick divergence is at most

    sum_i mass_i (1/n_i) E( -n_i (c - 1) + sum_{j <= m} d_j )_+ + lost (p - c)/(p + 1),

where every d is a centred step of the hexagon's game, chosen with knowledge of the steps before it
[docs/theory_hexagon.md, section 3]. All parts share the sum, its stages and its contour; only their starting
points differ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
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
    """T2++; stages: for m steps."""
    c_minus_1, unit = np.expm1(loss), np.expm1(message.epsilon0)
    alone = message.alone(loss)
    middle = -(step_counts.masses @ step_counts.clients) / np.sum(step_counts.masses) * c_minus_1 / unit
    end = staged_games.play(rules, nodes, message, stages, loss, step_counts.slots, middle)
    found = step_counts.lost * alone
    for mass, clients in zip(step_counts.masses, step_counts.clients):
        value = end.value(step_counts.slots - stages.before, -clients * c_minus_1 / unit) * unit / clients
        found = found + mass * np.where(value >= 0.0, np.minimum(value, alone), alone)
    return staged_games.clipped(found, alone)
