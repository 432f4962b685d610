"""The audit: its statistics against exact laws, its model of who is hidden where, and that it has teeth."""

import dataclasses
import functools
import itertools
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax.accounting.account import account
from checkin_jax.auditing import TrainedRun, audit, one_run, placement
from checkin_jax.auditing.scores import Bounds, best_rule, one_run_lower, one_run_p_value
from checkin_jax.auditing.trials import Stage, small, units_within
from checkin_jax.training import draws
from checkin_jax.training.draws import DUMMY
from checkin_jax.training.examples import data, networks
from checkin_jax.training.private import mechanism, step
from checkin_jax.training.run import PrivateRun

GAUSSIAN, PURE = cj.Gaussian(noise_multiplier=2.0), cj.PureLDP(epsilon0=1.0)
SMALL = cj.ShuffledCheckIn(num_clients=3, check_in_prob=0.5, num_rounds=2)
SMALL_OPTIONS = ["--num-clients", "3", "--check-in-prob", "0.5", "--noise-multiplier", "2"]
# Every test compiles the step for a clip norm of its own, since what is compiled does not see what is patched.
CLIP_NORMS = itertools.count(1)


# What is certified is asked for again and again, and is the same.
account_once = functools.cache(account)


def audited(protocol, randomizer, *, runs=500, **options):
    run = PrivateRun(protocol=protocol, randomizer=randomizer, clip_norm=0.1 * next(CLIP_NORMS))
    return audit(run, runs=runs, seed=7, account_fn=account_once, **options)


# Statistics.


@pytest.mark.parametrize("trials", [1, 7, 1000])
def test_binomial_bounds_are_those_of_clopper_and_pearson(trials):
    error = 0.04
    bounds = Bounds(trials, error)
    assert bounds.low[0] == 0.0
    assert bounds.high[-1] == 1.0
    for k in {1, (trials + 1) // 2, trials}:
        assert stats.binom.sf(k - 1, trials, bounds.low[k]) == pytest.approx(error / 2, rel=1e-9)
    for k in {0, trials // 2, trials - 1}:
        assert stats.binom.cdf(k, trials, bounds.high[k]) == pytest.approx(error / 2, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (0.5, 0.3)])
def test_a_lower_bound_from_many_runs_is_wrong_as_rarely_as_it_says(epsilon, delta):
    """Exactly, over all outcomes of an attack on the worst (epsilon, delta) mechanism."""
    trials, error = 60, 0.1
    rare = (1 - delta) / (1 + math.exp(epsilon))
    likely = delta + math.exp(epsilon) * rare
    k = np.arange(trials + 1)
    found = Bounds(trials, error).epsilon(k[:, None], k[None, :], delta)
    mass = np.outer(stats.binom.pmf(k, trials, likely), stats.binom.pmf(k, trials, rare))
    assert 0 < mass[found > epsilon].sum() <= error or epsilon == 0.0
    assert mass[found > epsilon].sum() <= error


def test_the_best_rule_is_found_by_all_thresholds_sides_and_roles():
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(40, 3)), rng.normal(size=(40, 3))
    second[:, 1] += 2.0  # small scores speak for the first world
    bounds = Bounds(40, 0.1)
    found, rule = best_rule(first, second, 0.05, bounds)
    everything = []
    for column, above, role in itertools.product(range(3), (True, False), (True, False)):
        for threshold in np.concatenate([first[:, column], second[:, column]]):
            a, b = (
                np.sum(x[:, column] >= threshold if above else x[:, column] <= threshold)
                for x in (first, second)
            )
            everything.append(float(bounds.epsilon(*((a, b) if role else (b, a)), 0.05)))
    assert found == max(everything)
    right, wrong = rule.counts(first, second)
    assert bounds.epsilon(np.array(right), np.array(wrong), 0.05) == found
    with pytest.raises(ValueError, match="NaN"):
        best_rule(first * np.nan, second, 0.05, bounds)


def test_one_run_agrees_with_the_values_its_paper_prints():
    # arXiv 2305.08846 v1: Appendix D; section 7, Figure 11, where the third digit is cut off.
    assert one_run_lower(1000, 100, 75, 1e-4, 0.05) == pytest.approx(0.673, abs=5e-4)
    assert one_run_lower(100_000, 1510, 1439, 1e-5, 0.05) == pytest.approx(2.675, abs=1e-3)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.02, 0.06])
@pytest.mark.parametrize("together", [True, False])
def test_one_run_on_randomized_response_is_wrong_as_rarely_as_it_says(epsilon, delta, together):
    """Exactly: every coin is told by randomized response, and revealed with probability delta, all together or not."""
    m, error = 40, 0.05
    v = np.arange(m + 1)
    chance = 1 / (1 + math.exp(-epsilon))
    if together:
        mass = (1 - delta) * stats.binom.pmf(v, m, chance) + delta * (v == m)
    else:
        mass = stats.binom.pmf(v, m, delta + (1 - delta) * chance)
    wrong = np.array([one_run_lower(m, m, int(k), delta, error) > epsilon for k in v])
    assert mass[wrong].sum() <= error
    for k in v:  # the p-value itself bounds the tail
        assert mass[k:].sum() <= one_run_p_value(m, m, int(k), epsilon, delta) + 1e-12


def test_one_run_finds_most_of_epsilon_in_randomized_response():
    rng = np.random.default_rng(3)
    coins = rng.integers(2, size=500) * 2 - 1
    flips = np.where(rng.random(500) < 1 / (1 + math.exp(2.0)), -1, 1)
    bound, guesses, correct = one_run.lower(coins, (coins * flips * 1.0)[None], 1e-6, 0.05)
    assert 1.4 < bound <= 2.0
    assert correct <= guesses


# What the attacks assume.


@pytest.mark.parametrize("randomizer", [GAUSSIAN, PURE])
def test_the_messages_of_a_round_are_those_that_make_its_sum(randomizer):
    protocol = cj.ShuffledCheckIn(num_clients=60, check_in_prob=0.9)
    setting = PrivateRun(protocol=protocol, randomizer=randomizer, simulate="messages")
    records = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    (found,) = Stage(setting, records, messages=True, totals=True).rounds(5, np.arange(60))
    assert found.messages.shape == (len(found.clients), 5)
    assert len(found.clients) > 40  # more than one microbatch
    np.testing.assert_allclose(found.messages.sum(axis=0), found.total, atol=2e-4)


@pytest.mark.parametrize(
    "protocol",
    [
        cj.ShuffledCheckIn(num_clients=5, check_in_prob=0.6, drop_out_prob=0.2),
        cj.Shuffle(num_clients=4),
        cj.FixedWindow(num_clients=4, num_slots=3, check_in_prob=0.7),
        cj.FixedWindow(num_clients=4, num_slots=3, check_in_prob=0.7, empty_slots="visible"),
        cj.SlidingWindow(num_clients=9, window=3),
        cj.AveragedUpdates(num_clients=5, num_slots=2, check_in_prob=0.8),
    ],
)
def test_a_client_is_hidden_where_the_attack_thinks(protocol):
    setting, client, units = PrivateRun(protocol=protocol, randomizer=PURE), 4 % protocol.num_clients, 3000
    clients = setting.repeated(units).schedule.draw(11)
    rounds = [clients(i) for i in range(units * setting.schedule.rounds_per_unit)]
    counts = np.array([len(r) for r in rounds]).reshape(units, -1)
    there = np.array([np.any(r == client) for r in rounds]).reshape(units, -1)
    expected = (counts * setting.schedule.exposure(client)).mean(axis=0)
    # Five standard errors of a mean of 3,000 zeros and ones.
    np.testing.assert_allclose(there.mean(axis=0), expected, atol=5 * 0.5 / math.sqrt(units))
    dummies = sum(np.sum(r == DUMMY) for r in rounds) / counts.sum()
    assert dummies == pytest.approx(setting.schedule.dummies, abs=0.03)


@pytest.mark.parametrize(
    "protocol",
    [
        cj.ShuffledCheckIn(num_clients=10**6, check_in_prob=0.01, num_rounds=100, drop_out_prob=0.1),
        cj.Shuffle(num_clients=10**6, num_rounds=100),
        cj.FixedWindow(num_clients=10**6, num_slots=1000, num_epochs=10, empty_slots="visible"),
        cj.SlidingWindow(num_clients=10**6, window=1000, num_epochs=10),
        cj.AveragedUpdates(num_clients=10**6, num_slots=1000, num_epochs=10),
        SMALL,
    ],
)
def test_the_stand_in_is_small_of_the_same_kind_and_no_longer(protocol):
    setting = PrivateRun(protocol=protocol, randomizer=cj.Gaussian(noise_multiplier=20.0))
    fewer = small(setting)
    assert type(fewer.protocol) is type(protocol)
    assert fewer.protocol.num_clients <= 4
    assert fewer.protocol.num_units <= protocol.num_units
    assert small(fewer) == fewer
    assert units_within(fewer, 16, 64) == fewer.protocol.num_units


def test_a_setting_that_cannot_be_audited_is_refused():
    with pytest.raises(ValueError, match="epsilon0=0"):
        PrivateRun(protocol=SMALL, randomizer=cj.PureLDP(epsilon0=0.0))
    setting = PrivateRun(protocol=SMALL, randomizer=PURE)
    with pytest.raises(ValueError, match="views"):
        audit(setting, views=())
    with pytest.raises(ValueError, match=r"runs=19.*\[20"):
        audit(setting, runs=19)
    with pytest.raises(ValueError, match="confidence=1"):
        audit(setting, confidence=1)


# Teeth.


def halve_the_noise(patch):
    messages, sums = mechanism.gaussian_messages, mechanism.gaussian_sum_noise
    l2, l2_sum = mechanism.l2_messages, mechanism.l2_sum
    patch.setattr(mechanism, "gaussian_messages", lambda k, x, c, z: messages(k, x, c, z / 2))
    patch.setattr(mechanism, "gaussian_sum_noise", lambda k, d, c, z, n: sums(k, d, c, z / 2, n))
    patch.setattr(mechanism, "l2_messages", lambda k, x, c, e: l2(k, x, c, 2 * e))
    patch.setattr(mechanism, "l2_sum", lambda k, x, p, c, e: l2_sum(k, x, p, c, 2 * e))


def skip_clipping(patch):
    patch.setattr(step, "clip", lambda rows, clip_norm, keep=None: rows)


def share_keys_between_clients(patch):
    for name in ("gaussian_messages", "l2_messages"):
        original = getattr(mechanism, name)

        def shared(keys, *rest, original=original):
            return original(jnp.broadcast_to(keys[:1], keys.shape), *rest)

        patch.setattr(mechanism, name, shared)


def share_keys_between_rounds(patch):
    original = draws.round_key
    patch.setattr(draws, "round_key", lambda key, index: original(key, 0))


def fix_who_checks_in(patch):
    def fixed(entropy, protocol, index, fleet):
        return np.arange(round(protocol.num_clients * protocol.rate))

    patch.setattr(draws, "participants", fixed)


def forget_how_many_messages_a_sum_has(patch):
    original = mechanism.gaussian_sum_noise
    patch.setattr(
        mechanism, "gaussian_sum_noise", lambda k, d, c, z, n: original(k, d, c, z, jnp.minimum(n, 1))
    )


def violated(found):
    return {finding.view for finding in found.findings if not finding.passed}


def test_the_trainer_as_it_is_passes():
    found = audited(SMALL, GAUSSIAN)
    assert found.passed
    assert len(found.findings) == 6
    assert [each.runs for each in found.placements] == [250] * 3
    for finding in found.findings:
        assert 0.0 <= finding.lower <= finding.guarantee.epsilon
    # It sees something: at the run's own delta an attack on messages with names is no guessing.
    assert next(f.lower for f in found.findings if f.view == "local" and f.delta == 1e-6) > 0.2
    json.dumps(found.as_dict(), allow_nan=False)
    first, audited_line, *_ = str(found).splitlines()
    assert first.startswith("PASS: none of 6 lower bounds exceeds")
    assert audited_line == f"  audited    {SMALL.num_clients} clients, {SMALL.description}"
    assert "(num_clients=" not in str(found)
    assert str(found).count("the protocol has too few clients") == 3


@pytest.mark.parametrize(
    ("fault", "views"),
    [
        (halve_the_noise, ("aggregate", "local")),
        (skip_clipping, ("aggregate", "messages")),
        (share_keys_between_clients, ("messages",)),
        (share_keys_between_rounds, ("aggregate", "messages")),
    ],
)
def test_a_fault_is_reported_as_a_violation(fault, views, monkeypatch):
    fault(monkeypatch)
    found = audited(SMALL, GAUSSIAN, views=views, runs=1_000)
    assert violated(found) == {*views}
    assert str(found).startswith("VIOLATION: ")


def test_a_coin_replaced_by_a_fixed_set_is_reported(monkeypatch):
    protocol = cj.ShuffledCheckIn(num_clients=5, check_in_prob=0.2, num_rounds=2)
    assert not violated(audited(protocol, GAUSSIAN, views=("local",)))
    fix_who_checks_in(monkeypatch)
    assert violated(audited(protocol, GAUSSIAN, views=("local",))) == {"local"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "protocol", "randomizer", "view"),
    [
        (halve_the_noise, SMALL, GAUSSIAN, "messages"),
        (halve_the_noise, SMALL, PURE, "messages"),
        (halve_the_noise, SMALL, PURE, "local"),
        # The sum of one message is the message: sums of more hide far better than what is certified for them.
        (halve_the_noise, cj.Shuffle(num_clients=1), PURE, "aggregate"),
        (share_keys_between_clients, SMALL, PURE, "messages"),
        (share_keys_between_rounds, SMALL, PURE, "messages"),
        (fix_who_checks_in, SMALL, PURE, "messages"),
        (forget_how_many_messages_a_sum_has, cj.Shuffle(num_clients=3, num_rounds=2), GAUSSIAN, "aggregate"),
        (halve_the_noise, cj.FixedWindow(num_clients=3, num_slots=2), PURE, "local"),
        (halve_the_noise, cj.SlidingWindow(num_clients=4, window=2), PURE, "local"),
        (halve_the_noise, cj.AveragedUpdates(num_clients=3, num_slots=2), PURE, "messages"),
    ],
)
def test_more_faults_are_reported_and_without_them_all_is_well(
    fault, protocol, randomizer, view, monkeypatch
):
    assert not violated(audited(protocol, randomizer, views=(view,), runs=4000))
    fault(monkeypatch)
    assert violated(audited(protocol, randomizer, views=(view,), runs=4000)) == {view}


@pytest.mark.slow
@pytest.mark.parametrize("randomizer", [GAUSSIAN, PURE])
@pytest.mark.parametrize(
    "protocol",
    [
        cj.ShuffledCheckIn(num_clients=2000, check_in_prob=0.05, num_rounds=50),
        cj.Shuffle(num_clients=100, num_rounds=3),
        cj.FixedWindow(num_clients=300, num_slots=20, num_epochs=3),
        cj.SlidingWindow(num_clients=100, window=10, num_epochs=2),
        cj.AveragedUpdates(num_clients=300, num_slots=10, num_epochs=3),
    ],
)
def test_every_protocol_passes_with_both_tests(protocol, randomizer):
    found = audited(protocol, randomizer, runs=1000)
    assert found.passed
    assert len(found.findings) == 9


def test_the_l2_mechanism_is_held_against_what_is_known_of_it():
    """Not against the worst case: the bound of the messages is that of one bit and public coins."""
    protocol = cj.ShuffledCheckIn(num_clients=8, check_in_prob=0.5, num_rounds=4)
    found = audited(protocol, cj.L2Mechanism(epsilon0=2.0), views=("messages",), runs=200)
    assert found.passed
    for finding in found.findings:
        worst = account_once(finding.protocol, cj.PureLDP(epsilon0=2.0), delta=finding.delta)
        assert finding.lower <= finding.guarantee.epsilon < worst.epsilon
        assert "own-laws" in finding.guarantee.method


CROWD = cj.ShuffledCheckIn(num_clients=30, check_in_prob=0.5, num_rounds=16)


def scores_of_labels(rng, law, records, others, runs):
    """Log likelihood ratios of CROWD's rounds, one client's labels drawn from `law`, all others' from `others`.

    records: laws of the labels of the two records that the attacker compares.
    """
    n, shape = CROWD.num_clients, (runs, CROWD.num_rounds)
    counts = rng.multinomial(rng.binomial(n - 1, CROWD.check_in_prob, shape), others)
    there = rng.random(shape) < CROWD.check_in_prob
    counts += there[..., None] * rng.multinomial(1, law, shape)
    absent = n - counts.sum(axis=-1)
    # The client is any of the messages, or absent.
    first, second = (absent + counts @ (record / others) for record in records)
    return np.log(first / second).sum(axis=1)[:, None]


@pytest.mark.parametrize(
    ("records", "others", "one_bit"),
    [
        (np.array([[1.0, 0.0], [0.0, 1.0]]), [0.0, 1.0], True),
        (np.array([[1.0, 0.0], [0.0, 1.0]]), [0.5, 0.5], True),
        (np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), [0.0, 0.0, 1.0], False),
    ],
    ids=["one bit", "one bit, others at updates of zero", "three values"],
)
def test_a_message_of_more_than_one_bit_that_claims_to_be_one_is_found(records, others, one_bit):
    """3-ary randomized response has the epsilon0 that it says, but it is no bit: runs refute the bound for one."""
    rng, epsilon0, delta, runs = np.random.default_rng(11), 2.0, 0.2, 20_000
    p, claimed = math.exp(epsilon0), cj.OneBit(epsilon0=epsilon0)

    def randomized(record):
        return (1.0 + (p - 1.0) * np.asarray(record)) / (p + len(record) - 1.0)

    laws = [randomized(record) for record in records]
    first, second = (scores_of_labels(rng, law, laws, randomized(others), 2 * runs) for law in laws)
    bounds = Bounds(runs, 1e-3)
    _, rule = best_rule(first[:runs], second[:runs], delta, bounds)
    right, wrong = rule.counts(first[runs:], second[runs:])
    lower = float(bounds.epsilon(np.array(right), np.array(wrong), delta))
    assert (lower <= account_once(CROWD, claimed, delta=delta).epsilon) == one_bit
    assert 0.2 < lower <= account_once(CROWD, cj.PureLDP(epsilon0=epsilon0), delta=delta).epsilon


def test_one_run_finds_missing_noise_in_a_protocol_of_many_clients(monkeypatch):
    setting = PrivateRun(
        protocol=cj.ShuffledCheckIn(num_clients=300, check_in_prob=0.5, num_rounds=4),
        randomizer=GAUSSIAN,
        clip_norm=0.1 * next(CLIP_NORMS),
    )
    entropies = iter(range(100))
    honest = one_run.lower(*one_run.coins_and_scores(setting, "aggregate", entropies), 1e-6, 0.05)
    monkeypatch.setattr(mechanism, "gaussian_sum_noise", lambda k, d, c, z, n: jnp.zeros((d,)))
    silent = PrivateRun(protocol=setting.protocol, randomizer=GAUSSIAN, clip_norm=0.1 * next(CLIP_NORMS))
    bare = one_run.lower(*one_run.coins_and_scores(silent, "aggregate", entropies), 1e-6, 0.05)
    assert honest[0] < 0.5
    assert bare[0] > 3.0


@pytest.mark.slow
def test_training_itself_is_attacked_and_missing_noise_is_found(monkeypatch):
    run = PrivateRun(
        protocol=cj.ShuffledCheckIn(num_clients=200, check_in_prob=0.5, num_rounds=400), randomizer=GAUSSIAN
    )
    digits = data.digits()

    def relabelled(records):
        return records[0], (records[1] + 1) % 10

    for clip_norm, expected in ((0.05, set()), (0.06, {"one run of training"})):
        trained = TrainedRun(
            run=dataclasses.replace(run, clip_norm=clip_norm),
            model=networks.ImageTraining(run=run).model(digits),
            dataset=digits.dataset,
            alternative=relabelled,
        )
        found = audit(trained.run, views=("aggregate",), runs=100, training=trained, seed=3)
        assert found.findings[-1].test == "one run of training"
        assert found.findings[-1].protocol.num_rounds == 100
        assert expected <= {f.test for f in found.findings if not f.passed}
        assert found.passed == (not expected)
        monkeypatch.setattr(mechanism, "gaussian_sum_noise", lambda k, d, c, z, n: jnp.zeros((d,)))


# Where clients stand.


def sort_the_messages(patch):
    original = draws.participants_of
    patch.setattr(draws, "participants_of", lambda *args: np.sort(original(*args)))


def put_one_client_first(patch):
    """An order that tells something of one client only."""
    original = draws.participants_of

    def first(*args):
        found = original(*args)
        return np.concatenate([found[found == 1], found[found != 1]])

    patch.setattr(draws, "participants_of", first)


def draw_the_same_people_every_round(patch):
    original = draws.participants_of
    patch.setattr(draws, "participants_of", lambda *args: original(*args[:-1], 0))


def draw_the_same_window_every_time(patch):
    original = draws.fixed_window
    patch.setattr(
        draws, "fixed_window", lambda entropy, protocol, index, fleet: original(entropy, protocol, 0)
    )


def give_slots_by_number(patch):
    original = draws.fixed_window

    def by_number(entropy, protocol, index, fleet):
        used = original(entropy, protocol, index)
        slots = np.full(protocol.num_slots, DUMMY)
        for client in used[used != DUMMY]:
            slots[client % protocol.num_slots] = client
        return slots

    patch.setattr(draws, "fixed_window", by_number)


def leave_out_the_dummies(patch):
    original = draws.fixed_window
    patch.setattr(
        draws, "fixed_window", lambda *args, **kept: (used := original(*args, **kept))[used != DUMMY]
    )


def refuted(found):
    return {each.test for each in found.placements if not each.passed}


WINDOWS = cj.FixedWindow(num_clients=4, num_slots=3, num_epochs=2, check_in_prob=0.8)


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("fault", "protocol", "test"),
    [
        (sort_the_messages, SMALL, "places of a round"),
        (sort_the_messages, cj.Shuffle(num_clients=4), "places of a round"),
        (put_one_client_first, cj.Shuffle(num_clients=4), "places of a round"),
        (draw_the_same_people_every_round, SMALL, "units of a run"),
        (draw_the_same_people_every_round, cj.Shuffle(num_clients=4, num_rounds=3), "units of a run"),
        (draw_the_same_window_every_time, WINDOWS, "units of a run"),
        (give_slots_by_number, WINDOWS, "rounds of a unit"),
        (leave_out_the_dummies, WINDOWS, "places of a round"),
        (give_slots_by_number, dataclasses.replace(WINDOWS, minibatch=3), "rounds of a unit"),
        (give_slots_by_number, dataclasses.replace(WINDOWS, empty_slots="visible"), "rounds of a unit"),
    ],
)
def test_clients_that_are_not_where_the_protocol_puts_them_are_reported(fault, protocol, test, monkeypatch):
    fault(monkeypatch)
    found = audited(protocol, GAUSSIAN, views=("local",))
    assert test in refuted(found)
    assert not found.passed
    assert str(found).startswith("VIOLATION: ")
    assert f"VIOLATION: {test}, client " in str(found)
    json.dumps(found.as_dict(), allow_nan=False)


RATES = cj.Rates([0.9, 0.5, 0.1, 0.3])


@pytest.mark.parametrize(
    "protocol",
    [
        cj.ShuffledCheckIn(num_clients=4, check_in_prob=0.6, num_rounds=3, drop_out_prob=0.2),
        cj.ShuffledCheckIn(num_clients=4, check_in_prob=RATES, num_rounds=3),
        cj.Shuffle(num_clients=3, num_rounds=3),
        WINDOWS,
        cj.FixedWindow(num_clients=4, num_slots=3, num_epochs=2, check_in_prob=RATES, empty_slots="visible"),
        cj.SlidingWindow(num_clients=7, window=3, num_epochs=2, minibatch=2),
        cj.AveragedUpdates(num_clients=4, num_slots=2, num_epochs=2, check_in_prob=0.8),
        cj.from_availability([4, 2, 3, 4], [0.5, 0.9, 0.4, 0.6]),
    ],
)
def test_a_healthy_schedule_is_refuted_as_rarely_as_promised(protocol):
    """Of 60 audits with an error of a fifth a test, at most 12 are expected to be wrong, and that is a bound."""
    run, entropies = PrivateRun(protocol=protocol, randomizer=GAUSSIAN), iter(range(10**6))
    wrong = np.zeros(len(placement.TESTS))
    for _ in range(60):
        wrong += [not each.passed for each in placement.tests(run, 40, entropies, 0.2)]
    assert (stats.binom.sf(wrong - 1, 60, 0.2) > 1e-4).all(), wrong


def test_the_ratio_of_placements_has_mean_one_where_the_promise_holds():
    """Exactly, over all outcomes of three fresh observations, whatever the pilots were."""
    promised = (0.5, 0.3, 0.2)
    pilot = [placement._Seen("law", outcome, promised) for outcome in (2, 2, 2, 0)]
    mean = 0.0
    for outcomes in itertools.product(range(3), repeat=3):
        fresh = [placement._Seen("law", outcome, promised) for outcome in outcomes]
        chance = math.prod(promised[outcome] for outcome in outcomes)
        mean += chance * math.exp(placement._log_ratio(pilot, fresh))
    assert mean == pytest.approx(1.0, rel=1e-12)


# The command.


@pytest.mark.slow
def test_a_run_on_disk_is_audited_by_its_config(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    folder = str(tmp_path / "run")
    options = "--num-clients 300 --check-in-prob 0.2 --num-rounds 2 --noise-multiplier 3 --clip-norm 0.2"
    cli.main(["train", "digits", "--run-dir", folder, *options.split(), "--delta", "1e-4"])
    capsys.readouterr()
    cli.main(["audit", folder, "--view", "aggregate", "--runs", "100", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["clip_norm"] == 0.2
    assert found["protocol"]["num_clients"] == 300
    assert found["randomizer"]["noise_multiplier"] == 3.0
    assert [f["test"] for f in found["findings"]] == [
        "many runs",
        "many runs",
        "one run",
        "one run of training",
    ]
    assert found["findings"][-1]["delta"] == 1e-4


def test_the_command_prints_the_verdict_and_exits_by_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    options = ["audit", *SMALL_OPTIONS, "--num-rounds", "2", "--view", "local", "--seed", "1"]
    cli.main([*options, "--runs", "100", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["passed"]
    assert [f["view"] for f in found["findings"]] == ["local", "local"]
    halve_the_noise(monkeypatch)
    with pytest.raises(SystemExit) as stop:
        cli.main([*options, "--clip-norm", "0.07", "--runs", "500"])
    assert stop.value.code == 1
    assert "VIOLATION" in capsys.readouterr().out
