"""Report of a finished run: its data, accuracy, and privacy in the three views."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from checkin_jax._rounding import down, up
from checkin_jax._serialize import finite
from checkin_jax._version import __version__
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee, RateRow
from checkin_jax.protocols import VIEWS, CheckInProtocol, ShuffledCheckIn
from checkin_jax.rates import Rates
from checkin_jax.reports import render
from checkin_jax.reports.record import plain_rows
from checkin_jax.training.run import PrivateRun

POST_PROCESSING = (
    "optimizer, learning rate and averages read only released sums: post-processing costs no privacy"
)
PUBLIC = "is public: no guarantee covers its records, and metrics on it may be published"
# As `account`: (protocol, randomizer, *, delta, view, ...) -> Guarantee.
AccountFn = Callable[..., Guarantee]
# view -> brackets by check-in rate, the fastest client's first.
ByRate = dict[str, tuple[RateRow, ...]]
# Fields and properties of a report in report.json.
_PLAIN = (
    *("dataset", "num_records", "accuracy", "metrics", "rounds", "units", "stopped", "entropy"),
    "messages_per_client",
)
# Number of rates in a table.
RATES = 5
SEEDED = "reproducible run: not private against someone who knows the seed"
OPERATING_SYSTEM, SEED = "the operating system", "the seed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The results of a finished (or stopped) run.

    Attributes:
      run: the settings that determine its privacy.
      settings: all other settings, by name, as plain values.
      dataset: name of the data set; `num_records` is the size of its training part.
      metrics: means over the public test set, by name; None if not finite.
      rounds: updates of the model that ran. Units of the protocol are accounted for, see `units`.
      seconds: wall time of the loop, compilation included, over all parts of a resumed run.
      stopped: reason for an end before the last round; None if all rounds ran.
      guarantees: view -> Guarantee over the units that ran.
      planned: view -> Guarantee over all planned units (within the budget, if there is one), if fewer ran;
        else empty.
      message: (epsilon0, delta0)-local privacy of one message of one client.
      by_rate: view -> brackets by check-in rate of the `leading` figures, the worst client's first; empty if
        all clients have the same rate.
      entropy: source of the run's secret bits: the operating system, the seed, or the name of another source.
      holding: description of a client's record, if it holds several; None: one record of the data set.
      sharing: description of records shared by clients; None: no record is held by several.
    """

    run: PrivateRun
    settings: dict[str, Any]
    dataset: str
    num_records: int
    metrics: dict[str, float | None]
    rounds: int
    seconds: float
    stopped: str | None
    guarantees: dict[str, Guarantee]
    planned: dict[str, Guarantee]
    message: tuple[float, float]
    by_rate: ByRate = dataclasses.field(default_factory=dict)
    entropy: str = OPERATING_SYSTEM
    holding: str | None = None
    sharing: str | None = None

    @property
    def accuracy(self) -> float | None:
        """Test accuracy in [0, 1], from `metrics`; None if the model reports none."""
        return self.metrics.get("accuracy")

    @property
    def leading(self) -> dict[str, Guarantee]:
        """Guarantees to quote: of all planned rounds if the run ended early, since results may have decided
        that.
        """
        return self.planned or self.guarantees

    @property
    def units(self) -> int:
        """Rounds of the protocol, or windows, that are accounted for; a window counts whole once begun."""
        return self.run.schedule.units(self.rounds)

    @property
    def messages_per_client(self) -> float:
        """Expected number of messages of one client, the fastest one, over the units of the figures to quote."""
        protocol = next(iter(self.leading.values())).protocol
        return protocol.num_units * protocol.rate

    def notes(self) -> list[str]:
        """Conditions and assumptions of the figures, a sentence each."""
        notes = []
        if self.settings.get("seed") is not None:
            notes.append(SEEDED)
        elif self.entropy != OPERATING_SYSTEM:
            notes.append(f"entropy came from {self.entropy}: that it is secret and random is assumed")
        notes += [words for words in (self.holding, self.sharing) if words is not None]
        planned, allowed = self.run.schedule.num_rounds, _allowed(self.run, self.settings)
        if self.rounds < planned:
            ended = f"ended after {self.rounds:,} of {planned:,} rounds ({self.stopped})"
            if self.planned:
                all_rounds = (
                    "all planned rounds" if allowed == planned else f"the {allowed:,} rounds that fit"
                )
                ended += (
                    f"; results may have decided when to stop, so the figures to quote are those of {all_rounds}: "
                    f"epsilon <= {up(self.planned['messages'].epsilon)} in view 'messages', "
                    f"{up(self.planned['aggregate'].epsilon)} in view 'aggregate'"
                )
            elif self.rounds == allowed:
                ended += "; this number was fixed before the first round, so the figures are those of a shorter run"
            notes.append(ended)
        if self.rounds % self.run.schedule.rounds_per_unit:
            notes.append("the last window is incomplete, and is accounted for as a whole")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Plain values for report.json."""
        return {
            "config": {**self.run.as_dict(), **self.settings, "version": __version__},
            **{name: getattr(self, name) for name in _PLAIN},
            "seconds": round(self.seconds, 3),
            "tuning": self.settings.get("tuning"),
            "epsilon": finite({view: each.epsilon for view, each in self.leading.items()}),
            "guarantees": {view: guarantee.as_dict() for view, guarantee in self.guarantees.items()},
            "guarantees_of_all_planned_rounds": {
                view: guarantee.as_dict() for view, guarantee in self.planned.items()
            },
            "epsilon_by_rate": {view: plain_rows(rows) for view, rows in self.by_rate.items()},
            "one_message": dict(zip(("epsilon0", "delta0"), self.message)),
            "notes": self.notes(),
        }

    def __str__(self) -> str:
        settings = self.settings
        written = render.text(
            "report.txt",
            report=self,
            run=self.run,
            each=settings.get("records_per_client"),
            steps=settings.get("local_steps", 1),
            tuning=settings.get("tuning"),
            allowed=_allowed(self.run, settings),
            rates={view: rate_lines(self.by_rate.get(view, ())) for view in VIEWS},
            public=PUBLIC,
            post_processing=POST_PROCESSING,
        )
        return f"{written}\n"


def guarantee(
    run: PrivateRun,
    protocol: CheckInProtocol,
    view: str,
    account_fn: AccountFn = account,
    client_rate: float | None = None,
) -> Guarantee:
    """Guarantee of `protocol`, the run's or that of its first units, with all earlier runs.

    client_rate: if rates differ, the guarantee covers clients with at most this rate. None: all clients.
    """
    more: dict[str, Any] = {"before": run.before} if run.before else {}
    if client_rate is not None:
        more["client_rate"] = client_rate
    return account_fn(protocol, run.randomizer, delta=run.delta, view=view, **more)


def every_view(
    run: PrivateRun, protocol: CheckInProtocol, *, account_fn: AccountFn = account
) -> dict[str, Guarantee]:
    """view -> Guarantee of `protocol`."""
    return {view: guarantee(run, protocol, view, account_fn) for view in VIEWS}


def figures(
    run: PrivateRun, rounds: int, allowed: int, account_fn: AccountFn = account
) -> tuple[dict[str, Guarantee], dict[str, Guarantee], ByRate]:
    """Guarantees over the units begun in `rounds` rounds and over those of all `allowed` rounds, and brackets by rate.

    The second is empty if these are the same units. The brackets are those of the second, if there are any: its
    figures hold for any rule that chose the moment of ending.
    """
    ran, whole = run.schedule.so_far(rounds), run.schedule.so_far(allowed)
    found = every_view(run, ran, account_fn=account_fn)
    if ran.num_units == whole.num_units:
        return found, {}, by_rate(run, ran, found, account_fn=account_fn)
    planned = every_view(run, whole, account_fn=account_fn)
    return found, planned, by_rate(run, whole, planned, account_fn=account_fn)


def by_rate(
    run: PrivateRun,
    protocol: CheckInProtocol,
    found: Mapping[str, Guarantee],
    *,
    views: Sequence[str] = VIEWS,
    account_fn: AccountFn = account,
) -> ByRate:
    """view -> brackets of `protocol` at `RATES` rates, evenly over the clients, the fastest client's first.

    Empty if all clients have the same rate. found: `every_view` of the protocol, which holds for the fastest
    client.
    """
    unequal_rates = protocol.unequal_rates
    if not isinstance(unequal_rates, Rates):
        return {}
    rates = sorted(set(unequal_rates.quantiles(RATES)), reverse=True)
    out: ByRate = {}
    for view in views:
        slower = [guarantee(run, protocol, view, account_fn, rate) for rate in rates[1:]]
        each = [found[view], *slower]
        out[view] = tuple(RateRow(rate, g.lower, g.epsilon) for rate, g in zip(rates, each))
    return out


def rate_lines(rows: Sequence[RateRow]) -> list[str]:
    """Rows as lines of a statement."""
    heads = ["by rate", *[""] * len(rows)]
    return [
        f"  {head:<10} clients who check in at {row.client_rate:.6g} or less: "
        f"{down(row.lower)} <= epsilon <= {up(row.epsilon)}"
        for head, row in zip(heads, rows)
    ]


def message_privacy(run: PrivateRun, account_fn: AccountFn = account) -> tuple[float, float]:
    """(epsilon0, delta0) of one message: delta0 is 0 for pure epsilon0, else min(n^-1.5, 0.1)."""
    if (pure := run.mechanism.pure_epsilon0) is not None:
        return pure, 0.0
    number = run.protocol.num_clients
    delta0 = min(0.1, math.pow(number, -1.5))
    once = ShuffledCheckIn(num_clients=number, check_in_prob=1.0, num_rounds=1)
    return account_fn(once, run.randomizer, delta=delta0, view="local").epsilon, delta0


def _allowed(run: PrivateRun, settings: Mapping[str, Any]) -> int:
    """Rounds to be run: all, or those within the budget."""
    return settings.get("rounds_within_budget") or run.schedule.num_rounds
