"""Random check-ins with averaged updates (A_avg) on MNIST: all clients of a slot make its update.

    python train/mnist_averaged.py --run-dir runs/averaged --data-dir FOLDER_WITH_IDX_FILES

Each of the clients takes part in a window with probability p_0 and picks one of its slots; the messages of all clients
of a slot are averaged; empty slots are skipped. The number of clients of a slot is public. Windows are repeated.
"""

from __future__ import annotations

import dataclasses

from recipe import Recipe, program

from checkin_jax.protocols import AveragedUpdates
from checkin_jax.randomizers import L2Mechanism


@dataclasses.dataclass(kw_only=True)
class Experiment(Recipe):
    """A_avg on MNIST."""

    num_clients: int = 60_000
    """Clients; more than 60,000 share records."""
    num_slots: int = 60
    """Slots of a window."""
    check_in_prob: float = 1.0
    """Probability that a client takes part in a window."""
    num_epochs: int = 100
    """How many times the whole window is run."""
    epsilon0: float = 4.0
    """Local privacy of one message of the l2 mechanism."""
    clip_norm: float = 0.1
    """l2 norm of a clipped gradient."""
    averaging: float = 0.2
    """Average the parameters over this last fraction of the updates."""


def main(experiment: Experiment) -> None:
    """Runs the experiment and prints its report."""
    protocol = AveragedUpdates(
        num_clients=experiment.num_clients,
        num_slots=experiment.num_slots,
        check_in_prob=experiment.check_in_prob,
        num_epochs=experiment.num_epochs,
    )
    experiment.run(
        protocol=protocol,
        randomizer=L2Mechanism(epsilon0=experiment.epsilon0),
        clip_norm=experiment.clip_norm,
        averaging=experiment.averaging,
    )


if __name__ == "__main__":
    program(Experiment, main)
