"""A single setting compiles nothing; a damaged entry of JAX's cache, packed by zlib, is compiled anew."""

import os
import random
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import checkin_jax as cj

SETTINGS = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


@pytest.fixture
def folder(tmp_path):
    """Where JAX keeps programs meanwhile."""
    before = {name: jax.config.values[name] for name in SETTINGS}
    for values in ({**SETTINGS, "jax_compilation_cache_dir": str(tmp_path)}, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is not before:
            yield tmp_path


def flipped(whole: bytes, number: int) -> bytes:
    """The bytes with one bit, of a place that follows from the number, turned over."""
    place = random.Random(number).randrange(8 * len(whole))
    return whole[: place // 8] + bytes([whole[place // 8] ^ 1 << place % 8]) + whole[place // 8 + 1 :]


@pytest.mark.thorough(but=5)
@pytest.mark.parametrize(
    "harm",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: os.urandom(len(whole)),
        *(lambda whole, number=number: flipped(whole, number) for number in range(20)),
        lambda whole: whole[:1],
        lambda whole: whole[:-1],
    ],
)
def test_a_damaged_entry_is_compiled_anew(folder, harm):
    def program(x):
        return jnp.sort(jnp.tanh(x @ x), axis=0)

    x = np.arange(9.0, dtype=np.float32).reshape(3, 3)
    jax.clear_caches()
    right = np.asarray(jax.jit(program)(x))
    kept = list(folder.glob("*-cache"))
    assert kept
    for entry in kept:
        entry.write_bytes(harm(entry.read_bytes()))
    jax.clear_caches()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        again = np.asarray(jax.jit(program)(x))
    assert (again == right).all()
    assert any("Error reading persistent compilation cache entry" in str(each.message) for each in told)


CHECK_INS = cj.ShuffledCheckIn(num_clients=1_000, check_in_prob=0.1, num_rounds=7)
UNEQUAL = cj.ShuffledCheckIn(
    num_clients=900, check_in_prob=cj.Rates([0.2, 0.1], counts=[400, 500]), num_rounds=7
)
SHUFFLE = cj.Shuffle(num_clients=2_000, num_rounds=3)
SLOTS = cj.FixedWindow(num_clients=2_000, num_slots=500, check_in_prob=0.5)
SLIDING = cj.SlidingWindow(num_clients=2_000, window=500)


@pytest.mark.thorough(but=4)
@pytest.mark.parametrize("run", [CHECK_INS, UNEQUAL, SHUFFLE, SLOTS, SLIDING])
@pytest.mark.parametrize(
    "randomizer",
    [
        cj.PureLDP(epsilon0=0.7),
        cj.KaryResponse(epsilon0=0.7, num_values=5),
        cj.L2Mechanism(epsilon0=0.7),
        cj.Laplace(epsilon0=0.7),
        cj.Rappor(epsilon0=0.7),
        cj.FiniteMechanism(probabilities=[[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]]),
        cj.ApproximateLDP(epsilon0=0.7, delta0=1e-12),
    ],
)
def test_a_single_setting_compiles_nothing(run, randomizer, caplog):
    jax.clear_caches()
    with jax.log_compiles():
        cj.account(run, randomizer, delta=1e-6)
    assert not [told for told in caplog.messages if told.startswith("Compiling")]


def test_a_program_that_is_compiled_is_told(caplog):
    with jax.log_compiles():
        jax.jit(lambda x: jnp.sin(x) + 0.25)(1.0)
    assert any(told.startswith("Compiling") for told in caplog.messages)
