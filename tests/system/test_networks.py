"""Networks: the fast pooling equals XLA's own, forwards and backwards; sizes, and the logarithmic loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkin_jax.training.examples import networks
from checkin_jax.training.model import named_arrays

pytestmark = pytest.mark.usefixtures("compiled_in_haste")


@pytest.mark.parametrize("side", [2, 5, 14])
def test_pooling_equals_reduce_window(side):
    x = jax.random.normal(jax.random.key(1), (3, side, side, 4), jnp.float32)
    window, strides = (1, 2, 2, 1), (1, 1, 1, 1)

    def reference(x: jax.Array) -> jax.Array:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "VALID")

    np.testing.assert_array_equal(networks.max_pool(x), reference(x))
    weight = jax.random.normal(jax.random.key(2), reference(x).shape, jnp.float32)
    ours = jax.grad(lambda x: jnp.sum(weight * networks.max_pool(x)))(x)
    np.testing.assert_allclose(ours, jax.grad(lambda x: jnp.sum(weight * reference(x)))(x), atol=1e-6)


@pytest.mark.parametrize(("side", "count"), [(28, 26_010), (8, 1_722)])
def test_networks_have_the_stated_sizes(side, count):
    parameters, apply = networks.functional(networks.build(side, jax.random.key(0)))
    leaves = jax.tree.leaves(parameters)
    assert sum(leaf.size for leaf in leaves) == count
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}
    images = jax.random.uniform(jax.random.key(1), (5, side, side, 1), jnp.float32)
    logits = jax.jit(apply)(parameters, images)
    assert logits.shape == (5, 10)
    assert logits.dtype == jnp.float32
    one_by_one = jax.jit(jax.vmap(apply, (None, 0)))(parameters, images)
    np.testing.assert_allclose(logits, one_by_one, rtol=1e-5, atol=1e-6)
    arrays = named_arrays(parameters)
    assert sum(array.size for array in arrays.values()) == count
    assert all("/" in name for name in arrays)


def test_tanh_is_that_of_double_precision_and_so_is_its_derivative():
    x = np.concatenate([np.linspace(-12, 12, 20_001), 10.0 ** np.arange(-30, 0), [0.0, np.inf, -np.inf]])
    given = jnp.asarray(x, jnp.float32)
    right = np.tanh(np.asarray(given, np.float64))
    np.testing.assert_allclose(networks.tanh(given), right, rtol=5e-7, atol=0)
    np.testing.assert_allclose(jax.vmap(jax.grad(networks.tanh))(given), 1 - right**2, atol=1e-6)
    assert np.isnan(networks.tanh(jnp.float32(np.nan)))


def test_initial_parameters_depend_on_the_key_only():
    first, second, other = (
        named_arrays(networks.functional(networks.build(8, jax.random.key(seed)))[0]) for seed in (0, 0, 1)
    )
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["conv/kernel"], other["conv/kernel"])
    assert first["dense/kernel"].std() == pytest.approx(1 / 12, rel=0.1)


def test_cross_entropy_is_minus_the_log_probability():
    logits = jnp.array([1.0, 2.0, -1.0], jnp.float32)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    for label in range(3):
        loss = networks.cross_entropy(logits, jnp.int32(label))
        assert float(loss) == pytest.approx(-np.log(probabilities[label]), rel=1e-6)


def test_other_sizes_of_images_are_refused():
    with pytest.raises(ValueError, match="image_side=27"):
        networks.build(27, jax.random.key(0))
