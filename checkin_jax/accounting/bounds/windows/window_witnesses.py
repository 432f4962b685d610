"""Witnesses of messages in slots: all other clients at one record, the dummies of empty slots at zero.

The target is at C, the others at -C, the farthest record. The adversary adds up a score of each slot: for Gaussian
messages one that is chosen as if loads were independent, for one bit the bit itself. The law of the sum is exact, since
the set of occupied slots is uniform given their number [docs/evaluation.md].
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from checkin_jax.accounting.bounds.interface import EventProfile, Lines, UnitBound
from checkin_jax.kernels import binomial
from checkin_jax.kernels.execution.backend import quietly
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import occupancy

# Most clients and slots for which the law of occupied slots is computed exactly.
MOST_CLIENTS, MOST_SLOTS = 20_000, 4096
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
# P(A) - Q(A) and Q(A) of some events A.
_Events = tuple[np.ndarray, np.ndarray]


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
def _lines(num_clients: int, slots: int, prob: float, mu: float, replaced: bool) -> tuple[_Events, _Events]:
    """(P(A) - Q(A), Q(A)), and (Q(A) - P(A), P(A)), for some events A: differences rounded down, masses up."""
    after, filled = occupancy.exact(num_clients, slots, prob), np.arange(slots + 1.0)
    occupied = (
        after * filled / num_clients
    )  # the target is used, and so many slots are occupied, its own included
    if replaced:
        law, empty = after, np.zeros(slots + 1)
    else:
        law = occupancy.exact(num_clients - 1, slots, prob)
        empty = law * prob * (slots - filled) / slots  # the target replaces a dummy
        occupied[1:] = np.maximum(occupied[1:] - empty[:-1], 0.0)
    stay = np.maximum(law - empty - occupied, 0.0)
    # Law of the number of occupied slots among all but the target's own.
    used = empty[:-1] + occupied[1:]
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
    """Witness of A_fix with hidden dummies: Gaussian messages, the target at C under P, all others at -C.

    Attributes:
      grid_bound: as in `Witness`. num_clients, slots, prob: n <= MOST_CLIENTS, m <= MOST_SLOTS and p_0.
      mu: 2 / noise_multiplier.
      replaced: under Q the target is at -C if True, absent if False.
    """

    grid_bound: UnitBound
    num_clients: int
    slots: int
    prob: float
    mu: float
    replaced: bool

    name = "Gaussian messages in slots, all others at the farthest record"
    symmetric = False

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        forward, backward = _lines(self.num_clients, self.slots, self.prob, self.mu, self.replaced)
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
class CompetingBits:
    """Witness of A_fix with hidden dummies: one bit each, a fair one in an empty slot; all others oppose the target.

    The bits' sum is seen. In an event {sum >= s} it is likelier with the target by the probability that the other slots
    sum up to s - 1, times the gain of the target's bit over the bit that it displaces.

    Attributes:
      num_clients, slots, prob: n, m <= MOST_COUNTED and p_0. epsilon0: of one message.
      replaced: under Q the target's bit is as the others' if True, absent if False.
    """

    num_clients: int
    slots: int
    prob: float
    epsilon0: float
    neg_log_tail: float
    replaced: bool

    name = "one bit (in one dimension, say), all others at the opposite record, dummies at zero updates"
    symmetric = False
    below_grid_bound = True

    @property
    def grid_bound(self) -> UnitBound:
        return EventProfile(self, self.epsilon0)

    def _summed(self, low: int, weights: np.ndarray, slots: int) -> np.ndarray:
        """Measure of the sum 0, ..., slots of the bits, with weights of low, low + 1, ... others among the slots."""
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
        n, m, mass = self.num_clients, self.slots, self.neg_log_tail
        among, without = (occupancy.probabilities(each, m, self.prob, mass) for each in (n, n - 1))
        assert among is not None
        assert without is not None
        filled = among.low + np.arange(len(among.least))
        gained = 2.0 * among.least * filled / n
        if not self.replaced:
            # In place of a dummy the target's bit gains half as much as in place of another client's. Numbers of slots
            # beyond the computed ones have at most the probability of the rest.
            around = without.low + 1, m + 1 - without.low - len(without.most)
            padded = np.pad(without.most, around, constant_values=without.rest)
            gained -= padded[filled] * self.prob * (m + 1.0 - filled) / m
        # A slot shows the target's bit.
        filled, gained = filled[filled > 0], np.maximum(gained[filled > 0], 0.0)
        others = self._summed(int(filled[0]) - 1, gained, m - 1)
        apart = 0.5 * math.tanh(0.5 * self.epsilon0) * others * (1.0 - _ROUNDED)
        usual = among if self.replaced else without
        summed = self._summed(usual.low, usual.most, m) * (1.0 + _ROUNDED)
        rest = usual.rest + m * _LEAST_PROB
        below, above = np.cumsum(summed)[:-1] + rest, np.cumsum(summed[::-1])[-2::-1] + rest
        return (apart, above), (apart, np.maximum(below - apart, 0.0))

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        forward, backward = self._lines
        return convex.best_event(*forward, loss), convex.best_event(*backward, loss)
