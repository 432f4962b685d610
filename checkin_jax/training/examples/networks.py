"""Example networks as flax nnx modules whose convolutions and poolings are fast under vmap.

A convolution is an unfold by slices and one matrix product. A pooling is a maximum of shifted slices. Both
equal `lax.conv_general_dilated` and `lax.reduce_window`. On a CPU, per-client gradients inside a loop are
several times cheaper this way, since XLA's own convolutions and the backward pass of its window reduction are
slow in loops. Everything is float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from checkin_jax import _validate

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


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"tanh": tanh, "relu": jax.nn.relu}


class Conv(nnx.Module):
    """Strided convolution of (..., height, width, channels) as one matrix product.

    Args:
      in_features, out_features: channels.
      kernel_size: side of the square kernel; a multiple of `stride`.
      stride: step in both directions.
      padding: "SAME" or "VALID", as in `lax.conv_general_dilated`.
      rngs: nnx random streams; `params` draws the kernel.

    Raises:
      ValueError: `kernel_size` is not a multiple of `stride`, or the padding is not one of the two.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        kernel_size: int,
        stride: int,
        padding: str,
        rngs: nnx.Rngs,
    ) -> None:
        if kernel_size % stride:
            raise ValueError(f"kernel_size={kernel_size}: expected a multiple of stride={stride}")
        self.kernel_size, self.stride = kernel_size, stride
        self.padding = _validate.choice(("SAME", "VALID"), padding=padding)
        shape = (kernel_size, kernel_size, in_features, out_features)
        self.kernel = nnx.Param(_lecun_normal(rngs.params(), shape))
        self.bias = nnx.Param(jnp.zeros((out_features,), jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (..., height, width, in_features) to (..., height', width', out_features)."""
        k, s = self.kernel_size, self.stride
        padded = (_padding(size, k, s, self.padding) for size in x.shape[-3:-1])
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [*padded, (0, 0)])
        matrix = self.kernel[...].reshape(-1, self.kernel.shape[-1])
        return _affine(unfold(x, kernel_size=k, stride=s), matrix, self.bias[...])


class Dense(nnx.Module):
    """Affine map of the last axis, float32."""

    def __init__(self, in_features: int, out_features: int, *, rngs: nnx.Rngs) -> None:
        self.kernel = nnx.Param(_lecun_normal(rngs.params(), (in_features, out_features)))
        self.bias = nnx.Param(jnp.zeros((out_features,), jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps (..., in_features) to (..., out_features)."""
        return _affine(x, self.kernel[...], self.bias[...])


def unfold(x: jax.Array, *, kernel_size: int, stride: int) -> jax.Array:
    """Patches under a kernel: (..., height, width, c) to (..., height', width', kernel_size^2 c), no padding.

    Columns are concatenated first, in whole rows, and then rows, so that long contiguous runs are copied.
    """
    *lead, lines, columns, channels = x.shape
    height, width = (lines - kernel_size) // stride + 1, (columns - kernel_size) // stride + 1
    x, run = x.reshape(*lead, lines, columns * channels), stride * channels
    starts = range(0, kernel_size * channels, run)
    taps = [x[..., i : i + width * run].reshape(*lead, lines, width, run) for i in starts]
    x = jnp.concatenate(taps, axis=-1)
    taps = [x[..., i : i + (height - 1) * stride + 1 : stride, :, :] for i in range(kernel_size)]
    return jnp.concatenate(taps, axis=-1)


def max_pool(x: jax.Array, *, stride: int) -> jax.Array:
    """Maximum over 2x2 windows of (..., height, width, channels) with the given stride, no padding."""
    if stride == 1:
        # Whole rows in one line are long enough for vector instructions.
        *lead, height, width, channels = x.shape
        x = x.reshape(*lead, height, width * channels)
        x = jnp.maximum(x[..., :-1, :], x[..., 1:, :])
        x = jnp.maximum(x[..., :-channels], x[..., channels:])
        return x.reshape(*lead, height - 1, width - 1, channels)
    height, width = (x.shape[-3] - 2) // stride + 1, (x.shape[-2] - 2) // stride + 1
    shifted = [
        x[..., i : i + (height - 1) * stride + 1 : stride, j : j + (width - 1) * stride + 1 : stride, :]
        for i in (0, 1)
        for j in (0, 1)
    ]
    return jnp.maximum(jnp.maximum(shifted[0], shifted[1]), jnp.maximum(shifted[2], shifted[3]))


class ConvNet(nnx.Module):
    """The network of Table 2 of the shuffled check-in paper, for 28x28 images.

    Convolution of 16 filters 8x8 stride 2 SAME, 2x2 max-pool, 32 filters 4x4 stride 2 VALID, 2x2 max-pool,
    dense 32, dense 10. The table leaves the pooling stride and the activation open.

    Args:
      rngs: nnx random streams.
      pool_stride: 1 gives 26,010 parameters, 2 gives 10,650.
      activation: "tanh" (better by some points under clipping and noise) or "relu".

    Raises:
      ValueError: an argument outside its choices.
    """

    def __init__(self, *, rngs: nnx.Rngs, pool_stride: int = 1, activation: str = "tanh") -> None:
        if pool_stride not in (1, 2):
            raise ValueError(f"pool_stride={pool_stride!r}: expected 1 or 2")
        self.pool_stride = pool_stride
        self.activation = _validate.choice(tuple(ACTIVATIONS), activation=activation)
        self.conv1 = Conv(1, 16, kernel_size=8, stride=2, padding="SAME", rngs=rngs)
        self.conv2 = Conv(16, 32, kernel_size=4, stride=2, padding="VALID", rngs=rngs)
        side = {1: 4, 2: 1}[pool_stride]
        self.dense1 = Dense(side * side * 32, 32, rngs=rngs)
        self.dense2 = Dense(32, NUM_CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits (..., 10) of images (..., 28, 28, 1) with values in [0, 1]."""
        act = ACTIVATIONS[self.activation]
        x = max_pool(act(self.conv1(x)), stride=self.pool_stride)
        x = max_pool(act(self.conv2(x)), stride=self.pool_stride)
        x = x.reshape(*x.shape[:-3], -1)
        return self.dense2(act(self.dense1(x)))


class SmallConvNet(nnx.Module):
    """A small network for the embedded 8x8 digits: convolution, 2x2 max-pool, dense 10; 1,722 parameters.

    Args:
      rngs: nnx random streams.
      activation: "tanh" or "relu".
    """

    def __init__(self, *, rngs: nnx.Rngs, activation: str = "tanh") -> None:
        self.activation = _validate.choice(tuple(ACTIVATIONS), activation=activation)
        self.conv = Conv(1, 16, kernel_size=4, stride=2, padding="SAME", rngs=rngs)
        self.dense = Dense(9 * 16, NUM_CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits (..., 10) of images (..., 8, 8, 1) with values in [0, 1]."""
        x = max_pool(ACTIVATIONS[self.activation](self.conv(x)), stride=1)
        return self.dense(x.reshape(*x.shape[:-3], -1))


def build(
    image_side: int, key: jax.Array, *, pool_stride: int = 1, activation: str = "tanh"
) -> ConvNet | SmallConvNet:
    """The network for square images of this side (28 or 8), with parameters drawn from `key`.

    Raises:
      ValueError: no network is defined for this side, or another argument is outside its choices.
    """
    rngs = nnx.Rngs(params=key)
    if image_side == 28:
        return ConvNet(rngs=rngs, pool_stride=pool_stride, activation=activation)
    if image_side == 8:
        return SmallConvNet(rngs=rngs, activation=activation)
    raise ValueError(f"image_side={image_side!r}: expected 28 or 8")


def functional(model: nnx.Module) -> tuple[nnx.State, Callable[[nnx.State, jax.Array], jax.Array]]:
    """Splits a model into its parameters, a pytree, and the pure `apply(parameters, images) -> logits`."""
    graph, parameters = nnx.split(model, nnx.Param)
    return parameters, lambda values, images: nnx.merge(graph, values)(images)


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Negative log probability of one label under logits (classes,), in nats."""
    return -jax.nn.log_softmax(logits)[label]


def _lecun_normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Normal with variance one over the fan-in (all axes but the last), float32."""
    return jax.random.normal(key, shape, jnp.float32) * (1.0 / math.sqrt(math.prod(shape[:-1])))


def _affine(x: jax.Array, matrix: jax.Array, bias: jax.Array) -> jax.Array:
    """(..., p) to (..., q)."""
    out = x @ matrix
    # Leading unit axes, so that the addition promotes no rank.
    return out + bias.reshape((1,) * (out.ndim - 1) + bias.shape)


def _padding(size: int, kernel: int, stride: int, padding: str) -> tuple[int, int]:
    """(before, after) padding of one axis, by XLA's conventions."""
    if padding == "VALID":
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2
