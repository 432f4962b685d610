"""Settings of `checkin_jax.account` as plain data: drawn at random over the public API, built, answered.

A setting is a dictionary that JSON can hold: a protocol and a randomizer, each [name of the class, arguments], and
what `account` is asked. `benchmarks/census.py` measures brackets on such settings, `benchmarks/frozen_figures.py`
keeps answers of theirs.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np

import checkin_jax as cj

Plain = dict[str, Any]

# The mechanism that a KnownProfile has its function from.
PROFILE_OF = "profile_of"
# A mechanism that is given by its table of probabilities.
FINITE = "FiniteMechanism"


def protocol_of(plain: list[Any]) -> cj.CheckInProtocol:
    """The protocol described by [class, arguments]; `available` and `coin` are a log's columns."""
    name, given = plain
    arguments = dict(given)
    if name == "from_availability":
        return cj.from_availability(**arguments)
    prob = arguments.get("check_in_prob")
    if isinstance(prob, dict):
        kind = cj.Rates if "values" in prob else cj.RateLimits
        arguments["check_in_prob"] = kind(**prob)
    return getattr(cj, name)(**arguments)


def randomizer_of(plain: list[Any]) -> cj.Randomizer:
    """The randomizer described by [class, arguments]."""
    name, given = plain
    if PROFILE_OF in given:
        known = randomizer_of(given[PROFILE_OF])
        return cj.KnownProfile(function=known.profile, name="messages whose profile is given")
    return getattr(cj, name)(**given)


def answer(setting: Plain) -> cj.Guarantee:
    """`account` of one setting."""
    asked = {name: setting[name] for name in ("delta", "view", "client_rate", "bounds") if name in setting}
    asked["neighboring_relation"] = setting.get("relation", "replace-one")
    asked["before"] = [(protocol_of(run), randomizer_of(its)) for run, its in setting.get("before", ())]
    return cj.account(protocol_of(setting["protocol"]), randomizer_of(setting["randomizer"]), **asked)


class _OutOfTime(BaseException):
    """No Exception, so that nothing on the way takes it for an answer."""


@contextlib.contextmanager
def at_most(cpu_seconds: float) -> Iterator[None]:
    """Raises TimeoutError where the block takes more CPU seconds of this process than that; of the main thread alone.

    What does not return to the interpreter, such as a compilation, is not interrupted.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        yield
    except _OutOfTime:
        raise TimeoutError(f"more than {cpu_seconds:g} CPU seconds") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def timed(call: Callable[[], Any], cpu_seconds: float) -> tuple[Any, float]:
    """(what the call returns, CPU seconds it took).

    Raises:
      TimeoutError: it took more than `cpu_seconds`.
    """
    started = time.process_time()
    with at_most(cpu_seconds):
        found = call()
    return found, time.process_time() - started


def _log_uniform(generator: np.random.Generator, low: float, high: float) -> float:
    """A number of three significant digits."""
    return float(f"{np.exp(generator.uniform(np.log(low), np.log(high))):.3g}")


def _whole(generator: np.random.Generator, low: float, high: float) -> int:
    return round(_log_uniform(generator, low, max(high, low)))


def _rates(generator: np.random.Generator, clients: int) -> tuple[Plain, int]:
    """Rates of two to four groups, and of how many clients they are."""
    groups = int(generator.integers(2, 5))
    values = [_log_uniform(generator, 1e-3, 0.9) for _ in range(groups)]
    counts = [max(1, int(clients * share)) for share in generator.dirichlet(np.ones(groups))]
    return {"values": values, "counts": counts}, sum(counts)


def _unequal(generator: np.random.Generator, arguments: Plain) -> None:
    """Puts rates that differ, or limits on them, in the place of one rate."""
    if generator.random() < 0.7:
        arguments["check_in_prob"], arguments["num_clients"] = _rates(generator, arguments["num_clients"])
        return
    largest = _log_uniform(generator, 1e-3, 0.9)
    share = generator.uniform(0.1, 0.9)
    expected = float(f"{largest * share * (arguments['num_clients'] - 1):.4g}")
    arguments["check_in_prob"] = {"largest": largest, "expected_check_ins": expected}


def _colluders(generator: np.random.Generator, arguments: Plain) -> None:
    if generator.random() < 0.1:
        arguments["num_colluding"] = int(generator.uniform(0.01, 0.5) * arguments["num_clients"])


def _shuffled(generator: np.random.Generator) -> list[Any]:
    arguments: Plain = {
        "num_clients": _whole(generator, 1e2, 1e9),
        "check_in_prob": _log_uniform(generator, 1e-4, 1.0),
        "num_rounds": _whole(generator, 1, 1e5),
    }
    if generator.random() < 0.2:
        arguments["drop_out_prob"] = round(float(generator.uniform(0.01, 0.7)), 2)
    _colluders(generator, arguments)
    return ["ShuffledCheckIn", arguments]


def _shuffled_unequal(generator: np.random.Generator) -> list[Any]:
    name, arguments = _shuffled(generator)
    arguments.pop("num_colluding", None)
    _unequal(generator, arguments)
    return [name, arguments]


def _available(generator: np.random.Generator) -> list[Any]:
    """A log of a dozen rounds."""
    rounds = int(generator.integers(2, 13))
    middle = _log_uniform(generator, 3e2, 3e8)
    available = [round(middle * factor) for factor in generator.uniform(0.3, 1.7, rounds)]
    return [
        "from_availability",
        {"available": available, "coin": _log_uniform(generator, 1e-4, 1.0)},
    ]


def _shuffle(generator: np.random.Generator) -> list[Any]:
    arguments = {"num_clients": _whole(generator, 1e2, 1e9), "num_rounds": _whole(generator, 1, 1e5)}
    _colluders(generator, arguments)
    return ["Shuffle", arguments]


def _common_slots(generator: np.random.Generator) -> Plain:
    clients = _whole(generator, 1e2, 1e9)
    slots = round(clients * _log_uniform(generator, 1e-3, 10.0))
    prob = 1.0 if generator.random() < 0.3 else _log_uniform(generator, 1e-4, 1.0)
    return {
        "num_clients": clients,
        "num_slots": max(1, slots),
        "check_in_prob": prob,
        "num_epochs": _whole(generator, 1, 1e5),
    }


def _averaged(generator: np.random.Generator) -> list[Any]:
    arguments = _common_slots(generator)
    if generator.random() < 0.15:
        _unequal(generator, arguments)
    else:
        _colluders(generator, arguments)
    return ["AveragedUpdates", arguments]


def _fixed(generator: np.random.Generator) -> list[Any]:
    arguments = _common_slots(generator)
    if generator.random() < 0.3:
        arguments["empty_slots"] = "visible"
    if generator.random() < 0.2:
        arguments["minibatch"] = min(arguments["num_slots"], _whole(generator, 2, 100))
    if generator.random() < 0.15:
        _unequal(generator, arguments)
    else:
        _colluders(generator, arguments)
    return ["FixedWindow", arguments]


def _sliding(generator: np.random.Generator) -> list[Any]:
    clients = _whole(generator, 1e2, 1e9)
    arguments: Plain = {
        "num_clients": clients,
        "window": _whole(generator, 2, clients),
        "num_epochs": _whole(generator, 1, 1e5),
    }
    if generator.random() < 0.2:
        arguments["minibatch"] = min(clients - arguments["window"] + 1, _whole(generator, 2, 100))
    _colluders(generator, arguments)
    return ["SlidingWindow", arguments]


def _of_epsilon0(name: str) -> Callable[[np.random.Generator], list[Any]]:
    return lambda generator: [name, {"epsilon0": _log_uniform(generator, 0.05, 6.0)}]


def _pure(generator: np.random.Generator) -> list[Any]:
    name, arguments = _of_epsilon0("PureLDP")(generator)
    if generator.random() < 0.2:
        arguments["total_variation"] = _log_uniform(generator, 0.01, 1.0)
    return [name, arguments]


def _one_bit(generator: np.random.Generator) -> list[Any]:
    name, arguments = _of_epsilon0("OneBit")(generator)
    if generator.random() < 0.3:
        arguments["differ"] = 0.5
    return [name, arguments]


def _kary(generator: np.random.Generator) -> list[Any]:
    name, arguments = _of_epsilon0("KaryResponse")(generator)
    return [name, {**arguments, "num_values": _whole(generator, 2, 1e4)}]


def _approximate(generator: np.random.Generator) -> list[Any]:
    name, arguments = _of_epsilon0("ApproximateLDP")(generator)
    return [name, {**arguments, "delta0": _log_uniform(generator, 1e-18, 1e-9)}]


def _known(generator: np.random.Generator) -> list[Any]:
    of = (_of_epsilon0("Laplace"), _gaussian)[int(generator.integers(2))]
    return ["KnownProfile", {PROFILE_OF: of(generator)}]


def _gaussian(generator: np.random.Generator) -> list[Any]:
    return ["Gaussian", {"noise_multiplier": _log_uniform(generator, 0.3, 30.0)}]


def _finite(generator: np.random.Generator) -> list[Any]:
    """A table of 2 to 5 records and 2 to 6 outputs, from nearly uniform to spiky."""
    shape = (int(generator.integers(2, 6)), int(generator.integers(2, 7)))
    logits = generator.normal(size=shape) * _log_uniform(generator, 0.05, 1.5)
    table = np.exp(logits)
    return [FINITE, {"probabilities": (table / table.sum(1, keepdims=True)).tolist()}]


PROTOCOLS: dict[str, Callable[[np.random.Generator], list[Any]]] = {
    "shuffled check-in": _shuffled,
    "shuffled check-in, unequal rates": _shuffled_unequal,
    "check-in by a log": _available,
    "shuffle": _shuffle,
    "averaged updates": _averaged,
    "fixed window": _fixed,
    "sliding window": _sliding,
}

RANDOMIZERS: dict[str, Callable[[np.random.Generator], list[Any]]] = {
    "PureLDP": _pure,
    "KaryResponse": _kary,
    "OneBit": _one_bit,
    "L2Mechanism": _of_epsilon0("L2Mechanism"),
    "Rappor": _of_epsilon0("Rappor"),
    "HadamardResponse": _of_epsilon0("HadamardResponse"),
    "Laplace": _of_epsilon0("Laplace"),
    "ApproximateLDP": _approximate,
    "KnownProfile": _known,
    "Gaussian": _gaussian,
    **({FINITE: _finite} if hasattr(cj, FINITE) else {}),
}


def draw(generator: np.random.Generator, protocol: str, randomizer: str) -> Plain:
    """One setting of these kinds: n from 1e2 to 1e9, rates from 1e-4, up to 1e5 units, delta from 1e-12 to 1e-4.

    The relation is add-or-remove-one in a third of the settings that have it.
    """
    setting: Plain = {
        "protocol": PROTOCOLS[protocol](generator),
        "randomizer": RANDOMIZERS[randomizer](generator),
        "delta": _log_uniform(generator, 1e-12, 1e-4),
        "view": str(generator.choice(["messages", "aggregate", "local"], p=[0.7, 0.2, 0.1])),
    }
    run = protocol_of(setting["protocol"])
    other = "add-or-remove-one"
    if generator.random() < 1 / 3 and run.refuses(other, setting["view"]) is None:
        setting["relation"] = other
    return setting
