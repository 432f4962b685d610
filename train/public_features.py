"""Public features of images, computed by each client, and softmax regression on them.

Histograms of oriented gradients are a fixed public function of one image. So a model on top of them is as
private as a model on pixels. The features are publicly known to suit handwriting; they were chosen by test
accuracies on MNIST.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax import _validate
from checkin_jax.training.examples.data import LabelledImages
from checkin_jax.training.examples.networks import NUM_CLASSES, cross_entropy
from checkin_jax.training.model import Dataset, Model

_MARGIN = 2  # background pixels around an image, so that strokes at its edge have a gradient
_AT_ONCE = 1_000  # images per batch


def oriented_gradients(
    images: np.ndarray, *, max_value: int, cell: int = 4, directions: int = 8
) -> np.ndarray:
    """Computes histograms of oriented gradients, separately for every image.

    The gradient at each pixel votes for the two nearest directions, with weight its length. Votes are
    averaged with triangular weights around points `cell` pixels apart. Square roots of the averages, minus
    their mean over the image, are scaled to l2 norm one.

    Args:
      images: (records, side, side), values 0..max_value.
      max_value: the largest value a pixel can have.
      cell: pixels between two histograms.
      directions: entries of a histogram, over the whole circle.

    Returns:
      (records, p * p * directions) float32, p = (side + 4) // cell - 1; zeros for an image without edges.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """
    cell = _validate.integer(1, 32, cell=cell)
    directions = _validate.integer(2, 64, directions=directions)
    top = float(_validate.integer(1, 2**16, max_value=max_value))
    if images.ndim != 3 or images.shape[1] != images.shape[2] or images.shape[1] + 2 * _MARGIN < 2 * cell:
        raise ValueError(
            f"images of shape {images.shape}: expected (records, side, side), side at least {2 * cell - 2 * _MARGIN}"
        )
    parts = [
        np.asarray(_histograms(jnp.asarray(images[i : i + _AT_ONCE], jnp.float32) / top, cell, directions))
        for i in range(0, len(images), _AT_ONCE)
    ]
    return np.concatenate(parts)


def softmax_regression(width: int) -> Model:
    """Softmax regression without biases on features (width,); all parameters start at zero.

    Records are pairs of features and a label.
    """

    def init(key: jax.Array) -> dict[str, jax.Array]:
        return {"kernel": jnp.zeros((width, NUM_CLASSES))}

    def logits(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return x @ parameters["kernel"]

    def loss(parameters: dict[str, jax.Array], record: tuple[jax.Array, jax.Array]) -> jax.Array:
        return cross_entropy(logits(parameters, record[0]), record[1].astype(jnp.int32))

    def metrics(
        parameters: dict[str, jax.Array], record: tuple[jax.Array, jax.Array]
    ) -> dict[str, jax.Array]:
        guess = jnp.argmax(logits(parameters, record[0]))
        return {"accuracy": (guess == record[1].astype(guess.dtype)).astype(jnp.float32)}

    return Model(init=init, loss=loss, metrics=metrics, name="softmax regression on features", apply=logits)


def regression_problem(images: LabelledImages) -> tuple[Dataset, Model]:
    """Data set of all images' features (width,) with their labels, and softmax regression on them.

    Args:
      images: 28x28 (cells of 4 pixels) or smaller (cells of 2).
    """
    cell = 4 if images.image_side == 28 else 2
    held, tested = (
        oriented_gradients(of, max_value=images.max_value, cell=cell)
        for of in (images.train_images, images.test_images)
    )
    dataset = Dataset(
        records=(held, images.train_labels), test=(tested, images.test_labels), name=images.name
    )
    return dataset, softmax_regression(tested.shape[1])


@functools.partial(jax.jit, static_argnums=(1, 2))
def _histograms(images: jax.Array, cell: int, directions: int) -> jax.Array:
    x = jnp.pad(images, ((0, 0), (_MARGIN + 1, _MARGIN + 1), (_MARGIN + 1, _MARGIN + 1)))
    across, down = x[:, 1:-1, 2:] - x[:, 1:-1, :-2], x[:, 2:, 1:-1] - x[:, :-2, 1:-1]
    length = jnp.hypot(across, down)
    place = jnp.arctan2(down, across) * (directions / (2 * np.pi))
    # Distance of every direction from the gradient's around the circle: only the nearest two are below one.
    half = directions / 2
    every = jnp.arange(directions, dtype=jnp.float32).reshape(1, 1, 1, -1)
    apart = jnp.abs((place[..., None] - every + half) % float(directions) - half)
    votes = length[..., None] * jnp.maximum(1.0 - apart, 0.0)
    weights = _windows(length.shape[-1], cell)
    pooled = jnp.einsum("ih,nhwo,jw->nijo", weights, votes, weights)
    found = jnp.sqrt(pooled).reshape(len(images), -1)
    found = found - found.mean(axis=1, keepdims=True)
    norm = jnp.linalg.norm(found, axis=1, keepdims=True)
    return found / jnp.where(norm > 0, norm, 1.0)


def _windows(side: int, cell: int) -> np.ndarray:
    """(points, side) float32 triangular weights of pixels around points `cell` apart; rows sum to one."""
    ramp = np.arange(1, cell + 1)
    window = np.concatenate([ramp, ramp[::-1]]) / (cell * (cell + 1))
    weights = np.zeros((side // cell - 1, side), np.float32)
    for row, start in zip(weights, range(0, side, cell)):
        row[start : start + 2 * cell] = window
    return weights
