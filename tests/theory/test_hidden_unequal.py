"""T*h, hidden messages of any profile at rates that differ: against every mechanism of a few clients."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from oracles import exact_rounds, random_check_ins, t_star, unequal_rates

import checkin_jax as cj
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMessages
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.accounting.bounds.unequal import pool_cover
from checkin_jax.accounting.bounds.unequal.sampled_profile import UnequalHidden
from checkin_jax.kernels.execution.devices import float64

RATES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9)
CS = np.array([1.0, 1.3, 2.0, 4.0])


def channel(rng, records):
    """Laws of three outputs, some of them impossible for some records."""
    rows = rng.dirichlet(np.ones(3), size=records) * (rng.random((records, 3)) > 0.2)
    rows[:, 0] += 1e-3
    return (rows / rows.sum(axis=1, keepdims=True)).tolist()


def summed(profile, kinks, number, theta, rate, c):
    """(1/n) E(sum of n t_j)_+, t_j = alpha (1-c) with probability 1 - theta, else beta T*, by enumeration."""
    at, weights, beyond = t_star.finite_law(profile, kinks, c)
    alpha, beta = (1 - rate) / (1 - theta), rate / theta
    jumps = np.append(beta * at, alpha * (1 - c)), np.append(theta * weights, 1 - theta)
    sums, masses = np.zeros(1), np.ones(1)
    for _ in range(number):
        sums = np.add.outer(sums, jumps[0]).ravel()
        masses = np.multiply.outer(masses, jumps[1]).ravel()
    return float(np.maximum(sums, 0.0) @ masses) / number + rate * beyond


def stated(profile, kinks, law, theta, rate, c):
    """The right-hand side, with the law of n' = 0, 1, ..."""
    return sum(
        mass * (rate * theta**n * float(profile(c)) + summed(profile, kinks, n + 1, theta, rate, c))
        for n, mass in enumerate(law)
    )


def fleets(seed, trials):
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        rows = channel(rng, int(rng.integers(2, 4)))
        others, rate = rng.choice(RATES, size=int(rng.integers(1, 3))), float(rng.choice(RATES))
        yield rng, rows, others, rate


def test_t_star_h_is_above_every_mechanism():
    nearest = 0.0
    for rng, rows, others, rate in fleets(0, 60):
        truth = exact_rounds.worst(np.array(rows), [*others, rate], CS)
        profile, kinks = t_star.channel_profile(rows), t_star.channel_kinks(rows)
        for theta in (float(max(others)), float(rng.choice(RATES))):
            law = unequal_rates.counts_law(unequal_rates.members(others, theta))
            bound = np.array([stated(profile, kinks, law, theta, rate, c) for c in CS])
            assert (bound >= truth * (1 - 1e-10) - 1e-13).all()
            nearest = max(nearest, float((truth / np.maximum(bound, 1e-300)).max()))
    assert nearest > 0.99


@pytest.mark.parametrize("wrong", ["the largest rate for all", "nobody thinned out", "the mean of n'"])
def test_its_neighbours_are_false(wrong):
    exceeded = 0
    for _, rows, others, rate in fleets(1, 60):
        theta = float(max(others))
        truth = exact_rounds.worst(np.array(rows), [*others, rate], CS)
        profile, kinks = t_star.channel_profile(rows), t_star.channel_kinks(rows)
        members = unequal_rates.members(others, theta)
        whole, g = np.eye(len(others) + 1)[-1], rate
        law = whole
        if wrong == "the largest rate for all":
            theta = g = max(theta, rate)
        elif wrong == "the mean of n'":
            law = np.eye(len(others) + 1)[int(np.ceil(sum(members) - 1e-9))]
        if theta >= 1:
            continue
        bound = np.array([stated(profile, kinks, law, theta, g, c) for c in CS])
        exceeded += int((truth > bound * (1 + 1e-9) + 1e-12).any())
    assert exceeded > 0


def worst_averaged(rng, rows, rate, others, slots):
    """Largest divergence at CS over records of averaged slots, each slot's channel chosen by what was seen before.

    The channels are those of one channel for permuted records, so that all have its profile.
    """
    records = range(len(rows))
    known = {}

    def channel_after(seen):
        if seen not in known:
            known[seen] = [rows[record] for record in rng.permutation(len(rows))]
        return known[seen]

    choices = random_check_ins.fixed_window_choices(len(others) + 1, slots, (*others, rate))
    found = np.zeros(len(CS))
    for theirs in itertools.product(records, repeat=len(others)):
        laws = [
            random_check_ins.averaged_law(choices, (*theirs, record), slots, channel_after)
            for record in records
        ]
        for one, other in itertools.permutations(laws, 2):
            for at, c in enumerate(CS):
                apart = sum(max(mass - c * other.get(seen, 0.0), 0.0) for seen, mass in one.items())
                found[at] = max(found[at], apart)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_t_star_h_is_above_averaged_slots_whose_messages_adapt(seed):
    rng = np.random.default_rng(seed)
    for _ in range(4):
        rows = channel(rng, int(rng.integers(2, 4)))
        others, rate = rng.choice(RATES, size=2), float(rng.choice(RATES))
        truth = worst_averaged(rng, rows, rate, [float(each) for each in others], 2)
        profile, kinks = t_star.channel_profile(rows), t_star.channel_kinks(rows)
        for theta in (float(max(others)), float(rng.choice(RATES))):
            law = unequal_rates.counts_law(unequal_rates.members(others, theta))
            bound = np.array([stated(profile, kinks, law, theta, rate, c) for c in CS])
            assert (bound >= truth * (1 - 1e-10) - 1e-13).all()


# Nearly eps0-LDP messages have the hexagon, too.
@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("randomizer", "bounds"),
    [
        (cj.ApproximateLDP(epsilon0=1.5, delta0=1e-12), "profile"),
        (cj.ApproximateLDP(epsilon0=1.5, delta0=1e-12), "best"),
        (cj.Gaussian(noise_multiplier=1.0), "best"),
    ],
)
def test_averaged_updates_of_unequal_rates_are_nearly_exact(randomizer, bounds):
    """Where laws had to be cut for want of it, the upper end was a thousand times the lower."""
    rates = cj.Rates(values=[0.664, 0.149, 0.00425], counts=[100_000, 90_000, 70_000])
    run = cj.AveragedUpdates(num_clients=260_000, num_slots=900, check_in_prob=rates, num_epochs=3)
    g = cj.account(run, randomizer, delta=1e-8, bounds=bounds)
    assert "profile" in g.method or "hexagon" in g.method
    assert g.epsilon < 1.2 * g.lower


@dataclasses.dataclass(frozen=True)
class OfChannel:
    """A privacy profile of a few outputs."""

    rows: tuple[tuple[float, ...], ...]

    name = "finite"
    largest_loss = np.inf

    def delta(self, loss):
        return t_star.channel_profile(self.rows)(np.exp(np.asarray(loss)))


def test_what_is_computed_is_above_what_is_stated_and_near_it():
    losses = np.log(CS)
    with float64():
        for _, rows, _, rate in fleets(2, 2):
            profile, kinks = t_star.channel_profile(rows), t_star.channel_kinks(rows)
            for theta, others in ((0.5, [0.5, 0.25, 0.1]), (0.3, [0.3, 0.3, 0.6])):
                members = np.array(unequal_rates.members(others, theta))
                law = unequal_rates.counts_law(members)
                bound = UnequalHidden(
                    rate,
                    theta,
                    pool_cover.sum_of(members, None, 40.0),
                    OfChannel(tuple(map(tuple, rows))),
                    40.0,
                )
                exact = np.array([stated(profile, kinks, law, theta, rate, c) for c in CS])
                # Subsampling and the message by itself are taken where they are smaller.
                truth = exact_rounds.worst(np.array(rows), [*others, rate], CS)
                found = np.asarray(bound.upper(losses))
                assert (found >= truth * (1 - 1e-10)).all()
                assert (found <= exact * 1.35 + 1e-6).all()


def test_equal_rates_are_t_star():
    losses = np.linspace(0.0, 0.15, 5)
    with float64():
        n, rate, mu = 2_000, 0.1, 1.0
        equal = HiddenMessages(n, rate, GaussianProfile(mu), 30.0)
        found = UnequalHidden(rate, rate, pool_cover.certain(n - 1), GaussianProfile(mu), 30.0)
        exact = np.asarray(equal.upper(losses))
        value = np.asarray(found.upper(losses))
        assert (value >= exact * (1 - 1e-6)).all()
        # Far out the few groups of k show, where they hardly matter.
        assert (value <= 1.06 * exact + 4e-6).all()
