"""The oracles of random check-ins against hand calculation, closed forms and each other, without the package."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from oracles import krr, large, pairs, windows
from oracles import random_check_ins as rci

F = Fraction
CS = [F(c) for c in ("1/3", "9/10", "1", "5/4", "2", "5/2", "29/10")]


def total(used):
    return sum(used.values())


class TestSelection:
    @pytest.mark.parametrize("p0", [F(3, 10), F(1)])
    @pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 3), (2, 2), (3, 4), (4, 3)])
    def test_fixed_window_uses_a_client_as_often_as_the_closed_form_says(self, n, m, p0):
        used = rci.fixed_window(n, m, p0)
        assert total(used) == 1
        for client in range(n):
            for slot in range(m):
                hit = sum(mass for clients, mass in used.items() if clients[slot] == client)
                assert hit == rci.fixed_window_use(n, m, p0) / m

    @pytest.mark.parametrize(("n", "window"), [(1, 1), (4, 2), (4, 4), (5, 3), (6, 4)])
    def test_sliding_window_uses_a_client_as_often_as_the_closed_form_says(self, n, window):
        used = rci.sliding_window(n, window)
        assert total(used) == 1
        per_client = []
        for client in range(n):
            hits = [
                sum(mass for clients, mass in used.items() if clients[slot] == client)
                for slot in range(n - window + 1)
            ]
            assert {h for h in hits if h} <= {(1 - (1 - F(1, window)) ** window) / window}
            per_client.append(sum(hits))
        assert max(per_client) == rci.sliding_window_use(n, window)

    @pytest.mark.parametrize("p0", [F(3, 10), F(1)])
    @pytest.mark.parametrize(("n", "m"), [(1, 2), (3, 2), (4, 3), (2, 4)])
    def test_occupied_slots_are_a_uniform_ordered_sample(self, n, m, p0):
        """Given which slots are occupied every ordered sample of clients is equally likely (the step of T2')."""
        groups, law = {}, [F(0)] * (m + 1)
        for clients, mass in rci.fixed_window(n, m, p0).items():
            occupied = tuple(i is not rci.EMPTY for i in clients)
            groups.setdefault(occupied, []).append(mass)
            law[sum(occupied)] += mass
        assert law == rci.occupancy(n, m, p0)
        for occupied, masses in groups.items():
            k = sum(occupied)
            assert len(masses) == np.prod([n - i for i in range(k)], dtype=int)
            assert len(set(masses)) == 1

    def test_occupancy_moments(self):
        n, m, p0 = 7, 5, F(2, 3)
        law = rci.occupancy(n, m, p0)
        mean = sum(k * mass for k, mass in enumerate(law))
        variance = sum(k * k * mass for k, mass in enumerate(law)) - mean**2
        empty, both = (1 - p0 / m) ** n, (1 - 2 * p0 / m) ** n
        assert total(dict(enumerate(law))) == 1
        assert mean == m * (1 - empty)
        assert variance == m * empty + m * (m - 1) * both - (m * empty) ** 2

    @pytest.mark.parametrize(("n", "m", "p0"), [(9, 6, 1.0), (9, 6, 0.4), (4, 8, 0.9)])
    def test_occupancy_is_a_sum_of_independent_indicators(self, n, m, p0):
        """The generating polynomial has min(n, m) real roots, none positive."""
        roots = np.roots(np.trim_zeros(rci.occupancy(n, m, p0)[::-1], "f"))
        assert len(roots) == min(n, m)
        assert np.abs(roots.imag).max() < 1e-6 * np.abs(roots).max()
        assert roots.real.max() < 1e-9

    @pytest.mark.parametrize("p0", [F(2, 5), F(1)])
    def test_generating_polynomial_of_one_more_client(self, p0):
        """G' = (1 - p0) G + p0 [z G + z (1 - z) G' / m], at more points than the degree."""
        n, m = 4, 3
        law, after = rci.occupancy(n, m, p0), rci.occupancy(n + 1, m, p0)
        for z in map(F, range(-3, 4)):
            g = sum(a * z**k for k, a in enumerate(law))
            slope = sum(k * a * z ** (k - 1) for k, a in enumerate(law) if k)
            expected = (1 - p0) * g + p0 * (z * g + z * (1 - z) * slope / m)
            assert sum(a * z**k for k, a in enumerate(after)) == expected


class TestOutputs:
    def test_one_slot_two_clients_by_hand(self):
        channel = np.array([[0.75, 0.25], [0.1, 0.9], [0.5, 0.5]])  # two records and the dummy
        law = rci.output_law(rci.fixed_window(2, 1, 0.4), (0, 1), rci.constant_tree(channel, 1))
        # both away .36, otherwise either record equally often
        assert law == pytest.approx(0.36 * channel[2] + 0.32 * channel[0] + 0.32 * channel[1], rel=1e-14)
        flagged = rci.constant_tree(rci.flag_empty(channel), 1)
        law = rci.output_law(rci.fixed_window(2, 1, 0.4), (0, 1), flagged)
        assert law == pytest.approx([*(0.32 * (channel[0] + channel[1])), 0.36], rel=1e-14)

    def test_adaptive_slot_by_hand(self):
        first, high, low = np.array([[0.8, 0.2], [0.4, 0.6]]), np.eye(2), np.full((2, 2), 0.5)
        law = rci.output_law(rci.fixed_window(1, 2, 1.0), (0,), [first[None], np.array([high, low])])
        # client in slot 1: dummy in slot 2, and the other way round; the second channel follows the first output
        expected = 0.5 * np.array([0.8 * 0, 0.8 * 1, 0.2 * 0.5, 0.2 * 0.5])
        expected += 0.5 * np.array([0.4 * 1, 0.4 * 0, 0.6 * 0.5, 0.6 * 0.5])
        assert law == pytest.approx(expected, rel=1e-14)

    def test_averaged_without_adaptivity_is_shuffled_check_in(self):
        """Summed over slots the histograms are those of one shuffled round."""
        channel, p0, data = krr.krr_channel(3, 2), F(2, 3), (0, 2, 1)
        law = rci.averaged_law(rci.fixed_window_choices(3, 2, p0), data, 2, lambda seen: channel)
        merged = {}
        for slots, mass in law.items():
            seen = tuple(map(sum, zip(*slots)))
            merged[seen] = merged.get(seen, 0) + mass
        assert merged == krr.histogram_law(data, channel, p0)

    def test_averaged_in_one_slot_adapts_to_nothing(self):
        channel, data = krr.krr_channel(2, 3), (0, 1, 1)
        law = rci.averaged_law(rci.fixed_window_choices(3, 1, F(1, 3)), data, 1, lambda seen: channel)
        assert {key[0]: mass for key, mass in law.items()} == krr.histogram_law(data, channel, F(1, 3))

    @pytest.mark.parametrize("kind", ["extremal", "rotated", "atomic", "smooth"])
    def test_random_channels_are_channels_within_the_ratio(self, kind):
        rng = np.random.default_rng(3)
        for _ in range(20):
            channel = rci.random_channel(rng, 3, 4.0, kind)
            assert np.allclose(channel.sum(axis=1), 1, rtol=0, atol=1e-14)
            assert krr.likelihood_ratio(channel.tolist()) <= 4 * (1 + 1e-12)


class TestPairs:
    @pytest.mark.parametrize("labels", [rci.clone_labels, rci.krr3_slot_labels, rci.binary_slot_labels])
    def test_masses_sum_to_one_and_floats_agree(self, labels):
        exact = rci.exact_slots_pair(labels(F(3)), 4, F(2, 5))
        assert sum(a for a, _ in exact) == sum(b for _, b in exact) == 1
        rough = rci.slots_pair(labels(3.0), 4, 0.4)
        assert pairs.profile(rough, [float(c) for c in CS]) == pytest.approx(
            [float(pairs.exact_profile(exact, c)) for c in CS], rel=1e-13
        )
        law = rci.occupancy(3, 4, F(1, 2))
        mixed = rci.exact_occupied_pair(labels(F(3)), 3, law)
        assert sum(a for a, _ in mixed) == sum(b for _, b in mixed) == 1
        rough = rci.occupied_pair(labels(3.0), 3, law)
        assert pairs.profile(rough, [float(c) for c in CS]) == pytest.approx(
            [float(pairs.exact_profile(mixed, c)) for c in CS], rel=1e-13
        )

    def test_binomial_count_gives_t1(self):
        """Theorem U with K ~ Bin(n, gamma) is T1's pair."""
        n, p, gamma = 4, F(3), F(2, 7)
        law = pairs.binomial_table(n, float(gamma))[n]
        t1 = pairs.enumerate_pair(pairs.t1_labels(float(p), float(gamma)), n)
        mixed = rci.occupied_pair(rci.clone_labels(float(p)), n, law)
        for c in (0.5, 1.0, 1.3, 2.9):
            assert pairs.profile(mixed, [c]) == pytest.approx(pairs.profile(t1, [c]), rel=1e-12)

    def test_monotone_in_the_number_used_the_slots_and_the_clients(self):
        p, cs = F(3), [c for c in CS if c >= 1]
        profiles = [
            [pairs.exact_profile(rci.exact_slots_pair(rci.clone_labels(p), k, F(k, 4)), c) for c in cs]
            for k in range(5)
        ]
        assert all(a <= b for low, high in pairwise(profiles) for a, b in zip(low, high))
        slots = [
            [pairs.exact_profile(rci.exact_slots_pair(rci.clone_labels(p), m, F(1, 2)), c) for c in cs]
            for m in (4, 3, 2, 1)
        ]
        assert all(a <= b for low, high in pairwise(slots) for a, b in zip(low, high))
        clients = [
            [
                pairs.exact_profile(
                    rci.exact_occupied_pair(rci.clone_labels(p), n, rci.occupancy(n, 3, F(2, 3))), c
                )
                for c in cs
            ]
            for n in (5, 4, 3, 2, 1)
        ]
        assert all(a <= b for low, high in pairwise(clients) for a, b in zip(low, high))


class TestLarge:
    @pytest.mark.parametrize("p0", [0.3, 1.0])
    def test_agrees_with_enumeration(self, p0):
        n, m, p = 40, 30, 3.0
        cs = [1.0, 1.02, 1.3, 2.0]
        law = rci.occupancy(n, m, p0)
        use = float(rci.fixed_window_use(n, m, p0))
        sliding = float(rci.sliding_window_use(n, m))
        v = rci.sliding_window_slots(n, m)
        cases = [
            (windows.t2(m, p0, p), rci.slots_pair(rci.clone_labels(p), m, p0)),
            (windows.psi(n, m, p), rci.slots_pair(rci.clone_labels(p), m, m / n)),
            (windows.t2_prime(n, m, p0, p), rci.occupied_pair(rci.clone_labels(p), n, law)),
            (windows.sliding_upper(n, m, p), rci.slots_pair(rci.clone_labels(p), v, v / m)),
            (windows.fixed_lower(n, m, p0, p)[0], rci.slots_pair(rci.krr3_slot_labels(p), m, use)),
            (windows.fixed_lower(n, m, p0, p)[1], rci.slots_pair(rci.binary_slot_labels(p), m, use)),
            (
                windows.fixed_lower(n, m, p0, p)[2],
                rci.slots_pair(rci.binary_slot_labels(p), m, use).reversed(),
            ),
            (
                windows.fixed_lower(n, m, p0, p, visible=True)[0],
                rci.occupied_pair(rci.krr3_slot_labels(p), n, law),
            ),
            (
                windows.fixed_lower(n, m, p0, p, visible=True)[2],
                rci.occupied_pair(rci.binary_slot_labels(p), n, law).reversed(),
            ),
            (windows.sliding_lower(n, m, p)[0], rci.slots_pair(rci.krr3_slot_labels(p), v, sliding)),
            (windows.sliding_lower(n, m, p)[1], rci.slots_pair(rci.binary_slot_labels(p), v, sliding)),
        ]
        for summed, small in cases:
            assert windows.profile(summed, cs) == pytest.approx(
                pairs.profile(small, cs), rel=1e-11, abs=1e-17
            )

    def test_deep_tails_and_an_independent_summation(self):
        p, m = 3.0, 250
        deep = [1.0, 1.2, 1.5, 2.2]
        small = pairs.profile(rci.slots_pair(rci.clone_labels(p), m, 1.0), deep)
        assert 0 < small[-1] < 1e-18
        assert windows.profile(windows.t2(m, 1.0, p), deep) == pytest.approx(small, rel=1e-11, abs=0)
        # everybody in: T1, which `large` sums in another order
        n, cs = 30_000, [1.0, 1.01, 1.03]
        shuffle = large.large_profile(pairs.t1_labels(p, 1.0), n, cs)
        assert windows.profile(windows.psi(n, n, p), cs) == pytest.approx(shuffle, rel=1e-10, abs=0)

    def test_occupancy_window_of_many_clients(self):
        n, m, p0 = 20_000, 15_000, 0.9
        values, law = windows.occupancy_window(n, m, p0)
        empty = np.exp(n * np.log1p(-p0 / m))
        both = np.exp(n * np.log1p(-2 * p0 / m))
        assert values @ law == pytest.approx(m * (1 - empty), rel=1e-12)
        variance = m * empty + m * (m - 1) * both - (m * empty) ** 2  # cancels by 1e4
        assert (values - values @ law) ** 2 @ law == pytest.approx(variance, rel=1e-8)

    @pytest.mark.parametrize(("n", "m", "p0"), [(50, 12, 0.7), (12, 50, 1.0), (30, 1, 0.5), (1, 1, 1.0)])
    def test_occupancy_window_agrees_with_rationals(self, n, m, p0):
        values, law = windows.occupancy_window(n, m, p0)
        exact = rci.occupancy(n, m, F(p0))
        assert law == pytest.approx([float(exact[k]) for k in values], rel=1e-13)
        assert sum(float(exact[k]) for k in values) == pytest.approx(1, abs=1e-15)

    def test_epsilon_inverts_the_profile(self):
        law = windows.t2(500, 0.6, 3.0)
        for delta in (1e-2, 1e-9, 1e-25):
            assert law(np.expm1(windows.epsilon(law, delta))) == pytest.approx(delta, rel=1e-9)
        assert windows.epsilon(law, 0.999) == 0

    @pytest.mark.turns(3)
    @pytest.mark.parametrize(
        ("epsilon0", "t2", "t2_prime"),
        [(0.5, "0.0181", "0.00143"), (1.0, "0.0432", "0.00351"), (2.0, "0.114", "0.00952")],
    )
    def test_one_window_of_ten_thousand_slots(self, epsilon0, t2, t2_prime):
        """Three digits of another program, at delta 1e-6; Balle et al. 2020, Theorem 3.2: .0438, .149, .928."""
        p = np.exp(epsilon0)
        assert f"{windows.epsilon(windows.t2(10**4, 1.0, p), 1e-6):.3g}" == t2
        assert f"{windows.epsilon(windows.t2_prime(10**5, 10**4, 1.0, p), 1e-6):.3g}" == t2_prime
