"""Bounds on the Renyi divergence of runs at real orders: upper ones for eps0-LDP or Gaussian messages; lower ones."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax.accounting.bounds import table
from checkin_jax.accounting.bounds.clones_bounds import SPREADS, Mixture
from checkin_jax.accounting.bounds.interface import MAX_LOSS, UnitBound, Witness, minimum
from checkin_jax.accounting.bounds.messages.gaussian_labels import labels_of
from checkin_jax.accounting.bounds.select import (
    BEST,
    FAST_ONES,
    built_bounds,
    check_identical_units,
    check_protocol,
    check_randomizer,
    not_included,
    unit_bound,
)
from checkin_jax.accounting.bounds.table import Bound
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.composition.search import sides_above
from checkin_jax.kernels import FLUSHED, host
from checkin_jax.kernels.clones import SMALL, Buckets, MixtureLaw, buckets_upper
from checkin_jax.kernels.composition import moments, pld
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.kernels.messages import gaussian_moments
from checkin_jax.kernels.messages.gaussian_moments import Labels
from checkin_jax.protocols import REPLACE, VIEWS, CheckInProtocol
from checkin_jax.randomizers import MAX_EPSILON0, Randomizer

# Successive knots differ by half a percent, which adds a relative second-order error below 1e-5 to a moment.
_KNOTS = 4096
# Kernels underflow below this epsilon0; the bound of a single message is then practically zero.
MIN_EPSILON0 = 1e-9
_ALONE = "a message by itself"
# -log of the negligible mass of units of Gaussian messages: for G1, whose counts beyond are bounded separately, and for
# other bounds; and the cost of a bound above which it is not tried.
_MASS, _OTHERS_MASS, _SECONDS = 100.0, 300.0, 1.0
_MOST_TILT = 1e6
# Further knots for other bounds, and the node of G1 up to which they lie: twelve standard deviations of the noise.
_FINE, _FINE_UP_TO = 512, 400
# Refinements of the best order.
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

    The smallest of these bounds, for replace-one, in both directions, units chosen adaptively: clones (T1, T1h, T2) by
    the moments of their pairs (`kernels.composition.moments`); subsampling (G1, G4, R1) of Gaussian messages by the
    moments of subsampled Gaussians (`kernels.messages.gaussian_moments`); other bounds on eps0-LDP messages by their
    privacy profile; the local view.

    Args:
      protocol: the run.
      randomizer: eps0-LDP or Gaussian messages. (Shuffled Gaussian messages have lognormal moments: large orders are
        loose, and `account` composes their privacy loss distribution.)
      orders: real numbers > 1, shape [orders].
      view: the adversary, as in `account`.

    Returns:
      float64 [orders], nats over all units, rounded up. The value at an order does not depend on the other orders. Its
      relative excess over the pair's moment is below 0.1% if order times the divergence of one round is small, as where
      RDP is used. At orders dominated by events rarer than 1e-12 it is larger: up to a factor of 50 was measured for
      200 messages a round. It is at most 2e-8 for n <= 48.

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
    """(epsilon, order): the smallest epsilon from `rdp` at delta, over real orders; certified.

    The conversion is [CKS20], Proposition 12 (`kernels.composition.pld`), valid at every order. `account` is never
    above it: it composes privacy loss distributions, and takes this conversion at extreme settings if it is smaller.

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
    delta = _validate.real(0, 1, "()", delta=delta)
    return unit_curve(protocol, randomizer, view).best(delta)[:2]


class RenyiCurve(NamedTuple):
    """Renyi divergences of a whole run, [orders], and the bound behind each."""

    values: np.ndarray
    names: list[str]


def local(orders: np.ndarray, epsilon0: np.ndarray | float) -> np.ndarray:
    """Divergence of one eps0-LDP message ([BS16], Proposition 3.3); at least the least float64 > 0 if epsilon0 > 0."""
    alone = np.minimum(0.5 * orders * np.square(epsilon0) * (1.0 + 1e-12), epsilon0)
    return np.where(np.asarray(epsilon0) > 0.0, np.maximum(alone, np.finfo(np.float64).tiny), 0.0)


def least(
    alone: np.ndarray,
    num_units: np.ndarray | int,
    orders: np.ndarray,
    found: Sequence[tuple[str, np.ndarray, np.ndarray]],
) -> RenyiCurve:
    """The smallest divergence of a run: `alone`, in the local view, and by log moments of a unit.

    Args:
      found: of each bound its name, the indices of the orders, and log moments.
    """
    values, names = np.array(alone), np.full(len(orders), _ALONE, dtype=object)
    units = np.broadcast_to(num_units, orders.shape)
    for name, where, log_moments in found:
        with np.errstate(over="ignore"):
            these = units[where] * log_moments / (orders[where] - 1.0) * (1.0 + 1e-12)
        names[where[these < values[where]]] = name
        values[where] = np.minimum(values[where], these)
    return RenyiCurve(values, names.tolist())


@dataclasses.dataclass(frozen=True)
class UnitCurve:
    """Checked arguments of `rdp` for eps0-LDP messages, and its evaluation."""

    protocol: CheckInProtocol
    randomizer: Randomizer
    view: str
    epsilon0: float

    def local(self, orders: np.ndarray) -> np.ndarray:
        """Divergence in the local view, over all units."""
        return local(orders, self.epsilon0) * self.protocol.num_units

    def bounds(self, mass: float) -> list[tuple[str, UnitBound]]:
        """(word, bound) pairs of a unit that may drop a mass of exp(-mass); call inside `float64()`."""
        if self.epsilon0 < MIN_EPSILON0 or self.view == "local":
            return []
        # B0 and own-laws are slower, and much smaller where they hold.
        tried = FAST_ONES if self.randomizer.one_bit is None else BEST
        unit = Unit(self.protocol, self.randomizer, "messages", REPLACE, mass)
        return [] if unit.alone else [(bound.word, made) for bound, made in built_bounds(unit, tried)]

    def curve(self, orders: np.ndarray) -> RenyiCurve:
        """Renyi divergences at real orders > 1; the value at an order does not depend on the others."""
        found: list[tuple[str, np.ndarray, np.ndarray]] = []
        with float64():
            mixed = [(label, mixture_of(each)) for label, each in self.bounds(_LEAST_MASSES[-1])]
            for label, mixture in mixed:
                if mixture is not None:
                    found.append((label, np.arange(len(orders)), log_moments_of_mixture(mixture, orders)))
            if any(mixture is None for _, mixture in mixed):
                masses = left_out(orders, self.epsilon0)
                for mass in np.unique(masses):
                    where, built = np.flatnonzero(masses == mass), self.bounds(float(mass))
                    label = " and ".join(dict.fromkeys(label for label, _ in built))
                    tried = [each for _, each in built]
                    found.append((label, where, _by_profile(tried, self.epsilon0, orders[where])))
        return self.joined(orders, found)

    def best(self, delta: float) -> tuple[float, float, str]:
        """(epsilon at delta, order, bound): nine orders at a time around the best one so far."""
        log_delta = math.log(delta)
        found = (math.inf, 2.0, _ALONE)
        # Divergences are nearly proportional to the relevant orders.
        slope = max(float(self.curve(np.array([2.0])).values[0]) / 2.0, 1e-300)
        centre, width = min(max(math.sqrt(-log_delta / slope), 1e-3), 1e9), 8.0
        for _ in range(_SEARCHES):
            orders = 1.0 + centre * width ** np.linspace(-1.0, 1.0, 9)
            here = self.curve(orders)
            with float64(), np.errstate(over="ignore"):
                columns = host(orders), host(here.values * (orders - 1.0)), host(log_delta)
                epsilon = np.asarray(pld.epsilon_from_log_moments(*columns))
            place = int(np.argmin(epsilon))
            if epsilon[place] < found[0]:
                found = (float(epsilon[place]), float(orders[place]), here.names[place])
            centre = float(orders[place]) - 1.0
            if 0 < place < 8:
                width **= 0.3
            if width < 1.02:
                break
        return found

    def joined(self, orders: np.ndarray, found: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> RenyiCurve:
        """The smallest divergence by log moments (name, indices of the orders, values) and by the local view."""
        return least(self.local(orders), self.protocol.num_units, orders, found)


@dataclasses.dataclass(frozen=True)
class GaussianCurve(UnitCurve):
    """`UnitCurve` for Gaussian messages."""

    mu: float

    def local(self, orders: np.ndarray) -> np.ndarray:
        """Exact divergence in the local view, messages sent with the unit's probability, over all units."""
        rate = self._unit(_MASS).rate
        with np.errstate(divide="ignore", over="ignore"):
            square = np.square(self.mu)
            size = 0.5 * orders * (orders - 1.0) * square
            apart = np.logaddexp(np.log1p(-rate), np.log(rate) + size)
            moment = np.where(size < 1.0, np.log1p(rate * np.expm1(np.minimum(size, 1.0))), apart)
            # At larger sizes the rate makes no difference.
            each = np.where(size < 1e300, moment / (orders - 1.0), 0.5 * orders * square)
        return each * (1.0 + 1e-12) * self.protocol.num_units

    def _unit(self, mass: float) -> Unit:
        return Unit(self.protocol, self.randomizer, self.view, REPLACE, mass)

    def curve(self, orders: np.ndarray) -> RenyiCurve:
        """As `UnitCurve.curve`."""
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
        """Other bounds on the unit that cost at most `_SECONDS`."""
        unit = self._unit(_OTHERS_MASS)
        tried = [bound for bound in table.BOUNDS if bound.seconds <= _SECONDS and bound is not but]
        return not_included([(bound, one) for bound in tried if (one := bound.build(unit)) is not None])

    def _moments(self, labels: Labels, others: Sequence[UnitBound], orders: np.ndarray) -> np.ndarray:
        """log A of the minimum of the profile of these labels and of the other bounds; [orders]."""
        tops, found = gaussian_moments.tops(labels, orders), np.full(len(orders), np.inf)
        # The local view is as good at larger tilts.
        for top in np.unique(tops[tops * float(np.max(labels.mu)) < _MOST_TILT]):
            losses, where = gaussian_moments.nodes(labels, float(top)), tops == top
            if others:
                # Other bounds may vary on a finer scale.
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
    """Checked arguments of `rdp` other than the orders.

    Raises:
      TypeError, ValueError: as `rdp`.
    """
    epsilon0, mu = check_randomizer(randomizer).largest_loss, randomizer.gaussian_mu
    check_identical_units(check_protocol(protocol))
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
    """Log moments of the pointwise minimum of several bounds."""
    one = minimum(built) if len(built) > 1 else built[0]
    losses = np.append(0.0, epsilon0 * np.geomspace(1e-9, 1.0, _KNOTS))
    side, _ = sides_above(one, losses)
    if float(side.lost) > 4.0 * FLUSHED:
        # With mass at infinite loss no moment is finite.
        return np.full(len(orders), math.inf)
    return np.asarray(pld.symmetric_log_moments(host(losses), side, host(orders - 1.0)))


def check_orders(orders: Sequence[float] | np.ndarray) -> np.ndarray:
    """The orders as float64. Raises TypeError, ValueError unless they are numbers above 1, one at least."""
    try:
        listed = list(orders)
    except TypeError:
        listed = []
    if not listed:
        raise _validate.type_error("a sequence of at least one number above 1", orders=orders)
    return np.array([_validate.real(1, math.inf, "()", orders=each) for each in listed])


# Masses up to about e^-17 times this are dropped.
_LOWER_DELTA = 1e-12
# Grids of knots end where the profile is one of these shares of its value at 0; every grid gives lower bounds.
_LOWER_PARTS = (1e-3, 1e-9, 1e-25, 1e-100)
_LOWER_KNOTS = 160
_LOWER_SHAPE = np.linspace(0.0, 1.0, _LOWER_KNOTS + 1)
_LOWER_PLACES = np.geomspace(1e-12, 1.0, 768)


@named
def rdp_lower(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    orders: Sequence[float] | np.ndarray,
    *,
    view: str = "messages",
) -> np.ndarray:
    """Lower bound on the worst Renyi divergence of a whole run at each order, by concrete records and messages.

    For sums of thousands of Gaussian messages it is within 0.2% of the true value at orders dominated by large rounds.

    Args:
      protocol: as in `rdp`.
      randomizer: as in `rdp`.
      orders: as in `rdp`.
      view: as in `rdp`.

    Returns:
      float64 [orders], nats over all units, rounded down, of the best witness in its better direction, the same in
      every unit; 0 if no witness is known.

    Raises:
      TypeError, ValueError: as `rdp`.

    Examples:
      >>> import checkin_jax as cj
      >>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1)
      >>> noise = cj.Gaussian(noise_multiplier=1.42)
      >>> [f"{call(run, noise, [8.0], view='aggregate')[0]:.3e}" for call in (cj.rdp_lower, cj.rdp)]
      ['1.321e-05', '1.341e-05']
    """
    at = check_orders(orders)
    unit_curve(protocol, randomizer, view)
    best = np.zeros(len(at))
    with float64():
        bound = unit_bound(protocol, randomizer, view, 1.0, _LOWER_DELTA, bounds=FAST_ONES).bound
        for witness in bound.witnesses if bound.largest_loss > 0 else ():
            for end in _ends(witness.grid_bound):
                best = np.maximum(best, _of_witness(witness, end * _LOWER_SHAPE, at))
    return best / (at - 1.0) * (1.0 - 1e-12) * protocol.num_units


def _ends(bound: UnitBound) -> list[float]:
    """Largest knots of the grids."""
    places = _LOWER_PLACES * min(bound.largest_loss, MAX_LOSS)
    value = np.asarray(bound.upper(places))
    found = [places[np.flatnonzero(value >= part * value[0])[-1]] for part in _LOWER_PARTS]
    return sorted({float(each) for each in found})


def _of_witness(witness: Witness, losses: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Lower bound on log A of one unit at each order, in the larger direction."""
    lines = witness.lower(0.5 * (losses[1:] + losses[:-1]))
    plus, minus = (pld.side_lower(host(losses), *map(host, each)) for each in lines)
    laws = (pld.join(host(losses), *sides, False) for sides in ((plus, minus), (minus, plus)))
    found = (np.asarray(pld.log_moments_lower(law, host(orders))) for law in laws)
    return np.maximum(*found)


# Moments of a unit whose bound is one mixture of clones' counts (`kernels.composition.moments`).
# Orders share nodes if they tilt the law by at most this many standard deviations, or the same power of two times it.
_TILT = 3.0
# Nodes, in standard deviations: reach beyond the farthest tilt, and spacing.
_BEYOND, _APART = 10.0, 0.1
_NODES = (160, 320, 640, 1280)
# Numbers of terms of the series, and -log of a negligible share of a moment.
_TERMS, _NEGLIGIBLE = (16, 32, 64, 128, 256), 16.0
# Buckets of the number of labels: their error is near that of the nodes.
_BUCKETS = (16, 32, 48, 64, 96, 128, 192, 256)
# Support points of the number of absent clients, from each drift on; the most of `SPREADS` gain nothing here.
_DRIFTS, _OFFSETS = (SPREADS[2][0], SPREADS[1][0]), ((), SPREADS[2][1], SPREADS[1][1])
# -log of masses that may be dropped; the last is the smallest mass in float64.
_LEAST_MASSES = (100.0, 300.0, 690.0)


def mixture_of(bound: object) -> Mixture | None:
    """The mixture of a bound, if it has a single part, as the kernel needs; else None."""
    found = getattr(bound, "mixture", None)
    return found if isinstance(found, Mixture) and found.law.n.size == 1 else None


def left_out(orders: np.ndarray, epsilon0: np.ndarray | float) -> np.ndarray:
    """-log of the mass that may be dropped at each order, if it is charged the largest loss."""
    wanted = np.searchsorted(_LEAST_MASSES[:-1], orders * epsilon0 + 30.0)
    return np.array(_LEAST_MASSES)[wanted]


class Lanes(NamedTuple):
    """Lanes of the kernel, of one discretization: orders of one setting each that share nodes.

    Attributes:
      choice: the discretization.
      lane: arguments of the kernel, [lanes, ...]; the last order of a lane is repeated up to the longest lane.
      where: indices of the orders, [lanes, orders], repeated likewise.
    """

    choice: moments.Discretization
    lane: moments.Lane
    where: np.ndarray


def lanes(
    law: MixtureLaw,
    epsilon0: np.ndarray,
    drift: np.ndarray,
    setting: np.ndarray,
    orders: np.ndarray,
    longest: int = sys.maxsize,
) -> list[Lanes]:
    """Lanes of all orders; the nodes of an order do not depend on the other orders.

    Args:
      law: of each setting, [settings]. epsilon0, drift: likewise.
      setting: index of the setting of each order.
      longest: most orders of a lane.
    """
    n, special, absent, _, always, *_, each = law
    mean = np.asarray(1.0 + (n - 1.0) * special)
    ratio = (always + (n - 1.0) * (1.0 - special) * absent * each) / mean
    spread = -np.expm1(-epsilon0) / (1.0 + np.exp(-epsilon0) * (1.0 + 2.0 * ratio)) / np.sqrt(mean)
    # Standard deviations by which an order tilts the law.
    tilt = np.minimum((2.0 * orders - 1.0) * spread[setting], 1e300)
    power = np.minimum(np.ceil(np.maximum(np.log2(tilt / _TILT), 0.0)), 900.0)
    size, mass = orders * epsilon0[setting], left_out(orders, epsilon0[setting])
    last = np.full(len(orders), _LEAST_MASSES[-1])
    # The series serves orders up to a size; where it serves all up to the last mass, they share a lane.
    up_to = np.where(size > mass, np.exp2(np.ceil(np.log2(size))), mass)
    terms, shared = (_terms(spread[setting], mean[setting], each) for each in (up_to, last))
    terms = np.where(up_to <= last, np.maximum(shared, terms), terms)
    terms = np.where(n[setting] > SMALL, terms, 0)
    mass = np.where((terms > 0) & (shared > 0), last, mass)
    power = np.where(terms > 0, 0.0, power)
    first, count, rows = alike(np.stack([setting, mass, terms, power]), longest)
    place = np.minimum(np.arange(count.max(initial=1)), count[:, None] - 1)
    where = rows[first[:, None] + place]
    head = where[:, 0]
    s, tilted = setting[head], _TILT * 2.0 ** power[head]
    spread, epsilon0, n = spread[s], epsilon0[s], n[s]
    fine = np.minimum((tilted + _BEYOND) * spread, 0.45 * epsilon0)
    # A moment of e^size needs an absolute error of its log of size / 1000.
    size = np.maximum(0.5 * tilted * np.minimum(tilted, epsilon0 / spread), 1.0)
    wanted = fine / spread / np.minimum(_APART, np.sqrt(0.02 * size) / tilted)
    few, terms = n <= SMALL, terms[head]
    choices = np.stack(
        [
            np.where(
                few, 0, _next(np.maximum(2700.0 / np.sqrt(mean[s]), 1.8 * np.sqrt(mass[head])), _BUCKETS)
            ),
            np.where(few & (absent[s] > 0.0), SMALL, 1),
            np.where(few, 0, np.searchsorted(_DRIFTS, drift[s])),
            np.where(terms > 0, 0, _next(wanted, _NODES)),
            terms,
        ]
    )
    found = []
    begin, size, order = alike(choices)
    for start, end in zip(begin, begin + size):
        here = order[start:end]
        buckets, absences, offsets, nodes, terms = choices[:, here[0]].tolist()
        columns = (epsilon0, mass[head], tilted + _BEYOND, fine)
        lane = moments.Lane(
            MixtureLaw(*(host(part[s[here], None]) for part in law)),
            *(host(column[here]) for column in columns),
            orders=host(orders[where[here]]),
        )
        choice = moments.Discretization(buckets, absences, _OFFSETS[offsets], nodes, terms)
        found.append(Lanes(choice, lane, where[here]))
    return found


def alike(keys: np.ndarray, longest: int = sys.maxsize) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First places and sizes of groups of equal keys [., rows], at most `longest` each, and the rows in their order."""
    rows = np.lexsort(keys[::-1])
    keys, place = keys[:, rows], np.arange(len(rows))
    new = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(rows)]
    begun = np.maximum.accumulate(np.where(new, place, 0))
    first = np.flatnonzero((place - begun) % longest == 0)
    return first, np.diff(np.append(first, len(rows))), rows


def _terms(spread: np.ndarray, mean: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Terms of the series of moments; 0 where nodes serve.

    spread: standard deviation of x. mean: of the number of labels. size: the largest order times epsilon0.
    """
    found = np.zeros(len(mean), dtype=np.int64)
    for terms in _TERMS[::-1]:
        # -log of the rest over the first term.
        rest = terms * (1.0 + np.log(mean / (2.0 * terms))) - size + 2.0 * np.log(spread)
        found = np.where(rest > _NEGLIGIBLE, terms, found)
    return found


def _next(wanted: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Least size that is large enough, or the last one."""
    return np.array(sizes)[np.minimum(np.searchsorted(sizes, wanted), len(sizes) - 1)]


def log_moments_of_mixture(mixture: Mixture, orders: np.ndarray) -> np.ndarray:
    """Upper bounds on log A of one unit at each order; nats, [orders]. Compiles nothing on the host."""
    found = np.empty(len(orders))
    made: dict[tuple[object, ...], Buckets] = {}
    law = MixtureLaw(*(host(np.ravel(part)) for part in mixture.law))
    about = np.array([mixture.epsilon0]), np.array([mixture.drift]), np.zeros(len(orders), dtype=np.int64)
    for choice, lane, where in lanes(law, *about, orders):
        for i, here in enumerate(where):
            one = moments.Lane(MixtureLaw(*(part[i] for part in lane.law)), *(part[i] for part in lane[1:]))
            key = float(one.neg_log_tail), choice.buckets, choice.offsets
            if choice.buckets and key not in made:
                made[key] = buckets_upper(one.law, one.neg_log_tail, choice.buckets, choice.offsets)
            # Repeated orders come last.
            alone = len(np.unique(here))
            one = one._replace(orders=one.orders[:alone])
            found[here[:alone]] = moments.log_moments(one, choice, made.get(key))
    return found
