"""Every bound for a run: the certified bracket first, invalid ones marked, total deltas respected."""

import dataclasses
import math

import pytest

import checkin_jax as cj
from checkin_jax.accounting import compare as comparison
from checkin_jax.accounting import published
from checkin_jax.protocols import SlotChoices
from tests.oracles import gaussian

DELTA = 1e-6
SHUFFLED = {
    "Theorem 1 with Lemma 4",
    "Theorem 1, smaller of Lemma 4 and subsampling for each k",
    "Theorem 1, subsampling only",
    "Theorem 2",
    "Theorem 2, repaired",
    "Theorem 1 with weight gamma",
    "Shuffling (Feldman et al. 2021), subsampling, strong composition",
    "Approach 1",
    "Approach 2",
    "Baseline",
}


def checked(protocol, randomizer):
    rows = comparison.compare(protocol, randomizer, delta=DELTA)
    upper, lower, *others = rows
    g = cj.account(protocol, randomizer, delta=DELTA)
    assert (upper.epsilon, lower.epsilon, upper.method) == (g.epsilon, g.lower, g.method)
    assert (upper.direction, lower.direction) == ("upper", "lower")
    for row in others:
        assert row.delta == DELTA
        assert not math.isnan(row.epsilon)
        assert (row.validity == "invalid") <= bool(row.reason)
        if row.validity == "published":
            # What holds is at least what somebody can leak.
            assert row.epsilon >= lower.epsilon
    assert [row.validity == "invalid" for row in others] == sorted(
        row.validity == "invalid" for row in others
    )
    return {row.method: row for row in others}


def test_one_client_a_slot():
    found = checked(cj.FixedWindow(num_clients=1_000, num_slots=100), cj.PureLDP(epsilon0=0.5))
    assert found["Theorem 3.2"].epsilon == published.fixed_window(100, 0.5, DELTA).value
    assert set(found) == {"Theorem 3.2", "Theorem 3.2, un-relaxed sum"}


@pytest.mark.thorough
def test_approximate_ldp_of_a_gaussian_window():
    protocol = cj.FixedWindow(num_clients=1_000, num_slots=1_000)
    found = checked(protocol, cj.Gaussian(noise_multiplier=100.0))
    assert math.isfinite(found["Theorem 3.2, (epsilon0, delta0)"].epsilon)
    loud = checked(protocol, cj.Gaussian(noise_multiplier=1.0))
    assert loud["Theorem 3.2, (epsilon0, delta0)"].epsilon == math.inf
    assert "no epsilon0" in loud["Theorem 3.2, (epsilon0, delta0)"].reason


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lottery(cj.CheckInProtocol):
    """A foreign protocol: clients draw one of `tickets` common slots."""

    num_clients: int
    tickets: int
    num_draws: int = 1

    _unit = "num_draws"
    title = "a lottery"
    description = "in a lottery"
    assumptions = ("the drum is fair",)

    @property
    def used_slot_choices(self):
        return SlotChoices(self.num_clients, self.tickets, 1.0)


def test_a_foreign_protocol_is_compared_by_what_it_states():
    pure = cj.PureLDP(epsilon0=0.5)
    found = checked(Lottery(num_clients=1_000, tickets=100), pure)
    known = checked(cj.FixedWindow(num_clients=1_000, num_slots=100), pure)
    assert {name: row.epsilon for name, row in found.items()} == {
        name: row.epsilon for name, row in known.items()
    }


def test_averages_have_published_bounds_where_all_clients_take_part():
    """[RCI], Theorem 4.1."""
    some = cj.AveragedUpdates(num_clients=9, num_slots=3, check_in_prob=0.5)
    assert set(checked(some, cj.PureLDP(epsilon0=0.5))) == set()


@pytest.mark.parametrize("mu", [0.01, 1.0, 10.0])
def test_local_epsilon_inverts_the_gaussian_profile(mu):
    epsilon = comparison.local_epsilon(mu, 1e-9)
    assert gaussian.delta_g(mu, epsilon) <= 1e-9 * (1 + 1e-9)
    assert gaussian.delta_g(mu, epsilon * (1 - 1e-9)) > 1e-9 * (1 - 1e-9)


ONE_SHUFFLE = {
    f"{name}, strong composition"
    for name in (
        "Theorem 5.1",
        "Theorem 5.1, un-relaxed sum",
        "Erlingsson et al. 2019, Theorem 7",
        "Feldman et al. 2021, closed form of their code",
        "Feldman et al. 2023, Theorem 3.2",
        "Balle et al. 2019, privacy blanket, Hoeffding",
        "Balle et al. 2019, privacy blanket, Bennett",
    )
}
INVALID = {"Theorem 2", "Theorem 1 with weight gamma", "Approach 1", "Approach 2", "Baseline"}
APPROXIMATE = {
    *("Shuffling (Feldman et al. 2021), subsampling, strong composition", "Approach 1", "Approach 2"),
    "Baseline",
}
PURE, SLOTS = cj.PureLDP(epsilon0=0.5), {"num_clients": 1_000, "num_slots": 100}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "randomizer", "names"),
    [
        (cj.SlidingWindow(num_clients=1_000, window=100), PURE, {"Theorem 4.3"}),
        (cj.AveragedUpdates(**SLOTS), PURE, {"Theorem 4.1"}),
        # The theorem is for clients that all take part.
        (cj.AveragedUpdates(**SLOTS, check_in_prob=0.5), PURE, set()),
        (cj.Shuffle(num_clients=1_000, num_rounds=3), PURE, SHUFFLED | ONE_SHUFFLE),
        (cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=100), PURE, SHUFFLED),
        (
            cj.ShuffledCheckIn(num_clients=100_000, check_in_prob=0.01, num_rounds=10),
            cj.Gaussian(noise_multiplier=3.0),
            APPROXIMATE,
        ),
    ],
)
def test_analyses_are_those_of_the_protocol(run, randomizer, names):
    found = checked(run, randomizer)
    assert set(found) == names
    assert {name for name, row in found.items() if row.validity == "invalid"} == names & INVALID


@pytest.mark.slow
def test_analyses_of_some_settings_alone():
    epochs = cj.FixedWindow(**SLOTS, check_in_prob=0.1, num_epochs=10)
    corollary = {"Corollary 3.3", "Corollary 3.3, closed form", "Theorem 3.2, strong composition"}
    assert corollary <= set(checked(epochs, PURE))
    shuffle = checked(cj.Shuffle(num_clients=1_000), cj.Gaussian(noise_multiplier=50.0))
    assert "Theorem 5.1, (epsilon0, delta0)" in shuffle
