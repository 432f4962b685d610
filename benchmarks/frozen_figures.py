"""Figures of the whole API and of single bounds, of which `tests/bounds/test_frozen_figures.py` sees any that moves.

    python -m benchmarks.frozen_figures [--because TEXT]

Computes the rows of tests/golden/figures.json anew, prints which moved and by how much, and writes these. A row has a
setting (`benchmarks/drawn_settings.py`), upper and lower ends (an infinite one is null), the spread of its figures
between the instructions of this CPU and the oldest ones that XLA and NumPy can be told to use, and CPU seconds once
compiled. A new row is added to the file by its setting alone.

What a setting asks: `account` (by default), `rdp`, `epsilon_by_rdp`; `bound`, the profile of one unit by one row of the
table of bounds; `witnesses`, events of the pairs of one unit; or a function of the package by its path, at `arguments`.

Nothing is written where an upper end fell below a kept lower end, or a lower end rose above a kept upper one: one of
them is false. An end that widens by more than 2% needs a reason, TEXT, which CHANGELOG.md must have.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

import checkin_jax as cj
from benchmarks.drawn_settings import Plain, answer, protocol_of, randomizer_of, timed
from checkin_jax.accounting import witnesses
from checkin_jax.accounting.bounds import table
from checkin_jax.accounting.bounds.interface import neg_log_tail, upper_sides
from checkin_jax.accounting.bounds.select import FAST_ONES, built_bounds
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.kernels.execution.devices import float64

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "golden" / "figures.json"
# A figure has moved if it differs, relatively, by more than this and than so many times its row's spread.
RELATIVE, SPREADS = 1e-7, 30.0
# Composed ends are searched, on knots that depend on the last digits of a processor's instructions.
COMPOSED = 1e-4
# An end that widens by more needs a reason.
WIDENED = 1.02
# Losses of one unit, as `account` evaluates a bound; every fourth is kept.
_LOSSES, _KEPT = 32, slice(None, None, 4)
# Seconds of a row are written anew where they are wrong by such a factor.
_OFF = 3.0
# A row that takes longer is given up.
_MOST_SECONDS = 300.0

Ends = dict[str, list[float]]


def label_of(bound: table.Bound) -> str:
    """Name of a row of the table of bounds in a setting: its word and the first label of its theorem."""
    return " ".join([bound.word, *bound.labels[:1]])


def name_of(number: int, row: Plain) -> str:
    """Name of a row of the kept figures."""
    setting = row["setting"]
    kinds = [setting[part][0] for part in ("protocol", "randomizer") if part in setting]
    asked = [setting.get("asked", "account"), *setting.get("bound", "").split()]
    return "-".join([f"{number:03d}", *asked, *kinds])


def ends(setting: Plain) -> Ends:
    """Upper and lower ends of one row's setting."""
    asked = setting.get("asked", "account")
    if asked == "account":
        found = answer(setting)
        return {"lower": [found.lower], "upper": [found.epsilon]}
    if asked in ("bound", "witnesses"):
        losses = setting["loss"] * np.arange(_LOSSES) / _LOSSES
        with float64():
            return (_of_bound if asked == "bound" else _of_witnesses)(setting, _unit(setting), losses)
    if "arguments" in setting:
        return {"upper": _of_function(asked, setting["arguments"])}
    run, its = protocol_of(setting["protocol"]), randomizer_of(setting["randomizer"])
    if asked == "epsilon_by_rdp":
        return {"upper": [cj.epsilon_by_rdp(run, its, delta=setting["delta"], view=setting["view"])[0]]}
    orders = [setting["order"]]
    return {
        "lower": [float(cj.rdp_lower(run, its, orders, view=setting["view"])[0])],
        "upper": [float(cj.rdp(run, its, orders, view=setting["view"])[0])],
    }


def _unit(setting: Plain) -> Unit:
    """One unit of the run; of a log, one of the first group."""
    run = protocol_of(setting["protocol"])
    return Unit(
        run.unit_groups(True)[0].above,
        randomizer_of(setting["randomizer"]),
        setting["view"],
        setting.get("relation", "replace-one"),
        neg_log_tail(run.num_units, setting["delta"]),
        setting.get("client_rate"),
    )


def _of_bound(setting: Plain, unit: Unit, losses: np.ndarray) -> Ends:
    row = next(each for each in table.BOUNDS if label_of(each) == setting["bound"])
    made = row.build(unit)
    if made is None:
        raise ValueError(f"bound={setting['bound']!r}: it does not apply to {setting}")
    forward, backward = upper_sides(made, losses)
    sides = [forward] if backward is forward else [forward, backward]
    return {"upper": np.concatenate([np.asarray(side)[_KEPT] for side in sides]).tolist()}


def _of_witnesses(setting: Plain, unit: Unit, losses: np.ndarray) -> Ends:
    """Of each event A in both directions: P(A) - Q(A), rounded down, and Q(A), rounded up."""
    bounds = [made for _, made in built_bounds(unit, FAST_ONES)]
    lines = [side for pair in witnesses.of_unit(unit, bounds) for side in pair.lower(losses)]
    if not lines:
        raise ValueError(f"no pair is known for {setting}")
    apart, masses = (np.concatenate([np.asarray(line[part])[_KEPT] for line in lines]) for part in (0, 1))
    return {"lower": apart.tolist(), "upper": masses.tolist()}


def _of_function(path: str, arguments: Plain) -> list[float]:
    """Values of a function of the package, all in one list."""
    place, _, name = path.rpartition(".")
    module = importlib.import_module(f"checkin_jax.{place}")
    if "ratio" in arguments:
        # The law of a step's likelihood ratio: its class and its shift.
        kind, mu = arguments["ratio"]
        arguments = arguments | {"ratio": getattr(module, kind)(mu)}
        module = arguments.pop("ratio") if name == "excess" else module
    function = getattr(module, name)
    with float64():
        # A list is an array; kernels take a float as one, too.
        kinds = (list, float) if path.startswith("kernels.") else (list,)
        given = {key: np.asarray(each) if type(each) in kinds else each for key, each in arguments.items()}
        found = function(**given)
        leaves = jax.tree.leaves(getattr(found, "value", found))
        return np.concatenate([np.ravel(np.asarray(leaf, dtype=np.float64)) for leaf in leaves]).tolist()


def _numbers(figures: list[float | None]) -> list[float]:
    """The figures, infinite where JSON has null."""
    return [math.inf if each is None else each for each in figures]


def _relative(old: float | None, new: float | None) -> float:
    """Relative difference; infinite between a finite figure and one that is not."""
    before, after = _numbers([old, new])
    if before == after:
        return 0.0
    difference = abs(after - before) / abs(before) if before else math.inf
    return difference if math.isfinite(difference) else math.inf


def _differences(one: Ends, other: Ends) -> list[float]:
    """Relative differences of all figures; an infinite one where there are more or fewer."""
    parts = ("lower", "upper")
    if any(len(one.get(part, [])) != len(other.get(part, [])) for part in parts):
        return [math.inf]
    pairs = [pair for part in parts for pair in zip(one.get(part, []), other.get(part, []))]
    return [_relative(*pair) for pair in pairs]


def moved(row: Plain, found: Ends) -> float:
    """Largest relative difference from the kept figures; 0 where none is beyond what is reproducible."""
    largest = max(_differences(row, found))
    least = COMPOSED if row["setting"].get("asked", "account") == "account" else RELATIVE
    return largest if largest > max(least, SPREADS * row["spread"]) else 0.0


def _is_certified(setting: Plain) -> bool:
    """True if the figures are ends of a bracket, or values of a bound."""
    return setting.get("asked") != "witnesses" and "arguments" not in setting


def is_false(row: Plain, found: Ends) -> bool:
    """True if an end of a bracket is beyond the kept opposite end, so that one of them is false."""
    if not _is_certified(row["setting"]) or "lower" not in row:
        return False
    below = zip(_numbers(found["lower"] + row["lower"]), _numbers(row["upper"] + found["upper"]))
    return not all(low <= high * (1.0 + RELATIVE) for low, high in below)


def widened(row: Plain, found: Ends) -> bool:
    """True if an end of a bracket, or a value of a bound, is wider by more than 2%."""
    if not _is_certified(row["setting"]):
        return False
    upper = zip(_numbers(row["upper"]), found["upper"])
    lower = zip(_numbers(row.get("lower", [])), found.get("lower", []))
    return not (
        all(new <= WIDENED * old for old, new in upper) and all(new >= old / WIDENED for old, new in lower)
    )


def _plain(found: Ends) -> dict[str, list[float | None]]:
    """The ends as JSON has them."""
    return {part: [x if math.isfinite(x) else None for x in values] for part, values in found.items()}


def with_oldest_instructions(settings: list[Plain]) -> list[Ends]:
    """`ends` in a process without this CPU's wide vectors and fused operations."""
    compiled = importlib.import_module("numpy._core._multiarray_umath")
    usable = compiled.__cpu_features__
    newer = [name for name in compiled.__cpu_dispatch__ if usable.get(name)]
    changed = {
        "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2",
        "NPY_DISABLE_CPU_FEATURES": " ".join(newer),
        "OPENBLAS_CORETYPE": "Nehalem",
        "CHECKIN_JAX_CACHE": "off",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    command = [sys.executable, "-m", "benchmarks.frozen_figures", "--print"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | changed,
        input=json.dumps(settings),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def updated(rows: list[Plain], because: str) -> list[Plain]:
    """The rows with their figures of today; exits where one is false, or wider without a reason."""
    changed, faults = [], []
    for number, row in enumerate(rows):
        name = name_of(number, row)
        found, seconds = timed(lambda row=row: ends(row["setting"]), _MOST_SECONDS)
        print(f"{number + 1} of {len(rows)}", end="\r", file=sys.stderr, flush=True)
        if "spread" not in row:
            changed.append(row | _plain(found))
            print(f"{name}: new")
        elif far := moved(row, found):
            changed.append(row | _plain(found))
            wide = widened(row, found)
            print(f"{name}: {far:.2g}{' wider' if wide else ''}")
            if is_false(row, found):
                faults.append(f"{name}: an end beyond the opposite one, {_plain(found)} after {row}")
            if wide and not because:
                faults.append(f"{name}: wider by more than 2%, without a reason")
        else:
            changed.append(row)
        kept = row.get("seconds", math.inf)
        if not kept / _OFF - 0.01 <= seconds <= kept * _OFF + 0.01:
            changed[-1] = changed[-1] | {"seconds": float(f"{seconds:.2g}")}
    if faults:
        sys.exit("\n".join(faults))
    fresh = [i for i, row in enumerate(changed) if row is not rows[i] and _differs(row, rows[i])]
    others = with_oldest_instructions([changed[i]["setting"] for i in fresh])
    for i, other in zip(fresh, others):
        spread = max(_differences(changed[i], other))
        changed[i] = changed[i] | {"spread": float(f"{spread:.1e}")}
    return changed


def _differs(row: Plain, before: Plain) -> bool:
    return "spread" not in before or any(row.get(part) != before.get(part) for part in ("lower", "upper"))


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--because", default="", help="why ends widen, in words that CHANGELOG.md has")
    parser.add_argument(
        "--print", action="store_true", help="ends of the settings on standard input, as JSON"
    )
    options = parser.parse_args()
    if options.print:
        print(json.dumps([_plain(ends(setting)) for setting in json.load(sys.stdin)], allow_nan=False))
        return
    if options.because not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        sys.exit(f"--because={options.because!r}: expected words of CHANGELOG.md")
    rows = updated(json.loads(TABLE.read_text(encoding="utf-8")), options.because)
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    TABLE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
