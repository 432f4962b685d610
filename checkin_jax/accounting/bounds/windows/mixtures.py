"""Bounds on windows made of bounds on their parts: mixtures over a public label, split thresholds, two steps."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import (
    MAX_LOSS,
    AsymmetricBound,
    Local,
    UnitBound,
    Witness,
    is_asymmetric,
    upper_sides,
)
from checkin_jax.kernels import ROUNDING

# Shares of the threshold that the first kind of slots gets.
_SHARES = np.concatenate(
    [[0.002, 0.005, 0.01, 0.02], np.linspace(0.04, 0.96, 24), [0.98, 0.99, 0.995, 0.998]]
)

# Splits of epsilon into two steps that are tried.
_SPLITS = 48


@dataclasses.dataclass(frozen=True)
class PublicMixture(AsymmetricBound):
    """Mixture over a public label: H <= sum of weight times the part's bound, in each direction.

    parts: (weight, bound). Weights are upper bounds on probabilities, so their sum may exceed 1.
    rest: probability of labels that count in full.
    """

    parts: tuple[tuple[float, UnitBound], ...]
    rest: float = 0.0

    @property
    def name(self) -> str:
        parts = [part for _, part in self.parts]
        theorems = [part for part in parts if not isinstance(part, Local)]
        return " and ".join(dict.fromkeys(part.name for part in theorems or parts))

    @property
    def asymmetric(self) -> bool:
        return any(is_asymmetric(part) for _, part in self.parts)

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.sides_below(loss, np.full(np.shape(loss), math.inf))

    def sides_below(self, loss: np.ndarray, least: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`upper_sides`, or ones if neither is below `least` at any loss."""
        forward, backward = np.full(np.shape(loss), self.rest), np.full(np.shape(loss), self.rest)
        for weight, part in self.parts:
            if (np.minimum(forward, backward) >= least).all():
                return np.ones(np.shape(loss)), np.ones(np.shape(loss))
            there, back = upper_sides(part, loss)
            forward, backward = forward + weight * np.asarray(there), backward + weight * np.asarray(back)
        return forward * (1.0 + ROUNDING), backward * (1.0 + ROUNDING)

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        found = np.full(np.shape(loss), self.rest)
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
      rest: probability of a public event that counts in full.
    """

    one: AsymmetricBound
    other: AsymmetricBound
    rest: float = 0.0

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
        return np.min(found, axis=1).reshape(np.shape(loss)) * (1.0 + ROUNDING) + self.rest


@dataclasses.dataclass(frozen=True)
class NestedEvents(AsymmetricBound):
    """Bounds of which the first that holds is secret: H <= sum_i p_i (M_i - M_{i-1}), M_i the largest of the first i.

    Attributes:
      parts: (bound, p_i), p_i at least the probability that no earlier bound holds; the last bound always holds.
      neg_log_tail: -log of the probability below which a part counts in full.
    """

    parts: tuple[tuple[AsymmetricBound, float], ...]
    neg_log_tail: float

    name = "allocation"

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        every, _ = self.parts[-1]
        always = every.upper_sides(loss)
        worst = total = np.zeros((2, *np.shape(loss)))
        for part, needed in self.parts:
            rare = needed < math.exp(-self.neg_log_tail)
            sides = np.ones_like(worst) if rare else np.minimum(part.upper_sides(loss), always)
            more = np.maximum(sides, worst)
            total = total + needed * (more - worst)
            worst = more
        forward, backward = total * (1.0 + 1e-12)
        return forward, backward


class Share(NamedTuple):
    """A term weight used H_{1 + part (c - 1) / used}: a client used with a probability, at a part of c - 1."""

    weight: float
    bound: UnitBound
    part: float = 1.0
    used: float = 1.0


@dataclasses.dataclass(frozen=True)
class ReplacedShares:
    """A record is replaced: the sum of weighted bounds, each at its share of the threshold c - 1. Symmetric.

    rest: probability that counts in full.
    """

    shares: tuple[Share, ...]
    rest: float
    witnesses: tuple[Witness, ...] = ()

    name = "allocation"
    largest_loss = math.inf

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS)
        total = np.full(loss.shape, self.rest)
        for weight, bound, part, used in self.shares:
            at = loss
            if part != used:
                # Rounded down, which raises the bound.
                at = np.log1p(part * np.expm1(loss) / used) * (1.0 - 1e-14)
            total = total + weight * used * np.asarray(bound.upper(at))
        return np.minimum(total * (1.0 + ROUNDING), 1.0)


@dataclasses.dataclass(frozen=True)
class TwoSteps:
    """R2: replace-one in two steps, through the data set without the target. Symmetric.

    H_{e1+e2} <= H_e1(P||Q) + e^e1 H_e2(Q||P), minimized over splits; `pair` bounds both directions of one step.
    failure_prob: probability of a public event in which `pair` does not hold; it counts at infinite loss.
    """

    pair: AsymmetricBound
    failure_prob: float = 0.0

    name = "two-steps"
    largest_loss = math.inf
    witnesses: tuple[Witness, ...] = ()

    def upper(self, loss: np.ndarray) -> np.ndarray:
        flat = np.ravel(np.asarray(loss, dtype=np.float64))
        first = flat[:, None] * np.linspace(0.0, 1.0, _SPLITS)[None, :]
        # The second loss is rounded down, which raises the bound.
        second = np.maximum(flat[:, None] - first - 1e-15 * flat[:, None], 0.0)
        there, back = self.pair.side(first, False), self.pair.side(second, True)
        with np.errstate(over="ignore"):
            bound = there + np.exp(np.minimum(first, 700.0)) * back
        return ((np.min(bound, axis=1) + self.failure_prob) * (1.0 + ROUNDING)).reshape(np.shape(loss))
