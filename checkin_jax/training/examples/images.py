"""Training on small grey images, for `checkin train` and programs in train/: settings, model, optimizer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from checkin_jax import _validate
from checkin_jax._suggest import ByName, legal
from checkin_jax.accounting.account import account
from checkin_jax.training.budget import rounds_within
from checkin_jax.training.examples import ImageSettings, networks
from checkin_jax.training.examples.data import LabelledImages
from checkin_jax.training.loop import OnRound
from checkin_jax.training.loop import train as train_any
from checkin_jax.training.model import Model
from checkin_jax.training.private.clients import local_steps
from checkin_jax.training.private.step import Performance
from checkin_jax.training.reports.recorded import load
from checkin_jax.training.reports.report import AccountFn, Report
from checkin_jax.training.run import PrivateRun

# Settings of the network and the optimizer, which config.json has under these names.
_OWN = ("learning_rate", "decay", "momentum", "local_steps", "local_learning_rate")


@dataclasses.dataclass(kw_only=True)
class ImageTraining(ByName, ImageSettings):
    """Settings of a run on labelled images, without the images.

    With local_steps = 1 a client's update is the mean gradient of all its records. Several steps need a
    local_learning_rate, which is refused otherwise.

    Attributes:
      run: the settings that determine its privacy.
      learning_rate: step on the estimated mean clipped gradient. While nearly all clients are clipped only
        learning_rate * clip_norm matters.
      tuning: see `checkin_jax.training.train`.

    Raises:
      ValueError, TypeError: an argument of the network or the optimizer outside its range, or an impossible
        combination; `train` checks the others, before any round.
    """

    run: PrivateRun
    learning_rate: float = 1.0
    tuning: str | None = None

    _legal = legal(
        learning_rate=(_validate.real, 0, 1e30, "(]"),
        decay=(_validate.choice, ("linear", "constant")),
        momentum=(_validate.real, 0, 1, "[)"),
        local_steps=(_validate.integer, 1, 10**6),
        local_learning_rate=(_validate.optional, _validate.real, 0, 1e30, "(]"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.local_learning_rate is None) == (self.local_steps > 1):
            raise ValueError(
                f"local_learning_rate={_validate.shown(self.local_learning_rate)}: expected "
                + ("a number with local_steps above 1" if self.local_steps > 1 else "None with local_steps=1")
            )

    @classmethod
    def recorded(cls, run: PrivateRun, about: Mapping[str, Any]) -> ImageTraining:
        """Settings of a run read back from its folder.

        Raises:
          ValueError: config.json is not that of a run on images.
        """
        names = [field.name for field in dataclasses.fields(cls) if field.name != "run"]
        try:
            return cls(run=run, **{name: about[name] for name in names})
        except (KeyError, TypeError) as error:
            raise ValueError(f"config.json: not that of a run on images: {error}") from error

    def optimizer(self, rounds: int) -> optax.GradientTransformation:
        """Stochastic gradient descent over this many rounds."""
        rate = self.learning_rate
        if self.decay == "linear":
            rate = optax.linear_schedule(self.learning_rate, 0.0, rounds)
        return optax.sgd(rate, momentum=self.momentum or None)


def train(
    config: ImageTraining,
    images: LabelledImages,
    run_dir: str | Path,
    on_round: OnRound | None = None,
    *,
    mesh: jax.sharding.Mesh | None = None,
    after: str | Path | None = None,
    account_fn: AccountFn = account,
    **options: Any,
) -> Report:
    """Trains the network for these images, as `checkin_jax.training.train` does.

    Args:
      config, images: of the run.
      mesh: devices that share the work, see `Performance`.
      after: folder of the run whose parameters are the initial ones.
      options: further arguments of `checkin_jax.training.train`.

    Returns, and raises: as `checkin_jax.training.train`.
    """
    model = image_model(images)
    update = None
    if config.local_learning_rate is not None:
        update = local_steps(model.loss, learning_rate=config.local_learning_rate, steps=config.local_steps)
    if after is not None:
        parameters = load(after, model)
        model = dataclasses.replace(model, init=lambda key: parameters)
    shared = ("records_per_client", "averaging", "eval_every", "target_accuracy", "seed", "tuning")
    return train_any(
        config.run,
        model,
        images.dataset,
        run_dir,
        optimizer=config.optimizer(rounds_within(config.run, account_fn)),
        client_update=update,
        on_round=on_round,
        performance=Performance(microbatch=config.microbatch, mesh=mesh),
        about={name: getattr(config, name) for name in _OWN},
        account_fn=account_fn,
        **{name: getattr(config, name) for name in shared},
        **options,
    )


def image_model(images: LabelledImages) -> Model:
    """The network for these images, on records (image, label) of bytes. Equal kinds of images give the same model.

    Raises:
      ValueError: there is no network for their size.
    """
    return _model(images.image_side, images.max_value)


@functools.cache
def _model(side: int, max_value: int) -> Model:
    """Network for images of this side and pixels up to `max_value`.

    Raises:
      ValueError: there is no network for this size.
    """

    def parts(key: jax.Array) -> Any:
        return networks.functional(networks.build(side, key))

    # Only the structure is used, so every key will do.
    apply = parts(jax.random.key(0))[1]

    def logits(parameters: Any, image: jax.Array) -> jax.Array:
        return apply(parameters, image.astype(jnp.float32)[..., None] * (1.0 / max_value))

    def loss(parameters: Any, record: tuple[jax.Array, jax.Array]) -> jax.Array:
        image, label = record
        return networks.cross_entropy(logits(parameters, image), label.astype(jnp.int32))

    def metrics(parameters: Any, record: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        image, label = record
        guess = jnp.argmax(logits(parameters, image))
        return {"accuracy": (guess == label.astype(guess.dtype)).astype(jnp.float32)}

    return Model(
        init=lambda key: parts(key)[0], loss=loss, metrics=metrics, name=f"network for {side}x{side} images"
    )
