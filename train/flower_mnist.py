"""A private run in Flower's own simulation: shuffled check-in of Gaussian messages, halted by a budget of epsilon.

    pip install '.[train,flower]' 'flwr[simulation]'
    python train/flower_mnist.py --run-dir runs/flower --data-dir FOLDER_WITH_IDX_FILES

Without --data-dir on the embedded digits. Every client reads its own records, throws its own coin, takes a few steps on
a linear model, clips, adds its own noise (`checkin_jax.flower.ClientMod`); the server adds up what comes
(`CheckInStrategy` of flower_strategy.py).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import checkin_jax as cj
from checkin_jax.flower import ClientMod
from checkin_jax.training.examples import data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Shuffled check-in in Flower."""

    run_dir: Path
    """New folder for the clients' records."""
    data_dir: Path | None = None
    """Folder with MNIST's four IDX files; the embedded digits when left out."""
    num_clients: int = 200
    """Nodes of the simulation, records dealt out among them."""
    check_in_prob: float = 0.3
    """Probability that a client checks in, each round."""
    num_rounds: int = 40
    """Rounds at most."""
    noise_multiplier: float = 0.6
    """Each client's noise, in clip norms."""
    clip_norm: float = 0.5
    """Norm of a clipped update."""
    target_epsilon: float = 6.0
    """Halt before epsilon, for the sum of a round, exceeds this."""
    delta: float = 1e-5
    """Delta of the guarantee."""


def pooled(images: np.ndarray) -> np.ndarray:
    """(n, d) float32 in [0, 1]: MNIST's 28 x 28 as means of 2 x 2, digits as they are."""
    images = np.asarray(images, dtype=np.float32).reshape(len(images), *images.shape[1:3])
    images = images / max(float(images.max()), 1.0)
    if images.shape[1] == 28:
        images = images.reshape(-1, 14, 2, 14, 2).mean((2, 4))
    return images.reshape(len(images), -1)


def scores(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    """(n, 10) of a linear model with (d + 1, 10) weights."""
    return images @ weights[:-1] + weights[-1]


def trained(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Weights after a few steps of gradient descent on a client's own records."""
    inputs = np.concatenate([images, np.ones((len(images), 1), np.float32)], axis=1)
    for _ in range(5):
        odds = np.exp(scores(weights, images) - scores(weights, images).max(1, keepdims=True))
        wrong = odds / odds.sum(1, keepdims=True) - np.eye(10, dtype=np.float32)[labels]
        weights = weights - 0.5 * inputs.T @ wrong / len(images)
    return weights.astype(np.float32)


def client_app(folder: str, mod: ClientMod) -> Any:
    """flwr's ClientApp; a node's records are those of its partition."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict  # pyright: ignore[reportMissingImports]
    from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]

    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Any, context: Any) -> Any:
        held = np.load(f"{folder}/{context.node_config['partition-id']}.npz")
        weights = message.content["arrays"].to_numpy_ndarrays()[0]
        new = trained(weights, held["images"], held["labels"])
        return Message(RecordDict({"arrays": ArrayRecord({"weights": Array(new)})}), reply_to=message)

    return app


def main(experiment: Experiment) -> None:
    """Deals out the records, runs flwr's simulation and prints the accuracy."""
    from flower_strategy import CheckInStrategy
    from flwr.app import Array, ArrayRecord, MetricRecord  # pyright: ignore[reportMissingImports]
    from flwr.serverapp import ServerApp  # pyright: ignore[reportMissingImports]
    from flwr.simulation import run_simulation  # pyright: ignore[reportMissingImports]

    images = data.digits() if experiment.data_dir is None else data.mnist(experiment.data_dir)
    folder = experiment.run_dir.absolute() / "clients"
    folder.mkdir(parents=True)
    train, test = pooled(images.train_images), pooled(images.test_images)
    order = np.random.default_rng().permutation(len(train))
    for client, mine in enumerate(np.array_split(order, experiment.num_clients)):
        np.savez(folder / f"{client}.npz", images=train[mine], labels=np.asarray(images.train_labels)[mine])
    protocol = cj.ShuffledCheckIn(
        num_clients=experiment.num_clients,
        check_in_prob=experiment.check_in_prob,
        num_rounds=experiment.num_rounds,
    )
    randomizer = cj.Gaussian(noise_multiplier=experiment.noise_multiplier)
    mod = ClientMod(
        randomizer,
        clip_norm=experiment.clip_norm,
        check_in_prob=experiment.check_in_prob,
        num_rounds=experiment.num_rounds,
    )
    server = ServerApp()

    def evaluate(server_round: int, arrays: Any) -> Any:
        guesses = scores(arrays.to_numpy_ndarrays()[0], test).argmax(1)
        return MetricRecord({"accuracy": float(np.mean(guesses == np.asarray(images.test_labels)))})

    @server.main()
    def run(grid: Any, context: Any) -> None:
        chosen = CheckInStrategy(
            cj.training.PrivateRun(
                protocol=protocol,
                randomizer=randomizer,
                delta=experiment.delta,
                target_epsilon=experiment.target_epsilon,
                target_view="aggregate",
            )
        )
        initial = ArrayRecord({"weights": Array(np.zeros((train.shape[1] + 1, 10), np.float32))})
        found = chosen.start(grid, initial, experiment.num_rounds, evaluate_fn=evaluate)
        last = chosen.num_rounds
        print(
            f"{found.evaluate_metrics_serverapp[last]['accuracy']:.1%} on the test set after {last} rounds, "
            f"epsilon {found.train_metrics_clientapp[last]['epsilon']:.3f} at delta {experiment.delta:g}, certified"
        )

    run_simulation(server, client_app(str(folder), mod), num_supernodes=experiment.num_clients)


if __name__ == "__main__":
    main(tyro.cli(Experiment))
