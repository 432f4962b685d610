"""Selection of the bounds of a run: the pointwise minimum of all that apply, or of the requested ones."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from checkin_jax import _validate
from checkin_jax.accounting import witnesses
from checkin_jax.accounting.bounds import table, theorems
from checkin_jax.accounting.bounds.interface import (
    Exact,
    LocalMessages,
    LocalOnly,
    Minimum,
    UnitBound,
    minimum,
    neg_log_tail,
    on_grid_of,
)
from checkin_jax.accounting.bounds.table import Bound
from checkin_jax.accounting.bounds.unequal.populations import reported
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.protocols import REPLACE, CheckInProtocol
from checkin_jax.randomizers import MAX_EPSILON0, Randomizer
from checkin_jax.randomizers.randomizer import check_label_laws, check_profile

# Values of `bounds=` besides words.
BEST, FAST_ONES = "best", "fast"
# Losses at which a randomizer's profile is checked.
_CHECKED = 32


class Chosen(NamedTuple):
    """The bound on one unit, and its rows of the table; no rows if only the local bound is known."""

    bound: UnitBound
    rows: tuple[Bound, ...]
    unit: Unit

    @property
    def stated(self) -> tuple[str, ...]:
        """Word, sentence and reference of each bound, and of every bound that the name mentions."""
        named = {word.strip("(),") for word in self.bound.name.split()} | {each.word for each in self.rows}
        found = {each.word: each.stated for each in table.BOUNDS if each.word in named and self.rows}
        return tuple(found.values())

    @property
    def assumes(self) -> tuple[str, ...]:
        """Assumptions of the bounds besides the protocol's own."""
        return tuple(text for each in self.rows for text in each.needs(self.unit))

    @property
    def caveats(self) -> tuple[str, ...]:
        """Caveats of the bound, if it is the only one."""
        if len(self.rows) != 1 or self.rows[0].caveat is None:
            return ()
        caveat = self.rows[0].caveat(self.unit)
        return (caveat,) if caveat else ()


def check_bounds(bounds: Any) -> str | tuple[str, ...]:
    """ "best", "fast", or words of the table as a tuple.

    Raises:
      TypeError, ValueError: anything else.
    """
    if isinstance(bounds, str) and bounds in (BEST, FAST_ONES):
        return bounds
    words = (bounds,) if isinstance(bounds, str) else bounds
    if isinstance(words, Sequence) and words and all(word in table.words() for word in words):
        return tuple(words)
    raise (TypeError if not isinstance(bounds, str | Sequence) else ValueError)(
        f"bounds={_validate.shown(bounds)}: expected 'best', 'fast', or words out of {', '.join(table.words())}"
        + once_called(words if isinstance(words, Sequence) else ())
    )


def once_called(labels: Sequence[Any]) -> str:
    """Hint for an error: the word of the first label that is one of the proofs; empty if there is none."""
    for label in labels:
        if isinstance(label, str) and (word := table.word_of(label)) is not None:
            return f"; {label} is a case of {word!r}"
    return ""


def check_protocol(protocol: Any) -> CheckInProtocol:
    if not isinstance(protocol, CheckInProtocol):
        raise _validate.type_error("a CheckInProtocol, such as ShuffledCheckIn(...)", protocol=protocol)
    return protocol


def has_identical_units(protocol: CheckInProtocol) -> bool:
    """True if all units of the protocol have the same bound; `whole_run` serves other protocols, too."""
    return protocol.unit_groups(False)[0].above is protocol


def check_identical_units(protocol: CheckInProtocol) -> CheckInProtocol:
    if not has_identical_units(protocol):
        raise _validate.error("a protocol with identical rounds; pass others to `account`", protocol=protocol)
    return protocol


def check_randomizer(randomizer: Any) -> Randomizer:
    if not isinstance(randomizer, Randomizer):
        raise TypeError(
            f"randomizer={_validate.shown(randomizer)}: expected a Randomizer, such as PureLDP(...) or Gaussian(...)"
            + (
                "; one for all clients of a round: `account_groups` takes groups with randomizers of their own"
                if isinstance(randomizer, Mapping | list | tuple)
                else ""
            )
        )
    name = type(randomizer).__name__
    check_profile(f"{name}.profile", randomizer.profile, randomizer.largest_loss, _CHECKED)
    check_label_laws(name, randomizer, _CHECKED)
    return randomizer


def check_relation(protocol: CheckInProtocol, view: str, relation: str) -> str:
    """The relation, of `protocols.RELATIONS`, itself; raises ValueError if the protocol has no bound for it."""
    why = protocol.refuses(relation, view)
    if why is None:
        return relation
    raise _validate.error(f"{REPLACE!r} here: {why}", neighboring_relation=relation)


def unit_bound(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str,
    total: float,
    delta: float,
    *,
    bounds: str | tuple[str, ...] = BEST,
    relation: str = REPLACE,
    client_rate: float | None = None,
) -> Chosen:
    """The smallest bound on one of `total` units that are composed at delta.

    Args:
      bounds: "best": all rows of the table that apply. "fast": those that cost at most `table.FAST` seconds. Otherwise
        words, or labels of the proofs: these rows alone.
      view, relation: of `protocols.VIEWS` and `protocols.RELATIONS`.
      client_rate: as in `account`.

    Raises:
      ValueError: no bound for this neighboring relation, no requested bound that applies, or no client of this rate.
    """
    check_relation(protocol, view, relation)
    check_identical_units(protocol)
    with float64():
        mass = neg_log_tail(total, delta)
        return _chosen(Unit(protocol, randomizer, view, relation, mass, client_rate), bounds)


def built_bounds(unit: Unit, bounds: str | tuple[str, ...]) -> list[tuple[Bound, UnitBound]]:
    """Bounds of the table that apply to a unit, without those that another one makes redundant.

    Those on `unit.averaged` come without witnesses, which are not the unit's own.

    Raises:
      ValueError: words are requested, and none of them applies.
    """
    tried = [bound for bound in table.BOUNDS if _wanted(bound, bounds)]
    built = [(bound, made) for bound in tried if (made := bound.build(unit)) is not None]
    if (averaged := unit.averaged) is not None:
        built += [
            (bound.on(averaged), Minimum((made,)))
            for bound in tried
            if (made := bound.build(averaged)) is not None
        ]
    if not built and not isinstance(bounds, str):
        apply = dict.fromkeys(bound.word for bound in table.BOUNDS if bound.build(unit) is not None)
        raise _validate.error(f"words that apply here: {', '.join(apply) or 'none does'}", bounds=bounds)
    return not_included(built)


def applying(units: Iterable[Unit]) -> list[Bound]:
    """Rows of the table that apply to all of the units."""
    units = list(units)
    if any(unit.view == "local" or unit.alone for unit in units):
        return []
    with float64():
        return [bound for bound in table.BOUNDS if all(bound.build(unit) is not None for unit in units)]


def _chosen(unit: Unit, bounds: str | tuple[str, ...]) -> Chosen:
    """The bound on the unit, cached together with its evaluations."""
    try:
        hash(unit)
    except TypeError:  # a description with fields that cannot be hashed
        return _choose(unit, bounds)
    return _kept(unit, bounds, table.BOUNDS)


# Room for both ends of all groups of a log.
@functools.lru_cache(maxsize=128)
def _kept(unit: Unit, bounds: str | tuple[str, ...], _rows: tuple[Bound, ...]) -> Chosen:
    """`_choose` for the present rows of the table."""
    return _choose(unit, bounds)


def _choose(unit: Unit, bounds: str | tuple[str, ...]) -> Chosen:
    view, relation, randomizer = unit.view, unit.relation, unit.randomizer
    local = theorems.local(unit)
    if view == "local" or unit.alone:
        return Chosen(local, (), unit)
    if unit.protocol.reported is not None:
        own = _chosen(dataclasses.replace(unit, protocol=unit.protocol.reported, client_rate=None), bounds)
        if isinstance(own.bound, LocalOnly):
            return Chosen(LocalOnly(local), (), unit)
        return own._replace(bound=reported(own.bound, unit.rate))
    built = built_bounds(unit, bounds)
    honest = witnesses.trusting(unit)
    trusted = [] if honest is unit else [made for _, made in built_bounds(honest, FAST_ONES)]
    if relation != REPLACE:
        if not built:
            why = f"no bound is known for {randomizer.description}"
            raise _validate.error(f"{REPLACE!r} here: {why}", neighboring_relation=relation)
        known = [made for _, made in built]
    elif not built:
        return Chosen(LocalOnly(local, witnesses.of_unit(unit, (), trusted)), (), unit)
    else:
        # Any view is a post-processing of the named messages.
        in_slots = unit.slots is not None or unit.protocol.used_slot_choices is not None
        beside = isinstance(local, LocalMessages) or (unit.epsilon0 is None and in_slots)
        known = [made for _, made in built] + ([local] if beside else [])
    pairs = witnesses.of_unit(unit, [made for _, made in built], trusted)
    if len(known) == 1 and list(map(id, pairs)) == list(map(id, known[0].witnesses)):
        found = known[0]
    else:
        found = minimum(known, pairs)
    return Chosen(found, tuple(bound for bound, _ in built), unit)


def local_cap(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str,
    relation: str,
    client_rate: float | None = None,
) -> Exact | None:
    """The exact local-view bound, which caps a weaker view; None if there is none, or in the local view itself."""
    if view == "local" or relation != REPLACE:
        return None
    local = theorems.local(Unit(protocol, randomizer, "local", relation, 1.0, client_rate))
    return local if isinstance(local, Exact) else None


class WholeRun(NamedTuple):
    """Bounds of a run and of the runs before it, for the composition.

    chosen: bounds on each kind of unit, run by run, this run first. units: bounds with their numbers of units.
    local_caps: local-view bounds with their numbers of units; empty unless every unit has one.
    """

    chosen: list[list[Chosen]]
    units: list[tuple[UnitBound, int]]
    local_caps: list[tuple[Exact, int]]


def whole_run(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str,
    delta: float,
    *,
    bounds: str | tuple[str, ...],
    relation: str,
    client_rate: float | None = None,
    before: Sequence[tuple[CheckInProtocol, Randomizer]] = (),
) -> WholeRun:
    """`unit_bound` and `local_cap` for all units of the run, and of the runs before it.

    Raises:
      ValueError: as `unit_bound`.
    """
    total = sum(each.num_units for each, _ in [(protocol, randomizer), *before])
    run = WholeRun([], [], [])
    for i, (whole, its) in enumerate([(protocol, randomizer), *before]):
        # With equal rates the bound covers every client.
        meant = None if i and whole.unequal_rates is None else client_rate
        how = {"bounds": bounds, "relation": relation, "client_rate": meant}
        kinds, local_caps = bounds_by_kind(whole, its, view, total, delta, **how)
        run.chosen.append([chosen for chosen, _ in kinds])
        run.units.extend((chosen.bound, count) for chosen, count in kinds)
        run.local_caps.extend(local_caps)
    return run if len(run.local_caps) == len(run.units) else run._replace(local_caps=[])


def bounds_by_kind(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str,
    total: float,
    delta: float,
    *,
    bounds: str | tuple[str, ...],
    relation: str,
    client_rate: float | None = None,
) -> tuple[list[tuple[Chosen, int]], list[tuple[Exact, int]]]:
    """`unit_bound` and `local_cap` of each kind of unit of a protocol, with their numbers of units.

    Args:
      total: number of units that are composed, these and others.

    Raises:
      ValueError: as `unit_bound`.
    """
    kinds: list[tuple[Chosen, int]] = []
    local_caps: list[tuple[Exact, int]] = []
    how = {"relation": relation, "client_rate": client_rate}
    finest = bounds != BEST or randomizer.largest_loss <= MAX_EPSILON0
    with float64():
        for above, below, count in protocol.unit_groups(finest):
            # Fewer clients in a sum bring less noise, so a bound for a higher rate does not cover it.
            shown_view = "messages" if view == "aggregate" and above.rate != below.rate else view
            one = unit_bound(above, randomizer, shown_view, total, delta, bounds=bounds, **how)
            if below != above:
                low = unit_bound(below, randomizer, shown_view, total, delta, bounds=FAST_ONES, **how).bound
                # A witness without a grid bound of its own gets this one. Witnesses in another view than
                # the run's do not count.
                scaled = [
                    on_grid_of(one.bound, each) for each in (low.witnesses if shown_view == view else ())
                ]
                one = one._replace(bound=minimum((one.bound,), scaled))
            kinds.append((one, count))
            if (alone := local_cap(above, randomizer, view, **how)) is not None:
                local_caps.append((alone, count))
    return kinds, local_caps


def _wanted(bound: Bound, bounds: str | tuple[str, ...]) -> bool:
    if bounds == FAST_ONES:
        return bound.seconds <= table.FAST
    return bounds == BEST or not {bound.word, *bound.labels}.isdisjoint(bounds)


def not_included(built: list[tuple[Bound, Any]]) -> list[tuple[Bound, UnitBound]]:
    """The bounds without those that another one includes."""
    included = {label for _, made in built for label in getattr(made, "includes", ())}
    return [each for each in built if included.isdisjoint(each[0].labels)]
