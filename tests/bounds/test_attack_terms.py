"""Attack terms against exact trade-off curves: every end on its side, close, and wrong duals that must fail."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import scipy.special
from scipy.stats import norm

import checkin_jax as cj
from checkin_jax.accounting import attack
from checkin_jax.accounting.bounds.interface import AsymmetricBound, LocalGaussian, LocalPureLDP
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.privacy_profile import Sides
from tests.oracles import pairs

FPRS = np.array([0.0, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
DELTA = 1e-6


def terms_of(rounds, delta=DELTA):
    return attack.attack_terms(rounds, delta, compose.bracket(rounds, delta))


def best_tpr(p, q, fprs):
    """Neyman and Pearson: P(A) of the best (randomised) A with Q(A) = fpr."""
    with np.errstate(divide="ignore"):
        order = np.argsort(-np.where(q > 0, p / np.maximum(q, 1e-300), np.inf), kind="stable")
    x, y = (np.append(0.0, np.cumsum(part[order])) for part in (q, p))
    return np.interp(fprs, x, y)


def composed(p, q, times):
    first, second = np.ones(1), np.ones(1)
    for _ in range(times):
        first, second = np.outer(first, p).ravel(), np.outer(second, q).ravel()
    return first, second


@dataclasses.dataclass(frozen=True, eq=False)
class Pair(AsymmetricBound):
    """Two laws on a few values, exactly: its own bound and its own witness."""

    p: np.ndarray
    q: np.ndarray

    name = "two laws"
    symmetric = False

    @property
    def largest_loss(self):
        ratios = np.concatenate([self.p / self.q, self.q / self.p])
        return float(np.log(np.max(ratios))) * (1.0 + 1e-12)

    @property
    def grid_bound(self):
        return self

    @property
    def witnesses(self):
        return (self,)

    def upper_sides(self, loss):
        c = np.exp(loss)[:, None]
        return tuple(
            np.sum(np.maximum(a - c * b, 0.0), axis=1) * (1.0 + 1e-12) + 1e-300
            for a, b in ((self.p, self.q), (self.q, self.p))
        )

    def lower(self, loss):
        c = np.exp(loss)[:, None]
        lines = []
        for a, b in ((self.p, self.q), (self.q, self.p)):
            inside = a > c * b
            difference = np.sum(np.where(inside, a - b, 0.0), axis=1) * (1.0 - 1e-12)
            lines.append((difference, np.sum(np.where(inside, b, 0.0), axis=1) * (1.0 + 1e-12)))
        return tuple(lines)


PAIRS = [
    (np.array([0.3, 0.3, 0.4]), np.array([0.1, 0.5, 0.4])),
    (np.array([0.02, 0.18, 0.8]), np.array([0.001, 0.249, 0.75])),
    (np.array([0.5, 0.5]), np.array([0.45, 0.55])),
]


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize(("p", "q"), PAIRS)
@pytest.mark.thorough(but=2)
def test_two_laws_that_differ_in_their_directions(p, q, times):
    """The attacker may call either of them positive; all ends meet the exact ones."""
    terms = terms_of([(Pair(p, q), times)])
    first, second = composed(p, q, times)
    forward, backward = best_tpr(first, second, FPRS), best_tpr(second, first, FPRS)
    exact = np.maximum(forward, backward)
    lower, upper = terms.trade_off(FPRS)
    assert np.all(upper >= exact * (1.0 - 1e-12)), upper - exact
    assert np.all(lower <= exact * (1.0 + 1e-12)), lower - exact
    assert np.all(upper <= exact * 1.03 + DELTA)
    # Lower laws of a few atoms are coarse: of a rare large loss half is lost.
    assert np.all(lower >= exact * (0.45 if p[0] < 0.1 else 0.94) - DELTA)
    advantage = 0.5 * np.sum(np.abs(first - second))
    assert terms.advantage.lower <= advantage * (1.0 + 1e-12) <= terms.advantage.upper * (1.0 + 2e-12)
    assert terms.advantage.upper - terms.advantage.lower <= 0.2 * advantage
    # One of the two orders alone tells less than the truth.
    one_sided = [attack._most_tpr(np.exp(terms.curve.losses), terms.curve.upper, rate) for rate in FPRS]
    if not np.allclose(forward, backward, atol=1e-3):
        swapped = Sides(terms.curve.upper.backward, terms.curve.upper.forward)
        other = [attack._most_tpr(np.exp(terms.curve.losses), swapped, rate) for rate in FPRS]
        assert np.any(np.array(one_sided) < exact - 1e-3) or np.any(np.array(other) < exact - 1e-3)


@pytest.mark.parametrize(("p", "q"), PAIRS[:2])
@pytest.mark.thorough(but=1)
def test_posterior_is_the_quantile_of_the_loss(p, q):
    first, second = composed(p, q, 4)
    for delta in (1e-3, 0.02, 0.3):
        terms = terms_of([(Pair(p, q), 4)], delta)
        exact = 0.0
        for a, b in ((first, second), (second, first)):
            loss = np.log(a / b)
            order = np.argsort(-loss)
            mass = np.cumsum(a[order])
            # The least loss that is exceeded with probability delta at most.
            exact = max(exact, float(loss[order][np.flatnonzero(mass > delta)[0]]))
        for prior in (0.001, 0.3, 0.9):
            belief = prior * math.exp(exact) / (1.0 - prior + prior * math.exp(exact))
            found = terms.posterior(prior)
            assert found.lower <= belief * (1.0 + 1e-9)
            assert found.upper >= belief * (1.0 - 1e-9)


@pytest.mark.parametrize(
    "rounds",
    [
        [(LocalGaussian(1.0, 0.3), 9)],
        [(LocalGaussian(1.0, 0.3), 4), (LocalGaussian(1.0, 0.5), 3)],
        [(LocalGaussian(1.0, 2.0), 2), (LocalGaussian(1.0, 1.0), 4)],
        [(LocalGaussian(1.0, 1.3), 1)],
    ],
    ids=["counted", "composed", "strong", "one"],
)
@pytest.mark.thorough(but=2)
def test_gaussian_in_closed_form(rounds):
    terms = terms_of(rounds)
    mu = math.sqrt(sum(one.mu**2 * count for one, count in rounds))
    exact = norm.cdf(norm.ppf(FPRS) + mu)
    lower, upper = terms.trade_off(FPRS)
    assert np.all(upper >= exact * (1.0 - 1e-12))
    assert np.all(lower <= exact * (1.0 + 1e-12))
    inside = FPRS >= 1e-3
    np.testing.assert_allclose(upper[inside], exact[inside], rtol=5e-3)
    np.testing.assert_allclose(lower[inside], exact[inside], rtol=1e-2)
    advantage = 2.0 * norm.cdf(mu / 2.0) - 1.0
    assert terms.advantage.lower <= advantage <= terms.advantage.upper
    assert terms.advantage.upper - terms.advantage.lower <= 3e-3 * advantage
    # mu itself is enough, with delta to spare; a little less is not.
    assert terms.mu.lower <= mu
    assert mu * (1.0 - 1e-2) <= terms.mu.lower <= terms.mu.upper <= mu * (1.0 + 5e-3)
    loss = mu * mu / 2.0 + mu * norm.isf(DELTA)
    for prior in (0.01, 0.5):
        belief = scipy.special.expit(scipy.special.logit(prior) + loss)
        assert terms.posterior(prior).lower <= belief <= terms.posterior(prior).upper


def gaussian_profile(mu, loss):
    return norm.cdf(mu / 2.0 - loss / mu) - np.exp(loss) * norm.cdf(-mu / 2.0 - loss / mu)


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.05])
@pytest.mark.thorough(but=1)
def test_mu_is_the_least_but_for_delta(delta):
    """Of two laws on three values: the Gaussian of the upper end is above the exact profile, but for delta."""
    p, q = PAIRS[0]
    terms = terms_of([(Pair(p, q), 4)], delta)
    first, second = composed(p, q, 4)
    loss = np.linspace(0.0, 6.0, 2001)

    def needed(a, b):
        return np.sum(np.maximum(a[None, :] - np.exp(loss)[:, None] * b[None, :], 0.0), axis=1)

    exact = np.maximum(needed(first, second), needed(second, first))
    assert np.all(gaussian_profile(terms.mu.upper, loss) + delta >= exact - 1e-12)
    assert np.any(gaussian_profile(terms.mu.lower * (1.0 - 1e-6), loss) + delta < exact)
    assert terms.mu.upper <= terms.mu.lower * 1.01
    # So no attack does better than against N(mu, 1), plus delta.
    best = np.maximum(best_tpr(first, second, FPRS), best_tpr(second, first, FPRS))
    assert np.all(norm.cdf(norm.ppf(FPRS) + terms.mu.upper) + delta >= best - 1e-12)


def response(epsilon0):
    p = 1.0 / (1.0 + math.exp(-epsilon0))
    return np.array([p, 1.0 - p])


def test_randomized_responses_of_several_kinds_exactly():
    kinds = [(0.5, 3), (1.5, 2)]
    terms = terms_of([(LocalPureLDP(1.0, epsilon0), count) for epsilon0, count in kinds])
    p, q = np.ones(1), np.ones(1)
    for epsilon0, count in kinds:
        a, b = composed(response(epsilon0), response(epsilon0)[::-1], count)
        p, q = np.outer(p, a).ravel(), np.outer(q, b).ravel()
    exact, (lower, upper) = best_tpr(p, q, FPRS), terms.trade_off(FPRS)
    assert np.all(lower <= exact * (1.0 + 1e-12))
    assert np.all(exact * (1.0 - 1e-12) <= upper)
    np.testing.assert_allclose(upper, exact, rtol=0.02, atol=DELTA)
    advantage = 0.5 * np.sum(np.abs(p - q))
    assert terms.advantage.lower <= advantage * (1 + 1e-12)
    assert advantage <= terms.advantage.upper


@pytest.mark.parametrize("num_rounds", [1, 2])
def test_shuffled_check_in_between_its_pairs(num_rounds):
    """3-ary randomized response reaches no more than `upper`, and T1's pair no less than `lower`."""
    num_clients, rate, epsilon0 = 3, 0.5, 1.0
    run = cj.ShuffledCheckIn(num_clients=num_clients, check_in_prob=rate, num_rounds=num_rounds)
    g = cj.account(run, cj.PureLDP(epsilon0=epsilon0), delta=1e-6, bounds="clones")
    weak = pairs.enumerate_pair(pairs.krr3_labels(math.exp(epsilon0), rate), num_clients)
    strong = pairs.enumerate_pair(pairs.t1_labels(math.exp(epsilon0), rate), num_clients)
    lower, upper = g.attack.trade_off(FPRS)
    attained = best_tpr(*composed(*weak, num_rounds), FPRS)
    assert np.all(upper >= attained * (1.0 - 1e-12))
    assert np.all(lower <= best_tpr(*composed(*strong, num_rounds), FPRS) * (1.0 + 1e-12))
    assert np.all(lower >= attained * (1.0 - 0.01) - 1e-6), "at least what 3-ary response reaches"
    total = 0.5 * np.sum(np.abs(np.subtract(*composed(*weak, num_rounds))))
    assert total * (1.0 - 1e-2) <= g.advantage.lower <= g.advantage.upper
    # Both from the whole profile: what (epsilon, delta) alone allows at an fpr of 0.1 is far more.
    alone = min(0.1 * math.exp(g.epsilon) + g.delta, 1.0 - math.exp(-g.epsilon) * (1.0 - g.delta - 0.1))
    assert g.tpr(0.1).upper <= alone


@pytest.mark.parametrize("num_rounds", [1, 40])
def test_added_or_removed_clients(num_rounds):
    """Directed bounds: at least the profile of the message that is surely used, at most the larger direction's dual."""
    run = cj.SlidingWindow(num_clients=40 + 3, window=4)
    g = cj.account(
        run, cj.Gaussian(noise_multiplier=2.0), delta=1e-5, neighboring_relation="add-or-remove-one"
    )
    assert 0.0 < g.advantage.lower <= g.advantage.upper < 1.0
    lower, upper = g.attack.trade_off(FPRS)
    alone = np.minimum(FPRS * math.exp(g.epsilon) + g.delta, 1.0)
    assert np.all(lower <= upper)
    assert np.all(upper <= alone * (1.0 + 1e-9))


def test_ends_are_ordered_and_monotone():
    run = cj.ShuffledCheckIn(num_clients=2_000, check_in_prob=0.2, num_rounds=30)
    g = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-5, bounds="fast")
    rates = np.linspace(0.0, 1.0, 101)
    lower, upper = g.attack.trade_off(rates)
    assert np.all(rates <= lower)
    assert np.all(lower <= upper)
    assert np.all(np.diff(upper) >= 0)
    assert lower[-1] == upper[-1] == 1.0
    assert np.max(upper - rates) <= g.advantage.upper * (1.0 + 1e-3), "advantage is the largest difference"
    beliefs = [g.posterior(prior) for prior in (0.01, 0.5, 0.99)]
    for (low, high), prior in zip(beliefs, (0.01, 0.5, 0.99)):
        assert prior <= low <= high <= scipy.special.expit(scipy.special.logit(prior) + 1.4 * g.epsilon)


@pytest.mark.parametrize("delta", [1e-300, 0.4, 0.9, 1.0])
@pytest.mark.thorough(but=1)
def test_every_delta_has_terms(delta):
    run = cj.ShuffledCheckIn(num_clients=3, check_in_prob=0.5, num_rounds=2)
    g = cj.account(run, cj.PureLDP(epsilon0=1.0), delta=delta, bounds="clones")
    other = cj.account(run, cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds="clones")
    # The advantage does not depend on delta, but for what is left out.
    assert g.advantage.upper == pytest.approx(other.advantage.upper, rel=1e-3)
    assert g.advantage.lower <= other.advantage.upper
    assert g.tpr(0.1).lower <= other.tpr(0.1).upper
    assert other.tpr(0.1).lower <= g.tpr(0.1).upper


@pytest.mark.parametrize("delta", [1e-6, 0.4])
def test_profiles_far_below_delta_have_terms(delta):
    """At loss 0, too: the grid still has a length, so that no slope is divided by zero."""
    g = cj.account(cj.Shuffle(num_clients=1), cj.PureLDP(epsilon0=1e-9), delta=delta)
    assert g.advantage.lower <= math.tanh(5e-10) <= g.advantage.upper
    belief = scipy.special.expit(1e-9)
    assert g.posterior(0.5).lower <= belief <= g.posterior(0.5).upper <= belief * (1.0 + 1e-8)


def test_no_privacy_is_said():
    run = cj.ShuffledCheckIn(num_clients=2, check_in_prob=1.0, num_rounds=60)
    g = cj.account(run, cj.PureLDP(epsilon0=20.0), delta=1e-6, view="local")
    assert g.advantage.upper == 1.0
    assert g.tpr(0.01).upper == 1.0
    assert g.as_dict(attack=True)["attack"]["mu"]["upper"] is None


def test_nothing_is_worked_out_before_it_is_asked_for(monkeypatch):
    monkeypatch.setattr("checkin_jax.accounting.guarantee.attack_terms", None)
    run = cj.ShuffledCheckIn(num_clients=3, check_in_prob=0.5, num_rounds=2)
    g = cj.account(run, cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds="clones")
    assert "advantage" not in str(g)
    assert "attack" not in g.as_dict()
    with pytest.raises(TypeError):
        _ = g.advantage


def test_statements_and_json():
    run = cj.ShuffledCheckIn(num_clients=3, check_in_prob=0.5, num_rounds=2)
    g = cj.account(run, cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds="clones")
    text = g.statement(attack=True)
    for line in ("advantage", "fpr 0.001", "mu ", "prior 0.5"):
        assert f"\n  {line}" in text
    values = json.loads(json.dumps(g.as_dict(attack=True), allow_nan=False))["attack"]
    assert values["advantage"] == g.advantage._asdict()
    assert [each["fpr"] for each in values["tpr"]] == list(attack.SHOWN_FPRS)
    assert values["tpr"][1]["upper"] == g.tpr(0.01).upper


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda g: g.tpr(1.5), "fpr"),
        (lambda g: g.tpr(float("nan")), "fpr"),
        (lambda g: g.posterior(0.0), "prior"),
        (lambda g: g.posterior(1.0), "prior"),
        (lambda g: g.attack.trade_off([0.1, 2.0]), "fprs"),
    ],
)
@pytest.mark.thorough(but=2)
def test_bad_input_is_refused(call, match):
    run = cj.ShuffledCheckIn(num_clients=3, check_in_prob=0.5, num_rounds=2)
    g = cj.account(run, cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds="clones")
    with pytest.raises(ValueError, match=match):
        call(g)


def test_a_dual_on_the_wrong_side_fails():
    """The lower end with the profile of the smaller loss of every interval, on a coarse grid, is above the truth."""
    p, q = PAIRS[0]
    first, second = composed(p, q, 2)
    coarse = np.linspace(0.0, 2.2, 5)
    sides = [
        np.sum(np.maximum(a[None, :] - np.exp(coarse)[:, None] * b[None, :], 0.0), axis=1)
        for a, b in ((first, second), (second, first))
    ]
    exact = best_tpr(first, second, FPRS)
    right = [attack._least_tpr(np.exp(coarse), Sides(*sides), rate) for rate in FPRS]
    assert np.all(np.array(right) <= exact + 1e-15)
    wrong = [attack._most_tpr(np.exp(coarse), Sides(*sides), rate) for rate in FPRS]
    assert np.any(np.array(wrong) > exact + 1e-3)


def test_pairs_of_the_test_are_what_they_should_be():
    """The oracle itself: Neyman and Pearson by trying every set of outcomes."""
    p, q = PAIRS[0]
    sets = [list(s) for r in range(4) for s in itertools.combinations(range(3), r)]
    for rate in (0.1, 0.5, 0.6):
        best = max((p[s].sum() for s in sets if q[s].sum() <= rate + 1e-12), default=0.0)
        assert best_tpr(p, q, np.array([rate]))[0] >= best - 1e-12
