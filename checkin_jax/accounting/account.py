"""`account`: a bracket for the epsilon of a protocol run, in the view of a given adversary."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax.accounting.bounds.interface import LocalOnly
from checkin_jax.accounting.bounds.select import (
    BEST,
    Chosen,
    WholeRun,
    applying,
    check_bounds,
    check_protocol,
    check_randomizer,
    check_relation,
    whole_run,
)
from checkin_jax.accounting.composition import compose, renyi
from checkin_jax.accounting.composition.bracket import Bracket, ordered
from checkin_jax.accounting.guarantee import Guarantee, assumptions, relation_of
from checkin_jax.protocols import REPLACE, VIEWS, CheckInProtocol
from checkin_jax.randomizers import Randomizer
from checkin_jax.rates import Rates

if TYPE_CHECKING:
    from dp_accounting import NeighboringRelation

MIN_DELTA = 1e-300
UNSEEN_CHANGES = (
    "the times of parameter changes, and the new parameters, did not depend on any output of earlier rounds"
)
OWN_GROUP = (
    "which group a client is in, and with which randomizer, does not depend on anybody's data; only clients of its "
    "own group are counted as its cover, and the groups of messages may be known"
)
# Recommended largest check-in rate.
CAP = 0.99


@named
def account(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    *,
    delta: float,
    view: str = "messages",
    bounds: str | Sequence[str] = BEST,
    neighboring_relation: str | NeighboringRelation = REPLACE,
    client_rate: float | None = None,
    before: Sequence[tuple[CheckInProtocol, Randomizer]] = (),
) -> Guarantee:
    """Bounds the epsilon of a whole run, by default under replacement of one client's record.

    Args:
      protocol: the protocol, with its number of rounds.
      randomizer: the randomizer that each client applies to its update before sending it.
      delta: in [1e-300, 1]; of the run, not of a round.
      view: the adversary. "messages" (default): all messages without names. "aggregate": each round's sum and its
        number of messages (or each slot's update); for PureLDP the bound of "messages", by post-processing.
        "local": the client's own messages with its name, over all rounds.
      bounds: "best" (default): the smallest of all bounds that apply (`checkin_jax.accounting.bounds.table`).
        "fast": only bounds that cost a few hundredths of a second, or seconds where rates differ, for sweeps. Or
        words, such as "clones" or ("clones", "profile"): the smallest of these.
      neighboring_relation: "replace-one" (default), or "add-or-remove-one" (one client is present or absent, other
        windows and the number of slots being the same) for FixedWindow with hidden dummies and SlidingWindow, not
        in the view "local". dp_accounting's NeighboringRelation is accepted, too.
      client_rate: with unequal check-in rates, the rate in (0, 1] of the client to bound, or an upper bound on it:
        the guarantee is that of the largest rate not above it. Default: the largest rate, which covers every
        client.
      before: earlier runs on the same clients' records with other parameters: pairs of protocol and randomizer, in
        the same view. Epsilon is that of the composition of all runs; a client who is slow in one run may be fast in
        another. The changes of parameters, and their times, must not depend on any output: this is no privacy filter
        (docs/theory_filters.md).

    Returns:
      A Guarantee with lower <= epsilon, in nats per run; `epsilon` is certified and rounded up, `lower` rounded
      down. Inputs and randomizers of a round may depend on earlier outputs. The protocol's parameters and the
      number of rounds are fixed beforehand; a run that stops early is covered by the bound of all planned rounds.
      No NaN; math.inf if no finite bound was found.

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range; no bound is known for this
        neighboring relation; or none of the words applies.

    Examples:
      >>> import math
      >>> import checkin_jax as cj
      >>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800)
      >>> g = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-6)
      >>> print(f"{math.floor(g.lower * 100) / 100} {math.ceil(g.epsilon * 100) / 100} {g.method}")
      1.35 1.36 hexagon, PLD
    """
    runs = [(protocol, randomizer), *check_pairs(before)]
    delta = _validate.real(MIN_DELTA, 1.0, delta=delta)
    _validate.choice(VIEWS, view=view)
    wanted, relation = check_bounds(bounds), relation_of(neighboring_relation)
    for each, its in runs:
        check_protocol(each)
        check_randomizer(its)
        check_relation(each, view, relation)
    meant = {"relation": relation, "client_rate": client_rate, "before": runs[1:]}
    by = functools.partial(whole_run, protocol, randomizer, view, delta, **meant)
    run = by(bounds=wanted)
    found = compose.bracket(run.units, delta, run.local_caps)
    found, rests = best_of_single_bounds(found, run, delta, wanted, by)
    chosen = [[*rests, *run.chosen[0]], *run.chosen[1:]]
    names = dict.fromkeys(found.names or (one.bound.name for kinds in chosen for one in kinds))
    return Guarantee(
        epsilon=found.upper,
        lower=found.lower,
        delta=delta,
        view=view,
        method=f"{found.bound or '; '.join(names)}, {found.method}",
        lower_method=found.lower_method,
        protocol=protocol,
        randomizer=randomizer,
        # The local-view bound uses none of these theorems.
        theorems=() if found.bound else once(each.stated for kinds in chosen for each in kinds),
        assumptions=once(
            (*assumptions(one, its, view, relation), *(() if found.bound else each.assumes))
            for (one, its), kinds in zip(runs, chosen)
            for each in kinds
        )
        + ((UNSEEN_CHANGES,) if before else ()),
        neighboring_relation=relation,
        client_rate=None if protocol.unequal_rates is None else protocol.unequal_rates.fastest(client_rate),
        optimal_order=found.optimal_order,
        numerical_error=found.numerical_error,
        bounds=wanted,
        warnings=once(
            warnings_of(each, one, delta, found) for (each, _), kinds in zip(runs, chosen) for one in kinds
        ),
        before=tuple(runs[1:]),
        asked=functools.partial(
            account,
            protocol,
            randomizer,
            delta=delta,
            view=view,
            bounds=bounds,
            neighboring_relation=relation,
            before=tuple(runs[1:]),
        ),
    )


def check_pairs(before: Any) -> list[tuple[Any, Any]]:
    """The pairs as a list; raises TypeError if `before` is no sequence of pairs."""
    try:
        return [(protocol, randomizer) for protocol, randomizer in before]
    except (TypeError, ValueError):
        raise _validate.type_error("pairs of a protocol and a randomizer", before=before) from None


def once(texts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The texts in order, without repetitions."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(texts)))


def warnings_of(protocol: CheckInProtocol, chosen: Chosen, delta: float, found: Bracket) -> list[str]:
    """Warnings about a bracket of such units."""
    out = []
    if delta >= 1.0 / protocol.num_clients:
        out.append(
            f"delta = {delta:.3g} is not below 1/num_clients = {1 / protocol.num_clients:.3g}: "
            "publishing one client's record at random would be within it; choose delta = "
            f"{10.0 ** (math.floor(-math.log10(protocol.num_clients)) - 1):.0e} or less"
        )
    unequal_rates = protocol.unequal_rates
    if (
        isinstance(unequal_rates, Rates)
        and unequal_rates.always_present
        and protocol.unequal_cover is not None
        and protocol.arrival_prob == 1.0
    ):
        out.append(
            f"clients that always check in ({unequal_rates.always_present:,} here) hide the others less than at a "
            f"rate of {CAP}: cap rates at {CAP}"
        )
    if not math.isfinite(found.upper):
        some = "holds" if found.lower == math.inf else "was found"
        out.append(f"no finite epsilon {some} at this delta")
    if found.bound or isinstance(chosen.bound, LocalOnly):
        # The bound is that of the local view.
        if found.lower < 0.999 * found.upper:
            out.append(
                "no gain from hiding among other clients is counted: the true epsilon may be far smaller"
            )
    elif found.upper > 0:
        out += chosen.caveats
    return out


def of_group(own: Guarantee) -> Guarantee:
    """The guarantee of a group's own clients, as that of the group among others."""
    return dataclasses.replace(own, assumptions=(*own.assumptions, OWN_GROUP))


@named
def account_groups(
    groups: Mapping[str, tuple[CheckInProtocol, Randomizer]],
    *,
    delta: float,
    view: str = "messages",
    bounds: str | Sequence[str] = BEST,
) -> dict[str, Guarantee]:
    """Bounds the epsilon of each group of clients, where groups use different randomizers in the same rounds.

    A client hides among its own group: messages of other groups depend on its record only through what was seen
    before, and are handed to the adversary (docs/theory_rates.md, 3). No bound is known that counts the other groups'
    help, as their messages may be of other kinds than the client's.

    Args:
      groups: the protocol of each group's own clients alone, with its own number of clients, rates and rounds, and
        their randomizer. A client stays in its group; one who moves has the composition of both
        (`CheckInAccountant`).
      delta: as in `account`.
      view: as in `account`; sums may be of all groups together.
      bounds: as in `account`.

    Returns:
      The guarantee of each group, the largest epsilon first, which holds for every client.

    Raises:
      TypeError, ValueError: no groups; a protocol whose clients compete for slots; or as `account`.

    Examples:
      >>> import checkin_jax as cj
      >>> def phones(number):
      ...     return cj.ShuffledCheckIn(num_clients=number, check_in_prob=0.01, num_rounds=100)
      >>> groups = {
      ...     "new": (phones(50_000), cj.PureLDP(epsilon0=2.0)),
      ...     "old": (phones(9_000), cj.PureLDP(epsilon0=4.0)),
      ... }
      >>> list(cj.account_groups(groups, delta=1e-6))
      ['old', 'new']
    """
    if not isinstance(groups, Mapping) or not groups:
        raise _validate.type_error("a mapping from names to pairs of protocol and randomizer", groups=groups)
    found = {}
    for name, pair in groups.items():
        try:
            protocol, randomizer = pair
        except (TypeError, ValueError):
            raise TypeError(
                f"groups[{name!r}]={_validate.shown(pair)}: expected a pair of protocol and randomizer"
            ) from None
        if not check_protocol(protocol).summed:
            raise ValueError(
                f"groups[{name!r}]={_validate.shown(protocol)}: expected rounds that use all messages, such as "
                "ShuffledCheckIn: no bound is known where clients of other groups compete for slots"
            )
        found[name] = of_group(account(protocol, randomizer, delta=delta, view=view, bounds=bounds))
    return dict(sorted(found.items(), key=lambda each: each[1].epsilon, reverse=True))


# `account` composes the pointwise minimum of all bounds, on knots for all of them. At deltas near the end of float64,
# at epsilons near zero, and beyond the largest loss that is followed, knots for a single bound may be better; and
# moments are, but not at epsilons near zero. Below these, deltas and epsilons are extreme.
_EXTREME_DELTA, _EXTREME_EPSILON = 1e-100, 1e-5


def extreme(found: Bracket, delta: float) -> bool:
    """True if the composed minimum of all bounds may be above a single bound by more than rounding."""
    if found.lower == math.inf:
        return False
    return delta < _EXTREME_DELTA or not math.isfinite(found.upper) or 0.0 < found.upper < _EXTREME_EPSILON


def best_of_single_bounds(
    found: Bracket, run: WholeRun, delta: float, bounds: str | tuple[str, ...], alone: Callable[..., WholeRun]
) -> tuple[Bracket, list[Chosen]]:
    """The bracket with the smallest upper end, and the bounds behind it if it is not `found`.

    Args:
      found: the bracket by the minimum of all bounds; it is returned unless it is extreme and these are the best.
      run: the run of `found`. bounds: as in `account`. alone: the same run by some rows of the table only.

    Raises:
      ArithmeticError: an upper end is below the lower one, a defect of this package.
    """
    rests: list[Chosen] = []
    if bounds != BEST or not extreme(found, delta):
        return found, rests
    others = _one_by_one(run, delta, alone)
    if delta < _EXTREME_DELTA or not found.upper < _EXTREME_EPSILON:
        others = itertools.chain(others, _by_moments(run, delta))
    for other, chosen in others:
        if other.upper < found.upper:
            found = ordered(dataclasses.replace(other, lower=found.lower, lower_method=found.lower_method))
            rests = chosen
    return found, rests


def _one_by_one(
    run: WholeRun, delta: float, alone: Callable[..., WholeRun]
) -> Iterator[tuple[Bracket, list[Chosen]]]:
    """Upper ends by each row of the table that applies to all units."""
    for row in applying(each.unit for kinds in run.chosen for each in kinds):
        one = alone(bounds=row.labels[:1] or (row.word,))
        chosen = [each for kinds in one.chosen for each in kinds]
        yield compose.upper_end(one.units, delta, one.local_caps), chosen


def _by_moments(run: WholeRun, delta: float) -> Iterator[tuple[Bracket, list[Chosen]]]:
    """The upper end by Renyi moments of a run of equal units, if any are known."""
    first = run.chosen[0][0]
    single = len(run.units) == 1 and first.unit.protocol.num_units == run.units[0][1]
    if not single or first.unit.relation != REPLACE:
        return
    try:
        curve = renyi.unit_curve(first.unit.protocol, first.unit.randomizer, first.unit.view)
    except TypeError:  # no moments are known of such messages
        return
    epsilon, order, name = curve.best(delta)
    rows = tuple(row for row in applying([first.unit]) if row.word in name.split())
    found = Bracket(0.0, epsilon, "RDP", optimal_order=order, bound="" if rows else name, names=(name,))
    yield found, [first._replace(rows=rows)]
