"""eps0-LDP messages of clients with check-in rates of their own: T1h above, L1h below (docs/theory_rates.md).

The target's rate is at most g; of the others all rates are known, or no more than an upper bound on each and a lower
bound on their sum. Call inside `jax.enable_x64(True)`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.pools import Pool
from checkin_jax.accounting.pure_rounds import Binary, Mixture, tried
from checkin_jax.accounting.rounds import Instance, Lines, Round, Values
from checkin_jax.kernels import check_in, host, poisson_binomial, tails
from checkin_jax.kernels import pools as laws

# Runs of the number of labels, and of messages, in instances.
_RUNS = 128


@dataclasses.dataclass(frozen=True, eq=False)
class Others:
    """The check-in rates of all clients but the target: in (0, 1], each `counts` times."""

    rates: np.ndarray
    counts: np.ndarray

    @functools.cached_property
    def trials(self) -> poisson_binomial.Trials:
        return poisson_binomial.trials(self.rates, self.counts)

    @property
    def number(self) -> float:
        return float(self.counts.sum())


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalPureLDP:
    """T1h: eps0-LDP messages behind a shuffler, `pool` others with check-in rate theta to stand in for the target.

    Attributes:
      rate: g in (0, 1], of the target at most. theta: in (0, 1). pool: law of n', `accounting.pools`.
      others: all others' rates, for the instances; None where they are not known, which leaves only the weaker ones.
      log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter.
    """

    rate: float
    theta: float
    pool: Pool
    epsilon0: float
    log_inverse_mass: float
    others: Others | None = None

    name = "T1h"

    @property
    def top(self) -> float:
        return self.epsilon0

    @functools.cached_property
    def _above(self) -> Mixture:
        law = laws.pool_law(
            host(self.pool.sizes), host(self.pool.masses), *map(host, (self.theta, self.rate, self.epsilon0))
        )
        # What the spread of the absent adds, relatively: as gamma (1 - gamma) / n where all rates are equal.
        spread = self.theta / (1.0 - self.theta) * (1.0 - self.rate) ** 2 / (self.pool.mean + 1.0)
        return Mixture(law, self.epsilon0, self.log_inverse_mass, spread)

    def upper(self, loss: np.ndarray) -> Values:
        return self._above.upper(loss)

    @functools.cached_property
    def instances(self) -> tuple[Instance, ...]:
        if self.others is None:
            return ()
        messages = float(self.others.trials.mean) + self.rate
        found: list[Instance] = []
        ternary, binary = tried(messages, self.epsilon0)
        if ternary:
            found.append(UnequalTernary(self, self.rate, self.others, self.epsilon0, self.log_inverse_mass))
        if binary:
            found.append(unequal_binary(self, self.rate, self.others, self.epsilon0, self.log_inverse_mass))
        return tuple(found)


@dataclasses.dataclass(frozen=True, eq=False)
class UnequalTernary:
    """3-ary randomized response, all other clients at a third record, each with its own rate; symmetric."""

    scale: Round
    rate: float
    others: Others
    epsilon0: float
    log_inverse_mass: float

    name = "3-ary randomized response, all others at a third record"
    symmetric = True

    @functools.cached_property
    def _below(self) -> tuple[check_in.Buckets, tails.Tables, bool]:
        special = 2.0 * math.exp(-self.epsilon0) / (1.0 + 2.0 * math.exp(-self.epsilon0))
        law = poisson_binomial.law(self.others.trials.scaled(special), self.log_inverse_mass)
        mix = laws.ternary_buckets(law, special, self.rate, self.epsilon0, _RUNS)
        plan = tails.plan(float(np.asarray(mix.number).max()), self.log_inverse_mass)
        tables = check_in.signs(mix, host(self.log_inverse_mass), plan, True)
        return mix, tables, plan[1]

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        mix, tables, exact = self._below
        lines = check_in.at_losses(
            lambda *at: check_in.lines_lower(mix, tables, *at, host(self.epsilon0), exact), loss
        )
        return lines, lines


def unequal_binary(
    scale: Round, rate: float, others: Others, epsilon0: float, log_inverse_mass: float
) -> Binary:
    """Binary randomized response, all other clients at one of the two records, each with its own rate."""
    law = poisson_binomial.law(others.trials, log_inverse_mass)
    messages = laws.binary_messages(law, rate, epsilon0, _RUNS)
    return Binary(scale, messages, epsilon0, log_inverse_mass)
