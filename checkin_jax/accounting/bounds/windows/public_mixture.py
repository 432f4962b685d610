"""A unit that is one of several, by a public label that does not depend on the data; and one slot by its load."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.interface import (
    MAX_LOSS,
    Directed,
    Instance,
    OneSided,
    UnitBound,
    bucket_count,
    upper_side,
    upper_sides,
)
from checkin_jax.kernels import ROUNDING, binomial, host
from checkin_jax.kernels.messages import subsampled_gaussian

# Ways to share a threshold between two kinds of slots.
_SHARES = np.concatenate(
    [[0.002, 0.005, 0.01, 0.02], np.linspace(0.04, 0.96, 24), [0.98, 0.99, 0.995, 0.998]]
)


@dataclasses.dataclass(frozen=True)
class Mixture(Directed):
    """(weight, round) parts, one of which is run: H <= sum of weight times the part's bound, in each direction.

    Weights may add up to more than 1 where each bounds a probability.
    """

    parts: tuple[tuple[float, UnitBound], ...]
    instances: tuple[Instance, ...] = ()

    @property
    def name(self) -> str:
        return " and ".join(dict.fromkeys(part.name for _, part in self.parts))

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        forward, backward = np.zeros(np.shape(loss)), np.zeros(np.shape(loss))
        for weight, part in self.parts:
            there, back = upper_sides(part, loss)
            forward, backward = forward + weight * np.asarray(there), backward + weight * np.asarray(back)
        return forward * (1.0 + ROUNDING), backward * (1.0 + ROUNDING)

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        found = np.zeros(np.shape(loss))
        for weight, part in self.parts:
            found = found + weight * np.asarray(upper_side(part, loss, backward))
        return found * (1.0 + ROUNDING)


@dataclasses.dataclass(frozen=True)
class TwoKinds(OneSided):
    """A client in slots of two kinds, P = Q (1 + A + B): H <= H_A + H_B, the threshold shared between them.

        E(A + B - x)_+ <= E(A - x1)_+ + E(B - x2)_+ ,    x1 + x2 = x = c - 1 ,

    and likewise for -A - B at x = 1 - 1/c; the least over some ways to share it.

    Attributes:
      one, other: pairs with Q (1 + A) and Q (1 + B) in place of P.
    """

    one: Directed
    other: Directed
    instances: tuple[Instance, ...] = ()

    name = "allocation"

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        flat = np.minimum(np.ravel(np.asarray(loss, dtype=np.float64)), MAX_LOSS)[:, None]
        found = np.zeros((flat.size, _SHARES.size))
        for pair, part in ((self.one, _SHARES), (self.other, 1.0 - _SHARES)):
            # Rounded down, which raises the bound.
            if backward:
                at = -np.log1p(part * np.expm1(-flat)) * (1.0 - 1e-12)
                found = found + np.exp(flat - at) * pair.side(at, True)
            else:
                found = found + pair.side(np.log1p(part * np.expm1(flat)) * (1.0 - 1e-12), False)
        return np.min(found, axis=1).reshape(np.shape(loss)) * (1.0 + ROUNDING)


@dataclasses.dataclass(frozen=True)
class LoadedSlot:
    """R1': a Gaussian message added or removed where dummies are hidden, its slot and the slot's load revealed.

    With k ~ Bin(others, pick) other clients in the slot the client is shown with probability prob / (k + 1), in place
    of the dummy (shift mu/2) if k = 0, else of another client (shift at most mu):

        H_c <= seen prob E_k[ delta_G(mu_k, log(1 + (c - 1) (k + 1) / prob)) / (k + 1) ],    in both directions.

    Attributes:
      seen: the probability that the client's slot is shown at all. prob: that the client is in it.
      others, pick: how many others may be in that slot, each with probability `pick`.
      mu: 2 / noise_multiplier. log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter.

    Proof: docs/theory_allocation.md, section 1.
    """

    seen: float
    prob: float
    others: int
    pick: float
    mu: float
    log_inverse_mass: float

    name = "subsampling"
    top = math.inf
    instances: tuple[Instance, ...] = ()

    @functools.cached_property
    def _mixture(self) -> subsampled_gaussian.GaussianBuckets:
        others, pick = float(self.others), self.pick
        cut = binomial.cells(
            host(others), host(pick), host(self.log_inverse_mass), buckets=bucket_count(others * pick)
        )
        first, last = (np.minimum(np.asarray(part), others) for part in (cut.first, cut.last))
        # The bound falls with k >= 1, so that a bucket takes its first; 0 is a label of its own.
        count = np.maximum(first, 1.0)
        mass = np.where(last >= 1.0, np.asarray(cut.mass_upper), 0.0)
        empty = math.exp(others * math.log1p(-pick)) if pick < 1.0 else float(others == 0.0)
        count = np.append(0.0, count)
        mass = np.append(empty * (1.0 + 1e-9), mass)
        weight = self.seen * self.prob * mass / (count + 1.0)
        mu = np.where(count == 0.0, 0.5 * self.mu, self.mu)
        return subsampled_gaussian.GaussianBuckets(
            host(mu),
            host((count + 1.0) / self.prob),
            host(weight),
            host(self.seen * self.prob * float(cut.tail)),
        )

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return subsampled_gaussian.profile_upper(self._mixture, loss)
