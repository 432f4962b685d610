"""Random check-ins with averaged updates (A_avg) on MNIST: all clients of a slot make its update.

    python train/mnist_averaged.py --run-dir runs/averaged --data-dir FOLDER_WITH_IDX_FILES

Each of the clients takes part in a window with probability p_0 and picks one of its slots; the messages of all clients
of a slot are averaged; empty slots are skipped. The number of clients of a slot is public. Windows are repeated.
"""

from __future__ import annotations

from typing import Any

from recipe import program

from checkin_jax.protocols import AveragedUpdates
from checkin_jax.randomizers import L2Mechanism

SETTINGS: dict[str, Any] = {
    "protocol": AveragedUpdates(num_clients=60_000, num_slots=60, num_epochs=100),
    "randomizer": L2Mechanism(epsilon0=4.0),
    "clip_norm": 0.1,
    "averaging": 0.2,
}

if __name__ == "__main__":
    program(SETTINGS)
