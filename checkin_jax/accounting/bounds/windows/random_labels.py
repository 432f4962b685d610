"""hexagon in common slots with hidden dummies (T2++): the label of the target's slot is randomized, true or false.

Proof: docs/theory_hexagon.md, 3. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools

from checkin_jax.accounting.bounds.hexagon import Staged
from checkin_jax.numerics import staged_clones
from checkin_jax.numerics.counts import labels
from checkin_jax.numerics.staged_clones import Steps


@dataclasses.dataclass(frozen=True)
class LabelledSlots(Staged):
    """T2++, or own-laws: n clients in m common slots with hidden dummies; one record is replaced.

    Attributes:
      num_clients, slots, prob: n > 1, m and p_0.
    """

    num_clients: int
    slots: int
    prob: float
    steps: Steps
    log_inverse_mass: float

    @property
    def includes(self) -> tuple[str, ...]:
        """T2+, which `select` drops if this bound exceeds it by rounding and ranges of occupied slots at most."""
        return ("T2+",) if labels.counted(self.num_clients, self.slots) else ()

    @property
    def _observed_prob(self) -> float:
        return self.prob

    @functools.cached_property
    def shares(self) -> labels.Labelled | None:
        """Upper bounds on the weight of the target's message in every slot, part by part; None if there are none."""
        return labels.labelled(self.num_clients, self.slots, self.prob, self.log_inverse_mass)

    def _stated(self) -> staged_clones.Problem | None:
        if self.shares is None:
            return None
        return staged_clones.labelled(self.slots, self.shares, self.steps, self.log_inverse_mass)
