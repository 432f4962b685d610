"""The shuffled check-in paper's training figures: privacy against utility (3a, 3b) and accuracy against rounds (4).

    python train/mnist_curves.py --runs runs/curves --data-dir FOLDER_WITH_IDX_FILES
    checkin figure shuffled-check-in-figure-3 --source runs/curves --out figure_3.pdf
    checkin figure shuffled-check-in-figure-4 --source runs/curves --out figure_4.pdf

One run directory for each setting: LDP-SGD at several epsilon0 (60,000 clients, check-in probability 0.1; figure 3a)
and Gaussian messages calibrated to epsilon0 = 8 at delta0 = n^-1.5 (10,000,000 clients, probability 1e-4; figure 3b).
A run that is there already is kept; `--repeats 3` makes three of each, for `accountants/training_table.py`.
`--dataset digits` does the same in miniature on the embedded digits, in a minute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from recipe import each_once, images_of, program

from checkin_jax.cli.terminal import Interrupts, RoundBar
from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import Gaussian, L2Mechanism, Randomizer
from checkin_jax.training.examples.networks import ImageTraining, train
from checkin_jax.training.run import PrivateRun
from checkin_jax.training.server import BY_RULE, suggested_learning_rate

CLIP_NORM = 0.1


def _short(value: float) -> str:
    """The shortest decimal of this number."""
    return repr(float(value)).removesuffix(".0")


def main(
    runs: Path,
    dataset: Literal["mnist", "digits"] = "mnist",
    data_dir: Path | None = None,
    epsilon0: tuple[float, ...] = (1.0, 2.0, 4.0),
    gaussian_epsilon0: tuple[float, ...] = (8.0,),
    num_rounds: int = 3_000,
    repeats: int = 1,
    seed: int | None = None,
) -> None:
    """Trains every setting into a folder of its own under `runs`.

    Args:
      runs: Folder for the run directories.
      dataset: MNIST, or the embedded digits with a third of the clients checking in.
      data_dir: Folder with the four IDX files; left out: a prepared TensorFlow Datasets copy.
      epsilon0: Local privacy of the LDP-SGD runs.
      gaussian_epsilon0: Local privacy of the Gaussian runs, at delta0 = n^-1.5.
      num_rounds: Rounds of each run.
      repeats: Runs of each setting, with entropy of their own.
      seed: Makes the runs reproducible, and not private against whoever knows it; repeats take the numbers that follow.
    """
    records = images_of(dataset, data_dir)
    shrink = 1 if dataset == "mnist" else 3

    def private(num_clients: int, prob: float, randomizer: Randomizer) -> PrivateRun:
        clients = {"num_clients": num_clients, "check_in_prob": prob / shrink}
        protocol = ShuffledCheckIn(num_rounds=num_rounds, **clients)
        return PrivateRun(protocol=protocol, randomizer=randomizer, clip_norm=CLIP_NORM)

    asked: dict[str, PrivateRun] = {}
    for value in epsilon0:
        asked[f"ldp_sgd_epsilon0_{_short(value)}"] = private(60_000, 0.1, L2Mechanism(epsilon0=value))
    for value in gaussian_epsilon0:
        gaussian = Gaussian.from_local(epsilon0=value, delta0=1e7**-1.5)
        asked[f"gaussian_epsilon0_{_short(value)}"] = private(10**7, 1e-4, gaussian)
    for setting, repeat, folder in each_once(runs, asked, records.name, repeats):
        run = asked[setting]
        config = ImageTraining(
            run=run,
            learning_rate=suggested_learning_rate(run),
            tuning=BY_RULE,
            eval_every=max(1, num_rounds // 30),
            seed=None if seed is None else seed + repeat,
        )
        with Interrupts(folder) as interrupts:
            with RoundBar(num_rounds) as bar:
                report = train(config, records, folder, interrupts.watching(bar))
            print(f"{folder.name}: {report.accuracy:.2%} after {report.rounds:,} rounds")


if __name__ == "__main__":
    program(main)
