"""`checkin train`: options, and the job of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from checkin_jax import _validate
from checkin_jax.cli.options import Count, HostOptions, Job, RunOptions, UsageError, View
from checkin_jax.cli.pages import say
from checkin_jax.protocols import CheckInProtocol, ShuffledCheckIn
from checkin_jax.randomizers import Gaussian, L2Mechanism, Randomizer

if TYPE_CHECKING:
    from checkin_jax.training.examples.data import LabelledImages
    from checkin_jax.training.reports.recorded import RecordedRun
    from checkin_jax.training.run import PrivateRun

# Options beside protocol and randomizer that a learning rate is tuned for.
_STEP_SIZES = ("clip_norm", "decay", "momentum", "local_steps", "local_learning_rate")


@dataclasses.dataclass(kw_only=True)
class _TrainingOptions(HostOptions, RunOptions):
    heading: ClassVar[str] = "training"

    run_dir: Path
    """Folder for config, metrics, parameters and report; new or empty, unless --resume."""
    learning_rate: float | None = None
    """Step on the mean clipped update. Left out: tuned where the setting is the default; elsewhere a rule of thumb."""
    clip_norm: float = 0.1
    """l2 norm every client's update is clipped to."""
    decay: Literal["linear", "constant"] = "linear"
    """Learning rate over the rounds."""
    momentum: float = 0.0
    """Heavy-ball momentum."""
    averaging: float = 0.0
    """Average the parameters over this last fraction of the rounds."""
    simulate: Literal["aggregate", "messages", "central-limit"] = "aggregate"
    """How a round's sum is drawn: exactly (aggregate), message by message, or by the central limit."""
    delta: float = 1e-6
    """Delta of the reported guarantees."""
    target_epsilon: float | None = None
    """Budget: end before the round that would make epsilon exceed this."""
    target_view: View = "messages"
    """The view in which --target-epsilon is meant."""
    after: Path | None = None
    """Folder of a run on the same clients' records that has ended: go on with its parameters, and count its epsilon.
    When to change, and into what, must not depend on results."""
    ledger: Path | None = None
    """A ledger of all else that the same clients took part in: count its epsilon, too. Its target is the budget where
    --target-epsilon is left out; checkin ledger add --run puts the run into it afterwards."""
    eval_every: Count = 50
    """Rounds between evaluations."""
    target_accuracy: float | None = None
    """Stop at the first evaluation that reaches this test accuracy."""
    seed: int | None = None
    """Make the run reproducible, and not private against anybody who knows the seed."""
    entropy_file: Path | None = None
    """Draw the run's secrets from this device or pipe, such as /dev/hwrng; left out: the operating system."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the network."""
    microbatch: Count | None = None
    """Clients differentiated at once; left out: as suits the device."""
    records_per_client: Count = 1
    """Records each client holds."""
    local_steps: Count = 1
    """Steps a client makes on its own records before it sends what they changed (federated averaging)."""
    local_learning_rate: float | None = None
    """Learning rate of those steps."""
    checkpoint_every: Count = 0
    """Rounds between checkpoints, which hold the run's secret entropy until it has finished; 0: none."""
    keep_checkpoints: Count = 2
    """How many checkpoints are kept."""
    resume: bool = False
    """Go on with the run in --run-dir, which was killed or interrupted; begin it if it has not begun."""
    json: bool = False
    """Print the report as one JSON object instead of text."""

    # Defaults of shuffled check-in, for options that were left out; the number of clients is that of all protocols.
    _start: ClassVar[dict[str, float]]
    _learning_rate: ClassVar[float] = 1.0

    def _before(self) -> tuple[tuple[tuple[CheckInProtocol, Randomizer], ...], float | None]:
        """What the same clients took part in before, and the budget of epsilon.

        Raises:
          UsageError: a ledger of another delta.
        """
        from checkin_jax.accounting.interop import ledger_file
        from checkin_jax.training.reports import recorded

        before = () if self.after is None else recorded.read(self.after).spent
        if self.ledger is None:
            return before, self.target_epsilon
        kept = ledger_file.read(self.ledger)
        if kept.delta not in (None, self.delta):
            raise UsageError(f"--delta {self.delta:g}: expected {kept.delta!r}, which {self.ledger} keeps")
        target = kept.epsilon if self.target_epsilon is None else self.target_epsilon
        return (*kept.before, *before), target

    def _job(self, images: LabelledImages, default: Randomizer) -> Job:
        from checkin_jax.accounting.account import account
        from checkin_jax.cli.interrupts import Interrupts
        from checkin_jax.training.examples.images import ImageTraining, train
        from checkin_jax.training.learning_rate import suggested_learning_rate
        from checkin_jax.training.loop import RoundError
        from checkin_jax.training.run import PrivateRun
        from checkin_jax.training.runs.run_directory import FinishedError, ResumeError
        from checkin_jax.training.schedules.draws import EntropyError, EntropyFile

        given = self.epsilon0 is not None or self.noise_multiplier is not None
        randomizer = self.build_randomizer(L2Mechanism) if given else default
        shuffled = self.protocol == "shuffled-check-in"
        others = {"num_clients": self._start["num_clients"]}
        protocol = self.build_protocol(**self._start if shuffled else others)
        before, target = self._before()
        run = PrivateRun(
            protocol=protocol,
            randomizer=randomizer,
            clip_norm=self.clip_norm,
            simulate=self.simulate,
            delta=self.delta,
            target_epsilon=target,
            target_view=self.target_view,
            before=before,
        )
        # The options that are fields of the configuration have their names.
        names = {field.name for field in dataclasses.fields(ImageTraining)} - {"run"}
        options = {name: getattr(self, name) for name in names if hasattr(self, name)}
        if self.learning_rate is None:
            rule = suggested_learning_rate(run)
            options["learning_rate"] = (
                self._learning_rate if self._is_default(protocol, randomizer, default) else rule
            )
        config = ImageTraining(run=run, **options)
        by_rule = self.learning_rate is None and config.learning_rate != self._learning_rate
        config = dataclasses.replace(config, tuning=self._tuning(config.learning_rate, by_rule))
        if self.entropy_file is not None and self.seed is not None:
            raise UsageError("give at most one of --seed and --entropy-file")
        every = _validate.integer(0, checkpoint_every=self.checkpoint_every)
        keep = _validate.integer(1, keep_checkpoints=self.keep_checkpoints)
        source = contextlib.nullcontext() if self.entropy_file is None else EntropyFile(self.entropy_file)
        mesh = self.devices()

        def job() -> None:
            with Interrupts(self.run_dir) as interrupts:
                try:
                    allowed = _rounds_within(run)
                    rate = suggested_learning_rate(run, allowed) if by_rule else config.learning_rate
                    with self.progress(allowed) as bar, source as entropy:
                        report = train(
                            dataclasses.replace(config, learning_rate=rate),
                            images,
                            self.run_dir,
                            interrupts.watching(bar),
                            checkpoint_every=every,
                            keep_checkpoints=keep,
                            resume=self.resume,
                            mesh=mesh,
                            entropy=entropy,
                            after=self.after,
                            account_fn=account,
                        )
                except FinishedError as error:
                    # A job that is begun again and again has reached its end.
                    finished = self._finished() if self.is_first() else None
                    print(f"checkin: {error}", file=sys.stderr)
                    if finished is not None:
                        self._show(finished)
                    return
                except (ResumeError, EntropyError, RoundError) as error:
                    raise UsageError(str(error)) from error
                except MemoryError as error:
                    raise UsageError(
                        f"not enough memory: {error or 'fewer clients or slots a round need less'}"
                    ) from error
                if not self.is_first():
                    return
                if self.json:
                    print(json.dumps(report.as_dict(), allow_nan=False))
                else:
                    say(str(report), f"Saved in {self.run_dir}")

        return job

    def _finished(self) -> RecordedRun:
        """The run that is there already."""
        from checkin_jax.training.reports import recorded

        try:
            return recorded.read(self.run_dir)
        except (OSError, ValueError) as error:
            raise UsageError(str(error)) from error

    def _show(self, finished: RecordedRun) -> None:
        """Prints the report of a run that had finished before."""
        if self.json:
            print(json.dumps(finished.report, allow_nan=False))
        else:
            say(str(finished.statement), f"Saved in {self.run_dir}")

    def _tuning(self, rate: float, by_rule: bool) -> str:
        """How the learning rate was chosen, for the report."""
        from checkin_jax.training.learning_rate import BY_RULE, NOT_STATED

        if by_rule:
            return BY_RULE
        if self.learning_rate is None:
            return f"learning rate {rate:g} of the default setting, found by looking at accuracies on this public data"
        return f"learning rate {rate:g} was given; {NOT_STATED}"

    def _is_default(self, protocol: CheckInProtocol, randomizer: Randomizer, default: Randomizer) -> bool:
        """Whether all that the size of a good step depends on is as it was when the learning rate was tuned."""
        start: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(self)}
        tuned = ShuffledCheckIn(**self._start)  # type: ignore[arg-type]
        return (protocol, randomizer) == (tuned, default) and all(
            getattr(self, name) == start[name] for name in _STEP_SIZES
        )


def _rounds_within(run: PrivateRun) -> int:
    """How many rounds the run's budget allows; UsageError if none."""
    from checkin_jax.accounting.account import account
    from checkin_jax.training.budget import rounds_within

    try:
        return rounds_within(run, account)
    except ValueError as error:
        raise UsageError(str(error)) from error


@dataclasses.dataclass(kw_only=True)
class TrainDigits(_TrainingOptions):
    """Trains on the embedded 8x8 digits (1,437 records; clients draw theirs with replacement).

    By default: shuffled check-in with probability 0.01 over 1,000 rounds.
    """

    num_clients: Count | None = None
    """How many clients there are (n); left out: 200,000, or as many as there are --rates or --availability."""
    num_rounds: Count | None = None
    """Number of rounds (T) of shuffled-check-in and shuffle; left out: 1,000 of shuffled-check-in, 1 of shuffle."""
    eval_every: Count = 100
    """Rounds between evaluations."""

    examples: ClassVar[tuple[str, ...]] = (
        "--run-dir runs/digits",
        "--run-dir runs/window --protocol fixed-window --num-clients 2000 --num-slots 2000 --minibatch 200",
    )

    _start: ClassVar[dict[str, float]] = {"num_clients": 200_000, "check_in_prob": 0.01, "num_rounds": 1_000}
    _learning_rate = 6.0

    def prepare(self) -> Job:
        """Checks the arguments; the job trains, by default with Gaussian noise of 2 clip norms a client."""
        from checkin_jax.training.examples import data

        return self._job(data.digits(), Gaussian(noise_multiplier=2.0))


@dataclasses.dataclass(kw_only=True)
class TrainMnist(_TrainingOptions):
    """Trains on MNIST, by default in the setting of the shuffled check-in paper (LDP-SGD, epsilon0 = 2).

    By default: shuffled check-in with probability 0.1 over 3,000 rounds.
    """

    data_dir: Path | None = None
    """Folder with the four IDX files, gzipped or not; left out: a prepared TensorFlow Datasets copy."""
    num_clients: Count | None = None
    """How many clients there are (n); left out: 60,000, or as many as there are --rates or --availability."""
    num_rounds: Count | None = None
    """Number of rounds (T) of shuffled-check-in and shuffle; left out: 3,000 of shuffled-check-in, 1 of shuffle."""
    pool_stride: Literal[1, 2] = 1
    """Stride of the poolings, which the paper leaves open: 1 gives 26,010 parameters, 2 gives 10,650."""

    examples: ClassVar[tuple[str, ...]] = (
        "--run-dir runs/mnist --data-dir FOLDER --epsilon0 2 --target-accuracy 0.9",
        "--run-dir runs/long --data-dir FOLDER --checkpoint-every 50 --resume",
    )

    _start: ClassVar[dict[str, float]] = {"num_clients": 60_000, "check_in_prob": 0.1, "num_rounds": 3_000}
    _learning_rate = 1.3

    def prepare(self) -> Job:
        """Checks the arguments; the job trains, by default with the l2 mechanism at epsilon0 = 2."""
        from checkin_jax.training.examples import data

        return self._job(data.mnist(self.data_dir), L2Mechanism(epsilon0=2.0))


DATA_SETS: dict[str, type] = {"digits": TrainDigits, "mnist": TrainMnist}


@dataclasses.dataclass(kw_only=True)
class Train:
    """Trains a network privately and reports how private it is."""

    dataset: (
        Annotated[TrainDigits, tyro.conf.subcommand("digits")]
        | Annotated[TrainMnist, tyro.conf.subcommand("mnist")]
    )

    def prepare(self) -> Job:
        """Checks the arguments; the job trains on the chosen data set."""
        return self.dataset.prepare()
