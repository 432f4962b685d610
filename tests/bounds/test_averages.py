"""T*': averaged slots of which only averages and loads are seen, against the algorithm and its own definition."""

import functools
import math

import numpy as np
import pytest
from oracles import averages as oracle
from scipy import stats

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.messages.equal_records import LabelsAtOneRecord
from checkin_jax.accounting.bounds.messages.subsampling import averaged
from checkin_jax.accounting.bounds.profiles import LabelProfile, of_sums
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.bounds.windows import averaged_slots
from checkin_jax.accounting.bounds.windows.averaged_slots import HiddenAverages
from checkin_jax.accounting.witnesses import _by_number, _lone_messages
from checkin_jax.randomizers import LabelLaws

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0

RECORDS = [(-1.0,), (1.0, -1.0), (-1.0, -1.0), (0.2, -0.8), (-1.0, -1.0, -1.0)]


def truth(others, slots, prob, std, c):
    """The larger of both orders."""
    return max(oracle.divergence(others, a, -a, slots, prob, std, c) for a in (1.0, -1.0))


@pytest.mark.parametrize(
    ("others", "slots", "prob"),
    [
        *((each, 1, prob) for each in RECORDS for prob in (0.4, 0.8)),
        *((each, 2, 0.6) for each in RECORDS[:4]),
    ],
)
@pytest.mark.parametrize("std", [0.8, 2.5])
@pytest.mark.thorough(but=4)
def test_the_statement_is_above_the_algorithm(others, slots, prob, std):
    for c in (1.0, 1.3, 2.0):
        upper = oracle.statement(len(others) + 1, slots, prob, lambda load: 2.0 / std / math.sqrt(load), c)
        assert truth(others, slots, prob, std, c) <= upper * (1.0 + 1e-6) + 1e-9


def test_neighbours_of_the_statement_are_below_the_algorithm():
    """The average of a slot does not have the noise of one message; and that all take part must be counted."""
    others, std = (-1.0, -1.0, -1.0), 2.5
    exact = truth(others, 1, 0.3, std, 1.0)
    assert oracle.statement(4, 1, 0.3, lambda load: 2.0 / std / load, 1.0) < 0.9 * exact
    everybody = truth(others, 1, 0.99, std, 1.0)
    assert (
        oracle.statement(4, 1, 0.99, lambda load: 2.0 / std / math.sqrt(load), 1.0, everybody=False)
        < 0.5 * everybody
    )


UNEQUAL = [
    ((0.1, 0.3), 0.3, 0.3, 1),
    ((0.1, 0.1, 0.1), 0.6, 0.6, 1),
    ((0.05, 0.4, 0.9), 0.4, 0.4, 1),
    ((0.2, 0.2, 0.7), 0.1, 0.5, 1),
    ((0.3, 0.9), 0.3, 0.6, 2),
]


@pytest.mark.parametrize(("rates", "rate", "theta", "slots"), UNEQUAL)
@pytest.mark.parametrize("std", [0.8, 2.5])
@pytest.mark.thorough(but=4)
def test_the_statement_at_unequal_rates_is_above_the_algorithm(rates, rate, theta, slots, std):
    for records in ((-1.0,) * len(rates), tuple(np.linspace(-1.0, 0.6, len(rates)))):
        for c in (1.0, 1.3):
            upper = oracle.pooled(rates, rate, theta, slots, lambda load: 2.0 / std / math.sqrt(load), c)
            exact = truth(records, slots, (*rates, rate), std, c)
            assert exact <= upper * (1.0 + 1e-6) + 1e-9


def test_neighbours_of_the_statement_at_unequal_rates_are_below_the_algorithm():
    """Clients of other rates are not always in the pool, and only a target of a smaller rate is seen less often."""
    others, std = (0.02, 0.02, 0.02), 2.5

    def strength(load):
        return 2.0 / std / math.sqrt(load)

    exact = truth((-1.0,) * 3, 1, (*others, 0.6), std, 1.0)
    assert oracle.statement(4, 1, 0.6, strength, 1.0) < 0.8 * exact
    assert oracle.pooled(others, 0.6, 0.6, 1, strength, 1.0) >= exact
    assert 0.1 / 0.6 * oracle.pooled(others, 0.6, 0.6, 1, strength, 1.0) < exact


@pytest.mark.parametrize(
    ("n", "slots", "prob"), [(3, 1, 0.3), (10, 2, 0.05), (60, 4, 0.5), (10**4, 50, 0.9), (10**6, 7, 0.01)]
)
def test_a_poisson_number_stands_for_the_clients(n, slots, prob):
    """Pr[k participants] is at most `mass` times the Poisson law's, or so many clients are there often enough."""
    mass, clients, load, missing = averaged_slots.poisson_clients(
        pool_cover.certain(n - 1.0), slots, prob, MASS
    )
    assert missing == 0.0
    mean = load * slots
    if clients == n:
        k = np.unique(np.linspace(0, n, 3001).astype(int))
        k = np.append(k, [math.floor(n * prob), math.floor(n * prob) + 1])
        assert (
            stats.binom.pmf(k, n, prob) <= mass * (1.0 + 1e-9) * stats.poisson.pmf(k, mean) + 1e-290
        ).all()
    else:
        everyone = stats.poisson(mean / prob)
        assert mass * (everyone.cdf(n) - everyone.cdf(clients - 1)) >= 1.0 - 1e-9
    assert mass < 4.0


@pytest.mark.parametrize(
    ("members", "prob", "least"),
    [(100, 0.99, 0.6), (300, 0.7, 0.6), (20_000, 0.05, 0.7), (10**6, 0.999, 0.98)],
)
def test_a_poisson_number_stands_for_a_random_number(members, prob, least):
    """At every number a mixture of Poisson laws, each conditioned to be at most that size, has `mass` times it."""
    others = pool_cover.sum_of(np.array([prob]), np.array([float(members)]), MASS, theorems._SIZES)
    mass, clients, load, missing = averaged_slots.poisson_clients(others, 7, 0.2, MASS)
    law, exact = stats.poisson(load * 7 / 0.2), stats.binom(members, prob)
    assert missing <= 4.0 * math.exp(-MASS)
    assert least * members * prob <= clients <= members * prob
    numbers = np.arange(exact.ppf(1e-12), exact.ppf(1.0 - 1e-9) + 1.0)
    counted = stats.binom.pmf(numbers, members, prob) / (law.cdf(numbers + 1.0) - law.cdf(clients - 1.0))
    assert counted.sum() * (1.0 - 1e-9) <= mass < 1.3


@pytest.mark.parametrize(
    ("z", "slots", "load"), [(2.0, 40, 0.7), (1.0, 40, 5.0), (0.5, 12, 60.0), (2.0, 12, 60.0)]
)
@pytest.mark.thorough(but=3)
def test_the_bound_is_its_definition(z, slots, load):
    n = 20_000
    prob, summed = load * slots / n, of_sums(cj.Gaussian(noise_multiplier=z), MASS)
    assert summed is not None
    of_slot = averaged(n, slots, prob, 2.0 / z, MASS)
    bound = HiddenAverages(pool_cover.certain(n - 1.0), slots, prob, 1.0, summed, of_slot, MASS)
    mass, clients, mean, _ = bound._clients
    deviation = math.sqrt(slots * load * math.expm1(min(4.0 / z**2 / max(load, 1.0), 3.0)))
    for far in (0.0, 0.5, 2.0):
        c = 1.0 + far * deviation / n
        upper = float(np.asarray(bound.upper(np.array([math.log(c)])))[0])
        lattice = oracle.poisson_loads(clients, slots, mean, 2.0 / z, c, deviation / 1000.0, 2**16)
        alone = bound.subsampled(np.array([math.log(c)]))[0]
        assert upper >= min(lattice * mass, alone) * (1.0 - 1e-3)
        assert upper <= min(lattice * mass * 1.15, alone * (1.0 + 1e-9)) + 1e-12


@pytest.mark.parametrize("randomizer", [cj.Gaussian(noise_multiplier=0.7), cj.Laplace(epsilon0=3.0)])
def test_a_pool_hides_as_fewer_clients_of_its_rate_do(randomizer):
    """And a client of a smaller rate has at most its share of the divergence."""
    rates = cj.Rates(values=[0.1, 0.02], counts=[50_000, 50_000])

    def bound(check_in_prob, number=100_000, client_rate=None):
        run = cj.AveragedUpdates(num_clients=number, num_slots=500, check_in_prob=check_in_prob)
        unit = Unit(run, randomizer, "aggregate", "replace-one", MASS, client_rate)
        found = theorems.t_star_averages(unit)
        assert found is not None
        return np.asarray(found.upper(np.linspace(0.0, 2e-3, 5)))

    mixed, alike = bound(rates), bound(0.1, 60_000)
    assert (mixed >= alike * (1.0 - 1e-6)).all()
    assert (mixed <= alike * 1.1 + 1e-9).all()
    slower = bound(rates, client_rate=0.02)
    assert (slower >= 0.2 * alike * (1.0 - 1e-6)).all()
    assert slower[0] <= 0.21 * mixed[0]


def alone(clients: int, slots: int, prob: float) -> np.ndarray:
    """Law of the number of clients that are alone in a slot; slot by slot."""
    size = clients + 1
    law = np.zeros((size, size))
    law[0, 0] = 1.0
    for _ in range(slots):
        more = np.zeros_like(law)
        for load in range(size):
            one, share = int(load == 1), (prob / slots) ** load / math.factorial(load)
            more[load:, one:] += share * law[: size - load, : size - one]
        law = more
    absent = [(1.0 - prob) ** (clients - k) / math.factorial(clients - k) for k in range(size)]
    return math.factorial(clients) * np.array(absent) @ law


@pytest.mark.parametrize(("clients", "slots", "prob"), [(40, 60, 0.3), (120, 300, 0.5), (100, 200, 1.0)])
def test_lone_messages_are_not_counted_too_often(clients, slots, prob):
    """The law is below the exact one, not below that of half the slots; so is what two labels tell."""
    exact, found = alone(clients, slots, prob), _lone_messages(clients, slots, prob)
    assert exact.sum() == pytest.approx(1.0, abs=1e-9)
    numbers, weights = np.array(found).T
    assert (np.diff(numbers) >= 0.0).all()
    crowded = alone(clients, slots // 8, prob)
    above = [np.sum(weights, where=numbers >= number) for number in numbers]
    for number, more in zip(numbers.astype(int), above):
        assert more <= exact[number:].sum() + 1e-12
    assert any(more > crowded[number:].sum() for number, more in zip(numbers.astype(int), above))
    bit = np.array([0.7, 0.3])
    law = LabelLaws(bit, bit[::-1], "a bit", None, np.array([0.4, -0.4]))
    of_slots = functools.partial(LabelsAtOneRecord, laws=law)
    losses = np.array([0.0, 0.02, 0.1])
    (witness,) = _by_number(found, clients, LabelProfile(law), 40.0, of_slots)
    apart, mass = witness.lower(losses)[0]
    truth = np.zeros(losses.size)
    for number in range(1, clients + 1):
        counts = np.arange(number + 1)
        still, others = stats.binom.pmf(counts, number, 0.3), stats.binom.pmf(counts, number - 1, 0.3)
        moved = 0.7 * np.append(0.0, others[:-1]) + 0.3 * others
        mixed = still + number / clients * (moved - still)
        truth += exact[number] * np.maximum(mixed - np.exp(losses)[:, None] * still, 0.0).sum(axis=1)
    value = np.asarray(apart) - np.expm1(losses) * np.asarray(mass)
    assert (value <= truth * (1.0 + 1e-9)).all()
    assert value[0] > 0.5 * truth[0]
