"""`calibrate`: the extreme value of one free variable that meets a target; `sensitivities`: epsilon's derivatives."""

from __future__ import annotations

import dataclasses
import functools
import html
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from checkin_jax import _validate
from checkin_jax._progress import going_on
from checkin_jax._suggest import named
from checkin_jax.accounting.account import MIN_DELTA, account, best_of_single_bounds
from checkin_jax.accounting.attack import largest_advantage
from checkin_jax.accounting.bounds.select import (
    BEST,
    check_bounds,
    check_protocol,
    check_randomizer,
    check_relation,
    whole_run,
)
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.guarantee import Guarantee, relation_of
from checkin_jax.protocols import REPLACE, VIEWS, CheckInProtocol
from checkin_jax.randomizers import Randomizer
from checkin_jax.randomizers.randomizer import FreeVariable

if TYPE_CHECKING:
    from dp_accounting import NeighboringRelation

# Relative accuracy of the value.
_TOLERANCE = 1e-4


# Longest steps, as factors, until the target is bracketed; factor beyond the target at which a step aims.
_STRIDE, _SHORT_STRIDE, _BEYOND = 30.0, 2.0, 1.05

# Relative step of `sensitivities`. A smaller one shows the grids of the composition.
_STEP = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Calibration:
    """The result of `calibrate`: a value that meets the target, and its guarantee.

    Attributes:
      name: name of the free variable.
      value: its value, on the feasible side: `guarantee.epsilon` (or the upper end of `guarantee.advantage`) was
        evaluated there and is at most the target.
      guarantee: the bracket there, with the protocol and randomizer of this value.
      at_end: True if the value is the last one of the search, so that a value beyond it may meet the target, too.
    """

    name: str
    value: float
    guarantee: Guarantee
    at_end: bool = False

    @property
    def found(self) -> str:
        """The variable and its value in words."""
        end = ", the end of the search: the target is met there, too" if self.at_end else ""
        return f"{self.name} = {self.value:.10g}{end}"

    def __str__(self) -> str:
        return f"{self.found}\n\n{self.guarantee}"

    def __repr__(self) -> str:
        return f"<Calibration: {self.found}, {self.guarantee!r}>"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self.found)}</b></p>{self.guarantee._repr_html_()}"

    @property
    def protocol(self) -> CheckInProtocol:
        """The protocol of the guarantee."""
        return self.guarantee.protocol

    @property
    def randomizer(self) -> Randomizer:
        """The randomizer of the guarantee."""
        return self.guarantee.randomizer


@named
def calibrate(
    protocol: CheckInProtocol,
    randomizer: Randomizer | type[Randomizer],
    *,
    target_epsilon: float | None = None,
    target_advantage: float | None = None,
    delta: float,
    view: str = "messages",
    free: str | None = None,
    bounds: str | Sequence[str] = BEST,
    neighboring_relation: str | NeighboringRelation = REPLACE,
    client_rate: float | None = None,
    verbose: bool = True,
) -> Calibration:
    """Finds the largest (or smallest) value of one variable whose certified epsilon or advantage is at most the target.

    Args:
      protocol: the run; the search begins at its value of the free variable.
      randomizer: an object; or a class such as PureLDP or Gaussian, whose variable is then free: the largest epsilon0
        or the least noise_multiplier.
      target_epsilon: > 0, nats per run, for the upper end of the bracket.
      target_advantage: in (0, 1), instead of target_epsilon: for the upper end of `Guarantee.advantage`. It depends on
        delta only through dropped mass of less than delta.
      delta: as in `account`.
      view: as in `account`.
      bounds: as in `account`.
      neighboring_relation: as in `account`.
      client_rate: as in `account`.
      free: a numeric field of the protocol: the largest check_in_prob, num_rounds or num_epochs, or the smallest
        num_clients (not of SlidingWindow) or window; or the randomizer's own variable, its other fields fixed. None
        if `randomizer` is a class.
      verbose: print on standard error after a few seconds that the search goes on.

    Returns:
      A Calibration. The value is feasible, and within a relative 1e-4 of the best one; whole numbers below 1e4 are
      exact up to the numerical slack of epsilon. Where noise adds up (Gaussian, view "aggregate") epsilon is not
      monotone in check_in_prob: the search goes down from 1 in steps of at most a factor 2, and can miss a narrower
      feasible interval. For Gaussian messages in a FixedWindow with hidden dummies epsilon is not monotone in
      num_clients: the value is feasible, but more clients need not be.

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range; or no value in range is feasible.

    Examples:
      >>> import checkin_jax as cj
      >>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=1_000)
      >>> found = cj.calibrate(run, cj.Gaussian, target_epsilon=1.0, delta=1e-6, view="aggregate")
      >>> found.name, found.guarantee.epsilon <= 1.0
      ('noise_multiplier', True)
    """
    check_protocol(protocol)
    asked, target = _target(target_epsilon, target_advantage)
    delta = _validate.real(MIN_DELTA, 1.0, delta=delta)
    _validate.choice(VIEWS, view=view)
    wanted = check_bounds(bounds)
    relation = check_relation(protocol, view, relation_of(neighboring_relation))
    meant: dict[str, Any] = {"relation": relation, "client_rate": client_rate}
    variable, start, build = _free(protocol, randomizer, free)
    name = variable.name

    def figure(value: float) -> float:
        here, noise = build(value)
        by = functools.partial(whole_run, here, noise, view, delta, **meant)
        run = by(bounds=wanted)
        if asked == "advantage":
            return largest_advantage(run.units, delta, run.local_caps)
        found = compose.upper_end(run.units, delta, run.local_caps)
        return best_of_single_bounds(found, run, delta, wanted, by)[0].upper

    stride = _STRIDE
    adds_up = (
        isinstance(randomizer, Randomizer) and randomizer.gaussian_mu is not None and view == "aggregate"
    )
    if name == "check_in_prob" and adds_up:
        # More check-ins bring more noise, so epsilon rises and falls: the search goes down from 1.
        start, stride = variable.high, _SHORT_STRIDE
    with going_on("calibrating; Gaussian messages that are shuffled may take a minute ...", verbose):
        value = _search(figure, variable, start, target, stride)
        if value is None:
            tightest = variable.low if variable.power > 0 else variable.high
            raise ValueError(
                f"target_{asked}={target!r}: no {name} in [{variable.low:g}, {variable.high:g}] meets it; "
                f"at {name}={tightest:g} {asked} is {figure(tightest):.6g}"
            )
        here, noise = build(value)
        guarantee = account(
            here,
            noise,
            delta=delta,
            view=view,
            bounds=wanted,
            neighboring_relation=relation,
            client_rate=client_rate,
        )
    at_end = value == (variable.high if variable.power > 0 else variable.low)
    return Calibration(name=name, value=value, guarantee=guarantee, at_end=at_end)


class Slope(NamedTuple):
    """Derivatives of both ends of epsilon in one parameter; None if an end is infinite, there or a step away."""

    lower: float | None
    upper: float | None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Sensitivities:
    """The result of `sensitivities`: a certified bracket, and estimates of its derivatives.

    Attributes:
      guarantee: the bracket.
      slopes: d epsilon / d parameter by the parameter's name, nats per unit of the parameter.
    """

    guarantee: Guarantee
    slopes: dict[str, Slope]

    def __str__(self) -> str:
        rows = [
            f"d epsilon / d {name}: {'unknown' if one.upper is None else f'about {one.upper:.3g}'}"
            for name, one in self.slopes.items()
        ]
        return "\n".join([self.guarantee.headline, *rows])

    def __repr__(self) -> str:
        return f"<Sensitivities: {', '.join(self.slopes)}, {self.guarantee!r}>"


@named
def sensitivities(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    *,
    delta: float,
    view: str = "messages",
    bounds: str | Sequence[str] = BEST,
    neighboring_relation: str | NeighboringRelation = REPLACE,
    client_rate: float | None = None,
) -> Sensitivities:
    """Estimates the derivative of epsilon in every numeric parameter that `calibrate` may search, and in delta.

    Each is a one-sided difference of logarithms: `account` once more, with the parameter 1% larger (whole numbers at
    least 1 larger), or smaller at the end of its range. It is exact for power laws, and no bound. The upper end's
    discretization changes its derivative by a few per cent. The lower end's derivative may be mostly discretization if
    the bracket is wide. If another theorem applies a step away, the difference is between two theorems.

    Args:
      protocol: as in `account`.
      randomizer: as in `account`.
      delta: as in `account`.
      view: as in `account`.
      bounds: as in `account`.
      neighboring_relation: as in `account`.
      client_rate: as in `account`.

    Raises:
      TypeError, ValueError: as `account`.

    Examples:
      >>> import checkin_jax as cj
      >>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800)
      >>> found = cj.sensitivities(run, cj.PureLDP(epsilon0=2.0), delta=1e-6)
      >>> print(f"{found.slopes['epsilon0'].upper:.2f} {found.slopes['check_in_prob'].upper:.1f}")
      1.13 7.4
    """

    ask = functools.partial(
        account, view=view, bounds=bounds, neighboring_relation=neighboring_relation, client_rate=client_rate
    )
    here, slopes = ask(protocol, randomizer, delta=delta), {}
    own = randomizer.variable
    for name in [each.name for each in (*protocol.variables, *([] if own is None else [own]))]:
        variable, value, build = _free(protocol, randomizer, name)
        moved = _beside(value, variable)
        slopes[name] = _slope(here, ask(*build(moved), delta=delta), value, moved)
    moved = _beside(delta, FreeVariable("delta", MIN_DELTA, 1.0, 1.0))
    slopes["delta"] = _slope(here, ask(protocol, randomizer, delta=moved), delta, moved)
    return Sensitivities(guarantee=here, slopes=slopes)


def _beside(value: float, variable: FreeVariable) -> float:
    """A value one step above, or below where the range ends."""
    step = max(1.0, round(_STEP * value)) if variable.whole else _STEP * (value or 1.0)
    return value + step if value + step <= variable.high else value - step


def _slope(here: Guarantee, there: Guarantee, value: float, moved: float) -> Slope:
    def one(a: float, b: float) -> float | None:
        if not (math.isfinite(a) and math.isfinite(b)):
            return None
        if a == b:
            return 0.0
        if a > 0 and b > 0 and value > 0:
            return a / value * math.log(b / a) / math.log(moved / value)
        return (b - a) / (moved - value)

    return Slope(one(here.lower, there.lower), one(here.epsilon, there.epsilon))


def _target(epsilon: float | None, advantage: float | None) -> tuple[str, float]:
    """("epsilon" or "advantage", target).

    Raises:
      TypeError, ValueError: not exactly one of the two, or outside its range.
    """
    if (epsilon is None) == (advantage is None):
        raise ValueError(
            f"target_epsilon={epsilon!r}, target_advantage={advantage!r}: expected one of the two"
        )
    if advantage is None:
        return "epsilon", _validate.real(0, math.inf, "()", target_epsilon=epsilon)  # type: ignore[arg-type]
    return "advantage", _validate.real(0, 1, "()", target_advantage=advantage)


def _free(
    protocol: CheckInProtocol, randomizer: Any, free: str | None
) -> tuple[FreeVariable, float, Callable[[float], tuple[CheckInProtocol, Randomizer]]]:
    """The free variable, its first value, and (protocol, randomizer) as a function of its value."""
    if isinstance(randomizer, type):
        if not issubclass(randomizer, Randomizer) or randomizer.variable is None:
            raise TypeError(
                f"randomizer={_validate.shown(randomizer)}: expected a Randomizer, or a class of them with a variable"
            )
        own = randomizer.variable
        if free not in (None, own.name):
            raise _validate.error(f"{own.name!r}, or a randomizer with a value of its own", free=free)
        return own, 1.0, lambda value: (protocol, randomizer(**{own.name: value}))
    check_randomizer(randomizer)
    known = {variable.name: variable for variable in protocol.variables}
    own = randomizer.variable
    if own is not None:
        known[own.name] = own
    if free is None:
        kinds = type(randomizer).__name__
        raise ValueError(
            f"free was left out: expected one of {', '.join(map(repr, known))}; or the class {kinds} in place of an "
            "object, whose own variable is then free"
        )
    name = _validate.choice(tuple(known), free=free)
    if own is not None and name == own.name:
        start = float(getattr(randomizer, name))
        return (
            own,
            start,
            lambda value: (protocol, dataclasses.replace(cast(Any, randomizer), **{name: value})),
        )
    return (
        known[name],
        float(getattr(protocol, name)),
        lambda value: (protocol.varied(name, value), randomizer),
    )


def largest_count(
    epsilon: Callable[[int], float], most: int, target: float, *, least: int = 1, start: int = 1
) -> int:
    """The largest count in [least, most] with epsilon(count) <= target, epsilon being increasing; 0 if there is none.

    Args:
      epsilon: function of a count, evaluated about a dozen times; fewer where it grows like the root of the count.
      least, most: smallest and largest count.
      target: largest epsilon.
      start: first count of the search.
    """
    variable = FreeVariable("count", float(least), float(most), 0.5, whole=True)
    found = _search(
        lambda count: epsilon(int(count)), variable, float(start), target, math.inf, tolerance=0.0
    )
    return 0 if found is None else int(found)


def _search(
    figure: Callable[[float], float],
    variable: FreeVariable,
    start: float,
    target: float,
    longest: float,
    tolerance: float = _TOLERANCE,
) -> float | None:
    """The extreme value with figure <= target, which has been evaluated; None if there is none.

    Steps by a power law, of a factor `longest` at most, until the target is bracketed; then regula falsi (Illinois) in
    logarithms.
    """
    low, high = variable.low, variable.high
    loosest, tightest = (high, low) if variable.power > 0 else (low, high)
    known: dict[float, float] = {}

    def excess(value: float) -> float:
        """log(figure / target), clipped to [-30, 30]."""
        if value not in known:
            found = figure(value)
            at = math.log(found) if 0 < found < math.inf else math.copysign(math.inf, found - 1.0)
            known[value] = min(max(at - math.log(target), -30.0), 30.0)
        return known[value]

    value = min(max(start, low), high)
    good = bad = None
    while good is None or bad is None:
        here = excess(value)
        if here <= 0:
            good = value
            if value == loosest:
                return value
        else:
            bad = value
            if value == tightest:
                return None
        # Towards looser values while the target is met, even if it is met exactly.
        stride = min((abs(here) + math.log(_BEYOND)) / abs(variable.power), math.log(longest))
        step = math.copysign(stride, variable.power if here <= 0 else -variable.power)
        moved = min(max(value * math.exp(step), low), high)
        if variable.whole:
            moved = float(math.floor(moved) if step < 0 else math.ceil(moved))
        value = moved
    return _close_in(excess, good, bad, variable, tolerance)


def _close_in(
    excess: Callable[[float], float], good: float, bad: float, variable: FreeVariable, tolerance: float
) -> float:
    """The feasible end of the bracket, after shrinking it to the tolerance or to successive whole numbers."""
    at_good, at_bad, side = excess(good), excess(bad), 0
    last: tuple[float, float] | None = None  # the end that was given up
    for turn in range(1, 60):
        gap = abs(good - bad)
        if gap <= (1.0 if variable.whole else 0.0) or (
            gap <= tolerance * good and (not variable.whole or tolerance * good > 1.0)
        ):
            break
        width = math.log(bad / good)
        # Every fourth step is a bisection.
        share = at_good / (at_good - at_bad) if turn % 4 else 0.5
        if last is not None and turn % 4:
            share = _inverse_quadratic(at_good, at_bad, last[1], math.log(last[0] / good) / width, share)
        # Aim slightly to the feasible side; with an end that near, slightly beyond, to close the bracket.
        step = 0.4 * tolerance / abs(width)
        share -= step
        if share < step:
            share = 2.0 * step
        elif share > 1.0 - 2.0 * step:
            share = 1.0 - 2.0 * step
        value = good * (bad / good) ** min(max(share, 0.0), 1.0)
        if variable.whole:
            value = min(max(float(round(value)), min(good, bad) + 1.0), max(good, bad) - 1.0)
        here = excess(value)
        if here <= 0:
            last = good, at_good
            good, at_good, at_bad, side = value, here, at_bad / (2.0 if side < 0 else 1.0), -1
        else:
            last = bad, at_bad
            bad, at_bad, at_good, side = value, here, at_good / (2.0 if side > 0 else 1.0), 1
    return good


def _inverse_quadratic(at_good: float, at_bad: float, at_last: float, last: float, share: float) -> float:
    """Value at excess zero of the parabola through three points, if it lies between the ends; else `share`."""
    if min(abs(at_last - at_good), abs(at_last - at_bad)) < 1e-12:
        return share
    found = at_good * at_last / ((at_bad - at_good) * (at_bad - at_last))
    found += last * at_good * at_bad / ((at_last - at_good) * (at_last - at_bad))
    return found if 0.0 < found < 1.0 else share
