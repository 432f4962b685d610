"""The private step: it equals a plain reference, never truncates, never recompiles, never reuses a key."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from digits_problem import digits_problem
from jax.flatten_util import ravel_pytree
from scipy import stats

from checkin_jax.randomizers import Gaussian, PureLDP
from checkin_jax.training.private import mechanism as mechanisms
from checkin_jax.training.private import step
from checkin_jax.training.private.mechanism import Mechanism, mechanism_of
from checkin_jax.training.private.step import Performance

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

CLIP = 0.1
NOISELESS = Gaussian(noise_multiplier=1e-30)
BOTH_KINDS = pytest.mark.parametrize(
    "randomizer", [Gaussian(noise_multiplier=2.0), PureLDP(epsilon0=2.0)], ids=lambda r: type(r).__name__
)
SIMULATED = pytest.mark.parametrize("simulate", ["aggregate", "messages"])


def _sum(mechanism: Mechanism, records, key=0, capacity=360, performance=None) -> np.ndarray:
    parameters, loss, data = digits_problem()
    records = np.asarray(records, np.int32)
    key = jax.random.key(key)
    return np.asarray(
        step.round_sum(
            mechanism, loss, parameters, data, records, key, capacity=capacity, performance=performance
        )
    )


@functools.cache
def _reference() -> np.ndarray:
    """Clipped gradients of all training records, by plain vmap over flat parameters."""
    parameters, loss, data = digits_problem()
    flat, unravel = ravel_pytree(parameters)
    rows = jax.vmap(jax.grad(lambda flat, record: loss(unravel(flat), record)), (None, 0))(flat, data)
    rows = np.asarray(rows, np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, CLIP * (1 - mechanisms.CLIP_MARGIN) / norms)


@BOTH_KINDS
@pytest.mark.thorough(but=1)
def test_the_messages_one_by_one_are_those_that_are_summed(randomizer):
    mechanism = mechanism_of(randomizer, clip_norm=CLIP, simulate="messages")
    records = np.array([3, -1, 5, 5])
    arguments = *digits_problem(), records, jax.random.key(0)
    messages = step.round_messages(mechanism, arguments[1], arguments[0], *arguments[2:], capacity=40)
    assert messages.shape == (4, 1_722)
    np.testing.assert_allclose(messages.sum(0), _sum(mechanism, records, capacity=40), rtol=1e-4, atol=1e-5)
    cosines = np.corrcoef(messages)  # mostly noise: no two messages share it
    assert np.abs(cosines - np.eye(4)).max() < 0.2


@pytest.mark.parametrize("count", [0, 1, 39, 40, 41, 359, 360, 361, 1_003])
def test_the_sum_of_gradients_equals_a_plain_reference(count):
    mechanism = mechanism_of(NOISELESS, clip_norm=CLIP)
    records = np.random.default_rng(count).integers(1437, size=count)
    ours = _sum(mechanism, records)
    expected = _reference()[records].sum(0) if count else np.zeros(1_722)
    assert np.linalg.norm(ours - expected) <= 1e-6 * max(np.linalg.norm(expected), 1e-9)


@SIMULATED
@BOTH_KINDS
@pytest.mark.thorough(but=1)
@pytest.mark.turns(3)
def test_an_overfull_round_takes_several_passes_with_the_same_result(randomizer, simulate):
    mechanism = mechanism_of(randomizer, clip_norm=CLIP, simulate=simulate)
    records = np.arange(203)
    whole, parts = _sum(mechanism, records), _sum(mechanism, records, capacity=80)
    np.testing.assert_allclose(whole, parts, rtol=1e-4, atol=1e-5 * np.abs(whole).max())


def test_changing_counts_do_not_recompile():
    mechanism = mechanism_of(PureLDP(epsilon0=2.0), clip_norm=CLIP)
    _sum(mechanism, np.arange(10))
    before = step._sum_messages._cache_size(), step._add_noise._cache_size()
    for count in (0, 1, 77, 360, 950):
        _sum(mechanism, np.arange(count), key=count)
    assert (step._sum_messages._cache_size(), step._add_noise._cache_size()) == before


@SIMULATED
def test_l2_sums_are_unbiased(simulate):
    mechanism = mechanism_of(PureLDP(epsilon0=2.0), clip_norm=CLIP, simulate=simulate)
    expected = _reference()[:90].sum(0)
    found = np.mean([_sum(mechanism, np.arange(90), key) for key in range(30)], axis=0)
    along = expected / np.linalg.norm(expected)
    scale = mechanisms.l2_multiplier(2.0) * CLIP * np.sqrt(90)
    assert abs((found - expected) @ along) < 4.5 * scale / np.sqrt(30)


@SIMULATED
@BOTH_KINDS
def test_no_two_messages_and_no_two_rounds_share_noise(randomizer, simulate):
    # The same record over and over: shared keys would make the noise add up coherently.
    mechanism = mechanism_of(randomizer, clip_norm=CLIP, simulate=simulate)
    records = np.zeros(200, int)
    first, second = (_sum(mechanism, records, key) - 200 * _reference()[0] for key in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(first.size)
    z = 2.0 if isinstance(randomizer, Gaussian) else mechanisms.l2_multiplier(2.0)
    assert first.std() == pytest.approx(z * CLIP * np.sqrt(200), rel=0.08)
    np.testing.assert_array_equal(_sum(mechanism, records, 0), _sum(mechanism, records, 0))


def test_absent_clients_send_nothing_even_with_broken_gradients():
    # The buffer is padded with record 0; here that record is the one whose gradient overflows.
    parameters, loss, data = digits_problem()

    def broken(parameters, record):
        return loss(parameters, record) * jnp.where(jnp.all(record[0] == data[0][0]), jnp.inf, 1.0)

    mechanism = mechanism_of(NOISELESS, clip_norm=CLIP)
    key, records = jax.random.key(0), np.arange(1, 30, dtype=np.int32)
    total = step.round_sum(mechanism, broken, parameters, data, records, key, capacity=40)
    np.testing.assert_allclose(total, _reference()[1:30].sum(0), rtol=1e-4, atol=1e-6)


@SIMULATED
@BOTH_KINDS
def test_dummies_send_the_privatised_zero_gradient(randomizer, simulate):
    mechanism = mechanism_of(randomizer, clip_norm=CLIP, simulate=simulate)
    z = 2.0 if isinstance(randomizer, Gaussian) else mechanisms.l2_multiplier(2.0)
    real = np.arange(50)
    mixed = np.insert(real, np.linspace(0, 50, 90).astype(int), -1)
    noise = _sum(mechanism, mixed) - _reference()[real].sum(0)
    for factor, plausible in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        p_value = stats.kstest(noise, stats.norm(0, factor * z * CLIP * np.sqrt(140)).cdf).pvalue
        assert p_value > 1e-3 if plausible else p_value < 1e-8


def test_a_dummy_has_the_gradient_zero_exactly():
    parameters, loss, data = digits_problem()
    mechanism = mechanism_of(NOISELESS, clip_norm=CLIP)
    key, records = jax.random.key(0), np.full(7, -1, np.int32)
    total = step.round_sum(
        mechanism, lambda *args: loss(*args) * jnp.inf, parameters, data, records, key, capacity=40
    )
    assert np.abs(total).max() < 1e-28
    mixed = np.array([3, -1, 5, -1, -1])
    np.testing.assert_allclose(_sum(mechanism, mixed), _reference()[[3, 5]].sum(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("microbatch", [40, 120])
@pytest.mark.thorough(but=1)
def test_the_microbatch_changes_nothing_but_speed(microbatch):
    mechanism = mechanism_of(PureLDP(epsilon0=2.0), clip_norm=CLIP)
    several = Performance(microbatch=microbatch), None
    ours, theirs = (_sum(mechanism, np.arange(300), performance=p) for p in several)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())


def test_the_buffer_is_almost_never_overfull_and_never_larger_than_needed():
    assert step.buffer_capacity(60_000, 0.1, 40) == 6_600
    assert step.buffer_capacity(30, 1.0, 40) == 40
    assert step.buffer_capacity(1, 1e-6, 40) == 40
    assert stats.binom(60_000, 0.1).sf(6_600) < 1e-14


@pytest.mark.parametrize("capacity", [0, -40, 1.5])
def test_a_capacity_below_one_is_refused(capacity):
    with pytest.raises(ValueError, match=f"capacity={capacity}"):
        _sum(mechanism_of(NOISELESS, clip_norm=CLIP), np.arange(3), capacity=capacity)


def test_a_mesh_of_another_axis_is_refused():
    with pytest.raises(ValueError, match="'clients'"):
        Performance(mesh=jax.make_mesh((1,), ("rows",)))


@SIMULATED
@BOTH_KINDS
def test_no_key_is_used_twice_within_a_round(randomizer, simulate):
    mechanism = mechanism_of(randomizer, clip_norm=CLIP, simulate=simulate)
    with jax.debug_key_reuse(True):
        _sum(mechanism, np.arange(90), capacity=80)


def test_the_check_of_keys_would_notice_one_used_twice(monkeypatch):
    split = jax.random.split
    monkeypatch.setattr(jax.random, "split", lambda key, n=2: [key] * 4 if n == 4 else split(key, n))
    mechanism = mechanism_of(PureLDP(epsilon0=1.75), clip_norm=CLIP)
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        _sum(mechanism, np.arange(90), capacity=80)
