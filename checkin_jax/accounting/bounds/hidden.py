"""Hidden messages of any randomizer whose privacy profile is known: T* above, subsampling where that is smaller.

T* (docs/theory_gaussian.md) makes a round out of what one message gives away, where the others' records are arbitrary:
`HiddenMessages` for the `messages` view of shuffled check-in, `HiddenSlots` (R3) for slots that look alike,
both under replacement of a record. Call inside `devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax import _validate
from checkin_jax.accounting.bounds.profiles import TINY, GaussianProfile, Profile
from checkin_jax.accounting.bounds.unit import (
    MAX_LOSS,
    Instance,
    Lines,
    ShuffledGaussian,
    UnitBound,
    bucket_count,
)
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import hidden_messages, hidden_messages_lower, subsampled_gaussian
from checkin_jax.numerics import convex
from checkin_jax.randomizers import LabelLaws

# Losses at which the bound is computed: every tenth of a standard deviation up to the fourth, then geometrically.
_DENSE, _WIDE = 40, 88
# And beyond, where subsampling alone is known and more is left than this, as a share of delta.
_BEYOND, _LEFT = 128, 1e-2
# Knots of the law of a step on either side, and the samples of D from which they are chosen.
_KNOTS, _SAMPLES = 191, 2048
# Losses of one message are followed up to here (Gaussian: mu up to about 16); squares of e^loss must be numbers.
_MAX_LOSS = 300.0
# Cells of a Gaussian message on either side of where both records are equally likely, and the least mu for which their
# places are accurate enough.
_CELL_COUNT, _LEAST_MU = 128, 1e-3


def _reach(profile: Profile, least: float) -> float:
    """The loss from which on D is at most `least`, or does not fall any more."""
    end = min(profile.top, _MAX_LOSS)
    for _ in range(3):
        losses = np.linspace(0.0, end, _SAMPLES)
        value = profile.delta(losses)
        enough = value <= max(least, float(value[-1]) * (1.0 + 1e-9))
        end = float(losses[np.flatnonzero(enough)[0]])
        if enough.sum() < _SAMPLES // 2:
            break
    # Nothing falls: any place will do.
    return end or min(profile.top, 1.0)


def _knots(profile: Profile, end: float) -> np.ndarray:
    """_KNOTS + 1 places from 0 to e^end - 1; chords of D over them exceed it about equally much, relatively."""
    losses = np.linspace(0.0, end, _SAMPLES)
    value, at = profile.delta(losses), np.expm1(losses)
    gaps = np.diff(at)
    falls = -np.diff(value) / gaps
    bend = np.maximum(-np.diff(falls), 0.0) / (0.5 * (gaps[1:] + gaps[:-1]))
    floor = max(float(value[-1]), 1e-30 * float(value[0]), TINY)
    inside = value[1:-1] + floor
    # Less where D is small: those steps are rare.
    weight = np.sqrt(bend / inside) * (inside / (value[0] + floor)) ** 0.04 * 0.5 * (gaps[1:] + gaps[:-1])
    weight += 0.1 * (weight.sum() or 1.0) / weight.size
    total = np.concatenate([[0.0], np.cumsum(weight)])
    places = np.concatenate([losses[:1], 0.5 * (losses[1:-2] + losses[2:-1]), losses[-1:]])
    return np.expm1(np.interp(np.linspace(0.0, total[-1], _KNOTS + 1), total, places))


class _HiddenSum(abc.ABC):
    """(1/clients) E(-clients (c - 1) + S)_+ + rest D(c), S a sum of `count` steps T*, taken with probability rate.

    Or what subclasses know besides, where that is smaller; symmetric.
    """

    profile: Profile
    log_inverse_mass: float

    @property
    @abc.abstractmethod
    def _sum(self) -> tuple[float, float, float]:
        """clients, count and rate."""

    @property
    @abc.abstractmethod
    def _rest(self) -> float:
        """The probability that only one message by itself is known to be enough."""

    @abc.abstractmethod
    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        """Everybody else revealed: the bound at these losses by subsampling."""

    @property
    def top(self) -> float:
        return self.profile.top

    @functools.cached_property
    def _end(self) -> float:
        """The loss of one message that is followed."""
        clients, count, rate = self._sum
        least = math.exp(-self.log_inverse_mass) * 1e-2 * clients / (count * rate)
        return _reach(self.profile, max(least, 10.0 * TINY))

    @functools.cached_property
    def _steps(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Knots, D there, and the standard deviation of all steps without those that are met less than once."""
        knots = _knots(self.profile, self._end)
        value = self.profile.delta(np.log1p(knots))
        _, count, rate = self._sum
        mean = count * rate
        falls = -np.diff(value) / np.diff(knots)
        common = (mean * falls > 1.0) | (value[:-1] > 0.5 * value[0])
        area = np.where(common, 0.5 * (value[1:] + value[:-1]) * np.diff(knots), 0.0).sum()
        # Nothing falls: any scale will do.
        return knots, value, 2.0 * math.sqrt(mean * area) or float(knots[-1])

    @functools.cached_property
    def _losses(self) -> np.ndarray:
        return self._grid(self._rest <= math.exp(-self.log_inverse_mass))

    def _grid(self, near_only: bool) -> np.ndarray:
        """Losses: as far as the sum reaches, or as one message does."""
        (clients, _, _), (knots, _, deviation) = self._sum, self._steps
        end = knots[-1]
        if near_only:
            far = knots[-1] + deviation * (math.sqrt(2.0 * self.log_inverse_mass) + 1.0)
            end = min(1.2 * far / clients, end)
        near = min(0.1 * deviation / clients, end / (2.0 * _DENSE)) * np.arange(_DENSE + 1.0)
        return np.log1p(np.concatenate([near, np.geomspace(near[-1], end, _WIDE)[1:]]))

    def _law(self, losses: np.ndarray) -> hidden_messages.Law:
        knots, value, _ = self._steps
        above = np.expm1(losses)[:, None]
        c = 1.0 + above
        # T* has an atom at 0, that is at c - 1.
        right = np.sort(
            np.concatenate([np.broadcast_to(knots, (len(losses), knots.size)), above], axis=1), axis=1
        )
        inner, rest = np.minimum(right, above), 1.0 + np.maximum(above - right, 0.0)
        # log(c / (c - k)), c - k = rest, where nothing cancels.
        between = np.where(
            inner < 0.5 * c, -np.log1p(-np.minimum(inner / c, 0.5)), losses[:, None] - np.log(rest)
        )
        at = np.where(right < above, np.maximum(between, 0.0), np.log1p(right))
        right_value = np.where(right < above, rest, 1.0) * self.profile.delta(at)
        return hidden_messages.Law(host(right), host(right_value), host(c * knots), host(c * value))

    def hidden(self) -> np.ndarray:
        """T* at the knots of the profile."""
        arguments = (host(value) for value in (*self._sum, self._steps[2]))
        value = np.asarray(hidden_messages.hidden_upper(*arguments, self._losses, self._law(self._losses)))
        return value + self._rest * self._seldom(self._losses) * (1.0 + ROUNDING)

    @functools.cached_property
    def values(self) -> np.ndarray:
        """`hidden`, evaluated once."""
        return self.hidden()

    def _seldom(self, losses: np.ndarray) -> np.ndarray:
        """The bound in the event of probability `_rest`."""
        return self.profile.delta(losses)

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray]:
        losses, value = self._losses, np.minimum(self.values, self.subsampled(self._losses))
        end = min(self.top, MAX_LOSS)
        if losses[-1] < end and value.min() > _LEFT * math.exp(17.0 - self.log_inverse_mass):
            # What is left is too much to be lost at infinity: on by subsampling alone, on a coarser grid.
            far = np.geomspace(losses[-1], end, _BEYOND + 1)[1:]
            losses, value = np.append(losses, far), np.append(value, self.subsampled(far))
        value = np.minimum.accumulate(value)
        kept = convex.hull(np.expm1(losses), value)
        return losses[kept], value[kept]

    def upper(self, loss: np.ndarray) -> np.ndarray:
        """Upper bounds on the hockey-stick divergence at e^loss, loss >= 0, in both directions."""
        losses, value = self._profile
        loss = np.asarray(loss)
        inside = np.minimum(loss, losses[-1])
        return np.where(loss >= losses[-1], value[-1], convex.chords(losses, value, inside))


@dataclasses.dataclass(frozen=True)
class HiddenMessages(_HiddenSum):
    """Shuffled check-in, `messages` view: T*, or subsampling (G1) where that is smaller; both directions.

    The adversary sees all messages of a round in random order, and their number; one record is replaced; every client
    checks in with the same probability `rate` and uses the same randomizer, whose profile this is.

    Args:
      num_clients: n, whole, in [1, 2^42]. rate: gamma, in (0, 1]; at 1 only subsampling is left.
      profile: of one message. log_inverse_mass: masses up to exp(-log_inverse_mass) do not matter, in [1, 1e4].
      everybody: a bound for when all clients take part, K = n; else one message by itself.

    Certified: docs/theory_gaussian.md. The values are upper bounds, all errors rounded up and inside. Below, for
    Gaussian messages, the same messages and their sum, with all other clients at one record.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """

    num_clients: int
    rate: float
    profile: Profile
    log_inverse_mass: float
    everybody: UnitBound | None = None

    # Names of bounds that are never below this one.
    includes: ClassVar[tuple[str, ...]] = ("G1 (subsampling)",)

    def __post_init__(self) -> None:
        _validate.integer(1, 2.0**42, num_clients=self.num_clients)
        _validate.real(0.0, 1.0, open_low=True, rate=self.rate)
        _validate.real(1.0, 1e4, log_inverse_mass=self.log_inverse_mass)

    @property
    def name(self) -> str:
        return f"T* ({self.profile.name} messages)"

    @functools.cached_property
    def _instances(self) -> tuple[Instance, ...]:
        if not isinstance(self.profile, GaussianProfile):
            return ()
        n, rate, mu, mass = self.num_clients, self.rate, self.profile.mu, self.log_inverse_mass
        summed = ShuffledGaussian(n, rate, mu, False, mass).instances
        return (*hidden_instances(self, self), *summed)

    @property
    def instances(self) -> tuple[Instance, ...]:
        return self._instances

    @property
    def _sum(self) -> tuple[float, float, float]:
        return float(self.num_clients), float(self.num_clients), self.rate

    @property
    def _rest(self) -> float:
        return math.exp(self.num_clients * math.log(self.rate))

    def hidden(self) -> np.ndarray:
        return np.full(self._losses.shape, math.inf) if self.rate >= 1.0 else super().hidden()

    def _seldom(self, losses: np.ndarray) -> np.ndarray:
        alone = super()._seldom(losses)
        return (
            alone if self.everybody is None else np.minimum(alone, np.asarray(self.everybody.upper(losses)))
        )

    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        n, rate = self.num_clients, self.rate
        mix = subsampled_gaussian.buckets_upper(
            *(host(v) for v in (n, rate, 1.0, self.log_inverse_mass)), bucket_count(n * rate), False
        )
        inverse, weight = np.asarray(mix.inverse_rate)[:, None], np.asarray(mix.weight)
        with np.errstate(divide="ignore"):
            above = np.log(np.expm1(losses))[None, :]
        # log(1 + (c - 1) r)
        stretched = np.logaddexp(above + np.log(inverse), 0.0)
        value = weight @ self.profile.delta(stretched) * (1.0 + ROUNDING) + float(mix.tail) + TINY
        return np.minimum(value, rate * self.profile.delta(losses) * (1.0 + ROUNDING))


@dataclasses.dataclass(frozen=True)
class SubsampledMessages(HiddenMessages):
    """G1 for messages of any privacy profile: subsampling alone, by the visible fraction that checked in."""

    includes = ()

    @property
    def name(self) -> str:
        return "G1 (subsampling)"

    def hidden(self) -> np.ndarray:
        return np.full(self._losses.shape, math.inf)


@dataclasses.dataclass(frozen=True)
class HiddenSlots(_HiddenSum):
    """R3: one message in each of `slots` slots, one record replaced; T* for every slot's message; symmetric.

    The client is in one of them, uniformly, with probability `used` (dummies hidden), or takes the place of one of the
    other clients that are used there, slots / n (common windows, slots < n; dummies may be visible).

    Attributes:
      slots: m >= 1. used: rho in (0, 1]. profile: of one message.
      rest: the probability of a public event in which only one message by itself is known to be enough.
    """

    slots: int
    used: float
    profile: Profile
    log_inverse_mass: float
    rest: float = 0.0
    instances: tuple[Instance, ...] = ()

    name = "R3"

    @property
    def _sum(self) -> tuple[float, float, float]:
        # Rounded down: the bound grows with rho.
        return self.slots / self.used * (1.0 - 1e-15), float(self.slots), 1.0

    @property
    def _rest(self) -> float:
        return self.rest

    def subsampled(self, losses: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            stretched = np.logaddexp(np.log(np.expm1(losses)) - math.log(self.used), 0.0)
        value = self.used * self.profile.delta(stretched * (1.0 - 1e-15))
        return (value + self.rest * self.profile.delta(losses)) * (1.0 + ROUNDING)


@jax.jit
def _cells(mu: Array, farthest: Array) -> tuple[hidden_messages_lower.Cells, hidden_messages_lower.Cells]:
    """Cells of one Gaussian message, everybody else at x'; with Z - 1, and with 1 - Z, to the right.

    farthest: where the last cell begins, in standard deviations.
    """

    def side(sign: float) -> tuple[Array, Array]:
        # Outwards from where Z = 1; the last cell has no end. Masses from the tail that the cells are in.
        step = (farthest + mu) / _CELL_COUNT
        edges = 0.5 * mu + sign * step * jnp.arange(_CELL_COUNT, dtype=jnp.float64)
        base, other = (jax.scipy.special.ndtr(-sign * (edges - mean)) for mean in (jnp.zeros_like(mu), mu))
        mass, target = (t - jnp.append(t[1:], 0.0) for t in (base, other))
        return sign * (target - mass) / mass, mass

    right, left = side(1.0), side(-1.0)
    return hidden_messages_lower.Cells(*right, *left), hidden_messages_lower.Cells(*left, *right)


def _label_cells(laws: LabelLaws) -> tuple[hidden_messages_lower.Cells, hidden_messages_lower.Cells]:
    """As `_cells`, of labels; labels that are equally likely under both records tell nothing and are left out."""
    target, other = (np.asarray(part, dtype=np.float64) for part in laws[:2])

    def side(sign: float) -> tuple[Array, Array]:
        apart = sign * (target - other)
        mass = other[apart > 0]
        place = apart[apart > 0] / mass
        order = np.argsort(place, kind="stable")
        # Cells without mass at the last place: kernels compile once.
        room = (0, max(_CELL_COUNT - order.size, 0))
        return host(np.pad(place[order], room, mode="edge")), host(np.pad(mass[order], room))

    right, left = side(1.0), side(-1.0)
    return hidden_messages_lower.Cells(*right, *left), hidden_messages_lower.Cells(*left, *right)


@dataclasses.dataclass(frozen=True, eq=False)
class _OneRecord(abc.ABC):
    """Messages with all other clients (and dummies) at x'; the target holds x or x'.

    messages: the sum that they are, its losses and its scale. Its `clients` over-estimated by a rounding is safe here.
    """

    scale: UnitBound
    messages: _HiddenSum

    symmetric = False
    # Whether single messages must be seen, not sums of them.
    single: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def _both_cells(self) -> tuple[hidden_messages_lower.Cells, hidden_messages_lower.Cells]:
        """Cells of one message with Z - 1, and with 1 - Z, to the right."""

    @functools.cached_property
    def _lines(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """(P(A) - Q(A), Q(A)) for events A at some losses, in both orders."""
        seen = self.messages
        clients, count, rate = seen._sum
        if clients != count:
            clients *= 1.0 + 4e-15
        forward, backward = self._both_cells
        arguments = host(count), host(rate), host(seen._steps[2])
        loss = seen._losses if rate < 1.0 else seen._grid(True)
        loss = np.append(loss[1:], 0.5 * (loss[1:] + loss[:-1]))
        # P||Q: 1 + W/n > c. Q||P: 1 > c (1 + W/n), with P as the second measure.
        up = hidden_messages_lower.lines_lower(*arguments, forward, host(clients * np.expm1(loss)))
        down = hidden_messages_lower.lines_lower(*arguments, backward, host(-clients * np.expm1(-loss)))
        difference, mass = np.asarray(down[0]) / clients, np.asarray(down[1])
        return (np.asarray(up[0]) / clients, np.asarray(up[1])), (
            difference,
            (mass - difference) * (1.0 + 1e-15),
        )

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        above = np.expm1(loss)

        def best(difference: np.ndarray, mass: np.ndarray) -> Lines:
            at = np.argmax(difference - above[:, None] * mass, axis=1)
            return difference[at], mass[at]

        forward, backward = self._lines
        return best(*forward), best(*backward)


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianMessages(_OneRecord):
    """Gaussian messages in one dimension."""

    mu: float

    name = "Gaussian messages, all others at one of the two records"

    @property
    def _both_cells(self) -> tuple[hidden_messages_lower.Cells, hidden_messages_lower.Cells]:
        farthest = min(max(9.0, math.sqrt(2.0 * self.messages.log_inverse_mass)), 30.0)
        return _cells(host(self.mu), host(farthest))


@dataclasses.dataclass(frozen=True, eq=False)
class LabelMessages(_OneRecord):
    """Messages of any randomizer, seen through labels of finitely many values."""

    laws: LabelLaws

    @property
    def name(self) -> str:
        return self.laws.name

    @property
    def _both_cells(self) -> tuple[hidden_messages_lower.Cells, hidden_messages_lower.Cells]:
        return _label_cells(self.laws)


def hidden_instances(messages: HiddenMessages, scale: UnitBound) -> tuple[GaussianMessages, ...]:
    """The instance of Gaussian messages, where its cells are accurate enough; `scale` as in `Instance`."""
    profile = messages.profile
    if not isinstance(profile, GaussianProfile) or profile.mu < _LEAST_MU:
        return ()
    return (GaussianMessages(scale, messages, profile.mu),)
