"""`checkin audit`: the trainer attacked, and what that proves about epsilon beside what is certified."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import tyro

from checkin_jax.cli.options import Count, Job, RunOptions, UsageError, View
from checkin_jax.cli.pages import say
from checkin_jax.randomizers import L2Mechanism

if TYPE_CHECKING:
    from checkin_jax.auditing.training_run import TrainedRun
    from checkin_jax.training.examples.data import LabelledImages
    from checkin_jax.training.reports.recorded import RecordedRun


@dataclasses.dataclass(kw_only=True)
class Audit(RunOptions):
    """Attacks the trainer, and holds what is learnt against what is certified; exit code 1 on a violation.

    What it finds about a run stays in the run's folder as audit.json, for checkin report and statement.
    """

    heading: ClassVar[str] = "audit"
    examples: ClassVar[tuple[str, ...]] = (
        "runs/digits",
        "--num-clients 20000 --check-in-prob 0.01 --num-rounds 1000 --noise-multiplier 2",
    )

    run_dir: tyro.conf.Positional[Path | None] = None
    """Folder of a run: protocol, randomizer, clipping and delta are taken from it, in place of options."""
    num_clients: Count | None = None
    """How many clients there are (n); needed without a run."""
    data_dir: Path | None = None
    """Folder with the four IDX files of MNIST, to train again as a run on MNIST did."""
    clip_norm: float | None = None
    """l2 norm every client's update is clipped to; 0.1 when left out."""
    simulate: Literal["aggregate", "messages"] | None = None
    """How sums are drawn; "aggregate" when left out."""
    delta: float | None = None
    """Delta of the guarantee in question; 1e-6 when left out."""
    view: View | None = None
    """What the adversary sees; all three when left out."""
    runs: Count = 4_000
    """Runs in each of the two worlds."""
    confidence: float = 0.95
    """With which all lower bounds hold together."""
    seed: int | None = None
    """Make the audit reproducible."""
    trade_off: Path | None = None
    """Also draw certified true against false positive rates of what was run many times, with the attacks' own on them,
    to this PNG or SVG; wants the extra plots."""
    json: bool = False
    """Print one JSON object instead of text."""

    def prepare(self) -> Job:
        """Checks the arguments; the job audits, prints what it found, and exits with code 1 on a violation."""
        from checkin_jax import _validate, plotting
        from checkin_jax.accounting.account import account
        from checkin_jax.auditing.auditor import FEWEST_RUNS, MOST_RUNS, audit
        from checkin_jax.auditing.setting import check_auditable
        from checkin_jax.protocols import VIEWS
        from checkin_jax.reports import evidence
        from checkin_jax.training.run import PrivateRun

        given = {name: getattr(self, name) for name in ("clip_norm", "simulate")}
        given = {name: value for name, value in given.items() if value is not None}
        delta = 1e-6 if self.delta is None else self.delta
        training = None
        if self.run_dir is None:
            if self.data_dir is not None:
                raise UsageError("--data-dir is for the audit of a run: give RUN_DIR")
            randomizer = self.build_randomizer(L2Mechanism)
            run = PrivateRun(protocol=self.build_protocol(), randomizer=randomizer, **given)
        else:
            from checkin_jax.training.examples import data
            from checkin_jax.training.reports import recorded

            for field in dataclasses.fields(RunOptions):
                if getattr(self, field.name) != getattr(Audit, field.name):
                    given[field.name] = getattr(self, field.name)
            if given or self.delta is not None:
                name = next(iter(given), "delta")
                raise UsageError(f"--{name.replace('_', '-')} is given by RUN_DIR: leave it out")
            found = recorded.read(self.run_dir)
            run, delta = found.run, found.run.delta
            if self.data_dir is not None:
                training = _trained(found, data.mnist(self.data_dir))
            elif found.about.get("dataset") == "digits":
                training = _trained(found, data.digits())
        check_auditable(run)
        # As `audit` does, before any work.
        _validate.real(0, 1, open_low=True, open_high=True, delta=delta)
        _validate.real(0, 1, open_low=True, open_high=True, confidence=self.confidence)
        _validate.integer(FEWEST_RUNS, MOST_RUNS, runs=self.runs)
        if self.seed is not None:
            _validate.integer(0, 2.0**128, seed=self.seed)
        out = None if self.trade_off is None else plotting.check(self.trade_off)

        def job() -> None:
            found = audit(
                run,
                delta=delta,
                views=VIEWS if self.view is None else (self.view,),
                runs=self.runs,
                confidence=self.confidence,
                seed=self.seed,
                training=training,
                on_phase=_tell if sys.stderr.isatty() else None,
                account_fn=account,
            )
            if out is not None:
                many = [finding for finding in found.findings if finding.point is not None]
                # The last one of a view is at the delta in question.
                terms = {finding.view: finding.guarantee.attack for finding in many}
                points = {view: [f.point for f in many if f.view == view and f.point] for view in terms}
                drawn, rows = plotting.trade_off(terms, points)
                plotting.save(drawn, out, rows)
            if self.json:
                print(json.dumps(found.as_dict(), allow_nan=False))
            else:
                say(str(found))
            if self.run_dir is not None:
                evidence.keep_audit(self.run_dir, found.as_dict())
            if not found.passed:
                sys.exit(1)

        return job


def _trained(found: RecordedRun, images: LabelledImages) -> TrainedRun:
    """The network of the run on these images; a canary's other record has the next label."""
    import numpy as np

    from checkin_jax.auditing.training_run import TrainedRun
    from checkin_jax.training.examples.images import ImageTraining
    from checkin_jax.training.examples.networks import NUM_CLASSES

    def relabelled(records: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return records[0], (records[1] + 1) % NUM_CLASSES

    config = ImageTraining.recorded(found.run, found.about)
    return TrainedRun(
        run=config.run,
        model=config.model(images),
        dataset=images.dataset,
        alternative=relabelled,
        learning_rate=config.learning_rate,
    )


def _tell(words: str) -> None:
    say(f"{words} ...", to=sys.stderr)
