"""Example networks for small grey images, as flax nnx modules.

Poolings are maxima of shifted slices, equal to `lax.reduce_window`, whose backward pass is slow in loops on a CPU.
Convolutions are flax's own: the private step turns them into matrix products (`private.layers`).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

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
