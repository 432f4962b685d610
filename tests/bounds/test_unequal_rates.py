"""Clients with rates of their own through `account`: brackets, refusals, words, and what must stay as it was."""

import json
import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import exact_rounds, gaussian, known_messages, krr

import checkin_jax as cj
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.bounds.messages.one_step_bounds import KaryBound
from checkin_jax.accounting.bounds.select import unit_bound
from checkin_jax.accounting.bounds.table import BOUNDS
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unequal.pool_cover import ClientPool, Others
from checkin_jax.accounting.bounds.unequal.populations import Population
from checkin_jax.accounting.bounds.unequal.sampled_profile import PooledGaussian, UnequalGaussian
from checkin_jax.kernels import host
from checkin_jax.kernels.messages.likelihood_polytopes import Message

DELTA = 1e-6
FEW = cj.Rates([0.05, 0.3, 0.3, 0.8])
MIXED = cj.Rates([0.05, 0.3], counts=[5000, 5000])


def run(rates, num_rounds=20, **more):
    return cj.ShuffledCheckIn(
        num_clients=rates.num_clients, check_in_prob=rates, num_rounds=num_rounds, **more
    )


def profile(protocol, randomizer, losses, **more):
    with jax.enable_x64(True):
        chosen = unit_bound(protocol, randomizer, "messages", 1.0, 1e-12, **more)
        return np.asarray(chosen.bound.upper(np.asarray(losses)))


@pytest.mark.parametrize("limits", [None, cj.RateLimits(largest=0.3, expected_check_ins=6200.0)])
def test_expected_messages_are_not_below_the_rational_sum(limits):
    fleet = cj.Rates([0.1, 0.3, 0.7], counts=[999_999, 123_457, 3])
    found = Population(0.3, None if limits else fleet, fleet, limits, 45.0).expected(fleet.num_clients)
    rates, counts = ([0.3], [fleet.num_clients]) if limits else (fleet.values.tolist(), fleet.counts.tolist())
    assert Fraction(found) >= sum(Fraction(rate) * int(count) for rate, count in zip(rates, counts))


@pytest.mark.parametrize(
    "values", [(0.05, 0.3, 0.3, 0.8), (0.01, 0.5, 0.9), (0.1, 1.0, 1.0), (0.2, 1.0), (0.9, 0.9, 0.2, 0.1)]
)
@pytest.mark.thorough(but=2)
def test_every_client_is_covered(values):
    """The default covers everybody, at_rate all that are not faster: brute force over records and targets."""
    p, rates = 3.0, cj.Rates(values)
    cs = np.array([1.0, 1.2, 1.7, 2.6])
    for rate in sorted(set(values)):
        bound = profile(run(rates), cj.PureLDP(epsilon0=math.log(p)), np.log(cs), client_rate=rate)
        for i, target in enumerate(values):
            if target <= rate:
                others = [*values[:i], *values[i + 1 :]]
                truth = exact_rounds.worst(krr.krr_channel(2, p), [*others, target], cs)
                assert (bound >= truth * (1 - ORACLE_ROUNDING) - 1e-15).all(), (rate, target)


@pytest.mark.parametrize("label", ["T1", "S", "T1m"])
def test_each_theorem_alone_is_above_brute_force(label):
    p, values = 3.0, (0.2, 0.4, 1.0, 1.0)
    cs = np.array([1.0, 1.2, 1.7, 2.6])
    for rate in (0.2, 0.4, 1.0):
        more = {"client_rate": rate, "bounds": (label,)}
        bound = profile(run(cj.Rates(values)), cj.PureLDP(epsilon0=math.log(p)), np.log(cs), **more)
        others = list(values)
        others.remove(rate)
        truth = exact_rounds.worst(krr.krr_channel(2, p), [*others, rate], cs)
        assert (bound >= truth * (1 - ORACLE_ROUNDING) - 1e-15).all()


def test_drop_out_thins_all_rates():
    thinned = cj.Rates(FEW.values * 0.75, FEW.counts)
    one = profile(run(FEW, drop_out_prob=0.25), cj.PureLDP(epsilon0=1.0), [0.0, 0.1, 0.5])
    other = profile(run(thinned), cj.PureLDP(epsilon0=1.0), [0.0, 0.1, 0.5])
    np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("view", ["local", "messages", "aggregate"])
@pytest.mark.parametrize("randomizer", [cj.PureLDP(epsilon0=1.0), cj.Gaussian(noise_multiplier=4.0)])
@pytest.mark.thorough(but=2)
def test_one_rate_given_as_rates_is_that_rate(view, randomizer):
    """And a number gives what it gave: the same theorems, to the last bit."""
    plain = cj.ShuffledCheckIn(num_clients=500, check_in_prob=0.2, num_rounds=5)
    told = run(cj.Rates([0.2], counts=[500]), 5)
    first, second = (
        cj.account(each, randomizer, delta=DELTA, view=view, bounds="fast") for each in (plain, told)
    )
    assert (first.lower, first.epsilon, first.method) == (second.lower, second.epsilon, second.method)
    assert second.client_rate is None


@pytest.mark.thorough
def test_views_are_ordered_and_slower_clients_lose_less():
    for randomizer in (cj.PureLDP(epsilon0=1.0), cj.Gaussian(noise_multiplier=4.0)):
        found = {v: cj.account(run(MIXED), randomizer, delta=DELTA, view=v) for v in ("local", "messages")}
        assert 0 < found["messages"].lower <= found["messages"].epsilon <= found["local"].epsilon
    everybody = cj.account(run(MIXED), cj.PureLDP(epsilon0=1.0), delta=DELTA)
    assert everybody.client_rate == 0.3
    slow = everybody.at_rate(0.1)
    assert slow.client_rate == 0.05
    assert slow.epsilon < 0.2 * everybody.epsilon
    table = everybody.by_rate()
    assert [row.client_rate for row in table] == [0.05, 0.3]
    assert table[0].epsilon == slow.epsilon
    assert table[1].epsilon == everybody.epsilon


@pytest.mark.parametrize("summed", [True, False])
def test_a_pool_of_gaussian_messages_is_above_the_exact_mixture_of_a_fleet_within_limits(summed):
    """Clients of unequal rates that all hold one record; the number of messages tells who may have sent."""
    theta, mass, losses = 0.4, 45.0, np.array([0.0, 0.05, 0.3, 1.0])
    for g, mu, others in [(0.3, 0.7, [0.4, 0.3]), (0.2, 1.5, [0.2, 0.35, 0.4]), (0.4, 1.0, [0.4] * 4)]:
        within = UnequalGaussian(g, Others(np.array([theta]), np.array([1.0])), mu, summed, mass)
        with jax.enable_x64(True):
            bound = PooledGaussian(within, theta, pool_cover.limited(sum(others) / theta, mass)).upper(losses)
        pmf = np.ones(1)
        for rate in others:
            pmf = np.append(pmf * (1 - rate), 0.0) + np.append(0.0, pmf * rate)
        for found, loss in zip(bound, losses):
            truth = 0.0
            for k in range(1, len(pmf) + 1):
                sent = g * pmf[k - 1]
                share = sent / (sent + (1 - g) * (pmf[k] if k < len(pmf) else 0.0))
                apart = mu / math.sqrt(k) if summed else mu
                truth += sent * float(gaussian.delta_g(apart, math.log1p(math.expm1(loss) / share)))
            assert found >= truth * (1 - 1e-9)
            assert found <= g * float(gaussian.delta_g(mu, loss)) * (1 + 1e-6)


def test_b0h_as_evaluated_is_above_its_statement():
    """Paths of sums of two laws, written out; close, but for its constants."""
    for p, rate, theta, others in [(1.6, 0.3, 0.3, [0.3, 0.05]), (7.4, 0.9, 0.6, [0.3, 0.6, 0.6, 0.9])]:
        losses = np.log(1 + (p - 1) * np.array([0.0, 0.02, 0.1, 0.3, 0.6]))
        stated = [known_messages.b0h(others, theta, rate, p, math.exp(loss)) for loss in losses]
        with jax.enable_x64(True):
            pool = pool_cover.sum_of(pool_cover.weights(np.array(others), theta), np.ones(len(others)), 45.0)
            message = Message(host(math.log(p)), host(1.0))
            found = ClientPool(rate, theta, pool).of_bits(message, losses, np.ones(losses.size), 45.0)
        assert (found >= np.array(stated) * (1 - 1e-9) - 1e-10).all()
        assert (found <= np.array(stated) * 1.1 + 1e-9).all()


@pytest.mark.thorough
def test_limits_are_above_every_fleet_within_them():
    limits = cj.RateLimits(largest=0.3, expected_check_ins=1600.0)
    protocol = cj.ShuffledCheckIn(num_clients=10_000, check_in_prob=limits, num_rounds=20)
    messages = cj.PureLDP(epsilon0=1.0)
    unknown = cj.account(protocol, messages, delta=DELTA)
    assert unknown.epsilon > cj.account(run(MIXED), messages, delta=DELTA).epsilon
    assert unknown.at_rate(0.1).epsilon < unknown.epsilon
    assert [row.client_rate for row in unknown.by_rate([0.1, 0.3])] == [0.1, 0.3]
    for view in ("messages", "aggregate"):
        noise = cj.Gaussian(noise_multiplier=4.0)
        least = cj.account(protocol, noise, delta=DELTA, view=view)
        known = cj.account(run(MIXED), noise, delta=DELTA, view=view)
        assert known.epsilon * (1 - 1e-6) <= least.epsilon


@pytest.mark.parametrize("view", ["messages", "aggregate", "local"])
@pytest.mark.parametrize(
    "randomizer",
    [
        cj.PureLDP(epsilon0=1.0),
        cj.Gaussian(noise_multiplier=4.0),
        cj.ApproximateLDP(epsilon0=1.0, delta0=1e-10),
    ],
)
@pytest.mark.parametrize(
    "protocol",
    [
        cj.AveragedUpdates(num_clients=10_000, num_slots=20, check_in_prob=MIXED, num_epochs=3),
        cj.FixedWindow(num_clients=10_000, num_slots=50, check_in_prob=MIXED, num_epochs=3),
        cj.FixedWindow(
            num_clients=10_000, num_slots=50, check_in_prob=MIXED, num_epochs=3, empty_slots="visible"
        ),
    ],
)
@pytest.mark.thorough(but=4)
@pytest.mark.turns(2)
def test_windows_have_brackets_that_say_whom_they_cover(protocol, randomizer, view):
    g = cj.account(protocol, randomizer, delta=DELTA, view=view, bounds="fast")
    assert 0 <= g.lower <= g.epsilon < math.inf
    assert g.at_rate(0.05).epsilon < g.epsilon
    text = str(g)
    assert "all clients: check-in rates up to 0.3" in text
    assert "being plugged in all night is no coin" in text


def test_statement_names_rates_and_theorem():
    text = str(cj.account(run(MIXED), cj.PureLDP(epsilon0=1.0), delta=DELTA, client_rate=0.05))
    assert "check-ins at rates from 0.05 to 0.3" in text
    assert "clients with check-in rates up to 0.05; faster clients are not covered" in text
    assert "theorem    clones: " in text
    assert "every client has the same check-in rate" not in text


@pytest.mark.thorough
def test_rates_go_through_json_and_ledger():
    messages, limits = cj.PureLDP(epsilon0=1.0), cj.RateLimits(largest=0.3, expected_check_ins=1600.0)
    g = cj.account(run(MIXED), messages, delta=DELTA)
    plain = json.loads(json.dumps(g.as_dict(), allow_nan=False))
    assert plain["protocol"]["check_in_prob"] == {
        "kind": "Rates",
        "values": [0.05, 0.3],
        "counts": [5000.0, 5000.0],
    }
    assert plain["client_rate"] == 0.3
    accountant = cj.CheckInAccountant()
    for rates in (MIXED, limits, 0.1):
        protocol = cj.ShuffledCheckIn(num_clients=10_000, check_in_prob=rates, num_rounds=4)
        accountant.compose(cj.to_event(protocol, messages))
    restored = cj.CheckInAccountant()
    restored.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert restored.get_epsilon(DELTA) == accountant.get_epsilon(DELTA) > g.epsilon / 20
    assert "clients' check-in rates are as given" in restored.guarantee(DELTA).statement()


@pytest.mark.thorough
def test_calibration_and_sweep_take_a_client():
    found = cj.calibrate(
        run(MIXED), cj.PureLDP, target_epsilon=0.2, delta=DELTA, bounds="fast", client_rate=0.05
    )
    assert found.guarantee.client_rate == 0.05
    assert 0.199 < found.guarantee.epsilon <= 0.2
    table = cj.sweep(
        num_clients=10_000,
        largest_rate=0.3,
        expected_check_ins=[1600.0, 5000.0],
        client_rate=[0.05, 0.3, 0.4],
        num_rounds=20,
        epsilon0=1.0,
        delta=DELTA,
    )
    assert (np.diff(table["epsilon"][:2]) > 0).all()
    assert "client_rate=0.4: expected a number in (0, 0.3]" in table["error"][2]
    assert "expected at most 2999.7" in table["error"][3]
    with pytest.raises(ValueError, match="expected_check_ins=None: expected a value"):
        cj.sweep(num_clients=10, largest_rate=0.3, epsilon0=1.0, delta=DELTA)


def test_published_bounds_of_a_common_rate_are_left_out():
    assert {row.source for row in cj.compare(run(MIXED), cj.PureLDP(epsilon0=1.0), delta=DELTA)} == {
        "checkin-jax"
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cj.ShuffledCheckIn(num_clients=5, check_in_prob=MIXED), "num_clients=5: expected 10000"),
        (
            lambda: cj.ShuffledCheckIn(num_clients=11, check_in_prob=cj.RateLimits(0.3, 4.0)),
            r"expected_check_ins=4.0: expected at most 3",
        ),
        (
            lambda: cj.account(run(MIXED), cj.PureLDP(epsilon0=1.0), delta=DELTA, client_rate=0.01),
            r"client_rate=0.01: expected at least 0.05",
        ),
        (
            lambda: cj.account(
                cj.Shuffle(num_clients=5), cj.PureLDP(epsilon0=1.0), delta=DELTA, client_rate=0.1
            ),
            "client_rate=0.1: expected none",
        ),
        (
            lambda: cj.account(cj.Shuffle(num_clients=5), cj.PureLDP(epsilon0=1.0), delta=DELTA).by_rate(),
            "all clients have the same check-in rate",
        ),
        (
            lambda: cj.account(
                cj.FixedWindow(num_clients=10_000, num_slots=5, check_in_prob=MIXED),
                cj.PureLDP(epsilon0=1.0),
                delta=DELTA,
                neighboring_relation="add-or-remove-one",
            ),
            "no bound is known for clients with different rates",
        ),
        (
            lambda: (
                cj.training.PrivateRun(
                    protocol=cj.ShuffledCheckIn(
                        num_clients=10_000, check_in_prob=cj.RateLimits(largest=0.3, expected_check_ins=100.0)
                    ),
                    randomizer=cj.L2Mechanism(epsilon0=1.0),
                    clip_norm=1.0,
                    delta=DELTA,
                ).schedule
            ),
            "expected a number in .* or Rates for training",
        ),
    ],
)
def test_refusals_name_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_file_of_rates_is_read_and_its_rows_named(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text("\ufeffrate,count\n0.05,5000\n0.3,5000\n\n")
    assert cj.Rates.read(path) == MIXED
    for text, message in (
        ("rates\n0.1\n", "line 1 has the columns rates: expected the column rate"),
        ("rate\n0.1\n0\n", r"line 3: rate=0.0: expected a number in \(0, 1\]"),
        ("rate\n0.1\nnan\n", "line 3: rate=nan"),
        ("rate,count\n0.1,2\n0.2,1.5\n", "line 3: count=1.5: expected a whole"),
        ("rate\n0.1\nfast\n", "line 3: 'fast': expected numbers"),
        ("rate\n", "expected at least one line"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            cj.Rates.read(path)


def test_every_theorem_has_its_proof_in_the_documentation():
    for label in ("T1", "S", "T1m", "T*h", "G1h", "G4h"):
        bound = next(each for each in BOUNDS if label in each.labels)
        assert "docs/theory_rates.md" in bound.reference


@pytest.mark.parametrize("values", [(0.2, 0.4, 0.9), (0.05, 0.3, 0.3, 0.8), (0.1, 1.0, 1.0)])
@pytest.mark.parametrize("k", [3, 4])
@pytest.mark.thorough(but=1)
@pytest.mark.turns(2)
def test_known_messages_at_unequal_rates_are_above_brute_force(k, values):
    """A and t_k by T1h; what is said of one value more is below the truth."""
    p, rate, cs = 3.0, max(values), np.array([1.0, 1.1, 1.3, 1.7, 2.6])
    epsilon0, fleet = math.log(p), run(cj.Rates(values))
    others = [x for i, x in enumerate(values) if i != values.index(rate)]
    truth = exact_rounds.worst(krr.krr_channel(k, p), [*others, rate], cs)
    worst = profile(fleet, cj.PureLDP(epsilon0=epsilon0), np.log(cs), client_rate=rate)
    stated = cj.PureLDP(epsilon0=epsilon0, total_variation=(p - 1.0) / (p + k - 1.0))
    for label, randomizer in (("t_k", cj.KaryResponse(epsilon0=epsilon0, num_values=k)), ("A", stated)):
        if rate < 1.0:
            bound = profile(fleet, randomizer, np.log(cs), bounds=(label,), client_rate=rate)
            assert (bound >= truth * (1 - ORACLE_ROUNDING) - 1e-15).all()
            assert bound[0] < 1.12 * truth[0] < worst[0]
        assert (profile(fleet, randomizer, np.log(cs), client_rate=rate) >= truth * (1 - 1e-9)).all()
    if rate < 1.0:
        more = cj.KaryResponse(epsilon0=epsilon0, num_values=k + 2)
        assert profile(fleet, more, np.log(cs[:1]), bounds=("t_k",), client_rate=rate)[0] < truth[0]


@pytest.mark.parametrize("theta", [0.1, 0.7])
def test_known_messages_at_one_rate_are_t_k(theta):
    """A pool of known size at the client's own rate is T1 with t_k; a slower client has less, in proportion at most."""
    n, epsilon0, loss = 2000, 2.0, np.array([0.0, 0.01, 0.05])
    with jax.enable_x64(True):
        plain = KaryBound(Shuffled(n, theta), epsilon0, 10, 40.0).upper(loss)
        pool = pool_cover.certain(n - 1.0)
        same = KaryBound(ClientPool(theta, theta, pool), epsilon0, 10, 40.0).upper(loss)
        slower = KaryBound(ClientPool(0.5 * theta, theta, pool), epsilon0, 10, 40.0).upper(loss)
    np.testing.assert_allclose(same, plain, rtol=1e-4)
    assert (slower <= 0.5 * plain * (1 + 1e-3)).all()
