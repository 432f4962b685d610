"""Witnesses of messages in slots: all other clients at one record, the dummies of empty slots at zero.

The target is at C, the others at -C, the farthest record. The adversary adds up a score of each slot: for Gaussian
messages one that is chosen as if loads were independent, for one bit the bit itself. The law of the sum depends only on
the law of the number of occupied slots [docs/evaluation.md].
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from checkin_jax.accounting.bounds.interface import Lines, OwnEvents, UnitBound
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels import binomial
from checkin_jax.kernels.execution.backend import quietly
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts.occupancy import MOST_SLIDING, CommonThrows, SlidingThrows

# Most slots whose rounding errors are below a small delta.
MOST_OPPOSITE = 20_000
# Cells of one message, their range in standard deviations, and lattice points of the sum.
_CELLS, _REACH, _PLACES = 4096, 10.0, 1 << 14
# Cuts of the scores in standard deviations of the sum; window of the sum, in standard deviations and in cut scores.
_CUTS = (4.0, 16.0, 64.0, 256.0, 1024.0)
_WIDE, _FEW = 60.0, 8.0
# Events stored for each cut. Less likely numbers of slots are counted against the witness.
_EVENTS, _RARE = 512, 1e-25
# Rounding of a probability: per slot, two transforms' errors (14 log2 of the lattice points, in units of 1.1e-16) times
# the norm of a sum over an interval (about 10); and a constant part.
_BY_SLOT, _ONCE = 4e-13, 1e-11
# Most slots whose bits are counted; least probability of a count that matters; relative rounding of a sum of these.
MOST_COUNTED, _LEAST_PROB, _ROUNDED = 1 << 16, 1e-40, 1e-9
# Throws of clients into slots whose numbers of occupied slots are known.
Throws = CommonThrows | SlidingThrows
# P(A) - Q(A) and Q(A) of some events A.
_Events = tuple[np.ndarray, np.ndarray]


def throws(unit: Unit) -> Throws | None:
    """Throws into the slots of the target's window; None if rates differ, or for sliding windows that are too long.

    In sliding windows the view shows the target's, in whole sums, and all other windows reach it.
    """
    protocol = unit.protocol
    choices, window = protocol.used_slot_choices, protocol.sliding_window
    if choices is not None:
        return CommonThrows(*choices) if choices.num_clients > 1 else None
    if window is None or unit.observed_slots != window or protocol.num_colluding:
        return None
    return SlidingThrows(window) if 1 < window <= min(MOST_SLIDING, (protocol.num_clients + 1) // 2) else None


def _mixed(weights: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """sum_k weights_k first^k second^(d - k), d = len(weights) - 1."""
    inside = np.flatnonzero(weights > 0)
    if not inside.size:
        return np.zeros_like(first)
    low, high = int(inside[0]), int(inside[-1])
    total, power = np.zeros_like(first), np.ones_like(first)
    for weight in weights[low : high + 1]:
        total = total * second + weight * power
        power = power * first
    return total * first**low * second ** (len(weights) - 1 - high)


@functools.lru_cache(maxsize=16)
def _lines(throws: Throws, mu: float, replaced: bool) -> tuple[_Events, _Events]:
    """(P(A) - Q(A), Q(A)), and (Q(A) - P(A), P(A)), for some events A: differences rounded down, masses up."""
    slots, laws = throws.num_slots, throws.exact()
    assert laws is not None
    if replaced:
        law, empty, occupied = laws.present, np.zeros(slots + 1), laws.used
    else:
        # The target takes the place of a dummy, or of one of the others.
        law, empty = laws.without, np.append(laws.dummy[1:], 0.0)
        occupied = np.maximum(laws.used - laws.dummy, 0.0)
    stay = np.maximum(law - empty - occupied, 0.0)
    # Law of the number of occupied slots among all but the target's own.
    used, filled = empty[:-1] + occupied[1:], np.arange(slots + 1.0)
    slack = _BY_SLOT * slots + _ONCE + _RARE * 3.0 * (slots + 1.0)
    law, stay, used = (np.where(part < _RARE, 0.0, part) for part in (law, stay, used))

    messages = _Cells.of(mu)
    share = float(law @ (slots - filled)) / slots
    score = empty.sum() * (messages.by_mine - 1.0) + occupied.sum() * (messages.by_mine - messages.by_other)
    score = score / (share + (1.0 - share) * messages.by_other)

    def worlds(other: np.ndarray, dummy: np.ndarray, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        present = mine * _mixed(used, other, dummy) + _mixed(stay, other, dummy)
        return _mixed(law, other, dummy), present

    return _events(messages, score, share, slots, slack, worlds)


class _Cells(NamedTuple):
    """Cell masses of one message at -C, at zero and at C; density ratios of C and of -C over zero."""

    other: np.ndarray
    dummy: np.ndarray
    mine: np.ndarray
    by_mine: np.ndarray
    by_other: np.ndarray

    @classmethod
    def of(cls, mu: float) -> _Cells:
        edges = np.linspace(-0.5 * mu - _REACH, 0.5 * mu + _REACH, _CELLS - 1)
        middles = np.concatenate([edges[:1], 0.5 * (edges[1:] + edges[:-1]), edges[-1:]])

        def cells(mean: float) -> np.ndarray:
            up, down = scipy.special.ndtr(mean - edges), scipy.special.ndtr(edges - mean)
            inner = np.where(edges[1:] > mean, up[:-1] - up[1:], down[1:] - down[:-1])
            return np.concatenate([down[:1], inner, up[-1:]])

        laws = (cells(mean) for mean in (-0.5 * mu, 0.0, 0.5 * mu))
        over = (np.exp(shift * middles - 0.5 * shift * shift) for shift in (0.5 * mu, -0.5 * mu))
        return cls(*laws, *over)


def _events(
    messages: _Cells, score: np.ndarray, share: float, slots: int, slack: float, worlds: Callable[..., Any]
) -> tuple[_Events, _Events]:
    """Lines for the events that the sum of a score over the slots exceeds a threshold, or falls below it.

    share: expected share of slots that show a dummy. slack: error bound of a computed probability. worlds: maps the
    transforms of the score under the three laws to those of its sum without and with the target.
    """
    usual = share * messages.dummy + (1.0 - share) * messages.other
    up: list[np.ndarray] = []
    down: list[np.ndarray] = []
    least = float(score.min())
    body = math.sqrt(slots * float(usual @ np.square(np.minimum(score, np.quantile(score, 0.999)))))
    for cut in _CUTS:
        most = cut * body
        kept = np.clip(score, -most, most)
        deviation = math.sqrt(slots * float(usual @ np.square(kept - usual @ kept)))
        step = max(_WIDE * deviation, _FEW * min(most, float(kept.max()))) / _PLACES
        place = np.rint(kept / step).astype(np.int64) % _PLACES
        parts = (np.fft.rfft(np.bincount(place, part, _PLACES)) for part in messages[:3])
        without, present = (np.fft.irfft(each, _PLACES) for each in worlds(*parts))
        # The event is on the sum modulo the window, a quarter of which is below zero.
        below, above = (np.cumsum(np.roll(each, _PLACES // 4)) for each in (without, present))
        at = np.linspace(1, _PLACES - 2, _EVENTS).astype(int)
        q, p = below[-1] - below[at], above[-1] - above[at]
        up.append(np.stack([p - q - 2.0 * slack, q + slack]))
        down.append(np.stack([below[at] - above[at] - 2.0 * slack, above[at] + slack]))
        if most > max(float(score.max()), -least):
            break
    forward, backward = np.concatenate(up, axis=1), np.concatenate(down, axis=1)
    return (forward[0], forward[1]), (backward[0], backward[1])


def opposite_rounding(slots: int) -> float:
    """Error bound of a computed probability of `OppositeGaussian`."""
    return _BY_SLOT * slots + _ONCE


@functools.lru_cache(maxsize=16)
def _opposite_lines(slots: int, used: float, mu: float) -> tuple[_Events, _Events]:
    """Lines as in `_lines`, with all others and the dummies at zero, and the target at C under P, at -C under Q."""
    messages = _Cells.of(mu)

    def worlds(other: np.ndarray, dummy: np.ndarray, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rest = dummy ** (slots - 1)
        return (
            rest * (used * other + (1.0 - used) * dummy),
            rest * (used * mine + (1.0 - used) * dummy),
        )

    return _events(
        messages, messages.by_mine - messages.by_other, 1.0, slots, opposite_rounding(slots), worlds
    )


@dataclasses.dataclass(frozen=True)
class CompetingGaussian:
    """Witness of slots with hidden dummies: Gaussian messages, the target at C under P, all others at -C.

    Attributes:
      grid_bound: as in `Witness`. throws: their laws are exact.
      mu: 2 / noise_multiplier.
      replaced: under Q the target is at -C if True, absent if False.
    """

    grid_bound: UnitBound
    throws: Throws
    mu: float
    replaced: bool

    name = "Gaussian messages in slots, all others at the farthest record"
    symmetric = False

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        forward, backward = _lines(self.throws, self.mu, self.replaced)
        return convex.best_event(*forward, loss), convex.best_event(*backward, loss)


@dataclasses.dataclass(frozen=True)
class OppositeGaussian:
    """Witness of A_fix and A_sldw, hidden dummies: opposite records in one of m slots, others at zero. Symmetric.

    Attributes as in `OneOfSlots`; mu: 2 / noise_multiplier; slots <= MOST_OPPOSITE.
    """

    grid_bound: UnitBound
    slots: int
    use_prob: float
    mu: float

    name = "Gaussian messages in slots, opposite records among zeros"
    symmetric = True

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        # A reflection exchanges P and Q.
        lines = convex.best_event(*_opposite_lines(self.slots, self.use_prob, self.mu)[0], loss)
        return lines, lines


def _count(number: int, prob: float) -> tuple[int, np.ndarray]:
    """(first, probabilities) of the values of a binomial count that matter."""
    probs = np.exp(np.asarray(quietly(binomial.log_pmf)(np.arange(number + 1.0), float(number), prob)))
    inside = np.flatnonzero(probs >= _LEAST_PROB)
    return int(inside[0]), probs[inside[0] : inside[-1] + 1]


@dataclasses.dataclass(frozen=True)
class CompetingBits(OwnEvents):
    """Witness of slots with hidden dummies: one bit each, a fair one in an empty slot; all others oppose the target.

    The bits' sum is seen. In an event {sum >= s} it is likelier with the target by the probability that the other slots
    sum up to s - 1, times the gain of the target's bit over the bit that it displaces.

    Attributes:
      throws: of m <= MOST_COUNTED slots; its laws have bounds. epsilon0: of one message.
      replaced: under Q the target's bit is as the others' if True, absent if False.
    """

    throws: Throws
    epsilon0: float
    neg_log_tail: float
    replaced: bool

    name = "one bit (in one dimension, say), all others at the opposite record, dummies at zero updates"

    @property
    def largest_loss(self) -> float:  # type: ignore[override]
        return self.epsilon0

    def _summed(self, weights: np.ndarray) -> np.ndarray:
        """Measure of the sum 0, ..., slots of the bits, with weights of 0, ..., slots others among the slots."""
        slots, inside = len(weights) - 1, np.flatnonzero(weights)
        if not inside.size:
            return np.zeros(slots + 1)
        low, weights = int(inside[0]), weights[inside[0] : inside[-1] + 1]
        seldom = 1.0 / (1.0 + math.exp(self.epsilon0))
        client, dummy = np.array([1.0 - seldom, seldom]), np.array([0.5, 0.5])
        # Sums of positive numbers alone, so that rare sums keep their digits.
        total, power = weights[:1], np.ones(1)
        for weight in weights[1:]:
            power = np.convolve(power, client)
            total = np.convolve(total, dummy) + weight * power
        first = 0
        for number, prob in ((low, seldom), (slots + 1 - low - len(weights), 0.5)):
            start, probs = _count(number, prob)
            first, total = first + start, np.convolve(total, probs)
        return np.pad(total, (first, slots + 1 - first - len(total)))

    @functools.cached_property
    def _lines(self) -> tuple[_Events, _Events]:
        """Lines for the events that the sum is at least s, or below s, s = 1, ..., m."""
        laws = self.throws.bounded(self.neg_log_tail)
        assert laws is not None
        # In place of a dummy the target's bit gains half as much as in place of another client's.
        gained = 2.0 * laws.used - (0.0 if self.replaced else laws.dummy)
        # A slot shows the target's bit.
        others = self._summed(np.maximum(gained[1:], 0.0))
        apart = 0.5 * math.tanh(0.5 * self.epsilon0) * others * (1.0 - _ROUNDED)
        summed = self._summed(laws.present if self.replaced else laws.without) * (1.0 + _ROUNDED)
        rest = laws.rest + self.throws.num_slots * _LEAST_PROB
        below, above = np.cumsum(summed)[:-1] + rest, np.cumsum(summed[::-1])[-2::-1] + rest
        return (apart, above), (apart, np.maximum(below - apart, 0.0))

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        forward, backward = self._lines
        return convex.best_event(*forward, loss), convex.best_event(*backward, loss)
