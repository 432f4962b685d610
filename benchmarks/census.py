"""How sharp brackets are on settings drawn at random: upper end over lower end, and CPU seconds, by kind.

    python benchmarks/census.py --seed 1 --settings 300 --out census.csv --processes 4 --picture census.svg

The table has a line a setting, written as it is found; called again with the same file, the census goes on where it
stopped. Setting i of a seed is the same however many are drawn. A release has a seed that nobody tuned on.
With --certificates the certificates of the table's answers are re-checked too.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import csv
import json
import math
import multiprocessing
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import checkin_jax as cj
from checkin_jax import plotting
from checkin_jax.plotting import COLORS

if __package__:
    from benchmarks.drawn_settings import FINITE, PROTOCOLS, RANDOMIZERS, Plain, answer, draw, timed
else:
    from drawn_settings import FINITE, PROTOCOLS, RANDOMIZERS, Plain, answer, draw, timed

# How often a kind of protocol is drawn; kinds of randomizers are equally likely.
SHARES = (0.25, 0.08, 0.04, 0.13, 0.15, 0.2, 0.15)
# Upper ends of runs that somebody would start, in nats: beyond the one nothing is promised, below the other too much.
LEAST, MOST = 0.01, 20.0
# A worker may take so many bytes of memory.
_MEMORY = 8 << 30
BRACKET, NO_LOWER, NO_UPPER, LONG, REFUSED = "bracket", "no lower end", "no upper end", "too long", "refused"
# Ratios that the picture names, where it reaches them.
_MARKS = (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)
# CPU seconds for one certificate, at most.
_CHECK = 120.0


class Found(NamedTuple):
    """A line of the table; ends in nats, `outcome` one of the five words, NaN where there are no ends."""

    number: int
    protocol: str
    randomizer: str
    view: str
    relation: str
    lower: float
    upper: float
    seconds: float
    outcome: str
    method: str
    setting: str

    @property
    def ratio(self) -> float:
        """Upper over lower end; 1 where they are equal, infinity where one end is missing, NaN where there is none."""
        if self.outcome == BRACKET:
            return self.upper / self.lower if self.upper > self.lower else 1.0
        return math.nan if self.outcome in (LONG, REFUSED) else math.inf


def drawn(seed: int, number: int) -> tuple[str, str, Plain]:
    """(kind of protocol, kind of randomizer, setting) of this number, from 0 on."""
    generator = np.random.default_rng([seed, number])
    protocol = str(generator.choice(list(PROTOCOLS), p=SHARES))
    # Of all kinds but one, in whose stead a coin of its own puts it: releases that lack it have the others alike.
    randomizer = str(generator.choice([name for name in RANDOMIZERS if name != FINITE]))
    if FINITE in RANDOMIZERS and np.random.default_rng([seed, number, 1]).random() < 1 / len(RANDOMIZERS):
        randomizer = FINITE
    return protocol, randomizer, draw(generator, protocol, randomizer)


def outcome_of(lower: float, upper: float) -> str:
    """The word for a bracket with these ends."""
    if not math.isfinite(upper) and math.isfinite(lower):
        return NO_UPPER
    return BRACKET if lower > 0 or upper == 0 else NO_LOWER


def measured(seed: int, number: int, cpu_seconds: float) -> Found:
    """The line of one setting, stopped after so many CPU seconds."""
    protocol, randomizer, setting = drawn(seed, number)
    lower = upper = seconds = math.nan
    method = ""
    try:
        found, seconds = timed(lambda: answer(setting), cpu_seconds)
    except (TimeoutError, MemoryError) as error:
        outcome, method = LONG, str(error)
    except (ValueError, TypeError) as error:
        outcome, method = REFUSED, str(error)
    else:
        lower, upper, method = found.lower, found.epsilon, found.method
        outcome = outcome_of(lower, upper)
    told = (setting["view"], setting.get("relation", "replace-one"), lower, upper, round(seconds, 4))
    return Found(number, protocol, randomizer, *told, outcome, method, json.dumps(setting))


class Recheck(NamedTuple):
    """Outcome of re-checking an answer's certificate, CPU seconds of the check, what was re-checked, and why not."""

    outcome: str
    seconds: float = math.nan
    parts: tuple[str, ...] = ()
    why: str = ""


UPPER_PROFILE, LOWER_END, LOWER_PROFILE = "upper profile", "lower end", "lower profile"


def rechecked(found: cj.Guarantee) -> Recheck:
    """The certificate of an answer, re-checked by `checkin_jax.verify`, which needs python-flint."""
    from checkin_jax import verify

    try:
        certificate = cj.certificate(found)
    except ValueError as error:
        return Recheck("no certificate", why=str(error))
    text = json.dumps(certificate).encode()
    try:
        (_, trusted), seconds = timed(lambda: verify.check(verify.read(text)), _CHECK)
    except (TimeoutError, verify.Malformed) as error:
        return Recheck("not checked", why=str(error))
    except verify.Refuted as error:
        return Recheck("refuted", why=str(error))
    own = {UPPER_PROFILE: "the profile from above", LOWER_PROFILE: "the profile from below"}
    parts = [part for part, start in own.items() if not any(each.startswith(start) for each in trusted)]
    if "below" in certificate:
        return Recheck("verified", seconds, (*parts, LOWER_END), "; ".join(trusted))
    return Recheck(
        "verified", seconds, tuple(part for part in parts if part == UPPER_PROFILE), "; ".join(trusted)
    )


def recheck(found: list[Found]) -> Table:
    """Re-checks the answers of the table, prints those that are refuted, and returns the counts."""
    done = []
    for each in found:
        if math.isfinite(each.upper):
            done.append(rechecked(answer(json.loads(each.setting))))
            print(f"{each.number}: {each.method}: {done[-1]}", flush=True)
    table = Table("certificates", "settings")
    counts = collections.Counter(each.outcome for each in done)
    counts.update(part for each in done for part in each.parts)
    for name, count in counts.most_common():
        table.add_row(name, str(count))
    seconds = [each.seconds for each in done if each.outcome == "verified"]
    table.add_row("CPU s: median, largest", f"{_quantile(seconds, 0.5):.2f}, {_quantile(seconds, 1.0):.1f}")
    return table


def read(path: Path) -> list[Found]:
    """The lines of a table; none of a file that is not there.

    Raises:
      ValueError: it is not a table of a census.
    """
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        if next(rows, None) != list(Found._fields):
            raise ValueError(f"{path}: expected the columns {', '.join(Found._fields)}")
        return [_line(*row) for row in rows]


def _line(number: str, *words: str) -> Found:
    *kinds, lower, upper, seconds, outcome, method, setting = words
    protocol, randomizer, view, relation = kinds
    ends = float(lower), float(upper), float(seconds)
    return Found(int(number), protocol, randomizer, view, relation, *ends, outcome, method, setting)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))


def _measure(seed: int, numbers: list[int], cpu_seconds: float, processes: int) -> Iterator[Found]:
    """The lines of these numbers, in the order in which they are ready."""
    if processes == 1:
        yield from (measured(seed, number, cpu_seconds) for number in numbers)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context, _limit_memory) as pool:
        asked = [pool.submit(measured, seed, number, cpu_seconds) for number in numbers]
        yield from (each.result() for each in concurrent.futures.as_completed(asked))


def _quantile(values: Iterable[float], share: float) -> float:
    """The value that at least this share is not above."""
    found = sorted(values)
    return found[max(0, math.ceil(share * len(found)) - 1)] if found else math.nan


def summary(found: list[Found], kind: Callable[[Found], str], title: str) -> Table:
    """Quantiles of upper over lower end and of CPU seconds for each kind, and for all."""
    names = ("median", "90%", "largest", NO_LOWER, NO_UPPER, LONG, REFUSED, "CPU s: median", "90%")
    table = Table(title, "settings", *names)
    groups = {key: [each for each in found if kind(each) == key] for key in sorted({kind(e) for e in found})}
    told = [each for each in found if LEAST <= each.upper <= MOST]
    for key, rows in {**groups, f"{LEAST:g} <= upper end <= {MOST:g}": told, "all": found}.items():
        ratios = [each.ratio for each in rows if each.outcome == BRACKET]
        seconds = [each.seconds for each in rows if not math.isnan(each.seconds)]
        counts = [sum(each.outcome == word for each in rows) for word in (NO_LOWER, NO_UPPER, LONG, REFUSED)]
        table.add_row(
            key,
            str(len(rows)),
            *(f"{_quantile(ratios, share):.4g}" for share in (0.5, 0.9, 1.0)),
            *(str(count) if count else "" for count in counts),
            *(f"{_quantile(seconds, share):.3f}" for share in (0.5, 0.9)),
        )
    return table


def worst(found: list[Found], count: int = 10) -> Table:
    """The settings of the widest brackets."""
    table = Table("ratio", "lower", "upper", "method", "setting")
    rows = sorted((each for each in found if each.outcome == BRACKET), key=lambda each: -each.ratio)
    for each in rows[:count]:
        ends = (f"{value:.4g}" for value in (each.ratio, each.lower, each.upper))
        table.add_row(*ends, each.method, each.setting)
    return table


def picture(found: list[Found], out: Path) -> None:
    """Draws upper over lower end of every setting, by protocol and by randomizer; a bar is the median."""
    drawn, panels = plotting.figure(columns=2, height=4.2)
    drawn.set_figwidth(10.0)
    for panel, kind in zip(panels, ("protocol", "randomizer")):
        names = sorted({getattr(each, kind) for each in found}, reverse=True)
        for place, name in enumerate(names):
            rows = [each for each in found if getattr(each, kind) == name]
            ratios = sorted(each.ratio for each in rows if each.outcome == BRACKET)
            spread = place + 0.5 * (np.arange(len(ratios)) % 5 - 2) / 5
            panel.plot(ratios, spread, ".", color=COLORS["certified"], alpha=0.45, markersize=6)
            if ratios:
                middle = _quantile(ratios, 0.5)
                panel.plot([middle, middle], [place - 0.35, place + 0.35], color=COLORS["invalid"])
            missing = sum(each.outcome == NO_LOWER for each in rows)
            if missing:
                where = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
                panel.annotate(str(missing), (1.02, place), va="center", fontsize=9, **where)
        panel.set_yticks(range(len(names)), names)
        panel.set(xscale="log", xlabel="upper end / lower end")
        marks = [mark for mark in _MARKS if mark <= panel.get_xlim()[1]]
        panel.set_xticks(marks, map("{:,}".format, marks))
        panel.minorticks_off()
        panel.annotate("no lower\nend", (1.0, 1.02), xycoords="axes fraction", fontsize=8)
    plotting.write(drawn, out)


def main() -> None:
    """Draws, prints, and writes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--settings", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True, help="CSV; gone on with if it is there")
    parser.add_argument("--picture", type=Path, help=".svg, .png or .pdf")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cpu-seconds", type=float, default=30.0, help="of one setting, at most")
    parser.add_argument("--certificates", action="store_true", help="re-check those of the answers")
    options = parser.parse_args()
    found = read(options.out)
    for each in found[:1]:
        if json.loads(each.setting) != drawn(options.seed, each.number)[2]:
            parser.error(f"--out {options.out}: expected a table of seed {options.seed}")
    left = sorted(set(range(options.settings)) - {each.number for each in found})
    with open(options.out, "a", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        if not found:
            lines.writerow(Found._fields)
        for each in _measure(options.seed, left, options.cpu_seconds, options.processes):
            lines.writerow(each)
            file.flush()
            found.append(each)
            print(f"{len(found)} of {options.settings}", end="\r", file=sys.stderr, flush=True)
    found = [each for each in found if each.number < options.settings]
    console = Console(width=170)
    console.print(summary(found, lambda each: each.protocol, "protocol"))
    console.print(summary(found, lambda each: each.randomizer, "randomizer"))
    console.print(worst(found))
    if options.certificates:
        console.print(recheck(found))
    if options.picture:
        picture(found, plotting.check(picture=options.picture))


if __name__ == "__main__":
    main()
