"""Lower ends against the largest divergence of a few clients, by enumeration; wrong neighbours are above it."""

import math
from itertools import permutations, product

import numpy as np
import pytest
from oracles import exact_rounds as exact
from oracles import known_messages as known
from oracles import krr, sums

import checkin_jax as cj

pytestmark = pytest.mark.usefixtures("x64")
E0 = 1.5
P = math.exp(E0)
CHANNELS = {
    "2-ary": (cj.KaryResponse(epsilon0=E0, num_values=2), np.array(krr.krr_channel(2, P))),
    "3-ary": (cj.KaryResponse(epsilon0=E0, num_values=3), np.array(krr.krr_channel(3, P))),
    "l2": (cj.L2Mechanism(epsilon0=E0), exact.one_number(P, [1, -1, 0.0])),
    "Hadamard": (cj.HadamardResponse(epsilon0=E0), np.asarray(known.hadamard_channel(P))),
}
DELTAS = (0.03, 3e-3)


@pytest.mark.parametrize("name", ["3-ary", "l2"])
def test_a_client_between_two_rates_leaks_as_the_slower_of_them(name):
    randomizer, channel = CHANNELS[name]
    run = cj.ShuffledCheckIn(num_clients=3, check_in_prob=cj.Rates([0.9, 0.5, 0.2]), drop_out_prob=0.3)
    pairs = list(exact.rounds(channel, [0.63, 0.14, 0.35]))
    for delta in DELTAS[:1]:
        g = cj.account(run, randomizer, delta=delta, client_rate=0.7)
        assert g.lower > 0.0
        assert exact.reaches(pairs, g.lower, delta)
        assert not exact.reaches(
            pairs, cj.account(run, randomizer, delta=delta, client_rate=0.9).lower, delta
        )


def test_rounds_of_a_log_have_the_clients_and_the_coins_of_their_lines():
    randomizer, channel = CHANNELS["2-ary"]
    both = [
        (np.outer(p, r).ravel(), np.outer(q, s).ravel())
        for p, q in exact.rounds(channel, [0.6, 0.6, 0.6])
        for r, s in exact.rounds(channel, [0.3, 0.3])
    ]
    for delta in DELTAS:
        g = cj.account(cj.from_availability([3, 2], [0.6, 0.3]), randomizer, delta=delta)
        assert g.lower > 0.0
        assert exact.reaches(both, g.lower, delta)
        wrong = cj.account(cj.from_availability([2, 2], [0.6, 0.6]), randomizer, delta=delta)
        assert not exact.reaches(both, wrong.lower, delta)


@pytest.mark.parametrize(("clients", "window"), [(4, 3), (3, 3)])
def test_a_window_that_is_partly_shown_hides_the_rest(clients, window):
    """Gaussian messages; all others and the dummies at zero, or all others at the farthest record."""
    delta = 0.03
    laws = []
    for place in range(clients):
        for base in (0.0, -1.0):
            records = [base] * clients
            rows = [[*records[:place], own, *records[place + 1 :]] for own in (1.0, -1.0)]
            laws += permutations([sums.sliding(each, window, 1, 1.0) for each in rows], 2)

    def largest(epsilon: float) -> float:
        return max(sums.hockey_stick(p, q, math.exp(epsilon)) for p, q in laws)

    noise = cj.Gaussian(noise_multiplier=1.0)
    g = cj.account(cj.SlidingWindow(num_clients=clients, window=window), noise, delta=delta)
    # Cells lower the truth.
    assert g.lower > 0.0
    assert largest(g.lower) * (1.0 + 2e-3) >= delta
    if clients == window:
        whole = cj.account(cj.SlidingWindow(num_clients=2 * window - 1, window=window), noise, delta=delta)
        assert largest(whole.lower) * 1.02 < delta


def sums_of_window(channel, held, prob: float, dummy: int | None) -> np.ndarray:
    """Two slots whose messages are summed as one-hot vectors; which of them are empty is seen if there is no dummy."""
    letters = channel.shape[1]
    clients = [prob] * len(held)
    law = exact.window(channel, held, clients, [range(2)] * len(held), range(2), dummy)
    found: dict[tuple, float] = {}
    for place, (one, two) in enumerate(product(range(letters + 1), repeat=2)):
        seen = (one == letters, two == letters, *sorted((one, two)))
        found[seen] = found.get(seen, 0.0) + law[place]
    return np.array([found[seen] for seen in sorted(found)])


@pytest.mark.parametrize("name", ["2-ary", "3-ary", "Hadamard"])
def test_sums_among_visible_empty_slots(name):
    randomizer, channel = CHANNELS[name]
    records, delta = range(len(channel)), 0.03
    pairs: dict[str, list] = {"visible": [], "dummy": []}
    for others in product(records, repeat=2):
        for empty, dummies in (("visible", [None]), ("dummy", records)):
            for dummy in dummies:
                laws = [sums_of_window(channel, (*others, x), 0.3, dummy) for x in records]
                pairs[empty] += permutations(laws, 2)
    ends = {}
    for empty, all_pairs in pairs.items():
        run = cj.FixedWindow(num_clients=3, num_slots=2, check_in_prob=0.3, minibatch=2, empty_slots=empty)
        ends[empty] = cj.account(run, randomizer, delta=delta, view="aggregate").lower
        assert ends[empty] > 0.0
        assert exact.reaches(all_pairs, ends[empty], delta)
    # Hidden dummies are in the sums, too.
    assert not exact.reaches(pairs["dummy"], ends["visible"], delta)


def renyi(first: np.ndarray, second: np.ndarray, order: float) -> float:
    kept = first > 0.0
    return math.log(float(np.sum(first[kept] ** order * second[kept] ** (1.0 - order)))) / (order - 1.0)


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_renyi_divergences_of_concrete_records_are_below_the_largest(name, rate):
    randomizer, channel = CHANNELS[name]
    orders = np.array([1.5, 4.0, 30.0])
    pairs = list(exact.rounds(channel, [rate] * 3))
    truth = np.array([max(renyi(p, q, order) for p, q in pairs) for order in orders])

    def found(clients: int) -> np.ndarray:
        run = cj.ShuffledCheckIn(num_clients=clients, check_in_prob=rate)
        return cj.rdp_lower(run, randomizer, orders)

    assert (found(3) <= truth * (1.0 + 1e-9)).all()
    assert (found(3) >= 0.8 * truth).all()
    # One client fewer hides less.
    assert found(2)[0] > 1.01 * truth[0]
