"""Which bound serves which protocol, randomizer and view."""

from __future__ import annotations

import math

from checkin_jax.accounting import composer, rounds
from checkin_jax.accounting.allocation_rounds import AveragedGaussian, ReplacedGaussian, replaced_rate
from checkin_jax.accounting.profile_rounds import GaussianProfile, HiddenMessages
from checkin_jax.accounting.pure_rounds import OccupiedPureLDP, ShuffledPureLDP, SlotsPureLDP, Smaller
from checkin_jax.kernels import occupancy
from checkin_jax.protocols import PROTOCOLS, AveragedUpdates, CheckInProtocol, FixedWindow, SlidingWindow
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer

# The largest mu that T* gains at, and the range of R2: beyond, messages have hardly any noise, or hardly anything else.
_HIDDEN, _ALLOCATED = 16.0, (1e-6, 100.0)


def check_protocol(protocol: CheckInProtocol) -> CheckInProtocol:
    """Raises TypeError unless it is one of the protocols there are bounds for."""
    if not isinstance(protocol, PROTOCOLS):
        names = ", ".join(kind.__name__ for kind in PROTOCOLS)
        raise TypeError(f"protocol={protocol!r}: expected one of {names}")
    return protocol


def check_randomizer(randomizer: Randomizer) -> Randomizer:
    """Raises TypeError unless it is one of the randomizers there are bounds for."""
    if not isinstance(randomizer, PureLDP | Gaussian):
        raise TypeError(f"randomizer={randomizer!r}: expected a PureLDP or a Gaussian")
    return randomizer


def one_round(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    view: str,
    total: float,
    delta: float,
    *,
    tight: bool = False,
) -> rounds.Round:
    """The composer's description of one unit of the protocol, one of `total` that are composed at delta.

    tight: the smallest bound there is, at a quarter of a second more; else the smallest of those in milliseconds.
    """
    if isinstance(randomizer, Gaussian):
        return _gaussian(protocol, randomizer, view, total, delta, tight)
    if view == "local":
        return rounds.LocalPureLDP(_sends(protocol), randomizer.epsilon0)
    return _pure(protocol, randomizer.epsilon0, composer.log_inverse_mass(total, delta), tight)


def _sends(protocol: CheckInProtocol) -> float:
    """The probability that a given client sends its message in one unit."""
    if isinstance(protocol, FixedWindow):
        return protocol.check_in_prob
    return 1.0 if isinstance(protocol, SlidingWindow) else protocol.rate


def _gaussian(
    protocol: CheckInProtocol, randomizer: Gaussian, view: str, total: float, delta: float, tight: bool
) -> rounds.Round:
    local = rounds.LocalGaussian(_sends(protocol), randomizer.mu)
    if view == "local":
        return local
    mass = composer.log_inverse_mass(total, delta)
    if isinstance(protocol, FixedWindow | SlidingWindow):
        least, most = _ALLOCATED
        known = tight and least <= randomizer.mu <= most
        return _gaussian_slots(protocol, local, mass) if known else rounds.NoGain(local)
    hidden = None
    if tight and protocol.rate < 1.0 and randomizer.mu <= _HIDDEN:
        hidden = HiddenMessages(protocol.num_clients, protocol.rate, GaussianProfile(randomizer.mu), mass)
    if isinstance(protocol, AveragedUpdates):
        if view == "messages":
            return rounds.NoGain(local) if hidden is None else hidden
        averaged = AveragedGaussian(
            protocol.num_clients, protocol.num_slots, protocol.check_in_prob, randomizer.mu, mass
        )
        return averaged if hidden is None else rounds.Least((averaged, hidden))
    if view == "messages" and hidden is not None:
        return hidden
    return rounds.ShuffledGaussian(
        protocol.num_clients, protocol.rate, randomizer.mu, view == "aggregate", mass
    )


def _gaussian_slots(
    protocol: FixedWindow | SlidingWindow, local: rounds.LocalGaussian, mass: float
) -> rounds.Round:
    """R1 and R2; one message a slot, so the aggregate shows the messages."""
    if isinstance(protocol, SlidingWindow):
        slots, hidden = protocol.window, True
    else:
        slots, hidden = protocol.num_slots, protocol.empty_slots == "dummy"
    sliding = isinstance(protocol, SlidingWindow)
    used, two_steps = replaced_rate(protocol.num_clients, slots, local.rate, hidden, sliding)
    return ReplacedGaussian(slots, used, two_steps, local.mu, mass, others=(local,))


def _pure(protocol: CheckInProtocol, epsilon0: float, mass: float, tight: bool) -> rounds.Round:
    if isinstance(protocol, SlidingWindow):
        window = protocol.window
        # Of a client's window, what the server outputs; all of it for most clients when n >= 2 m - 1.
        slots = min(window, protocol.num_clients - window + 1)
        used = slots / window
        # A slot's other clients are Bin(m - 1, 1/m) in number.
        alone = -math.expm1(window * math.log1p(-1.0 / window)) if window > 1 else 1.0
        return SlotsPureLDP(slots, used, used * alone * (1.0 - 1e-12), epsilon0, mass)
    if isinstance(protocol, FixedWindow):
        n, m, prob = protocol.num_clients, protocol.num_slots, protocol.check_in_prob
        mean, _ = occupancy.moments(float(n), float(m), prob)
        hidden = SlotsPureLDP(m, prob, min(mean / n * (1.0 - 1e-12), prob), epsilon0, mass)
        occupied = OccupiedPureLDP(n, m, prob, epsilon0, mass)
        if protocol.empty_slots == "visible":
            return occupied
        return Smaller(hidden, occupied)
    name = "T3 (T1 at the probability of taking part)" if isinstance(protocol, AveragedUpdates) else "T1"
    return ShuffledPureLDP(protocol.num_clients, protocol.rate, epsilon0, mass, name, tight)
