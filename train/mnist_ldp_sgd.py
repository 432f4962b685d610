"""The shuffled check-in paper's LDP-SGD on MNIST: epsilon0 = 2, clip norm 0.1, 60,000 clients, one record each.

    python train/mnist_ldp_sgd.py --run-dir runs/ldp_sgd --data-dir FOLDER_WITH_IDX_FILES

Every round a client checks in with probability 0.1 and sends one message of the l2 mechanism; training ends at 90%
test accuracy or after 3,000 rounds.
"""

from __future__ import annotations

from typing import Any

from recipe import program

from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import L2Mechanism

SETTINGS: dict[str, Any] = {
    "protocol": ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=3_000),
    "randomizer": L2Mechanism(epsilon0=2.0),
    "clip_norm": 0.1,
    "target_accuracy": 0.9,
}

if __name__ == "__main__":
    program(SETTINGS)
