"""Witnesses whose other clients all hold one record, for the bound "profile"; the target holds either of two.

Call inside `devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import scipy  # its parts are imported when they are used
from jax import Array

from checkin_jax.accounting.bounds.interface import (
    MAX_LOSS,
    EqualDraws,
    EventProfile,
    Lines,
    OwnEvents,
    UnitBound,
)
from checkin_jax.accounting.bounds.messages import profile_cover_sums
from checkin_jax.accounting.bounds.messages.profile_cover_sums import HiddenSum
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.accounting.bounds.unequal.pool_cover import Others, Runs
from checkin_jax.kernels import binomial, host
from checkin_jax.kernels.messages import hidden_messages, hidden_messages_lower
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import poisson_binomial, summed_noise
from checkin_jax.randomizers import LabelLaws

# The search for events ends below e^_STOP times the negligible mass. _BESIDE thresholds on either side of a contour's
# own are evaluated on the same contour.
_STOP, _BESIDE = 8.0, 8
# Relative error of probabilities of flips.
_EVENTS = 1e-9
# Distance of contours as a share of that for upper ends; larger shares were observed to lose 0.5%.
_NEAR = 0.5
# Cells of a Gaussian message on either side of the point of equal densities; least mu at which they are accurate
# enough.
_CELL_COUNT, SMALL_MU = 128, 1e-3
_NODES = 16
# Runs of the number of summed messages.
_RUNS = 96
# With others at a third record: largest step in standard deviations of the sum, and passes to find it.
_MOST_STEP, _PASSES = 3.0, 4


def label_cells(
    laws: LabelLaws, drawn: np.ndarray
) -> tuple[hidden_messages_lower.OutputCells, hidden_messages_lower.OutputCells]:
    """Cells of labels in both directions, as `hidden_messages_lower.gaussian_cells`.

    drawn: probabilities that the target's message is present, of each sum. Labels equally likely under both records are
    dropped.
    """
    target, other = (np.asarray(part, dtype=np.float64) for part in laws[:2])
    third = None if laws.others is None else np.asarray(laws.others, dtype=np.float64)
    everybody = other if third is None else third
    difference = laws.difference

    def cells(difference: np.ndarray, second: np.ndarray) -> hidden_messages_lower.OutputCells:
        """Cells with the labels that favour the first record to the right; `second`: masses under the second record."""

        def side(apart: np.ndarray) -> tuple[Array, Array, Array]:
            mass = everybody[apart > 0]
            place = apart[apart > 0] / mass
            order = np.argsort(place, kind="stable")
            return host(place[order]), host(mass[order]), host(second[apart > 0][order])

        right, left = side(difference), side(-difference)
        if third is None:
            return hidden_messages_lower.OutputCells(*right[:2], *left[:2])
        return hidden_messages_lower.OutputCells(*right[:2], *left[:2], right[2], left[2], host(drawn))

    return cells(difference, other), cells(-difference, target)


def without_rare(laws: LabelLaws, number: float) -> LabelLaws:
    """The laws with labels merged whose steps exceed _MOST_STEP standard deviations of the sum: a post-processing.

    Otherwise contours of the sum would be confined to where these rare steps are flat.
    """
    others = np.asarray(laws.others, dtype=np.float64)
    apart = laws.difference
    size, kept = np.abs(apart) / others, np.ones(others.size, dtype=bool)
    for _ in range(_PASSES):
        deviation = math.sqrt(max(number * float(np.sum(size * np.abs(apart), where=kept)), 1e-300))
        kept = size <= max(_MOST_STEP * deviation, float(np.min(size, where=size > 0.0, initial=math.inf)))
    if kept.all():
        return laws

    def merged(part: np.ndarray) -> np.ndarray:
        return np.append(part[kept], np.sum(part[~kept]))

    return laws._replace(
        target=merged(np.asarray(laws.target)),
        other=merged(np.asarray(laws.other)),
        others=merged(others),
        apart=merged(apart),
    )


class _OneRecord(abc.ABC):
    """Witness: all other clients (and dummies) hold one record, such as x'; the target holds x or x'.

    messages: sums of likelihood ratios, and their losses. Rounding their `clients` up is safe for a lower bound.
    """

    messages: HiddenSum

    symmetric = False

    @property
    @abc.abstractmethod
    def _both_cells(self) -> tuple[hidden_messages_lower.OutputCells, hidden_messages_lower.OutputCells]:
        """Cells of one message, for Z - 1 and for 1 - Z, Z its likelihood ratio."""

    @functools.cached_property
    def _lines(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """(P(A) - Q(A), Q(A)) for events A at some losses, for P||Q and for Q||P; [sums, events]."""
        messages, deviation = self.messages, self.messages.steps[2]
        usual_clients, usual_count, rate = messages.terms
        _, clients, counts = messages.sums
        clients = np.where(clients == counts, clients, clients * (1.0 + 4e-15))[:, None]
        forward, backward = self._both_cells
        loss = messages.losses if rate < 1.0 else messages.grid(True)
        least = clients * math.exp(_STOP - messages.neg_log_tail)
        loss = np.sort(np.append(loss[1:], 0.5 * (loss[1:] + loss[:-1])))

        def lines(cells: hidden_messages_lower.OutputCells, above: np.ndarray) -> list[np.ndarray]:
            if not cells.right.size:
                # No output is likelier for the target's record: the empty event.
                return [np.zeros((counts.size, 1)), np.zeros((counts.size, 1))]
            thresholds, usual = clients * above, usual_clients * above
            orders = hidden_messages.orders(usual[0], usual[-1], deviation)
            paths = hidden_messages_lower.paths_of(host(usual_count), host(rate), cells, host(orders))
            groups, found = profile_cover_sums.near(usual / deviation, share=_NEAR), []
            middles = np.array([(start + stop) // 2 for start, stop in groups])
            contours = hidden_messages.choose(paths, host(-usual[middles]), host(deviation))
            # A contour is good at thresholds that grow with the number of steps.
            good = usual[middles] * (counts / usual_count)[:, None]
            places = np.stack([np.searchsorted(each, at) for each, at in zip(thresholds, good)])
            done = 0
            for some in profile_cover_sums.side_by_side(groups, usual.size):
                here = slice(done, done + len(some))
                done += len(some)
                choice = hidden_messages.ContourChoice(*(part[here] for part in contours))
                # Each contour serves neighbouring thresholds, too; which contour gives more is not known beforehand.
                around = np.array([range(start - _BESIDE, stop + _BESIDE) for start, stop in some])
                at = places[:, here, None] + (around - middles[here, None])
                at = np.clip(at, 0, usual.size - 1)
                near = host(np.take_along_axis(thresholds[:, None], at, axis=2))
                found.append(hidden_messages_lower.lines_lower(host(counts), host(rate), cells, choice, near))
                # Further events are too rare to matter. A value of 0 (no result) does not end the search.
                last = found[-1][0][..., -_BESIDE - 1]
                if ((last > 0.0) & (last < least)).any(axis=1).all():
                    break
            return [
                np.concatenate([part.reshape(counts.size, -1) for part in parts], axis=1)
                for parts in zip(*found)
            ]

        above = np.expm1(loss)
        if forward.drawn is not None:
            # Both directions alike: P - Q is W/n times the law in which every client holds the third record.
            both = [lines(cells, above) for cells in (forward, backward)]
            one, two = ((apart / clients, mass * (1.0 + 1e-13)) for apart, mass in both)
            return one, two
        # P||Q: 1 + W/n > c. Q||P: 1 > c (1 + W/n), with P as the second measure.
        up, down = lines(forward, above), lines(backward, -np.expm1(-loss))
        difference, mass = down[0] / clients, down[1]
        return (up[0] / clients, up[1]), (difference, (mass - difference) * (1.0 + 1e-15))

    def of_sums(self, loss: np.ndarray) -> np.ndarray:
        """(P(A) - Q(A), Q(A)) of the best event of each sum, in both directions; [2, 2, sums, losses]."""
        found = [[convex.best_event(apart, mass, loss) for apart, mass in zip(*side)] for side in self._lines]
        return np.moveaxis(np.array(found), 1, 2)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        forward, backward = self.of_sums(loss)[:, :, 0]
        return (forward[0], forward[1]), (backward[0], backward[1])


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianAtOneRecord(_OneRecord):
    """Witness: Gaussian messages in one dimension, all others at one of the two records."""

    grid_bound: UnitBound
    messages: HiddenSum
    mu: float

    # The view must show single messages, not sums.
    single: ClassVar[bool] = True

    name = "Gaussian messages, all others at one of the two records"

    @property
    def _both_cells(self) -> tuple[hidden_messages_lower.OutputCells, hidden_messages_lower.OutputCells]:
        farthest = min(max(9.0, math.sqrt(2.0 * self.messages.neg_log_tail)), 30.0)
        return hidden_messages_lower.gaussian_cells(host(self.mu), host(farthest), _CELL_COUNT)


@dataclasses.dataclass(frozen=True, eq=False)
class LabelsAtOneRecord(_OneRecord):
    """Witness: messages of any randomizer, observed through finitely many labels."""

    messages: HiddenSum
    laws: LabelLaws

    below_grid_bound = True

    @property
    def name(self) -> str:
        return self.laws.name

    @property
    def equal_draws(self) -> EqualDraws | None:
        return self.messages.labelled(self.laws)

    @property
    def grid_bound(self) -> UnitBound:
        return EventProfile(self, self.messages.largest_loss)

    @property
    def _both_cells(self) -> tuple[hidden_messages_lower.OutputCells, hidden_messages_lower.OutputCells]:
        _, count, rate = self.messages.terms
        _, clients, counts = self.messages.sums
        laws = self.laws if self.laws.others is None else without_rare(self.laws, count * rate)
        return label_cells(laws, np.minimum(counts / clients, 1.0) * (1.0 - 1e-14))


AtOneRecord = GaussianAtOneRecord | LabelsAtOneRecord


class ByNumber(abc.ABC):
    """Witness: a mixture over the observed number of messages, all other clients at one record.

    Attributes of subclasses:
      parts: bounds from below and from above on the probabilities of the sums of some messages; the missing
        probability contributes nothing. lost: probability that the messages are not of these laws.
    """

    parts: tuple[tuple[np.ndarray, np.ndarray, AtOneRecord], ...]
    lost: float

    symmetric = False
    below_grid_bound = True

    @property
    def name(self) -> str:
        return self.parts[0][2].name

    @property
    def grid_bound(self) -> UnitBound:
        return EventProfile(self, max((one.messages.largest_loss for _, _, one in self.parts), default=0.0))

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        total = np.zeros((2, 2, np.size(loss)))
        for least, most, one in self.parts:
            sides = one.of_sums(loss)
            total += np.stack([least @ sides[:, 0], most @ sides[:, 1]], axis=1)
        total[:, 0] = np.maximum(total[:, 0] * (1.0 - 1e-14) - self.lost, 0.0)
        total[:, 1] *= 1.0 + 1e-14
        (one_way, other_way) = total
        return (one_way[0], one_way[1]), (other_way[0], other_way[1])


@dataclasses.dataclass(frozen=True, eq=False)
class MessagesByNumber(ByNumber):
    """The witness of these parts."""

    parts: tuple[tuple[np.ndarray, np.ndarray, AtOneRecord], ...]
    lost: float = 0.0


def opposite_gaussians(mu: float, neg_log_tail: float) -> LabelLaws:
    """Cells of a Gaussian message under two opposite records, all others and the dummies at zero.

    z - z' = 2 e^(-mu^2/8) sinh(mu y/2) is integrated over a cell, under the law at zero, without cancellation.
    """
    farthest = min(max(9.0, math.sqrt(2.0 * neg_log_tail)), 30.0) + 0.5 * mu
    edges = np.linspace(0.0, farthest, _CELL_COUNT)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    width = np.diff(edges)[:, None]
    y = edges[:-1, None] + 0.5 * width * (1.0 + nodes)
    part = 0.5 * width * weights * np.exp(-0.5 * np.square(y)) / math.sqrt(2.0 * math.pi)
    ahead = np.append(edges[1:], math.inf)

    def tail(mean: float) -> np.ndarray:
        near, far = edges - mean, ahead - mean
        return np.where(
            near > 0.0,
            scipy.special.ndtr(-near) - scipy.special.ndtr(-far),
            scipy.special.ndtr(far) - scipy.special.ndtr(near),
        )

    zero, up, down = tail(0.0), tail(0.5 * mu), tail(-0.5 * mu)
    apart = 2.0 * math.exp(-0.125 * mu * mu) * np.sum(part * np.sinh(0.5 * mu * y), axis=1)
    # The last cell is infinite; its two masses differ by more than rounding.
    apart = np.append(apart, up[-1] - down[-1])
    name = "Gaussian messages, opposite records among zeros"
    both = [
        np.concatenate([one, two]) for one, two in ((up, down), (down, up), (zero, zero), (apart, -apart))
    ]
    return LabelLaws(both[0], both[1], name, both[2], both[3])


def hidden_witnesses(messages: HiddenSum, grid_bound: UnitBound) -> tuple[GaussianAtOneRecord, ...]:
    """The witness of Gaussian messages, if its cells are accurate enough; `grid_bound` as in `Witness`."""
    profile = messages.profile
    if not isinstance(profile, GaussianProfile) or profile.mu < SMALL_MU:
        return ()
    return (GaussianAtOneRecord(grid_bound, messages, profile.mu),)


def _probs(values: np.ndarray, number: np.ndarray | float, prob: float) -> np.ndarray:
    """Probabilities of these values of a binomial variable."""
    return np.exp(np.asarray(binomial.log_pmf(values, number, prob)))


class Numbers(NamedTuple):
    """Observed numbers of messages: the probability that the target's is among so many, and of the number at all.

    sent is rounded down, seen up; [numbers].
    """

    number: np.ndarray
    sent: np.ndarray
    seen: np.ndarray


def numbers_seen(rate: float, others: Others, neg_log_tail: float) -> Numbers:
    """Runs of the number of messages, each filled up to its largest number, a post-processing.

    rate: of the target. others: rates of all others. Runs in which the target sends too seldom to matter are left out.
    """
    runs = Runs(poisson_binomial.law(others.trials, neg_log_tail), _RUNS)
    sent = rate * runs.lower * (1.0 - 1e-14)
    seen = ((1.0 - rate) * runs.next_upper + rate * runs.upper) * (1.0 + 1e-14)
    often = sent > rate * math.exp(-neg_log_tail)
    return Numbers(runs.last[often], sent[often], seen[often])


@dataclasses.dataclass(frozen=True, eq=False)
class SumsAtOneRecord(OwnEvents):
    """Witness: the sum of messages and their number, all others at the second record.

    Attributes:
      numbers: of messages. largest_loss: of one message.
      events: for sums of so many messages, the target's among them, increasing ratios at thresholds, and of events
        P - Q, Q of more, Q of no more.
    """

    name: str
    numbers: Numbers
    largest_loss: float
    events: Callable[[float], tuple[np.ndarray, ...]]

    @functools.cached_property
    def _events(self) -> list[tuple[np.ndarray, ...]]:
        """Events of each number of messages, times its probability."""
        found = []
        for number, sent, seen in zip(*(part.tolist() for part in self.numbers)):
            ratios, apart, *both = self.events(number)
            mixed = 1.0 + min(sent / seen, 1.0) * (ratios - 1.0)
            found.append((mixed, sent * apart, *(seen * each for each in both)))
        return found

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        c = np.exp(np.minimum(np.asarray(loss, dtype=np.float64), MAX_LOSS))
        forward, backward = np.zeros((2, *c.shape)), np.zeros((2, *c.shape))
        for ratios, apart, more, no_more in self._events:
            # Where the best threshold leaks nothing, the event of this number is empty.
            last = np.searchsorted(ratios, c, side="right") - 1
            leaks = apart[last] > (c - 1.0) * more[last]
            forward += np.where(leaks, np.stack([apart[last], more[last]]), 0.0)
            last = np.searchsorted(ratios, 1.0 / c) - 1
            leaks = (last >= 0) & (c * apart[last] > (c - 1.0) * no_more[last])
            backward += np.where(leaks, np.stack([apart[last], no_more[last]]), 0.0)
        less, more = 1.0 - _EVENTS, 1.0 + _EVENTS
        return (
            (less * forward[0], more * forward[1]),
            (less * backward[0], more * backward[1] - less * backward[0]),
        )


def bits_at_one_record(numbers: Numbers, epsilon0: float) -> SumsAtOneRecord:
    """Witness: how many of the bits in which two records differ are flipped, all others at the second record.

    Of k messages these are 2k bits, each flipped with probability f under Q, and two of them with 1 - f under P. So
    P - Q of {flips > t} is 1 - 2 f times the sum of two laws at t: of 2k - 1 bits under Q, and with one under P.
    """

    def events(number: float) -> tuple[np.ndarray, ...]:
        flipped = 1.0 / (1.0 + math.exp(epsilon0))
        bits = 2.0 * number
        t = np.arange(bits + 1.0)
        law, one_fewer, others = _probs(t, bits - np.arange(3.0)[:, None], flipped)
        one_moved = (1.0 - flipped) * np.append(0.0, others[:-1]) + flipped * others
        apart = math.tanh(0.5 * epsilon0) * (one_fewer + one_moved)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = 1.0 + (np.append(0.0, apart[:-1]) - apart) / law
        ratios = np.maximum.accumulate(np.where(np.isnan(ratios), math.inf, ratios))
        more = np.append(np.cumsum(law[:0:-1])[::-1], 0.0)
        return ratios, apart, more, np.cumsum(law)

    name = "two bits of RAPPOR, all others at one of the two records"
    return SumsAtOneRecord(name, numbers, 2.0 * epsilon0, events)


def laplace_at_one_record(numbers: Numbers, epsilon0: float) -> SumsAtOneRecord:
    """Witness: the sum of Laplace messages, all others at one end of the interval, the target at either.

    Thresholds are mirrored about epsilon0/2.
    """

    def events(number: float) -> tuple[np.ndarray, ...]:
        ratios, apart, moved, still = summed_noise.half_lines(int(number), epsilon0)
        ones = np.ones(ratios.size - 1)
        return (
            np.concatenate([1.0 / ratios[:0:-1], ratios]),
            np.concatenate([apart[:0:-1], apart]),
            np.concatenate([ones, still]),
            np.concatenate([moved[:0:-1], ones, [1.0]]),
        )

    name = "the sum of Laplace messages, all others at one end of the interval"
    return SumsAtOneRecord(name, numbers, epsilon0, events)
