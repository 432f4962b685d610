"""A first guess at the learning rate. Tuning it on the protected data would itself cost privacy."""

from __future__ import annotations

import math

from checkin_jax.training.run import PrivateRun

TYPICAL = 0.15
# Descriptions, for reports, of how settings were chosen.
BY_RULE = (
    "learning rate by a rule of thumb from the settings of the run alone; the rule was found on MNIST by looking at "
    "test accuracies"
)
NOT_STATED = (
    "how optimizer and settings were chosen was not stated; choosing them by looking at runs on these clients' records "
    "costs privacy that is not counted here"
)


def suggested_learning_rate(run: PrivateRun, rounds: int | None = None) -> float:
    """Suggests a learning rate by learning_rate * clip_norm = 0.15 sqrt(B/T) / z, for SGD with
    linear decay.

    B is the expected number of messages per round, T = `rounds` (None: all of the run), and z is the standard
    deviation of one message's noise in clip norms. While nearly all clients are clipped only learning_rate *
    clip_norm matters, and the total noise of T such steps is the same for all settings. A rule of thumb,
    found on MNIST, without any guarantee.
    """
    number, rate = run.schedule.check_ins
    steps = math.sqrt(number * rate / (rounds or run.schedule.num_rounds))
    return TYPICAL * steps / run.mechanism.noise_multiplier / run.clip_norm
