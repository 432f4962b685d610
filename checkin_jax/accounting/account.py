"""`account`: the epsilon of a protocol run, bracketed, in the view of a given adversary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from checkin_jax import _validate
from checkin_jax.accounting.bounds import theorems, unit
from checkin_jax.accounting.bounds.dispatch import (
    check_protocol,
    check_randomizer,
    check_relation,
    one_round,
    stronger,
)
from checkin_jax.accounting.composition import composer
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.accounting.guarantee import REPLACE, VIEWS, Guarantee, relation_of
from checkin_jax.protocols import CheckInProtocol, FixedWindow, SlidingWindow
from checkin_jax.randomizers import Randomizer

if TYPE_CHECKING:
    from dp_accounting import NeighboringRelation

MIN_DELTA = 1e-300


def account(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    *,
    delta: float,
    view: str = "messages",
    tight: bool = False,
    neighboring_relation: str | NeighboringRelation = REPLACE,
) -> Guarantee:
    """Bounds the epsilon of a whole run, under replacement of one client's record unless told otherwise.

    Args:
      protocol: what is run, and for how many rounds.
      randomizer: what each client applies to its update before sending it.
      delta: in [1e-300, 1]; per run, not per round.
      view: the adversary. "messages" (default): every message without its name. "aggregate": only each round's sum
        (or each slot's update); for PureLDP the messages' bound, which holds by post-processing. "local": the
        client's own messages with its name, over all rounds.
      tight: also the bounds that take longer. For ShuffledCheckIn and AveragedUpdates at rates below 1: T1+ for
        eps0-LDP messages, a quarter of a second, within about 1% of the lower end (T1 is within 17%) where there
        are hundreds of messages; T* for Gaussian ones, about a second, where G1 may be 100 times larger. For Gaussian
        messages in windows: R2 and R3, about a second, where R1 may be 100 times larger.
      neighboring_relation: "replace-one" (default), or "add-or-remove-one" for FixedWindow with hidden dummies and
        SlidingWindow, not in the view "local": one client is there or not; other windows and the number of slots stay.
        dp_accounting's NeighboringRelation serves too.

    Bounds: eps0-LDP messages by T1 (ShuffledCheckIn, Shuffle), T2 and T2' (FixedWindow), T2 (SlidingWindow), T3
    (AveragedUpdates); Gaussian messages by G1 (ShuffledCheckIn), G2 (everybody sends), R1 (windows), G4
    (AveragedUpdates, aggregate). Added or removed clients: T2, G3, G3' and R1'. In the view "aggregate" sums of the
    messages of `minibatch` successive slots are accounted for, whose noise adds up.

    Returns:
      A Guarantee with lower <= epsilon, both in nats per run: `epsilon` rounded up and certified, `lower` rounded down.
      Inputs and randomizers of a round may depend on what was seen before; the protocol's parameters and the number of
      rounds are fixed beforehand (who stops before is covered by the bound of all planned rounds). No NaN; math.inf
      if no finite bound was found.

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range; no bound is known for this
        neighboring relation.

    Examples:
      >>> import checkin_jax as cj
      >>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800)
      >>> g = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-6)
      >>> print(f"{g.lower:.2f} {g.epsilon:.2f} {g.method}")
      1.36 1.44 T1, PLD
    """
    check_protocol(protocol)
    check_randomizer(randomizer)
    delta = _validate.real(MIN_DELTA, 1.0, delta=delta)
    _validate.choice(VIEWS, view=view)
    count, tight = protocol.repeats, _validate.flag(tight=tight)
    relation = check_relation(protocol, view, relation_of(neighboring_relation))
    one = one_round(protocol, randomizer, view, count, delta, tight=tight, relation=relation)
    alone = stronger(protocol, randomizer, view, relation)
    found = composer.bracket([(one, count)], delta, [(alone, count)] if alone else ())
    return Guarantee(
        epsilon=found.upper,
        lower=found.lower,
        delta=delta,
        view=view,
        method=f"{found.bound or one.name}, {found.method}",
        lower_method=found.lower_method,
        protocol=protocol,
        randomizer=randomizer,
        assumptions=theorems.assumptions(protocol, view),
        neighboring_relation=relation,
        optimal_order=found.optimal_order,
        numerical_error=found.numerical_error,
        warnings=tuple(_warnings(protocol, randomizer, one, delta, view, tight, found)),
    )


def _warnings(
    protocol: CheckInProtocol,
    randomizer: Randomizer,
    one: unit.Round,
    delta: float,
    view: str,
    tight: bool,
    found: Bracket,
) -> list[str]:
    out = []
    if delta >= 1.0 / protocol.num_clients and delta < 1.0:
        out.append(
            f"delta = {delta:.3g} is not below 1/num_clients = {1 / protocol.num_clients:.3g}: "
            "publishing one client's record at random would be within it"
        )
    if not math.isfinite(found.upper):
        out.append("no finite epsilon was found at this delta")
    if view == "messages" and isinstance(one, unit.ShuffledGaussian) and found.upper > 0:
        out.append(
            "G1 counts no gain from shuffling Gaussian messages; the truth may be far below, "
            "as the lower end shows (tight=True uses T*, for check-in rates below 1)"
        )
    elif isinstance(protocol, FixedWindow | SlidingWindow) and one.name.startswith("R1") and not tight:
        out.append("only subsampling is counted; tight=True uses R2 and R3, which may be far below")
    return out
