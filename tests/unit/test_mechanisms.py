"""Mechanisms: bounds on norms, laws of messages, and sums drawn exactly. Seeds are fixed."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from checkin_jax.training.private import mechanism as mechanisms
from checkin_jax.training.private.per_client_gradients import ClientVectors

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

ACCEPT, REJECT = 1e-3, 1e-8
CLIP = 0.5


def _clipped(rows) -> jax.Array:
    return mechanisms.clip(ClientVectors.of(jnp.asarray(rows, jnp.float32)), CLIP).matrix()


def test_clipped_norms_stay_below_the_bound_in_exact_arithmetic():
    rows = np.random.default_rng(0).normal(size=(2000, 300)) * np.logspace(-6, 6, 2000)[:, None]
    clipped = np.asarray(_clipped(rows), np.float64)
    norms = np.linalg.norm(clipped, axis=1)
    assert norms.max() < CLIP
    assert norms.max() > CLIP * (1 - 2e-6)
    short = np.linalg.norm(rows, axis=1) < 0.9 * CLIP
    assert short.any()
    np.testing.assert_array_equal(clipped[short], rows[short].astype(np.float32).astype(np.float64))
    cosines = np.sum(clipped * rows, axis=1) / norms / np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_gradient_without_a_finite_norm_becomes_zero(bad):
    clipped = _clipped([[bad, 1.0, 0.0], [3.0, 4.0, 0.0]])
    np.testing.assert_array_equal(clipped[0], np.zeros(3))
    np.testing.assert_allclose(clipped[1], [0.3, 0.4, 0.0], rtol=1e-5)


def test_gaussian_messages_carry_exactly_the_stated_noise():
    clipped = jnp.zeros((40, 500), jnp.float32)
    keys = jax.random.split(jax.random.key(1), 40)
    noise = np.asarray(mechanisms.gaussian_messages(keys, clipped, CLIP, 3.0)).ravel()
    for factor, plausible in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        p_value = stats.kstest(noise, stats.norm(0, factor * 3.0 * CLIP).cdf).pvalue
        assert p_value > ACCEPT if plausible else p_value < REJECT


def test_the_noise_of_a_sum_is_that_of_its_messages():
    drawn = np.asarray(mechanisms.gaussian_sum_noise(jax.random.key(2), 20_000, CLIP, 3.0, np.int32(240)))
    keys = jax.random.split(jax.random.key(3), 240)
    summed = np.asarray(
        mechanisms.gaussian_messages(keys, jnp.zeros((240, 2000), jnp.float32), CLIP, 3.0)
    ).sum(0)
    assert stats.ks_2samp(drawn, summed).pvalue > ACCEPT
    assert stats.ks_2samp(drawn * 1.5, summed).pvalue < REJECT
    assert stats.ks_2samp(drawn / 1.5, summed).pvalue < REJECT
    empty = mechanisms.gaussian_sum_noise(jax.random.key(2), 5, CLIP, 3.0, np.int32(0))
    np.testing.assert_array_equal(empty, np.zeros(5))


def _messages(gradient, count: int, epsilon0: float, seed: int = 0) -> np.ndarray:
    rows = jnp.tile(_clipped([gradient]), (count, 1))
    keys = jax.random.split(jax.random.key(seed), count)
    return np.asarray(mechanisms.l2_messages(keys, rows, CLIP, epsilon0), np.float64)


@pytest.mark.parametrize("length", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("dimension", [2, 7, 60])
@pytest.mark.thorough(but=4)
def test_l2_messages_have_fixed_norm_and_are_unbiased(dimension, length):
    gradient = length * np.eye(dimension)[1]
    messages = _messages(gradient, 40_000, 1.5)
    norm = mechanisms.l2_message_norm(dimension, CLIP, 1.5)
    np.testing.assert_allclose(np.linalg.norm(messages, axis=1), norm, rtol=1e-5)
    errors = (messages.mean(0) - gradient) / (messages.std(0) / math.sqrt(len(messages)))
    assert np.abs(errors).max() < 4.5
    if length == 0.5:  # the same test notices a mean that is off by a tenth
        assert abs(errors[1] + 0.05 / (messages[:, 1].std() / 200)) > 4.5


@pytest.mark.parametrize("epsilon0", [0.3, 2.0, 8.0])
def test_l2_mechanism_in_one_dimension_is_randomized_response(epsilon0):
    # In d = 1 the message is +-B, so its local privacy can be read off two frequencies.
    count = 200_000
    plus = (_messages([CLIP], count, epsilon0, 1)[:, 0] > 0).mean()
    minus = (_messages([-CLIP], count, epsilon0, 2)[:, 0] > 0).mean()
    right = 1 / (1 + math.exp(-epsilon0))
    slack = 4.5 * math.sqrt(right * (1 - right) / count) + 1e-6
    assert abs(plus - right) < slack
    assert abs(minus - (1 - right)) < slack
    assert mechanisms.l2_message_norm(1, CLIP, epsilon0) == pytest.approx(
        CLIP / math.tanh(epsilon0 / 2), rel=1e-5
    )


def test_l2_marginal_along_the_gradient_has_the_promised_density_ratio():
    # <v, u> for gradients C u and -C u: the law is that of the uniform sphere times (1 +- tanh) on each side.
    dimension, epsilon0, count = 5, 1.0, 200_000
    along = np.eye(dimension)[0]
    norm = mechanisms.l2_message_norm(dimension, CLIP, epsilon0)
    edges = np.linspace(-1, 1, 11)
    counts = [
        np.histogram(_messages(sign * CLIP * along, count, epsilon0, seed)[:, 0] / norm, edges)[0]
        for seed, sign in enumerate((1, -1))
    ]
    uniform = np.diff(stats.beta((dimension - 1) / 2, (dimension - 1) / 2, loc=-1, scale=2).cdf(edges))
    tilt = math.tanh(epsilon0 / 2) * np.sign(edges[:-1] + 0.1)
    for observed, sign in zip(counts, (1, -1)):
        expected = count * uniform * (1 + sign * tilt)
        assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > ACCEPT
    ratios = counts[0] / counts[1]
    assert np.all(ratios < math.exp(epsilon0) * 1.1)
    assert ratios.max() > math.exp(epsilon0) * 0.95


@pytest.mark.parametrize("epsilon0", [1e-5, 0.01, 1.0, 10.0, 14.0, 50.0])
def test_float32_coins_never_exceed_epsilon0(epsilon0):
    # jax.random.bernoulli(p) is true for ceil(p 2^23) of 2^23 equally likely values.
    radii = jnp.linspace(0.0, 1.0, 1001, dtype=jnp.float32)
    chances = 0.5 * (1.0 - radii * mechanisms._coin_bias(epsilon0))
    flipped = np.ceil(np.asarray(chances, np.float64) * 2**23) / 2**23
    heads = np.concatenate([flipped, 1 - flipped])  # seen from both directions of the gradient
    assert heads.min() > 0
    assert math.log(heads.max() / heads.min()) <= epsilon0


def _gradient_sets(dimension: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(dimension)
    rows = rng.normal(size=(4, dimension))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    close = rows[0] + 0.3 * rows
    close /= np.linalg.norm(close, axis=1, keepdims=True)
    return {
        "spread": rows * np.array([0.1, 0.3, 0.49, 2.0])[:, None],
        "similar": close * 0.5,
        "duplicates": rows[[0, 0, 1, 0]] * 0.5,
        "zero": rows * np.array([0.5, 0.0, 0.5, 0.5])[:, None],
    }


def _draw_together(keys: jax.Array, clipped: jax.Array, present: jax.Array) -> jax.Array:
    rows = ClientVectors.of(clipped)
    return jax.lax.map(lambda k: mechanisms.l2_sum(k[None], rows, present, CLIP, 2.0), keys, batch_size=1000)


@jax.jit
def _draw_one_by_one(keys: jax.Array, clipped: jax.Array, present: jax.Array) -> jax.Array:
    def total(key: jax.Array) -> jax.Array:
        messages = mechanisms.l2_messages(jax.random.split(key, len(clipped)), clipped, CLIP, 2.0)
        return present.astype(jnp.float32) @ messages

    return jax.lax.map(total, keys, batch_size=1000)


_compiled_together = jax.jit(_draw_together)


def _reference(clipped: jax.Array, present: jax.Array, count: int = 20_000) -> np.ndarray:
    return np.asarray(_draw_one_by_one(jax.random.split(jax.random.key(12), count), clipped, present))


def _together(
    clipped: jax.Array, present: jax.Array, count: int = 20_000, *, patched: bool = False
) -> np.ndarray:
    # A patched mechanism must be traced anew, through a function object that was never compiled.
    draw = jax.jit(lambda *args: _draw_together(*args)) if patched else _compiled_together
    return np.asarray(draw(jax.random.split(jax.random.key(11), count), clipped, present))


def _p_values(clipped: jax.Array, a: np.ndarray, b: np.ndarray) -> list[float]:
    """KS tests along each gradient, along their sum, across all of them, and of the squared norm."""
    rows = np.asarray(clipped)
    directions = [*rows[np.linalg.norm(rows, axis=1) > 0], rows.sum(0), np.linalg.svd(rows)[2][-1]]
    features = [(a @ v, b @ v) for v in directions]
    features.append((np.sum(a * a, axis=1), np.sum(b * b, axis=1)))
    return [float(stats.ks_2samp(x, y).pvalue) for x, y in features]


@pytest.mark.parametrize("dimension", [8, 20])
@pytest.mark.parametrize("kind", ["spread", "similar", "duplicates", "zero"])
@pytest.mark.turns(2)
@pytest.mark.thorough
def test_a_sum_drawn_at_once_has_the_law_of_the_sum_of_messages(kind, dimension):
    clipped = _clipped(_gradient_sets(dimension)[kind])
    present = jnp.array([True, True, kind != "spread", True])
    drawn = mechanisms._draw_group(
        jax.random.key(0), ClientVectors.of(clipped), present, clip_norm=CLIP, epsilon0=2.0
    )[1]
    assert bool(drawn) == (kind != "duplicates")  # zero and absent rows are no obstacle
    a, b = _together(clipped, present), _reference(clipped, present)
    assert min(_p_values(clipped, a, b)) > ACCEPT


PIECES, CHOLESKY = mechanisms._outer_pieces, mechanisms._cholesky


@pytest.mark.parametrize(
    ("kind", "part", "wrong"),
    [
        ("spread", "_flips", lambda keys, radii, epsilon0: jnp.ones_like(radii)),
        # Outer pieces that are always orthogonal, and another basis.
        ("similar", "_outer_pieces", lambda *args: jnp.diag(jnp.linalg.norm(PIECES(*args), axis=1))),
        ("similar", "_cholesky", lambda gram: (CHOLESKY(gram)[0], jnp.eye(4, dtype=jnp.float32))),
    ],
)
@pytest.mark.thorough
def test_the_sum_test_notices_a_wrong_part(kind, part, wrong, monkeypatch):
    clipped, present = _clipped(_gradient_sets(8)[kind]), jnp.ones((4,), bool)
    b = _reference(clipped, present)
    monkeypatch.setattr(mechanisms, part, wrong)
    a = _together(clipped, present, patched=True)
    assert min(_p_values(clipped, a, b)) < REJECT


@pytest.mark.parametrize("dimension", [4, 7, 300])
@pytest.mark.thorough(but=1)
def test_outer_pieces_have_the_inner_products_of_normal_vectors(dimension):
    keys = jax.random.split(jax.random.key(3), 20_000)
    pieces = np.asarray(jax.vmap(lambda key: mechanisms._outer_pieces(key, 4, jnp.float32(dimension)))(keys))
    normals = np.random.default_rng(1).normal(size=(20_000, 4, dimension)).astype(np.float32)
    ours, theirs = (x @ x.transpose(0, 2, 1) for x in (pieces, normals))
    for i in range(4):
        assert stats.kstest(ours[:, i, i], stats.chi2(dimension).cdf).pvalue > ACCEPT
        assert stats.kstest(ours[:, i, i], stats.chi2(dimension + 1).cdf).pvalue < (
            1e-3 if dimension > 7 else REJECT
        )
        for j in range(i):
            assert stats.ks_2samp(ours[:, i, j], theirs[:, i, j]).pvalue > ACCEPT
    totals = [np.sum(x.sum(1) ** 2, axis=1) for x in (pieces, normals)]
    assert stats.ks_2samp(*totals).pvalue > ACCEPT


@pytest.mark.parametrize("dimension", [6, 8])
@pytest.mark.turns(2)
@pytest.mark.thorough(but=1)
def test_the_sum_of_one_message_is_a_message(dimension):
    # Below d = 2 m there is no room for the decomposition: messages are drawn one by one.
    clipped, present = _clipped(_gradient_sets(dimension)["spread"]), jnp.array([False, True, False, False])
    norms = np.linalg.norm(_together(clipped, present, 50), axis=1)
    np.testing.assert_allclose(norms, mechanisms.l2_message_norm(dimension, CLIP, 2.0), rtol=1e-5)


@pytest.mark.parametrize("kind", ["spread", "duplicates"])
@pytest.mark.turns(2)
@pytest.mark.thorough
def test_groups_are_drawn_from_their_own_keys_and_rows(kind):
    # Two groups in one call are the two groups in two calls, however each of them is drawn.
    sets = _gradient_sets(20)
    rows = [_clipped(sets[name]) for name in ("similar", kind)]
    keys = jax.random.split(jax.random.key(5), 2)
    draw = jax.jit(lambda keys, rows, p: mechanisms.l2_sum(keys, ClientVectors.of(rows), p, CLIP, 2.0))
    present = jnp.ones((8,), bool).at[5].set(False)
    both = draw(keys, jnp.concatenate(rows), present)
    apart = [draw(keys[i : i + 1], rows[i], present[4 * i : 4 * i + 4]) for i in (0, 1)]
    np.testing.assert_allclose(both, apart[0] + apart[1], rtol=1e-5, atol=1e-5 * np.abs(both).max())


def test_the_small_cholesky_factor_and_its_inverse():
    rows = np.random.default_rng(1).normal(size=(40, 60)).astype(np.float32)
    gram = rows @ rows.T / 60
    factor, inverse = (np.asarray(x, np.float64) for x in mechanisms._cholesky(jnp.asarray(gram)))
    expected = np.linalg.cholesky(gram.astype(np.float64))
    np.testing.assert_allclose(factor, expected, atol=2e-6)
    np.testing.assert_allclose(inverse @ expected, np.eye(40), atol=2e-5)
    assert np.array_equal(factor, np.tril(factor))
    for singular in (np.ones((3, 3)), np.zeros((3, 3)), -np.eye(3)):
        inverse = np.asarray(mechanisms._cholesky(jnp.asarray(singular, jnp.float32))[1])
        assert not np.sum(inverse * inverse) < mechanisms.MAX_INVERSE_NORM_SQUARED


@pytest.mark.thorough
def test_sums_of_many_messages_in_high_dimension_have_the_right_moments():
    rng = np.random.default_rng(5)
    clipped = _clipped(rng.normal(size=(40, 1500)) + 0.5)
    present = jnp.ones((40,), bool)
    sums = _together(clipped, present, 200).astype(np.float64)
    mean = np.asarray(clipped, np.float64).sum(0)
    norm = mechanisms.l2_message_norm(1500, CLIP, 2.0)
    along = sums @ mean / np.linalg.norm(mean)
    assert abs(along.mean() - np.linalg.norm(mean)) < 4.5 * along.std() / math.sqrt(len(along))
    # E|S|^2 = 40 B^2 + sum over pairs of <g_i, g_j>, because messages are independent and unbiased.
    pairs = mean @ mean - np.sum(np.asarray(clipped, np.float64) ** 2)
    squared = np.sum(sums * sums, axis=1)
    assert abs(squared.mean() - 40 * norm**2 - pairs) < 4.5 * squared.std() / math.sqrt(len(squared))


def test_the_l2_multiplier_is_the_deviation_of_one_coordinate():
    assert mechanisms.l2_multiplier(2.0) == pytest.approx(1.6456, abs=5e-5)
    one = mechanisms.l2_message_norm(26_010, CLIP, 2.0) / math.sqrt(26_010) / CLIP
    assert one == pytest.approx(mechanisms.l2_multiplier(2.0), rel=1e-4)


@pytest.mark.parametrize("epsilon0", [0.0, -1.0, math.nan])
def test_no_l2_message_without_privacy_budget(epsilon0):
    with pytest.raises(ValueError, match="epsilon0"):
        mechanisms.l2_message_norm(5, CLIP, epsilon0)
    with pytest.raises(ValueError, match="epsilon0"):
        mechanisms.l2_multiplier(epsilon0)
