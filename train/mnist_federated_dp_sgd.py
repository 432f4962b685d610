"""The shuffled check-in paper's federated DP-SGD on MNIST: Gaussian messages of a given local privacy.

    python train/mnist_federated_dp_sgd.py --run-dir runs/dp_sgd_8 --epsilon0 8 --data-dir FOLDER_WITH_IDX_FILES
    python train/mnist_federated_dp_sgd.py --run-dir runs/dp_sgd_2 --epsilon0 2 --num-rounds 5540
    python train/mnist_federated_dp_sgd.py --run-dir runs/many --epsilon0 8 --num-clients 10000000 \\
        --check-in-prob 1e-4 --num-rounds 2000

The noise is what the analytic Gaussian mechanism needs for (epsilon0, num_clients^-1.5)-local privacy of one message
under replacement. With more clients than records (the third run), clients draw their records with replacement.
"""

from __future__ import annotations

import dataclasses

from recipe import Recipe, program

from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import Gaussian


@dataclasses.dataclass(kw_only=True)
class Experiment(Recipe):
    """Federated DP-SGD on MNIST under shuffled check-in."""

    epsilon0: float = 8.0
    """Local privacy of one message, at delta0 = num_clients^-1.5."""
    num_clients: int = 60_000
    """Clients; more than 60,000 share records."""
    check_in_prob: float = 0.1
    """Probability that a client checks in, each round."""
    num_rounds: int = 3_000
    """Rounds."""
    clip_norm: float = 0.05
    """l2 norm of a clipped gradient."""
    averaging: float = 0.2
    """Average the parameters over this last fraction of the rounds."""


def main(experiment: Experiment) -> None:
    """Runs the experiment and prints its report."""
    protocol = ShuffledCheckIn(
        num_clients=experiment.num_clients,
        check_in_prob=experiment.check_in_prob,
        num_rounds=experiment.num_rounds,
    )
    randomizer = Gaussian.from_local(epsilon0=experiment.epsilon0, delta0=experiment.num_clients**-1.5)
    experiment.run(
        protocol=protocol,
        randomizer=randomizer,
        clip_norm=experiment.clip_norm,
        averaging=experiment.averaging,
    )


if __name__ == "__main__":
    program(Experiment, main)
