"""The shuffled check-in paper's MNIST experiment: LDP-SGD at epsilon0 = 2 on 60,000 clients, one record each.

    python train/mnist_ldp_sgd.py --run-dir runs/mnist --data-dir FOLDER_WITH_IDX_FILES

Every round a client checks in with probability 0.1 and sends one message of the l2 mechanism; training ends
at 90% test accuracy or after 3,000 rounds. The step size comes from the rule learning_rate * clip_norm =
0.15 sqrt(check-ins a round / rounds) / z, with z the noise of one message in clip norms.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Literal

import tyro

from checkin_jax.mechanisms import central_limit_multiplier
from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import PureLDP
from checkin_jax.training import data
from checkin_jax.training.config import TrainingConfig
from checkin_jax.training.loop import train
from checkin_jax.training.progress import RoundBar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """LDP-SGD on MNIST under shuffled check-in."""

    run_dir: Path
    """New folder for the results."""
    data_dir: Path | None = None
    """Folder with the four IDX files; left out: a prepared TensorFlow Datasets copy."""
    epsilon0: float = 2.0
    """Local privacy of one message."""
    clip_norm: float = 0.1
    """l2 norm of a clipped gradient."""
    num_rounds: int = 3_000
    """Rounds at most."""
    target_accuracy: float = 0.9
    """Stop at the first evaluation that reaches it."""
    simulate: Literal["aggregate", "messages", "central-limit"] = "aggregate"
    """How a round's sum is drawn."""


def main(experiment: Experiment) -> None:
    """Runs the experiment and prints its report."""
    protocol = ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=experiment.num_rounds)
    check_ins = protocol.num_clients * protocol.rate
    step = 0.15 * math.sqrt(check_ins / protocol.num_rounds) / central_limit_multiplier(experiment.epsilon0)
    config = TrainingConfig(
        protocol=protocol,
        randomizer=PureLDP(epsilon0=experiment.epsilon0),
        clip_norm=experiment.clip_norm,
        learning_rate=step / experiment.clip_norm,
        simulate=experiment.simulate,
        target_accuracy=experiment.target_accuracy,
    )
    with RoundBar(protocol.num_rounds) as bar:
        report = train(config, data.mnist(experiment.data_dir), experiment.run_dir, bar)
    print(report)


if __name__ == "__main__":
    main(tyro.cli(Experiment))
