"""`checkin plan`: guarantees of several kinds of messages for a fleet in a TOML file, and a list of assumptions."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from checkin_jax import _validate
from checkin_jax._files import checked_table, read_toml
from checkin_jax._rounding import down, up
from checkin_jax._serialize import to_plain
from checkin_jax._suggest import did_you_mean
from checkin_jax.cli.options import (
    MECHANISMS,
    OWN,
    QUICK,
    BoundsOption,
    JsonOption,
    RandomizerOptions,
    bounds_of,
)
from checkin_jax.cli.programs import UsageError
from checkin_jax.cli.terminal import broken, columns, terminal_width
from checkin_jax.protocols import VIEWS, AvailableCheckIn, CheckInProtocol, from_availability
from checkin_jax.protocols.rounds import read as log_of
from checkin_jax.randomizers import Gaussian, Randomizer
from checkin_jax.reports.declarations import Deployment, of_table

if TYPE_CHECKING:
    from checkin_jax.accounting.guarantee import Guarantee
    from checkin_jax.reports.record import Record

# Fields of the run that [fleet] may have, as `from_availability` takes them.
_TERMS = ("drop_out_prob", "num_colluding", "min_reports", "cycles")
# Tables of the file, what each may say, and what it must.
_TABLES = {
    "fleet": ("available", "check_in_prob", *_TERMS),
    "target": ("epsilon", "delta", "view", "free"),
    "message": ("epsilon0", "noise_multiplier", "mechanism", *OWN, "share"),
    "deployment": (),
}
# A mechanism whose parameter is the noise multiplier, not epsilon0.
_GAUSSIAN = "gaussian"
# Variables of a fleet that may be searched instead of a message's parameter.
FREE = ("cycles", "num_rounds", "check_in_prob")
# Fields of a guarantee that the JSON of a plan has once.
_ONCE = ("protocol", "assumptions", "theorems")
_NEEDED = {"fleet": ("available",), "target": ("delta",), "message": ()}


class PlannedMessage(NamedTuple):
    """A kind of message, and the variable of `calibrate` that is searched for it; None: none, or its class's own."""

    randomizer: Randomizer | type[Gaussian]
    free: str | None


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Contents of a plan: the run, the messages to try, the target, and the free variable of the run, if any.

    groups: the run of each message's own clients, if the messages are those of groups; else empty.
    log: the CSV file of the cycle, if there is one.
    """

    protocol: AvailableCheckIn
    rounds_per_cycle: int
    messages: tuple[PlannedMessage, ...]
    groups: tuple[AvailableCheckIn, ...]
    epsilon: float | None
    delta: float
    view: str
    free: str | None
    deployment: Deployment
    log: Path | None


@dataclasses.dataclass(kw_only=True)
class Plan(JsonOption, BoundsOption):
    """Plans a fleet from a TOML file: epsilon in every view for each kind of message, and the assumptions to check.

    The file says [fleet]: available (clients, at least, round by round of a cycle such as a day) and check_in_prob, or
    available = "log.csv" with both; drop_out_prob, num_colluding, min_reports, cycles. [target]: epsilon, delta, view,
    free. [[message]], as often as there are choices: epsilon0 with or without a mechanism, or noise_multiplier; one
    that leaves out its value gets the one that just meets the target (mechanism = "gaussian": the least noise). With a
    share in each message they are no choices, but those of groups of clients in the same rounds. Exit code 1: no
    message meets the target, or one of a group does not.

    Attributes:
      plan: the file.
      free: for each message with a value: find the most cycles or rounds, or the largest check-in probability (others
        are scaled with it) that meets the target; replaces free in the file.

    Examples:
      checkin plan fleet.toml
      checkin plan fleet.toml --free cycles
      checkin plan fleet.toml --json
    """

    plan: Path = dataclasses.field(kw_only=False)
    free: Literal["cycles", "num-rounds", "check-in-prob"] | None = None

    def run(self) -> None:
        """Accounts for each message; exits with code 1 if none meets the target."""
        free = None if self.free is None else self.free.replace("-", "_")
        wanted, bounds = read(self.plan, free), bounds_of(self.bounds)
        rows = answers(wanted, bounds)
        if self.json:
            print(json.dumps(_plain(rows, wanted), allow_nan=False))
        else:
            quick = bounds == "fast"
            print(_text(rows, wanted, quick=quick))
            answered = [row[wanted.view] for row in rows if not isinstance(row, str)]
            notes = [
                *dict.fromkeys(note for g in answered for note in g.warnings),
                *([QUICK] if quick else []),
            ]
            if notes:
                print("", *(broken(f"note: {note}", terminal_width()) for note in notes), sep="\n")
        met = [_meets(row, wanted) for row in rows]
        if wanted.epsilon is not None and not (all(met) if wanted.groups else any(met)):
            sys.exit(1)


def answers(wanted: Wanted, bounds: Any) -> list[dict[str, Guarantee] | str]:
    """Guarantees of each message by view, or the reason why it cannot meet the target."""
    from checkin_jax.accounting.account import account, of_group

    ask = functools.partial(account, delta=wanted.delta, bounds=bounds)
    rows: list[dict[str, Guarantee] | str] = []
    runs = wanted.groups or (wanted.protocol,) * len(wanted.messages)
    for run, message in zip(runs, wanted.messages):
        found = _found(run, message, wanted, bounds)
        if isinstance(found, str):
            rows.append(found)
            continue
        row = {view: ask(*found, view=view) for view in VIEWS}
        rows.append({view: of_group(g) for view, g in row.items()} if wanted.groups else row)
    return rows


def noise_of_mean(g: Guarantee) -> tuple[float, float] | None:
    """Noise of the mean of a round's messages, in clip norms per coordinate, with the most and the fewest messages.

    None if messages are not noisy updates. Numbers of messages are expected ones.
    """
    from checkin_jax.training.private.mechanism import mechanism_of

    run = g.protocol
    if not isinstance(run, AvailableCheckIn):
        return None
    try:
        noise = mechanism_of(g.randomizer, clip_norm=1.0).noise_multiplier
    except TypeError:  # no training with such messages
        return None
    counts = run.log.available * run.log.coin * run.arrival_prob
    return float(noise / np.sqrt(counts.max())), float(noise / np.sqrt(counts.min()))


def recorded(path: Path, bounds: Any, deployment: Deployment | None) -> Record:
    """Reads a plan, accounts for it and builds the record of its page and statement."""
    from checkin_jax.reports import declarations, subjects

    wanted = read(path)
    if wanted.groups:
        raise UsageError(
            f"{path}: a statement is of one group: write a plan for each share, with its own clients"
        )
    made = subjects.of_plan(
        path.stem,
        wanted.protocol,
        answers(wanted, bounds),
        target=None if wanted.epsilon is None else (wanted.epsilon, wanted.view),
        deployment=deployment or wanted.deployment,
    )
    return dataclasses.replace(
        made, files=declarations.digests([path] if wanted.log is None else [path, wanted.log])
    )


def read(path: Path, free: str | None = None) -> Wanted:
    """Reads a plan; free: variable of the run to search, instead of the one in the file.

    Raises:
      UsageError: no TOML, or a key that is unknown, missing or out of range; the message names it.
    """
    from checkin_jax.accounting.account import MIN_DELTA

    if path.suffix == ".json":
        raise UsageError(f"{path}: a plan is a TOML file; is it a ledger? Then: checkin budget {path}")
    tables = read_toml(path)
    for name in tables:
        if name not in _TABLES:
            raise UsageError(f"{path}: no table [{name}] in a plan{did_you_mean(name, _TABLES)}")
    try:
        fleet, target = (_table(name, tables.get(name)) for name in ("fleet", "target"))
        messages = tables.get("message", [])
        if not isinstance(messages, list) or not messages:
            raise ValueError("expected at least one [[message]]")
        fleet, cycle, log = _with_log(path, fleet)
        protocol = _run(cycle, fleet)
        epsilon = _validate.optional(_validate.real, 0, math.inf, "()", epsilon=target.get("epsilon"))
        delta = _validate.real(MIN_DELTA, 1, delta=target["delta"])
        view = _validate.choice(VIEWS, view=target.get("view", "messages"))
        if free is None and "free" in target:
            free = _validate.choice(FREE, free=target["free"])
        if free is not None and epsilon is None:
            raise _validate.error("an epsilon in [target]", free=free)
        tables_of = [dict(_table("message", each)) for each in messages]
        shares = [table.pop("share", None) for table in tables_of]
        found = tuple(_message(table, epsilon, free) for table in tables_of)
        groups = () if all(share is None for share in shares) else _groups(shares, cycle, fleet)
        deployment = of_table(tables.get("deployment", {}))
        _validate.optional(_validate.choice, VIEWS, view=deployment.view)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path}: {error}") from error
    return Wanted(protocol, len(cycle), found, groups, epsilon, delta, view, free, deployment, log)


def _table(name: str, table: Any) -> dict[str, Any]:
    return checked_table(name, table, _TABLES[name], _NEEDED[name])


def _with_log(path: Path, fleet: Mapping[str, Any]) -> tuple[Mapping[str, Any], list, Path | None]:
    """[fleet], the rounds of its cycle, and the CSV file beside the plan that has these and their coins, if any."""
    cycle = fleet["available"]
    if isinstance(cycle, str) and cycle.endswith(".csv"):
        file = path.parent / cycle
        log = log_of(file)
        if "check_in_prob" in fleet:
            raise ValueError(f"[fleet] check_in_prob is given by {cycle}: leave it out")
        return {**fleet, "check_in_prob": log.coin.tolist()}, log.available.tolist(), file
    if not isinstance(cycle, list):
        raise ValueError(
            f"[fleet] available={_validate.shown(cycle)}: expected a list of numbers, or a file such as log.csv"
        )
    if "check_in_prob" not in fleet:
        raise ValueError("[fleet] needs check_in_prob")
    return fleet, cycle, None


def _run(cycle: list, fleet: Mapping[str, Any]) -> AvailableCheckIn:
    coin = fleet["check_in_prob"]
    if isinstance(coin, list) and len(coin) != len(cycle):
        raise ValueError(f"[fleet] check_in_prob: expected one number, or {len(cycle)}, as of available")
    try:
        terms = {name: fleet[name] for name in _TERMS if name in fleet}
        return from_availability(cycle, coin=coin, **terms)
    except (ValueError, TypeError) as error:
        raise ValueError(re.sub("^coin", "[fleet] check_in_prob", str(error))) from error


def _groups(shares: list, cycle: list, fleet: Mapping[str, Any]) -> tuple[AvailableCheckIn, ...]:
    """Run of each group, from its share of the available clients."""
    if fleet.get("min_reports"):
        raise ValueError(
            "[fleet] min_reports: expected none where messages have shares: a floor of the whole batch says nothing of "
            "the messages of one group"
        )
    if any(share is None for share in shares):
        raise ValueError("[[message]] without share: expected one in each message, or in none")
    shares = [_validate.real(0, 1, "(]", share=share) for share in shares]
    if math.fsum(shares) > 1 + 1e-9:
        raise ValueError(
            f"[[message]] share: expected shares that add up to 1 at most, not {math.fsum(shares):g}"
        )
    return tuple(_run([math.floor(each * share) for each in cycle], fleet) for share in shares)


def _message(table: Mapping[str, Any], epsilon: float | None, free: str | None) -> PlannedMessage:
    """The message of a table, searched where its value is left out and nothing else is free."""
    table = dict(table)
    if table.get("mechanism") == _GAUSSIAN and "epsilon0" not in table:
        del table["mechanism"]
    mechanism = table.get("mechanism")
    if mechanism is not None:
        _validate.choice((*MECHANISMS, _GAUSSIAN), mechanism=mechanism)
    if "epsilon0" in table or "noise_multiplier" in table:
        return PlannedMessage(_randomizer(table), free)
    wanted = "an epsilon in [target]" if epsilon is None else "one of the two" if free else None
    if wanted is not None:
        searched = f" where {free} is searched" if free else ""
        raise ValueError(f"[[message]] without epsilon0 or noise_multiplier: expected {wanted}{searched}")
    if mechanism is None:
        return PlannedMessage(Gaussian, None)
    return PlannedMessage(_randomizer({**table, "epsilon0": 1.0}), "epsilon0")


def _randomizer(table: Mapping[str, Any]) -> Randomizer:
    """The randomizer of a table, whose keys are options of the command."""
    try:
        return RandomizerOptions(**table).build_randomizer()
    except UsageError as error:
        keys = re.sub("--([a-z0-9-]+)", lambda found: found[1].replace("-", "_"), str(error))
        raise ValueError(f"[[message]] {keys}") from error


def _found(
    run: AvailableCheckIn, message: PlannedMessage, wanted: Wanted, bounds: Any
) -> tuple[CheckInProtocol, Randomizer] | str:
    """(run, message), where something is searched those that meet the target, the value rounded to the printed digits
    on the private side; or the reason why there is none."""
    from checkin_jax.accounting.calibration import calibrate

    start, free = message
    if free is None and not isinstance(start, type):
        return run, start
    if free == "cycles":
        run = run.repeated(wanted.rounds_per_cycle)
    target = {"target_epsilon": wanted.epsilon, "delta": wanted.delta, "view": wanted.view, "bounds": bounds}
    try:
        found = calibrate(run, start, free=free, **target)
    except ValueError as error:
        return str(error)
    if isinstance(start, type):
        return run, start(**{found.name: float(up(found.value))})
    if found.name == "check_in_prob":
        return run.varied(found.name, float(down(found.value))), start
    if found.name in FREE:
        return found.protocol, start
    return run, dataclasses.replace(cast(Any, start), **{found.name: float(down(found.value))})


def _named(g: Guarantee, wanted: Wanted) -> str:
    """The message, and what was found of the run."""
    whose = f"{g.protocol.num_clients:,} clients: " if wanted.groups else ""
    words = whose + g.randomizer.description
    if wanted.free is None:
        return words
    value = _value(g, wanted)
    found = {
        "cycles": f"{value:,} cycles ({g.protocol.num_units:,} rounds)",
        "num_rounds": f"{value:,} rounds",
        "check_in_prob": f"check-in probability up to {value:.6g}",
    }
    return f"{words}: {found[wanted.free]}"


def _value(g: Guarantee, wanted: Wanted) -> Any:
    """Value found for the free variable of the run; None without one."""
    if wanted.free == "cycles":
        return g.protocol.num_units // wanted.rounds_per_cycle
    return None if wanted.free is None else getattr(g.protocol, wanted.free)


def _meets(row: Mapping[str, Guarantee] | str, wanted: Wanted) -> bool:
    """True if a message meets the target; False without a target."""
    return (
        wanted.epsilon is not None and not isinstance(row, str) and row[wanted.view].epsilon <= wanted.epsilon
    )


_EACH_GROUP = (
    "a line for each group of clients, who hide among their own group; all lines have to meet the target"
)


def _text(rows: list[dict[str, Guarantee] | str], wanted: Wanted, *, quick: bool) -> str:
    """The run in one line, a line for each message, and a checklist; quick: mark answers as those of --bounds fast."""
    target = (
        "" if wanted.epsilon is None else f"; wanted: epsilon <= {wanted.epsilon:g}, view {wanted.view!r}"
    )
    out = [f"{wanted.protocol.description}; delta {wanted.delta:g}{target}", ""]
    if wanted.groups:
        out[1:] = [_EACH_GROUP, ""]
    views = (wanted.view, *(view for view in VIEWS if view != wanted.view))
    last = "met" if wanted.epsilon is not None else "theorems" if quick else ""
    lines = [["epsilon, at least and at most", *views, last, "noise of the mean"]]
    assumed = _assumed(rows, wanted)
    for row in rows:
        if isinstance(row, str):
            lines.append([row])
            continue
        ends = [f"{down(row[view].lower, 5)} .. {up(row[view].epsilon, 5)}" for view in views]
        met = "" if wanted.epsilon is None else "yes" if _meets(row, wanted) else "no"
        if quick and met == "no" and row[wanted.view].lower <= (wanted.epsilon or 0.0):
            met = "open"
        noise = noise_of_mean(row[wanted.view])
        told = "" if noise is None else " to ".join(up(each, 3) for each in noise)
        lines.append(
            [_named(row[wanted.view], wanted), *ends, f"{met} (quick)".strip() if quick else met, told]
        )
    width = terminal_width()
    if width is None or max(map(len, columns(lines).split("\n"))) <= width:
        out.append(columns(lines))
    else:  # one message below the other, each with its views below
        head = lines[0]
        for message, *cells in lines[1:]:
            below = [(f"  {name}", cell) for name, cell in zip(head[1:], cells) if name]
            out += [message, *([columns(below)] if below else []), ""]
        out.pop()
    if wanted.groups and wanted.free in ("cycles", "num_rounds"):
        found = [_value(row[wanted.view], wanted) for row in rows if not isinstance(row, str)]
        if len(found) == len(rows):
            unit = wanted.free.removeprefix("num_")
            out += [
                "",
                f"All groups are in the same rounds: {min(found):,} {unit} at most meet the target for all.",
            ]
    for whom, texts in itertools.groupby(assumed, key=assumed.get):
        out += ["", f"To be checked by somebody who knows the fleet, for {whom}:"]
        out += [columns([("  [ ]", each)], " ", width=width) for each in texts]
    return "\n".join(broken(text, width) for text in out)


def _assumed(rows: list[dict[str, Guarantee] | str], wanted: Wanted) -> dict[str, str]:
    """Assumptions, and the answers that need each."""
    from checkin_jax.reports.record import needed_by

    return needed_by([(_named(row[wanted.view], wanted), row) for row in rows if not isinstance(row, str)])


def _plain(rows: list[dict[str, Guarantee] | str], wanted: Wanted) -> dict[str, Any]:
    """The plan as plain values for JSON: one cycle, and every text once."""
    cycle = wanted.protocol.repeated(wanted.rounds_per_cycle).followed_by(())
    answered = [g for row in rows if not isinstance(row, str) for g in row.values()]
    return {
        "description": wanted.protocol.description,
        "cycle": to_plain(cycle),
        "cycles": wanted.protocol.num_rounds // wanted.rounds_per_cycle,
        "assumptions": [
            {"assumption": each, "needed_by": whom} for each, whom in _assumed(rows, wanted).items()
        ],
        "theorems": list(dict.fromkeys(each for g in answered for each in g.theorems)),
        "target": {"epsilon": wanted.epsilon, "delta": wanted.delta, "view": wanted.view},
        "messages": [
            {"error": row}
            if isinstance(row, str)
            else {
                "met": _meets(row, wanted) if wanted.epsilon is not None else None,
                "found": _value(row[wanted.view], wanted),
                "num_rounds": row[wanted.view].protocol.num_units,
                "noise_of_mean": noise_of_mean(row[wanted.view]),
            }
            | {view: {k: v for k, v in g.as_dict().items() if k not in _ONCE} for view, g in row.items()}
            for row in rows
        ],
    }
