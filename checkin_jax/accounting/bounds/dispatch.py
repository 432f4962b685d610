"""Which bound serves which protocol, randomizer, view and neighboring relation."""

from __future__ import annotations

from checkin_jax import _validate
from checkin_jax.accounting.bounds import slots, unit, ways
from checkin_jax.accounting.bounds.clones import OccupiedPureLDP, ShuffledPureLDP, SlotsPureLDP, Smaller
from checkin_jax.accounting.bounds.everybody import AveragedGaussian, HiddenGaussian, ShuffledEverybody
from checkin_jax.accounting.bounds.profiles import MOST_MU
from checkin_jax.accounting.composition import composer
from checkin_jax.accounting.guarantee import ADD_OR_REMOVE, REPLACE
from checkin_jax.protocols import PROTOCOLS, AveragedUpdates, CheckInProtocol, FixedWindow, SlidingWindow
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer

# The rate from which G2, which takes tens of milliseconds, is tried without `tight`.
_NEARLY_ALL = 0.5


def check_protocol(protocol: CheckInProtocol) -> CheckInProtocol:
    """Raises TypeError unless it is one of the protocols there are bounds for."""
    if not isinstance(protocol, PROTOCOLS):
        names = ", ".join(kind.__name__ for kind in PROTOCOLS)
        raise TypeError(f"protocol={_validate.shown(protocol)}: expected one of {names}")
    return protocol


def check_randomizer(randomizer: Randomizer) -> Randomizer:
    """Raises TypeError unless it is one of the randomizers there are bounds for."""
    if not isinstance(randomizer, PureLDP | Gaussian):
        raise TypeError(f"randomizer={_validate.shown(randomizer)}: expected a PureLDP or a Gaussian")
    return randomizer


def check_relation(protocol: CheckInProtocol, view: str, relation: str) -> str:
    """Raises ValueError where no bound is known for this relation: `relation` is of `guarantee.RELATIONS`.

    Adding or removing a client is bounded only where nobody sees how many messages there are: one message in every
    slot, dummies among them that cannot be recognised.
    """
    if relation == REPLACE:
        return relation
    if view == "local":
        why = "who sees names sees whether a client takes part"
    elif isinstance(protocol, FixedWindow) and protocol.empty_slots == "visible":
        why = "a client that is alone in its slot is missed where empty slots are visible"
    elif isinstance(protocol, FixedWindow | SlidingWindow):
        return relation
    else:
        why = f"no bound is known for {type(protocol).__name__}, whose number of messages may be seen"
    raise ValueError(f"neighboring_relation={relation!r}: expected {REPLACE!r} here: {why}")


def one_round(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str,
    total: float,
    delta: float,
    *,
    tight: bool = False,
    relation: str = REPLACE,
) -> unit.Round:
    """The composer's description of one unit of the protocol, one of `total` that are composed at delta.

    tight: the smallest bound there is, at a quarter of a second more; else the smallest of those in milliseconds.

    Raises:
      ValueError: there is no bound for this neighboring relation.
    """
    check_relation(protocol, view, relation)
    mass = composer.log_inverse_mass(total, delta)
    if relation == ADD_OR_REMOVE:
        assert isinstance(protocol, FixedWindow | SlidingWindow)
        if isinstance(randomizer, Gaussian):
            return slots.added(protocol, randomizer.mu, mass, view)
        return SlotsPureLDP(*ways.slots_of(protocol), randomizer.epsilon0, mass, removal=True)
    if isinstance(randomizer, Gaussian):
        return _gaussian(protocol, randomizer.mu, view, mass, tight)
    if view == "local":
        return own_messages(protocol, randomizer)
    return _pure(protocol, randomizer.epsilon0, mass, tight)


def own_messages(protocol: CheckInProtocol, randomizer: Randomizer) -> unit.LocalGaussian | unit.LocalPureLDP:
    """The view `local` of one unit, under replacement of a record: who sees less learns no more."""
    if isinstance(randomizer, Gaussian):
        return unit.LocalGaussian(protocol.rate, randomizer.mu)
    return unit.LocalPureLDP(protocol.rate, randomizer.epsilon0)


def stronger(
    protocol: CheckInProtocol, randomizer: Randomizer, view: str, relation: str
) -> unit.LocalGaussian | unit.LocalPureLDP | None:
    """What is known of one unit in the view of the strongest adversary, if this is another one's; else None.

    The composer takes the smaller end, so that no view has more than `local`.
    """
    if view == "local" or relation != REPLACE:
        return None
    return own_messages(protocol, randomizer)


def _gaussian(protocol: CheckInProtocol, mu: float, view: str, mass: float, tight: bool) -> unit.Round:
    local = unit.LocalGaussian(protocol.rate, mu)
    if view == "local":
        return local
    if isinstance(protocol, FixedWindow | SlidingWindow):
        return slots.replaced(protocol, mu, mass, view, tight)
    n, rate = protocol.num_clients, protocol.rate
    hidden: unit.Round | None = None
    if tight and rate < 1.0 and mu <= MOST_MU:
        hidden = HiddenGaussian(n, rate, mu, mass)
    if rate == 1.0:
        hidden = ShuffledEverybody(n, mu, mass)
    elif hidden is None and rate >= _NEARLY_ALL:
        alone = unit.ShuffledGaussian(n, rate, mu, False, mass)
        hidden = unit.Least((alone, ShuffledEverybody(n, mu, mass)), alone.instances)
    if isinstance(protocol, AveragedUpdates):
        # Whoever takes part is hidden as in shuffled check-in, and loads are seen: sums serve as instances.
        shuffled = unit.ShuffledGaussian(n, rate, mu, False, mass) if hidden is None else hidden
        if view == "messages":
            return shuffled
        averaged = AveragedGaussian(n, protocol.num_slots, protocol.check_in_prob, mu, mass)
        # Instances of messages are none of averages.
        summed = unit.ShuffledGaussian(n, rate, mu, False, mass)
        return unit.Least((averaged, shuffled), summed.instances)
    if view == "messages" and hidden is not None:
        return hidden
    return unit.ShuffledGaussian(n, rate, mu, view == "aggregate", mass)


def _pure(protocol: CheckInProtocol, epsilon0: float, mass: float, tight: bool) -> unit.Round:
    if isinstance(protocol, SlidingWindow):
        return SlotsPureLDP(*ways.slots_of(protocol), epsilon0, mass)
    if isinstance(protocol, FixedWindow):
        n, m, prob = protocol.num_clients, protocol.num_slots, protocol.check_in_prob
        occupied = OccupiedPureLDP(n, m, prob, epsilon0, mass)
        if protocol.empty_slots == "visible":
            return occupied
        return Smaller(SlotsPureLDP(*ways.slots_of(protocol), epsilon0, mass), occupied)
    name = "T3 (T1 at the probability of taking part)" if isinstance(protocol, AveragedUpdates) else "T1"
    return ShuffledPureLDP(protocol.num_clients, protocol.rate, epsilon0, mass, name, tight)
