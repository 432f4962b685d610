"""Rounds of a client that reports by a coin of its own, the other clients' coins not being relied on.

Proof: docs/theory_rates.md, 3. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from checkin_jax.accounting.bounds.interface import (
    Lines,
    Minimum,
    UnitBound,
    Values,
    Witness,
    minimum,
)

# A product in float64.
_ROUNDING = 1e-15


@dataclasses.dataclass(frozen=True, eq=False)
class Reported:
    """`rate` times a bound on the round in which the client reports. Certified.

    Attributes:
      bound: of the round in which the client reports. rate: upper bound on the probability that it reports, in (0, 1].
    """

    bound: UnitBound
    rate: float

    @property
    def largest_loss(self) -> float:
        return self.bound.largest_loss

    @property
    def name(self) -> str:
        return self.bound.name

    @property
    def sharp(self) -> bool:
        return getattr(self.bound, "sharp", False)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return tuple(ReportedWitness(self, each, self.rate) for each in self.bound.witnesses)

    def upper(self, loss: np.ndarray) -> Values:
        return np.minimum(self.rate * np.asarray(self.bound.upper(loss)) * (1.0 + _ROUNDING), 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class ReportedWitness:
    """A witness of the round in which the client reports; whether it reports is seen."""

    grid_bound: UnitBound
    reported: Witness
    rate: float

    @property
    def name(self) -> str:
        return self.reported.name

    @property
    def symmetric(self) -> bool:
        return self.reported.symmetric

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        def sent(lines: Lines) -> Lines:
            apart, mass = (np.asarray(part) for part in lines)
            return self.rate * apart * (1.0 - _ROUNDING), self.rate * mass * (1.0 + _ROUNDING)

        forward, backward = self.reported.lower(loss)
        return sent(forward), sent(backward)


def reported(bound: UnitBound, rate: float) -> UnitBound:
    """The bound on a round whose client reports with probability `rate` at most, from one on its round if it does."""
    if isinstance(bound, Minimum):
        found = minimum([reported(each, rate) for each in bound.bounds])
        witnesses = tuple(ReportedWitness(found, each, rate) for each in bound.witnesses)
        return dataclasses.replace(found, witnesses=witnesses)  # type: ignore[type-var]
    return Reported(bound, rate)
