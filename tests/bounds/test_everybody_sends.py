"""E+: rounds in which everybody sends, from above, against what is seen of them (the proof: tests/theory)."""

import dataclasses
import functools
import math
from itertools import permutations

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.special import ndtr
from scipy.stats import binom

import checkin_jax as cj
from checkin_jax.accounting.bounds import theorems
from checkin_jax.accounting.bounds.full_participation import AllCut, beside_others_dummies
from checkin_jax.accounting.bounds.interface import LocalGaussian, Witness
from checkin_jax.accounting.bounds.messages.largest_message import largest_message
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenSlots
from checkin_jax.accounting.bounds.profiles import GaussianProfile, one_message, profile_of
from checkin_jax.accounting.bounds.unit_facts import Unit
from checkin_jax.accounting.composition import compose
from checkin_jax.protocols import REPLACE

pytestmark = pytest.mark.usefixtures("x64")
MASS = math.log(1e6) + 17.0


def bound(randomizer: cj.Randomizer, clients: int, slots: int | None = None, mass: float = MASS):
    """E+ of one round; of averaged slots, in which messages may depend on others, if their number is given."""
    run = cj.Shuffle(num_clients=clients)
    if slots is not None:
        run = cj.AveragedUpdates(num_clients=clients, num_slots=slots, check_in_prob=1.0)
    return theorems.e_plus(Unit(run, randomizer, "messages", REPLACE, mass))


def responses(epsilon0: float, clients: int, at_other: int, losses: np.ndarray) -> np.ndarray:
    """The larger H_c of both orders of binary responses, so many of the others at x'."""
    up = 1.0 / (1.0 + math.exp(-epsilon0))
    others = np.convolve(
        binom.pmf(np.arange(at_other + 1), at_other, 1.0 - up),
        binom.pmf(np.arange(clients - at_other), clients - 1 - at_other, up),
    )
    p, q = (np.append(others * (1.0 - each), 0.0) + np.append(0.0, others * each) for each in (up, 1.0 - up))
    c = np.exp(losses)[:, None]
    return np.maximum(*(np.maximum(a - c * b, 0.0).sum(axis=1) for a, b in ((p, q), (q, p))))


@pytest.mark.parametrize("slots", [None, 10])
@pytest.mark.parametrize(
    ("epsilon0", "clients"), [(0.5, 40), (0.5, 400), (1.0, 300), (2.0, 500), (3.0, 3000), (1.0, 10**4)]
)
def test_one_bit_is_above_binary_responses_and_near_them(epsilon0, clients, slots):
    deviation = 2.0 * math.sinh(0.5 * epsilon0) / math.sqrt(clients)
    losses = deviation * np.array([0.0, 0.5, 1.0, 2.0, 3.5])
    found = bound(cj.OneBit(epsilon0=epsilon0), clients, slots)
    assert found is not None
    value = np.asarray(found.upper(losses))
    truth = np.max(
        [
            responses(epsilon0, clients, k, losses)
            for k in {0, 1, clients // 4, clients // 2, clients - 2, clients - 1}
        ],
        axis=0,
    )
    assert (value >= truth).all()
    # The same divergence at a loss that is hardly larger.
    assert value[0] < 1.25 * truth[0]
    assert value[3] < truth[1]
    # Without the event that there is no dummy less is seen.
    assert (np.asarray(found.hidden.upper(losses)) < value).all()


def test_any_message_is_above_binary_and_ternary_responses():
    epsilon0, clients = 1.0, 2000
    losses = 0.03 * np.arange(5.0)
    found = bound(cj.PureLDP(epsilon0=epsilon0), clients)
    truth = np.maximum(*(responses(epsilon0, clients, k, losses) for k in (0, clients // 2)))
    assert (np.asarray(found.upper(losses)) >= truth).all()
    fewer = bound(cj.PureLDP(epsilon0=epsilon0), 4 * clients)
    assert (np.asarray(fewer.upper(losses)) < truth)[:3].any()


# --- a mechanism's own laws

# Three records; the last two are nearly alike.
CHANNEL = np.array([[0.62, 0.25, 0.13], [0.2, 0.3, 0.5], [0.22, 0.33, 0.45]])


def many(row: np.ndarray, count: int) -> np.ndarray:
    """Law of the numbers of the first two outputs of `count` messages; [count + 1, count + 1]."""
    first = np.arange(count + 1)
    law = np.zeros((count + 1, count + 1))
    for some in first:
        rest = np.arange(count - some + 1)
        share = binom.pmf(rest, count - some, row[1] / (row[1] + row[2]))
        law[some, : count - some + 1] = binom.pmf(some, count, row[0]) * share
    return law


def shuffled(counts: tuple[int, int, int]) -> list[np.ndarray]:
    """For each record of the target, the law of the messages' numbers, so many others at each record."""
    others = functools.reduce(fftconvolve, [many(*pair) for pair in zip(CHANNEL, counts)])
    return [fftconvolve(others, many(row, 1)) for row in CHANNEL]


@pytest.mark.parametrize("slots", [None, 7])
@pytest.mark.parametrize("clients", [60, 240])
def test_own_laws_are_above_shuffled_messages_of_a_finite_mechanism(clients, slots):
    """Others at all three records in any proportion, all pairs of records of the target."""
    mechanism, others = cj.FiniteMechanism(probabilities=CHANNEL), clients - 1
    found = bound(mechanism, clients, slots)
    splits = [(others, 0, 0), (0, others, 0), (0, 0, others), (others // 2, others - others // 2, 0)]
    truths = [
        shuffled((*split,)) for split in [*splits, (others // 3, others // 3, others - 2 * (others // 3))]
    ]
    for loss in (0.0, 0.01, 0.06):
        truth = max(
            np.maximum(a - math.exp(loss) * b, 0.0).sum() for laws in truths for a, b in permutations(laws, 2)
        )
        assert truth <= float(found.upper(np.array([loss]))[0]) < 1.5 * truth
    near = bound(cj.FiniteMechanism(probabilities=CHANNEL[1:]), clients, slots)
    assert float(near.upper(np.zeros(1))[0]) < 0.5 * max(
        np.maximum(a - b, 0.0).sum() for a, b in permutations(truths[0], 2)
    )


# --- messages that are nearly eps0-LDP, or of a known profile


def shown_or_response(clients: int, p: float, delta0: float, at_other: int) -> tuple[np.ndarray, np.ndarray]:
    """Laws of a round for both records of the target; every message shows its record with probability delta0.

    Else it is a binary response. `at_other` of the others hold x', none is ever shown as x; axes: messages shown as x,
    as x', and responses in favour of x.
    """
    others = clients - 1
    law = np.zeros((3, clients + 1, clients + 1))
    in_favour = p / (p + 1.0)
    number = np.arange(others + 1)
    for shown in range(others + 1):
        answered = others - shown
        chance = binom.pmf(shown, others, delta0)
        # All others hold x', or are not shown at all.
        law[0, shown, : answered + 1] = chance * binom.pmf(number[: answered + 1], answered, 1.0 - in_favour)
    found = []
    for favoured, place in ((in_favour, (1, 0)), (1.0 - in_favour, (0, 1))):
        one = np.zeros_like(law)
        one += (1.0 - delta0) * (1.0 - favoured) * law
        one[:, :, 1:] += (1.0 - delta0) * favoured * law[:, :, :-1]
        one += delta0 * np.roll(law, place, (0, 1))
        found.append(one)
    return found[0], found[1]


@pytest.mark.parametrize("delta0", [1e-4, 1e-7])
@pytest.mark.parametrize(("epsilon0", "clients"), [(0.3, 80), (1.0, 120)])
def test_nearly_private_messages_are_above_exact_rounds(epsilon0, clients, delta0):
    found = bound(cj.ApproximateLDP(epsilon0=epsilon0, delta0=delta0), clients, mass=-math.log(delta0) + 20.0)
    if found is None:
        assert clients * delta0 > 1e-3
        return
    losses = 0.5 * epsilon0 * np.array([0.0, 0.1, 0.4])
    for at_other in (0, clients // 2, clients - 1):
        pair = shown_or_response(clients, math.exp(epsilon0), delta0, at_other)
        for a, b in permutations(pair):
            truth = np.array([np.maximum(a - math.exp(loss) * b, 0.0).sum() for loss in losses])
            assert (np.asarray(found.upper(losses)) >= truth).all()


def bits_above(n: int, mu: float, at_other: int, edge: float, losses: np.ndarray) -> np.ndarray:
    """The larger H_c of both orders of how many of n messages exceed `edge`; `at_other` of the others are at x'."""
    up = ndtr(np.array([0.5 * mu, -0.5 * mu]) - edge)
    others = np.convolve(
        binom.pmf(np.arange(at_other + 1), at_other, up[1]),
        binom.pmf(np.arange(n - at_other), n - 1 - at_other, up[0]),
    )
    p, q = (np.append(others * (1.0 - each), 0.0) + np.append(0.0, others * each) for each in up)
    c = np.exp(losses)[:, None]
    return np.maximum(*(np.maximum(a - c * b, 0.0).sum(axis=1) for a, b in ((p, q), (q, p))))


@pytest.mark.thorough
@pytest.mark.parametrize("slots", [None, 100])
def test_gaussian_messages_are_above_their_bits_wherever_the_others_are(slots):
    n, mu, losses = 2500, 0.5, np.geomspace(0.002, 0.06, 25)
    value = np.asarray(bound(cj.Gaussian(noise_multiplier=2.0 / mu), n, slots).upper(losses))
    for at_other in (0, n // 5, n // 2, n - 1):
        for edge in (-0.7, 0.0, 0.5):
            assert (value >= bits_above(n, mu, at_other, edge, losses) * (1.0 - 1e-9) - 1e-14).all()
    four_times_as_many = np.asarray(bound(cj.Gaussian(noise_multiplier=2.0 / mu), 4 * n, slots).upper(losses))
    assert (four_times_as_many < bits_above(n, mu, n // 2, 0.0, losses)).any()


@pytest.mark.parametrize(("n", "mu"), [(10**4, 0.5), (2000, 1.2), (300, 0.8)])
def test_gaussian_messages_are_above_those_among_others_at_one_record_and_near_them(n, mu):
    losses = 3.0 * mu / math.sqrt(n) * np.linspace(0.05, 1.5, 25)
    value = np.asarray(bound(cj.Gaussian(noise_multiplier=2.0 / mu), n).upper(losses))
    (witness, *_) = AllCut(n, LocalGaussian(1.0, mu), MASS).witnesses
    below = np.max(
        [np.asarray(p) - np.expm1(losses) * np.asarray(q) for p, q in witness.lower(losses)], axis=0
    )
    assert (value >= below).all()
    if n >= 10**4:
        # The same divergence at an epsilon that is less than 1.2 times as large.
        near = (losses > 0.01) & (value > 1e-8)
        assert (value <= np.interp(losses / 1.2, losses, below))[near].all()


@pytest.mark.parametrize(("n", "mu"), [(1000, 2.5), (10**5, 3.5), (10**8, 5.5)])
def test_weak_noise_is_above_the_largest_message_and_bits(n, mu):
    """Both prices, wherever others are; forty times as many clients are too many."""
    losses, exceeded = np.linspace(0.0, 8.0, 25), False
    witness = largest_message(n, 1.0, mu)
    below = [np.asarray(p) - np.expm1(losses) * np.asarray(q) for p, q in witness.lower(losses)]
    truths = [np.max(below, axis=0)]
    if n <= 1000:
        truths += [
            bits_above(n, mu, at, edge, losses) for at in (0, n // 2, n - 1) for edge in (-1.0, 0.0, 1.0)
        ]
    for price in (1.0, 100.0):
        (found,) = beside_others_dummies(n, GaussianProfile(mu), LocalGaussian(1.0, mu), MASS, [price])
        value = np.asarray(found.upper(losses))
        for truth in truths:
            assert (value >= truth * (1.0 - 1e-9) - 1e-14).all()
        assert (value < 0.9 * np.asarray(LocalGaussian(1.0, mu).upper(losses))).any()
        more = np.asarray(HiddenSlots(40 * n, 1.0, GaussianProfile(mu), MASS).upper(losses))
        exceeded |= any((more < truth).any() for truth in truths)
    assert exceeded
    assert not beside_others_dummies(1, GaussianProfile(mu), LocalGaussian(1.0, mu), MASS, [1.0])


@pytest.mark.parametrize(("epsilon0", "clients"), [(2.0, 60), (3.0, 200), (4.0, 2000)])
def test_dummies_of_others_are_above_binary_responses_known_by_their_profile(epsilon0, clients):
    """Dummies are draws of a record's law. Ten times as many clients are too many."""
    losses, price = np.linspace(0.0, epsilon0, 25), 50.0
    randomizer = cj.KnownProfile(function=cj.OneBit(epsilon0=epsilon0).profile, name="bits")
    (found,) = beside_others_dummies(clients, profile_of(randomizer), one_message(randomizer), MASS, [price])
    value, truth = np.asarray(found.upper(losses)), np.zeros(losses.shape)
    for at_other in (0, clients // 4, clients // 2, clients - 1):
        truth = np.maximum(truth, responses(epsilon0, clients, at_other, losses))
    assert (value >= truth * (1.0 - 1e-9) - 1e-14).all()
    assert (value < 0.97 * np.asarray(one_message(randomizer).upper(losses)))[:10].any()
    (more,) = beside_others_dummies(
        10 * clients, profile_of(randomizer), one_message(randomizer), MASS, [price]
    )
    assert (np.asarray(more.upper(losses)) < truth).any()


@pytest.mark.parametrize("epsilon0", [30.0, 40.0])
@pytest.mark.parametrize("clients", [10, 10**3, 10**6])
def test_no_dummies_of_others_where_messages_show_their_record(epsilon0, clients):
    """The divergence of two records rounds to 1, or slightly more, which is no probability."""
    randomizer = cj.ApproximateLDP(epsilon0=epsilon0, delta0=1e-6)
    facts = clients, profile_of(randomizer), one_message(randomizer), MASS
    assert not beside_others_dummies(*facts, (1.0, 1e4))


def test_the_least_delta_over_the_most_rounds_has_a_bracket():
    run = cj.Shuffle(num_clients=10**6, num_rounds=10**9)
    found = cj.account(run, cj.Gaussian(noise_multiplier=3.0), delta=1e-300)
    assert 0 < found.lower < found.epsilon < math.inf


def test_many_rounds_of_weak_noise_have_a_lower_end_near_their_mean_loss():
    """Rounding hides them about the usual order; the mean is that of the best of a few thresholds."""
    n, mu, rounds = 10**7, 6.0, 50_000
    found = cj.account(
        cj.Shuffle(num_clients=n, num_rounds=rounds), cj.Gaussian(noise_multiplier=2.0 / mu), delta=1e-8
    )
    edges = np.linspace(4.8, 7.0, 23)
    none, seen = np.exp((n - 1) * np.log1p(-ndtr(-edges))), ndtr(mu - edges)
    p, q = 1.0 - none * (1.0 - seen), 1.0 - none * ndtr(edges)
    mean = np.max(p * np.log(p / q) + (1.0 - p) * np.log((1.0 - p) / (1.0 - q)))
    assert 1.2 * mean * rounds < found.lower < found.epsilon < 2.0 * found.lower


# --- what it is used for


def test_where_it_is_used():
    pure, one = cj.PureLDP(epsilon0=0.5), 10_000
    everybody = cj.Shuffle(num_clients=one)
    found = cj.account(everybody, pure, delta=1e-6)
    assert "everybody" in found.method
    assert not any("same round" in text and "depends" in text for text in found.assumptions)
    bits = cj.account(everybody, cj.OneBit(epsilon0=0.5), delta=1e-6)
    assert "no client's message depends on another message of the same round" in bits.assumptions
    check_in = cj.ShuffledCheckIn(num_clients=one, check_in_prob=1.0)
    assert cj.account(check_in, pure, delta=1e-6).epsilon == pytest.approx(found.epsilon, rel=1e-9)
    averages = cj.AveragedUpdates(num_clients=one, num_slots=10, check_in_prob=1.0)
    assert cj.account(averages, pure, delta=1e-6).epsilon == pytest.approx(found.epsilon, rel=1e-3)
    assert "everybody" not in cj.account(everybody, pure, delta=1e-6, bounds="fast").method
    # Whoever drops out leaves fewer messages: at a rate at which nobody may well be missing everybody is a bound.
    nearly = cj.ShuffledCheckIn(num_clients=one, check_in_prob=1.0, drop_out_prob=1e-6)
    assert "everybody" in cj.account(nearly, pure, delta=1e-6).method
    some = cj.ShuffledCheckIn(num_clients=one, check_in_prob=1.0, drop_out_prob=0.1)
    assert "everybody" not in cj.account(some, pure, delta=1e-6).method


@pytest.mark.parametrize("rate", [0.999, 0.99999])
def test_almost_everybody_tells_hardly_less(rate):
    """Rates near 1 are between: a smaller rate never leaks more."""
    one, bits = 3000, cj.OneBit(epsilon0=1.5)
    nearly = cj.account(cj.ShuffledCheckIn(num_clients=one, check_in_prob=rate), bits, delta=1e-6)
    everybody = cj.account(cj.Shuffle(num_clients=one), bits, delta=1e-6)
    assert everybody.epsilon < 1.03 * nearly.epsilon


# --- composition


@dataclasses.dataclass(frozen=True)
class RarelyFar:
    """Gaussian losses of deviation mu, and with a small probability the loss `far`."""

    mu: float
    rare: float
    far: float
    largest_loss = math.inf
    name = "rarely far"
    witnesses: tuple[Witness, ...] = ()

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss, dtype=float)
        usual = ndtr(0.5 * self.mu - loss / self.mu) - np.exp(loss) * ndtr(-0.5 * self.mu - loss / self.mu)
        return (1.0 - self.rare) * usual + self.rare * np.maximum(-np.expm1(loss - self.far), 0.0)


@functools.cache
def gaussian_epsilon(mu: float, delta: float) -> float:
    low, high = 0.0, 20.0 * mu
    for _ in range(80):
        middle = 0.5 * (low + high)
        told = float(RarelyFar(mu, 0.0, 1.0).upper(np.array([middle]))[()].item())
        low, high = (middle, high) if told > delta else (low, middle)
    return high


@pytest.mark.parametrize("share", [0.01, 0.2, 0.6])
@pytest.mark.parametrize("mu", [1e-4, 1e-3])
def test_rare_losses_that_are_far_do_not_spoil_the_grid(share, mu):
    """They count at infinite loss; epsilon at what they leave of delta is hardly more."""
    rounds, delta = 50, 1e-9
    one = RarelyFar(mu, share * delta / rounds, 3.0)
    found = compose.upper_end([(one, rounds)], delta).upper
    least = gaussian_epsilon(mu * math.sqrt(rounds), delta)
    most = gaussian_epsilon(mu * math.sqrt(rounds), (1.0 - share) * delta)
    assert least <= found <= 1.02 * most
