"""`audit`: attacks on the trainer's own code, and lower bounds on epsilon from them, beside certified
brackets.

Trust model: the attacker observes the output in the given view, chose all records, and knows all of them
except one.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax._version import __version__
from checkin_jax.accounting.account import account
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.auditing import one_run, placement, scores
from checkin_jax.auditing.one_run import TrainedRun
from checkin_jax.auditing.placement import Placement
from checkin_jax.auditing.scores import Bounds, best_rule
from checkin_jax.auditing.trials import Trials, small, two_worlds
from checkin_jax.protocols import VIEWS, CheckInProtocol
from checkin_jax.reports import render
from checkin_jax.training import draws
from checkin_jax.training.reports.recorded import AUDITED
from checkin_jax.training.reports.report import AccountFn
from checkin_jax.training.run import PrivateRun

# Deltas at which a few thousand runs are informative; one of them is chosen on the first half of the runs.
AUDIT_DELTAS = (0.2, 0.05, 0.01)
FEWEST_RUNS, MOST_RUNS = 20, 10**7
# Share of the error for each test of placement; its evidence grows exponentially with the runs.
PLACEMENT = 0.01
MANY_RUNS, ONE_RUN, TRAINING = "many runs", "one run", "one run of training"
SEEDED = "reproducible audit: its runs are those of the seed"

OnPhase = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One empirical lower bound, beside the certified bracket of the attacked protocol.

    Attributes:
      test: "many runs", "one run" or "one run of training".
      view: the adversary, see `Guarantee`.
      protocol: the protocol that was run: a stand-in with few clients, or the first units of the audited one.
      delta: both figures are at this delta.
      lower: the epsilon that the runs refute, in nats; below the true epsilon, except with the audit's error
        probability.
      guarantee: of `account` for this protocol, view and delta, by the tight bounds; `lower` is compared with
        it.
      evidence: the underlying counts, in words.
    """

    test: str
    view: str
    protocol: CheckInProtocol
    delta: float
    lower: float
    guarantee: Guarantee
    evidence: str

    @property
    def passed(self) -> bool:
        """True if the lower bound is at most the certified upper end."""
        return self.lower <= self.guarantee.epsilon

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        certified = self.guarantee.as_dict()
        return {
            **{name: getattr(self, name) for name in ("test", "view", "delta", "passed")},
            "evidence": f"{self.evidence}, of {self.protocol.in_words}",
            **{name: certified[name] for name in ("against", "compared", "protocol")},
            "audit_lower": self.lower,
            "certified": {name: certified[name] for name in ("lower", "epsilon", "method", "lower_method")},
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """Findings of an audit, beside the certified brackets.

    Attributes:
      run: the audited run.
      findings: the lower bounds.
      placements: tests of the places of clients in the schedule.
      confidence: in (0, 1); with at least this probability all lower bounds hold and no placement is refuted
        wrongly.
      runs: number of runs in each of the two worlds, of the test by many runs.
      seed: None: the entropy came from the operating system.
      seconds: wall time.
      notes: omitted tests, with reasons.
    """

    run: PrivateRun
    findings: tuple[Finding, ...]
    placements: tuple[Placement, ...] = ()
    confidence: float
    runs: int
    seed: int | None
    seconds: float
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if no lower bound exceeds its certified upper end and no placement is refuted; no proof of
        privacy.
        """
        return all(each.passed for each in (*self.findings, *self.placements))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        audited = self.run.as_dict()
        return {
            **{name: getattr(self, name) for name in ("passed", "confidence", "runs", "seed")},
            **{name: audited[name] for name in AUDITED},
            "seconds": round(self.seconds, 3),
            "findings": [finding.as_dict() for finding in self.findings],
            "placements": [each.as_dict() for each in self.placements],
            "notes": list(self.notes),
            "version": __version__,
        }

    def __str__(self) -> str:
        return render.text("audit.txt", audit=self, run=self.run)


@named
def audit(
    run: PrivateRun,
    *,
    delta: float = 1e-6,
    views: tuple[str, ...] = VIEWS,
    runs: int = 4_000,
    confidence: float = 0.95,
    seed: int | None = None,
    training: TrainedRun | None = None,
    on_phase: OnPhase | None = None,
    account_fn: AccountFn = account,
) -> Audit:
    """Attacks schedule, clipping, noise, keys and sums of the trainer; compares lower bounds with
    `account`.

    Two tests in each view, and one of the schedule. *Many runs*: the protocol, or for a large one a stand-in
    with the same randomizer (`trials.small`), is run many times in two neighbouring worlds. An attack chosen
    on the first half of the runs is evaluated on the second half by exact binomial bounds, at `delta` and at
    the delta of `AUDIT_DELTAS` at which it came closest to a violation. *One run*: the first units of the
    protocol itself with up to 500 canaries, see `one_run`; omitted for too few clients or too large a unit.
    *Placement*: places, rounds and units of a client in the small protocol are compared with the laws
    promised by the schedule, see `placement`.

    Args:
      run: the run to audit.
      delta: of the guarantee in question, in (0, 1).
      views: some of "local", "messages", "aggregate".
      runs: number in each world, from 20 to 1e7; the test of the schedule uses at most 1,000.
      confidence: joint confidence of all lower bounds, in (0, 1); a false alarm has probability at most the
        rest.
      seed: None draws all runs from the operating system's entropy.
      training: a run whose loop and model are attacked as well, in view "aggregate": see `one_run`.
      on_phase: called with a description of each phase as it begins.
      account_fn: the accountant for the comparison, called as `account` is.

    Returns:
      An Audit. `passed` says that no violation was found, not that there is none.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """
    delta = _validate.real(0, 1, "()", delta=delta)
    runs = _validate.integer(FEWEST_RUNS, MOST_RUNS, runs=runs)
    confidence = _validate.real(0, 1, "()", confidence=confidence)
    if not isinstance(views, list | tuple) or not views:
        raise _validate.error(f"at least one of {', '.join(map(repr, VIEWS))}", views=views)
    for view in views:
        _validate.choice(VIEWS, views=view)
    entropies = _entropies(_validate.optional(_validate.integer, 0, 2.0**128, seed=seed))
    say = on_phase or (lambda words: None)
    started = time.perf_counter()
    stand_in = small(_validate.instance(PrivateRun, run=run))
    long = {view: one_run.affordable(run, view) for view in views}
    notes = [
        f"no test by one run in view {view!r}: the protocol has too few clients, or one unit is too large"
        for view in views
        if long[view] is None
    ]
    if seed is not None:
        notes.append(SEEDED)
    trained = None
    if training is not None and "aggregate" in views:
        trained = one_run.affordable_training(training)
        if trained is None:
            notes.append("no test by training: the protocol has too few clients, or one unit is too large")
    bounds = 2 * len(views) + sum(chosen is not None for chosen in long.values()) + (trained is not None)
    misplaced = PLACEMENT * (1.0 - confidence)
    error = (1.0 - confidence - misplaced * len(placement.TESTS)) / bounds
    certified = functools.cache(
        lambda protocol, view, at: account_fn(protocol, run.randomizer, delta=at, view=view)
    )
    drawn: dict[bool, tuple[int, Trials, Trials]] = {}
    findings = []
    for view in views:
        totals = view == "aggregate"
        if totals not in drawn:
            say(f"{2 * runs:,} runs of {stand_in.protocol.in_words}, {'sums' if totals else 'messages'}")
            drawn[totals] = two_worlds(stand_in, runs, entropies, messages=not totals, totals=totals)
        canary, *worlds = drawn[totals]
        first, second = (_scores(stand_in, view, canary, trials) for trials in worlds)
        say(f"attacks in view {view!r}")
        findings += _many_runs(stand_in, view, first, second, delta, error, certified)
        chosen = long[view]
        if chosen is not None:
            say(f"one run of {chosen.protocol.in_words} in view {view!r}")
            seen = one_run.coins_and_scores(chosen, view, entropies)
            guarantee = certified(chosen.protocol, view, delta)
            findings.append(_guesses(ONE_RUN, guarantee, *seen, error))
    if trained is not None:
        say(f"training, {trained.run.protocol.in_words}")
        seen = one_run.coins_and_scores_of_training(trained, entropies)
        guarantee = certified(trained.run.protocol, "aggregate", delta)
        findings.append(_guesses(TRAINING, guarantee, *seen, error))
    say(f"places of clients in {stand_in.protocol.in_words}")
    return Audit(
        run=run,
        findings=tuple(findings),
        placements=tuple(placement.tests(stand_in, runs, entropies, misplaced)),
        confidence=confidence,
        runs=runs,
        seed=seed,
        seconds=time.perf_counter() - started,
        notes=tuple(notes),
    )


def _many_runs(
    stand_in: PrivateRun,
    view: str,
    first: np.ndarray,
    second: np.ndarray,
    delta: float,
    error: float,
    certified: Callable[[CheckInProtocol, str, float], Guarantee],
) -> list[Finding]:
    """Lower bounds at an audit delta and at `delta`, by attacks chosen on one half of the runs."""
    half = len(first) // 2
    searched, judged = Bounds(half, error), Bounds(len(first) - half, error)
    rules = {at: best_rule(first[:half], second[:half], at, searched) for at in {*AUDIT_DELTAS, delta}}
    closest = max(AUDIT_DELTAS, key=lambda at: rules[at][0] - certified(stand_in.protocol, view, at).epsilon)
    findings = []
    for at in (closest, delta):
        right, wrong = rules[at][1].counts(first[half:], second[half:])
        bound = float(judged.epsilon(np.array(right), np.array(wrong), at))
        findings.append(
            Finding(
                test=MANY_RUNS,
                view=view,
                protocol=stand_in.protocol,
                delta=at,
                lower=bound,
                guarantee=certified(stand_in.protocol, view, at),
                evidence=f"{right:,} true and {wrong:,} false positives in {len(first) - half:,} runs of each world",
            )
        )
    return findings


def _guesses(test: str, guarantee: Guarantee, coins: np.ndarray, seen: np.ndarray, error: float) -> Finding:
    """Lower bound from guesses of the canaries' coins by their scores."""
    bound, guesses, correct = one_run.lower(coins, seen, guarantee.delta, error)
    return Finding(
        test=test,
        view=guarantee.view,
        protocol=guarantee.protocol,
        delta=guarantee.delta,
        lower=bound,
        guarantee=guarantee,
        evidence=f"{correct:,} of {guesses:,} guesses right, of the coins of {len(coins):,} canaries",
    )


def _scores(stand_in: PrivateRun, view: str, canary: int, trials: Trials) -> np.ndarray:
    if view == "aggregate":
        return scores.of_totals(stand_in, canary, trials)
    if view == "messages":
        return scores.of_messages(stand_in, canary, trials)
    return scores.of_own(stand_in, trials)


def _entropies(seed: int | None) -> Iterator[int]:
    if seed is None:
        while True:
            yield draws.fresh_entropy()
    root = np.random.SeedSequence(seed)
    while True:
        words = root.spawn(1)[0].generate_state(4, np.uint32)
        yield sum(int(word) << shift for word, shift in zip(words, range(0, 128, 32)))
