"""A run's budget of epsilon: the rounds that fit, the part already spent, and the figures of a run under way.

The number of rounds that fit is computed from the parameters before the first round and depends on no result.
So the figures of the rounds that ran are those of a run planned with this many rounds
(docs/theory_filters.md).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import Any

from checkin_jax._rounding import up
from checkin_jax._serialize import finite
from checkin_jax.accounting.account import account
from checkin_jax.accounting.calibration import largest_count
from checkin_jax.accounting.guarantee import Guarantee, RateRow
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.reports import render
from checkin_jax.reports.record import plain_rows
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import AccountFn, by_rate, every_view, guarantee, rate_lines
from checkin_jax.training.run import PrivateRun


@functools.lru_cache(maxsize=16)
def rounds_within(run: PrivateRun, account_fn: AccountFn = account) -> int:
    """Largest number of rounds whose epsilon, with all earlier runs, is at most `run.target_epsilon`.

    Args:
      run: if it has no target, all its rounds fit.
      account_fn: the accountant, called about a dozen times.

    Returns:
      Rounds in a whole number of units of the protocol; a window that has begun counts whole. The epsilon of
      these rounds was found to be at most the target, and that of one more unit above it.

    Raises:
      ValueError: not even one unit fits.
    """
    target, schedule = run.target_epsilon, run.schedule
    if target is None:
        return schedule.num_rounds

    def epsilon(units: int) -> float:
        return guarantee(run, run.protocol.repeated(units), run.target_view, account_fn).epsilon

    most = run.protocol.num_units
    units = largest_count(epsilon, most, target, start=most)
    if not units:
        unit = "window" if schedule.has_windows else "round"
        raise ValueError(
            f"target_epsilon={target!r}: expected at least {up(epsilon(1))}, the epsilon of one {unit}"
            f"{' and all earlier runs' if run.before else ''} in view {run.target_view!r}"
        )
    return min(units * schedule.rounds_per_unit, schedule.num_rounds)


def halted(run: PrivateRun) -> str:
    """Reason, in words, for ending a run whose next round would exceed the budget."""
    unit = "window" if run.schedule.has_windows else "round"
    return f"the next {unit} would exceed epsilon {run.target_epsilon:g} in view {run.target_view!r}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """Spent and remaining budget of a run.

    Attributes:
      run_dir: the folder. ended: reason for the end of the run; None while it is under way, or if it was
        killed.
      rounds: rounds that are accounted for. rounds_within: rounds to be run. rounds_planned: those of the protocol.
      before: earlier runs of the same clients in words; all figures count them, too.
      target_epsilon, target_view: the budget; None: there is none.
      spent: view -> Guarantee of this run so far and of earlier runs; empty before the first round.
      whole: view -> Guarantee after `rounds_within` rounds.
      by_rate: if check-in rates differ, the spent epsilon in view `target_view`, the fastest client's first.
    """

    run_dir: Path
    ended: str | None
    rounds: int
    rounds_within: int
    rounds_planned: int
    target_epsilon: float | None
    target_view: str
    delta: float
    spent: dict[str, Guarantee]
    whole: dict[str, Guarantee]
    by_rate: tuple[RateRow, ...] = ()
    before: tuple[str, ...] = ()

    @property
    def left(self) -> float | None:
        """target_epsilon minus the epsilon spent in its view; None without a target. Epsilons do
        not add up.
        """
        if self.target_epsilon is None:
            return None
        spent = self.spent[self.target_view].epsilon if self.spent else 0.0
        return max(self.target_epsilon - spent, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities become None."""
        told = dataclasses.asdict(dataclasses.replace(self, spent={}, whole={}, by_rate=()))
        del told["run_dir"], told["by_rate"]
        return {
            **told,
            "left": self.left,
            "spent": finite({view: each.epsilon for view, each in self.spent.items()}),
            "whole": finite({view: each.epsilon for view, each in self.whole.items()}),
            "spent_by_rate": plain_rows(self.by_rate),
        }

    def __str__(self) -> str:
        rates = rate_lines(self.by_rate)
        return render.text("budget.txt", budget=self, target=self.target_epsilon, rates=rates)


def budget_of(recorded: RecordedRun, account_fn: AccountFn = account) -> Budget:
    """Guarantees of the rounds that a run directory records, finished or not; nothing is written.

    Args:
      recorded: as read from the folder. An incomplete last line of metrics.jsonl is not counted.
      account_fn: the accountant.
    """
    run, rounds, within = recorded.run, recorded.rounds, recorded.rounds_within_budget
    account_fn = functools.cache(account_fn)
    whole = every_view(run, run.schedule.so_far(within), account_fn=account_fn)
    if rounds:
        begun = run.schedule.so_far(rounds)
        spent = every_view(run, begun, account_fn=account_fn)
        rates = by_rate(run, begun, spent, views=(run.target_view,), account_fn=account_fn)
    else:
        spent, rates = earlier(run, account_fn), {}
    ended = None
    if recorded.report is not None:
        ended = f"has ended: {recorded.report.get('stopped') or 'all rounds ran'}"
    return Budget(
        run_dir=recorded.path,
        ended=ended,
        rounds=rounds,
        rounds_within=within,
        rounds_planned=run.schedule.num_rounds,
        target_epsilon=run.target_epsilon,
        target_view=run.target_view,
        delta=run.delta,
        spent=spent,
        whole=whole,
        by_rate=rates.get(run.target_view, ()),
        before=tuple(f"{one.description}; {its.description}" for one, its in run.before),
    )


def earlier(run: PrivateRun, account_fn: AccountFn = account) -> dict[str, Guarantee]:
    """view -> Guarantee of the earlier runs in `run.before`; empty if there are none."""
    if not run.before:
        return {}
    *before, (protocol, randomizer) = run.before
    last = dataclasses.replace(run, protocol=protocol, randomizer=randomizer, before=tuple(before))
    return every_view(last, protocol, account_fn=account_fn)


_VIEW = "messages"
# Most evaluations with figures in one run: each may take a second per view.
MOST_EVALUATIONS = 20
_Figures = concurrent.futures.Future[dict[str, Guarantee]]


class Spent(contextlib.AbstractContextManager["Spent"]):
    """Bracket of epsilon over all rounds begun, in every view; use as a context manager.

    A thread computes the figures of the next evaluation while the rounds before it run. So the loop waits
    only if rounds are faster than the accountant. Leaving the context waits for the computation under way.

    Args:
      run: the run to account for.
      eval_every: rounds between evaluations.
      account_fn: the accountant.
      last: rounds that will run without interruption; None: those of the schedule.
    """

    def __init__(
        self, run: PrivateRun, eval_every: int, account_fn: AccountFn = account, last: int | None = None
    ) -> None:
        self._run, self._account_fn = run, account_fn
        self._last = last = run.schedule.num_rounds if last is None else last
        evaluations = -(-last // eval_every)
        self._every = eval_every * -(-evaluations // MOST_EVALUATIONS)
        self._found: dict[CheckInProtocol, _Figures] = {}
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "accounting")

    def __exit__(self, *exc_info: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def prepare(self, rounds: int) -> None:
        """Starts to compute the figures of the next evaluation after `rounds` rounds, if there is one."""
        if rounds < self._last:
            self._of(min((rounds // self._every + 1) * self._every, self._last))

    def line(self, rounds: int) -> dict[str, Any]:
        """Privacy fields of an evaluated round's line; empty for evaluations without figures.

        epsilon, epsilon_lower, view and method are those of view "messages". spent and spent_lower have the
        ends of every view. With more than `MOST_EVALUATIONS` evaluations only every second, third ... and the last have
        figures. Infinite values become None.
        """
        if rounds % self._every and rounds != self._last:
            return {}
        found = self._of(rounds).result()
        self.prepare(rounds)
        shown = found[_VIEW]
        values = finite({"epsilon": shown.epsilon, "epsilon_lower": shown.lower})
        spent = finite({view: each.epsilon for view, each in found.items()})
        lower = finite({view: each.lower for view, each in found.items()})
        return {**values, "view": shown.view, "method": shown.method, "spent": spent, "spent_lower": lower}

    def _of(self, rounds: int) -> _Figures:
        protocol = self._run.schedule.so_far(rounds)
        if protocol not in self._found:
            self._found[protocol] = self._thread.submit(
                every_view, self._run, protocol, account_fn=self._account_fn
            )
        return self._found[protocol]
