"""`checkin train`: options, and the run that they describe."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from checkin_jax.cli.options import GUARANTEE, HostOptions, JsonOption, RunOptions, View, run_of
from checkin_jax.cli.pages import say
from checkin_jax.cli.parsing import UsageError
from checkin_jax.protocols import CheckInProtocol, ShuffledCheckIn
from checkin_jax.randomizers import Gaussian, L2Mechanism, Randomizer

if TYPE_CHECKING:
    from checkin_jax.training.examples.data import LabelledImages
    from checkin_jax.training.examples.images import ImageTraining
    from checkin_jax.training.run import PrivateRun

# Options beside protocol and randomizer that a learning rate is tuned for.
_TUNED = "found by looking at accuracies on this public data"
_STEP_SIZES = ("clip_norm", "decay", "momentum", "local_steps", "local_learning_rate")


@dataclasses.dataclass(kw_only=True)
class _TrainingOptions(HostOptions, RunOptions, JsonOption):
    """Settings of a run on small images.

    Attributes:
      run_dir: folder for config, metrics, parameters and report; new or empty, unless --resume.
      learning_rate: step on the mean clipped update. Left out: tuned where the setting is the default; elsewhere a rule
        of thumb.
      clip_norm: l2 norm every client's update is clipped to.
      decay: learning rate over the rounds.
      momentum: heavy-ball momentum.
      averaging: average the parameters over this last fraction of the rounds.
      simulate: how a round's sum is drawn: exactly (aggregate), message by message, or by the central limit.
      delta: delta of the reported guarantees.
      target_epsilon: budget: end before the round that would make epsilon exceed this.
      target_view: the view in which --target-epsilon is meant.
      after: folder of a run on the same clients' records that has ended: go on with its parameters, and count its
        epsilon. When to change, and into what, must not depend on results.
      ledger: a ledger of all else that the same clients took part in: count its epsilon, too. Its target is the budget
        where --target-epsilon is left out; checkin ledger add --run puts the run into it afterwards.
      eval_every: rounds between evaluations.
      target_accuracy: stop at the first evaluation that reaches this test accuracy.
      seed: make the run reproducible, and not private against anybody who knows the seed.
      entropy_file: draw the run's secrets from this device or pipe, such as /dev/hwrng; left out: the operating system.
      activation: activation of the network.
      microbatch: clients differentiated at once; left out: as suits the device.
      records_per_client: records each client holds.
      local_steps: steps a client makes on its own records before it sends what they changed (federated averaging).
      local_learning_rate: learning rate of those steps.
      checkpoint_every: rounds between checkpoints, which hold the run's secret entropy until it has finished; 0: none.
      keep_checkpoints: how many checkpoints are kept.
      resume: go on with the run in --run-dir, which was killed or interrupted; begin it if it has not begun.
    """

    run_dir: Path
    learning_rate: float | None = None
    clip_norm: float = 0.1
    decay: Literal["linear", "constant"] = "linear"
    momentum: float = 0.0
    averaging: float = 0.0
    simulate: Literal["aggregate", "messages", "central-limit"] = "aggregate"
    delta: Annotated[float, GUARANTEE] = 1e-6
    target_epsilon: Annotated[float | None, GUARANTEE] = None
    target_view: Annotated[View, GUARANTEE] = "messages"
    after: Path | None = None
    ledger: Path | None = None
    eval_every: int = 50
    target_accuracy: float | None = None
    seed: int | None = None
    entropy_file: Path | None = None
    activation: Literal["tanh", "relu"] = "tanh"
    microbatch: int | None = None
    records_per_client: int = 1
    local_steps: int = 1
    local_learning_rate: float | None = None
    checkpoint_every: int = 0
    keep_checkpoints: int = 2
    resume: bool = False

    # Defaults of shuffled check-in, for options that were left out; the number of clients is that of all protocols.
    _start: ClassVar[dict[str, float]]
    _learning_rate: ClassVar[float]
    _randomizer: ClassVar[Randomizer]

    def _images(self) -> LabelledImages:
        """The data set."""
        raise NotImplementedError

    def run(self) -> None:
        """Trains and prints the report; of a run that has finished, the report that is there."""
        from checkin_jax.cli.interrupts import Interrupts
        from checkin_jax.training.loop import RoundError
        from checkin_jax.training.reports import recorded
        from checkin_jax.training.runs.run_directory import FinishedError

        images, run = self._images(), self._private_run()
        config = self._config(run)
        if self.entropy_file is not None and self.seed is not None:
            raise UsageError("give at most one of --seed and --entropy-file")
        mesh = self.devices()
        with Interrupts(self.run_dir) as interrupts:
            try:
                report = self._train(config, images, mesh, interrupts)
            except FinishedError as error:  # a job that is begun again and again has reached its end
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
        """What the same clients took part in before, and the budget of epsilon.

        Raises:
          UsageError: a ledger of another delta.
        """
        from checkin_jax.accounting.interop import ledger_file

        before = () if self.after is None else run_of("--after", self.after).spent
        if self.ledger is None:
            return before, self.target_epsilon
        kept = ledger_file.read(self.ledger)
        if kept.delta not in (None, self.delta):
            raise UsageError(f"--delta {self.delta:g}: expected {kept.delta!r}, which {self.ledger} keeps")
        target = kept.epsilon if self.target_epsilon is None else self.target_epsilon
        return (*kept.before, *before), target

    def _private_run(self) -> PrivateRun:
        """Protocol, randomizer and clipping; UsageError where a protocol or randomizer cannot be trained under."""
        from checkin_jax.training.run import PrivateRun

        before, target = self._before()
        given = self.epsilon0 is not None or self.noise_multiplier is not None
        shuffled = self.protocol == "shuffled-check-in"
        start = self._start if shuffled else {"num_clients": self._start["num_clients"]}
        try:
            return PrivateRun(
                protocol=self.build_protocol(**start),
                randomizer=self.build_randomizer(L2Mechanism) if given else self._randomizer,
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
        """The settings of a run; its learning rate is given, or that of the default setting, or the rule's."""
        from checkin_jax.training.examples.images import ImageTraining
        from checkin_jax.training.learning_rate import BY_RULE, NOT_STATED, suggested_learning_rate

        # The options that are fields of the configuration have their names.
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
        """Whether all that the size of a good step depends on is as it was when the learning rate was tuned."""
        usual: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(self)}
        tuned = ShuffledCheckIn(**self._start)  # type: ignore[arg-type]
        return (run.protocol, run.randomizer) == (tuned, self._randomizer) and all(
            getattr(self, name) == usual[name] for name in _STEP_SIZES
        )

    def _train(self, config: ImageTraining, images: LabelledImages, mesh: Any, interrupts: Any) -> Any:
        """The report of the run; a learning rate by the rule is that of as many rounds as the budget allows."""
        from checkin_jax.accounting.account import account
        from checkin_jax.training.budget import rounds_within
        from checkin_jax.training.examples.images import train
        from checkin_jax.training.learning_rate import BY_RULE, suggested_learning_rate
        from checkin_jax.training.schedules.draws import EntropyFile

        allowed = rounds_within(config.run, account)
        if config.tuning == BY_RULE:
            config = dataclasses.replace(config, learning_rate=suggested_learning_rate(config.run, allowed))
        source = contextlib.nullcontext() if self.entropy_file is None else EntropyFile(self.entropy_file)
        with self.progress(allowed) as bar, source as entropy:
            return train(
                config,
                images,
                self.run_dir,
                interrupts.watching(bar),
                checkpoint_every=self.checkpoint_every,
                keep_checkpoints=self.keep_checkpoints,
                resume=self.resume,
                mesh=mesh,
                entropy=entropy,
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
    """

    examples: ClassVar[tuple[str, ...]] = (
        "--run-dir runs/digits",
        "--run-dir runs/window --protocol fixed-window --num-clients 2000 --num-slots 2000 --minibatch 200",
    )

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
      data_dir: folder with the four IDX files, gzipped or not; left out: a prepared TensorFlow Datasets copy.
      pool_stride: stride of the poolings, which the paper leaves open: 1 gives 26,010 parameters, 2 gives 10,650.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "--run-dir runs/mnist --data-dir FOLDER --epsilon0 2 --target-accuracy 0.9",
        "--run-dir runs/long --data-dir FOLDER --checkpoint-every 50 --resume",
    )

    data_dir: Path | None = None
    pool_stride: Literal[1, 2] = 1

    _start: ClassVar[dict[str, float]] = {"num_clients": 60_000, "check_in_prob": 0.1, "num_rounds": 3_000}
    _learning_rate: ClassVar[float] = 1.3
    _randomizer: ClassVar[Randomizer] = L2Mechanism(epsilon0=2.0)

    def _images(self) -> LabelledImages:
        from checkin_jax.training.examples import data

        return data.mnist(self.data_dir)
