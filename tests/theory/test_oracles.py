"""The oracles against closed forms and each other, and the theory (T1, L1, G1, conversions) against the oracles.

Nothing here touches the package: a failure means that an oracle or a theorem is wrong. Comparisons
of rationals are exact; float ones state their tolerance.
"""

from fractions import Fraction
from itertools import product
from math import comb, exp, isclose

import mpmath as mp
import numpy as np
import pytest
from oracles import (
    binomial,
    checkin_gaussian,
    composition,
    conversions,
    gaussian,
    krr,
    large,
    large_gaussian,
    pairs,
)
from scipy.stats import norm

CS = [Fraction(c) for c in ("1/9", "1/2", "9/10", "1", "5/4", "3/2", "19/10", "2", "5/2", "29/10", "4")]


def t1_exact(p, check_in_prob, num_clients):
    return pairs.exact_pair(pairs.t1_labels(p, check_in_prob), num_clients)


class TestBruteForce:
    def test_law_is_a_probability_with_binomial_total(self):
        gamma = Fraction(1, 3)
        law = krr.histogram_law((0, 2, 1, 1), krr.krr_channel(3, 2), gamma)
        for k in range(5):
            mass = sum(prob for seen, prob in law.items() if sum(seen) == k)
            assert mass == comb(4, k) * gamma**k * (1 - gamma) ** (4 - k)

    @pytest.mark.parametrize("k", [2, 3, 4])
    def test_single_client_closed_form(self, k):
        p, gamma = Fraction(3), Fraction(2, 5)
        worst = krr.worst_hockey_stick(krr.krr_channel(k, p), 1, gamma, [1, 2, 3, 4])
        assert worst == [gamma * max(p - c, 0) / (p + k - 1) for c in (1, 2, 3, 4)]

    @pytest.mark.parametrize("k", [2, 3])
    def test_one_replacement_covers_all_by_symmetry(self, k):
        args = (krr.krr_channel(k, 3), 3, Fraction(1, 4), CS)
        assert krr.worst_hockey_stick(*args, replaced=((0, 1),)) == krr.worst_hockey_stick(*args)

    def test_random_channels_are_channels_with_the_ratio(self):
        rng = np.random.default_rng(0)
        for k in (2, 3, 4):
            channel = krr.random_extremal_channel(rng, k, 5.0)
            assert np.allclose(np.sum(channel, axis=1), 1, rtol=0, atol=1e-14)
            assert isclose(krr.likelihood_ratio(channel), 5.0, rel_tol=1e-12)

    def test_two_rounds_without_adaptivity_are_a_product(self):
        channel, gamma, data = krr.krr_channel(2, 3), Fraction(1, 4), (0, 1, 1)
        one = krr.histogram_law(data, channel, gamma)
        two = krr.two_round_law(data, channel, lambda seen: channel, gamma)
        assert two == {(a, b): one[a] * one[b] for a, b in product(one, one)}


class TestT1:
    @pytest.mark.parametrize("gamma", [Fraction(1, 10), Fraction(1, 2), Fraction(1)])
    @pytest.mark.parametrize("p", [Fraction(2), Fraction(3)])
    def test_dominates_every_data_set_and_is_attained(self, p, gamma):
        """Exact: k = 2..4, n = 1..5, c below and above 1, both directions; ratio 1 for every n."""
        for n in range(1, 6):
            bound = [pairs.exact_profile(t1_exact(p, gamma, n), c) for c in CS]
            ratios = []
            for k in (2, 3, 4):
                worst = krr.worst_hockey_stick(krr.krr_channel(k, p), n, gamma, CS, replaced=((0, 1),))
                assert all(w <= b for w, b in zip(worst, bound))
                ratios += [w / b for w, b, c in zip(worst, bound, CS) if 1 <= c < p]
            assert max(ratios) == 1

    def test_dominates_random_channels_and_their_renyi_moments(self):
        rng = np.random.default_rng(1)
        orders = [1.2, 2.0, 3.5, 10.0]
        for _ in range(25):
            p, k, n = float(np.exp(rng.uniform(0.1, 3))), int(rng.integers(2, 4)), int(rng.integers(1, 5))
            gamma = float(rng.choice([0.05, 0.3, 0.7, 1.0]))
            channel = krr.random_extremal_channel(rng, k, p)
            pair = pairs.enumerate_pair(pairs.t1_labels(p, gamma), n)
            cs = p ** np.array([-0.5, 0.0, 0.1, 0.5, 0.9])
            worst = np.array(krr.worst_hockey_stick(channel, n, gamma, cs))
            assert (worst <= pairs.profile(pair, cs) * (1 + 1e-12) + 1e-15).all()
            moments = np.array(krr.worst_renyi_moment(channel, n, gamma, orders))
            assert (moments <= (1 + pairs.renyi_excess(pair, orders)) * (1 + 1e-12)).all()

    @pytest.mark.parametrize("gamma", [Fraction(1, 5), Fraction(1)])
    def test_two_adaptive_rounds_are_dominated_by_the_composed_pair(self, gamma):
        p, n = Fraction(2), 3
        one = t1_exact(p, gamma, n)
        composed = [(a * x, b * y) for a, b in one for x, y in one]
        binary = krr.krr_channel(2, p)
        separating = [binary[0], binary[1], binary[1]]
        ignoring = [binary[0], binary[1], binary[0]]
        cs = [Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(9, 5), Fraction(3)]
        bound = [pairs.exact_profile(composed, c) for c in cs]
        for data, neighbour in krr.neighbouring_data_sets(3, n, ((0, 1), (1, 0), (0, 2))):
            laws = [
                krr.two_round_law(
                    records,
                    krr.krr_channel(3, p),
                    lambda seen: separating if seen[0] > seen[1] else ignoring,
                    gamma,
                )
                for records in (data, neighbour)
            ]
            assert all(krr.hockey_stick(*laws, c) <= b for c, b in zip(cs, bound))

    def test_pair_is_symmetric_and_normalised(self):
        atoms = t1_exact(Fraction(5, 2), Fraction(1, 3), 5)
        assert sum(p for p, _ in atoms) == sum(q for _, q in atoms) == 1
        for c in CS:
            here = pairs.exact_profile(atoms, c)
            assert here == pairs.exact_profile([(q, p) for p, q in atoms], c)
            assert here == 1 - c + c * pairs.exact_profile(atoms, 1 / c)

    def test_larger_check_in_prob_and_fewer_clients_are_safe(self):
        p, cs = Fraction(3), [c for c in CS if c >= 1]
        profiles = {
            (n, g): [pairs.exact_profile(t1_exact(p, g, n), c) for c in cs]
            for n in (2, 3, 4)
            for g in (Fraction(1, 4), Fraction(1, 2), Fraction(1))
        }
        for (n, g), (m, h) in product(profiles, profiles):
            if n >= m and g <= h:
                assert all(a <= b for a, b in zip(profiles[n, g], profiles[m, h]))

    def test_hiding_the_number_of_messages_is_not_a_bound(self):
        """The trap: 8.6 times too small at a delta of 0.16, and 50^4 times near the edge."""
        p, n, binary = Fraction(50), 5, krr.krr_channel(2, 50)
        gamma, c = Fraction(9, 10), Fraction(353, 10)
        (true,) = krr.worst_hockey_stick(binary, n, gamma, [c], replaced=((0, 1),))
        assert true > 8 * pairs.exact_profile(pairs.exact_pair(pairs.trap_labels(p, gamma), n), c)
        gamma, c = Fraction(1, 100), Fraction(99, 2)
        (true,) = krr.worst_hockey_stick(binary, n, gamma, [c], replaced=((0, 1),))
        assert true == p**4 * pairs.exact_profile(pairs.exact_pair(pairs.trap_labels(p, gamma), n), c)
        assert true <= pairs.exact_profile(t1_exact(p, gamma, n), c)

    def test_unequal_check_in_rates_break_it_even_at_the_largest_rate(self):
        """Assumption of equal rates: others who hardly check in leave the target alone, 16.8 times."""
        p, binary = Fraction(3), krr.krr_channel(2, 3)
        p_law = q_law = {(0, 0): Fraction(1)}
        for _ in range(3):
            p_law, q_law = (krr.add_client(law, binary[1], Fraction(1, 100)) for law in (p_law, q_law))
        p_law, q_law = (krr.add_client(law, binary[x], Fraction(1, 2)) for x, law in ((0, p_law), (1, q_law)))
        c = Fraction(5, 2)
        bound = pairs.exact_profile(t1_exact(p, Fraction(1, 2), 4), c)
        assert krr.hockey_stick(p_law, q_law, c) > 16 * bound


class TestL1:
    @pytest.mark.parametrize("gamma", [Fraction(1, 10), Fraction(1, 2), Fraction(1)])
    @pytest.mark.parametrize("p", [Fraction(3, 2), Fraction(2), Fraction(5)])
    def test_equals_brute_force_exactly(self, p, gamma):
        ternary, binary = krr.krr_channel(3, p), krr.krr_channel(2, p)
        for n in range(1, 6):
            atoms = pairs.exact_pair(pairs.krr3_labels(p, gamma), n)
            two = pairs.exact_pair(pairs.binary_rr_labels(p, gamma), n)
            swapped = [(b, a) for a, b in two]
            p_law, q_law = (krr.histogram_law((*[2] * (n - 1), x), ternary, gamma) for x in (0, 1))
            p_two, q_two = (krr.histogram_law((*[1] * (n - 1), x), binary, gamma) for x in (0, 1))
            for c in CS:
                assert pairs.exact_profile(atoms, c) == krr.hockey_stick(p_law, q_law, c)
                assert pairs.exact_profile(two, c) == krr.hockey_stick(p_two, q_two, c)
                assert pairs.exact_profile(swapped, c) == krr.hockey_stick(q_two, p_two, c)


class TestPairs:
    @pytest.mark.parametrize("labels", [pairs.t1_labels, pairs.krr3_labels, pairs.binary_rr_labels])
    def test_float_enumeration_agrees_with_rationals(self, labels):
        exact = pairs.exact_pair(labels(Fraction(7, 2), Fraction(1, 4)), 8)
        pair = pairs.enumerate_pair(labels(3.5, 0.25), 8)
        assert np.allclose(pair.p, [float(a) for a, _ in exact], rtol=1e-14, atol=0)
        assert np.allclose(pair.q, [float(b) for _, b in exact], rtol=1e-14, atol=0)

    def test_renyi_moment_by_definition(self):
        pair = pairs.enumerate_pair(pairs.t1_labels(4.0, 0.3), 20)
        seen = pair.q > 0
        for order in (1.3, 2.0, 7.0):
            moment = (pair.p[seen] ** order * pair.q[seen] ** (1 - order)).sum()
            assert isclose(1 + pairs.renyi_excess(pair, [order])[0], moment, rel_tol=1e-12)

    @pytest.mark.parametrize("gamma", [0.07, 0.6, 1.0])
    @pytest.mark.parametrize("labels", [pairs.t1_labels, pairs.krr3_labels])
    def test_windowed_reference_agrees_with_enumeration(self, labels, gamma):
        pair = pairs.enumerate_pair(labels(5.0, gamma), 120)
        cs, orders = [1.0, 1.02, 1.1, 1.5], [1.1, 2.0, 8.0, 32.0]
        windowed = large.large_profile(labels(5.0, gamma), 120, cs)
        assert np.allclose(windowed, pairs.profile(pair, cs), rtol=1e-12, atol=0)
        excess = large.large_renyi_excess(labels(5.0, gamma), 120, orders, nodes=24)
        assert np.allclose(excess, pairs.renyi_excess(pair, orders), rtol=1e-12, atol=0)

    def test_windowed_binary_pair_agrees_with_enumeration(self):
        pair = pairs.enumerate_pair(pairs.binary_rr_labels(3.0, 0.3), 100)
        windowed = large.large_binary_rr_pair(3.0, 0.3, 100)
        for a, b in ((pair, windowed), (pair.reversed(), windowed.reversed())):
            assert np.allclose(
                pairs.profile(a, [1.0, 1.1, 1.3]), pairs.profile(b, [1.0, 1.1, 1.3]), rtol=1e-12
            )

    def test_quadrature_is_exact_for_polynomials(self):
        values, pmf = large.binomial_window(50, 0.3)
        points, weights = large.binomial_quadrature(50, 0.3, 6)
        for degree in range(12):
            assert isclose(weights @ points**degree, pmf @ values.astype(float) ** degree, rel_tol=1e-12)


class TestComposition:
    PAIR = pairs.enumerate_pair(pairs.t1_labels(exp(1.5), 0.4), 12)

    def test_exact_composition_lies_between_the_roundings(self):
        law = composition.loss_law(self.PAIR)
        exact = composition.compose_exactly(law, 2)
        assert isclose(exact.masses.sum(), 1, rel_tol=1e-13)
        down, split, up = (
            composition.compose_on_grid(law, 2, 1e-4, rounding) for rounding in ("down", "split", "up")
        )
        for epsilon in (0.0, 0.3, 0.9, 1.4):
            delta = exact.delta(epsilon)
            assert down.delta(epsilon) - 1e-14 <= delta <= split.delta(epsilon) + 1e-14
            assert split.delta(epsilon) <= up.delta(epsilon) + 1e-14
            assert isclose(split.delta(epsilon), delta, rel_tol=1e-4)  # quadratic in the interval

    def test_loss_law_reproduces_the_profile(self):
        law = composition.loss_law(self.PAIR)
        for epsilon in (0.0, 0.2, 1.0):
            (direct,) = pairs.profile(self.PAIR, [exp(epsilon)])
            assert isclose(law.delta(epsilon), direct, rel_tol=1e-12)

    def test_agrees_with_dp_accounting(self):
        rounds, interval = 60, 2e-4
        optimistic, pessimistic = composition.dp_accounting_bracket(self.PAIR, rounds, interval)
        ours = composition.compose_on_grid(composition.loss_law(self.PAIR), rounds, interval / 4, "split")
        for epsilon in (0.5, 2.0, 4.0):
            low, high = (law.get_delta_for_epsilon(epsilon) for law in (optimistic, pessimistic))
            assert low <= ours.delta(epsilon) <= high

    def test_the_papers_setting(self):
        """n = 60000, check-in .1, eps0 = 2, 6800 rounds, delta 1e-6: 1.3567 (L1) <= eps <= 1.4422 (T1)."""
        figures = []
        for labels in (pairs.krr3_labels, pairs.t1_labels):
            law = composition.loss_law(large.large_pair(labels(exp(2.0), 0.1), 60000))
            figures.append(composition.compose_on_grid(law, 6800, 5e-5, "split").epsilon(1e-6))
        # the interval's error is quadratic: 2e-5 here, measured against 1e-6
        assert figures == pytest.approx([1.356726, 1.442159], abs=1e-4)


class TestGaussian:
    def test_profile_closed_forms(self):
        assert float(gaussian.delta_g(1, 1)) == pytest.approx(0.126936737506644, rel=1e-14)
        assert float(gaussian.delta_g(0.3, 0)) == pytest.approx(2 * norm.cdf(0.15) - 1, rel=1e-13)
        mirrored = 1 - mp.e**-1 + mp.e**-1 * gaussian.delta_g(2, 1)
        assert mp.almosteq(gaussian.delta_g(2, -1), mirrored, rel_eps=1e-14)

    @pytest.mark.parametrize("delta", ["1e-300", "1e-15", "1e-5", "0.4", "0.999"])
    @pytest.mark.parametrize("epsilon", [0.0, 0.1, 2.0, 30.0])
    def test_inverse(self, epsilon, delta):
        with mp.workdps(60):
            delta = mp.mpf(delta)
            assert abs(gaussian.delta_g(gaussian.mu_for(epsilon, delta), epsilon) / delta - 1) < 1e-40

    def test_g1_on_a_grid_is_g1(self):
        losses = np.array([-0.7, 0.0, 0.2, 1.0])
        for view in ("messages", "aggregate"):
            exact = [float(gaussian.g1_profile(50, 0.3, 1.2, mp.exp(e), view)) for e in losses]
            on_grid = large_gaussian.g1_profile_on_grid(50, 0.3, 1.2, losses, view)
            assert on_grid == pytest.approx(exact, rel=1e-10)

    def test_g1_with_everybody_in_is_the_gaussian(self):
        assert mp.almosteq(gaussian.g1_profile(1, 1.0, 1.5, 2, "messages"), gaussian.delta_g(1.5, mp.log(2)))

    @pytest.mark.parametrize("noise", [0.5, 3.0])
    @pytest.mark.parametrize("gamma", [0.2, 1.0])
    @pytest.mark.parametrize("n", [1, 2, 3, 5])
    def test_g1_dominates_the_exact_aggregate_and_is_attained(self, n, gamma, noise):
        """Others anywhere in [-1, 1], both directions; equality when all others sit on x'."""
        cs = [0.3, 0.8, 1.0, 1.1, 1.5, 4.0]
        bound = [float(gaussian.g1_profile(n, gamma, 2 / noise, c, "aggregate")) for c in cs]
        rng = np.random.default_rng(n)
        for others in ([-1.0] * (n - 1), [0.0] * (n - 1), rng.uniform(-1, 1, n - 1).tolist()):
            for x, x_other in ((1.0, -1.0), (-1.0, 1.0), (0.7, -1.0)):
                exact = checkin_gaussian.aggregate_hockey_stick(
                    [*others, x], [*others, x_other], gamma, noise, cs
                )
                assert all(e <= b * (1 + 1e-12) + 1e-15 for e, b in zip(exact, bound))
        attained = checkin_gaussian.aggregate_hockey_stick(
            [*[-1.0] * (n - 1), 1.0], [-1.0] * n, gamma, noise, cs
        )
        assert attained[2:] == pytest.approx(bound[2:], rel=1e-12, abs=1e-15)

    @pytest.mark.parametrize(("n", "gamma"), [(2, 0.3), (3, 0.7), (4, 1.0)])
    def test_g1_dominates_the_messages(self, n, gamma):
        cs = [1.0, 1.2, 2.0, 5.0]
        for noise in (0.8, 4.0):
            bound = [float(gaussian.g1_profile(n, gamma, 2 / noise, c, "messages")) for c in cs]
            for others in ([-1.0, -1.0, -1.0], [0.0, 0.0, 0.0], [1.0, -1.0, 0.3]):
                exact = checkin_gaussian.messages_mechanism_hockey_stick(
                    [*others[: n - 1], 1.0], [*others[: n - 1], -1.0], gamma, noise, cs, [0, 300, 60, 25]
                )
                assert all(e <= b for e, b in zip(exact, bound))


class TestGaussianMechanism:
    def test_single_client_is_the_gaussian_profile(self):
        exact = checkin_gaussian.mixture_hockey_stick([2.0], [0.0], 1.6, [0.7, 1.0, 3.0, 100.0])
        expected = [float(gaussian.delta_g(2 / 1.6, mp.log(c))) for c in (0.7, 1.0, 3.0, 100.0)]
        assert exact == pytest.approx(expected, rel=1e-11)

    def test_binned_messages_increase_to_the_exact_value(self):
        data, neighbour, cs = [0.0, 0.3, 1.0], [0.0, 0.3, -1.0], [1.0, 1.5]
        exact = checkin_gaussian.mixture_hockey_stick(data, neighbour, 1.0, cs)
        (coarse, fine) = (
            checkin_gaussian.messages_hockey_stick(data, neighbour, 1, 1.0, cs, cells) for cells in (100, 800)
        )
        for low, high, value in zip(coarse, fine, exact):
            assert low <= value * (1 + 1e-13)
            assert value * (1 - 1e-4) <= high <= value * (1 + 1e-13)  # cells of 0.02 standard deviations

    def test_permanents_agree_with_histograms(self):
        """With everybody in and three cells, the messages are a finite channel of `krr`."""
        records, others, cs = [1.0, -1.0], [0.2, -0.5], [1.0, 1.3]
        edges = np.linspace(-8, 8, 2)
        channel = checkin_gaussian.binned_channel([*records, *others], 1.0, edges).tolist()
        laws = [krr.histogram_law((2, 3, x), channel, 1.0) for x in (0, 1)]
        direct = checkin_gaussian.messages_hockey_stick(
            [*others, records[0]], [*others, records[1]], 3, 1.0, cs, 3
        )
        assert direct == pytest.approx([krr.hockey_stick(*laws, c) for c in cs], rel=1e-12)


class TestBinomial:
    def test_pmf_against_rationals(self):
        q = 0.3
        exact = Fraction(q)
        for k in range(31):
            value = comb(30, k) * exact**k * (1 - exact) ** (30 - k)
            with mp.workdps(60):
                ratio = binomial.pmf(30, k, q) * value.denominator / value.numerator
                assert abs(ratio - 1) < 1e-40

    @pytest.mark.parametrize("n", [10**6, 10**12])
    def test_corners_and_mode(self, n):
        q = 0.1
        with mp.workdps(60):
            assert mp.almosteq(binomial.log_pmf(n, 0, q), n * mp.log1p(-mp.mpf(q)), rel_eps=1e-45)
            assert mp.almosteq(binomial.log_pmf(n, n, q), n * mp.log(mp.mpf(q)), rel_eps=1e-45)
            peak = -mp.log(2 * mp.pi * n * mp.mpf(q) * (1 - mp.mpf(q))) / 2
            assert abs(binomial.log_pmf(n, n // 10, q) - peak) < mp.mpf(2) / n
        assert binomial.log_pmf(n, n + 1, q) == mp.ninf
        assert binomial.log_pmf(n, n, 1.0) == 0
        assert binomial.log_pmf(n, 0, 1.0) == mp.ninf


class TestConversions:
    ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

    def test_equals_dp_accounting_where_that_is_positive(self):
        for scale, delta in product((1e-3, 0.05, 1.0), (1e-3, 1e-10, 1e-100)):
            rdp = [scale * order for order in self.ORDERS]
            ours = conversions.epsilon_from_rdp(self.ORDERS, rdp, delta)
            assert float(ours) == pytest.approx(
                conversions.dp_accounting_epsilon(self.ORDERS, rdp, delta), rel=1e-12
            )

    def test_dp_accounting_has_an_extra_rule_for_tiny_divergences(self):
        assert conversions.epsilon_from_rdp([2.0], [1e-12], 1e-5) > 10
        assert conversions.dp_accounting_epsilon([2.0], [1e-12], 1e-5) == 0

    @pytest.mark.parametrize("n", [5, 40])
    def test_is_an_upper_bound_for_t1(self, n):
        pair = pairs.enumerate_pair(pairs.t1_labels(exp(2.0), 0.5), n)
        law, rdp = composition.loss_law(pair), pairs.rdp(pair, self.ORDERS)
        for delta in (1e-2, 1e-5, 1e-9):
            assert conversions.epsilon_from_rdp(self.ORDERS, rdp, delta) >= law.epsilon(delta)
