"""The network of a run in the form the loop needs: a flat vector of parameters, a loss of one record, an accuracy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from checkin_jax.training.examples import networks
from checkin_jax.training.private.layers import Loss


class Model(NamedTuple):
    """Functions of one network; the same objects for the same network, so that nothing compiles twice.

    Attributes:
      size: number of parameters.
      unravel: flat parameters -> pytree.
      loss: (parameters, image, label) -> scalar loss of one record as it lies in the data set.
      accuracy: (flat parameters, images, labels) -> share of labels guessed right.
    """

    size: int
    unravel: Callable[[jax.Array], Any]
    loss: Loss
    accuracy: Callable[..., jax.Array]


def initial(side: int, pool_stride: int, activation: str, key: jax.Array) -> jax.Array:
    """(d,) float32: fresh parameters of the network for images of this side.

    Raises:
      ValueError: there is no network for this size.
    """
    return ravel_pytree(_parameters(side, pool_stride, activation, key)[0])[0]


@functools.cache
def model(side: int, pool_stride: int, activation: str, max_value: int) -> Model:
    """The network for images of this side whose pixels go up to `max_value`."""
    # Only shapes matter here, so any key will do.
    structure, apply = _parameters(side, pool_stride, activation, jax.random.key(0))
    flat, unravel_leaves = ravel_pytree(structure)
    unravel = jax.jit(unravel_leaves)

    def logits(parameters: Any, image: jax.Array) -> jax.Array:
        return apply(parameters, image.astype(jnp.float32)[..., None] * (1.0 / max_value))

    def loss(parameters: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        return networks.cross_entropy(logits(parameters, image), label.astype(jnp.int32))

    @jax.jit
    def accuracy(flat: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
        parameters = unravel(flat)
        guesses = jax.lax.map(lambda image: jnp.argmax(logits(parameters, image)), images, batch_size=100)
        return jnp.mean((guesses == labels.astype(guesses.dtype)).astype(jnp.float32))

    return Model(flat.size, unravel, loss, accuracy)


def _parameters(side: int, pool_stride: int, activation: str, key: jax.Array) -> tuple[Any, Any]:
    """Initial parameters, and the function that applies them."""
    return networks.functional(networks.build(side, key, pool_stride=pool_stride, activation=activation))
