"""Renyi differential privacy of runs with eps0-LDP or Gaussian messages, at any real order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax.accounting.bounds import renyi_bounds as moments
from checkin_jax.accounting.bounds import table
from checkin_jax.accounting.bounds.interface import MAX_LOSS, UnitBound, least
from checkin_jax.accounting.bounds.messages.gaussian_labels import labels_of
from checkin_jax.accounting.bounds.select import (
    BEST,
    FAST_ONES,
    built_bounds,
    check_alike,
    check_protocol,
    check_randomizer,
)
from checkin_jax.accounting.bounds.table import Bound
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.composition.laws import sides_above
from checkin_jax.kernels import FLUSHED, conversions, host
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.kernels.messages import gaussian_moments
from checkin_jax.kernels.messages.gaussian_moments import Labels
from checkin_jax.protocols import REPLACE, VIEWS, CheckInProtocol
from checkin_jax.randomizers import MAX_EPSILON0, Randomizer

# Neighbouring knots differ by half a percent; what that adds to a moment is of second order, below 1e-5.
_KNOTS = 4096
# Below, kernels underflow; a single message leaks practically nothing.
_MIN_EPSILON0 = 1e-9
_ALONE = "a message by itself"
# -log of the mass that units of Gaussian messages leave out: of G1, whose counts beyond it are bounded apart, and of
# others, which are a floor beside it. Bounds that take longer are not tried.
_MASS, _OTHERS_MASS, _SECONDS = 100.0, 300.0, 1.0
_MOST_TILT = 1e6
# Further knots for others, and the node of G1 up to which they lie: twelve deviations of the noise.
_FINE, _FINE_UP_TO = 512, 400
# Searches for the best order, each around the last one's.
_SEARCHES = 12


@named
def rdp(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    orders: Sequence[float] | np.ndarray,
    *,
    view: str = "messages",
) -> np.ndarray:
    """Upper bound on the Renyi divergence of a whole run at each order; certified.

    Theorem: the pairs of T1, T1h and T2 (all slots counted) by their own moments (`kernels.composition.moments`), G1,
    G4 and R1 of Gaussian messages by those of subsampled Gaussians (`kernels.messages.gaussian_moments`), other bounds
    on eps0-LDP messages through their privacy profile, whichever is smallest, and never more than each message by
    itself; replace-one, both directions, units chosen adaptively.

    Args:
      protocol: the run.
      randomizer: eps0-LDP or Gaussian messages. (Gaussian ones behind a shuffler have lognormal moments: large orders
        say little about them, and `account` composes their privacy loss distribution.)
      orders: real numbers > 1, shape [orders].
      view: the adversary, as in `account`.

    Returns:
      float64 [orders], nats over all units, rounded up; an order's value does not depend on the other orders. Relative
      excess over the pair's own value below 0.1% where order times the divergence of a round is small, as it is where
      RDP is used; at orders ruled by events rarer than 1e-12 up to a factor of 4 for n in the hundreds. Exact to 2e-8
      for n <= 48.

    Raises:
      TypeError, ValueError: an order that is not a number above 1, or a randomizer whose divergences are infinite or
        not known.

    Examples:
      >>> import checkin_jax as cj
      >>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1)
      >>> [f"{value:.3e}" for value in cj.rdp(run, cj.PureLDP(epsilon0=2.0), [2.0, 32.0])]
      ['1.623e-05', '2.598e-04']
    """
    return unit_curve(protocol, randomizer, view).curve(check_orders(orders)).values


@named
def epsilon_by_rdp(
    protocol: CheckInProtocol, randomizer: Randomizer, *, delta: float, view: str = "messages"
) -> tuple[float, float]:
    """(epsilon, order): the smallest epsilon that `rdp` gives at delta, over real orders; certified.

    [CKS20], Proposition 12, as in `kernels.conversions`; whichever order is taken, the bound holds. `account` is never
    above it: it composes privacy loss distributions, and at extreme settings takes this conversion where it is smaller.

    Args:
      protocol: the run.
      randomizer: as in `rdp`.
      view: as in `rdp`.
      delta: in (0, 1).

    Raises:
      TypeError, ValueError: as `rdp`, or a delta outside its range.

    Examples:
      >>> import checkin_jax as cj
      >>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=1000)
      >>> epsilon, order = cj.epsilon_by_rdp(run, cj.PureLDP(epsilon0=2.0), delta=1e-6)
      >>> f"{epsilon:.3f}"
      '0.556'
    """
    delta = _validate.real(0, 1, open_low=True, open_high=True, delta=delta)
    return unit_curve(protocol, randomizer, view).best(delta)[:2]


class Curve(NamedTuple):
    """Renyi divergences of a whole run, [orders], and what each rests on."""

    values: np.ndarray
    names: list[str]


@dataclasses.dataclass(frozen=True)
class UnitCurve:
    """A run of eps0-LDP messages whose Renyi divergences are asked for, checked."""

    protocol: CheckInProtocol
    randomizer: Randomizer
    view: str
    epsilon0: float

    def local(self, orders: np.ndarray) -> np.ndarray:
        """Of each message by itself (Proposition 3.3 of [BS16]), over all units; never below the least float64 > 0."""
        if self.epsilon0 == 0.0:
            return np.zeros(len(orders))
        alone = np.minimum(0.5 * orders * self.epsilon0**2 * (1.0 + 1e-12), self.epsilon0)
        return np.maximum(alone, np.finfo(np.float64).tiny) * self.protocol.repeats

    def bounds(self, mass: float) -> list[tuple[str, UnitBound]]:
        """The bounds on a unit that may leave out exp(-mass), by word; call inside `float64()`."""
        if self.epsilon0 < _MIN_EPSILON0 or self.view == "local":
            return []
        # B0 and own laws are slower, and far below where they hold.
        tried = FAST_ONES if self.randomizer.one_bit is None else BEST
        unit = Unit(self.protocol, self.randomizer, "messages", REPLACE, mass)
        return [] if unit.alone else [(bound.word, made) for bound, made in built_bounds(unit, tried)]

    def curve(self, orders: np.ndarray) -> Curve:
        """At real orders > 1, each by itself."""
        found: list[tuple[str, np.ndarray, np.ndarray]] = []
        with float64():
            masses = moments.left_out(orders, self.epsilon0)
            for mass in np.unique(masses):
                where = np.flatnonzero(masses == mass)
                built = self.bounds(float(mass))
                mixed = [(label, moments.mixture_of(each)) for label, each in built]
                for label, mixture in mixed:
                    if mixture is not None:
                        found.append((label, where, moments.log_moments(mixture, orders[where])))
                if any(mixture is None for _, mixture in mixed):
                    label = " and ".join(dict.fromkeys(label for label, _ in built))
                    tried = [each for _, each in built]
                    found.append((label, where, _by_profile(tried, self.epsilon0, orders[where])))
        return self.joined(orders, found)

    def best(self, delta: float) -> tuple[float, float, str]:
        """epsilon at delta, its order and what it rests on: nine orders at a time around the best one so far."""
        log_delta = math.log(delta)
        found = (math.inf, 2.0, _ALONE)
        # Divergences are nearly proportional to their orders where these matter.
        slope = max(float(self.curve(np.array([2.0])).values[0]) / 2.0, 1e-300)
        centre, width = min(max(math.sqrt(-log_delta / slope), 1e-3), 1e9), 8.0
        for _ in range(_SEARCHES):
            orders = 1.0 + centre * width ** np.linspace(-1.0, 1.0, 9)
            here = self.curve(orders)
            with float64(), np.errstate(over="ignore"):
                columns = host(orders), host(here.values * (orders - 1.0)), host(log_delta)
                epsilon = np.asarray(conversions.epsilon_from_log_moments(*columns))
            place = int(np.argmin(epsilon))
            if epsilon[place] < found[0]:
                found = (float(epsilon[place]), float(orders[place]), here.names[place])
            centre = float(orders[place]) - 1.0
            if 0 < place < 8:
                width **= 0.3
            if width < 1.02:
                break
        return found

    def joined(self, orders: np.ndarray, found: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> Curve:
        """The smallest of log moments (name, places among the orders, values) and of a message by itself."""
        values, names = self.local(orders), np.full(len(orders), _ALONE, dtype=object)
        for name, where, log_moments in found:
            with np.errstate(over="ignore"):
                these = self.protocol.repeats * log_moments / (orders[where] - 1.0) * (1.0 + 1e-12)
            names[where[these < values[where]]] = name
            values[where] = np.minimum(values[where], these)
        return Curve(values, names.tolist())


@dataclasses.dataclass(frozen=True)
class GaussianCurve(UnitCurve):
    """The same of Gaussian messages."""

    mu: float

    def local(self, orders: np.ndarray) -> np.ndarray:
        """Of each message by itself, sent with the unit's probability: exact."""
        rate = self._unit(_MASS).rate
        with np.errstate(divide="ignore", over="ignore"):
            size = 0.5 * orders * (orders - 1.0) * self.mu**2
            apart = np.logaddexp(np.log1p(-rate), np.log(rate) + size)
            moment = np.where(size < 1.0, np.log1p(rate * np.expm1(np.minimum(size, 1.0))), apart)
            # Beyond, the rate makes no difference.
            each = np.where(size < 1e300, moment / (orders - 1.0), 0.5 * orders * self.mu**2)
        return each * (1.0 + 1e-12) * self.protocol.repeats

    def _unit(self, mass: float) -> Unit:
        return Unit(self.protocol, self.randomizer, self.view, REPLACE, mass)

    def curve(self, orders: np.ndarray) -> Curve:
        """At real orders > 1, each by itself."""
        unit = self._unit(_MASS)
        if unit.alone or self.view == "local":
            return self.joined(orders, [])
        with float64():
            made = [(bound, one) for bound in table.BOUNDS if (one := bound.build(unit)) is not None]
            found = [(bound, one, labels_of(one, self.mu)) for bound, one in made]
            known = [(bound, one, labels) for bound, one, labels in found if labels is not None]
            if not known:
                return self.joined(orders, [])
            first, _, labels = known[0]
            others = self._others(first)
            label = " and ".join(dict.fromkeys([first.word, *(bound.word for bound, _ in others)]))
            moments = self._moments(labels, [one for _, one in others], orders)
        return self.joined(orders, [(label, np.arange(len(orders)), moments)])

    def _others(self, but: Bound) -> list[tuple[Bound, UnitBound]]:
        """Other bounds on the unit, that take a second at most."""
        unit = self._unit(_OTHERS_MASS)
        tried = [bound for bound in table.BOUNDS if bound.seconds <= _SECONDS and bound is not but]
        made = [(bound, one) for bound in tried if (one := bound.build(unit)) is not None]
        included = {label for _, one in made for label in getattr(one, "includes", ())}
        return [each for each in made if each[0].theorem not in included]

    def _moments(self, labels: Labels, others: Sequence[UnitBound], orders: np.ndarray) -> np.ndarray:
        """log A of a unit with these labels, whose profile is that of the others where that is smaller."""
        tops, found = gaussian_moments.tops(labels, orders), np.full(len(orders), np.inf)
        # Beyond, a message by itself says as much.
        for top in np.unique(tops[tops * float(np.max(labels.mu)) < _MOST_TILT]):
            losses, where = gaussian_moments.nodes(labels, float(top)), tops == top
            if others:
                # Other bounds may fall on a finer scale.
                fine = np.geomspace(1e-4 * losses[1], losses[min(_FINE_UP_TO, len(losses) - 1)], _FINE)
                losses = np.unique(np.append(losses, fine))
            values = np.array(gaussian_moments.log_profile(labels, host(losses)))
            near = losses <= MAX_LOSS
            for one in others:
                with np.errstate(divide="ignore"):
                    here = np.log(np.asarray(one.upper(losses[near])))
                values[near] = np.minimum(values[near], here)
            columns = (host(part) for part in (losses, values, orders[where]))
            found[where] = np.asarray(gaussian_moments.log_moments(labels, *columns))
        return found


def unit_curve(protocol: CheckInProtocol, randomizer: Randomizer, view: str = "messages") -> UnitCurve:
    """Checks the arguments of `rdp` besides the orders.

    Raises:
      TypeError, ValueError: as `rdp`.
    """
    epsilon0, mu = check_randomizer(randomizer).largest_loss, randomizer.gaussian_mu
    check_alike(check_protocol(protocol))
    _validate.choice(VIEWS, view=view)
    if mu is not None:
        return GaussianCurve(protocol, randomizer, view, epsilon0, mu)
    if epsilon0 > MAX_EPSILON0:
        raise TypeError(
            f"randomizer={_validate.shown(randomizer)}: expected one with pure local privacy, such as PureLDP, or "
            "Gaussian"
        )
    return UnitCurve(protocol, randomizer, view, epsilon0)


def _by_profile(built: Sequence[UnitBound], epsilon0: float, orders: np.ndarray) -> np.ndarray:
    """Log moments of the smallest of several bounds at every loss."""
    one = least(built) if len(built) > 1 else built[0]
    losses = np.append(0.0, epsilon0 * np.geomspace(1e-9, 1.0, _KNOTS))
    side, _ = sides_above(one, losses)
    if float(side.lost) > 4.0 * FLUSHED:
        # A mass at infinite loss: no moment is finite.
        return np.full(len(orders), math.inf)
    return np.asarray(pld.symmetric_log_moments(host(losses), side, host(orders - 1.0)))


def check_orders(orders: Sequence[float] | np.ndarray) -> np.ndarray:
    """The orders as float64. Raises TypeError, ValueError unless they are numbers above 1, one at least."""
    try:
        listed = list(orders)
    except TypeError:
        listed = []
    if not listed:
        raise TypeError(
            f"orders={_validate.shown(orders)}: expected a sequence of at least one number above 1"
        )
    return np.array(
        [_validate.real(1, math.inf, open_low=True, open_high=True, orders=each) for each in listed]
    )
