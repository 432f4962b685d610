"""Example networks for small grey images, as flax nnx modules, and their private training.

Poolings are maxima of shifted slices, equal to `lax.reduce_window`, whose backward pass is slow in loops on a CPU.
Convolutions are flax's own: the private step turns them into matrix products (`private.layers`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from checkin_jax import _validate
from checkin_jax._suggest import ByName, legal
from checkin_jax.accounting.account import account
from checkin_jax.training.budget import rounds_within
from checkin_jax.training.examples import ImageSettings
from checkin_jax.training.examples.data import LabelledImages
from checkin_jax.training.loop import OnRound
from checkin_jax.training.loop import train as train_any
from checkin_jax.training.model import Model
from checkin_jax.training.private.clients import local_steps
from checkin_jax.training.private.step import Performance
from checkin_jax.training.reports.recorded import load
from checkin_jax.training.reports.report import AccountFn, Report
from checkin_jax.training.run import PrivateRun

NUM_CLASSES = 10
# Minimax quotient of odd by even polynomials, highest powers first. Beyond the limit tanh is 1 up to 3e-7.
_TANH_LIMIT = 7.90531110763549805
_TANH_ABOVE = (
    *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
    *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
)
_TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


@jax.custom_jvp
def tanh(x: jax.Array) -> jax.Array:
    """Hyperbolic tangent of float32 numbers, with error 3e-7.

    On a CPU XLA's own tanh is eight times slower next to a bias of few channels, where it is not vectorised.
    The coefficients are those of XLA and Eigen.
    """
    x = jnp.clip(x, -_TANH_LIMIT, _TANH_LIMIT)
    square = x * x
    return x * _polynomial(_TANH_ABOVE, square) / _polynomial(_TANH_BELOW, square)


@tanh.defjvp
def _tanh_jvp(x: tuple[jax.Array], step: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    y = tanh(*x)
    return y, step[0] * (1.0 - y * y)


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    """Horner's rule; the highest power comes first."""
    first, *others = coefficients
    total = jnp.full_like(x, first)
    for each in others:
        total = total * x + each
    return total


def max_pool(x: jax.Array) -> jax.Array:
    """Maximum over 2x2 windows of (..., height, width, channels) with stride 1, no padding."""
    # Whole rows in one line are long enough for vector instructions.
    *lead, height, width, channels = x.shape
    x = x.reshape(*lead, height, width * channels)
    x = jnp.maximum(x[..., :-1, :], x[..., 1:, :])
    x = jnp.maximum(x[..., :-channels], x[..., channels:])
    return x.reshape(*lead, height - 1, width - 1, channels)


class ConvNet(nnx.Module):
    """The network of Table 2 of the shuffled check-in paper, for 28x28 images; 26,010 parameters.

    Convolution of 16 filters 8x8 stride 2 SAME, 2x2 max-pool, 32 filters 4x4 stride 2 VALID, 2x2 max-pool,
    dense 32, dense 10. The table leaves the pooling stride and the activation open: here 1, and tanh, which is
    better than ReLU by some points under clipping and noise.

    Args:
      rngs: nnx random streams.
    """

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 16, (8, 8), strides=2, padding="SAME", rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (4, 4), strides=2, padding="VALID", rngs=rngs)
        self.dense1 = nnx.Linear(4 * 4 * 32, 32, rngs=rngs)
        self.dense2 = nnx.Linear(32, NUM_CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits (..., 10) of images (..., 28, 28, 1) with values in [0, 1]."""
        x = max_pool(tanh(self.conv1(x)))
        x = max_pool(tanh(self.conv2(x)))
        x = x.reshape(*x.shape[:-3], -1)
        return self.dense2(tanh(self.dense1(x)))


class SmallConvNet(nnx.Module):
    """A small network for the embedded 8x8 digits: convolution, 2x2 max-pool, dense 10; 1,722 parameters.

    Args:
      rngs: nnx random streams.
    """

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 16, (4, 4), strides=2, padding="SAME", rngs=rngs)
        self.dense = nnx.Linear(9 * 16, NUM_CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits (..., 10) of images (..., 8, 8, 1) with values in [0, 1]."""
        x = max_pool(tanh(self.conv(x)))
        return self.dense(x.reshape(*x.shape[:-3], -1))


def build(image_side: int, key: jax.Array) -> ConvNet | SmallConvNet:
    """The network for square images of this side (28 or 8), with parameters drawn from `key`.

    Raises:
      ValueError: no network is defined for this side.
    """
    rngs = nnx.Rngs(params=key)
    if image_side == 28:
        return ConvNet(rngs=rngs)
    if image_side == 8:
        return SmallConvNet(rngs=rngs)
    raise ValueError(f"image_side={image_side!r}: expected 28 or 8")


def functional(model: nnx.Module) -> tuple[nnx.State, Callable[[nnx.State, jax.Array], jax.Array]]:
    """Splits a model into its parameters, a pytree, and the pure `apply(parameters, images) -> logits`."""
    graph, parameters = nnx.split(model, nnx.Param)
    return parameters, lambda values, images: nnx.merge(graph, values)(images)


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Negative log probability of one label under logits (classes,), in nats."""
    return -jax.nn.log_softmax(logits)[label]


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
        return functional(build(side, key))

    # Only the structure is used, so every key will do.
    apply = parts(jax.random.key(0))[1]

    def logits(parameters: Any, image: jax.Array) -> jax.Array:
        return apply(parameters, image.astype(jnp.float32)[..., None] * (1.0 / max_value))

    def loss(parameters: Any, record: tuple[jax.Array, jax.Array]) -> jax.Array:
        image, label = record
        return cross_entropy(logits(parameters, image), label.astype(jnp.int32))

    def metrics(parameters: Any, record: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        image, label = record
        guess = jnp.argmax(logits(parameters, image))
        return {"accuracy": (guess == label.astype(guess.dtype)).astype(jnp.float32)}

    return Model(
        init=lambda key: parts(key)[0], loss=loss, metrics=metrics, name=f"network for {side}x{side} images"
    )
