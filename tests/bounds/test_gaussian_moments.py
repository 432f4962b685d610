"""Renyi divergences of Gaussian messages: above the definition, near it, and below what attains it."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate
from scipy.special import gammaln

import checkin_jax as cj
from checkin_jax.accounting.bounds.messages import gaussian_labels
from checkin_jax.kernels.messages import gaussian_moments

WHOLE = np.array([2, 3, 8, 32, 128])


def log_counts(n, rate):
    """log Pr[Bin(n, rate) = k] for k = 1..n."""
    k = np.arange(1.0, n + 1.0)
    rest = (n - k) * math.log1p(-rate) if rate < 1 else np.where(k < n, -np.inf, 0.0)
    return k, gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + k * math.log(rate) + rest


def whole_orders(n, rate, noise, orders, summed):
    """log A / (order - 1) of the pair ((1-q) N(0) + q N(mu_k), N(0)), k visible, by binomial sums of exact moments."""
    k, log_mass = log_counts(n, rate)
    mu, q = (2.0 / noise) / np.sqrt(k if summed else 1.0), k / n
    found = []
    for order in orders:
        j = np.arange(2.0, order + 1.0)[:, None]
        size = 0.5 * j * (j - 1.0) * mu**2 * np.ones_like(k)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            moment = np.where(size < 30.0, np.log(np.expm1(size)), size)
            choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
            absent = np.where(order > j, (order - j) * np.log1p(-q), 0.0)
            terms = choose + absent + j * np.log(q) + moment + log_mass
        terms = terms[np.isfinite(terms)]
        excess = terms.max() + math.log(np.sum(np.exp(terms - terms.max())))
        found.append((math.exp(excess) if excess < -30.0 else np.logaddexp(0.0, excess)) / (order - 1.0))
    return np.array(found)


def by_quadrature(n, rate, noise, order, value):
    """1 + E_k of the integral of value(x, q, mu_k) over x, aggregate."""
    total = 1.0
    for k, log_mass in zip(*log_counts(n, rate)):
        mu = (2.0 / noise) / math.sqrt(k)
        edges = [-12.0, 0.0, 0.5 * mu, mu, order * mu + 14.0]
        parts = (
            integrate.quad(lambda x, k=k, mu=mu: value(x, k / n, mu), a, b, epsabs=0, limit=200)[0]
            for a, b in itertools.pairwise(edges)
        )
        total += math.exp(log_mass) * sum(parts)
    return math.log(total) / (order - 1.0)


def density(x):
    return math.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def symmetric(order):
    """What the profile of P||Q in both directions gives: F of the kernel's docstring, where the ratio is above one."""

    def value(x, q, mu):
        ratio = 1.0 + q * math.expm1(mu * x - 0.5 * mu * mu)
        return density(x) * (ratio**order - ratio) * (1.0 - ratio**-order) if ratio > 1.0 else 0.0

    return value


def one_way(order, here, there):
    """E_Q of R^order - 1 - order (R - 1), the client at one of two places, all others at 0 (in units of mu_k)."""

    def value(x, q, mu):
        first, second = ((1.0 - q) * density(x) + q * density(x - at * mu) for at in (here, there))
        if second < 1e-290:
            return 0.0
        ratio = first / second
        return second * (ratio**order - 1.0 - order * (ratio - 1.0))

    return value


def ours(n, rate, noise, orders, view="aggregate", call=cj.rdp):
    run = cj.ShuffledCheckIn(num_clients=n, check_in_prob=rate)
    return call(run, cj.Gaussian(noise_multiplier=noise), orders, view=view)


@pytest.mark.parametrize(
    ("n", "rate", "noise", "excess"),
    [(60_000, 0.1, 1.42, 0.015), (2000, 0.5, 8.0, 0.004), (200, 0.1, 1.0, 0.28), (20, 0.9, 1.0, 0.02)],
)
def test_sums_are_above_the_pair_and_near_it_at_whole_orders(n, rate, noise, excess):
    exact = whole_orders(n, rate, noise, WHOLE, True)
    found = ours(n, rate, noise, WHOLE)
    assert (found >= exact * (1 - 1e-12)).all()
    assert (found <= exact * (1 + excess)).all()


@pytest.mark.parametrize(("n", "rate", "noise"), [(60_000, 0.01, 0.8)])
def test_subsampled_messages_are_above_the_pair_where_nothing_else_helps(n, rate, noise):
    orders = [64]
    exact = whole_orders(n, rate, noise, orders, False)
    found = ours(n, rate, noise, orders, "messages")
    assert (found >= exact * (1 - 1e-12)).all()
    assert (found <= exact * 1.003).all()


@pytest.mark.parametrize(("n", "rate", "noise"), [(1, 1.0, 2.0), (12, 0.4, 1.5)])
def test_real_orders_are_above_the_symmetric_pair_and_within_a_part_in_a_thousand(n, rate, noise):
    orders = np.array([1.2, 1.9, 2.7, 6.5])
    exact = [by_quadrature(n, rate, noise, order, symmetric(order)) for order in orders]
    ratio = ours(n, rate, noise, orders) / exact
    assert (ratio >= 1 - 1e-9).all() or n == 1  # a message by itself is exact and smaller
    assert (ratio <= 1.001).all()


@pytest.mark.parametrize("order", [1.4, 3.3])
@pytest.mark.parametrize(("here", "there"), [(1, 0), (0, 1), (0.5, -0.5), (0.25, -0.75), (-0.75, 0.25)])
def test_sums_are_above_every_pair_of_records(order, here, there):
    exact = by_quadrature(12, 0.4, 1.5, order, one_way(order, here, there))
    assert ours(12, 0.4, 1.5, [order])[0] >= exact * (1 - 1e-9)


def test_messages_are_above_the_real_multiset_of_two():
    """Two clients, both in with probability 1/4, the other one at the second record: all messages, unordered."""
    mu, step = 1.0, 0.05
    x = np.arange(-8.0, 12.0, step)
    f0, f1 = (np.exp(-0.5 * (x - at) ** 2) / math.sqrt(2 * math.pi) for at in (0.0, mu))
    one = 0.5 * (f0 + f1), f0
    two = 0.5 * (np.outer(f1, f0) + np.outer(f0, f1)), np.outer(f0, f0)
    orders = np.array([1.5, 2.0, 5.0])
    found = ours(2, 0.5, 2.0 / mu, orders, "messages")
    for order, value in zip(orders, found):
        for way in (0, 1):
            moment = 0.25
            for mass, size, pair in ((0.5, step, one), (0.25, step**2, two)):
                p, q = pair if way == 0 else pair[::-1]
                moment += mass * size * np.sum(p**order * q ** (1.0 - order))
            assert value >= math.log(moment) / (order - 1.0) * (1 - 1e-9)


def test_lower_ends_are_below_the_pair_and_near_it():
    exact = whole_orders(60_000, 0.1, 1.42, WHOLE[:4], True)
    found = ours(60_000, 0.1, 1.42, WHOLE[:4], call=cj.rdp_lower)
    assert (found <= exact).all()
    assert (found >= exact * 0.998).all()
    for order in (1.4, 3.3):
        both = [by_quadrature(12, 0.4, 1.5, order, one_way(order, *places)) for places in ((1, 0), (0, 1))]
        assert 0.99 * max(both) <= ours(12, 0.4, 1.5, [order], call=cj.rdp_lower)[0] <= max(both)


NOISE, PURE = cj.Gaussian(noise_multiplier=2.0), cj.PureLDP(epsilon0=1.5)
SLOTTED = cj.FixedWindow(num_clients=5000, num_slots=100, check_in_prob=0.5, num_epochs=3)


@pytest.mark.parametrize(
    ("run", "randomizer", "view"),
    [
        (cj.ShuffledCheckIn(num_clients=300, check_in_prob=0.2, num_rounds=5), PURE, "messages"),
        (cj.Shuffle(num_clients=300), NOISE, "aggregate"),
        (SLOTTED, NOISE, "messages"),
        (cj.ShuffledCheckIn(num_clients=300, check_in_prob=0.2), NOISE, "local"),
        (cj.ShuffledCheckIn(num_clients=300, check_in_prob=0.2), PURE, "local"),
    ],
)
def test_lower_ends_are_below_upper_ends(run, randomizer, view):
    orders = [1.1, 2.0, 9.5]
    upper, lower = (call(run, randomizer, orders, view=view) for call in (cj.rdp, cj.rdp_lower))
    assert (lower <= upper).all()
    assert (lower > 0).all()
    assert (np.diff(upper) >= 0).all()


def test_orders_do_not_depend_on_their_company_and_have_no_end():
    together = np.append(np.geomspace(1.01, 300.0, 12), [1e30, 1.7e308])
    whole = ours(60_000, 0.1, 1.42, together)
    alone = [ours(60_000, 0.1, 1.42, [order])[0] for order in together[:12:4]]
    np.testing.assert_allclose(whole[:12:4], alone, rtol=1e-12)
    assert np.isfinite(whole).all()
    assert (np.diff(whole) > 0).all()


def test_cost_does_not_grow_with_n():
    sizes = []
    for n in (10**8, 10**12):
        bound = gaussian_labels.ShuffledGaussian(n, 0.1, 1.0, True, 100.0)
        labels = gaussian_labels.labels_of(bound, 1.0)
        sizes.append(len(labels.mu) * len(gaussian_moments.nodes(labels, 32.0)))
    assert sizes[1] < 1.5 * sizes[0]


def test_a_sweep_brackets_divergences():
    run, noise = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1), cj.Gaussian(noise_multiplier=1.42)
    about = {"num_clients": 60_000, "check_in_prob": 0.1, "noise_multiplier": 1.42, "view": "aggregate"}
    both = cj.sweep(what="rdp-bracket", order=[1.5, 0.5, 8.0], **about)
    for name, asked in (("rdp", cj.rdp), ("lower", cj.rdp_lower)):
        np.testing.assert_array_equal(both[name][[0, 2]], asked(run, noise, [1.5, 8.0], view="aggregate"))
    assert both["method"][0] == "subsampling, RDP"
    assert "order" in both["error"][1]


def test_counts_that_are_left_out_are_no_bound(monkeypatch):
    """Few messages are rare, but they have little noise: large orders are ruled by them."""
    exact = whole_orders(60_000, 0.1, 1.42, [128], True)
    monkeypatch.setattr(gaussian_moments, "_of_rare", lambda rare, order: np.full((len(order), 1), -np.inf))
    assert (ours(60_000, 0.1, 1.42, [128]) < exact).all()


def test_mass_at_the_lower_node_is_no_bound(monkeypatch):
    right = gaussian_moments._log_f

    def wrong(losses, orders):
        return right(np.maximum(np.append(0.0, losses[:-1]), 1e-3 * losses[0]), orders)

    exact = by_quadrature(12, 0.4, 1.5, 2.7, symmetric(2.7))
    monkeypatch.setattr(gaussian_moments, "_log_f", wrong)
    assert ours(12, 0.4, 1.5, [2.7])[0] < exact
