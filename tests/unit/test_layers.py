"""Gradients taken layer by layer equal those of `jax.vmap(jax.grad(...))`, or the loss is refused."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from checkin_jax.training.examples import networks
from checkin_jax.training.private import clients, layers, mechanisms

SIDES = {"digits": (8, 1), "tutorial": (28, 1), "pooled": (28, 2)}


@functools.cache
def _problem(name: str, activation: str = "tanh"):
    side, stride = SIDES[name]
    model = networks.build(side, jax.random.key(0), pool_stride=stride, activation=activation)
    parameters, apply = networks.functional(model)

    def loss(parameters, record):
        image, label = record
        return networks.cross_entropy(apply(parameters, image), label)

    images = jax.random.uniform(jax.random.key(1), (60, side, side, 1), jnp.float32)
    labels = jax.random.randint(jax.random.key(2), (60,), 0, 10, jnp.int32)
    return parameters, loss, images, labels


@functools.partial(jax.jit, static_argnums=(0, 4))
def _rows(loss, parameters, images, labels, gradients):
    weights = jnp.full(labels.shape, 1.0 / labels.shape[1], jnp.float32)
    return clients.update_rows(loss, parameters, (images, labels), weights, gradients)


_matrix = jax.jit(lambda rows: rows.matrix())


def _both(name, records, activation="tanh"):
    parameters, loss, images, labels = _problem(name, activation)
    shaped = [x.reshape(-1, records, *x.shape[1:]) for x in (images, labels)]
    return [_rows(loss, parameters, *shaped, gradients) for gradients in ("layers", "general")]


@pytest.mark.parametrize(
    ("name", "records", "activation"),
    [
        ("digits", 3, "relu"),
        ("tutorial", 1, "tanh"),
        pytest.param("pooled", 3, "relu", marks=pytest.mark.slow),
        pytest.param("digits", 1, "tanh", marks=pytest.mark.slow),
    ],
)
@pytest.mark.thorough(but=1)
def test_every_gradient_equals_that_of_the_general_path(name, records, activation):
    fast, general = (np.asarray(_matrix(rows)) for rows in _both(name, records, activation))
    errors = np.linalg.norm(fast - general, axis=1) / np.linalg.norm(general, axis=1)
    assert errors.max() <= 1e-6


def test_clipped_sums_norms_and_inner_products_equal_those_of_the_general_path():
    fast, general = _both("tutorial", 1)
    norms = general.norms()
    np.testing.assert_allclose(fast.norms(), norms, rtol=1e-6)
    clip_norm = float(jnp.median(norms))  # half of the rows are clipped
    clipped = [mechanisms.clip(rows, clip_norm) for rows in (fast, general)]
    longest = np.linalg.norm(np.asarray(_matrix(clipped[0]), np.float64), axis=1).max()
    assert clip_norm * (1 - 2e-6) < longest < clip_norm
    weights = jnp.linspace(-1.0, 1.0, len(norms), dtype=jnp.float32)
    # Along one of the rows, so that the inner products do not cancel.
    vector = _matrix(general)[0]

    @jax.jit
    def reduced(rows):
        return rows.combine(weights), rows.dot(vector), rows.gram()

    for ours, theirs in zip(*map(reduced, clipped)):
        assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, 3e38])
def test_a_broken_record_leaves_the_others_as_they_are(bad):
    parameters, loss, images, labels = _problem("digits")
    broken = images.at[7].set(bad)
    sums = [
        mechanisms.clip(_rows(loss, parameters, x[:, None], labels[:, None], "layers"), 0.1)
        for x in (images, broken)
    ]
    good = (jnp.arange(60) != 7).astype(jnp.float32)
    expected, ours = sums[0].combine(good), sums[1].combine(jnp.ones((60,), jnp.float32))
    broken_norm = float(sums[1].norms()[7])
    assert broken_norm == 0.0 if not jnp.isfinite(bad) else broken_norm < 0.1
    assert np.all(np.isfinite(ours))
    np.testing.assert_allclose(ours - _matrix(sums[1])[7], expected, rtol=1e-4, atol=1e-6)


def _two_layers(**uses):
    """A loss of two dense layers; each keyword replaces one part by something that cannot be seen through."""
    inner = uses.get("inner", layers.affine)

    def loss(parameters, record):
        image, label = record
        kernel1, bias1 = parameters["one"]
        kernel2, bias2 = parameters["two"]
        hidden = jnp.tanh(inner(image, uses.get("kernel", lambda x: x)(kernel1), bias1))
        logits = layers.affine(hidden, uses.get("second", lambda a, b: b)(kernel1, kernel2), bias2)
        return networks.cross_entropy(logits, label) + uses.get("penalty", lambda p: 0.0)(parameters)

    return loss


def _square_parameters():
    keys = jax.random.split(jax.random.key(0), 2)
    draw = [0.1 * jax.random.normal(key, (10, 10), jnp.float32) for key in keys]
    zero = jnp.zeros((10,), jnp.float32)
    return {"one": (draw[0], zero), "two": (draw[1], zero + 0.5)}


def _vmapped(x, kernel, bias):
    return jax.vmap(lambda x: layers.affine(x, kernel, bias))(x[None])[0]


def _scanned(x, kernel, bias):
    return jax.lax.scan(lambda _, x: (None, layers.affine(x, kernel, bias)), None, x[None])[1][0]


def _checkpointed(x, kernel, bias):
    return jax.checkpoint(layers.affine)(x, kernel, bias)


REFUSED = {
    "penalty": (_two_layers(penalty=lambda p: jnp.sum(p["one"][0] ** 2)), "outside"),
    "returned": (_two_layers(penalty=lambda p: p["one"][1][0]), "outside"),
    "shared": (_two_layers(second=lambda kernel1, kernel2: kernel1), "4 parameter arrays"),
    "computed": (_two_layers(kernel=lambda kernel: 2.0 * kernel), "4 parameter arrays"),
    "plain": (_two_layers(inner=lambda x, kernel, bias: x @ kernel + bias), "4 parameter arrays"),
    "vmap": (_two_layers(inner=_vmapped), "transformation"),
    "scan": (_two_layers(inner=_scanned), "transformation"),
    "jit": (_two_layers(inner=jax.jit(layers.affine)), "4 parameter arrays"),
    "checkpoint": (_two_layers(inner=_checkpointed), "4 parameter arrays"),
    "jitted whole": (jax.jit(_two_layers()), "4 parameter arrays"),
    "unused": (
        lambda p, record: networks.cross_entropy(layers.affine(record[0], *p["two"]), record[1]),
        "4 parameter arrays",
    ),
}


@pytest.mark.parametrize("name", [None, *REFUSED])
def test_what_layers_do_not_account_for_is_refused_and_done_by_the_general_path(name):
    loss, reason = (_two_layers(), None) if name is None else REFUSED[name]
    parameters = _square_parameters()
    images = jax.random.normal(jax.random.key(1), (5, 1, 10), jnp.float32)
    labels = jnp.arange(5, dtype=jnp.int32)[:, None]
    for _ in range(2):  # what one trace leaves behind must not change the next
        refusal = layers.refusal(loss, parameters, (images[0, 0], labels[0, 0]))
        assert refusal is None if reason is None else reason in str(refusal)
    general = _rows(loss, parameters, images, labels, "general").matrix()
    np.testing.assert_allclose(_rows(loss, parameters, images, labels, "auto").matrix(), general, atol=1e-6)
    if reason is not None:
        with pytest.raises(ValueError, match=reason):
            _rows(loss, parameters, images, labels, "layers")


def test_a_layer_on_several_rows_of_a_record_sums_over_them():
    def loss(parameters, record):
        image, label = record
        hidden = jnp.tanh(layers.affine(image.reshape(4, 2, 10), *parameters["one"]))
        return networks.cross_entropy(layers.affine(jnp.sum(hidden, (0, 1)), *parameters["two"]), label)

    parameters = _square_parameters()
    images = jax.random.normal(jax.random.key(1), (6, 1, 80), jnp.float32)
    labels = jnp.arange(6, dtype=jnp.int32)[:, None]
    fast, general = (_rows(loss, parameters, images, labels, kind).matrix() for kind in ("layers", "general"))
    np.testing.assert_allclose(fast, general, rtol=1e-5, atol=1e-6)


def test_the_networks_of_the_trainer_are_differentiated_layer_by_layer():
    for name in SIDES:
        parameters, loss, images, labels = _problem(name)
        assert layers.refusal(loss, parameters, (images[0], labels[0])) is None


def test_a_flax_model_of_other_layers_takes_the_general_path():
    parameters, apply = networks.functional(nnx.Linear(10, 10, use_bias=False, rngs=nnx.Rngs(0)))

    def loss(parameters, record):
        image, label = record
        return networks.cross_entropy(apply(parameters, image), label)

    images = jax.random.normal(jax.random.key(1), (3, 1, 10), jnp.float32)
    labels = jnp.arange(3, dtype=jnp.int32)[:, None]
    assert "1 parameter arrays" in str(layers.refusal(loss, parameters, (images[0, 0], labels[0, 0])))
    ours = _matrix(_rows(loss, parameters, images, labels, "auto"))
    expected = jax.jit(jax.grad(loss))(parameters, (images[1, 0], labels[1, 0]))
    np.testing.assert_allclose(ours[1], np.ravel(jax.tree.leaves(expected)[0]), rtol=1e-5, atol=1e-6)
