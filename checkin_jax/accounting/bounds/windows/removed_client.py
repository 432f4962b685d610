"""profile (T2r, T2d): a client is added to slots with hidden dummies, or removed from them, among independent others.

The likelihood ratio of a view is 1 + sum_j (rho/m) w_j (z_j - 1), with w_j the probability that the client's message
would be drawn in slot j, given what the others do, and z_j the ratio of one message. In an empty slot this is a ratio
to a dummy's message, which of a fair coin is nearer to 1. In sliding windows whose labels are drawn anew an absent
client's slot shows the labelled message with probability 1/2 at least, else another one. Proofs: docs/theory.md, 6a;
docs/theory_hexagon.md, 5. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import scipy  # its parts are imported when they are used

from checkin_jax.accounting.bounds.interface import MAX_LOSS, AsymmetricBound
from checkin_jax.accounting.bounds.messages.profile_cover_sums import ALWAYS, HiddenSum, WeightLaw, knots_of
from checkin_jax.accounting.bounds.profiles import TINY, Profile
from checkin_jax.accounting.bounds.windows.contention import (
    LOADS,
    RivalEvent,
    independent_weights,
    occupied_slots,
    redrawn_weights,
    rivalled,
    win_prob,
)
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import hidden_messages
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import chernoff, redrawn
from checkin_jax.numerics.counts.chernoff import POISSON_MARGIN, POISSON_NEAR
from checkin_jax.randomizers import Randomizer

# Most values of a load near its mean that are told apart, and smaller ones, in standard deviations from the mean.
_LOADS, _SMALLER = 96, np.array([-9.0, -7.5, -6.0, -5.0])
# Standard deviations by which the mean of the Poisson number is below the number of others.
_FEWER = np.linspace(0.0, 8.0, 33)
# Sizes of a step at which its variance is evaluated.
_PLACES = 256
# The largest loss at which labels are drawn anew: log 2, rounded down.
_FARTHEST_ANEW = math.log(2.0) * (1.0 - 1e-15)


def poisson_weights(mean: float) -> WeightLaw:
    """Law of 1/(C + 1), C Poisson of this mean; all loads of a bucket count as the smallest of them."""
    deviation = math.sqrt(mean)
    least = max(math.ceil(mean - POISSON_NEAR * deviation) + 1.0, 0.0)
    near = np.unique(np.floor(np.linspace(least, mean + POISSON_NEAR * deviation + 1.0, _LOADS)))
    far = np.floor(np.maximum(mean + _SMALLER * deviation, 0.0)) if least > 1.0 else np.zeros(1)
    far = np.unique(np.append(0.0, far))
    # Pr[C < edge] and Pr[C >= edge]: the smaller one is accurate. No load is below zero.
    below = np.where(near > 0.0, scipy.special.pdtr(np.maximum(near - 1.0, 0.0), mean), 0.0)
    beyond = np.where(near > 0.0, scipy.special.pdtrc(np.maximum(near - 1.0, 0.0), mean), 1.0)
    between = np.where(near[1:] <= mean, np.diff(below), -np.diff(beyond))
    probs = np.append(between, beyond[-1])
    edges = near
    if near[0] > 0.0:
        # A bucket of loads far below the mean has the probability of all smaller loads, too.
        far = far[far < near[0]]
        probs = np.concatenate([chernoff.poisson_tail(far[1:] - 1.0, mean), below[:1], probs])
        edges = np.append(far, near)
    return WeightLaw(1.0 / (edges + 1.0), probs * (1.0 + 20.0 * POISSON_MARGIN))


def fair_coin(randomizer: Randomizer) -> float:
    """Largest relative difference of a message's density from a dummy's that is a fair coin; 0 for other dummies."""
    if not randomizer.fair_coin_at_zero or randomizer.one_bit is None:
        return 0.0
    return math.tanh(0.5 * randomizer.largest_loss) * (1.0 + 1e-15)


@dataclasses.dataclass(frozen=True, eq=False)
class _Half:
    """One side of a step t = w (z - 1), as a profile: E(t - k)_+, or E(-t - k)_+ if `falls`, at loss log(1 + k).

    coin: size of the step +-coin in an empty slot, with equal probabilities. order: as in `RivalEvent`. If not 0, a
    step of weight 1 is above both the coin and (z - 1)/2, and other steps are coins if the order is 1.
    other: the step is z - 1 - s (z' - 1), s at most this and at most 1, z' the ratio of a third message.
    """

    message: Profile
    weights: WeightLaw
    falls: bool
    coin: float = 0.0
    order: int = 0
    other: float = 0.0

    name = "a step"

    @property
    def largest_loss(self) -> float:
        if not self.falls:
            return self.message.largest_loss
        farthest = self.other * math.expm1(min(self.message.largest_loss, MAX_LOSS))
        return math.log1p(max(farthest, 1.0))

    def delta(self, loss: np.ndarray) -> np.ndarray:
        values, probs = self.weights
        size = np.expm1(np.asarray(loss, dtype=np.float64))[..., None]
        if not self.order:
            return self._plain(size / values) @ (probs * values) + TINY
        coin = 0.5 * np.maximum(self.coin - size, 0.0)
        largest = np.maximum(coin, 0.5 * self._plain(2.0 * size))
        smaller = coin if self.order > 0 else values * self._plain(size / values)
        return np.where(values == 1.0, largest, smaller) @ probs + TINY

    def _plain(self, size: np.ndarray) -> np.ndarray:
        """That of z - 1."""
        if not self.falls:
            return self.message.delta(np.log1p(size))
        # E(u - z)_+ is at most u D(1/u); u = 1 - k is rounded up.
        left = np.maximum(1.0 - size + 4e-16, 0.0)
        found = left * self.message.delta(-np.log(np.clip(left, 1e-300, 1.0)))
        if not self.other:
            return found
        # E(1 - k - z + s z')_+ is that at most, or s D(1 + k/s).
        return np.maximum(found, self.other * self.message.delta(np.log1p(size / self.other)))


@dataclasses.dataclass(frozen=True, eq=False)
class _SlotSum(HiddenSum):
    """(rho/m) E(-(m/rho)(c - 1) + sum of `number` steps)_+, or of steps of opposite sign if `backward`.

    other: as in `_Half`, at c = 1; 0 if there is no third message.
    """

    slots: int
    use_prob: float
    number: float
    message: Profile
    weights: WeightLaw
    neg_log_tail: float
    backward: bool
    coin: float
    order: int
    other: float

    def _half(self, falls: bool, other: float | None = None) -> _Half:
        other = self.other if other is None else other
        return _Half(self.message, self.weights, falls, self.coin, self.order, other)

    @property
    def profile(self) -> Profile:  # type: ignore[override]
        """The side of a step towards larger sums."""
        return self._half(self.backward)

    @property
    def terms(self) -> tuple[float, float, float]:
        # Rounded down, since the bound grows with rho.
        return self.slots / self.use_prob * (1.0 - 1e-15), self.number, 1.0

    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        return np.full(losses.shape, math.inf)

    @functools.cached_property
    def _step(self) -> hidden_messages.StepTransforms:
        right, right_value, _ = self.steps
        other = self._half(not self.backward)
        left = knots_of(other, self.negligible)
        return hidden_messages.StepTransforms(
            host(right), host(right_value), host(left), host(other.delta(np.log1p(left)))
        )

    def _law(self, losses: np.ndarray) -> hidden_messages.StepTransforms:
        """The same step at every loss, but that in P||Q a third message has s = c/2: steps are convex in s."""
        parts = [np.broadcast_to(part, (len(losses), np.size(part))) for part in self._step]
        if self.other and not self.backward:
            shares = np.minimum(self.other * np.exp(losses) * (1.0 + 4e-15), 1.0)
            halves = [self._half(True, float(share)) for share in shares]
            knots = [knots_of(half, self.negligible) for half in halves]
            values = [half.delta(np.log1p(at)) for half, at in zip(halves, knots)]
            parts[2:] = np.stack(knots), np.stack(values)
        return hidden_messages.StepTransforms(*map(host, parts))


@dataclasses.dataclass(frozen=True)
class RemovedClient(AsymmetricBound):
    """T2r: one client is added or removed; every slot shows one message, a client's or a dummy's. P has the client.

    Others that choose among common slots are counted as a Poisson number of them, so that loads are independent, or by
    the number of slots in which the client would be drawn (T2), whichever has the smaller variance.

    Attributes:
      slots, use_prob: m and rho, as in T2. profile: of one message.
      num_rivals, rival_prob: number of others that may be in each slot, and the probability of each; (0, 0): none is
        counted.
      common: True if the others are the same ones for all slots, each in at most one.
      coin: upper bound on the relative difference of a message's density from a dummy's, in slots that draw uniformly
        one of their clients and have no others than those; 0 if a dummy is the message of some record.
      window: length of the sliding windows of all clients, for labels drawn anew (T2d); else None, and loads are known.
    """

    slots: int
    use_prob: float
    profile: Profile
    neg_log_tail: float
    num_rivals: int = 0
    rival_prob: float = 0.0
    common: bool = False
    coin: float = 0.0
    window: int | None = None

    name = "profile"

    @property
    def gains(self) -> bool:
        """True if there is such a bound."""
        return self.window is None or self._redrawn is not None

    @functools.cached_property
    def _redrawn(self) -> redrawn.Redrawn | None:
        assert self.window is not None
        return redrawn.redrawn(self.slots, self.window, self.neg_log_tail)

    @property
    def variance(self) -> float:
        """That of the sum of the steps, up to a common factor."""
        return self._variance(self.parts)

    def poisson(self) -> RivalEvent:
        """Loads as of a Poisson number of others, which is larger than theirs with probability 1 - 1/mass."""
        means = np.maximum(self.num_rivals - _FEWER * math.sqrt(self.num_rivals), 1e-9)
        fewer = 1.0 - chernoff.more_than(float(self.num_rivals), means)
        best = int(np.argmin(-np.log(fewer) - np.log1p(means * self.rival_prob)))
        weights = poisson_weights(float(means[best]) * self.rival_prob)
        return RivalEvent(float(1.0 / fewer[best]), float(self.slots), weights)

    @functools.cached_property
    def parts(self) -> tuple[RivalEvent, ...]:
        """Events whose bounds add up, weighted by their masses."""
        if self.window is not None:
            assert self._redrawn is not None
            return tuple(redrawn_weights(self.slots, self._redrawn))
        ways = [self._without_dummies, *self._with_dummies]
        return min(ways, key=self._variance) if len(ways) > 1 else ways[0]

    @property
    def _without_dummies(self) -> tuple[RivalEvent, ...]:
        if not self.num_rivals or self.rival_prob <= 0.0:
            return (RivalEvent(1.0, float(self.slots), ALWAYS),)
        if self.common:
            whole = self.poisson()
            if whole.mass**2 * whole.weights.square <= win_prob(self.num_rivals, self.rival_prob):
                return (whole,)
        return rivalled(self.slots, self.num_rivals, self.rival_prob, self.neg_log_tail)

    @property
    def _with_dummies(self) -> list[tuple[RivalEvent, ...]]:
        """Ways in which the steps of empty slots are a dummy's."""
        if not self.coin:
            return []
        if not self.num_rivals or self.rival_prob <= 0.0:
            return [(RivalEvent(1.0, float(self.slots), ALWAYS, order=-1),)]
        facts = self.slots, self.num_rivals, self.rival_prob, self.neg_log_tail
        falling, growing = [independent_weights(*facts, loads) for loads in LOADS], []
        if self.common:
            # A lower bound on the number of others is safe here, so that no step may grow with the load.
            falling.append([self.poisson()])
        else:
            growing.append(occupied_slots(*facts))
        return [
            tuple(each._replace(order=order) for each in way)
            for order, ways in ((-1, falling), (1, growing))
            for way in ways
        ]

    def _variance(self, way: tuple[RivalEvent, ...]) -> float:
        """That of the sum of the steps, up to a common factor."""
        reach = knots_of(self.profile, 1e-3 * math.exp(-self.neg_log_tail))[-1]
        losses = np.log1p(np.geomspace(1e-4 * reach, reach, _PLACES))
        found = 0.0
        for each in way:
            halves = (
                _Half(self.profile, each.weights, falls, self.coin, each.order, self._other)
                for falls in (False, True)
            )
            both = sum(half.delta(losses) for half in halves)
            found += each.mass * each.number * each.use**2 * float(np.trapezoid(both, np.expm1(losses)))
        return found

    @property
    def _other(self) -> float:
        """s of a step where the absent client's slot may show another message than the labelled one, at c = 1."""
        return 0.0 if self.window is None else 0.5

    def _sums(self, backward: bool) -> list[tuple[float, _SlotSum]]:
        return [
            (
                each.mass,
                _SlotSum(
                    self.slots,
                    self.use_prob * each.use,
                    each.number,
                    self.profile,
                    each.weights,
                    self.neg_log_tail,
                    backward,
                    self.coin,
                    each.order,
                    self._other,
                ),
            )
            for each in self.parts
            if each.number
        ]

    @functools.cached_property
    def _tables(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """(losses, upper bounds) of P||Q and of Q||P, linear in e^loss between losses."""
        forward = self._sums(False)
        losses = max((one.losses for _, one in forward), key=lambda each: each[-1])
        if self._other:
            # In P||Q s is c/2, at most 1.
            losses = losses[np.less_equal(losses, _FARTHEST_ANEW)]
        seldom = sum(each.mass for each in self.parts if not each.number) * self.profile.delta(losses)
        ahead = np.sum([mass * one.at(losses) for mass, one in forward], axis=0) + seldom
        # H(Q||P) = c E(-(1 - 1/c) - ...)_+, and 1 - 1/c is e^l - 1 at these l.
        turned = np.log1p(-np.expm1(-losses))
        backward = self._sums(True)
        behind = np.exp(losses) * np.sum([mass * one.at(turned) for mass, one in backward], axis=0) + seldom

        def table(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value = np.minimum.accumulate(np.minimum(value * (1.0 + ROUNDING), 1.0))
            kept = convex.hull(np.expm1(losses), value)
            return losses[kept], value[kept]

        return table(ahead), table(behind)

    @property
    def _alone(self) -> float:
        """Probability that the client's message is sent, and that anything is learnt from it by itself."""
        return self.use_prob * float(self.profile.delta(np.zeros(1))[0])

    @property
    def largest_loss(self) -> float:  # type: ignore[override]
        largest = self.profile.largest_loss
        return (
            largest
            if largest >= MAX_LOSS
            else math.log1p(self.use_prob * math.expm1(largest)) * (1.0 + 1e-15)
        )

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        loss = np.asarray(loss)
        # The client's slot, if it sends at all, and the other message of the slot are revealed.
        found = self.use_prob * self.profile.delta(loss) * (1.0 + ROUNDING)
        if self._alone > math.exp(-self.neg_log_tail):
            found = np.minimum(found, convex.held_chords(*self._tables[backward], loss))
        return np.where(loss >= self.largest_loss, 0.0, found)
