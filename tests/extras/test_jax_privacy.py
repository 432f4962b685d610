"""Check-in schedules as jax_privacy's batches: its own class, our law."""

import dataclasses
import json
import re
from pathlib import Path

import dp_accounting
import jax
import numpy as np
import pytest
from jax_privacy import batch_selection as theirs  # pyright: ignore[reportMissingImports]
from jax_privacy.experimental import accounting  # pyright: ignore[reportMissingImports]
from jax_privacy.matrix_factorization import toeplitz  # pyright: ignore[reportMissingImports]

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax.accounting.peers import beside_banded
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


RUN = cj.ShuffledCheckIn(num_clients=4_000, check_in_prob=0.05, num_rounds=60)


def test_peers_have_the_epsilon_of_the_check_ins_and_no_more():
    rows = beside_banded(RUN, cj.Gaussian(noise_multiplier=0.3), delta=1e-6)
    assert [re.split("[ ,]", row.method)[0] for row in rows] == [
        "check-ins",
        "DP-SGD",
        "amplified",
        "DP-FTRL:",
    ]
    ours = rows[0].epsilon
    assert all(0.99 * ours <= row.epsilon <= ours for row in rows)
    # Noise of one client over all that come: 0.3 sqrt(200), and its prefix sums.
    assert rows[0].noise == pytest.approx(0.3 * np.sqrt(200))
    assert rows[0].error == pytest.approx(rows[0].noise * np.sqrt(30.5) / 200)
    # A timer of 20 rounds: three times in 60.
    timer = cj.CheckInAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    timer.compose(dp_accounting.GaussianDpEvent(rows[3].noise), 3)
    assert timer.get_epsilon(1e-6) == pytest.approx(rows[3].epsilon)


def test_their_own_error_is_the_one_stated():
    """Rows of A C^-1 by jax_privacy; amplification by its event."""
    rows = beside_banded(RUN, cj.Gaussian(noise_multiplier=0.3), delta=1e-6)
    bands = int(re.findall(r"(\d+) bands", rows[3].method)[0])
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        strategy = toeplitz.optimize_banded_toeplitz(n=60, bands=bands)
        found = float(np.sqrt(np.mean(toeplitz.per_query_error(strategy_coef=strategy, n=60))))
    assert rows[3].error == pytest.approx(rows[3].noise * found / 200, rel=1e-3)
    bands = int(re.findall(r"(\d+) bands", rows[2].method)[0])
    event = accounting.amplified_bandmf_event(rows[2].noise, 60, num_bands=bands, sampling_prob=0.05 * bands)
    ledger = cj.CheckInAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event)
    assert ledger.get_epsilon(1e-6) == pytest.approx(rows[2].epsilon, rel=1e-9)


def test_the_page_prints_what_it_says_and_the_command_too(capsys):
    page = (Path(__file__).parents[2] / "docs/dp_ftrl.md").read_text()
    (block,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(block, {})
    printed = capsys.readouterr().out
    assert [line[2:] for line in block.splitlines() if line.startswith("# ")] == printed.splitlines()
    words = "compare --banded --num-clients 4000 --check-in-prob 0.05 --num-rounds 60 --noise-multiplier 0.3 --json"
    cli.main(words.split())
    assert len(json.loads(capsys.readouterr().out)) == 4


@pytest.mark.parametrize(
    ("protocol", "randomizer", "why"),
    [
        (cj.SlidingWindow(num_clients=50, window=5), cj.Gaussian(noise_multiplier=1.0), "protocol="),
        (RUN, cj.PureLDP(epsilon0=1.0), "randomizer="),
    ],
)
def test_what_cannot_be_set_beside_them_is_refused(protocol, randomizer, why):
    with pytest.raises(TypeError, match=why):
        beside_banded(protocol, randomizer, delta=1e-6)
