"""Random check-ins with sliding windows (A_sldw) on MNIST: clients arrive one by one and check in soon.

    python train/mnist_sliding_window.py --run-dir runs/sliding_window --data-dir FOLDER_WITH_IDX_FILES

Client j picks one of the slots j..j+window-1; from slot `window` on, a slot uses one of its clients, drawn uniformly,
or a dummy message that nobody can recognise. The messages of `minibatch` consecutive slots make one update. The pass
over the clients is repeated.
"""

from __future__ import annotations

from typing import Any

from recipe import program

from checkin_jax.protocols import SlidingWindow
from checkin_jax.randomizers import L2Mechanism

SETTINGS: dict[str, Any] = {
    "protocol": SlidingWindow(num_clients=60_000, window=30_000, num_epochs=100, minibatch=2_000),
    "randomizer": L2Mechanism(epsilon0=4.0),
    "clip_norm": 0.1,
    "averaging": 0.2,
}

if __name__ == "__main__":
    program(SETTINGS)
