"""Accounts for a run while it goes on, for its metrics: the figures of the report, accounted for beside the rounds."""

from __future__ import annotations

import concurrent.futures
from typing import Any

from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.training.reports.report import AccountFn, guarantee
from checkin_jax.training.run import PrivateRun

VIEW = "messages"
# Evaluations that are accounted for in one run: each may take a second.
MOST = 40


class Spent:
    """The bracket of epsilon in view "messages" over what has begun; use as a context manager.

    A thread accounts for the next evaluation while the rounds before it run, so that the loop waits only where rounds
    are faster than the accountant. Leaving waits for what has been asked for.

    Args:
      run: what is accounted for.
      eval_every: rounds between evaluations.
      account_fn: the accountant.
    """

    def __init__(self, run: PrivateRun, eval_every: int, account_fn: AccountFn = account) -> None:
        self._run, self._account_fn, last = run, account_fn, run.schedule.num_rounds
        evaluations = -(-last // eval_every)
        self._every = eval_every * -(-evaluations // MOST)
        self._found: dict[CheckInProtocol, concurrent.futures.Future[Guarantee]] = {}
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "accounting")

    def __enter__(self) -> Spent:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def prepare(self, rounds: int) -> None:
        """Begins to account for the first evaluation with figures after so many rounds, if there is one."""
        last = self._run.schedule.num_rounds
        if rounds < last:
            self._of(min((rounds // self._every + 1) * self._every, last))

    def line(self, rounds: int) -> dict[str, Any]:
        """epsilon, epsilon_lower, view and method after an evaluated round; empty where it is one of too many.

        Of more than `MOST` evaluations every second, third ... has them, and the last; epsilon is None where infinite.
        """
        if rounds % self._every and rounds != self._run.schedule.num_rounds:
            return {}
        found = self._of(rounds).result()
        self.prepare(rounds)
        values = found.as_dict()
        return {
            "epsilon": values["epsilon"],
            "epsilon_lower": values["lower"],
            "view": found.view,
            "method": found.method,
        }

    def known(self) -> dict[CheckInProtocol, Guarantee]:
        """Guarantees that have been accounted for."""
        done = {
            protocol: future
            for protocol, future in self._found.items()
            if future.done() and not future.cancelled()
        }
        return {protocol: future.result() for protocol, future in done.items() if future.exception() is None}

    def _of(self, rounds: int) -> concurrent.futures.Future[Guarantee]:
        protocol = self._run.schedule.so_far(rounds)
        if protocol not in self._found:
            self._found[protocol] = self._thread.submit(
                guarantee, self._run, protocol, VIEW, self._account_fn
            )
        return self._found[protocol]
