"""One unit of a protocol as the composer sees it: profile bounds from above, and concrete instances from below.

A `UnitBound` limits the hockey-stick divergence at e^l from above, in both directions, for losses l >= 0 in nats; a
`Directed` one bounds each direction by itself, and then all units are composed in the one order and in the other. An
`Instance` is a concrete pair (P, Q) that no analysis can go below: for P||Q and for Q||P it gives
(P(A) - Q(A), Q(A)) of a set A near {loss > l}. Call inside `devices.float64()`. eps0-LDP messages behind a
shuffler or in slots are in `bounds.clones`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jax import Array

from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import subsampled_gaussian
from checkin_jax.randomizers import LabelLaws

# Beyond this loss c = e^loss leaves float64; what is there is put at infinite loss.
MAX_LOSS = 690.0
# So many evaluations of the least of several bounds are remembered.
_REMEMBERED = 16
# A bound that is above the smallest by no more than this is as good.
_AS_GOOD = 1e-9

Values = Array | np.ndarray
Lines = tuple[Values, Values]


class UnitBound(Protocol):
    """An upper bound on one unit, as the composer uses it."""

    @property
    def top(self) -> float:
        """The largest loss, or infinity."""
        ...

    @property
    def name(self) -> str:
        """Theorem behind the upper bound."""
        ...

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Concrete pairs below; each is composed by itself and the best is kept."""
        ...

    def upper(self, loss: np.ndarray) -> Values: ...


class Directed(abc.ABC):
    """A bound on a unit whose two directions differ: P (with the client, say) against Q, and Q against P."""

    top = math.inf

    @abc.abstractmethod
    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds on H(P||Q) and on H(Q||P) at e^loss, loss >= 0."""

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        """One of `upper_sides`; bounds for which that is less work say how."""
        return self.upper_sides(loss)[backward]

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return np.maximum(*self.upper_sides(loss))


class OneSided(Directed):
    """A bound whose directions have nothing in common."""

    @abc.abstractmethod
    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray: ...

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.side(loss, False), self.side(loss, True)


def upper_side(one: UnitBound, loss: np.ndarray, backward: bool) -> Values:
    """One direction of any unit, from above."""
    return one.side(loss, backward) if isinstance(one, Directed) else one.upper(loss)


def upper_sides(one: UnitBound, loss: np.ndarray) -> tuple[Values, Values]:
    """Both directions of any unit, from above."""
    if isinstance(one, Directed):
        return one.upper_sides(loss)
    value = one.upper(loss)
    return value, value


@runtime_checkable
class Sharp(Protocol):
    """A bound whose instances are so near that the grid of the composition shows: it gets a finer one."""

    @property
    def sharp(self) -> bool: ...


def is_sharp(one: UnitBound) -> bool:
    """Whether the round, or one of those that it is the least of, is sharp."""
    if isinstance(one, Least):
        return any(is_sharp(each) for each in one.bounds)
    return isinstance(one, Sharp) and one.sharp


@runtime_checkable
class Graded(Protocol):
    """A bound that says how it compares with others of its kind before it is evaluated."""

    @property
    def variance(self) -> float:
        """Of the loss, up to a factor that all graded bounds on a unit share."""
        ...


@runtime_checkable
class Measured(Protocol):
    """A bound on Gaussian messages that says how wide its losses are before it is evaluated."""

    @property
    def spread(self) -> float:
        """About the standard deviation of the loss."""
        ...

    @property
    def light(self) -> bool:
        """Whether it is smallest nowhere of interest where the spread of another one is much smaller."""
        ...


class Instance(Protocol):
    """A concrete pair of one unit."""

    @property
    def scale(self) -> UnitBound:
        """A bound whose profile has the instance's scale; grids for the instance are made from it."""
        ...

    @property
    def symmetric(self) -> bool:
        """True if the pair is the same in both directions."""
        ...

    @property
    def name(self) -> str:
        """Name of the mechanism, for statements."""
        ...

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]: ...


def rescalable(instance: Instance) -> bool:
    """Whether the scale is a field, which another one may take the place of; else it is the instance's own."""
    return dataclasses.is_dataclass(instance) and "scale" in {
        field.name for field in dataclasses.fields(instance)
    }


@dataclasses.dataclass(frozen=True, eq=False)
class OfEvents:
    """The profile that an instance's own events show, a little above it: a scale for its grids.

    top: the largest loss of the instance, or infinity.
    """

    instance: Instance
    top: float = math.inf

    name = "an instance by itself"
    instances = ()

    def upper(self, loss: np.ndarray) -> np.ndarray:
        above = np.expm1(np.minimum(loss, MAX_LOSS))
        sides = [np.asarray(apart) - above * np.asarray(mass) for apart, mass in self.instance.lower(loss)]
        return np.clip(np.maximum(*sides) * 1.001, 0.0, 1.0)


class Profile(Protocol):
    """The privacy profile of one message by itself, over all pairs of inputs."""

    @property
    def name(self) -> str: ...

    @property
    def top(self) -> float:
        """The largest loss, or infinity."""
        ...

    def delta(self, loss: np.ndarray) -> np.ndarray:
        """D at e^loss, loss >= 0, any shape; relative error below 5e-12."""
        ...


class OwnInstance:
    """For bounds that are concrete pairs themselves."""

    below_scale = True

    @property
    def instances(self) -> tuple[Instance, ...]:
        return (self,)  # type: ignore[return-value]

    @property
    def scale(self) -> UnitBound:
        return self  # type: ignore[return-value]


def log_inverse_mass(total: float, delta: float) -> float:
    """Chooses the mass that a unit may leave out, as -log: `total` units together lose less than 1e-7 delta."""
    return math.log(total) - math.log(delta) + 17.0


def bucket_count(mean: float) -> int:
    """Buckets that keep their part of the error in epsilon near 0.04%, from a short ladder (each compiles once)."""
    wanted = 3600.0 / math.sqrt(max(mean, 1.0))
    return next((size for size in (16, 64, 128) if size >= wanted), 256)


@dataclasses.dataclass(frozen=True)
class ShuffledGaussian:
    """Shuffled check-in of Gaussian messages: G1 above; below, the sum, a post-processing of the messages."""

    num_clients: int
    rate: float
    mu: float
    summed: bool
    log_inverse_mass: float

    top = math.inf

    @property
    def name(self) -> str:
        return "subsampling (noise of the sum)" if self.summed else "subsampling"

    @property
    def instances(self) -> tuple[Instance, ...]:
        summed = self if self.summed else dataclasses.replace(self, summed=True)
        return (GaussianSum(summed, summed),)

    def arguments(self) -> tuple[Array, Array, Array, Array, int]:
        """n, rate, mu and mass for the kernels, and how many buckets to cut into."""
        buckets = bucket_count(self.num_clients * self.rate)
        n, rate, mu, mass = (host(v) for v in (self.num_clients, self.rate, self.mu, self.log_inverse_mass))
        return n, rate, mu, mass, buckets

    @functools.cached_property
    def _mixture(self) -> subsampled_gaussian.GaussianBuckets:
        return subsampled_gaussian.buckets_upper(*self.arguments(), self.summed)

    @functools.cached_property
    def mixture_below(self) -> subsampled_gaussian.GaussianBuckets:
        """The sum's mixture from below."""
        return subsampled_gaussian.buckets_lower(*self.arguments(), True)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return subsampled_gaussian.profile_upper(self._mixture, loss)


@dataclasses.dataclass(frozen=True)
class GaussianSum:
    """The sum of Gaussian messages with all other clients at one record."""

    scale: UnitBound
    messages: ShuffledGaussian

    name = "subsampled Gaussian sum, all others at one record"
    symmetric = False
    below_scale = True

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        return subsampled_gaussian.lines_lower(self.messages.mixture_below, loss)


@dataclasses.dataclass(frozen=True)
class LocalPureLDP(OwnInstance):
    """One client's own messages, seen with its name: randomized response, sent with probability rate. Exact."""

    rate: float
    epsilon0: float

    name = "randomized response sent at the check-in rate (exact)"
    symmetric = True

    @property
    def top(self) -> float:
        return self.epsilon0

    def upper(self, loss: np.ndarray) -> Values:
        # (p - c)_+ / (p + 1), divided through by p.
        room = np.maximum(-np.expm1(loss - self.epsilon0), 0.0) / (1.0 + math.exp(-self.epsilon0))
        return self.rate * room * (1.0 + ROUNDING)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        inside = loss < self.epsilon0
        p_mass = self.rate / (1.0 + math.exp(-self.epsilon0))
        difference = np.where(inside, p_mass * -math.expm1(-self.epsilon0) * (1.0 - ROUNDING), 0.0)
        lines = difference, np.where(inside, p_mass * math.exp(-self.epsilon0), 0.0)
        return lines, lines


@dataclasses.dataclass(frozen=True)
class LocalGaussian(OwnInstance):
    """One client's own Gaussian messages, seen with its name, sent with probability rate. Exact."""

    rate: float
    mu: float

    name = "the Gaussian mechanism, sent at the check-in rate (exact)"
    symmetric = True
    top = math.inf

    def _mixture(self) -> subsampled_gaussian.GaussianBuckets:
        # A participation rate of one, seen with probability `rate`.
        mu, one, rate = (host([value]) for value in (self.mu, 1.0, self.rate))
        return subsampled_gaussian.GaussianBuckets(mu, one, rate, host(0.0))

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return subsampled_gaussian.profile_upper(self._mixture(), loss)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        lines, _ = subsampled_gaussian.lines_lower(self._mixture(), loss)
        return lines, lines


@dataclasses.dataclass(frozen=True)
class LocalOnly:
    """The local bound in a view for which no theorem applies: whoever sees less than named messages learns no more."""

    local: UnitBound

    instances: tuple[Instance, ...] = ()
    name = "the local bound (no theorem that applies here counts a gain)"

    @property
    def top(self) -> float:
        return self.local.top

    def upper(self, loss: np.ndarray) -> Values:
        return self.local.upper(loss)


@dataclasses.dataclass(frozen=True)
class LocalMessages:
    """One client's own messages, seen with its name, sent with probability rate; by their privacy profile."""

    rate: float
    profile: Profile
    instances: tuple[Instance, ...] = ()

    name = "one message, sent at the check-in rate"

    @property
    def top(self) -> float:
        return self.profile.top

    def upper(self, loss: np.ndarray) -> Values:
        return np.minimum(self.rate * self.profile.delta(np.asarray(loss)) * (1.0 + ROUNDING), 1.0)


# Bounds on one client's own messages: those that are exact, and all.
Exact = LocalPureLDP | LocalGaussian
Local = LocalPureLDP | LocalGaussian | LocalMessages


@dataclasses.dataclass(frozen=True, eq=False)
class LocalLabels:
    """A concrete pair of records seen through labels, sent with probability rate."""

    scale: UnitBound
    rate: float
    laws: LabelLaws

    symmetric = False

    @property
    def name(self) -> str:
        return self.laws.name

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        target, other = (np.asarray(part, dtype=np.float64) for part in self.laws[:2])

        def lines(first: np.ndarray, second: np.ndarray) -> Lines:
            inside = first > np.exp(np.minimum(loss, MAX_LOSS))[:, None] * second
            apart = np.sum(np.where(inside, first - second, 0.0), axis=1)
            return (
                np.maximum(self.rate * apart * (1.0 - ROUNDING), 0.0),
                self.rate * np.sum(np.where(inside, second, 0.0), axis=1) * (1.0 + ROUNDING),
            )

        return lines(target, other), lines(other, target)


@dataclasses.dataclass(frozen=True)
class Least:
    """Several bounds on the same unit, the smallest at every loss; instances from anywhere."""

    bounds: tuple[UnitBound, ...]
    instances: tuple[Instance, ...] = ()

    @property
    def name(self) -> str:
        return self.named(range(len(self.bounds)))

    def named(self, which: Iterable[int], loss: np.ndarray | None = None) -> str:
        """Names of these bounds; of what they are made of themselves, what is smallest at one of the losses."""
        chosen = [self.bounds[i] for i in which]
        theorems = [each for each in chosen if not isinstance(each, Local)]
        names = [
            each.name
            if loss is None or not isinstance(each, Least)
            else each.named(each.smallest(loss), loss)
            for each in theorems or chosen
        ]
        return " and ".join(dict.fromkeys(names))

    @property
    def top(self) -> float:
        return min(each.top for each in self.bounds)

    @functools.cached_property
    def _evaluated(self) -> dict[tuple[tuple[int, ...], bytes], np.ndarray]:
        return {}

    def values(self, loss: np.ndarray) -> np.ndarray:
        """The bounds at the losses, [bounds, 1, losses], or [bounds, 2, losses] if directed; remembered for a while."""
        known, key = self._evaluated, (np.shape(loss), np.asarray(loss).tobytes())
        if key not in known:
            while len(known) >= _REMEMBERED:
                del known[next(iter(known))]
            known[key] = self._values(loss)
        return known[key]

    def _values(self, loss: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(each.upper(loss))[None] for each in self.bounds])

    def smallest(self, loss: np.ndarray) -> list[int]:
        """Which bounds are smallest at one of the losses: of few names, and the first of those that are as good."""
        values = self.values(loss)
        as_good = values <= values.min(axis=0) * (1.0 + _AS_GOOD)
        names = np.array([each.name for each in self.bounds])
        for name in dict.fromkeys(names[np.unique(np.argmax(as_good, axis=0))].tolist()):
            others = as_good & (names != name)[:, None, None]
            if others.any(axis=0).all():
                as_good = others
        return np.unique(np.argmax(as_good, axis=0)).tolist()

    def upper(self, loss: np.ndarray) -> Values:
        return self.values(loss).min(axis=0)[0]


@dataclasses.dataclass(frozen=True)
class LeastDirected(Directed, Least):
    """`Least` of bounds at least one of which is directed: the smallest in either direction."""

    def _values(self, loss: np.ndarray) -> np.ndarray:
        return np.stack([np.stack([np.asarray(v) for v in upper_sides(each, loss)]) for each in self.bounds])

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        forward, backward = self.values(loss).min(axis=0)
        return forward, backward


def least(bounds: Sequence[UnitBound], instances: Sequence[Instance] = ()) -> UnitBound:
    """The smallest of several bounds on one unit at every loss, with these instances.

    An instance whose grid is made from one of the bounds has it made from the smallest.
    """
    kind = LeastDirected if any(isinstance(each, Directed) for each in bounds) else Least
    found = kind(tuple(bounds))
    scaled = tuple(
        dataclasses.replace(each, scale=found)  # type: ignore[type-var]
        if rescalable(each) and any(each.scale is bound for bound in bounds)
        else each
        for each in instances
    )
    return dataclasses.replace(found, instances=scaled)
