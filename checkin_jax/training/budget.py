"""A budget of epsilon while a run goes on: how many rounds fit, and what has been spent of it.

How many rounds fit follows from the parameters alone. It is found before the first round and depends on no result, so
the figures of the rounds that ran apply as if no more had been planned (docs/theory_filters.md).
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from checkin_jax._rounding import down, up
from checkin_jax._serialize import finite
from checkin_jax.accounting.account import account
from checkin_jax.accounting.calibration import largest_count
from checkin_jax.accounting.guarantee import Guarantee, RateRow
from checkin_jax.kernels.execution.devices import on_cpu
from checkin_jax.training.reports.recorded import RecordedRun
from checkin_jax.training.reports.report import (
    AccountFn,
    by_rate,
    every_view,
    guarantee,
    plain_rows,
    rate_lines,
)
from checkin_jax.training.run import PrivateRun


@functools.lru_cache(maxsize=16)
def rounds_within(run: PrivateRun, account_fn: AccountFn = account) -> int:
    """The largest number of rounds whose epsilon, with all that ran before, is at most `run.target_epsilon`.

    Args:
      run: all its rounds fit where it has no target.
      account_fn: the accountant; it is asked about a dozen times.

    Returns:
      A whole number of units of the protocol, in rounds: a window that has begun counts whole. The epsilon of these
      rounds was found to be at most the target, that of one unit more to be above it.

    Raises:
      ValueError: not even one unit fits.
    """
    target, schedule = run.target_epsilon, run.schedule
    if target is None:
        return schedule.num_rounds
    account_fn = on_cpu(account_fn)  # the same number wherever the run goes on

    def epsilon(units: int) -> float:
        return guarantee(run, run.protocol.repeated(units), run.target_view, account_fn).epsilon

    most = run.protocol.repeats
    units = largest_count(epsilon, most, target, start=most)
    if not units:
        what = "one window" if schedule.has_windows else "one round"
        raise ValueError(
            f"target_epsilon={target!r}: expected at least {up(epsilon(1))}, what {what} costs"
            f"{' after all that was run before' if run.before else ''} in view {run.target_view!r}"
        )
    return min(units * schedule.rounds_per_unit, schedule.num_rounds)


def halted(run: PrivateRun) -> str:
    """Why a run ends whose next round would exceed the budget, in words."""
    what = "window" if run.schedule.has_windows else "round"
    return f"the next {what} would exceed epsilon {run.target_epsilon:g} in view {run.target_view!r}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run has spent, and what is left of its budget.

    Attributes:
      run_dir: the folder. ended: why the run has ended, None while it goes on (or was killed).
      rounds: rounds that were logged. rounds_within: rounds that are to run. rounds_planned: those of the protocol.
      target_epsilon, target_view: the budget; None: there is none.
      spent: view -> Guarantee of what has been run, and before it; empty before the first round.
      whole: view -> Guarantee once `rounds_within` have run.
      by_rate: where check-in rates differ, what has been spent in view `target_view`, the fastest client's first.
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

    @property
    def left(self) -> float | None:
        """target_epsilon less what is spent in its view; None without a target. Epsilons of parts do not add up."""
        if self.target_epsilon is None:
            return None
        spent = self.spent[self.target_view].epsilon if self.spent else 0.0
        return max(self.target_epsilon - spent, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities as None."""
        names = (
            "ended",
            "rounds",
            "rounds_within",
            "rounds_planned",
            "target_epsilon",
            "target_view",
            "delta",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "left": self.left,
            "spent": finite({view: each.epsilon for view, each in self.spent.items()}),
            "whole": finite({view: each.epsilon for view, each in self.whole.items()}),
            "spent_by_rate": plain_rows(self.by_rate),
        }

    def __str__(self) -> str:
        state = self.ended or "has not ended"
        fit = f" of {self.rounds_planned:,}" if self.rounds_within < self.rounds_planned else ""
        budget = (
            "no budget was set"
            if self.target_epsilon is None
            else f"epsilon {self.target_epsilon:g} in view {self.target_view!r} at delta = {self.delta!r}"
        )
        lines = [
            f"{self.run_dir}: {state}",
            f"  rounds     {self.rounds:,} logged, {self.rounds_within - self.rounds:,} left of the "
            f"{self.rounds_within:,} that are to run{fit and f' ({fit[1:]} planned)'}",
            f"  budget     {budget}",
            f"  {'view':<11}{'spent':>12}{'at the end':>12}{'left':>12}",
        ]
        for view, whole in self.whole.items():
            spent = up(self.spent[view].epsilon) if self.spent else "0"
            left = down(self.left) if self.left is not None and view == self.target_view else ""
            lines.append(f"  {view:<11}{spent:>12}{up(whole.epsilon):>12}{left:>12}".rstrip())
        return "\n".join([*lines, *rate_lines(self.by_rate)])


def budget_of(recorded: RecordedRun, account_fn: AccountFn = account) -> Budget:
    """Accounts for what a run directory says was run, whether the run goes on or not; nothing is written.

    Args:
      recorded: as read from the folder; a line of metrics.jsonl that is being written is not counted yet.
      account_fn: the accountant.
    """
    run, rounds, within = recorded.run, recorded.rounds, recorded.rounds_within_budget
    whole = every_view(run, run.schedule.so_far(within), account_fn=account_fn)
    if rounds == within:
        spent = whole
    elif rounds:
        spent = every_view(run, run.schedule.so_far(rounds), account_fn=account_fn)
    else:
        spent = earlier(run, account_fn)
    rates = {}
    if rounds:
        how = {"views": (run.target_view,), "account_fn": account_fn}
        rates = by_rate(run, run.schedule.so_far(rounds), spent, **how)
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
    )


def earlier(run: PrivateRun, account_fn: AccountFn = account) -> dict[str, Guarantee]:
    """view -> Guarantee of what was run before the run itself; empty if nothing was."""
    if not run.before:
        return {}
    *before, (protocol, randomizer) = run.before
    last = dataclasses.replace(run, protocol=protocol, randomizer=randomizer, before=tuple(before))
    return every_view(last, protocol, account_fn=account_fn)
