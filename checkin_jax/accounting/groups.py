"""`account_groups`: groups of clients with randomizers of their own in the same rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax.accounting.account import account
from checkin_jax.accounting.bounds.select import BEST, check_protocol
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.randomizers import Randomizer

OWN_GROUP = (
    "which group a client is in, and with which randomizer, does not depend on anybody's data; only clients of its "
    "own group are counted as its cover, and the groups of messages may be known"
)


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
        raise TypeError(
            f"groups={_validate.shown(groups)}: expected a mapping from names to pairs of protocol and randomizer"
        )
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
