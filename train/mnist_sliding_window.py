"""Random check-ins with sliding windows (A_sldw) on MNIST: clients arrive one by one and check in soon.

    python train/mnist_sliding_window.py --run-dir runs/sliding_window --data-dir FOLDER_WITH_IDX_FILES

Client j picks one of the slots j..j+window-1; from slot `window` on, a slot uses one of its clients, drawn uniformly,
or a dummy message that nobody can recognise. The messages of `minibatch` consecutive slots make one update. The pass
over the clients is repeated.
"""

from __future__ import annotations

import dataclasses

from recipe import Recipe, program

from checkin_jax.protocols import SlidingWindow
from checkin_jax.randomizers import L2Mechanism


@dataclasses.dataclass(kw_only=True)
class Experiment(Recipe):
    """A_sldw on MNIST."""

    num_clients: int = 60_000
    """Clients; more than 60,000 share records."""
    window: int = 30_000
    """Length of each client's window."""
    minibatch: int = 2_000
    """Slots whose messages make one update."""
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
    protocol = SlidingWindow(
        num_clients=experiment.num_clients,
        window=experiment.window,
        num_epochs=experiment.num_epochs,
        minibatch=experiment.minibatch,
    )
    experiment.run(
        protocol=protocol,
        randomizer=L2Mechanism(epsilon0=experiment.epsilon0),
        clip_norm=experiment.clip_norm,
        averaging=experiment.averaging,
    )


if __name__ == "__main__":
    program(Experiment, main)
