"""Clients of many records and several local steps, against plain loops; records of a wrong form are refused."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from digits_problem import digits_problem
from jax.flatten_util import ravel_pytree

from checkin_jax.randomizers import Gaussian
from checkin_jax.training.examples import networks
from checkin_jax.training.private import clients, layers, mechanisms, step
from checkin_jax.training.private.rows import Rows

CLIP = 0.1
NOISELESS = Gaussian(noise_multiplier=1e-30)
RECORDS = np.random.default_rng(0).integers(1437, size=(57, 4)).astype(np.int32)


def _sum(update, records, randomizer=NOISELESS, **settings) -> np.ndarray:
    parameters, _, images, labels = digits_problem()
    mechanism = step.Mechanism(clip_norm=CLIP, randomizer=randomizer, **settings)
    key = jax.random.key(3)
    return np.asarray(
        step.round_sum(mechanism, update, parameters, images, labels, np.asarray(records), key, capacity=40)
    )


@functools.cache
def _gradients():
    """The gradient of one client's mean loss as a function of flat parameters; flat parameters; records."""
    parameters, loss, _, _ = digits_problem()
    flat, unravel = ravel_pytree(parameters)

    def mean(flat, images, labels):
        return sum(loss(unravel(flat), image, label) for image, label in zip(images, labels)) / len(images)

    return jax.jit(jax.grad(mean)), flat


def _differences(rate: float, steps: int, batch: int) -> np.ndarray:
    """What every client of RECORDS sends with this many local steps, by plain loops, clipped."""
    gradient, start = _gradients()
    _, _, images, labels = digits_problem()
    rows = []
    for client in RECORDS:
        local = start
        for i in range(steps):
            chosen = np.roll(client, -i * batch)[:batch]
            local = local - rate * gradient(local, images[chosen], labels[chosen])
        rows.append(np.asarray(start - local, np.float64))
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    assert norms.max() > CLIP
    return np.array(rows) * np.minimum(1, CLIP * (1 - mechanisms.CLIP_MARGIN) / norms)


@pytest.mark.parametrize("gradients", ["layers", "general"])
def test_a_client_of_several_records_sends_the_gradient_of_their_mean_loss(gradients):
    ours = _sum(digits_problem()[1], RECORDS, gradients=gradients)
    # One step of rate 1 moves by the gradient, up to rounding of the parameters themselves.
    expected = _differences(1.0, 1, 4).sum(0)
    assert np.linalg.norm(ours - expected) <= 2e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize(("steps", "batch"), [(5, None), (3, 2)])
def test_local_steps_equal_a_plain_loop(steps, batch):
    update = clients.local_steps(digits_problem()[1], learning_rate=0.3, steps=steps, batch=batch)
    expected = _differences(0.3, steps, batch or 4).sum(0)
    assert np.linalg.norm(_sum(update, RECORDS) - expected) <= 1e-5 * np.linalg.norm(expected)


def test_any_function_of_a_clients_records_may_be_the_update():
    def count(parameters, images, labels):
        size = sum(x.size for x in jax.tree.leaves(parameters))
        return jnp.zeros((size,), jnp.float32).at[labels.astype(jnp.int32)].add(1e-3)

    _, _, _, labels = digits_problem()
    ours = _sum(clients.ClientUpdate(count), RECORDS)
    expected = 1e-3 * np.bincount(np.asarray(labels)[RECORDS.ravel()], minlength=ours.size)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-9)


def test_dummies_among_clients_of_several_records_send_zero():
    mixed = np.insert(RECORDS, [0, 20, 20], -1, axis=0)
    np.testing.assert_allclose(
        _sum(digits_problem()[1], mixed), _sum(digits_problem()[1], RECORDS), rtol=1e-4, atol=1e-6
    )
    # A dummy's noise counts: that of three messages, where nothing else is sent.
    noise = _sum(digits_problem()[1], mixed[[0, 21, 22]], Gaussian(noise_multiplier=2.0))
    assert noise.std() == pytest.approx(2.0 * CLIP * np.sqrt(3), rel=0.08)


def test_one_record_a_row_is_the_same_as_one_record():
    loss, records = digits_problem()[1], RECORDS[:, 0]
    np.testing.assert_array_equal(_sum(loss, records), _sum(loss, records[:, None]))
    np.testing.assert_array_equal(_sum(loss, records[:0]), np.zeros(1_722))
    np.testing.assert_array_equal(_sum(loss, RECORDS[:0]), np.zeros(1_722))


def test_equal_local_steps_compile_once():
    first, second = (clients.local_steps(digits_problem()[1], learning_rate=0.25, steps=2) for _ in range(2))
    _sum(first, RECORDS)
    before = step._sum_messages._cache_size()
    _sum(second, RECORDS)
    assert step._sum_messages._cache_size() == before


@pytest.mark.parametrize(
    ("records", "error", "match"),
    [
        ([[3, -1]], ValueError, "both -1 and real"),
        ([[3, -2]], ValueError, "from -2"),
        ([[3, 1437]], ValueError, "to 1437"),
        ([[0.0]], TypeError, "float64"),
        ([[[0]]], ValueError, r"shape \(1, 1, 1\)"),
        (np.zeros((3, 0), int), ValueError, r"shape \(3, 0\)"),
    ],
)
def test_records_of_a_wrong_form_are_refused(records, error, match):
    with pytest.raises(error, match=match):
        _sum(digits_problem()[1], records)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"learning_rate": 0.0, "steps": 1}, "learning_rate=0.0"),
        ({"learning_rate": np.nan, "steps": 1}, "learning_rate=nan"),
        ({"learning_rate": 1.0, "steps": 0}, "steps=0"),
        ({"learning_rate": 1.0, "steps": 2, "batch": 0}, "batch=0"),
        ({"learning_rate": 1.0, "steps": 2, "batch": 3}, "batch=3: expected a divisor of the 4 records"),
    ],
)
def test_local_steps_that_do_not_exist_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        _sum(clients.local_steps(digits_problem()[1], **settings), RECORDS)


def test_updates_are_not_differentiated_layer_by_layer():
    update = clients.local_steps(digits_problem()[1], learning_rate=1.0, steps=1)
    with pytest.raises(ValueError, match="gradients='layers'"):
        _sum(update, RECORDS, gradients="layers")


@pytest.mark.parametrize("gradients", ["layers", "general", "update"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_short_parameters_do_not_round_a_row_beyond_the_clip_norm(dtype, gradients):
    _, _, images, labels = digits_problem()
    random = np.random.default_rng(1)
    parameters = {
        "kernel": jnp.asarray(random.normal(size=(64, 10)) / 8, dtype),
        "bias": jnp.zeros(10, dtype),
    }

    def loss(parameters, image, label):
        pixels = image.reshape(-1).astype(dtype) / 16
        logits = layers.affine(pixels, parameters["kernel"], parameters["bias"])
        return networks.cross_entropy(logits, label.astype(jnp.int32)).astype(jnp.float32)

    def both(parameters, images, labels):
        return jax.grad(loss)(parameters, images[0], labels[0])

    update = clients.ClientUpdate(both) if gradients == "update" else loss
    path = "auto" if gradients == "update" else gradients
    mechanism = step.Mechanism(clip_norm=CLIP, randomizer=NOISELESS, gradients=path)
    records = np.arange(200, dtype=np.int32)
    arguments = mechanism, update, parameters, images, labels, records, jax.random.key(0)
    sent = step.round_messages(*arguments, capacity=200)
    assert sent.dtype == np.float32
    norms = np.linalg.norm(sent.astype(np.float64), axis=1)
    assert norms.max() <= CLIP < 1.00001 * norms.max()
    total = step.round_sum(*arguments, capacity=200)
    np.testing.assert_allclose(total, sent.sum(0), atol=1e-5)


def test_rows_of_other_numbers_are_refused():
    short = Rows.of(jnp.ones((3, 4), jnp.bfloat16))
    with pytest.raises(TypeError, match="rows of type bfloat16: expected float32"):
        mechanisms.clip(short, CLIP)
    whole = clients.ClientUpdate(lambda parameters, images, labels: jnp.ones(7, jnp.int32))
    with pytest.raises(TypeError, match="update of type int32: expected floating-point"):
        _sum(whole, RECORDS)
