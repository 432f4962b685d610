"""`checkin train` and `checkin audit`: runs of training, and attacks on the trainer with the bounds that they prove."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from checkin_jax.cli.options import GUARANTEE, HostOptions, JsonOption, RunOptions, View, run_of
from checkin_jax.cli.programs import UsageError, option
from checkin_jax.cli.terminal import say
from checkin_jax.protocols import VIEWS, CheckInProtocol, ShuffledCheckIn
from checkin_jax.randomizers import Gaussian, L2Mechanism, Randomizer
from checkin_jax.training.examples import ImageSettings

if TYPE_CHECKING:
    from checkin_jax.auditing.one_run import TrainedRun
    from checkin_jax.training.examples.data import LabelledImages
    from checkin_jax.training.examples.networks import ImageTraining
    from checkin_jax.training.reports.recorded import RecordedRun
    from checkin_jax.training.run import PrivateRun


# Options besides protocol and randomizer for which a learning rate is tuned.
_TUNED = "chosen by accuracies on this public data"
_STEP_SIZES = ("clip_norm", "decay", "momentum", "local_steps", "local_learning_rate")
# Values of --mechanism whose messages the trainer draws.
TRAINED = ("any", "l2", "one-bit")


@dataclasses.dataclass(kw_only=True)
class _TrainingOptions(ImageSettings, HostOptions, RunOptions, JsonOption):
    """Settings of a training run on small images.

    Attributes:
      run_dir: folder for config, metrics, parameters and report; new or empty, unless --resume.
      learning_rate: step size on the mean clipped update. Default: tuned for the default setting; else a rule of thumb.
      clip_norm: l2 norm to which every client's update is clipped.
      simulate: how a round's sum is drawn: exactly (aggregate), or message by message.
      delta: delta of the reported guarantees.
      target_epsilon: budget: training ends before the round that would make epsilon exceed it.
      target_view: view of --target-epsilon.
      after: folder of a finished run on the same clients' records: continue with its parameters, and count its epsilon.
        The time of the change, and the new settings, must not depend on results.
      ledger: ledger of all other runs of the same clients: count its epsilon, too. Its target is the default budget.
        checkin ledger add --run adds the run to it afterwards.
      checkpoint_every: rounds between checkpoints, which contain the run's secret entropy until it has finished; 0:
        none.
      keep_checkpoints: number of checkpoints to keep.
      resume: continue the killed or interrupted run in --run-dir, or start it.
    """

    run_dir: Path
    learning_rate: float | None = None
    clip_norm: float = 0.1
    simulate: Literal["aggregate", "messages"] = "aggregate"
    delta: Annotated[float, GUARANTEE] = 1e-6
    target_epsilon: Annotated[float | None, GUARANTEE] = None
    target_view: Annotated[View, GUARANTEE] = "messages"
    after: Path | None = None
    ledger: Path | None = None
    checkpoint_every: int = 0
    keep_checkpoints: int = 2
    resume: bool = False

    # Default values of shuffled check-in; the number of clients is the default of all protocols.
    _start: ClassVar[dict[str, float]]
    _learning_rate: ClassVar[float]
    _randomizer: ClassVar[Randomizer]

    def _images(self) -> LabelledImages:
        """Loads the data set."""
        raise NotImplementedError

    def run(self) -> None:
        """Trains and prints the report; for a finished run, prints its existing report."""
        from checkin_jax.cli.terminal import Interrupts
        from checkin_jax.training.loop import RoundError
        from checkin_jax.training.reports import recorded
        from checkin_jax.training.runs.run_directory import FinishedError

        images, run = self._images(), self._private_run()
        config = self._config(run)
        mesh = self.devices()
        with Interrupts(self.run_dir) as interrupts:
            try:
                report = self._train(config, images, mesh, interrupts)
            except FinishedError as error:  # a job that is restarted repeatedly has finished
                finished = recorded.read(self.run_dir) if self.is_first() else None
                print(f"checkin: {error}", file=sys.stderr)
                if finished is not None and self.json:
                    print(json.dumps(finished.report, allow_nan=False))
                elif finished is not None:
                    say(str(finished.statement), f"Saved in {self.run_dir}")
                return
            except RoundError as error:
                raise UsageError(str(error)) from error
            if self.is_first():
                self.show(report, f"Saved in {self.run_dir}")

    def _before(self) -> tuple[tuple[tuple[CheckInProtocol, Randomizer], ...], float | None]:
        """(earlier runs of the same clients, budget of epsilon).

        Raises:
          UsageError: a ledger with another delta, or with entries in which more is seen than in the budget's view.
        """
        from checkin_jax.accounting.interop import ledger_file

        before = () if self.after is None else run_of("--after", self.after).spent
        if self.ledger is None:
            return before, self.target_epsilon
        kept = ledger_file.read(self.ledger)
        if kept.delta not in (None, self.delta):
            raise UsageError(f"--delta {self.delta:g}: expected {kept.delta!r}, which {self.ledger} keeps")
        target = kept.epsilon if self.target_epsilon is None else self.target_epsilon
        # The run composes all entries in its own view: one in which more is seen would count too little.
        less = VIEWS[: VIEWS.index(self.target_view)]
        for each in kept.counted:
            if each.unit is not None and each.unit[0].view in less:
                raise UsageError(
                    f"--target-view {self.target_view}: expected {each.unit[0].view}, the view of entry {each.id} of "
                    f"{self.ledger}, in which more is seen"
                )
        return (*kept.before, *before), target

    def _private_run(self) -> PrivateRun:
        """Protocol, randomizer and clipping; UsageError for protocols and randomizers without training."""
        from checkin_jax.training.run import PrivateRun

        before, target = self._before()
        given = self.epsilon0 is not None or self.noise_multiplier is not None
        shuffled = self.protocol == "shuffled-check-in"
        start = self._start if shuffled else {"num_clients": self._start["num_clients"]}
        try:
            return PrivateRun(
                protocol=self.build_protocol(**start),
                randomizer=_drawn(self) if given else self._randomizer,
                clip_norm=self.clip_norm,
                simulate=self.simulate,
                delta=self.delta,
                target_epsilon=target,
                target_view=self.target_view,
                before=before,
            )
        except TypeError as error:
            raise UsageError(str(error)) from error

    def _config(self, run: PrivateRun) -> ImageTraining:
        """Settings of a run; the learning rate is given, or tuned for the default setting, or by the rule of thumb."""
        from checkin_jax.training.examples.networks import ImageTraining
        from checkin_jax.training.server import BY_RULE, NOT_STATED, suggested_learning_rate

        # Options have the names of the fields of the configuration.
        names = {field.name for field in dataclasses.fields(ImageTraining)} - {"run", "learning_rate"}
        options = {name: getattr(self, name) for name in names if hasattr(self, name)}
        if self.learning_rate is not None:
            rate, tuning = self.learning_rate, f"learning rate {self.learning_rate:g} was given; {NOT_STATED}"
        elif self._is_default(run):
            rate = self._learning_rate
            tuning = f"learning rate {rate:g} of the default setting, {_TUNED}"
        else:
            rate, tuning = suggested_learning_rate(run), BY_RULE
        return ImageTraining(run=run, learning_rate=rate, **options, tuning=tuning)

    def _is_default(self, run: PrivateRun) -> bool:
        """True if all options that affect the best learning rate are as in the tuned setting."""
        usual: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(self)}
        tuned = ShuffledCheckIn(**self._start)  # type: ignore[arg-type]
        return (run.protocol, run.randomizer) == (tuned, self._randomizer) and all(
            getattr(self, name) == usual[name] for name in _STEP_SIZES
        )

    def _train(self, config: ImageTraining, images: LabelledImages, mesh: Any, interrupts: Any) -> Any:
        """Trains; returns the report. The rule of thumb uses the number of rounds that the budget allows."""
        from checkin_jax.accounting.account import account
        from checkin_jax.training.budget import rounds_within
        from checkin_jax.training.examples.networks import train
        from checkin_jax.training.server import BY_RULE, suggested_learning_rate

        allowed = rounds_within(config.run, account)
        if config.tuning == BY_RULE:
            config = dataclasses.replace(config, learning_rate=suggested_learning_rate(config.run, allowed))
        with self.progress(allowed) as bar:
            return train(
                config,
                images,
                self.run_dir,
                interrupts.watching(bar),
                checkpoint_every=self.checkpoint_every,
                keep_checkpoints=self.keep_checkpoints,
                resume=self.resume,
                mesh=mesh,
                after=self.after,
                account_fn=account,
            )


@dataclasses.dataclass(kw_only=True)
class TrainDigits(_TrainingOptions):
    """Trains on the embedded 8x8 digits (1,437 records; clients draw theirs with replacement).

    By default: shuffled check-in with probability 0.01 over 1,000 rounds of 200,000 clients, and Gaussian noise of 2
    clip norms a client.

    Attributes:
      eval_every: rounds between evaluations.

    Examples:
      checkin train digits --run-dir runs/digits
      checkin train digits --run-dir runs/window --protocol fixed-window --num-clients 2000 --num-slots 2000
        --minibatch 200
    """

    eval_every: int = 100

    _start: ClassVar[dict[str, float]] = {"num_clients": 200_000, "check_in_prob": 0.01, "num_rounds": 1_000}
    _learning_rate: ClassVar[float] = 6.0
    _randomizer: ClassVar[Randomizer] = Gaussian(noise_multiplier=2.0)

    def _images(self) -> LabelledImages:
        from checkin_jax.training.examples import data

        return data.digits()


@dataclasses.dataclass(kw_only=True)
class TrainMnist(_TrainingOptions):
    """Trains on MNIST, by default in the setting of the shuffled check-in paper (LDP-SGD, epsilon0 = 2).

    By default: shuffled check-in with probability 0.1 over 3,000 rounds of 60,000 clients.

    Attributes:
      data_dir: folder with the four IDX files, gzipped or not. Default: a prepared TensorFlow Datasets copy.

    Examples:
      checkin train mnist --run-dir runs/mnist --data-dir FOLDER --epsilon0 2 --target-accuracy 0.9
      checkin train mnist --run-dir runs/long --data-dir FOLDER --checkpoint-every 50 --resume
    """

    data_dir: Path | None = None

    _start: ClassVar[dict[str, float]] = {"num_clients": 60_000, "check_in_prob": 0.1, "num_rounds": 3_000}
    _learning_rate: ClassVar[float] = 1.3
    _randomizer: ClassVar[Randomizer] = L2Mechanism(epsilon0=2.0)

    def _images(self) -> LabelledImages:
        from checkin_jax.training.examples import data

        return data.mnist(self.data_dir)


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

    Examples:
      checkin audit runs/digits
      checkin audit --num-clients 20000 --check-in-prob 0.01 --num-rounds 1000 --noise-multiplier 2
    """

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
        from checkin_jax.auditing.auditor import audit
        from checkin_jax.reports import declarations

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
        )
        if self.run_dir is not None:
            declarations.keep_audit(self.run_dir, found.as_dict())
        self.show(found)
        if not found.passed:
            sys.exit(1)

    def _audited(self) -> tuple[PrivateRun, TrainedRun | None, float]:
        """(run, training to attack or None, delta), from the folder or from the options."""
        from checkin_jax.training.run import PrivateRun

        own: dict[str, Any] = {name: getattr(self, name) for name in ("clip_norm", "simulate", "delta")}
        own = {name: value for name, value in own.items() if value is not None}
        if self.run_dir is None:
            if self.data_dir is not None:
                raise UsageError("--data-dir is for the audit of a run: give RUN_DIR")
            delta = own.pop("delta", PrivateRun.delta)
            return PrivateRun(protocol=self.build_protocol(), randomizer=_drawn(self), **own), None, delta
        from checkin_jax.training.examples import data
        from checkin_jax.training.reports import recorded

        for name in (*self.given(), *own):
            raise UsageError(f"{option(name)} is given by RUN_DIR: leave it out")
        found = recorded.read(self.run_dir)
        training = None
        if self.data_dir is not None:
            training = _trained(found, data.mnist(self.data_dir))
        elif found.about.get("dataset") == "digits":
            training = _trained(found, data.digits())
        return found.run, training, found.run.delta


def _drawn(options: RunOptions) -> Randomizer:
    """The randomizer of the options; UsageError for one whose messages the trainer does not draw."""
    if options.mechanism not in (None, *TRAINED):
        raise UsageError(
            f"--mechanism {options.mechanism}: expected one that the trainer draws, of {', '.join(TRAINED)}"
        )
    return options.build_randomizer(L2Mechanism)


def _trained(found: RecordedRun, images: LabelledImages) -> TrainedRun:
    """The training of the run on these images; a canary's alternative record has the next label."""
    import numpy as np

    from checkin_jax.auditing.one_run import TrainedRun
    from checkin_jax.training.examples.networks import NUM_CLASSES, ImageTraining, image_model

    def relabelled(records: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return records[0], (records[1] + 1) % NUM_CLASSES

    config = ImageTraining.recorded(found.run, found.about)
    return TrainedRun(
        run=config.run,
        model=image_model(images),
        dataset=images.dataset,
        alternative=relabelled,
        learning_rate=config.learning_rate,
    )


def _tell(words: str) -> None:
    say(f"{words} ...", to=sys.stderr)
