"""The digits and the small network, as the step wants them."""

import functools

import jax
import jax.numpy as jnp

from checkin_jax.training.examples import data, networks


@functools.cache
def digits_problem():
    """Parameters, loss, and the records: images and labels."""
    digits = data.digits()
    parameters, apply = networks.functional(networks.build(8, jax.random.key(0)))

    def loss(parameters, record):
        image, label = record
        logits = apply(parameters, image.astype(jnp.float32)[..., None] * (1 / 16))
        return networks.cross_entropy(logits, label.astype(jnp.int32))

    return parameters, loss, (jnp.asarray(digits.train_images), jnp.asarray(digits.train_labels))
