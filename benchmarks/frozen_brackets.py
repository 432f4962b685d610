"""400 answers over the whole API, kept for `tests/bounds/test_frozen_brackets.py` to compare later ones with.

    python -m benchmarks.frozen_brackets --out tests/golden/brackets.json

Extremes and numbers of the papers by hand, the others drawn, all kinds of protocols and randomizers in turn; each takes
at most `--seconds` of CPU once compiled. A row has a setting (`benchmarks/drawn_settings.py`), both ends in nats, the
method, and CPU seconds. An infinite end is null. Made again, the file loses what the tests compare with: only when a
release has been made.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import checkin_jax as cj
from benchmarks.drawn_settings import (
    PROTOCOLS,
    RANDOMIZERS,
    Plain,
    answer,
    draw,
    protocol_of,
    randomizer_of,
    timed,
)

ROWS = 400
# A first answer compiles; it may take so many times what a later one may.
_COMPILING = 8.0


def bracket(setting: Plain) -> tuple[float, float, str]:
    """(lower, upper, method) of one row's setting: of `account`, of `rdp`, or of a published formula."""
    asked = setting.get("asked", "account")
    if asked == "account":
        found = answer(setting)
        return found.lower, found.epsilon, found.method
    if asked.startswith("published."):
        name = asked.removeprefix("published.")
        value = float(np.ravel(getattr(cj.published, name)(**setting["arguments"]).value)[0])
        return value, value, asked
    run, its = protocol_of(setting["protocol"]), randomizer_of(setting["randomizer"])
    if asked == "epsilon_by_rdp":
        return 0.0, cj.epsilon_by_rdp(run, its, delta=setting["delta"], view=setting["view"])[0], asked
    orders = [setting["order"]]
    lower = cj.rdp_lower(run, its, orders, view=setting["view"])
    return float(lower[0]), float(cj.rdp(run, its, orders, view=setting["view"])[0]), asked


def _shuffled(**given: Any) -> list[Any]:
    return ["ShuffledCheckIn", {"num_clients": 60_000, "check_in_prob": 0.1, "num_rounds": 6_800, **given}]


def _fixed(**given: Any) -> list[Any]:
    return ["FixedWindow", {"num_clients": 10_000, "num_slots": 10_000, **given}]


def _sliding(**given: Any) -> list[Any]:
    return ["SlidingWindow", {"num_clients": 10_000, "window": 1_000, **given}]


def _averaged(**given: Any) -> list[Any]:
    return ["AveragedUpdates", {"num_clients": 10_000, "num_slots": 100, **given}]


def _shuffle(**given: Any) -> list[Any]:
    return ["Shuffle", {"num_clients": 10_000, **given}]


def _of(name: str, **given: Any) -> list[Any]:
    return [name, given]


_MESSAGES = (
    _of("PureLDP", epsilon0=2.0),
    _of("L2Mechanism", epsilon0=2.0),
    _of("Gaussian", noise_multiplier=3.0),
)
_UNEQUAL = {"num_clients": 3_000, "check_in_prob": {"values": [0.05, 0.3, 0.9], "counts": [2_000, 900, 100]}}


def _runs() -> Iterator[list[Any]]:
    """Runs at the ends of their ranges."""
    yield from (
        _shuffled(),
        _shuffled(num_rounds=1),
        _shuffled(num_rounds=10**9),
        _shuffled(num_clients=10**12),
        _shuffled(num_clients=1),
        _shuffled(num_clients=2, num_rounds=3),
        _shuffled(check_in_prob=1.0, num_rounds=1),
        _shuffled(check_in_prob=1e-6),
        _shuffled(drop_out_prob=0.999),
        _shuffled(num_colluding=59_999),
        _shuffled(**_UNEQUAL, num_rounds=100),
        _shuffle(),
        _shuffle(num_clients=1),
        _shuffle(num_clients=10**12, num_rounds=10**9),
        _averaged(),
        _averaged(num_slots=1),
        _averaged(num_slots=10**12, check_in_prob=1e-4),
        _fixed(),
        _fixed(num_slots=1),
        _fixed(num_clients=100, num_slots=10**9),
        _fixed(empty_slots="visible", num_epochs=100),
        _fixed(num_colluding=5_000),
        _sliding(),
        _sliding(window=1),
        _sliding(window=10_000),
        _sliding(num_epochs=10**6),
        ["from_availability", {"available": [5_000, 60_000, 20_000, 1], "coin": 0.1}],
    )


def by_hand() -> Iterator[Plain]:
    """Extremes, what `account` is asked beside them, moments, and formulas of the papers."""
    for run, its in itertools.product(_runs(), _MESSAGES):
        yield {"protocol": run, "randomizer": its, "delta": 1e-6, "view": "messages"}
    messages = (
        *(_of("PureLDP", epsilon0=each) for each in (0.0, 1e-9, 1e-3, 0.5, 8.0, 50.0)),
        _of("PureLDP", epsilon0=2.0, total_variation=1e-6),
        _of("OneBit", epsilon0=2.0, differ=1e-3),
        _of("KaryResponse", epsilon0=2.0, num_values=2),
        _of("KaryResponse", epsilon0=2.0, num_values=10**12),
        _of("ApproximateLDP", epsilon0=2.0, delta0=0.0),
        _of("ApproximateLDP", epsilon0=0.0, delta0=1e-12),
        *(_of("Gaussian", noise_multiplier=each) for each in (1e-3, 0.05, 1e6)),
    )
    for its in messages:
        yield {"protocol": _shuffled(), "randomizer": its, "delta": 1e-6, "view": "messages"}
        yield {"protocol": _sliding(), "randomizer": its, "delta": 1e-8, "view": "messages"}
    for delta, its in itertools.product((1e-300, 1e-60, 0.1, 1.0), _MESSAGES[1:]):
        yield {"protocol": _shuffled(), "randomizer": its, "delta": delta, "view": "messages"}
    other = "add-or-remove-one"
    for run, its, view in itertools.product((_fixed(), _sliding()), _MESSAGES, ("messages", "aggregate")):
        yield {"protocol": run, "randomizer": its, "delta": 1e-8, "view": view, "relation": other}
    for its in _MESSAGES:
        asked = {"randomizer": its, "delta": 1e-6, "view": "messages"}
        yield {"protocol": _shuffled(), **asked, "bounds": "fast"}
        yield {"protocol": _shuffled(**_UNEQUAL, num_rounds=100), **asked, "client_rate": 0.05}
        yield {"protocol": _shuffled(num_rounds=100), **asked, "before": [[_shuffle(), its]]}
        for run, order in itertools.product((_shuffled(), _shuffle()), (1.5, 32.0)):
            yield {
                "asked": "rdp",
                "protocol": run,
                "randomizer": its,
                "order": order,
                "view": "aggregate" if its[0] == "Gaussian" else "messages",
            }
        for run in (_shuffled(), _fixed(), _averaged()):
            yield {"asked": "epsilon_by_rdp", "protocol": run, **asked}
    for name, arguments in (
        ("theorem_1", {"num_clients": 60_000, "rate": 0.1, "epsilon0": 2.0, "orders": [8]}),
        ("theorem_2", {"num_clients": 60_000, "rate": 0.1, "epsilon0": 2.0, "orders": [8]}),
        ("theorem_3", {"num_clients": 60_000, "rate": 0.1, "epsilon0": 2.0, "orders": [8]}),
        ("fixed_window", {"num_slots": 10_000, "epsilon0": 0.5, "delta": 1e-8}),
        ("sliding_window", {"num_slots": 1_000, "epsilon0": 1.0, "delta": 1e-8}),
        ("shuffle", {"num_clients": 10_000, "epsilon0": 1.0, "delta": 1e-8}),
        ("shuffle_2019", {"num_clients": 10_000, "epsilon0": 0.5, "delta": 1e-8}),
        (
            "averaged_updates",
            {"num_clients": 10_000, "num_slots": 100, "epsilon0": 1.0, "delta": 1e-8, "delta2": 1e-8},
        ),
    ):
        yield {"asked": f"published.{name}", "arguments": arguments}


def _drawn(seed: int) -> Iterator[Plain]:
    """Settings of all kinds of protocols and randomizers in turn, without end."""
    generator = np.random.default_rng(seed)
    for protocol, randomizer in itertools.cycle(itertools.product(PROTOCOLS, RANDOMIZERS)):
        yield draw(generator, protocol, randomizer)


def _row(setting: Plain, seconds: float) -> Plain | None:
    """The row of a setting; None where it is refused, or takes longer."""
    try:
        found, took = timed(lambda: bracket(setting), _COMPILING * seconds)
        if took > seconds and "delta" in setting:
            # Compiled now. Another delta, lest anything of this one was kept.
            other = (1.1 if setting["delta"] < 0.5 else 0.9) * setting["delta"]
            setting = {**setting, "delta": float(f"{other:.6g}")}
            found, took = timed(lambda: bracket(setting), seconds)
    except (ValueError, TypeError, TimeoutError, MemoryError) as error:
        print(f"left out: {setting}: {error}", file=sys.stderr, flush=True)
        return None
    if took > seconds:
        return None
    lower, upper, method = found
    ends = {"lower": lower, "upper": upper if math.isfinite(upper) else None}
    return {"setting": setting, **ends, "method": method, "seconds": round(took, 3)}


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=20_261_124)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    rows: list[Plain] = []
    for setting in itertools.chain(by_hand(), _drawn(options.seed)):
        row = _row(setting, options.seconds)
        if row is not None:
            rows.append(row)
            print(f"{len(rows)} of {ROWS}", end="\r", file=sys.stderr, flush=True)
        if len(rows) == ROWS:
            break
    made = {"checkin_jax": cj.__version__, "seed": options.seed}
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    options.out.write_text(f'{{"made": {json.dumps(made)}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
