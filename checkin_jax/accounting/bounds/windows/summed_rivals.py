"""Witness of many slots with hidden dummies: the sum of the messages, all other clients opposite to the target.

Empty slots show a dummy at zero. The number of occupied slots is known only to be below a binomial one in convex order,
since slots are negatively associated [docs/evaluation.md, lower ends]. NumPy float64.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple, Protocol

import numpy as np
import scipy

from checkin_jax.accounting.bounds.interface import Lines, OwnEvents
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels import binomial
from checkin_jax.kernels.execution.backend import quietly
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import poisson_binomial
from checkin_jax.numerics.counts.occupancy import deviation

# Fewest slots of a target, and most slots that are seen.
_FEWEST, MOST_SLOTS = 3, 1 << 32
# Loads of the target's slot that are rarer are left out: beyond this number, and so many standard deviations.
_MOST_LOAD, _RARE = 6, 5.0
# Largest mean load: memory grows with it.
_CROWDED = 1e4
# -log of the mass of a binomial law that is left out, twice; the most by which that changes a mean.
_DEEP, _LEFT_OUT = 100.0, 1e-20
# Thresholds, in standard deviations of the sum; cells of a number of slots.
_EVENTS, _REACH, _CELLS = 384, 12.0, 2048
# Numbers of occupied slots at which a logarithm is evaluated, in standard deviations from the mean.
_NODES = np.array([-9.0, -6.0, -4.0, -2.7, -1.7, -1.0, -0.5, 0.0, 0.5, 1.0, 1.7, 2.7, 4.0, 6.0, 9.0])
# Gaussian messages above these values are counted, if mu is at least this.
_COUNTED, _LEAST_COUNTED = (1.0, 1.5, 2.0, 2.5, 3.0), 0.9
# Least probability that is told from zero.
_RESOLVED = 1e-280
# Relative rounding of probabilities, with a wide margin.
_ROUNDED = 1e-9


class Beside(NamedTuple):
    """Means of the number of occupied slots beside the target's, given its load: on average, and given who is there.

    low, high: bounds on the average, [loads]. least, most: bounds on every mean.
    """

    low: np.ndarray
    high: np.ndarray
    least: float
    most: float

    def least_of(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Least mean of a concave function of the means; first, last: its values at `least` and `most`, [events]."""
        at = np.stack([self.low, self.high])[..., None]
        part = (at - self.least) / (self.most - self.least)
        return np.min(first + part * (last - first), axis=0)


@dataclasses.dataclass(frozen=True)
class Rivals:
    """Others in the slots that are seen, each in one at most.

    Attributes:
      observed, own: numbers N >= 2 of slots that are seen, and v of them that the target may choose.
      number: of the others that may be in each of the target's slots; one more may be in each other slot, if there are
        such. prob: probability of each of them, and of the target, to be there; below 1/2.
      shared: share of those who may be in one of the target's slots that may be in another, on average.
    """

    observed: int
    own: int
    number: int
    prob: float
    shared: float

    def occupied(self, with_target: bool) -> float:
        """Expected number of occupied slots."""
        more = int(with_target)
        inside, outside = (-math.expm1((self.number + k) * math.log1p(-self.prob)) for k in (more, 1))
        return self.own * inside + (self.observed - self.own) * outside

    @functools.cached_property
    def beside(self) -> Beside:
        """The number of occupied slots beside the target's, given its load of `loads`."""
        loads, likelier, outside = self.loads, self.prob / (1.0 - self.prob), self.observed - self.own

        def mean(inside: np.ndarray, beyond: np.ndarray) -> np.ndarray:
            """Of these probabilities that a slot is empty."""
            return (self.own - 1.0) * (1.0 - inside) + outside * (1.0 - beyond)

        def empty(number: np.ndarray, prob: float) -> np.ndarray:
            return np.exp(number * math.log1p(-prob))

        fewer, every = np.maximum(self.number - loads, 0.0), np.asarray(float(self.number))
        # A client in the target's slot is missing in the others that it may be in.
        more = self.shared * np.expm1(-loads * math.log1p(-likelier))
        low = mean(empty(every, self.prob) * (1.0 + more), empty(fewer + 1.0, self.prob))
        high = mean(
            empty(every, likelier) * (1.0 + self.shared * loads * likelier), empty(every + 1.0, likelier)
        )
        least = mean(empty(fewer[-1], self.prob), empty(fewer[-1] + 1.0, self.prob))
        most = mean(empty(every, likelier), empty(every + 1.0, likelier))
        less, up = 1.0 - _ROUNDED, 1.0 + _ROUNDED
        return Beside(low * less, np.minimum(high, most) * up, float(least) * less, float(most) * up)

    @property
    def loads(self) -> np.ndarray:
        """Numbers of others in the target's slot that are followed."""
        mean = self.number * self.prob
        most = max(math.ceil(mean + _RARE * math.sqrt(mean)), _MOST_LOAD)
        return np.arange(min(most, self.number) + 1.0)

    @property
    def shown(self) -> np.ndarray:
        """Probabilities that the target is shown, and its slot has a load of 0, 1, ...; from below."""
        law = np.exp(np.asarray(quietly(binomial.log_pmf)(self.loads, float(self.number), self.prob)))
        return self.own * self.prob * (1.0 - _ROUNDED) * law / (self.loads + 1.0)


def rivals(unit: Unit) -> Rivals | None:
    """Those of the unit; None where rates differ, empty slots are visible, or for few slots, or crowded ones."""
    slots, choices, window = unit.slots, unit.protocol.used_slot_choices, unit.protocol.sliding_window
    if slots is None or not slots.hidden or not _FEWEST <= slots.number <= unit.observed_slots <= MOST_SLOTS:
        return None
    if choices is not None:
        others, prob, shared = choices.num_clients - 1, choices.prob / choices.num_slots, 1.0
    elif window is not None:
        # Two slots are a third of the target's slots apart.
        others, prob = window - 1, 1.0 / window
        shared = 1.0 - (slots.number + 1.0) / (3.0 * others)
    else:
        return None
    # Where others are hardly ever there, nobody competes.
    if others * prob * slots.number < 1.0 or others * prob > _CROWDED:
        return None
    return Rivals(unit.observed_slots, slots.number, others, prob, shared)


class _Binomial(NamedTuple):
    """A binomial law B around its mean: values, masses, E(B - k)_+ and E(k - B)_+ at these values k, from above."""

    mean: float
    values: np.ndarray
    masses: np.ndarray
    over: np.ndarray
    under: np.ndarray

    @classmethod
    def of(cls, trials: int, mean: float) -> _Binomial:
        prob = mean / trials
        radius = deviation(mean * (1.0 - prob), _DEEP) + 2.0
        values = np.arange(max(math.floor(mean - radius), 0), min(math.ceil(mean + radius), trials) + 1.0)
        log_masses = np.asarray(quietly(binomial.log_pmf)(values, float(trials), prob))
        masses = np.exp(log_masses) * (1.0 + _ROUNDED)
        over = np.append(np.cumsum(np.cumsum(masses[:0:-1]))[::-1], 0.0)
        under = np.append(0.0, np.cumsum(np.cumsum(masses[:-1])))
        return cls(mean, values, masses, over + _LEFT_OUT, under + _LEFT_OUT)

    def place(self, value: np.ndarray) -> np.ndarray:
        """Index of the first value that is not below `value`."""
        return np.clip(np.ceil(value - self.values[0]), 0, self.values.size).astype(np.int64)

    def tails(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pr[B >= value] and Pr[B < value], from above."""
        at = self.place(value)
        beyond = np.append(np.cumsum(self.masses[::-1])[::-1], 0.0)
        before = np.append(0.0, np.cumsum(self.masses))
        return beyond[at] + _LEFT_OUT, before[at] + _LEFT_OUT

    def gaps(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums of E(B - k)_+ - (E B - k)_+ over whole k < value, and over k >= value, from above."""
        gap, at = np.where(self.values >= self.mean, self.over, self.under), self.place(value)
        before, beyond = np.append(0.0, np.cumsum(gap)), np.append(np.cumsum(gap[::-1])[::-1], 0.0)
        return before[at] + _LEFT_OUT, beyond[at] + _LEFT_OUT


class Summed(Protocol):
    """A sum of messages of which k are others' and the rest dummies', and events that it is at least a threshold."""

    def thresholds(self, slots: int, occupied: float) -> np.ndarray: ...

    def tails(self, at: np.ndarray, slots: int, occupied: _Binomial) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of the events and of their complements, from above; the number k is below a binomial law."""
        ...

    def gains(self, at: np.ndarray, slots: int, beside: Beside) -> tuple[np.ndarray, np.ndarray]:
        """Gains in the events' probabilities by the target's message over a dummy's and another's, [loads, events]."""
        ...


def _thresholds(mean: float, variance: float) -> np.ndarray:
    return mean + math.sqrt(variance) * np.linspace(-_REACH, _REACH, _EVENTS)


class SummedGaussians(NamedTuple):
    """Gaussian messages: the target at a, others at -a, dummies at 0, in standard deviations."""

    size: float

    def thresholds(self, slots: int, occupied: float) -> np.ndarray:
        return _thresholds(-self.size * occupied, slots + self.size**2 * occupied * (1.0 - occupied / slots))

    def tails(self, at: np.ndarray, slots: int, occupied: _Binomial) -> tuple[np.ndarray, np.ndarray]:
        first = np.arange(0, occupied.values.size, -(-occupied.values.size // _CELLS))
        last = np.append(first[1:] - 1, occupied.values.size - 1)
        masses, deviation = np.add.reduceat(occupied.masses, first), math.sqrt(slots)

        def below(place: np.ndarray) -> np.ndarray:
            return (at[:, None] + self.size * occupied.values[place]) / deviation

        above, under = scipy.special.ndtr(-below(first)) @ masses, scipy.special.ndtr(below(last)) @ masses
        # Phi'' is at most 0.24198, and of one sign on either side of 0.
        bend = 0.242 * self.size**2 / slots
        nearer, farther = occupied.gaps(-at / self.size + 2.0)[0], occupied.gaps(-at / self.size - 2.0)[1]
        return above + bend * nearer + _LEFT_OUT, under + bend * farther + _LEFT_OUT

    def gains(self, at: np.ndarray, slots: int, beside: Beside) -> tuple[np.ndarray, np.ndarray]:
        deviation, others, (low, high, least, most) = math.sqrt(slots), slots - 1.0, beside
        middle = min(max(0.5 * others, least), most)
        # Of the number of others' messages, and of its mean.
        variance = middle * (1.0 - middle / others) + 0.25 * (most - least) ** 2

        def gain(apart: float, behind: float) -> np.ndarray:
            """Of a message at a over one at a - apart; the middle of the two is at -behind."""
            half = 0.5 * apart / deviation
            away = np.abs(at + behind + self.size * np.stack([low, high])[..., None]) / deviation
            square = np.square(away.max(axis=0)) + half**2 + self.size**2 * variance / slots
            return 2.0 * half / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * square)

        return gain(self.size, -0.5 * self.size), gain(2.0 * self.size, 0.0)


class SummedBits(NamedTuple):
    """One bit each, counted where it is 1: of probabilities other < dummy < mine."""

    mine: float
    dummy: float
    other: float

    def thresholds(self, slots: int, occupied: float) -> np.ndarray:
        mean = self._mean(slots, occupied)
        found = np.ceil(_thresholds(mean, mean * (1.0 - mean / slots)))
        return np.unique(np.clip(found, 1.0, float(slots)))

    def _mean(self, slots: int, occupied: float) -> float:
        return slots * self.dummy - occupied * (self.dummy - self.other)

    def tails(self, at: np.ndarray, slots: int, occupied: _Binomial) -> tuple[np.ndarray, np.ndarray]:
        above, under = _Binomial.of(slots, self._mean(slots, occupied.mean)).tails(at)
        apart, fewer = self.dummy - self.other, slots - 2.0
        # Variance of all bits but two, at least.
        last = min(float(occupied.values[-1]), fewer)
        one, two = (prob * (1.0 - prob) for prob in (self.dummy, self.other))
        variance = min(fewer * one, (fewer - last) * one + last * two)
        bend = min(0.25 * math.pi * apart**2 / max(variance, 1e-300), 1.0)
        # Numbers of others' messages between which the mode of the other bits may pass the threshold.
        before = (slots * self.dummy - at + 1.0 - 2.0 * self.dummy) / apart
        nearer, farther = occupied.gaps(before + 1.0 / apart + 2.0)[0], occupied.gaps(before)[1]
        return above + bend * nearer, under + bend * farther

    def gains(self, at: np.ndarray, slots: int, beside: Beside) -> tuple[np.ndarray, np.ndarray]:
        others = slots - 1
        low, high = _Binomial.of(others, beside.least), _Binomial.of(others, beside.most)
        middle = 0.5 * (low.mean + high.mean)
        inner = np.rint(middle + math.sqrt(middle * (1.0 - middle / others)) * _NODES)
        first = max(low.values[0], high.values[0], 1.0)
        last = min(low.values[-1], high.values[-1], float(others))
        between = np.unique(np.clip(inner, first, last))
        laws = (
            poisson_binomial.trials(np.array([self.other, self.dummy]), np.array([k, others - k]))
            for k in between
        )
        masses = np.stack([poisson_binomial.pmf(law, at - 1.0)[0] for law in laws])
        logs = np.log(np.maximum(masses, _RESOLVED))
        # No values of all bits are less likely than that.
        ends = np.full((1, at.size), others * math.log(min(self.other, 1.0 - self.dummy)))
        nodes, logs = np.concatenate([[0.0], between]), np.concatenate([ends, logs])
        if between[-1] < others:
            nodes, logs = np.append(nodes, others), np.concatenate([logs, ends])
        else:
            # Beyond all slots, which is never reached, the logarithm is continued without a bend.
            step = (logs[-1:] - logs[-2:-1]) / (nodes[-1] - nodes[-2])
            nodes, logs = np.append(nodes, others + 1.0), np.concatenate([logs, logs[-1:] + step])
        slopes = np.diff(logs, axis=0) / np.diff(nodes)[:, None]
        above, below = high.over[high.place(between)], low.under[low.place(between)]
        gap = np.where(between < high.mean, below, above)
        gap = np.where((between > low.mean) & (between < high.mean), np.maximum(above, below), gap)
        means = np.array([low.mean, high.mean])
        piece = np.clip(np.searchsorted(nodes, means) - 1, 0, nodes.size - 2)
        around = logs[piece] + slopes[piece] * (means - nodes[piece])[:, None]
        bends = np.diff(slopes, axis=0)
        # Upward bends are rounding.
        bent = gap @ np.minimum(bends, 0.0) - 0.25 * (beside.most - beside.least) * np.maximum(
            bends, 0.0
        ).sum(axis=0)
        mass = np.exp(beside.least_of(*around) + bent) * (1.0 - _ROUNDED)
        mass = np.where((masses > _RESOLVED).all(axis=0), mass, 0.0)
        return (self.mine - self.dummy) * mass, (self.mine - self.other) * mass


@dataclasses.dataclass(frozen=True)
class CompetingSum(OwnEvents):
    """Witness of slots with hidden dummies: the sum of the messages, all others being opposite to the target.

    Attributes:
      rivals: the others. summed: sums that the adversary may look at.
      largest_loss: of one message. replaced: under Q the target is as the others if True, absent if False.
    """

    rivals: Rivals
    summed: tuple[Summed, ...]
    largest_loss: float
    replaced: bool

    name = "the sum of the messages in slots, all others at the opposite record, dummies at zero updates"

    @functools.cached_property
    def _lines(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Lines for the events that the sum is at least a threshold, or below it."""
        rivals, slots = self.rivals, self.rivals.observed
        occupied = _Binomial.of(slots, rivals.occupied(self.replaced))
        shown = rivals.shown
        lines = []
        for summed in self.summed:
            at = summed.thresholds(slots, occupied.mean)
            above, below = (each * (1.0 + _ROUNDED) for each in summed.tails(at, slots, occupied))
            for_dummy, for_other = summed.gains(at, slots, rivals.beside)
            apart = shown[0] * (for_other if self.replaced else for_dummy)[0] + shown[1:] @ for_other[1:]
            lines.append((apart * (1.0 - _ROUNDED), above, below))
        apart, above, below = (np.concatenate(each) for each in zip(*lines))
        return (apart, np.minimum(above, 1.0)), (apart, np.clip(below - apart, 0.0, 1.0))

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        forward, backward = self._lines
        return convex.best_event(*forward, loss), convex.best_event(*backward, loss)


def of_bits(unit: Unit) -> list[CompetingSum]:
    """The witness of one bit a message, a dummy's being fair."""
    others, epsilon0 = rivals(unit), unit.epsilon0
    if others is None or epsilon0 is None:
        return []
    often = 1.0 / (1.0 + math.exp(-epsilon0))
    # Not 1 - often, which rounds to zero.
    bits = SummedBits(often, 0.5, often * math.exp(-epsilon0))
    return [CompetingSum(others, (bits,), epsilon0, unit.replaced)]


def of_gaussians(unit: Unit, mu: float) -> list[CompetingSum]:
    """The witness of Gaussian messages of which two clients' are mu standard deviations apart.

    Messages above a threshold are counted, too, where single messages are seen.
    """
    others = rivals(unit)
    if others is None:
        return []
    half, summed = 0.5 * mu, [SummedGaussians(0.5 * mu)]
    if mu >= _LEAST_COUNTED and not unit.summed_slots:
        laws = (scipy.special.ndtr(np.array([half, 0.0, -half]) - level).tolist() for level in _COUNTED)
        # Those of others that underflow are not counted.
        summed += [SummedBits(*law) for law in laws if law[2] > 0.0]
    return [CompetingSum(others, tuple(summed), math.inf, unit.replaced)]
