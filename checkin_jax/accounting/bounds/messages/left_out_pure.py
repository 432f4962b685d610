"""The bound "everybody" for eps0-LDP messages (E+): some clients are left out, to hide the displaced client.

All clients send (rate 1). Proof: docs/theory_shuffle.md. Call inside `devices.float64()`.
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
      num_clients: n. epsilon0: nats, positive. log_inverse_mass: -log of the negligible mass.
      differ: for messages of one bit and public coins, as in `numerics.left_out_clones.profile`; None for others.
    """

    num_clients: int
    epsilon0: float
    log_inverse_mass: float
    differ: float | None = None

    name = "everybody"
    instances: tuple[Instance, ...] = ()

    @property
    def top(self) -> float:
        return self.epsilon0

    @property
    def gains(self) -> bool:
        """True if the bound is expected to be below T1."""
        return left_out_clones.gains(self.num_clients, self.epsilon0, self.log_inverse_mass, self.differ)

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray]:
        return left_out_clones.profile(self.num_clients, self.epsilon0, self.log_inverse_mass, self.differ)

    def upper(self, loss: np.ndarray) -> Values:
        return convex.chords(*self._profile, np.asarray(loss))
