"""The shuffled check-in paper's federated DP-SGD on MNIST: Gaussian messages of a given local privacy.

    python train/mnist_federated_dp_sgd.py --run-dir runs/dp_sgd --data-dir FOLDER_WITH_IDX_FILES

The noise is what the analytic Gaussian mechanism needs for (epsilon0, num_clients^-1.5)-local privacy of one message
under replacement, at epsilon0 = 8. With more clients than records, clients draw their records with replacement.
"""

from __future__ import annotations

from typing import Any

from recipe import program

from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import Gaussian

SETTINGS: dict[str, Any] = {
    "protocol": ShuffledCheckIn(num_clients=10**7, check_in_prob=1e-4, num_rounds=2_000),
    "randomizer": Gaussian.from_local(epsilon0=8.0, delta0=1e7**-1.5),
    "clip_norm": 0.05,
    "averaging": 0.2,
}

if __name__ == "__main__":
    program(SETTINGS)
