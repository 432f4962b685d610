"""Example data sets and networks, and their settings without JAX. No other module imports flax."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(kw_only=True)
class ImageSettings:
    """Settings of optimizer, clients and evaluation, beside those that determine the run's privacy.

    Ranges and details are those of the arguments of `checkin_jax.training.train` and `Performance`.

    Attributes:
      decay: learning rate over the rounds.
      momentum: heavy-ball momentum.
      averaging: average the parameters over this last fraction of the rounds.
      eval_every: rounds between evaluations.
      target_accuracy: stop at the first evaluation that reaches this test accuracy.
      seed: make the run reproducible; it is then not private against anybody who knows the seed.
      microbatch: clients differentiated at once. Default: chosen for the device.
      records_per_client: number of records of each client.
      local_steps: steps of a client on its own records before it sends the change (federated averaging).
      local_learning_rate: learning rate of those steps.
    """

    decay: Literal["linear", "constant"] = "linear"
    momentum: float = 0.0
    averaging: float = 0.0
    eval_every: int = 50
    target_accuracy: float | None = None
    seed: int | None = None
    microbatch: int | None = None
    records_per_client: int = 1
    local_steps: int = 1
    local_learning_rate: float | None = None
