"""The bound "everybody" for eps0-LDP messages (E+): some clients are left out, to hide the displaced client.

All clients send (rate 1). Steps are those of any eps0-LDP message, or of a mechanism with its own laws. Proof:
docs/theory_shuffle.md. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from checkin_jax.accounting.bounds.interface import Instance, Values
from checkin_jax.numerics import convex, left_out_clones


@dataclasses.dataclass(frozen=True)
class LeftOutPureLDP:
    """E+: n shuffled eps0-LDP messages, one of each client, none depending on another of its round. Symmetric.

    Attributes:
      num_clients: n. log_inverse_mass: -log of the negligible mass.
      steps: of the messages, from `numerics.left_out_clones`.
    """

    num_clients: int
    log_inverse_mass: float
    steps: left_out_clones.Steps

    name = "everybody"
    instances: tuple[Instance, ...] = ()

    @property
    def top(self) -> float:
        return self.steps.epsilon0

    @property
    def gains(self) -> bool:
        """True if the bound is expected to be below T1."""
        return left_out_clones.gains(self.num_clients, self.log_inverse_mass, self.steps)

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray]:
        return left_out_clones.profile(self.num_clients, self.log_inverse_mass, self.steps)

    def upper(self, loss: np.ndarray) -> Values:
        return convex.chords(*self._profile, np.asarray(loss))
