"""Accounts for a run while it goes on, for its metrics: the figures of the report, accounted for beside the rounds."""

from __future__ import annotations

import concurrent.futures
from typing import Any

from checkin_jax._serialize import finite
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.training.reports.report import AccountFn, ByRate, by_rate, every_view, plain_rows
from checkin_jax.training.run import PrivateRun

VIEW = "messages"
# Evaluations that are accounted for in one run: each may take a second a view.
MOST = 20
# Where rates differ: those of the fastest client, the median and the slowest.
RATES = 3
_Figures = concurrent.futures.Future[tuple[dict[str, Guarantee], ByRate]]


class Spent:
    """The bracket of epsilon over what has begun, in every view; use as a context manager.

    A thread accounts for the next evaluation while the rounds before it run, so that the loop waits only where rounds
    are faster than the accountant. Leaving waits for what has been asked for.

    Args:
      run: what is accounted for.
      eval_every: rounds between evaluations.
      account_fn: the accountant.
      last: rounds that will run, if all goes well; None: those of the schedule.
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

    def __enter__(self) -> Spent:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def prepare(self, rounds: int) -> None:
        """Begins to account for the first evaluation with figures after so many rounds, if there is one."""
        if rounds < self._last:
            self._of(min((rounds // self._every + 1) * self._every, self._last))

    def line(self, rounds: int) -> dict[str, Any]:
        """What an evaluated round's line says of privacy; empty where the round is one of too many.

        epsilon, epsilon_lower, view and method are those of view "messages"; spent and spent_lower have both ends of
        every view, and spent_by_rate, where rates differ, pairs of a check-in rate and epsilon in view "messages", the
        worst first.
        Of more than `MOST` evaluations every second, third ... has them, and the last; None where infinite.
        """
        if rounds % self._every and rounds != self._last:
            return {}
        found, by_rates = self._of(rounds).result()
        self.prepare(rounds)
        shown = found[VIEW]
        values = finite({"epsilon": shown.epsilon, "epsilon_lower": shown.lower})
        spent = finite({view: each.epsilon for view, each in found.items()})
        lower = finite({view: each.lower for view, each in found.items()})
        line = {**values, "view": shown.view, "method": shown.method, "spent": spent, "spent_lower": lower}
        if VIEW in by_rates:
            rows = plain_rows(by_rates[VIEW])
            line["spent_by_rate"] = [[row["client_rate"], row["epsilon"]] for row in rows]
        return line

    def known(self) -> dict[CheckInProtocol, dict[str, Guarantee]]:
        """Guarantees that have been accounted for."""
        done = {
            protocol: future
            for protocol, future in self._found.items()
            if future.done() and not future.cancelled()
        }
        return {
            protocol: future.result()[0] for protocol, future in done.items() if future.exception() is None
        }

    def _of(self, rounds: int) -> _Figures:
        protocol = self._run.schedule.so_far(rounds)
        if protocol not in self._found:
            self._found[protocol] = self._thread.submit(self._figures, protocol)
        return self._found[protocol]

    def _figures(self, protocol: CheckInProtocol) -> tuple[dict[str, Guarantee], ByRate]:
        found = every_view(self._run, protocol, account_fn=self._account_fn)
        how = {"count": RATES, "views": (VIEW,), "account_fn": self._account_fn}
        return found, by_rate(self._run, protocol, found, **how)
