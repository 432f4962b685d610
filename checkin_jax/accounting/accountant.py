"""`CheckInAccountant`: our bounds behind dp_accounting's PrivacyAccountant interface."""

from __future__ import annotations

import math

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PrivacyAccountant,
    SelfComposedDpEvent,
)

from checkin_jax import _validate
from checkin_jax.accounting import composer
from checkin_jax.accounting.account import MIN_DELTA, one_round
from checkin_jax.accounting.events import (
    GaussianMessageDpEvent,
    PureLdpDpEvent,
    ShuffledCheckInDpEvent,
    to_randomizer,
)
from checkin_jax.accounting.guarantee import VIEWS
from checkin_jax.protocols import MAX_ROUNDS, ShuffledCheckIn


class CheckInAccountant(PrivacyAccountant):
    """Composes rounds of check-in protocols, of one kind or several, chosen adaptively.

    Formal guarantees: `get_epsilon` is a certified upper bound for everything composed, in the view each event
    names; `get_lower_epsilon` is what no analysis of the same events can go below; `get_delta` is rounded up.

    Assumes: `checkin_jax.accounting.guarantee.ASSUMPTIONS`, for every event.

    Args:
      neighboring_relation: REPLACE_ONE, the only relation with bounds here. Data sets that differ by an added or
        removed client are another question with other numbers, so other relations are refused, not converted.
    """

    def __init__(self, neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE) -> None:
        if neighboring_relation != NeighboringRelation.REPLACE_ONE:
            raise ValueError(
                f"neighboring_relation={neighboring_relation!r}: expected NeighboringRelation.REPLACE_ONE; "
                "no bound of this package holds for another"
            )
        super().__init__(neighboring_relation)
        self._counts: dict[ShuffledCheckInDpEvent, int] = {}
        self._non_private = False

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
        if isinstance(event, ShuffledCheckInDpEvent):
            message = event.message
            if isinstance(message, GaussianMessageDpEvent) and message.noise_multiplier == 0:
                self._non_private |= do_compose and count > 0
                return None
            try:
                _check(event)
            except (TypeError, ValueError) as error:
                return self.CompositionErrorDetails(invalid_event=event, error_message=str(error))
            if do_compose and count > 0:
                self._counts[event] = self._counts.get(event, 0) + count
            return None
        return self.CompositionErrorDetails(
            invalid_event=event, error_message=f"no bound is known for {type(event).__name__}"
        )

    def _bracket(self, delta: float) -> composer.Bracket:
        total = sum(self._counts.values())
        if total > MAX_ROUNDS:
            raise ValueError(f"{total} rounds composed: expected at most {MAX_ROUNDS}")
        rounds = []
        for event, count in self._counts.items():
            randomizer = to_randomizer(event.message)
            assert randomizer is not None  # _check let it in
            one = one_round(event.num_clients, event.check_in_prob, randomizer, event.view, total, delta)
            rounds.append((one, count))
        return composer.bracket(rounds, delta)

    def get_epsilon(self, target_delta: float) -> float:
        """Certified upper bound on epsilon at this delta in [0, 1]; delta below 1e-300 counts as 0.

        Raises:
          TypeError, ValueError: target_delta is not a number in [0, 1].
        """
        target_delta = _validate.real(0, 1, target_delta=target_delta)
        if self._non_private:
            return math.inf
        if target_delta < MIN_DELTA:
            # Pure differential privacy: the losses of the rounds add up.
            losses = [
                e.message.epsilon0 * count if isinstance(e.message, PureLdpDpEvent) else math.inf
                for e, count in self._counts.items()
            ]
            return math.fsum(losses)
        return self._bracket(target_delta).upper

    def get_lower_epsilon(self, target_delta: float) -> float:
        """Lower bound on the epsilon any analysis of the composed events can give, target_delta in [1e-300, 1]."""
        target_delta = _validate.real(MIN_DELTA, 1, target_delta=target_delta)
        return math.inf if self._non_private else self._bracket(target_delta).lower

    def get_delta(self, target_epsilon: float) -> float:
        """A delta at which `get_epsilon` is at most target_epsilon >= 0: the least, to 0.1%, rounded up."""
        target_epsilon = _validate.real(0, math.inf, target_epsilon=target_epsilon)
        if self._non_private:
            return 1.0
        if self.get_epsilon(0.0) <= target_epsilon:
            return 0.0
        low, high = math.log(MIN_DELTA), 0.0
        while high - low > 1e-3:
            middle = 0.5 * (low + high)
            if self.get_epsilon(math.exp(middle)) <= target_epsilon:
                high = middle
            else:
                low = middle
        return math.exp(high)


def _check(event: ShuffledCheckInDpEvent) -> None:
    """Raises unless the event's fields are in range: the same checks that a protocol and a randomizer make."""
    if to_randomizer(event.message) is None:
        raise ValueError(f"message={event.message!r}: expected a PureLdpDpEvent or a GaussianMessageDpEvent")
    ShuffledCheckIn(num_clients=event.num_clients, check_in_prob=event.check_in_prob)
    _validate.choice(VIEWS, view=event.view)
