"""The shuffled check-in paper's LDP-SGD on MNIST: epsilon0 = 2, clip norm 0.1, 60,000 clients, one record each.

    python train/mnist_ldp_sgd.py --run-dir runs/ldp_sgd --data-dir FOLDER_WITH_IDX_FILES

Every round a client checks in with probability 0.1 and sends one message of the l2 mechanism; training ends at 90%
test accuracy or after 3,000 rounds.
"""

from __future__ import annotations

import dataclasses

from recipe import Recipe, program

from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import L2Mechanism


@dataclasses.dataclass(kw_only=True)
class Experiment(Recipe):
    """LDP-SGD on MNIST under shuffled check-in."""

    epsilon0: float = 2.0
    """Local privacy of one message."""
    clip_norm: float = 0.1
    """l2 norm of a clipped gradient."""
    check_in_prob: float = 0.1
    """Probability that a client checks in, each round."""
    num_rounds: int = 3_000
    """Rounds at most."""
    target_accuracy: float | None = 0.9
    """Stop at the first evaluation that reaches it."""


def main(experiment: Experiment) -> None:
    """Runs the experiment and prints its report."""
    protocol = ShuffledCheckIn(
        num_clients=60_000, check_in_prob=experiment.check_in_prob, num_rounds=experiment.num_rounds
    )
    experiment.run(
        protocol=protocol,
        randomizer=L2Mechanism(epsilon0=experiment.epsilon0),
        clip_norm=experiment.clip_norm,
    )


if __name__ == "__main__":
    program(Experiment, main)
