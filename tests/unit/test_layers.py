"""Gradients taken layer by layer equal those of `jax.vmap(jax.grad(...))`, whatever the layers are used for."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from checkin_jax.training.examples import networks
from checkin_jax.training.private import clients, layers, mechanism
from checkin_jax.training.private.per_client_gradients import TableBlock

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

SIDES = {"digits": 8, "tutorial": 28}


@functools.cache
def _problem(name: str):
    side = SIDES[name]
    parameters, apply = networks.functional(networks.build(side, jax.random.key(0)))

    def loss(parameters, record):
        image, label = record
        return networks.cross_entropy(apply(parameters, image), label)

    images = jax.random.uniform(jax.random.key(1), (60, side, side, 1), jnp.float32)
    labels = jax.random.randint(jax.random.key(2), (60,), 0, 10, jnp.int32)
    return parameters, loss, images, labels


@functools.partial(jax.jit, static_argnums=(0, 4))
def _rows(loss, parameters, images, labels, gradients, weights=None):
    if weights is None:
        weights = jnp.full(labels.shape, 1.0 / labels.shape[1], jnp.float32)
    return clients.update_rows(loss, parameters, (images, labels), weights, gradients)


_matrix = jax.jit(lambda rows: rows.matrix())


@functools.partial(jax.jit, static_argnums=0)
def _compared(loss, parameters, images, labels):
    """Rows of both paths, and the norms they are clipped by."""
    both = [_rows(loss, parameters, images, labels, kind) for kind in ("auto", "general")]
    return [rows.matrix() for rows in both], [rows.norms() for rows in both]


def _both(name, records):
    parameters, loss, images, labels = _problem(name)
    shaped = [x.reshape(-1, records, *x.shape[1:]) for x in (images, labels)]
    return [_rows(loss, parameters, *shaped, gradients) for gradients in ("layers", "general")]


@pytest.mark.parametrize(
    ("name", "records"),
    [
        ("digits", 3),
        ("tutorial", 1),
        pytest.param("tutorial", 3, marks=pytest.mark.slow),
        pytest.param("digits", 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.thorough(but=1)
def test_every_gradient_equals_that_of_the_general_path(name, records):
    fast, general = (np.asarray(_matrix(rows)) for rows in _both(name, records))
    errors = np.linalg.norm(fast - general, axis=1) / np.linalg.norm(general, axis=1)
    assert errors.max() <= 1e-6


def test_clipped_sums_norms_and_inner_products_equal_those_of_the_general_path():
    fast, general = _both("tutorial", 1)
    norms = general.norms()
    np.testing.assert_allclose(fast.norms(), norms, rtol=1e-6)
    clip_norm = float(jnp.median(norms))  # half of the rows are clipped
    clipped = [mechanism.clip(rows, clip_norm) for rows in (fast, general)]
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
        mechanism.clip(_rows(loss, parameters, x[:, None], labels[:, None], "layers"), 0.1)
        for x in (images, broken)
    ]
    good = (jnp.arange(60) != 7).astype(jnp.float32)
    expected, ours = sums[0].combine(good), sums[1].combine(jnp.ones((60,), jnp.float32))
    broken_norm = float(sums[1].norms()[7])
    assert broken_norm == 0.0 if not jnp.isfinite(bad) else broken_norm < 0.1
    assert np.all(np.isfinite(ours))
    np.testing.assert_allclose(ours - _matrix(sums[1])[7], expected, rtol=1e-4, atol=1e-6)


def affine(x, kernel, bias):
    return x @ kernel + bias.reshape((1,) * (x.ndim - 1) + bias.shape)


def _two_layers(**uses):
    """A loss of two dense layers; each keyword replaces one part by something else."""
    inner = uses.get("inner", affine)

    def loss(parameters, record):
        image, label = record
        kernel1, bias1 = parameters["one"]
        kernel2, bias2 = parameters["two"]
        hidden = jnp.tanh(inner(image, uses.get("kernel", lambda x: x)(kernel1), bias1))
        logits = affine(hidden, uses.get("second", lambda a, b: b)(kernel1, kernel2), bias2)
        return networks.cross_entropy(logits, label) + uses.get("penalty", lambda p: 0.0)(parameters)

    return loss


def _square_parameters():
    keys = jax.random.split(jax.random.key(0), 2)
    draw = [0.1 * jax.random.normal(key, (10, 10), jnp.float32) for key in keys]
    zero = jnp.zeros((10,), jnp.float32)
    return {"one": (draw[0], zero), "two": (draw[1], zero + 0.5)}


def _vmapped(x, kernel, bias):
    return jax.vmap(lambda x: affine(x, kernel, bias))(x[None])[0]


def _scanned(x, kernel, bias):
    return jax.lax.scan(lambda _, x: (None, affine(x, kernel, bias)), None, x[None])[1][0]


@jax.custom_vjp
def _halved(x):
    return x


_halved.defvjp(lambda x: (x, None), lambda _, back: (back / 2,))

# Uses of parameters, and the arrays (kernel 1, bias 1, kernel 2, bias 2) that have a layer of their own.
USES = {
    "plain": ({}, {0, 2}),
    "vmap": ({"inner": _vmapped}, {0, 2}),
    "jit": ({"inner": jax.jit(affine)}, {0, 2}),
    "kernel on the left": ({"inner": lambda x, k, b: k @ x + b}, {0, 2}),
    "outer product": ({"inner": lambda x, k, b: (x[:, None] @ k[:1])[0] + b + jnp.sum(k[1:])}, {2}),
    "moved": ({"kernel": lambda k: k.reshape(2, 5, 10).transpose(1, 0, 2)[None].reshape(10, 10)}, {0, 2}),
    "rounded": ({"kernel": lambda k: k.astype(jnp.float16).astype(jnp.float32)}, {0, 2}),
    "cut to whole numbers": ({"kernel": lambda k: k.astype(jnp.int32).astype(jnp.float32)}, {2}),
    "computed": ({"kernel": lambda k: 2.0 * k}, {2}),
    "stopped": ({"kernel": jax.lax.stop_gradient}, {2}),
    "own gradient": ({"kernel": _halved}, {2}),
    "scan": ({"inner": _scanned}, {2}),
    "checkpoint": ({"inner": jax.checkpoint(affine)}, {2}),
    "penalty": ({"penalty": lambda p: jnp.sum(p["one"][0] ** 2)}, {2}),
    "moved penalty": ({"penalty": lambda p: p["one"][0].T[3, 4]}, {2}),
    "returned bias": ({"penalty": lambda p: p["one"][1][0]}, {0, 2}),
    "shared": ({"second": lambda k1, k2: k1}, set()),
    "shared, one of them moved": ({"second": lambda k1, k2: k1.T}, set()),
    "shared within jit": ({"second": jax.jit(lambda k1, k2: k1 + k2)}, set()),
    "kernel of kernels": ({"second": lambda k1, k2: (k1 + 1.0) @ k2}, {2}),
    "two kernels in one product": (
        {"inner": lambda x, k, b: x @ k + b, "second": lambda k1, k2: k2 @ k2},
        {0},
    ),
}


def _images(number=5):
    images = jax.random.normal(jax.random.key(1), (number, 1, 10), jnp.float32)
    return images, jnp.arange(number, dtype=jnp.int32)[:, None]


def _found(loss, parameters, images, labels):
    plan = layers.plan(loss, parameters, (images[0, 0], labels[0, 0]))
    assert (plan.refusal is None) == bool(plan.found)
    return {layer.leaf for layer in plan.found}


@pytest.mark.parametrize("name", USES)
@pytest.mark.thorough(but=4)
def test_arrays_have_a_layer_of_their_own_only_where_one_operation_reads_them(name):
    uses, expected = USES[name]
    loss, parameters, (images, labels) = _two_layers(**uses), _square_parameters(), _images()
    for _ in range(2):  # what one trace leaves behind must not change the next
        assert _found(loss, parameters, images, labels) == expected
    (ours, general), _ = _compared(loss, parameters, images, labels)
    np.testing.assert_allclose(ours, general, atol=5e-4 if name == "rounded" else 1e-6)
    if not expected:
        with pytest.raises(ValueError, match="nowhere else"):
            _rows(loss, parameters, images, labels, "layers")


class _Once(dict):
    """Counts that say once of everything."""

    def __missing__(self, key):
        return 1

    def update(self, *_):
        pass


@pytest.mark.parametrize("name", ["penalty", "shared"])
def test_an_array_that_is_used_twice_would_be_wrong_layer_by_layer(name, monkeypatch):
    loss, parameters, (images, labels) = _two_layers(**USES[name][0]), _square_parameters(), _images()
    general = _rows(loss, parameters, images, labels, "general").matrix()
    monkeypatch.setattr(layers, "Counter", lambda values: _Once())
    weights = jnp.ones(labels.shape, jnp.float32)
    wrong = clients.update_rows(loss, parameters, (images, labels), weights, "layers").matrix()
    assert jnp.linalg.norm(wrong - general) > 0.01 * jnp.linalg.norm(general)


@jax.custom_batching.custom_vmap
def _of_its_own(x):
    return 2.0 * x


@_of_its_own.def_vmap
def _(axis_size, in_batched, x):
    return 2.0 * x, True


DOES_MORE = {
    "random": lambda p: jax.random.normal(jax.random.key(0), (), jnp.float32),
    "bits": lambda p: jax.lax.rng_uniform(jnp.float32(0), jnp.float32(1), (1,))[0],
    "many clients": lambda p: _of_its_own(p["one"][1][0]),
    "host": lambda p: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), jnp.float32(1)),
    "in a branch": lambda p: jax.lax.cond(
        p["one"][1][0] > 0,
        lambda: jax.random.normal(jax.random.key(0), (), jnp.float32),
        lambda: jnp.float32(0),
    ),
}


@pytest.mark.parametrize("name", DOES_MORE)
def test_a_loss_that_does_more_than_compute_is_refused_as_a_whole(name):
    loss, (images, labels) = _two_layers(penalty=DOES_MORE[name]), _images()
    plan = layers.plan(loss, _square_parameters(), (images[0, 0], labels[0, 0]))
    assert {layer.leaf for layer in plan.found} == {0, 2}
    assert "more than compute" in str(plan.refusal)


def test_a_layer_on_several_rows_of_a_record_sums_over_them():
    def loss(parameters, record):
        image, label = record
        hidden = jnp.tanh(affine(image.reshape(4, 2, 10), *parameters["one"]))
        return networks.cross_entropy(affine(jnp.sum(hidden, (0, 1)), *parameters["two"]), label)

    parameters = _square_parameters()
    images = jax.random.normal(jax.random.key(1), (6, 1, 80), jnp.float32)
    labels = jnp.arange(6, dtype=jnp.int32)[:, None]
    fast, general = (_rows(loss, parameters, images, labels, kind).matrix() for kind in ("layers", "general"))
    np.testing.assert_allclose(fast, general, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.uint8, jnp.int32])
@pytest.mark.parametrize("each", [1, 2])
def test_whole_numbers_in_a_product_need_no_conversion(dtype, each):
    def loss(parameters, record):
        numbers, label = record
        return networks.cross_entropy(numbers @ parameters, label)

    numbers = (jax.random.randint(jax.random.key(1), (6, each, 5), 0, 9, jnp.int32) % 3).astype(dtype)
    labels = jnp.zeros((6, each), jnp.int32)
    parameters = jnp.linspace(-1.0, 1.0, 15, dtype=jnp.float32).reshape(5, 3)
    with jax.numpy_dtype_promotion("standard"):
        fast, general = (
            _rows(loss, parameters, numbers, labels, kind).matrix() for kind in ("layers", "general")
        )
    np.testing.assert_allclose(fast, general, rtol=1e-5, atol=1e-6)


def test_the_kernels_of_the_networks_of_the_trainer_have_layers_of_their_own():
    for name in SIDES:
        parameters, loss, images, labels = _problem(name)
        plan = layers.plan(loss, parameters, (images[0], labels[0]))
        paths = jax.tree_util.tree_leaves_with_path(parameters)
        kernels = {i for i, (path, _) in enumerate(paths) if "kernel" in jax.tree_util.keystr(path)}
        assert {layer.leaf for layer in plan.found} == kernels
        assert plan.refusal is None


# Models of flax.


class Pictures(nnx.Module):
    """Convolutions with normalisations within a record."""

    def __init__(self, rngs):
        self.conv1 = nnx.Conv(3, 8, (3, 3), strides=2, rngs=rngs)
        self.norm1 = nnx.GroupNorm(8, num_groups=4, rngs=rngs)
        self.conv2 = nnx.Conv(8, 6, (4, 3), strides=(2, 1), padding=1, kernel_dilation=(1, 2), rngs=rngs)
        self.dense = nnx.Linear(6, 5, rngs=rngs)
        self.norm2 = nnx.LayerNorm(5, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm1(self.conv1(x)))
        return self.norm2(self.dense(jnp.mean(nnx.tanh(self.conv2(x)), (0, 1))))


class Words(nnx.Module):
    """A table and attention; `tied` reads the table once more at the end."""

    def __init__(self, rngs, tied=False):
        self.table = nnx.Embed(20, 8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, rngs=rngs, decode=False, deterministic=True)
        self.dense = nnx.Linear(8, 8, rngs=rngs)
        self.tied = tied

    def __call__(self, tokens):
        x = self.table(tokens)
        x = self.dense(jnp.mean(x + self.attention(x), 0))
        return self.table.attend(x) if self.tied else x


FLAX = {
    "pictures": (Pictures, {"conv1/kernel", "conv2/kernel", "dense/kernel"}),
    "words": (
        Words,
        {
            "table/embedding",
            "dense/kernel",
            *(f"attention/{x}/kernel" for x in ("query", "key", "value", "out")),
        },
    ),
    "tied": (
        functools.partial(Words, tied=True),
        {"dense/kernel", *(f"attention/{x}/kernel" for x in ("query", "key", "value", "out"))},
    ),
}


@pytest.mark.parametrize("name", FLAX)
@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.thorough(but=2)
@pytest.mark.turns(2)
def test_models_of_flax_are_differentiated_layer_by_layer(name, records):
    build, expected = FLAX[name]
    parameters, apply = networks.functional(build(nnx.Rngs(0)))

    def loss(parameters, record):
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return networks.cross_entropy(apply(parameters, record[0]), record[1])

    shape = (8, records, 9, 8, 3) if name == "pictures" else (8, records, 7)
    inputs = (
        jax.random.normal(jax.random.key(1), shape, jnp.float32)
        if name == "pictures"
        else jax.random.randint(jax.random.key(1), shape, 0, 20, jnp.int32)
    )
    labels = jax.random.randint(jax.random.key(2), (8, records), 0, 5, jnp.int32)
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value")
        for path, _ in jax.tree_util.tree_leaves_with_path(parameters)
    ]
    assert {paths[i] for i in _found(loss, parameters, inputs, labels)} == expected
    # Some clients hold fewer records.
    weights = np.where(np.arange(records) <= np.arange(8)[:, None] % records, 1.0, 0.0)
    weights = jnp.asarray(weights / weights.sum(axis=1, keepdims=True), jnp.float32)
    fast, general = (_rows(loss, parameters, inputs, labels, kind, weights) for kind in ("layers", "general"))
    np.testing.assert_allclose(fast.norms(), general.norms(), rtol=1e-5)
    clip_norm = float(jnp.median(general.norms()))
    clipped = [mechanism.clip(rows, clip_norm) for rows in (fast, general)]
    vector, weights = _matrix(general)[0], jnp.linspace(-1.0, 1.0, 8, dtype=jnp.float32)

    @jax.jit
    def reduced(rows):
        return rows.matrix(), rows.combine(weights), rows.dot(vector), rows.gram()

    for ours, theirs in zip(*map(reduced, clipped)):
        assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs)
    exact = np.asarray(_matrix(clipped[0]), np.float64)
    assert np.linalg.norm(exact, axis=1).max() < clip_norm


class Dropping(nnx.Module):
    def __init__(self, rngs):
        self.dense, self.dropout = nnx.Linear(10, 10, rngs=rngs), nnx.Dropout(0.5)

    def __call__(self, x):
        return self.dropout(self.dense(x), rngs=nnx.Rngs(jax.random.key(0)))


class Together(nnx.Module):
    """Batch normalisation over all clients."""

    def __init__(self, rngs):
        self.dense, self.norm = (
            nnx.Linear(10, 10, rngs=rngs),
            nnx.BatchNorm(10, axis_name="clients", rngs=rngs),
        )

    def __call__(self, x):
        return self.norm(self.dense(x))


def _with_state(build):
    graph, parameters, state = nnx.split(build(nnx.Rngs(0)), nnx.Param, ...)

    def loss(parameters, record):
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return networks.cross_entropy(nnx.merge(graph, parameters, state)(record[0]), record[1])

    return parameters, loss


def test_dropout_takes_the_general_path():
    parameters, loss = _with_state(Dropping)
    images, labels = _images()
    plan = layers.plan(loss, parameters, (images[0, 0], labels[0, 0]))
    assert "random_bits" in str(plan.refusal)
    ours, general = (_rows(loss, parameters, images, labels, kind) for kind in ("auto", "general"))
    assert len(ours.blocks) == 1  # the rows of a matrix
    np.testing.assert_array_equal(ours.matrix(), general.matrix())


def test_batch_normalisation_over_clients_has_no_gradient_of_either_kind():
    parameters, loss = _with_state(Together)
    images, labels = _images()
    for kind in ("auto", "layers", "general"):
        with pytest.raises(NameError, match="clients"):
            _rows(loss, parameters, images, labels, kind)


# Convolutions and tables by themselves.

CONVOLUTIONS = {
    "plain": ((7, 9), (3, 2), {}, 1),
    "strides that divide the kernel": ((9, 8), (4, 3), {"window_strides": (2, 3)}, 1),
    "strides that do not": ((9, 8), (3, 4), {"window_strides": (2, 3)}, 1),
    "stride beyond the kernel": ((9, 8), (1, 2), {"window_strides": (2, 3)}, 1),
    "dilated": ((9, 11), (3, 2), {"window_strides": (2, 2), "rhs_dilation": (2, 3)}, 1),
    "cropped": ((9, 8), (2, 2), {"padding": ((-1, 2), (3, -2)), "window_strides": (2, 1)}, 1),
    "one axis": ((12,), (4,), {"window_strides": (2,), "padding": "VALID"}, 1),
    "three axes": ((4, 5, 4), (2, 2, 3), {"window_strides": (2, 1, 1)}, 1),
    "other orders": ((5, 6), (2, 3), {"dimension_numbers": ("NCHW", "OIHW", "CNWH")}, 1),
    "grouped": ((5, 6), (2, 3), {"feature_group_count": 2}, 0),
    "transposed": ((5, 6), (2, 3), {"lhs_dilation": (2, 1), "padding": ((1, 1), (0, 1))}, 0),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.thorough(but=4)
@pytest.mark.turns(3)
def test_convolutions_of_every_form(name):
    sides, kernel, options, expected = CONVOLUTIONS[name]
    axes = "DHW"[-len(sides) :]
    orders = options.get("dimension_numbers", (f"N{axes}C", f"{axes}IO", f"N{axes}C"))
    options = (
        {"padding": "SAME", "window_strides": (1,) * len(sides)} | options | {"dimension_numbers": orders}
    )
    channels, features, groups = 4, 6, options.get("feature_group_count", 1)

    def sized(order, sizes):
        return tuple(sizes[letter] for letter in order)

    image = sized(orders[0], {"N": 2, "C": channels, **dict(zip(axes, sides))})
    shape = sized(orders[1], {"I": channels // groups, "O": features, **dict(zip(axes, kernel))})
    parameters = jax.random.normal(jax.random.key(0), shape, jnp.float32)

    def loss(parameters, record):
        out = jax.lax.conv_general_dilated(record[0], parameters, **options)
        return jnp.sum(jnp.sin(out + record[1].astype(jnp.float32)) * jnp.cos(out))

    images = jax.random.normal(jax.random.key(1), (3, 1, *image), jnp.float32)
    labels = jnp.arange(3, dtype=jnp.int32)[:, None]
    plan = layers.plan(loss, parameters, (images[0, 0], labels[0, 0]))
    assert len(plan.found) == expected
    (fast, general), _ = _compared(loss, parameters, images, labels)
    assert jnp.linalg.norm(fast - general) <= 1e-5 * jnp.linalg.norm(general)


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.int8])
@pytest.mark.thorough(but=3)
def test_tables_are_read_at_the_places_that_the_general_path_reads(mode, dtype):
    def loss(table, record):
        lines = table.at[record[0]].get(mode=mode, fill_value=0.5)
        return jnp.sum(jnp.sin(lines * (1.0 + jnp.arange(4, dtype=jnp.float32))[:, None, None]))

    table = jax.random.normal(jax.random.key(0), (6, 2, 3), jnp.float32)
    beyond = {jnp.uint8: [[200, 6, 0, 255]], jnp.int8: [[-128, -1, 6, 127]]}.get(
        dtype, [[-9, -1, 6, 2**31 - 1]]
    )
    tokens = jnp.asarray([[[0, 5, 5, 0]], [[3, 1, 4, 1]], [[2, 2, 2, 2]], beyond], dtype)
    labels = jnp.zeros((4, 1), jnp.int32)
    assert _found(loss, table, tokens, labels) == {0}
    (fast, general), norms = _compared(loss, table, tokens, labels)
    np.testing.assert_allclose(fast, general, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(*norms, rtol=1e-5)


def test_the_norm_of_a_table_that_does_not_add_equal_places_would_be_wrong():
    places, values = jnp.asarray([[1, 1, 3]], jnp.int32), jnp.asarray([[[2.0], [2.0], [1.0]]], jnp.float32)
    right = TableBlock.of(places, values, (4, 1))
    wrong = TableBlock(places, values, (4, 1))
    np.testing.assert_array_equal(right.matrix(), wrong.matrix())  # the row is the same
    norm = float(jnp.linalg.norm(right.matrix()))
    assert float(right.squared_norms()[0]) == pytest.approx(norm**2)
    assert float(wrong.squared_norms()[0]) < 0.6 * norm**2
