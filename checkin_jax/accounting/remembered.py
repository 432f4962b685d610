"""Answers of the accountant that commands keep for the next one: a page about a run that was accounted for before.

They lie beside the accountant's programs (`checkin_jax._compiled`), under a name that is made from everything an answer
rests on: the sources of the whole package, releases, platform and what was asked. Nothing else finds them, and no other
version's answer is ever shown. What is said of a class from elsewhere rests on its source too: it is asked anew.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from hashlib import sha256
from typing import Any

from checkin_jax import _compiled
from checkin_jax._plain import Part, to_plain
from checkin_jax.accounting.account import account as genuine
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.kernels.execution import ahead, devices
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.randomizers import Randomizer

# What a guarantee has from the question, not from the answer.
_ASKED = ("protocol", "randomizer", "before", "asked")


def account(protocol: CheckInProtocol, randomizer: Randomizer, **how: Any) -> Guarantee:
    """Answers as `account` does, to the bit, from the disk where it has been asked before: for pages, which ask often.

    CHECKIN_JAX_CACHE says where, or that nothing is kept.
    """
    before = how.get("before", ())
    if not all(_ours(each) for one in ((protocol, randomizer), *before) for each in one):
        return genuine(protocol, randomizer, **how)
    runs = [(to_plain(one), to_plain(its)) for one, its in ((protocol, randomizer), *before)]
    rest = {name: value for name, value in sorted(how.items()) if name != "before"}
    rests_on = ahead.surroundings(devices.in_use(), ".")
    place = sha256(f"{json.dumps(runs)} {rest!r} {rests_on}".encode()).hexdigest()
    content = _compiled.read(place)
    if content is None:
        found = genuine(protocol, randomizer, **how)
        values = {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}
        plain = {name: value for name, value in values.items() if name not in _ASKED}
        _compiled.write(place, json.dumps(plain).encode())
        return found
    told: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in json.loads(content).items()
    }
    asked = functools.partial(
        genuine, protocol, randomizer, **{name: each for name, each in how.items() if name != "client_rate"}
    )
    return Guarantee(**told, protocol=protocol, randomizer=randomizer, before=tuple(before), asked=asked)


def _ours(described: Any) -> bool:
    """Whether this is of a class of the package, and all of its parts are."""
    if type(described).__module__.partition(".")[0] != __name__.partition(".")[0]:
        return False
    values = [getattr(described, field.name) for field in dataclasses.fields(described)]
    return not any(map(callable, values)) and all(_ours(each) for each in values if isinstance(each, Part))
