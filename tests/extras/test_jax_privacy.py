"""Check-in schedules as jax_privacy's batches: its own class, our law."""

import dataclasses

import numpy as np
import pytest
from jax_privacy import batch_selection as theirs  # pyright: ignore[reportMissingImports]

import checkin_jax as cj
from checkin_jax.training import batch_selection

SHUFFLED = cj.ShuffledCheckIn(num_clients=50, check_in_prob=0.3, drop_out_prob=0.2, num_rounds=2_000)


def test_it_is_one_of_theirs_with_public_fields_only():
    strategy = batch_selection(SHUFFLED)
    assert isinstance(strategy, theirs.BatchSelectionStrategy)
    assert [field.name for field in dataclasses.fields(strategy)] == ["protocol"]
    assert strategy == batch_selection(SHUFFLED)


def test_rounds_of_shuffled_check_in_are_poisson_sampled():
    batches = list(batch_selection(SHUFFLED).batch_iterator(50, rng=3))
    assert len(batches) == 2_000
    assert all(len(np.unique(batch)) == len(batch) for batch in batches)
    counts = np.bincount(np.concatenate(batches), minlength=50)
    # Every client Binomial(2000, 0.24), and they are independent: so is the number in a round.
    assert np.all(np.abs(counts - 480) < 6 * np.sqrt(2_000 * 0.24 * 0.76))
    sizes = np.array([len(batch) for batch in batches])
    assert sizes.var() == pytest.approx(50 * 0.24 * 0.76, rel=0.15)
    again = list(batch_selection(SHUFFLED).batch_iterator(50, rng=3))
    assert all(np.array_equal(one, other) for one, other in zip(batches, again))
    fresh = list(batch_selection(SHUFFLED).batch_iterator(50))
    assert not all(np.array_equal(one, other) for one, other in zip(batches, fresh))


def test_averaged_updates_are_random_allocation():
    """Everybody in exactly one of m sums, uniformly: balls in bins."""
    run = cj.AveragedUpdates(num_clients=30, num_slots=5, num_epochs=400)
    batches = list(batch_selection(run).batch_iterator(30, rng=1))
    for epoch in range(400):
        assert sorted(np.concatenate(batches[5 * epoch : 5 * epoch + 5])) == list(range(30))
    first = np.array([len(batch) for batch in batches[::5]])
    assert first.mean() == pytest.approx(6.0, abs=6 * np.sqrt(30 * 0.16 / 400))


def test_dummies_are_in_no_batch():
    run = cj.FixedWindow(num_clients=6, num_slots=9, minibatch=3)
    batches = list(batch_selection(run).batch_iterator(6, rng=1))
    assert len(batches) == 3
    assert all(np.all(batch >= 0) for batch in batches)


def test_records_are_clients():
    with pytest.raises(ValueError, match="num_examples=49"):
        batch_selection(SHUFFLED).batch_iterator(49)
    with pytest.raises(TypeError, match="protocol"):
        batch_selection(3)  # type: ignore[arg-type]
