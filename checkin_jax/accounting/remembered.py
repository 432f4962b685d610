"""Answers of the accountant that commands keep for the next one: a page about a run that was accounted for before.

They lie beside the accountant's programs (`checkin_jax._compiled`), under a name that is made from everything an answer
rests on: the sources of the whole package, releases, platform and what was asked. Nothing else finds them, and no other
version's answer is ever shown. What is said of a class from elsewhere rests on its source too: it is asked anew.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
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


def remembered(account_fn: Callable[..., Guarantee]) -> Callable[..., Guarantee]:
    """`account` with answers that are kept on the disk; any other accountant as it is.

    CHECKIN_JAX_CACHE says where, or that nothing is kept. Answers are those of `account`, to the bit.
    """
    return _account if account_fn is genuine else account_fn


def _account(protocol: CheckInProtocol, randomizer: Randomizer, **how: Any) -> Guarantee:
    before = how.get("before", ())
    if not all(_ours(each) for one in ((protocol, randomizer), *before) for each in one):
        return genuine(protocol, randomizer, **how)
    runs = [(to_plain(one), to_plain(its)) for one, its in ((protocol, randomizer), *before)]
    rest = {name: value for name, value in sorted(how.items()) if name != "before"}
    place = sha256(f"{json.dumps(runs)} {rest!r} {_surroundings(devices.in_use())}".encode()).hexdigest()
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


@functools.cache
def _surroundings(device: Any) -> str:
    sources = sha256()
    for path in sorted(Path(_compiled.__file__).parent.rglob("*.py")):
        sources.update(path.read_bytes())
    return f"{ahead.surroundings(device)} {sources.hexdigest()} {importlib.metadata.version('scipy')}"
