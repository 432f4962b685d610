"""`account`: the epsilon of a protocol run, bracketed, in the view of a given adversary."""

from __future__ import annotations

import math

from checkin_jax import _validate
from checkin_jax.accounting import composer, rounds
from checkin_jax.accounting.guarantee import ASSUMPTIONS, LOCAL_ASSUMPTIONS, VIEWS, Guarantee
from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer

MIN_DELTA = 1e-300


def one_round(
    num_clients: int, rate: float, randomizer: Randomizer, view: str, num_rounds: float, delta: float
) -> rounds.Round:
    """The composer's description of one round of shuffled check-in, to be composed num_rounds times at delta."""
    if view == "local":
        if isinstance(randomizer, Gaussian):
            return rounds.LocalGaussian(rate, randomizer.mu)
        return rounds.LocalPureLDP(rate, randomizer.epsilon0)
    mass = composer.log_inverse_mass(num_rounds, delta)
    if isinstance(randomizer, Gaussian):
        return rounds.ShuffledGaussian(num_clients, rate, randomizer.mu, view == "aggregate", mass)
    return rounds.ShuffledPureLDP(num_clients, rate, randomizer.epsilon0, mass)


def check_randomizer(randomizer: Randomizer) -> Randomizer:
    """Raises TypeError unless it is one of the randomizers there are bounds for."""
    if not isinstance(randomizer, PureLDP | Gaussian):
        raise TypeError(f"randomizer={randomizer!r}: expected a PureLDP or a Gaussian")
    return randomizer


def account(
    protocol: ShuffledCheckIn, randomizer: Randomizer, *, delta: float, view: str = "messages"
) -> Guarantee:
    """Bounds the epsilon of a whole run, under replacement of one client's record.

    Args:
      protocol: what is run, and for how many rounds.
      randomizer: what each client applies to its update before sending it.
      delta: in [1e-300, 1]; per run, not per round.
      view: the adversary. "messages" (default): every shuffled message, T1 (PureLDP) or G1 (Gaussian).
        "aggregate": only each round's sum; for PureLDP the messages' bound, which holds by post-processing.
        "local": the client's own messages with its name, over all rounds.

    Returns:
      A Guarantee with lower <= epsilon, both in nats per run: `epsilon` rounded up and certified, `lower` rounded down.
      Rounds may be chosen adaptively. No NaN; math.inf if no finite bound was found.

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range.

    >>> run = ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800)
    >>> g = account(run, PureLDP(epsilon0=2.0), delta=1e-6)
    >>> print(f"{g.lower:.2f} {g.epsilon:.2f} {g.method}")
    1.36 1.44 T1, PLD
    """
    if not isinstance(protocol, ShuffledCheckIn):
        raise TypeError(f"protocol={protocol!r}: expected a ShuffledCheckIn")
    check_randomizer(randomizer)
    delta = _validate.real(MIN_DELTA, 1.0, delta=delta)
    _validate.choice(VIEWS, view=view)
    count = protocol.num_rounds
    one = one_round(protocol.num_clients, protocol.rate, randomizer, view, count, delta)
    found = composer.bracket([(one, count)], delta)
    upper_name, lower_name = one.names
    return Guarantee(
        epsilon=found.upper,
        lower=found.lower,
        delta=delta,
        view=view,
        method=f"{upper_name}, {found.method}",
        lower_method=lower_name,
        protocol=protocol,
        randomizer=randomizer,
        assumptions=LOCAL_ASSUMPTIONS if view == "local" else ASSUMPTIONS,
        optimal_order=found.optimal_order,
        numerical_error=found.numerical_error,
        warnings=tuple(_warnings(protocol, randomizer, delta, view, found)),
    )


def _warnings(
    protocol: ShuffledCheckIn, randomizer: Randomizer, delta: float, view: str, found: composer.Bracket
) -> list[str]:
    out = []
    if delta >= 1.0 / protocol.num_clients and delta < 1.0:
        out.append(
            f"delta = {delta:.3g} is not below 1/num_clients = {1 / protocol.num_clients:.3g}: "
            "publishing one client's record at random would be within it"
        )
    if not math.isfinite(found.upper):
        out.append("no finite epsilon was found at this delta")
    if view == "messages" and isinstance(randomizer, Gaussian) and found.upper > 0:
        out.append(
            "G1 counts no gain from shuffling Gaussian messages; the truth may be far below, "
            "as the lower end shows"
        )
    return out
