"""The command `checkin`: epsilon, calibrate and compare account for a protocol, train runs one.

Bad input ends with exit code 2 and one line on standard error. The subcommands import what they need when
they run, so that accounting does not load the training stack. What XLA compiles is kept between runs of the
command (the library itself keeps nothing), see `keep_compiled`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import tyro

from checkin_jax._version import __version__
from checkin_jax.cli_accounting import Calibrate, Compare, Epsilon
from checkin_jax.cli_options import Count, Job, UsageError, randomizer_of
from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer

if TYPE_CHECKING:
    from checkin_jax.training.data import Dataset


@dataclasses.dataclass(kw_only=True)
class _TrainingOptions:
    run_dir: Path
    """Folder for config, metrics, parameters and report; new or empty."""
    num_clients: Count
    """How many clients there are; each holds one record."""
    check_in_prob: float
    """Probability that a client checks in, each round."""
    num_rounds: Count
    """Number of rounds."""
    learning_rate: float
    """Step on the mean clipped gradient."""
    drop_out_prob: float = 0.0
    """Probability that a client that checked in drops out before sending."""
    epsilon0: float | None = None
    """Train by LDP-SGD: messages of the l2 mechanism at this epsilon0."""
    noise_multiplier: float | None = None
    """Train by federated DP-SGD: Gaussian noise of this many clip norms per client."""
    clip_norm: float = 0.1
    """l2 norm every client's gradient is clipped to."""
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
    eval_every: Count = 50
    """Rounds between evaluations."""
    target_accuracy: float | None = None
    """Stop at the first evaluation that reaches this test accuracy."""
    seed: int | None = None
    """Make the run reproducible, and not private against anybody who knows the seed."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the network."""
    microbatch: Count = 40
    """Clients differentiated at once: 40 on a CPU, thousands on a GPU."""
    json: bool = False
    """Print the report as one JSON object instead of text."""

    def _job(self, dataset: Dataset, default: Randomizer, pool_stride: int = 1) -> Job:
        from checkin_jax.training.config import TrainingConfig
        from checkin_jax.training.loop import train
        from checkin_jax.training.progress import RoundBar

        given = self.epsilon0 is not None or self.noise_multiplier is not None
        config = TrainingConfig(
            protocol=ShuffledCheckIn(
                num_clients=self.num_clients,
                check_in_prob=self.check_in_prob,
                num_rounds=self.num_rounds,
                drop_out_prob=self.drop_out_prob,
            ),
            randomizer=randomizer_of(self.epsilon0, self.noise_multiplier) if given else default,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
            decay=self.decay,
            momentum=self.momentum,
            averaging=self.averaging,
            simulate=self.simulate,
            delta=self.delta,
            eval_every=self.eval_every,
            target_accuracy=self.target_accuracy,
            seed=self.seed,
            pool_stride=pool_stride,
            activation=self.activation,
            microbatch=self.microbatch,
        )

        def job() -> None:
            with RoundBar(config.protocol.num_rounds) as bar:
                report = train(config, dataset, self.run_dir, bar)
            if self.json:
                print(json.dumps(report.as_dict(), allow_nan=False))
            else:
                print(f"{report}\nSaved in {self.run_dir}")

        return job


@dataclasses.dataclass(kw_only=True)
class TrainDigits(_TrainingOptions):
    """Train on the embedded 8x8 digits (1,437 records; clients draw theirs with replacement)."""

    num_clients: Count = 200_000
    check_in_prob: float = 0.01
    num_rounds: Count = 1_000
    learning_rate: float = 6.0
    eval_every: Count = 100

    def prepare(self) -> Job:
        """Checks the arguments; the job trains, by default with Gaussian noise of 2 clip norms a client."""
        from checkin_jax.training import data

        return self._job(data.digits(), Gaussian(noise_multiplier=2.0))


@dataclasses.dataclass(kw_only=True)
class TrainMnist(_TrainingOptions):
    """Train on MNIST, by default in the setting of the shuffled check-in paper (LDP-SGD, epsilon0 = 2)."""

    data_dir: Path | None = None
    """Folder with the four IDX files, gzipped or not; left out: a prepared TensorFlow Datasets copy."""
    num_clients: Count = 60_000
    check_in_prob: float = 0.1
    num_rounds: Count = 3_000
    learning_rate: float = 1.3
    pool_stride: Literal[1, 2] = 1
    """Stride of the poolings, which the paper leaves open: 1 gives 26,010 parameters, 2 gives 10,650."""

    def prepare(self) -> Job:
        """Checks the arguments; the job trains, by default with the l2 mechanism at epsilon0 = 2."""
        from checkin_jax.training import data

        return self._job(data.mnist(self.data_dir), PureLDP(epsilon0=2.0), self.pool_stride)


@dataclasses.dataclass(kw_only=True)
class Train:
    """Train a network privately and report how private it is."""

    dataset: (
        Annotated[TrainDigits, tyro.conf.subcommand("digits")]
        | Annotated[TrainMnist, tyro.conf.subcommand("mnist")]
    )

    def prepare(self) -> Job:
        """Checks the arguments; the job trains on the chosen data set."""
        return self.dataset.prepare()


Command = (
    Annotated[Epsilon, tyro.conf.subcommand("epsilon")]
    | Annotated[Calibrate, tyro.conf.subcommand("calibrate")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Train, tyro.conf.subcommand("train")]
)


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of `checkin`: exit code 2 and one line on standard error on bad input.

    Compiled kernels are kept on disk for the next run, see `keep_compiled`.
    """
    args = list(sys.argv[1:] if args is None else args)
    if args == ["--version"]:
        print(f"checkin-jax {__version__}")
        return
    command = _parse(args)
    try:
        job = command.prepare()
    except ModuleNotFoundError as error:
        if error.name in ("flax", "optax"):
            _refuse(f"training needs {error.name}: install checkin-jax[train]")
        if error.name != "matplotlib":
            raise
        _refuse(str(error))
    except (ValueError, TypeError, OSError) as error:
        _refuse(str(error))
    keep_compiled()
    try:
        job()
    except (OSError, UsageError) as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def keep_compiled() -> None:
    """Turns on JAX's compilation cache, in $XDG_CACHE_HOME/checkin-jax/xla (~/.cache where that is unset).

    JAX_COMPILATION_CACHE_DIR, JAX_ENABLE_COMPILATION_CACHE and JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS, or the
    settings of the same name in jax.config, come first. Where the folder cannot be written nothing is kept.
    """
    import jax

    settings = jax.config.values
    if not settings["jax_enable_compilation_cache"] or settings["jax_compilation_cache_dir"] is not None:
        return
    try:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # The specification of XDG folders: a relative one is to be ignored.
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "checkin-jax" / "xla"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return
    # What is in there is run as it is: a folder that others own or may write to is none of ours.
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK) or not _is_private(folder):
        return
    # A full disk or a damaged file costs a compilation, no more.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _is_private(folder: Path) -> bool:
    """Whether only this user may write there; always true where users have no numbers."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _parse(args: list[str]) -> Epsilon | Calibrate | Compare | Train:
    """tyro's parser, its boxed errors cut down to one line."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                Command,  # type: ignore[arg-type]
                prog="checkin",
                description="Check-in privacy: account for a protocol, or train under it. Compiled kernels are "
                "kept in $XDG_CACHE_HOME/checkin-jax/xla (by default ~/.cache), which makes the next run start "
                "fast; JAX_COMPILATION_CACHE_DIR names another folder.",
                args=args,
                config=(
                    tyro.conf.OmitArgPrefixes,
                    tyro.conf.OmitSubcommandPrefixes,
                    tyro.conf.FlagCreatePairsOff,
                ),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        _refuse(_one_line(errors.getvalue()))


def _one_line(boxed: str) -> str:
    """The first section of tyro's boxed error, without title and box, as one line."""
    lines = [line.strip("│ ") for line in boxed.splitlines()[1:]]
    section = itertools.takewhile(lambda line: not line.startswith(("─", "╰")), lines)
    # Where the output is no terminal the box is drawn with hyphens.
    words = " ".join(line for line in section if line).split()
    return " ".join(word for word in words if word.strip("-")) + " (see checkin --help)"


def _refuse(message: str) -> NoReturn:
    print(f"checkin: {message}", file=sys.stderr)
    sys.exit(2)
