"""T2++: common slots with hidden dummies, the client's own under a true or a false label.

Proof: docs/theory_hexagon.md, section 5b. Call inside `devices.float64()`.
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
    """T2++, or own laws: n clients, one of which has its record replaced, in m common slots with hidden dummies.

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
        """T2+, where this is never above it by more than rounding and ranges of the number of occupied slots."""
        return ("T2+",) if labels.counted(self.num_clients, self.slots) else ()

    @property
    def _seen(self) -> float:
        return self.prob

    @functools.cached_property
    def shares(self) -> labels.Labelled | None:
        """How much of the client's message is in every slot at most, part by part."""
        return labels.labelled(self.num_clients, self.slots, self.prob, self.log_inverse_mass)

    def _stated(self) -> staged_clones.Problem | None:
        if self.shares is None:
            return None
        return staged_clones.labelled(self.slots, self.shares, self.steps, self.log_inverse_mass)
