"""Evaluation of sums of the dominating step T*, made from a privacy profile: losses, knots, chords.

`HiddenSum` is the base of `HiddenMessages` and `HiddenSlots` [docs/evaluation.md]. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS, EqualDraws
from checkin_jax.accounting.bounds.profiles import TINY, Profile
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import hidden_messages
from checkin_jax.numerics import convex
from checkin_jax.randomizers import LabelLaws

# Losses of the bound: every tenth of a standard deviation up to the fourth, then geometrically.
_DENSE, _WIDE = 40, 88
# Further losses, by subsampling alone, if more than this share of delta is left.
_BEYOND, _LEFT = 128, 1e-2
# Knots of the law of a step on either side, and samples of D from which they are chosen.
_KNOTS, _SAMPLES = 191, 2048
# Sizes of groups that share a contour, and how far apart their losses may be: in standard deviations, or as a share of
# the place.
_TOGETHER = (1, 2, 4, 8, 16, 32)
_APART = (1.0, 0.1)
# A value below e^_STOP times the negligible mass, e^-12 delta, stands for all further ones.
_STOP = 5.0
# Losses and contours that are evaluated at once, so that their arrays stay in the CPU cache.
_AT_ONCE, _CONTOURS = 16, 4
# Losses closer than this share the law from which contours are chosen.
_LIKE = 0.25
# The largest loss of one message that is followed (Gaussian: mu up to about 16); e^(2 loss) must not overflow.
_MAX_LOSS = 300.0


class WeightLaw(NamedTuple):
    """Law of the weight of a step: values in (0, 1], and their probabilities rounded up; both [values]."""

    values: np.ndarray
    probs: np.ndarray

    @property
    def square(self) -> float:
        """Mean of the squared weight."""
        return float(self.probs @ np.square(self.values))


ALWAYS = WeightLaw(np.ones(1), np.ones(1))


def _reach(profile: Profile, least: float) -> float:
    """Smallest loss from which on D is at most `least`, or constant."""
    end = min(profile.largest_loss, _MAX_LOSS)
    for _ in range(3):
        losses = np.linspace(0.0, end, _SAMPLES)
        value = profile.delta(losses)
        enough = value <= max(least, float(value[-1]) * (1.0 + 1e-9))
        end = float(losses[np.flatnonzero(enough)[0]])
        if enough.sum() < _SAMPLES // 2:
            break
    # The profile is flat here: any positive end point serves.
    return end or min(profile.largest_loss, 1.0)


def knots_of(profile: Profile, least: float) -> np.ndarray:
    """_KNOTS + 1 knots from 0 to where D is `least`, between which its chords have about the same relative error."""
    losses = np.linspace(0.0, _reach(profile, max(least, 10.0 * TINY)), _SAMPLES)
    value, at = profile.delta(losses), np.expm1(losses)
    gaps = np.diff(at)
    falls = -np.diff(value) / gaps
    bend = np.maximum(-np.diff(falls), 0.0) / (0.5 * (gaps[1:] + gaps[:-1]))
    floor = max(float(value[-1]), 1e-30 * float(value[0]), TINY)
    inside = value[1:-1] + floor
    # Fewer knots where D is small, since those steps are rare.
    weight = np.sqrt(bend / inside) * (inside / (value[0] + floor)) ** 0.04 * 0.5 * (gaps[1:] + gaps[:-1])
    weight += 0.1 * (weight.sum() or 1.0) / weight.size
    total = np.concatenate([[0.0], np.cumsum(weight)])
    places = np.concatenate([losses[:1], 0.5 * (losses[1:-2] + losses[2:-1]), losses[-1:]])
    return np.expm1(np.interp(np.linspace(0.0, total[-1], _KNOTS + 1), total, places))


def near(places: np.ndarray, limits: Sequence[int] = (), share: float = 1.0) -> list[tuple[int, int]]:
    """(first, end) indices of groups of thresholds, each served by one contour.

    Args:
      places: increasing thresholds, in standard deviations of the sum. limits: indices at which a new group begins.
      share: of the usual distance.
    """
    found, start = [], 0
    while start < len(places):
        most = places[start] + share * max(_APART[0], _APART[1] * places[start])
        stop = min(
            int(np.searchsorted(places, most, "right")), *(at for at in (len(places), *limits) if at > start)
        )
        size = max(size for size in _TOGETHER if size <= stop - start)
        found.append((start, start + size))
        start += size
    return found


def side_by_side(
    groups: Sequence[tuple[int, int]], losses: int = _AT_ONCE
) -> Iterator[list[tuple[int, int]]]:
    """Batches of successive groups of equal size, at most `losses` losses in each batch of several groups."""
    for size, same in itertools.groupby(groups, lambda group: group[1] - group[0]):
        some = list(same)
        most = max(min(losses // size, _CONTOURS), 1)
        yield from (some[start : start + most] for start in range(0, len(some), most))


def above_place(profile: Profile, losses: np.ndarray, places: np.ndarray) -> np.ndarray:
    """E(d - place)_+ for places >= 0, d the centred T* of this profile at c = e^loss; broadcasts."""
    above = np.expm1(losses)
    c = 1.0 + above
    inner, rest = np.minimum(places, above), 1.0 + np.maximum(above - places, 0.0)
    # log(c / (c - k)), c - k = rest, where nothing cancels.
    between = np.where(inner < 0.5 * c, -np.log1p(-np.minimum(inner / c, 0.5)), losses - np.log(rest))
    at = np.where(places < above, np.maximum(between, 0.0), np.log1p(places))
    return np.where(places < above, rest, 1.0) * profile.delta(at)


class HiddenSum(abc.ABC):
    """(1/clients) E(-clients (c - 1) + S)_+ + rest D(c), S a sum of `count` steps T* at this rate.

    Or `subsampled`, where that is smaller. Symmetric. Centred steps have independent `step_weights`.
    """

    profile: Profile
    neg_log_tail: float
    # No multiple of `apart` lies between losses that share a contour; `share` as in `near`.
    apart: ClassVar[float] = 0.1
    share: ClassVar[float] = 1.0

    @property
    @abc.abstractmethod
    def terms(self) -> tuple[float, float, float]:
        """clients, count and rate."""

    @property
    def sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Masses, clients and counts of the sums of a mixture, [sums]; `terms` are near those of each."""
        clients, count, _ = self.terms
        return np.ones(1), np.array([clients]), np.array([count])

    def ceilings(self, losses: np.ndarray) -> np.ndarray:
        """Other upper bounds on the terms of the mixture at these losses, [..., sums]."""
        return np.full((*losses.shape, 1), math.inf)

    def labelled(self, laws: LabelLaws) -> EqualDraws | None:
        """Draws of messages seen through labels of these laws; None unless all are drawn alike."""
        del laws
        return None

    @property
    def step_weights(self) -> WeightLaw:
        """Law of the weight of a centred step."""
        return ALWAYS

    @property
    def _rest(self) -> float:
        """Probability of an event in which the bound is the profile of one message."""
        return 0.0

    @abc.abstractmethod
    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        """Upper bounds at these losses by subsampling, with all other messages revealed."""

    @property
    def largest_loss(self) -> float:
        return self.profile.largest_loss

    @property
    def negligible(self) -> float:
        """Value of D below which a step does not matter."""
        clients, count, rate = self.terms
        return math.exp(-self.neg_log_tail) * 1e-2 * clients / (count * rate)

    @functools.cached_property
    def steps(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Knots, D there, and the standard deviation of the sum without steps expected less than once."""
        knots = knots_of(self.profile, self.negligible)
        value = self.profile.delta(np.log1p(knots))
        _, count, rate = self.terms
        mean = count * rate
        falls = -np.diff(value) / np.diff(knots)
        common = (mean * falls > 1.0) | (value[:-1] > 0.5 * value[0])
        area = np.where(common, 0.5 * (value[1:] + value[:-1]) * np.diff(knots), 0.0).sum()
        # The profile is flat here: any positive scale serves.
        return knots, value, 2.0 * math.sqrt(mean * area * self.step_weights.square) or float(knots[-1])

    @functools.cached_property
    def losses(self) -> np.ndarray:
        return self.grid(self._rest <= math.exp(-self.neg_log_tail))

    def grid(self, near_only: bool) -> np.ndarray:
        """Losses up to the reach of the sum (`near_only`), or of one message."""
        (clients, _, _), (knots, _, deviation) = self.terms, self.steps
        end = knots[-1]
        if near_only:
            far = knots[-1] + deviation * (math.sqrt(2.0 * self.neg_log_tail) + 1.0)
            end = min(1.2 * far / clients, end)
        near = min(0.1 * deviation / clients, end / (2.0 * _DENSE)) * np.arange(_DENSE + 1.0)
        return np.log1p(np.concatenate([near, np.geomspace(near[-1], end, _WIDE)[1:]]))

    def together(
        self, losses: np.ndarray, ends: Sequence[float] = ()
    ) -> Iterator[tuple[np.ndarray, list[tuple[int, int]]]]:
        """(orders of contours, groups of losses) for batches of groups whose laws differ little.

        One contour serves a group of increasing losses. No group contains one of the `ends`.
        """
        (clients, _, _), deviation = self.terms, self.steps[2]
        # Mixtures of laws that are further apart are too loose.
        ends = [*ends, *np.arange(losses[0], losses[-1], self.apart)[1:]]
        far = clients * np.expm1(losses)
        groups = near(far / deviation, np.searchsorted(losses, ends).tolist(), self.share)
        for _, some in itertools.groupby(groups, lambda group: losses[group[0]] // _LIKE):
            batch = list(some)
            first, last = batch[0][0], batch[-1][1] - 1
            yield hidden_messages.orders(far[first], far[last], deviation), batch

    def _right(self, losses: np.ndarray, places: np.ndarray) -> np.ndarray:
        """E(d - place)_+ for places >= 0, d the centred step at c = e^loss; broadcasts."""
        return above_place(self.profile, losses, places)

    def _law(self, losses: np.ndarray) -> hidden_messages.StepTransforms:
        knots, value, _ = self.steps
        above = np.expm1(losses)[:, None]
        c = 1.0 + above
        # T* has an atom at 0, that is at c - 1.
        right = np.sort(
            np.concatenate([np.broadcast_to(knots, (len(losses), knots.size)), above], axis=1), axis=1
        )
        left_value = c * value
        weights = self.step_weights
        if weights is ALWAYS:
            right_value = self._right(losses[:, None], right)
        else:
            sizes, shares = weights.values, weights.values * weights.probs
            right_value = self._right(losses[:, None, None], right[..., None] / sizes) @ shares
            left_value = c * (self.profile.delta(np.log1p(knots[:, None] / sizes)) @ shares)
        return hidden_messages.StepTransforms(
            host(right), host(right_value), host(c * knots), host(left_value)
        )

    def hidden(self) -> np.ndarray:
        """Upper bounds by T* at `losses`."""
        value = self.at(self.losses)
        return value + self._rest * self._seldom(self.losses) * (1.0 + ROUNDING)

    def at(self, losses: np.ndarray) -> np.ndarray:
        """Upper bounds on (1/clients) E(-clients (c - 1) + S)_+ at these increasing losses, of `sums` in the mean."""
        _, count, rate = map(host, self.terms)
        masses, clients, counts = self.sums
        arguments = [*map(host, (masses, clients, counts)), rate, host(self.steps[2])]
        # Below `least` the last value stands for all further ones: outside the event of `_rest` the divergence does
        # not grow with c, and the term added for that event continues to fall.
        value, least = np.full(losses.shape, math.inf), math.exp(_STOP - self.neg_log_tail)
        for orders, groups in self.together(losses):
            middle = self._law(losses[[groups[len(groups) // 2][0]]])
            paths = hidden_messages.paths_of(rate, count, host(orders), middle)
            for some in side_by_side(groups, _AT_ONCE // masses.size):
                at = np.array([range(*group) for group in some])
                ends = at[:, sorted({0, at.shape[1] - 1})]
                laws = (np.reshape(part, (*ends.shape, -1)) for part in self._law(losses[ends.ravel()]))
                law = hidden_messages.StepTransforms(*map(host, laws))
                more = host(losses[at]), law, host(self.ceilings(losses[at]))
                value[at] = hidden_messages.hidden_upper(*arguments, paths, *more)
                if value[at[-1, -1]] < least:
                    value[at[-1, -1] :] = value[at[-1, -1]]
                    return value
        return value

    @functools.cached_property
    def values(self) -> np.ndarray:
        """`hidden()`, cached."""
        return self.hidden()

    def _seldom(self, losses: np.ndarray) -> np.ndarray:
        """Upper bounds in the event of probability `_rest`."""
        return self.profile.delta(losses)

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray]:
        losses, value = self.losses, np.minimum(self.values, self.subsampled(self.losses))
        end = min(self.largest_loss, MAX_LOSS)
        if losses[-1] < end and value.min() > _LEFT * math.exp(17.0 - self.neg_log_tail):
            # The remaining mass is too large to count at infinite loss: a coarser grid continues by subsampling.
            far = np.geomspace(losses[-1], end, _BEYOND + 1)[1:]
            losses, value = np.append(losses, far), np.append(value, self.subsampled(far))
        value = np.minimum.accumulate(value)
        kept = convex.hull(np.expm1(losses), value)
        return losses[kept], value[kept]

    def upper(self, loss: np.ndarray) -> np.ndarray:
        """Upper bounds on the hockey-stick divergence at e^loss, loss >= 0 in nats, in both directions."""
        return convex.held_chords(*self._profile, np.asarray(loss))
