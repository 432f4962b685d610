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
from checkin_jax.training.private import clients, step
from checkin_jax.training.private import mechanism as mechanisms
from checkin_jax.training.private.mechanism import mechanism_of
from checkin_jax.training.private.per_client_gradients import ClientVectors
from checkin_jax.training.private.step import Performance

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

CLIP = 0.1
NOISELESS = Gaussian(noise_multiplier=1e-30)
RECORDS = np.random.default_rng(0).integers(1437, size=(57, 4)).astype(np.int32)


def _sum(update, records, randomizer=NOISELESS, data=None, **settings) -> np.ndarray:
    parameters, _, digits = digits_problem()
    mechanism, performance = mechanism_of(randomizer, clip_norm=CLIP), Performance(**settings)
    arguments = mechanism, update, parameters, digits if data is None else data, np.asarray(records)
    return np.asarray(step.round_sum(*arguments, jax.random.key(3), capacity=40, performance=performance))


@functools.cache
def _gradients():
    """The gradient of one client's mean loss as a function of flat parameters; flat parameters; records."""
    parameters, loss, _ = digits_problem()
    flat, unravel = ravel_pytree(parameters)

    def mean(flat, images, labels):
        return sum(loss(unravel(flat), record) for record in zip(images, labels)) / len(images)

    return jax.jit(jax.grad(mean)), flat


def _differences(rate: float, steps: int, batch: int) -> np.ndarray:
    """What every client of RECORDS sends with this many local steps, by plain loops, clipped."""
    gradient, start = _gradients()
    images, labels = digits_problem()[2]
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
    def count(parameters, records, weights):
        size = sum(x.size for x in jax.tree.leaves(parameters))
        return jnp.zeros((size,), jnp.float32).at[records[1].astype(jnp.int32)].add(4e-3 * weights)

    labels = digits_problem()[2][1]
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


RAGGED = [[3, 5, -1, -1], [7, -1, -1, -1], [-1, -1, -1, -1], [9, 10, 11, 12], [8, 4, 2, -1]]


@pytest.mark.parametrize("gradients", ["layers", "general"])
@pytest.mark.thorough(but=1)
def test_clients_of_fewer_records_send_the_gradient_of_the_mean_over_their_own(gradients):
    loss = digits_problem()[1]
    alone = [[i for i in row if i >= 0] for row in RAGGED]
    expected = sum(_sum(loss, [row], gradients=gradients) for row in alone if row)
    ours = _sum(loss, RAGGED, gradients=gradients)
    assert np.linalg.norm(ours - expected) <= 2e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("kind", ["layers", "general", "local steps"])
def test_a_place_without_a_record_is_filled_with_nobody_elses(kind):
    # Record 0, to which an empty place would point, is broken: it must not spoil a client that does not hold it.
    _, loss, (images, labels) = digits_problem()
    broken = images.astype(jnp.float32).at[0].set(jnp.nan), labels
    settings = {} if kind == "local steps" else {"gradients": kind}
    update = loss if settings else clients.local_steps(loss, learning_rate=0.3, steps=2)
    whole, ours = (_sum(update, RAGGED, data=data, **settings) for data in ((images, labels), broken))
    np.testing.assert_allclose(ours, whole, rtol=1e-4, atol=1e-6)
    spoilt = _sum(update, [[0, 5, -1, -1]], data=broken, **settings)
    assert np.abs(spoilt).max() < 1e-28  # its holder's update counts as zero


def test_local_steps_on_slices_pass_over_those_without_records():
    update = clients.local_steps(digits_problem()[1], learning_rate=0.3, steps=4, batch=2)
    two = clients.local_steps(digits_problem()[1], learning_rate=0.3, steps=2, batch=2)
    ours, expected = _sum(update, [[3, 5, -1, -1]]), _sum(two, [[3, 5]])
    assert np.linalg.norm(ours - expected) <= 1e-5 * np.linalg.norm(expected)


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
        ([[-1, 3]], ValueError, "-1 before a real"),
        ([[3, -1, 3]], ValueError, "-1 before a real"),
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


# Coins of clients' own.

WIDE = 400
NOISY = Gaussian(noise_multiplier=0.5)


def _coins(parameters, record, key):
    """A loss whose gradient is drawn by the client's coins, beyond any clip norm."""
    return parameters["w"] @ jax.random.normal(key, (WIDE,))


def _messages(update, rows, randomizer=NOISELESS, key=3):
    arguments = {"w": jnp.zeros(WIDE)}, jnp.zeros((9, 1)), np.asarray(rows, np.int32), jax.random.key(key)
    mechanism = mechanism_of(randomizer, clip_norm=CLIP)
    return np.asarray(step.round_messages(mechanism, update, *arguments, capacity=40), np.float64) / CLIP


def _correlations(first, second):
    """Absolute values of cosines of all pairs of rows; about 0.05 where they are independent."""
    first, second = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (first, second))
    return np.abs(first @ second.T)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("simulate", ["aggregate", "messages"])
@pytest.mark.turns(2)
def test_coins_belong_to_the_place_of_a_message_in_its_round(width, simulate):
    rows = np.zeros((100, width), np.int32)  # equal records: the coins alone differ
    sent = _messages(_coins, rows)
    np.testing.assert_allclose(np.linalg.norm(sent, axis=1), 1.0, atol=2e-6)
    alike = _correlations(sent, sent)
    assert alike[~np.eye(100, dtype=bool)].max() < 0.3
    assert _correlations(sent, _messages(_coins, rows, key=4)).max() < 0.3  # of another round
    np.testing.assert_array_equal(sent, _messages(_coins, rows))
    # The sum is made of the same messages, however it is cut into passes and microbatches.
    mechanism = mechanism_of(NOISELESS, clip_norm=CLIP, simulate=simulate)
    arguments = mechanism, _coins, {"w": jnp.zeros(WIDE)}, jnp.zeros((9, 1)), rows, jax.random.key(3)
    for capacity, microbatch in ((40, 40), (80, 80), (200, 40)):
        performance = Performance(microbatch=microbatch)
        total = step.round_sum(*arguments, capacity=capacity, performance=performance)
        np.testing.assert_allclose(total, CLIP * sent.sum(0), atol=1e-5)


def _noise_and_coins():
    """Of one round: the noise in every message, that of the sum, and what the clients' coins gave."""
    rows = np.zeros((40, 1), np.int32)
    coins = _messages(_coins, rows)
    noise = _messages(_coins, rows, NOISY) - coins
    mechanism = mechanism_of(NOISY, clip_norm=CLIP)
    arguments = {"w": jnp.zeros(WIDE)}, jnp.zeros((9, 1)), rows, jax.random.key(3)
    total = step.round_sum(mechanism, _coins, *arguments, capacity=40) / CLIP - coins.sum(0)
    return np.concatenate([noise, [total]]), coins


def test_coins_are_independent_of_the_noise(monkeypatch):
    noise, coins = _noise_and_coins()
    np.testing.assert_allclose(noise.std(axis=1), [0.5] * 40 + [0.5 * np.sqrt(40)], rtol=0.2)
    assert _correlations(noise, coins).max() < 0.3
    # The test can fail: coins by the keys of the messages would be seen.
    keys = step._keys
    monkeypatch.setattr(step, "_keys", lambda key: (*keys(key)[:2], keys(key)[0]))
    monkeypatch.setattr(clients, "_record_keys", lambda key, number: jnp.broadcast_to(key, (number,)))
    jax.clear_caches()
    assert _correlations(*_noise_and_coins()).max() > 0.9
    monkeypatch.undo()
    jax.clear_caches()


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    "update",
    [_coins, clients.local_steps(_coins, learning_rate=1.0, steps=2, batch=1)],
    ids=["loss", "steps"],
)
def test_no_key_is_used_twice_where_losses_take_one(update, width):
    with jax.debug_key_reuse(True):
        _messages(update, np.zeros((90, width), np.int32), NOISY)


def test_records_of_a_client_and_local_steps_have_coins_of_their_own():
    def seen(parameters, record, key):
        return parameters["w"] @ jax.nn.one_hot(record[0].astype(jnp.int32), WIDE) * jax.random.normal(key)

    data = jnp.arange(9.0)[:, None] // 3  # three records in each coordinate
    mechanism = mechanism_of(NOISELESS, clip_norm=1e3)

    def message(update, row):
        arguments = {"w": jnp.zeros(WIDE)}, data, np.asarray([row], np.int32), jax.random.key(3)
        return np.asarray(step.round_messages(mechanism, update, *arguments, capacity=40))[0, :3]

    first = message(seen, [0, 3, 6])
    assert len(np.unique(np.round(np.abs(first), 5))) == 3
    # A client of fewer records draws the same for those it has: the mean over two, not three.
    np.testing.assert_allclose(message(seen, [0, 3, -1])[:2], 1.5 * first[:2], rtol=1e-5)
    steps = clients.local_steps(seen, learning_rate=1.0, steps=3, batch=1)
    moved = message(steps, [0, 3, 6])
    twice = message(clients.local_steps(seen, learning_rate=1.0, steps=6, batch=1), [0, 3, 6])
    assert np.all(np.abs(twice - 2 * moved) > 1e-3)  # every step draws anew


@pytest.mark.parametrize(
    ("update", "takes"),
    [
        (lambda p, record: 0.0, False),
        (lambda p, record, key: 0.0, True),
        (lambda p, record, key=None: 0.0, False),
        (lambda *rest: 0.0, False),
        (lambda p, record, *, train=False: 0.0, False),
        (functools.partial(lambda scale, p, record, key: 0.0, 2.0), True),
        (jax.jit(lambda p, record, key: 0.0), True),
        (clients.ClientUpdate(lambda p, records, weights: 0.0), False),
        (clients.ClientUpdate(lambda p, records, weights, key: 0.0), True),
    ],
)
def test_a_key_is_what_a_further_argument_asks_for(update, takes):
    assert clients.takes_key(update) == takes


def test_updates_are_not_differentiated_layer_by_layer():
    update = clients.local_steps(digits_problem()[1], learning_rate=1.0, steps=1)
    with pytest.raises(ValueError, match="gradients='layers'"):
        _sum(update, RECORDS, gradients="layers")


@pytest.mark.parametrize("gradients", ["layers", "general", "update"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.thorough(but=2)
def test_short_parameters_do_not_round_a_row_beyond_the_clip_norm(dtype, gradients):
    data = digits_problem()[2]
    random = np.random.default_rng(1)
    parameters = {
        "kernel": jnp.asarray(random.normal(size=(64, 10)) / 8, dtype),
        "bias": jnp.zeros(10, dtype),
    }

    def loss(parameters, record):
        image, label = record
        pixels = image.reshape(-1).astype(dtype) / 16
        logits = pixels @ parameters["kernel"] + parameters["bias"]
        return networks.cross_entropy(logits, label.astype(jnp.int32)).astype(jnp.float32)

    def both(parameters, records, weights):
        return jax.grad(loss)(parameters, jax.tree.map(lambda x: x[0], records))

    update = clients.ClientUpdate(both) if gradients == "update" else loss
    path = "auto" if gradients == "update" else gradients
    mechanism, performance = mechanism_of(NOISELESS, clip_norm=CLIP), Performance(gradients=path)
    records = np.arange(200, dtype=np.int32)
    arguments = mechanism, update, parameters, data, records, jax.random.key(0)
    sent = step.round_messages(*arguments, capacity=200, gradients=path)
    assert sent.dtype == np.float32
    norms = np.linalg.norm(sent.astype(np.float64), axis=1)
    assert norms.max() <= CLIP < 1.00001 * norms.max()
    total = step.round_sum(*arguments, capacity=200, performance=performance)
    np.testing.assert_allclose(total, sent.sum(0), atol=1e-5)


def test_rows_of_other_numbers_are_refused():
    short = ClientVectors.of(jnp.ones((3, 4), jnp.bfloat16))
    with pytest.raises(TypeError, match="rows of type bfloat16: expected float32"):
        mechanisms.clip(short, CLIP)
    whole = clients.ClientUpdate(lambda parameters, records, weights: jnp.ones(7, jnp.int32))
    with pytest.raises(TypeError, match="update of type int32: expected floating-point"):
        _sum(whole, RECORDS)
