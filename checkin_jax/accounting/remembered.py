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
from checkin_jax.accounting.calibration import calibrate as genuine_search
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
    runs = ((protocol, randomizer), *before)
    if not all(_ours(each) for one in runs for each in one):
        return genuine(protocol, randomizer, **how)
    told_apart = [(to_plain(one), to_plain(its)) for one, its in runs]
    place = _place(told_apart, {name: value for name, value in how.items() if name != "before"})
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


def calibrate(
    protocol: CheckInProtocol, randomizer: Randomizer | type[Randomizer], **how: Any
) -> tuple[str, float]:
    """Finds the free variable's name and value as `calibrate` does, on the disk where they were found before.

    What is kept is no promise: whoever wants to say what holds at the value asks `account`.
    """
    kind = randomizer if isinstance(randomizer, type) else type(randomizer)
    fields = None if isinstance(randomizer, type) else to_plain(randomizer)
    known = _of_package(kind) and (isinstance(randomizer, type) or _ours(randomizer)) and _ours(protocol)
    place = _place([kind.__name__, fields, to_plain(protocol)], how) if known else None
    content = None if place is None else _compiled.read(place)
    if content is not None:
        name, value = json.loads(content)
        return name, value
    found = genuine_search(protocol, randomizer, **how)
    if place is not None:
        _compiled.write(place, json.dumps([found.name, found.value]).encode())
    return found.name, found.value


def _place(runs: list[Any], rest: dict[str, Any]) -> str:
    """The name of an answer, from all that it rests on."""
    rests_on = ahead.surroundings(devices.in_use(), ".")
    return sha256(f"{json.dumps(runs)} {dict(sorted(rest.items()))!r} {rests_on}".encode()).hexdigest()


def _ours(described: Any) -> bool:
    """Whether this is of a class of the package, and all of its parts are."""
    if not _of_package(type(described)):
        return False
    values = [getattr(described, field.name) for field in dataclasses.fields(described)]
    return not any(map(callable, values)) and all(_ours(each) for each in values if isinstance(each, Part))


def _of_package(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]
