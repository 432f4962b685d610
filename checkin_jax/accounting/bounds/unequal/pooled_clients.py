"""clones for unequal check-in rates (T1h, S); eps0-LDP messages [docs/theory_rates.md].

The target's rate is at most g. Of the others all rates are known, or only an upper bound on each and a lower bound on
their sum. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools

from checkin_jax.accounting.bounds.clones_bounds import Clones, tried
from checkin_jax.accounting.bounds.interface import Witness
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool


@dataclasses.dataclass(frozen=True)
class PooledClones(Clones):
    """T1h and S: eps0-LDP messages behind a shuffler, hidden by a pool. Its witness is binary (L1h)."""

    cover: ClientPool

    @functools.cached_property
    def _found(self) -> tuple[Witness, ...]:
        known = self.cover.others is not None
        return (self.binary(),) if known and tried(self.cover.number, self.epsilon0)[1] else ()
