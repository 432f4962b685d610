"""Mixtures of units over a public label that does not depend on the data, and clients in two kinds of slots."""

from __future__ import annotations

import dataclasses

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, AsymmetricBound, Local, UnitBound, upper_sides
from checkin_jax.kernels import ROUNDING

# Shares of the threshold that the first kind of slots gets.
_SHARES = np.concatenate(
    [[0.002, 0.005, 0.01, 0.02], np.linspace(0.04, 0.96, 24), [0.98, 0.99, 0.995, 0.998]]
)


@dataclasses.dataclass(frozen=True)
class PublicMixture(AsymmetricBound):
    """Mixture over a public label: H <= sum of weight times the part's bound, in each direction.

    parts: (weight, bound). Weights are upper bounds on probabilities, so their sum may exceed 1.
    """

    parts: tuple[tuple[float, UnitBound], ...]

    @property
    def name(self) -> str:
        parts = [part for _, part in self.parts]
        theorems = [part for part in parts if not isinstance(part, Local)]
        return " and ".join(dict.fromkeys(part.name for part in theorems or parts))

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        forward, backward = np.zeros(np.shape(loss)), np.zeros(np.shape(loss))
        for weight, part in self.parts:
            there, back = upper_sides(part, loss)
            forward, backward = forward + weight * np.asarray(there), backward + weight * np.asarray(back)
        return forward * (1.0 + ROUNDING), backward * (1.0 + ROUNDING)

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        found = np.zeros(np.shape(loss))
        for weight, part in self.parts:
            one_sided = isinstance(part, AsymmetricBound)
            alone = part.side(loss, backward) if one_sided else upper_sides(part, loss)[backward]
            found = found + weight * np.asarray(alone)
        return found * (1.0 + ROUNDING)


@dataclasses.dataclass(frozen=True)
class TwoKinds(AsymmetricBound):
    """The target in slots of two kinds, P = Q (1 + A + B): H <= H_A + H_B, the threshold split between the kinds.

        E(A + B - x)_+ <= E(A - x1)_+ + E(B - x2)_+ ,    x1 + x2 = x = c - 1 ,

    and likewise for -A - B at x = 1 - 1/c. The bound is the minimum over some splits.

    Attributes:
      one, other: pairs with Q (1 + A) and Q (1 + B) in place of P.
    """

    one: AsymmetricBound
    other: AsymmetricBound

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
