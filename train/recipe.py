"""Options shared by the training programs (output folder, data set, devices), and the run they start.

A program has its own settings as a table at its top; `checkin train mnist` takes each of them as an option.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from checkin_jax import _validate
from checkin_jax._rounding import up
from checkin_jax.cli import programs
from checkin_jax.cli.options import HostOptions
from checkin_jax.cli.programs import UsageError
from checkin_jax.cli.terminal import Interrupts
from checkin_jax.protocols import VIEWS
from checkin_jax.training.examples import data
from checkin_jax.training.examples.networks import ImageTraining, train
from checkin_jax.training.loop import RoundError
from checkin_jax.training.reports import recorded
from checkin_jax.training.reports.report import Report
from checkin_jax.training.run import PrivateRun
from checkin_jax.training.runs.processes import say
from checkin_jax.training.runs.run_directory import FinishedError
from checkin_jax.training.server import BY_RULE, suggested_learning_rate


@dataclasses.dataclass(kw_only=True)
class Recipe(HostOptions):
    """Options of every training program.

    With several hosts the same program runs on each of them, with its own --process-id; the clients of a round are
    shared out over all devices of all hosts, and process 0 writes.
    """

    run_dir: Path
    """New folder for the results, or with --resume that of a run to go on with."""
    data_dir: Path | None = None
    """Folder with MNIST's four IDX files; left out: a prepared TensorFlow Datasets copy."""
    dataset: Literal["mnist", "digits"] = "mnist"
    """MNIST, or the embedded digits."""
    seed: int | None = None
    """Makes the run reproducible, and not private against whoever knows it."""
    checkpoint_every: int = 0
    """Rounds between checkpoints, which hold the run's secret entropy until it has finished; 0: none."""
    resume: bool = False
    """Go on with the run in run_dir."""

    def run(self, settings: Mapping[str, Any]) -> Report:
        """Trains at the suggested learning rate; prints accuracy against epsilon in all views, and the report.

        Args:
          settings: of PrivateRun and ImageTraining, beside those that are options here.

        Raises:
          As `checkin_jax.training.train`.
        """
        from checkin_jax.accounting.account import account

        mesh = self.devices()
        names = {field.name for field in dataclasses.fields(PrivateRun)}
        settings = dict(settings)
        run = PrivateRun(**{name: settings.pop(name) for name in names & {*settings}})
        config = ImageTraining(
            run=run,
            learning_rate=suggested_learning_rate(run),
            tuning=BY_RULE,
            seed=self.seed,
            eval_every=max(1, run.schedule.num_rounds // 30),
            **settings,
        )
        records = images_of(self.dataset, self.data_dir)
        with Interrupts(self.run_dir) as interrupts:
            with self.progress(run.schedule.num_rounds) as bar:
                report = train(
                    config,
                    records,
                    self.run_dir,
                    interrupts.watching(bar),
                    checkpoint_every=self.checkpoint_every,
                    resume=self.resume,
                    mesh=mesh,
                    account_fn=account,
                )
            if self.is_first():
                table = traced(recorded.read(self.run_dir).metrics)
                print(f"{table}\n\n{report}\nSaved in {self.run_dir}")
        return report


def images_of(dataset: str, data_dir: Path | None) -> data.LabelledImages:
    """MNIST, or the embedded digits.

    Raises:
      UsageError: a folder for the embedded digits. Others: as `data.mnist`.
    """
    if dataset == "mnist":
        return data.mnist(data_dir)
    if data_dir is not None:
        raise UsageError(f"--data-dir {data_dir}: expected --dataset mnist; the digits are in the package")
    return data.digits()


def traced(metrics: list[dict[str, Any]]) -> str:
    """Round, accuracy, and epsilon in every view, of the evaluations that have figures: a line of text each."""
    rows = [f"{'round':>9} {'accuracy':>9}" + "".join(f"{'epsilon, ' + view:>20}" for view in VIEWS)]
    for line in metrics:
        if line.get("accuracy") is not None and "spent" in line:
            ends = (math.inf if line["spent"][view] is None else line["spent"][view] for view in VIEWS)
            shown = "".join(f"{up(end, 5):>20}" for end in ends)
            rows.append(f"{line['round']:>9,} {line['accuracy']:>9.2%}{shown}")
    return "\n".join(rows)


def each_once(
    runs: Path, asked: Mapping[str, PrivateRun], dataset: str, repeats: int
) -> Iterator[tuple[str, int, Path]]:
    """(name, number of the repeat from 0, folder) of every run in `runs` that has not ended yet.

    Raises:
      UsageError: a run of this name has ended that has other settings, or is of another data set.
    """
    repeats = _validate.integer(1, repeats=repeats)
    for repeat, name in itertools.product(range(repeats), asked):
        folder = runs / (name if repeats == 1 else f"{name}_{repeat + 1}")
        if not (folder / "report.json").exists():
            yield name, repeat, folder
            continue
        found, here = recorded.read(folder), {**asked[name].as_dict(), "dataset": dataset}
        there = {**found.run.as_dict(), "dataset": found.about["dataset"]}
        if differing := [field for field, value in here.items() if there[field] != value]:
            raise UsageError(
                f"{folder} is there already, but {', '.join(differing)} differs: expected other --runs"
            )
        print(f"{folder} is there already")


def program(what: Mapping[str, Any] | Callable[..., object]) -> None:
    """Runs a training program as `programs.program` does; of a run that has finished it says so, with exit code 0.

    Args:
      what: the settings of a run, whose options are a `Recipe`; or a function of the options.
    """
    if callable(what):
        programs.program(_trained(what))
    else:
        programs.program(Recipe, _trained(lambda recipe: recipe.run(what)))


def _trained(function: Callable[..., object]) -> Callable[..., object]:
    """The function, a run that has finished as a line, and rounds that cannot go on as an error of the user's."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> object:
        try:
            return function(*args, **options)
        except FinishedError as error:
            say(str(error))
        except RoundError as error:
            raise UsageError(str(error)) from error

    return run
