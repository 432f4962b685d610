"""Logs of availability: groups on the safe side, refusals that name the row, one bracket for thousands of rounds."""

import json
import time

import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax._serialize import from_plain, to_plain
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.interface import neg_log_tail
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.interop.accountant import CheckInAccountant
from checkin_jax.protocols import rounds


def diurnal(rounds):
    """Between 5,000 and 60,000, once a day of 24 rounds."""
    day = np.cos(2 * np.pi * np.arange(rounds) / 24.37)
    return np.rint(32_500 - 27_500 * day)


def test_groups_keep_to_their_side_and_count_every_round():
    rng = np.random.default_rng(0)
    available, coin = rng.integers(1, 10**6, 3000), rng.uniform(0.05, 0.06, 3000)
    groups = rounds.grouped(rounds.log(available, coin), 1.5)
    assert sum(group.num_rounds for group in groups) == 3000
    assert all(group.most <= 1.03**1.5 * group.least * (1 + 1e-9) for group in groups)
    assert all(group.fastest <= 1.005**2.25 * group.slowest * (1 + 1e-9) for group in groups)
    assert min(group.least for group in groups) == available.min()
    for n, p in zip(available[:50].tolist(), coin[:50].tolist()):
        assert any(g.least <= n <= g.most and g.slowest <= p <= g.fastest for g in groups)


def test_a_hundred_thousand_rounds_are_grouped_in_a_moment():
    start = time.process_time()
    groups = rounds.grouped(rounds.log(diurnal(100_000), 0.1))
    assert time.process_time() - start < 2.0
    assert len(groups) < 120


@pytest.mark.parametrize("largest", [3e6, 1e12])
def test_groups_are_few_however_much_rounds_differ(largest):
    rng = np.random.default_rng(1)
    sizes = np.floor(np.exp(rng.uniform(0.0, np.log(largest), 2000))).astype(int)
    run = cj.from_availability(sizes, coin=np.exp(rng.uniform(-20.0, 0.0, 2000)))
    kinds = run.unit_groups(True)
    assert rounds.MANY_GROUPS / 2 < len(kinds) <= rounds.MANY_GROUPS
    assert sum(kind.num_units for kind in kinds) == 2000
    assert min(kind.above.num_clients for kind in kinds) == sizes.min()
    assert max(kind.above.check_in_prob for kind in kinds) == run.log.coin.max()


def test_a_log_is_not_above_the_same_log_rounded_down():
    """Fewer clients hide less; with quick bounds alone for many sizes, this fails."""
    sizes = (1_600_000 / 1.06 ** np.arange(19)).astype(int)
    levels = sizes[[4, 9, 14, 18]]
    rounded = np.array([max(level for level in levels if level <= size) for size in sizes])
    exact, coarse = (
        cj.account(cj.from_availability(np.tile(log, 38), coin=0.003), cj.PureLDP(epsilon0=1.0), delta=1e-8)
        for log in (sizes, rounded)
    )
    assert exact.epsilon < coarse.epsilon
    assert exact.lower < coarse.lower


@pytest.mark.thorough
def test_a_diurnal_log_is_far_below_its_trough():
    number = 6792
    groups = rounds.grouped(rounds.log(diurnal(number), 0.1))
    mass = neg_log_tail(number, 1e-6)

    def units(size, rate):
        return [
            (Clones(Shuffled(getattr(g, size), getattr(g, rate)), 2.0, mass), g.num_rounds) for g in groups
        ]

    upper = compose.upper_end(units("least", "fastest"), 1e-6).upper
    lower = compose.bracket(units("most", "slowest"), 1e-6).lower
    trough = compose.upper_end([(Clones(Shuffled(5000, 0.1), 2.0, mass), number)], 1e-6).upper
    assert lower < upper < 1.1 * lower
    assert trough == pytest.approx(5.73, rel=5e-3)
    assert upper < 0.55 * trough


def test_a_file_is_read(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("\ufeffcoin, available\n0.1,5000\n0.2,7\n\n", encoding="utf-8")
    assert rounds.read(path).available.tolist() == [5000, 7]
    assert rounds.read(path).coin.tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 is empty: expected the column available"),
        ("available;coin\n5;0.1\n", "columns are separated by commas"),
        ("available,coin\n5,0.1\n\n6,0.1\n", "line 3: '': expected numbers"),
        ("available\n5\n", "expected the column coin"),
        ("available,coin\n", "expected at least one line"),
        ("available,coin\n5,0.1\n5\n", "line 3: '5': expected numbers"),
        ("available,coin\n5,a\n", "line 2: '5,a': expected numbers"),
        ("available,coin\n5,0.1\n5.5,0.1\n", "line 3: available=5.5"),
        ("available,coin\n0,0.1\n", "line 2: available=0.0"),
        ("available,coin\nnan,0.1\n", "line 2: available=nan"),
        ("available,coin\n5,nan\n", "line 2: coin=nan"),
        ("available,coin\n5,1.5\n", "line 2: coin=1.5"),
    ],
)
def test_a_file_that_is_no_log_is_refused_by_its_line(tmp_path, text, message):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        rounds.read(path)


@pytest.mark.parametrize(
    ("available", "coin", "message"),
    [
        ([], 0.1, "expected at least one round"),
        ([5, -1], 0.1, r"available\[1\]=-1.0"),
        ([5, float("nan")], 0.1, r"available\[1\]=nan"),
        ([5], [0.1, 0.2], "coin=2 numbers: expected one for each of the 1 rounds"),
        ([5, 6], [0.1, 0.0], r"coin\[1\]=0.0"),
        ([[5]], 0.1, "available of shape"),
        ([5], 10**400, "coin=.*a float64 can hold"),
    ],
)
def test_lists_that_are_no_log_are_refused_by_their_row(available, coin, message):
    with pytest.raises(ValueError, match=message):
        rounds.log(available, coin)


def log_of(*available, coin=0.1):
    return cj.from_availability(available, coin)


@pytest.mark.parametrize("randomizer", [cj.PureLDP(epsilon0=1.0), cj.Gaussian(noise_multiplier=2.0)])
@pytest.mark.parametrize("view", ["local", "messages", "aggregate"])
@pytest.mark.thorough(but=1)
def test_a_level_log_is_shuffled_check_in(view, randomizer):
    run = cj.ShuffledCheckIn(num_clients=700, check_in_prob=0.2, num_rounds=9)
    plain = cj.account(run, randomizer, delta=1e-6, view=view)
    logged = cj.account(log_of(*[700] * 9, coin=0.2), randomizer, delta=1e-6, view=view)
    assert logged.epsilon == pytest.approx(plain.epsilon, rel=1e-9)
    assert logged.lower == pytest.approx(plain.lower, rel=1e-9)


@pytest.mark.parametrize("randomizer", [cj.PureLDP(epsilon0=1.0), cj.Gaussian(noise_multiplier=2.0)])
@pytest.mark.thorough
def test_a_log_is_its_rounds_composed_one_by_one(randomizer):
    """Groups move either end outwards, by little."""
    sizes, coins = [800, 810, 300, 305, 1_500], [0.1, 0.1003, 0.2, 0.2, 0.05]
    rounds = [cj.ShuffledCheckIn(num_clients=n, check_in_prob=p) for n, p in zip(sizes, coins)]
    for view in ("messages", "aggregate"):
        exact = cj.account(
            rounds[0],
            randomizer,
            delta=1e-6,
            view=view,
            before=[(one, randomizer) for one in rounds[1:]],
        )
        logged = cj.account(cj.from_availability(sizes, coins), randomizer, delta=1e-6, view=view)
        assert logged.lower <= exact.epsilon
        assert exact.lower <= logged.epsilon
        assert exact.epsilon * (1 - 1e-6) <= logged.epsilon <= 1.5 * exact.epsilon
        assert logged.lower <= exact.lower * (1 + 1e-6)


def test_the_mean_of_a_log_is_no_bound_and_its_trough_is_far_above():
    logged = cj.account(log_of(*[200] * 30, *[20_000] * 30), cj.PureLDP(epsilon0=1.0), delta=1e-6)
    level, trough = (
        cj.account(log_of(*[n] * 60), cj.PureLDP(epsilon0=1.0), delta=1e-6) for n in (10_100, 200)
    )
    assert level.epsilon < logged.lower
    assert logged.epsilon < trough.lower


def test_where_everybody_comes_the_largest_message_tells():
    """The witness brings its own scale; it is the most clients', so the lower end is theirs."""
    noise = cj.Gaussian(noise_multiplier=0.5)
    logged, few, many = (
        cj.account(run, noise, delta=1e-6, bounds="fast")
        for run in (
            log_of(50, 51, 51, coin=1.0),
            *(cj.Shuffle(num_clients=n, num_rounds=3) for n in (50, 51)),
        )
    )
    assert "largest" in logged.lower_method
    assert many.lower * (1 - 1e-6) <= logged.lower <= few.lower


def test_the_first_rounds_of_a_log_are_a_log():
    run = cj.from_availability([900, 400, 30], [0.1, 0.2, 0.3])
    assert run.repeated(2).unit_groups(True)[0].above.num_clients == 400
    assert run.repeated(2).num_clients == 900
    assert "among 400 to 900 available" in run.repeated(2).description
    assert "dropping out" not in run.description
    few = cj.from_availability([500, 500], coin=0.1, drop_out_prob=0.05)
    assert few.description.endswith("among 500 available, a share 0.05 of check-ins dropping out")
    assert run.rate == pytest.approx(0.2)
    longer = run.repeated(5)
    assert longer.log.available.tolist() == [900, 400, 30, 900, 400]
    assert longer.log.coin.tolist() == [0.1, 0.2, 0.3, 0.1, 0.2]
    twice = run.repeated(2).varied("cycles", 2)
    assert twice.log.available.tolist() == [900, 400, 900, 400]
    assert run.varied("check_in_prob", 0.15).log.coin.tolist() == pytest.approx([0.05, 0.1, 0.15])
    with pytest.raises(ValueError, match="num_rounds=4: expected at most 3"):
        cj.AvailableCheckIn(log=run.log, num_rounds=4)


def test_a_log_is_one_event_whose_rounds_keep_their_numbers():
    run, message = log_of(900, 400, 400), cj.PureLDP(epsilon0=1.0)
    ledger = CheckInAccountant().compose(cj.to_event(run, message), 2)
    apart = CheckInAccountant()
    for clients, number in ((900, 2), (400, 4)):
        each = cj.ShuffledCheckIn(num_clients=clients, check_in_prob=0.1, num_rounds=number)
        apart.compose(cj.to_event(each, message))
    for ends in (CheckInAccountant.get_epsilon, CheckInAccountant.get_lower_epsilon):
        assert ends(ledger, 1e-6) == pytest.approx(ends(apart, 1e-6), rel=1e-9)
    found = ledger.guarantee(1e-6)
    assert any("plugged in all night" in each for each in found.assumptions)
    assert "no check-in probability is above the logged one" in run.assumed("local")
    assert found.composed[0].startswith(
        "over 3 rounds of check-ins by coins of 0.1 among 400 to 900 available"
    )
    assert ", 2 times; " in found.composed[0]
    again = CheckInAccountant()
    again.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert again.get_epsilon(1e-6) == ledger.get_epsilon(1e-6)
    pld = ledger.to_pld(value_discretization_interval=1e-3)
    assert pld.get_epsilon_for_delta(1e-6) >= ledger.get_lower_epsilon(1e-6)


@pytest.mark.turns(2)
@pytest.mark.parametrize("parts", [1, 4])
def test_a_log_composed_in_parts_is_the_whole_log(parts):
    """With every round counted as one among the most clients, or as fewer rounds, this fails."""
    random = np.random.default_rng(3)
    clients = np.rint(1000 * np.exp(random.normal(0.0, 0.5, 80))).astype(int)
    message = cj.PureLDP(epsilon0=2.0)
    whole = cj.account(cj.from_availability(clients, coin=0.02), message, delta=1e-6, bounds="fast")
    ledger = CheckInAccountant(bounds="fast")
    for part in np.split(clients, parts):
        ledger.compose(cj.to_event(cj.from_availability(part, coin=0.02), message))
    found = ledger.guarantee(1e-6)
    assert found.epsilon == pytest.approx(whole.epsilon, rel=1e-9)
    assert found.lower == pytest.approx(whole.lower, rel=1e-9)


def test_rounds_that_differ_have_no_rdp_of_one_kind():
    run = log_of(900, 400)
    with pytest.raises(ValueError, match="identical rounds"):
        cj.rdp(run, cj.PureLDP(epsilon0=1.0), [2.0])


def test_a_log_is_written_and_read_back():
    run = cj.from_availability([900, 400], [0.1, 0.2], drop_out_prob=0.3)
    again = from_plain(to_plain(run), cj.CheckInProtocol)
    assert again == run
    assert hash(again) == hash(run)
    assert run != run.repeated(1)


def test_the_statement_says_what_a_fresh_coin_is(tmp_path, capsys):
    path = tmp_path / "log.csv"
    path.write_text("round,available,coin\n1,500,0.1\n3,700,0.1\n")
    cli.main(["epsilon", "--availability", str(path), "--epsilon0", "1", "--view", "messages", "--verbose"])
    shown = capsys.readouterr().out
    assert "plugged in all night" in shown
    assert "among 500 to 700 available" in shown
    for options, message in (
        (["--availability", str(tmp_path / "none.csv")], "none.csv"),
        (["--availability", str(path), "--num-clients", "5"], "--availability goes with"),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(["epsilon", *options, "--epsilon0", "1"])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


def test_arguments_of_a_log_that_do_not_go_together(tmp_path):
    with pytest.raises(TypeError, match="coin=None"):
        cj.from_availability([5])
    with pytest.raises(ValueError, match=r"coin=0.1: expected None with a file"):
        cj.from_availability(tmp_path / "log.csv", 0.1)
    with pytest.raises(ValueError, match="num_clients=6: expected 5"):
        cj.AvailableCheckIn(log=rounds.log([5], 0.1), num_clients=6)


def test_whoever_sees_names_learns_of_a_log_what_its_coins_say():
    gaussian = cj.Gaussian(noise_multiplier=2.0)
    found = cj.account(cj.from_availability([5, 900, 40], 0.3), gaussian, delta=1e-6, view="local")
    same = cj.account(
        cj.ShuffledCheckIn(num_clients=900, check_in_prob=0.3, num_rounds=3),
        gaussian,
        delta=1e-6,
        view="local",
    )
    assert found.lower <= same.epsilon <= found.epsilon * (1 + 1e-4)
    assert found.epsilon <= same.epsilon * (1 + 1e-4)
    assert found.lower >= same.lower * (1 - 1e-4)
