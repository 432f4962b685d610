"""Networks: the fast forms equal XLA's own convolution and pooling, forwards and backwards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from checkin_jax.training.examples import networks
from checkin_jax.training.model import named_arrays

LAYERS = [
    (28, 1, 16, 8, 2, "SAME"),
    (13, 16, 32, 4, 2, "VALID"),
    (7, 16, 32, 4, 2, "VALID"),
    (8, 1, 16, 4, 2, "SAME"),
    (9, 2, 3, 3, 1, "SAME"),
    (10, 2, 3, 3, 3, "VALID"),
    (11, 2, 3, 4, 4, "SAME"),
]


@pytest.mark.parametrize(("side", "channels", "features", "kernel", "stride", "padding"), LAYERS)
def test_convolution_equals_lax_conv_and_nnx_conv(side, channels, features, kernel, stride, padding):
    layer = networks.Conv(
        channels, features, kernel_size=kernel, stride=stride, padding=padding, rngs=nnx.Rngs(0)
    )
    layer.bias[...] = jnp.arange(features, dtype=jnp.float32)
    x = jax.random.normal(jax.random.key(1), (3, side, side, channels), jnp.float32)
    with jax.numpy_rank_promotion("allow"):
        other = nnx.Conv(
            channels, features, (kernel, kernel), strides=stride, padding=padding, rngs=nnx.Rngs(0)
        )
        other.kernel[...], other.bias[...] = layer.kernel[...], layer.bias[...]
        theirs = nnx.jit(lambda model, x: model(x))(other, x)

    def reference(kernel: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    graph, state = nnx.split(layer)
    apply = jax.jit(lambda state, x: nnx.merge(graph, state)(x))
    ours = apply(state, x)
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)
    bias = layer.bias[...].reshape(1, 1, 1, -1)
    np.testing.assert_allclose(ours, jax.jit(reference)(layer.kernel[...], x) + bias, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(apply(state, x[1]), ours[1], rtol=1e-5, atol=2e-6)  # one image alone

    weight = jax.random.normal(jax.random.key(2), ours.shape, jnp.float32)
    grad = jax.jit(jax.grad(lambda state, x: jnp.sum(weight * apply(state, x)), argnums=(0, 1)))(state, x)
    expected = jax.jit(jax.grad(lambda k, x: jnp.sum(weight * reference(k, x)), argnums=(0, 1)))(
        layer.kernel[...], x
    )
    np.testing.assert_allclose(grad[0]["kernel"][...], expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(grad[1], expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [2, 5, 14])
def test_pooling_equals_reduce_window(side, stride):
    x = jax.random.normal(jax.random.key(1), (3, side, side, 4), jnp.float32)
    window, strides = (1, 2, 2, 1), (1, stride, stride, 1)

    def reference(x: jax.Array) -> jax.Array:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "VALID")

    np.testing.assert_array_equal(networks.max_pool(x, stride=stride), reference(x))
    weight = jax.random.normal(jax.random.key(2), reference(x).shape, jnp.float32)
    ours = jax.grad(lambda x: jnp.sum(weight * networks.max_pool(x, stride=stride)))(x)
    np.testing.assert_allclose(ours, jax.grad(lambda x: jnp.sum(weight * reference(x)))(x), atol=1e-6)


@pytest.mark.parametrize(("side", "pool_stride", "count"), [(28, 1, 26_010), (28, 2, 10_650), (8, 1, 1_722)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_networks_have_the_stated_sizes(side, pool_stride, count, activation):
    model = networks.build(side, jax.random.key(0), pool_stride=pool_stride, activation=activation)
    parameters, apply = networks.functional(model)
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


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: networks.build(27, jax.random.key(0)), "image_side=27"),
        (lambda: networks.build(28, jax.random.key(0), pool_stride=3), "pool_stride=3"),
        (lambda: networks.build(28, jax.random.key(0), activation="gelu"), "activation='gelu'"),
        (
            lambda: networks.Conv(1, 1, kernel_size=3, stride=2, padding="SAME", rngs=nnx.Rngs(0)),
            "kernel_size=3",
        ),
    ],
)
def test_bad_descriptions_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
