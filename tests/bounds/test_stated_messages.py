"""What somebody states of a message, and no more: a total variation, one bit and public coins."""

import csv
import itertools
import json
import math

import numpy as np
import pytest
from oracles import known_messages as oracle
from scipy import stats

import checkin_jax as cj
from checkin_jax import cli, training
from checkin_jax.training.private.mechanism import mechanism_of

RUN = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800)


def profile_of(first, second, cs):
    """The hockey-stick divergence of two laws, the larger of both orders."""
    return np.array(
        [max(np.maximum(a - c * b, 0).sum() for a, b in ((first, second), (second, first))) for c in cs]
    )


@pytest.mark.parametrize("p", [1.3, 4.0, 60.0])
def test_a_stated_total_variation_bounds_the_profile(p):
    """Of every mechanism with that total variation: k-ary response, subsets, Hadamard response, RAPPOR, arcs."""
    cs = np.exp(np.linspace(0.0, 1.0, 41) * math.log(p))
    for channel in (
        oracle.subset_channel(5, 1, p),
        oracle.subset_channel(5, 2, p),
        oracle.hadamard_channel(p),
        oracle.rappor_channel(3, p),
        oracle.arc_channel(7, 2, p),
    ):
        distance = oracle.total_variation(channel)
        stated = cj.PureLDP(epsilon0=math.log(p), total_variation=distance * (1 + 1e-12))
        known = stated.profile(np.log(cs))
        for i, j in itertools.permutations(range(len(channel)), 2):
            assert (profile_of(channel[i], channel[j], cs) <= known + 1e-12).all()
    less = cj.PureLDP(epsilon0=math.log(p), total_variation=0.9 * distance)
    worst = max(profile_of(channel[0], other, cs)[0] for other in channel[1:])
    assert worst > less.profile(np.zeros(1))[0] * 1.05


@pytest.mark.parametrize("differ", [1.0, 0.5, 0.2])
def test_one_bit_bounds_the_profile_of_coins_and_bits(differ):
    """Random coins, random bits that two records change for a share of the coins, randomized to any extent."""
    rng, p, worst = np.random.default_rng(3), 5.0, 0.0
    cs = np.exp(np.linspace(0.0, 0.999, 41) * math.log(p))
    stated = cj.OneBit(epsilon0=math.log(p), differ=differ)
    for _ in range(200):
        coins = 10
        shared = rng.random(coins)
        apart = np.arange(coins) < round(differ * coins)
        bits = [np.where(apart, rng.integers(0, 2, coins), shared) for _ in range(2)]
        ups = [(1 + (p - 1) * each) / (p + 1) for each in bits]
        first, second = (np.concatenate([up, 1 - up]) / coins for up in ups)
        found = profile_of(first, second, cs)
        assert (found <= stated.profile(np.log(cs)) + 1e-12).all()
        worst = max(worst, found[0])
    assert worst > 0.7 * stated.profile(np.zeros(1))[0]


@pytest.mark.parametrize(
    "randomizer", [cj.PureLDP(epsilon0=2.0, total_variation=0.3), cj.OneBit(epsilon0=2.0, differ=0.5)]
)
def test_the_witness_is_what_is_stated(randomizer):
    losses = np.linspace(0.0, 1.999, 21)
    for laws in randomizer.label_laws:
        found = profile_of(laws.target, laws.other, np.exp(losses))
        assert np.allclose(found, randomizer.profile(losses), rtol=1e-9)
        assert math.isclose(np.max(laws.target / laws.other), math.exp(2.0))
    assert randomizer.label_laws


@pytest.mark.thorough
def test_knowing_more_helps_and_is_said():
    plain = cj.account(RUN, cj.PureLDP(epsilon0=2.0), delta=1e-6)
    as_much = cj.account(RUN, cj.PureLDP(epsilon0=2.0, total_variation=math.tanh(1.0)), delta=1e-6)
    assert as_much.epsilon == plain.epsilon
    assert as_much.lower == plain.lower
    kary = cj.KaryResponse(epsilon0=2.0, num_values=10)
    near = cj.account(RUN, cj.PureLDP(epsilon0=2.0, total_variation=kary.total_variation), delta=1e-6)
    known = cj.account(RUN, kary, delta=1e-6)
    assert 0.4 * near.epsilon < near.lower < known.lower <= known.epsilon <= near.epsilon * (1 + 1e-9)
    assert near.epsilon < 1.006
    assert any("total variation of at most 0.3898" in text for text in near.assumptions)
    one_bit, l2 = (cj.account(RUN, each(epsilon0=2.0), delta=1e-6) for each in (cj.OneBit, cj.L2Mechanism))
    assert (one_bit.lower, one_bit.epsilon) == (l2.lower, l2.epsilon)
    assert any("public coins" in text for text in one_bit.assumptions)
    assert not any("public coins" in text for text in l2.assumptions)
    half = cj.account(RUN, cj.OneBit(epsilon0=2.0, differ=0.5), delta=1e-6)
    assert half.lower < half.epsilon < 0.8 * l2.epsilon


@pytest.mark.parametrize(
    "randomizer", [cj.PureLDP(epsilon0=2.0, total_variation=0.3), cj.OneBit(epsilon0=2.0, differ=0.5)]
)
def test_the_trainer_does_not_pretend(randomizer):
    """What it runs, the l2 mechanism, is farther apart than is stated."""
    with pytest.raises(ValueError, match=r"at least 0\.76"):
        mechanism_of(randomizer, clip_norm=1.0)
    assert isinstance(mechanism_of(cj.OneBit(epsilon0=2.0), clip_norm=1.0), training.Mechanism)


def test_the_command_knows_what_mechanisms_have(tmp_path, capsys):
    shared = "--num-clients 1000 --check-in-prob .1 --num-rounds 2 --epsilon0 1"
    out = tmp_path / "rows.csv"
    cli.main(f"sweep --out {out} {shared} --mechanism k-ary --num-values 3,100".split())
    cli.main(f"epsilon {shared} --mechanism k-ary --num-values 100 --view messages --json".split())
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])["messages"]
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert float(rows[0]["epsilon"]) > float(rows[1]["epsilon"]) == printed["epsilon"]
    for wrong, said in (
        (f"epsilon {shared} --mechanism l2 --differ .5", "--differ goes with --mechanism one-bit"),
        (f"epsilon {shared} --mechanism k-ary", "--mechanism k-ary needs --num-values"),
        (
            f"sweep --overwrite --out {out} {shared} --num-values 3",
            "--num-values goes with --mechanism k-ary",
        ),
    ):
        with pytest.raises(SystemExit):
            cli.main(wrong.split())
        assert said in capsys.readouterr().err


def test_renyi_divergences_of_one_bit():
    """Above those of binary randomized response with all others at one record, both orders; below the worst case."""
    n, rate, orders = 40, 0.3, [2.0, 8.0]
    run = cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate)
    for epsilon0 in (0.5, 2.0):
        p = math.exp(epsilon0)
        k = np.arange(n + 1)[:, None]
        y = np.arange(n + 1)[None, :]
        # k messages, y of them with the label that the client's record favours.
        mass = stats.binom.pmf(k, n, rate) * stats.binom.pmf(y, k, 1 / (p + 1))
        ratio = (n - k + y * p + (k - y) / p) / n
        found, worst = (cj.rdp(run, each(epsilon0=epsilon0), orders) for each in (cj.L2Mechanism, cj.PureLDP))
        for order, above, most in zip(orders, found, worst):
            moments = [(mass * np.where(mass > 0, ratio, 1.0) ** t).sum() for t in (order, 1.0 - order)]
            exact = max(math.log(moment) / (order - 1.0) for moment in moments)
            assert exact <= above < most
            assert above < 1.25 * exact
