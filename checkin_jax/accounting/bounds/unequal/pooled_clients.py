"""clones for unequal check-in rates (T1h, S), and the witnesses L1h; eps0-LDP messages [docs/theory_rates.md].

The target's rate is at most g. Of the others all rates are known, or only an upper bound on each and a lower bound on
their sum. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.clones_bounds import Clones, tried
from checkin_jax.accounting.bounds.interface import Lines, UnitBound, Witness
from checkin_jax.accounting.bounds.unequal.pool_cover import RUNS, ClientPool, Others, filled
from checkin_jax.kernels import clones, host, mixture_profiles, tails
from checkin_jax.kernels.execution.blockwise import at_losses
from checkin_jax.numerics.counts import poisson_binomial, pools
from checkin_jax.randomizers import TERNARY


@dataclasses.dataclass(frozen=True)
class PooledClones(Clones):
    """T1h and S: eps0-LDP messages behind a shuffler, hidden by a pool."""

    cover: ClientPool

    @functools.cached_property
    def _found(self) -> tuple[Witness, ...]:
        others = self.cover.others
        if others is None:
            return ()
        ternary, binary = tried(self.cover.number, self.epsilon0)
        found: list[Witness] = []
        if ternary:
            found.append(UnequalTernary(self, self.cover.rate, others, self.epsilon0, self.neg_log_tail))
        if binary:
            found.append(self.binary())
        return tuple(found)


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalTernary:
    """Witness: 3-ary randomized response, all other clients at a third record, with unequal rates. Symmetric."""

    grid_bound: UnitBound
    rate: float
    others: Others
    epsilon0: float
    neg_log_tail: float

    name = "3-ary randomized response, all others at a third record"
    needs, single = TERNARY, True
    symmetric = True

    @functools.cached_property
    def _below(self) -> tuple[mixture_profiles.Buckets, tails.Tables, bool]:
        special = 2.0 * math.exp(-self.epsilon0) / (1.0 + 2.0 * math.exp(-self.epsilon0))
        law = poisson_binomial.law(self.others.trials.scaled(special), self.neg_log_tail)
        mix = ternary_buckets(law, special, self.rate, self.epsilon0, RUNS)
        table = tails.table_size(float(np.asarray(mix.number).max()), self.neg_log_tail)
        tables = clones.signs(mix, host(self.neg_log_tail), table, True)
        return mix, tables, table[1]

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        mix, tables, exact = self._below
        epsilon0 = host(self.epsilon0)
        lines = at_losses(lambda some: clones.lines_lower(mix, tables, some, epsilon0, exact), loss)
        return lines, lines


def ternary_buckets(
    law: poisson_binomial.SumLaw, special: float, rate: float, epsilon0: float, buckets: int
) -> mixture_profiles.Buckets:
    """L1h, 3-ary randomized response, all others at a third record: a mixture for lower bounds, one ratio a label.

    law: of the number of others that show one of the two special labels. special: 2 / (p + 2). rate: g in (0, 1].

    N - 1 has that law, with weight g special Pr[T = N-1]; y has mean ((1-g)/g + (1-special)/p) / special times
    Pr[T = N] / Pr[T = N-1], since sum_j r_j/(1 + r_j (z-1)) G(z) = G'(z) for indicators of probabilities r_j.
    """
    runs = pools.Runs(law, buckets)
    per_step = ((1.0 - rate) / rate + (1.0 - special) * np.exp(-epsilon0)) / special * (1.0 + 1e-14)
    positive = runs.lower > 0
    ratio = np.where(positive, per_step * runs.next_upper / np.where(positive, runs.lower, 1.0), 0.0)
    weight = np.where(np.isfinite(ratio), rate * special * runs.lower * (1.0 - 1e-14), 0.0)
    ratio = np.where(weight > 0, ratio, 0.0)
    return mixture_profiles.Buckets(
        host(filled(runs.last, buckets, 1.0)),
        host(filled(ratio, buckets)[:, None]),
        host(filled(weight, buckets)[:, None]),
        host(0.0),
    )
