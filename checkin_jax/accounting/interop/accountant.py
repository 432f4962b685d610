"""`CheckInAccountant`: dp_accounting's PrivacyAccountant interface to the bounds of this package."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PrivacyAccountant,
    SelfComposedDpEvent,
    UnsupportedEventError,
)
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from checkin_jax import _validate
from checkin_jax._rounding import counted
from checkin_jax._suggest import named
from checkin_jax.accounting.account import MIN_DELTA, once, warnings_of
from checkin_jax.accounting.attack import AttackTerms, attack_terms
from checkin_jax.accounting.bounds.interface import Exact, UnitBound, neg_log_tail
from checkin_jax.accounting.bounds.select import (
    BEST,
    Chosen,
    bounds_by_kind,
    check_bounds,
    check_relation,
    has_identical_units,
    local_cap,
)
from checkin_jax.accounting.calibration import largest_count
from checkin_jax.accounting.composition import compose as composer
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.accounting.guarantee import assumptions, relation_of
from checkin_jax.accounting.interop import ledger_file
from checkin_jax.accounting.interop.allocated_epochs import units_in, units_of
from checkin_jax.accounting.interop.central_mechanisms import noiseless
from checkin_jax.accounting.interop.composed_guarantee import (
    ASSUMED,
    SETTLED,
    LedgerGuarantee,
    assumed_of_central,
    composed_words,
    notes_of,
)
from checkin_jax.accounting.interop.events import (
    CheckInDpEvent,
    joined,
    pld_of,
    to_event,
    to_unit,
    unit_event,
)
from checkin_jax.kernels.execution.backend import bisected
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.protocols import MAX_ROUNDS, REPLACE, CheckInProtocol
from checkin_jax.protocols.rounds import MAX_LOG_ROUNDS
from checkin_jax.randomizers import Randomizer


class MixedViewsWarning(UserWarning):
    """Units of one ledger have different views: its epsilon is against an adversary who has all of them."""


@contextlib.contextmanager
def any_views() -> Iterator[None]:
    """Context in which units of different views are composed without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MixedViewsWarning)
        yield


class CheckInAccountant(PrivacyAccountant):
    """Composes rounds of check-in protocols, of one kind or several, and dp_accounting's own events.

    `get_epsilon` is a certified upper bound for the composition, against an adversary who has, of every unit, the view
    that its event names. `get_lower_epsilon` is a lower bound: no valid bound for the same events is below it.
    `get_delta` is rounded up. Populations may differ between units: the bound is for a client in all of them, and holds
    for every other client. `notes` name views and populations that differ.

    GaussianDpEvent, LaplaceDpEvent, RandomizedResponseDpEvent and Poisson-sampled noise compose with check-ins from
    both sides. They have a trusted server, the same clients as records, and values of norm at most 1, so that replacing
    one moves a sum by 2. Other events are refused with a reason.

    Assumes: `assumptions` of every protocol composed (`guarantee` lists them). The clients' computations and
    randomizers may depend on all earlier outputs; the events and their number may not. A run that stops early, for any
    reason, is covered by the bound of all planned units.

    Args:
      neighboring_relation: REPLACE_ONE, or ADD_OR_REMOVE_ONE. The latter supports only windows with hidden dummies, as
        in `account`, and composes all units as adding and as removing the same client. Relations are never converted.
      bounds: as in `account`.
    """

    @named
    def __init__(
        self,
        neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
        *,
        bounds: str | Sequence[str] = BEST,
    ) -> None:
        if not isinstance(neighboring_relation, NeighboringRelation):
            raise _validate.type_error("a NeighboringRelation", neighboring_relation=neighboring_relation)
        self._relation = relation_of(neighboring_relation)
        super().__init__(neighboring_relation)
        self._counts = collections.Counter[CheckInDpEvent]()
        self._central = collections.Counter[DpEvent]()
        self._non_private = False
        self._bounds = check_bounds(bounds)

    def _maybe_compose(
        self, event: DpEvent, count: int, do_compose: bool
    ) -> PrivacyAccountant.CompositionErrorDetails | None:
        if isinstance(event, NoOpDpEvent):
            return None
        if isinstance(event, ComposedDpEvent):
            errors = (self._maybe_compose(e, count, do_compose) for e in event.events)
            return next((error for error in errors if error is not None), None)
        if isinstance(event, SelfComposedDpEvent):
            return self._maybe_compose(event.event, event.count * count, do_compose)
        if isinstance(event, NonPrivateDpEvent):
            self._non_private |= do_compose and count > 0
            return None
        if isinstance(event, CheckInDpEvent):
            try:
                check_relation(to_unit(event).protocol, event.view, self._relation)
            except (TypeError, ValueError) as error:
                return self.CompositionErrorDetails(invalid_event=event, error_message=str(error))
            if do_compose and count > 0:
                self._counts[event] += count
            return None
        if noiseless(event):
            self._non_private |= do_compose and count > 0
            return None
        try:
            units_of(event, self._relation)
        except (TypeError, ValueError) as error:
            return self.CompositionErrorDetails(invalid_event=event, error_message=str(error))
        if do_compose and count > 0:
            self._central[event] += count
        return None

    def compose(self, event: DpEvent, count: int = 1) -> Self:
        """Adds `event` `count` times; returns the accountant.

        Raises:
          UnsupportedEventError: no bound is known for it. TypeError: a protocol instead of its event. ValueError,
            TypeError: as dp_accounting's.

        Warns:
          MixedViewsWarning: the event is the first one in its view, and other views are present.
        """
        if isinstance(event, CheckInProtocol):
            raise TypeError(
                f"event={_validate.shown(event)}: expected a DpEvent; did you mean "
                "to_event(protocol, randomizer, view=...)?"
            )
        before = {each.view for each in self._counts}
        super().compose(event, count)
        if len({each.view for each in self._counts}) > max(1, len(before)):
            warnings.warn(self.notes[0], MixedViewsWarning, stacklevel=2)
        return self

    @property
    def _total(self) -> int:
        return sum(count * event.protocol.num_units for event, count in self._counts.items()) + sum(
            count * units_in(event) for event, count in self._central.items()
        )

    def _units(self, delta: float, at_most: int = 0) -> list[tuple[UnitBound, int]]:
        """Bounds on the units with their numbers, valid for compositions of `at_most` units, too."""
        total = max(self._total, at_most)
        if total > MAX_ROUNDS:
            raise ValueError(f"{total} rounds composed: expected at most {MAX_ROUNDS}")
        ours = [
            (chosen.bound, number * count)
            for _, count, kinds in self._bounds_by_kind(total, delta)
            for chosen, number in kinds
        ]
        with float64():
            return ours + self._central_units(neg_log_tail(float(max(total, 1)), max(delta, MIN_DELTA)))

    def _central_units(self, mass: float) -> list[tuple[UnitBound, int]]:
        """Bounds on the units of a trusted server with their numbers, each dropping a mass of exp(-mass)."""
        return [
            (one, number * count)
            for each, count in self._central.items()
            for one, number in units_of(each, self._relation, mass)
        ]

    def _bounds_by_kind(
        self, total: float, delta: float
    ) -> list[tuple[CheckInDpEvent, int, list[tuple[Chosen, int]]]]:
        """(event, count, bounds on its kinds of unit with their numbers) for each event; logs are joined."""
        how = {"bounds": self._bounds, "relation": self._relation}
        return [
            (unit, count, bounds_by_kind(unit.protocol, unit.randomizer, unit.view, total, delta, **how)[0])
            for unit, count in joined(self._counts)
        ]

    def _local_caps(self) -> list[tuple[Exact, int]]:
        """Exact local-view bounds on all units, with their numbers; empty if one is missing or none is a cap."""
        units = self._counts.items()
        if self._central or self._relation != REPLACE or all(unit.view == "local" for unit, _ in units):
            return []
        found = collections.Counter[Exact]()
        for unit, count in units:
            for kind, _, number in unit.protocol.unit_groups(False):
                alone = local_cap(kind, unit.randomizer, "messages", self._relation)
                if alone is None:
                    return []
                found[alone] += number * count
        return list(found.items())

    @named
    def get_epsilon(self, target_delta: float) -> float:
        """Certified upper bound on epsilon at this delta in [0, 1]; delta below 1e-300 counts as 0.

        Raises:
          TypeError, ValueError: target_delta is not a number in [0, 1].
        """
        return self._epsilon(_validate.real(0, 1, target_delta=target_delta), 0)

    def _epsilon(self, delta: float, at_most: int) -> float:
        """`get_epsilon` by bounds that are valid for compositions of `at_most` units, too."""
        if self._non_private:
            return math.inf
        if delta < MIN_DELTA:
            # Pure differential privacy: the largest losses of the units add up.
            return math.fsum(one.largest_loss * count for one, count in self._units(MIN_DELTA)) * (
                1.0 + 1e-12
            )
        return composer.upper_end(self._units(delta, at_most), delta, self._local_caps()).upper

    @named
    def get_lower_epsilon(self, target_delta: float) -> float:
        """Lower end of epsilon at this delta, rounded down: no valid bound for the composed events is below it.

        Raises:
          TypeError, ValueError: target_delta is not a number in [1e-300, 1].
        """
        target_delta = _validate.real(MIN_DELTA, 1, target_delta=target_delta)
        if self._non_private:
            return math.inf
        return composer.bracket(self._units(target_delta), target_delta, self._local_caps()).lower

    @named
    def attack(self, target_delta: float) -> AttackTerms:
        """Attack terms of the composition, both ends certified; target_delta in [1e-300, 1).

        Raises:
          TypeError, ValueError: target_delta is not in its range, or a non-private event was composed.
        """
        return self._attack(target_delta, None)

    def _attack(self, target_delta: float, found: Bracket | None) -> AttackTerms:
        target_delta = _validate.real(MIN_DELTA, 1, "[)", target_delta=target_delta)
        if self._non_private:
            raise ValueError("no attack terms: a non-private event was composed")
        units, own = self._units(target_delta), self._local_caps()
        if found is None:
            found = composer.bracket(units, target_delta, own)
        return attack_terms(units, target_delta, found, own)

    @named
    def guarantee(self, target_delta: float, *, attack: bool = False) -> LedgerGuarantee:
        """The guarantee of the composition at this delta in [1e-300, 1].

        Args:
          target_delta: delta of the guarantee.
          attack: True to include attack terms, in about twice the time.

        Returns:
          A LedgerGuarantee: the ends of `get_epsilon` and `get_lower_epsilon`, and the statement in words.

        Raises:
          TypeError, ValueError: target_delta is not in its range; nothing was composed; or attack terms are requested
            for a non-private event, or at delta = 1.
        """
        delta = _validate.real(MIN_DELTA, 1, target_delta=target_delta)
        if not self._total and not self._non_private:
            raise ValueError("no guarantee: nothing was composed")
        chosen = [
            (unit, each) for unit, _, kinds in self._bounds_by_kind(self._total, delta) for each, _ in kinds
        ]
        if self._non_private:
            found, names = Bracket(math.inf, math.inf, "a non-private event", "a non-private event"), []
        else:
            units = self._units(delta)
            found = composer.bracket(units, delta, self._local_caps())
            names = found.names or [one.name for one, _ in units]
        method = found.bound or "; ".join(dict.fromkeys(names))
        assumed = [
            (
                *assumptions(unit.protocol, unit.randomizer, unit.view, self._relation),
                *(() if found.bound else each.assumes),
            )
            for unit, each in chosen
        ]
        several = (SETTLED,) if len(self._counts) + len(self._central) > 1 else ()
        warned = [warnings_of(unit.protocol, each, delta, found) for unit, each in chosen]
        return LedgerGuarantee(
            epsilon=found.upper,
            lower=found.lower,
            delta=delta,
            neighboring_relation=self._relation,
            units=tuple(self._counts.items()),
            central=tuple(self._central.items()),
            method=f"{method}, {found.method}" if method else found.method,
            lower_method=found.lower_method,
            theorems=() if found.bound else once(each.stated for _, each in chosen),
            assumptions=once([*assumed, assumed_of_central(self._central), several]),
            warnings=once([*warned, [note for note in self.notes if note != ASSUMED]]),
            attack=self._attack(delta, found) if attack else None,
        )

    def __str__(self) -> str:
        blocks = [*self.notes, *composed_words(self._counts.items(), self._central.items())]
        if self._non_private:
            blocks.append("a non-private event: no epsilon is finite")
        return "\n\n".join(blocks) if blocks else "nothing was composed"

    def __repr__(self) -> str:
        kinds = len(self._counts) + len(self._central)
        return f"<{type(self).__name__}: {counted(self._total, 'unit')} of {counted(kinds, 'kind')}, {self._relation}>"

    @named
    def get_delta(self, target_epsilon: float) -> float:
        """Least delta at which `get_epsilon` is at most target_epsilon, to 0.1%, rounded up.

        Raises:
          TypeError, ValueError: target_epsilon is not a number >= 0.
        """
        target_epsilon = _validate.real(0, math.inf, target_epsilon=target_epsilon)
        if self._non_private:
            return 1.0
        if self.get_epsilon(0.0) <= target_epsilon:
            return 0.0

        def too_small(log_delta: float) -> bool:
            return self.get_epsilon(math.exp(log_delta)) > target_epsilon

        return math.exp(bisected(too_small, math.log(MIN_DELTA), 0.0, 20)[1])

    def _trial(self, event: DpEvent, count: int = 1) -> Self:
        """A copy that has composed the event, too."""
        with any_views():
            return copy.deepcopy(self).compose(event, count)

    @named
    def would_exceed(
        self, event: DpEvent, count: int = 1, *, target_epsilon: float, target_delta: float
    ) -> bool:
        """True if epsilon at target_delta would exceed target_epsilon after composing `event` count times more.

        Nothing is composed. True, too, if the event has no bound. This is no privacy filter: the bound is proved for
        events, and numbers of them, that are fixed before any output. Stopping when this is True is valid only if the
        composed events do not depend on outputs.

        Raises:
          TypeError, ValueError: a target or the count outside its range.
        """
        target_epsilon = _validate.real(0, math.inf, target_epsilon=target_epsilon)
        count = _validate.integer(1, MAX_ROUNDS, count=count)
        if not self.supports(event):
            return True
        trial = self._trial(event, count)
        if trial._total > MAX_ROUNDS:
            return True
        return trial.get_epsilon(target_delta) > target_epsilon

    @named
    def rounds_left(
        self,
        protocol: CheckInProtocol,
        randomizer: Randomizer,
        *,
        view: str = "messages",
        target_epsilon: float,
        target_delta: float,
    ) -> int:
        """Number of further rounds, or windows, of this protocol with epsilon at most the target; 0 if none.

        Rounds of a log continue from its beginning after its end. The number is the largest that is feasible. Nothing
        is composed. As for `would_exceed`, events must not depend on outputs.

        Raises:
          TypeError, ValueError: a target outside its range, or a run without a bound here.
        """
        target_epsilon = _validate.real(0, math.inf, "(]", target_epsilon=target_epsilon)
        unit = unit_event(protocol, randomizer, view).protocol
        check_relation(unit, view, self._relation)
        most = MAX_ROUNDS - self._total
        if not has_identical_units(protocol):
            most = min(most, MAX_LOG_ROUNDS)

        def epsilon(count: int) -> float:
            trial = self._trial(to_event(protocol.repeated(count), randomizer, view=view))
            # Neighboring numbers of rounds share their bounds, which are made once.
            at_most = 16 ** math.ceil(math.log(max(trial._total, 2), 16))
            return trial._epsilon(target_delta, min(at_most, MAX_ROUNDS))

        if most <= 0:
            return 0
        # Epsilon grows about like the root of all rounds, those that were composed among them.
        done = self._total
        found = largest_count(
            lambda count: epsilon(count - done),
            done + most,
            target_epsilon,
            least=done + 1,
            start=done + min(protocol.num_units, most),
        )
        return found - done if found else 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes to the reader of this ledger: views and populations, if units differ in them."""
        return notes_of(list(self._counts), bool(self._central))

    def state_dict(self) -> dict[str, Any]:
        """The ledger as plain values (JSON), under a schema version."""
        return ledger_file.save_state(
            self._counts, self._central, self._non_private, self.neighboring_relation.name
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the ledger by a saved one; `self.ledger`, dp_accounting's list of events, is rebuilt from it.

        Raises:
          ValueError, TypeError: another schema version, relation or unknown field, or an event without a bound; the
            accountant is then unchanged.
        """
        counts, others, non_private = ledger_file.load_state(state, self.neighboring_relation.name)
        fresh = type(self)(self.neighboring_relation, bounds=self._bounds)
        for event, count in (*counts.items(), *others.items()):
            try:
                fresh.compose(event, count)
            except UnsupportedEventError as error:
                raise ValueError(str(error)) from error
        if non_private:
            fresh.compose(NonPrivateDpEvent())
        self._counts, self._central = fresh._counts, fresh._central
        self._non_private, self._ledger = fresh._non_private, fresh._ledger

    def to_pld(
        self, *, value_discretization_interval: float = 1e-4, tail_mass: float = 1e-15
    ) -> PrivacyLossDistribution:
        """Returns the composed privacy loss distribution as dp_accounting's object, pessimistic; see `cj.to_pld`.

        Raises:
          ValueError: nothing, or a non-private event, was composed; or an argument outside its range.
        """
        if self._non_private or not self._total:
            raise ValueError("no privacy loss distribution: compose private events only, and at least one")
        spacing = _validate.real(0, 500, "(]", value_discretization_interval=value_discretization_interval)
        tail_mass = _validate.real(0, 1, "()", tail_mass=tail_mass) / self._total
        with float64():
            # The bound on one unit, whatever their number.
            units = [
                (chosen.bound, number * count)
                for _, count, kinds in self._bounds_by_kind(1.0, tail_mass)
                for chosen, number in kinds
            ]
            units += self._central_units(17.0 - math.log(tail_mass))
            parts = (
                pld_of(one, spacing=spacing, tail_mass=tail_mass).self_compose(count) for one, count in units
            )
            return functools.reduce(lambda one, other: one.compose(other), parts)


@named
def to_pld(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str = "messages",
    *,
    value_discretization_interval: float = 1e-4,
    tail_mass: float = 1e-15,
    bounds: str | Sequence[str] = BEST,
    neighboring_relation: str | NeighboringRelation = REPLACE,
) -> PrivacyLossDistribution:
    """Returns the privacy loss distribution of ONE unit of the protocol (a round, or a window), to be composed.

    Pessimistic: a pair on a grid whose profile is at least the unit's in both directions (connect the dots). Every
    epsilon or delta computed from it is an upper bound, up to dp_accounting's own FFT round-off.

    Args:
      protocol: as in `account`; its number of units is ignored.
      randomizer: as in `account`.
      view: as in `account`.
      value_discretization_interval: spacing of the grid, nats, in (0, 500].
      tail_mass: mass of the unit that counts at infinite loss, in (0, 1).
      bounds: as in `account`.
      neighboring_relation: as in `account`; under add-or-remove-one the two directions differ.

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range; or a grid of more than 2e6 points.
    """
    ledger = CheckInAccountant(
        NeighboringRelation[ledger_file.RELATIONS[relation_of(neighboring_relation)]], bounds=bounds
    )
    ledger.compose(unit_event(protocol, randomizer, view))
    return ledger.to_pld(value_discretization_interval=value_discretization_interval, tail_mass=tail_mass)
