"""A linear model on features that no data went into, on MNIST: every protocol, three runs each.

    python train/mnist_public_features.py --runs runs/features --data-dir FOLDER_WITH_IDX_FILES --repeats 3
    python accountants/training_table.py --runs runs/features

Each client computes histograms of oriented gradients of its own image, a fixed public function, and sends gradients of
a softmax regression on them (3,920 parameters). Features and learning rates were found by looking at test accuracies
on MNIST: tuned on public data. A run that is there already is kept.
`--dataset digits` does the same in miniature on the embedded digits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optax
from public_features import regression_problem
from recipe import each_once, images_of, program

from checkin_jax import (
    AveragedUpdates,
    FixedWindow,
    Gaussian,
    L2Mechanism,
    Rates,
    ShuffledCheckIn,
    SlidingWindow,
    _validate,
)
from checkin_jax.accounting.account import account
from checkin_jax.cli.terminal import Interrupts, RoundBar
from checkin_jax.protocols import CheckInProtocol
from checkin_jax.randomizers import Randomizer
from checkin_jax.training import Performance, PrivateRun, train
from checkin_jax.training.budget import rounds_within
from checkin_jax.training.server import suggested_learning_rate

# Learning rates in those of the rule of thumb: features have norm one, and steps may be long.
STEPS = 20.0
TUNING = (
    "tuned on public data: features, and learning rates of 20 times the rule of thumb, were found by looking at test "
    "accuracies on MNIST"
)
FEATURES = "features were found by looking at test accuracies on MNIST, which is public"
CLIENTS = 60_000
# Rates of clients who differ: log-uniform from .02 to .3, 100 clients each, .103 in the mean.
RATES = np.exp(np.linspace(math.log(0.02), math.log(0.3), CLIENTS // 100))


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is run, and up to which epsilon in which view, if not to the end."""

    protocol: CheckInProtocol
    randomizer: Randomizer
    target_epsilon: float | None = None
    target_view: str = "messages"


def shuffled(num_rounds: int, num_clients: int = CLIENTS, check_in_prob: float = 0.1) -> ShuffledCheckIn:
    """Shuffled check-in of 60,000 clients, if not of others."""
    return ShuffledCheckIn(num_clients=num_clients, check_in_prob=check_in_prob, num_rounds=num_rounds)


def settings() -> dict[str, Setting]:
    """All of them, by name."""
    unequal = ShuffledCheckIn(
        num_clients=CLIENTS, check_in_prob=Rates(RATES, counts=[100] * len(RATES)), num_rounds=400
    )
    window: dict[str, Any] = {"num_clients": CLIENTS, "num_epochs": 20}
    four = L2Mechanism(epsilon0=4.0)
    found = {f"ldp_sgd_{e}": Setting(shuffled(400), L2Mechanism(epsilon0=e)) for e in (1.0, 2.0, 4.0)}
    for e in (2.0, 8.0):
        found[f"gaussian_{e}"] = Setting(shuffled(400), Gaussian.from_local(epsilon0=e, delta0=CLIENTS**-1.5))
    return {
        "at_epsilon_0.5": Setting(shuffled(2_000), Gaussian(noise_multiplier=1.35), 0.5),
        "at_epsilon_1.0": Setting(shuffled(3_000), Gaussian(noise_multiplier=1.2), 1.0),
        "at_epsilon_1.0_long": Setting(shuffled(10_000), Gaussian(noise_multiplier=1.5), 1.0),
        "at_epsilon_1.0_of_sums": Setting(shuffled(2_000), Gaussian(noise_multiplier=0.3), 1.0, "aggregate"),
        **found,
        "gaussian_8.0_of_1e7": Setting(
            shuffled(2_000, 10**7, 1e-4), Gaussian.from_local(epsilon0=8.0, delta0=1e7**-1.5)
        ),
        "fixed_window": Setting(FixedWindow(num_slots=CLIENTS, minibatch=2_000, **window), four),
        "averaged": Setting(AveragedUpdates(num_slots=60, **window), four),
        "sliding_window": Setting(SlidingWindow(window=30_000, minibatch=2_000, **window), four),
        "unequal_rates": Setting(unequal, L2Mechanism(epsilon0=2.0)),
    }


def main(
    runs: Path,
    only: tuple[str, ...] = (),
    dataset: Literal["mnist", "digits"] = "mnist",
    data_dir: Path | None = None,
    repeats: int = 1,
    evaluations: int = 10,
    shrink: int = 1,
    seed: int | None = None,
    steps: float = STEPS,
    momentum: float = 0.0,
    adam: bool = False,
    averaging: float = 0.0,
    clip_norm: float = 0.1,
) -> None:
    """Trains every setting into a folder of its own under `runs`.

    Args:
      runs: Folder for the run directories.
      only: Names of the settings to run; none: all.
      dataset: MNIST, or the embedded digits.
      data_dir: Folder with the four IDX files; left out: a prepared TensorFlow Datasets copy.
      repeats: Runs of each setting, with entropy of their own.
      evaluations: How often each run is tested.
      shrink: Divides the numbers of rounds and windows, for a trial.
      seed: Makes the runs reproducible, and not private against whoever knows it; repeats take the numbers that follow.
      steps: Learning rate in those of the rule of thumb.
      momentum: Of stochastic gradient descent.
      adam: Steps by Adam in its place, of this many hundredths of those that the rule gives.
      averaging: Average the parameters over this last fraction of the rounds.
      clip_norm: l2 norm of a clipped gradient.
    """
    for name, least in {"shrink": shrink, "evaluations": evaluations}.items():
        _validate.integer(1, **{name: least})
    _validate.real(0, math.inf, "()", steps=steps)
    _validate.real(0, 1, "[)", momentum=momentum)
    if adam and momentum:
        raise ValueError(f"momentum={momentum}: expected none with adam, which has its own")
    known = settings()
    if unknown := sorted({*only} - {*known}):
        raise ValueError(f"only={unknown}: expected names out of {', '.join(known)}")
    images = images_of(dataset, data_dir)
    records, model = regression_problem(images)
    accountant = functools.cache(account)  # repeats ask the same questions
    asked = {
        name: PrivateRun(
            protocol=setting.protocol.repeated(max(1, setting.protocol.num_units // shrink)),
            randomizer=setting.randomizer,
            clip_norm=clip_norm,
            target_epsilon=setting.target_epsilon,
            target_view=setting.target_view,
        )
        for name, setting in known.items()
        if not only or name in only
    }
    usual = (dataset, steps, momentum, adam, averaging) == ("mnist", STEPS, 0.0, False, 0.0)
    step = f"{steps:g} {'hundredths of ' if adam else 'times '}the rule of thumb{' by Adam' if adam else ''}"
    tuning = TUNING if usual else f"{FEATURES}; how learning rates of {step} were chosen was not stated"
    for name, repeat, folder in each_once(runs, asked, images.name, repeats):
        run = asked[name]
        planned = rounds_within(run, accountant)
        rate = steps * suggested_learning_rate(run, planned) * (0.01 if adam else 1.0 - momentum)
        schedule = optax.linear_schedule(rate, 0.0, planned)
        optimizer = optax.adam(schedule) if adam else optax.sgd(schedule, momentum=momentum or None)
        about = {"learning_rate": rate, "decay": "linear", "momentum": momentum, "adam": adam}
        with Interrupts(folder) as interrupts:
            with RoundBar(planned) as bar:
                report = train(
                    run,
                    model,
                    records,
                    folder,
                    optimizer=optimizer,
                    averaging=averaging,
                    eval_every=max(1, planned // evaluations),
                    on_round=interrupts.watching(bar),
                    performance=Performance(microbatch=2_000),
                    seed=None if seed is None else seed + repeat,
                    about=about,
                    tuning=tuning,
                    account_fn=accountant,
                )
            print(f"{folder.name}: {report.accuracy:.2%} after {report.rounds:,} rounds")


if __name__ == "__main__":
    program(main)
