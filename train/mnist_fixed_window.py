"""Random check-ins with a fixed window (A_fix) on MNIST: one client a slot, several slots an update.

    python train/mnist_fixed_window.py --run-dir runs/fixed_window --data-dir FOLDER_WITH_IDX_FILES

Each of the clients takes part in a window with probability p_0 and picks one of its slots; a slot uses one of its
clients, drawn uniformly, or a dummy message that nobody can recognise. The messages of `minibatch` consecutive slots
make one update. Windows are repeated.
"""

from __future__ import annotations

from typing import Any

from recipe import program

from checkin_jax.protocols import FixedWindow
from checkin_jax.randomizers import L2Mechanism

SETTINGS: dict[str, Any] = {
    "protocol": FixedWindow(num_clients=60_000, num_slots=60_000, num_epochs=100, minibatch=2_000),
    "randomizer": L2Mechanism(epsilon0=4.0),
    "clip_norm": 0.1,
    "averaging": 0.2,
}

if __name__ == "__main__":
    program(SETTINGS)
