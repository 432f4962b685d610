"""Interfaces between theorems and composition: upper bounds on one unit, and witnesses that bound it from below.

`UnitBound.upper(loss)` bounds the hockey-stick divergence at e^loss from above in both directions, for losses >= 0 in
nats. An `AsymmetricBound` has one value for each direction; the run is then composed in both orders. A `Witness` is a
concrete pair (P, Q), below which no bound can be. `Witness.lower(loss)` gives (P(A) - Q(A), Q(A)) for P||Q and for
Q||P, A an event near {privacy loss > loss}. Call inside `devices.float64()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from jax import Array

from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import subsampled_gaussian
from checkin_jax.randomizers import LabelLaws

# c = e^loss overflows float64 beyond; mass at larger losses counts at infinite loss.
MAX_LOSS = 690.0
# Evaluations that one `Minimum` caches.
_REMEMBERED = 16
# A bound within this relative distance of the smallest ties with it.
_AS_GOOD = 1e-9

Values = Array | np.ndarray
Lines = tuple[Values, Values]


class UnitBound(Protocol):
    """An upper bound on one unit.

    Optional attributes: sharp (True if a finer grid is worth its time: witnesses are within the discretization error),
    includes (theorems that are never below this bound), sides_below(loss, least) (`upper_sides`, or ones if neither is
    below `least` at any loss).
    """

    @property
    def largest_loss(self) -> float:
        """Largest privacy loss; may be infinite."""
        ...

    @property
    def name(self) -> str:
        """Word of the bound, for `method` and statements."""
        ...

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        """Concrete pairs, each composed separately; the largest result is the lower end."""
        ...

    def upper(self, loss: np.ndarray) -> Values: ...


class AsymmetricBound:
    """An upper bound whose directions P||Q and Q||P differ, for instance with P the law with the client.

    A subclass defines `side`, or `upper_sides` where both directions together are cheaper.
    """

    largest_loss = math.inf

    @property
    def asymmetric(self) -> bool:
        """True unless both directions of this bound are known to be the same."""
        return True

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        """None, unless a subclass has some."""
        return ()

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds on H(P||Q) and on H(Q||P) at e^loss, loss >= 0."""
        return self.side(loss, False), self.side(loss, True)

    def side(self, loss: np.ndarray, backward: bool) -> np.ndarray:
        """Upper bound on H(P||Q), or on H(Q||P) if `backward`."""
        return self.upper_sides(loss)[backward]

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return np.maximum(*self.upper_sides(loss))


def upper_sides(one: UnitBound, loss: np.ndarray) -> tuple[Values, Values]:
    """Upper bounds on H(P||Q) and on H(Q||P); one object unless the bound is asymmetric."""
    if isinstance(one, AsymmetricBound | Minimum):
        return one.upper_sides(loss)
    value = one.upper(loss)
    return value, value


def is_asymmetric(one: UnitBound) -> bool:
    """True if the directions P||Q and Q||P of the bound differ."""
    return getattr(one, "asymmetric", False)


class EqualDraws(NamedTuple):
    """Labels of independent draws of one law, one of which is the target's with probability `used`.

    number: of draws, each of which sends its label with probability `rate`.
    """

    number: int
    rate: float
    used: float
    laws: LabelLaws


def binary_laws(epsilon0: float, others: np.ndarray | None = None) -> LabelLaws:
    """Labels of binary randomized response; all others' labels have the law `others`."""
    often, seldom = 1.0 / (1.0 + math.exp(-epsilon0)), 1.0 / (1.0 + math.exp(epsilon0))
    both, apart = np.array([often, seldom]), math.tanh(0.5 * epsilon0)
    return LabelLaws(both, both[::-1], "", others, np.array([apart, -apart]))


class Witness(Protocol):
    """A concrete pair (P, Q) of laws of one unit.

    Optional attributes: below_grid_bound (True if `grid_bound` is a proven upper bound on the pair), loss_support
    (absolute losses of all outcomes, [outcomes], in any order, beside which a grid is then much finer; empty if they
    are many), needs (the mechanism that a randomizer must include), single (True if the view must show single messages,
    not sums), revealed (probability under P of outcomes that Q never gives, rounded down), equal_draws (the
    `EqualDraws` of which the pair is made).
    """

    @property
    def grid_bound(self) -> UnitBound:
        """Bound from which the witness's grids are made; it affects sharpness only."""
        ...

    @property
    def symmetric(self) -> bool:
        """True if H(P||Q) = H(Q||P) at every loss."""
        ...

    @property
    def name(self) -> str:
        """Name of the mechanism, for statements."""
        ...

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]: ...


def revealed(witness: Witness) -> float:
    """Probability under P of outcomes that Q never gives, rounded down; zero unless the witness declares it."""
    return getattr(witness, "revealed", 0.0)


def on_grid_of(bound: UnitBound, witness: Witness) -> Witness:
    """The witness with this grid bound; unchanged if it computes its own, which is then no dataclass field."""
    given = dataclasses.is_dataclass(witness) and "grid_bound" in witness.__dataclass_fields__
    return dataclasses.replace(witness, grid_bound=bound) if given else witness  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True, eq=False)
class EventProfile:
    """Grid bound made of a witness's own events: 1.001 max(P(A) - e^loss Q(A), Q(A) - e^loss P(A)).

    largest_loss: largest privacy loss of the witness; may be infinite.
    """

    witness: Witness
    largest_loss: float = math.inf

    name = "a witness by itself"
    witnesses = ()

    def upper(self, loss: np.ndarray) -> np.ndarray:
        above = np.expm1(np.minimum(loss, MAX_LOSS))
        sides = [np.asarray(apart) - above * np.asarray(mass) for apart, mass in self.witness.lower(loss)]
        return np.clip(np.maximum(*sides) * 1.001, 0.0, 1.0)


class OwnEvents:
    """Base of witnesses whose grids are made of their own events.

    largest_loss: largest privacy loss of the witness; may be infinite.
    """

    largest_loss: float

    symmetric = False
    below_grid_bound = True

    @property
    def grid_bound(self) -> UnitBound:
        return EventProfile(self, self.largest_loss)  # type: ignore[arg-type]


class Profile(Protocol):
    """The privacy profile of one message: D(e^loss), the largest divergence over all pairs of inputs."""

    @property
    def name(self) -> str: ...

    @property
    def largest_loss(self) -> float:
        """Largest privacy loss; may be infinite."""
        ...

    def delta(self, loss: np.ndarray) -> np.ndarray:
        """D at e^loss, loss >= 0, any shape; relative error below 5e-12."""
        ...


class OwnWitness:
    """Base of exact bounds: a concrete pair, which is its own witness and grid bound."""

    below_grid_bound = True

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return (self,)  # type: ignore[return-value]

    @property
    def grid_bound(self) -> UnitBound:
        return self  # type: ignore[return-value]


def neg_log_tail(total: float, delta: float) -> float:
    """-log of the mass that one unit may drop; `total` units together drop less than 1e-7 delta."""
    return math.log(total) - math.log(delta) + 17.0


def bucket_count(mean: float) -> int:
    """Buckets for a count of this mean: about 0.04% error in epsilon; few sizes, since each compiles once."""
    wanted = 3600.0 / math.sqrt(max(mean, 1.0))
    return next((size for size in (16, 64, 128) if size >= wanted), 256)


@dataclasses.dataclass(frozen=True)
class LocalPureLDP(OwnWitness):
    """Local view of eps0-LDP messages: randomized response, sent with probability `rate`. Exact."""

    rate: float
    epsilon0: float

    name = "randomized response sent at the check-in rate (exact)"
    symmetric = True

    @property
    def largest_loss(self) -> float:
        return self.epsilon0

    @property
    def equal_draws(self) -> EqualDraws:
        return EqualDraws(1, self.rate, 1.0, binary_laws(self.epsilon0))

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
class LocalGaussian(OwnWitness):
    """Local view of Gaussian messages, sent with probability `rate`. Exact."""

    rate: float
    mu: float

    name = "the Gaussian mechanism, sent at the check-in rate (exact)"
    symmetric = True
    largest_loss = math.inf

    def _mixture(self) -> subsampled_gaussian.GaussianBuckets:
        # One label of weight `rate`, whose sampling rate is 1.
        mu, one, rate = (host([value]) for value in (self.mu, 1.0, self.rate))
        return subsampled_gaussian.GaussianBuckets(mu, one, rate, host(0.0))

    def upper(self, loss: np.ndarray) -> np.ndarray:
        return subsampled_gaussian.profile_upper(self._mixture(), loss)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        lines, _ = subsampled_gaussian.lines_lower(self._mixture(), loss)
        return lines, lines


@dataclasses.dataclass(frozen=True)
class LocalOnly:
    """The local bound in a weaker view, a post-processing of named messages, where no other bound was built."""

    local: UnitBound

    witnesses: tuple[Witness, ...] = ()
    name = "local-view bound (no bound that was tried counts a gain)"

    @property
    def largest_loss(self) -> float:
        return self.local.largest_loss

    def upper(self, loss: np.ndarray) -> Values:
        return self.local.upper(loss)


@dataclasses.dataclass(frozen=True)
class LocalMessages:
    """Local view of messages with a known privacy profile D, sent with probability `rate`: H <= rate D."""

    rate: float
    profile: Profile
    witnesses: tuple[Witness, ...] = ()

    name = "one message, sent at the check-in rate"

    @property
    def largest_loss(self) -> float:
        return self.profile.largest_loss

    def upper(self, loss: np.ndarray) -> Values:
        return np.minimum(self.rate * self.profile.delta(np.asarray(loss)) * (1.0 + ROUNDING), 1.0)


# Bounds in the local view: exact ones, and all.
Exact = LocalPureLDP | LocalGaussian
Local = LocalPureLDP | LocalGaussian | LocalMessages


@dataclasses.dataclass(frozen=True, eq=False)
class LocalLabels:
    """Witness of the local view: two records, observed through finitely many labels, sent with probability `rate`.

    follows_outcomes: True for grids that follow the losses of the labels.
    """

    grid_bound: UnitBound
    rate: float
    laws: LabelLaws
    follows_outcomes: bool = False

    symmetric = False

    @property
    def name(self) -> str:
        return self.laws.name

    @property
    def equal_draws(self) -> EqualDraws:
        return EqualDraws(1, self.rate, 1.0, self.laws)

    @property
    def revealed(self) -> float:
        return self.rate * self.laws.revealed * (1.0 - ROUNDING)

    @property
    def loss_support(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            losses = np.abs(np.log1p(self.laws.difference / np.asarray(self.laws.other)))
        return losses if self.follows_outcomes and np.isfinite(losses).all() else np.empty(0)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        target, other = (np.asarray(part, dtype=np.float64) for part in self.laws[:2])

        def lines(difference: np.ndarray, second: np.ndarray) -> Lines:
            inside = difference > np.expm1(np.minimum(loss, MAX_LOSS))[:, None] * second
            apart = np.sum(np.where(inside, difference, 0.0), axis=1)
            return (
                np.maximum(self.rate * apart * (1.0 - ROUNDING), 0.0),
                self.rate * np.sum(np.where(inside, second, 0.0), axis=1) * (1.0 + ROUNDING),
            )

        return lines(self.laws.difference, other), lines(-self.laws.difference, target)


@dataclasses.dataclass(frozen=True)
class Minimum:
    """The pointwise minimum of several bounds on one unit; its witnesses are given separately."""

    bounds: tuple[UnitBound, ...]
    witnesses: tuple[Witness, ...] = ()

    @property
    def name(self) -> str:
        return self.named(range(len(self.bounds)))

    def named(self, which: Iterable[int], loss: np.ndarray | None = None) -> str:
        """Names of these bounds; a nested `Minimum` is named by its bounds that are smallest at one of the losses."""
        chosen = [self.bounds[i] for i in which]
        theorems = [each for each in chosen if not isinstance(each, Local)]
        names = [
            each.name
            if loss is None or not isinstance(each, Minimum)
            else each.named(each.smallest(loss), loss)
            for each in theorems or chosen
        ]
        return " and ".join(dict.fromkeys(names))

    @property
    def largest_loss(self) -> float:
        return min(each.largest_loss for each in self.bounds)

    @property
    def sharp(self) -> bool:
        return any(getattr(each, "sharp", False) for each in self.bounds)

    @property
    def chi_square(self) -> float:
        """Upper bound on E_Q (P/Q - 1)^2 in both directions."""
        return min(getattr(each, "chi_square", math.inf) for each in self.bounds)

    @property
    def includes(self) -> tuple[str, ...]:
        """Theorems that one of the bounds includes."""
        return tuple(label for each in self.bounds for label in getattr(each, "includes", ()))

    @functools.cached_property
    def asymmetric(self) -> bool:
        """True if one of the bounds is: the minimum is then taken in each direction."""
        return any(map(is_asymmetric, self.bounds))

    @functools.cached_property
    def _evaluated(self) -> dict[tuple[tuple[int, ...], bytes], np.ndarray]:
        return {}

    def values(self, loss: np.ndarray) -> np.ndarray:
        """Bounds at the losses: [bounds, 1, losses], or [bounds, 2, losses] if asymmetric. Recent ones are cached."""
        known, key = self._evaluated, (np.shape(loss), np.asarray(loss).tobytes())
        if key not in known:
            while len(known) >= _REMEMBERED:
                del known[next(iter(known))]
            known[key] = self._values(loss)
        return known[key]

    def _values(self, loss: np.ndarray) -> np.ndarray:
        sides = (2 if self.asymmetric else 1, *np.shape(loss))
        found, least = np.ones((len(self.bounds), *sides)), np.ones(sides)
        # Bounds that stop where others are below come last.
        for i, each in sorted(enumerate(self.bounds), key=lambda pair: hasattr(pair[1], "sides_below")):
            below = getattr(each, "sides_below", None)
            both = upper_sides(each, loss) if below is None else below(loss, least)
            found[i] = np.stack([*map(np.asarray, both)])[: len(least)]
            least = np.minimum(least, found[i])
        return found

    def smallest(self, loss: np.ndarray) -> list[int]:
        """Indices of bounds that attain the minimum at some loss, up to 1e-9; few names, and the first of tied ones."""
        values = self.values(loss)
        as_good = values <= values.min(axis=0) * (1.0 + _AS_GOOD)
        names = np.array([each.name for each in self.bounds])
        for name in dict.fromkeys(names[np.unique(np.argmax(as_good, axis=0))].tolist()):
            others = as_good & (names != name)[:, None, None]
            if others.any(axis=0).all():
                as_good = others
        return np.unique(np.argmax(as_good, axis=0)).tolist()

    def upper(self, loss: np.ndarray) -> Values:
        return self.values(loss).min(axis=0).max(axis=0)

    def upper_sides(self, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds on H(P||Q) and on H(Q||P); one object unless asymmetric."""
        forward, *backward = self.values(loss).min(axis=0)
        return forward, backward[0] if backward else forward


def minimum(bounds: Sequence[UnitBound], witnesses: Sequence[Witness] = ()) -> Minimum:
    """The pointwise minimum of several bounds on one unit, with these witnesses.

    A witness whose grid bound is one of the bounds gets the minimum instead.
    """
    found = Minimum(tuple(bounds))
    scaled = (
        on_grid_of(found, each) if any(each.grid_bound is bound for bound in bounds) else each
        for each in witnesses
    )
    return dataclasses.replace(found, witnesses=tuple(scaled))
