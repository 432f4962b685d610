"""Guarantees of a run under way, for its metrics: the report's figures, from a thread beside the rounds."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import Any

from checkin_jax._serialize import finite
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.training.reports.report import AccountFn, every_view
from checkin_jax.training.run import PrivateRun

VIEW = "messages"
# Most evaluations with figures in one run: each may take a second per view.
MOST = 20
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
        self._every = eval_every * -(-evaluations // MOST)
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
        ends of every view. With more than `MOST` evaluations only every second, third ... and the last have
        figures. Infinite values become None.
        """
        if rounds % self._every and rounds != self._last:
            return {}
        found = self._of(rounds).result()
        self.prepare(rounds)
        shown = found[VIEW]
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
