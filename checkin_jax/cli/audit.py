"""`checkin audit`: attacks on the trainer, and the lower bounds that they prove beside certified brackets."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from checkin_jax.cli.options import GUARANTEE, JsonOption, RunOptions, View
from checkin_jax.cli.pages import say
from checkin_jax.cli.parsing import UsageError, option
from checkin_jax.randomizers import L2Mechanism

if TYPE_CHECKING:
    from checkin_jax.auditing.training_run import TrainedRun
    from checkin_jax.training.examples.data import LabelledImages
    from checkin_jax.training.reports.recorded import RecordedRun
    from checkin_jax.training.run import PrivateRun


@dataclasses.dataclass(kw_only=True)
class AuditCommand(RunOptions, JsonOption):
    """Attacks the trainer, and compares the proven lower bounds with the certified epsilon; exit code 1 on a violation.

    Findings about a run are saved in its folder as audit.json, for checkin report and checkin statement.

    Attributes:
      run_dir: folder of a run, from which protocol, randomizer, clipping and delta are taken instead of options.
      data_dir: folder with the four IDX files of MNIST, to repeat the training of a run on MNIST.
      clip_norm: l2 norm to which every client's update is clipped. Default: 0.1.
      simulate: how sums are drawn. Default: "aggregate".
      delta: delta of the audited guarantee. Default: 1e-6.
      view: what the adversary sees. Default: all three views.
      runs: number of runs in each of the two worlds.
      confidence: joint confidence of all lower bounds.
      seed: make the audit reproducible.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "runs/digits",
        "--num-clients 20000 --check-in-prob 0.01 --num-rounds 1000 --noise-multiplier 2",
    )

    run_dir: Path | None = dataclasses.field(default=None, kw_only=False)
    data_dir: Path | None = None
    clip_norm: float | None = None
    simulate: Literal["aggregate", "messages"] | None = None
    delta: Annotated[float | None, GUARANTEE] = None
    view: Annotated[View | None, GUARANTEE] = None
    runs: int = 4_000
    confidence: float = 0.95
    seed: int | None = None

    def run(self) -> None:
        """Audits, prints the findings, and exits with code 1 on a violation."""
        from checkin_jax.accounting.account import account
        from checkin_jax.auditing.auditor import audit
        from checkin_jax.protocols import VIEWS
        from checkin_jax.reports import evidence

        audited, training, delta = self._audited()
        found = audit(
            audited,
            delta=delta,
            views=VIEWS if self.view is None else (self.view,),
            runs=self.runs,
            confidence=self.confidence,
            seed=self.seed,
            training=training,
            on_phase=_tell if sys.stderr.isatty() else None,
            account_fn=account,
        )
        self.show(found)
        if self.run_dir is not None:
            evidence.keep_audit(self.run_dir, found.as_dict())
        if not found.passed:
            sys.exit(1)

    def _audited(self) -> tuple[PrivateRun, TrainedRun | None, float]:
        """(run, training to attack or None, delta), from the folder or from the options."""
        from checkin_jax.training.run import PrivateRun

        names = [*(field.name for field in dataclasses.fields(RunOptions)), "clip_norm", "simulate", "delta"]
        usual = AuditCommand()
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        given = {name: value for name, value in given.items() if value != getattr(usual, name)}
        if self.run_dir is None:
            if self.data_dir is not None:
                raise UsageError("--data-dir is for the audit of a run: give RUN_DIR")
            of_run = {name: given[name] for name in ("clip_norm", "simulate") if name in given}
            randomizer = self.build_randomizer(L2Mechanism)
            run = PrivateRun(protocol=self.build_protocol(), randomizer=randomizer, **of_run)
            return run, None, given.get("delta", run.delta)
        from checkin_jax.training.examples import data
        from checkin_jax.training.reports import recorded

        if given:
            raise UsageError(f"{option(next(iter(given)))} is given by RUN_DIR: leave it out")
        found = recorded.read(self.run_dir)
        training = None
        if self.data_dir is not None:
            training = _trained(found, data.mnist(self.data_dir))
        elif found.about.get("dataset") == "digits":
            training = _trained(found, data.digits())
        return found.run, training, found.run.delta


def _trained(found: RecordedRun, images: LabelledImages) -> TrainedRun:
    """The training of the run on these images; a canary's alternative record has the next label."""
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
