"""Brute force of docs/theory_mechanisms.md: exact probabilities of all outputs, for few clients.

Every bound is written down from its statement (`oracles.known_messages`) and compared one-sidedly with mechanisms that
belong to its class; wrong neighbours of the bounds must be exceeded. The default run is a sample; `slow` is the large
one. A failure means that a theorem or an oracle is wrong.
"""

from fractions import Fraction as F

import numpy as np
import pytest
from oracles import exact_rounds, krr, pairs
from oracles import known_messages as known
from oracles import random_check_ins as rci
from oracles.comparison import Comparison, sizes


def cs_of(p):
    return 1 + (p - 1) * np.array([0.0, 0.02, 0.1, 0.3, 0.6, 0.95])


def channel_of(rng, p):
    """A channel of a mechanism whose total variation is below that of binary randomized response."""
    kind = rng.integers(7)
    if kind == 0:
        return np.array(krr.krr_channel(int(rng.integers(3, 5)), p))
    if kind == 1:
        return known.hadamard_channel(p)
    if kind == 2:
        return known.rappor_channel(2, p)
    if kind == 3:
        return known.subset_channel(4, 2, p)
    if kind == 4:
        return known.arc_channel(4, int(rng.integers(1, 3)), p)
    if kind == 5:
        return known.laplace_channel(np.sort(rng.random(3)), np.log(p), 5)
    return np.array(krr.random_extremal_channel(rng, 3, p))


def relabelled(rng, channel):
    """The channel with its outputs renamed: adversaries may rename them after every message."""
    return lambda: channel[:, rng.permutation(channel.shape[1])]


def profile_of(labels, num_clients, count, cs):
    """U with these labels in place of t*'s."""
    return pairs.profile(rci.slots_pair(labels, count, count / num_clients), cs)


class TestTotalVariation:
    @sizes(120, 4000)
    def test_theorem_a_for_any_number_of_participants(self, trials):
        """K < n and K = n, adaptive: records in the channel's rows are renamed, too, after every output."""
        rng, seen = np.random.default_rng(0), Comparison()
        for _ in range(trials):
            p = float(np.exp(rng.choice([0.3, 1.0, 2.0, 4.0])))
            channel, n = channel_of(rng, p), int(rng.integers(1, 4))
            k, cs = int(rng.integers(1, n + 1)), cs_of(p)
            tree = rci.random_tree(relabelled(rng, channel), k)
            labels = known.beta_labels(p, known.total_variation(channel))
            seen.below(
                rci.divergences(rci.ordered_sample(n, k), tree, len(channel), n, cs),
                profile_of(labels, n, k, cs),
            )
        assert seen.largest > 0.95

    @sizes(60, 2000)
    def test_theorem_a_in_slots(self, trials):
        """A_fix with hidden dummies (T2) and with occupied slots (T2'), adaptive."""
        rng, t2, t2_prime = np.random.default_rng(1), Comparison(), Comparison()
        for _ in range(trials):
            p = float(np.exp(rng.choice([0.3, 1.0, 2.0, 4.0])))
            channel, n, m = channel_of(rng, p), int(rng.integers(1, 4)), int(rng.integers(1, 4))
            p0, cs = float(rng.choice([0.3, 0.7, 1.0])), cs_of(p)
            # The dummy's record is the last row, one of the others.
            rows = np.vstack([channel, channel[rng.integers(len(channel))][None]])
            tree = rci.random_tree(relabelled(rng, rows), m)
            labels = known.beta_labels(p, known.total_variation(channel))
            actual = rci.divergences(rci.fixed_window(n, m, p0), tree, len(channel), n, cs)
            t2.below(actual, pairs.profile(rci.slots_pair(labels, m, p0), cs))
            occupied = rci.occupied_pair(labels, n, rci.occupancy(n, m, p0))
            t2_prime.below(actual, pairs.profile(occupied, cs))
        assert t2.largest > 0.9
        assert t2_prime.largest > 0.9

    @pytest.mark.parametrize("k", [3, 4])
    def test_beta_over_p_is_not_a_bound(self, k):
        """The mass at (p, 1) is beta/(p - 1)."""
        seen, right = Comparison(), Comparison()
        for p in (1.5, 3.0, 8.0):
            channel, cs = np.array(krr.krr_channel(k, p)), cs_of(p)
            beta = known.total_variation(channel)
            assert beta == pytest.approx((p - 1) / (p + k - 1))
            for n, count in [(2, 1), (2, 2), (3, 2), (3, 3)]:
                tree = rci.constant_tree(channel, count)
                actual = rci.divergences(rci.ordered_sample(n, count), tree, k, n, cs)
                right.below(actual, profile_of(known.beta_labels(p, beta), n, count, cs))
                wrong = known.beta_labels(p, beta * (p - 1) / p)
                seen.look(actual, profile_of(wrong, n, count, cs))
        assert right.above == 0
        assert seen.above > 50
        assert seen.largest > 1.5


class TestKary:
    @pytest.mark.parametrize("k", [2, 3, 4])
    def test_every_data_set_and_attained(self, k):
        """Exact rationals, everybody included; attained at one participant, and t_(k+1) is no bound."""
        seen, wrong = Comparison(), Comparison()
        for p in (F(3, 2), F(4)):
            cs = [1 + (p - 1) * share for share in (F(0), F(1, 10), F(1, 2), F(9, 10))]
            for n in (1, 2, 3):
                for count in range(1, n + 1):
                    tree = rci.constant_tree(krr.krr_channel(k, p), count)
                    actual = rci.divergences(rci.ordered_sample(n, count), tree, k, n, cs)
                    exact = rci.exact_slots_pair(known.kary_labels(p, k), count, F(count, n))
                    bound = [pairs.exact_profile(exact, c) for c in cs]
                    assert all(max(column) <= b for column, b in zip(zip(*actual), bound))
                    seen.look(actual, np.array(bound, float))
                    more = rci.exact_slots_pair(known.kary_labels(p, k + 1), count, F(count, n))
                    wrong.look(actual, np.array([pairs.exact_profile(more, c) for c in cs], float))
        assert seen.largest == pytest.approx(1.0)
        assert wrong.above > 20
        assert wrong.largest > 1.2

    @sizes(80, 3000)
    def test_renamed_labels_adaptively(self, trials):
        rng, seen = np.random.default_rng(2), Comparison()
        for _ in range(trials):
            p, k = float(np.exp(rng.uniform(0.2, 3.0))), int(rng.integers(3, 5))
            n = int(rng.integers(1, 4))
            count, cs = int(rng.integers(1, n + 1)), cs_of(p)
            tree = rci.random_tree(relabelled(rng, np.array(krr.krr_channel(k, p))), count)
            bound = profile_of(known.kary_labels(p, k), n, count, cs)
            seen.below(rci.divergences(rci.ordered_sample(n, count), tree, k, n, cs), bound)
        assert seen.largest > 0.95

    def test_total_variation_is_t_k_with_one_one_spread_out(self):
        """A at k-ary response's total variation is never below t_k, and equal to it at c = 1."""
        for p in (1.5, 4.0):
            for k in (3, 6):
                cs = cs_of(p)
                beta = profile_of(known.beta_labels(p, (p - 1) / (p + k - 1)), 4, 3, cs)
                own = profile_of(known.kary_labels(p, k), 4, 3, cs)
                assert (own <= beta * (1 + 1e-12)).all()
                assert own[0] == pytest.approx(beta[0])


def bits_of(rng, p, records=3):
    """A one-bit channel: random public coins, or the l2 mechanism in the plane with vectors shorter than the bound."""
    if rng.random() < 0.5:
        return known.one_bit_channel(rng, records, p, int(rng.integers(1, 4)))
    radii = np.where(rng.random(records) < 0.6, 1.0, rng.random(records))
    return known.hemisphere_channel(rng.uniform(0, 2 * np.pi, records), radii, p, 4)


def pool_of(rng, p, records, outputs=None):
    """A function that draws one of a few one-bit channels with the same number of outputs."""
    pool = [known.one_bit_channel(rng, records, p, 2) for _ in range(5)]
    pool += [np.roll(known.one_bit_channel(rng, records, p, 2), 1, axis=1)]
    return lambda: pool[rng.integers(len(pool))]


class TestOneBit:
    @sizes(120, 4000)
    def test_theorem_b_where_somebody_is_absent(self, trials):
        rng, seen = np.random.default_rng(3), Comparison()
        for _ in range(trials):
            p, n = float(np.exp(rng.choice([0.3, 1.0, 2.0, 4.0]))), int(rng.integers(2, 5))
            k, cs = int(rng.integers(1, n)), cs_of(p)
            tree = rci.random_tree(pool_of(rng, p, 2), k)
            bound = np.array([known.two_law_value(k, (n - k) * (1 - c), c, p) / n for c in cs])
            assert (bound <= profile_of(rci.clone_labels(p), n, k, cs) * (1 + 1e-12)).all()
            seen.below(rci.divergences(rci.ordered_sample(n, k), tree, 2, n, cs), bound)
        assert seen.largest > 0.9

    @sizes(80, 3000)
    def test_theorem_b_in_slots(self, trials):
        rng, seen = np.random.default_rng(4), Comparison()
        for _ in range(trials):
            p, n, m = (
                float(np.exp(rng.choice([0.3, 1.0, 2.0, 4.0]))),
                *(int(v) for v in rng.integers(1, 4, 2)),
            )
            p0, cs = float(rng.choice([0.3, 0.7, 1.0])), cs_of(p)
            tree = rci.random_tree(pool_of(rng, p, 3), m)
            bound = np.array([p0 / m * known.two_law_value(m, (m / p0 - m) * (1 - c), c, p) for c in cs])
            seen.below(rci.divergences(rci.fixed_window(n, m, p0), tree, 2, n, cs), bound)
        assert seen.largest > 0.9

    @sizes(60, 2500)
    def test_theorem_b0(self, trials):
        """Shuffled check-in, one channel for the round; every data set over three records."""
        rng, seen = np.random.default_rng(5), Comparison()
        for _ in range(trials):
            p, n = float(np.exp(rng.choice([0.3, 1.0, 2.0, 4.0]))), int(rng.integers(1, 5))
            rate, cs = float(rng.choice([0.1, 0.5, 0.9])), cs_of(p)
            channel = bits_of(rng, p, 2 if n == 4 else 3)
            bound = np.array([known.b0(n, rate, p, float(c)) for c in cs])
            seen.below(exact_rounds.worst(channel, [rate] * n, cs), bound)
        assert seen.largest > 0.9

    def test_binary_response_comes_close_to_b0(self):
        """And wrong neighbours are exceeded by it: one law only, the two ends only, no t*."""
        right, x_only, y_only, ends, bare = (Comparison() for _ in range(5))
        for p in (F(3, 2), F(3), F(8)):
            channel = krr.krr_channel(2, p)
            for n in (2, 3, 4, 5):
                for rate in (F(1, 10), F(1, 2), F(9, 10)):
                    cs = [1 + (p - 1) * share for share in (F(0), F(1, 20), F(1, 5), F(1, 2), F(4, 5))]
                    actual = [[float(h) for h in krr.worst_hockey_stick(channel, n, rate, cs)]]

                    def bound(mixes=None, middle=None, n=n, rate=rate, p=p, cs=cs):
                        return np.array([known.b0(n, rate, p, c, mixes, middle) for c in cs])

                    right.below(actual, bound())
                    x_only.look(actual, bound([0]))
                    y_only.look(actual, bound([n - 1]))
                    ends.look(actual, bound([0, n - 1]))
                    # In place of t* the constant 1 - c.
                    bare.look(actual, bound(middle=lambda p, c: {1 - c: F(1)}))
        assert right.above == 0
        assert right.largest > 0.95
        for wrong, least in ((x_only, 1.1), (y_only, 1.1), (ends, 1.0), (bare, 1.3)):
            assert wrong.above > 0
            assert wrong.largest > least

    def test_the_two_ends_alone_are_exceeded_by_a_fifth(self):
        """n = 4: the worst others are mixed; all m together are a bound."""
        ends, all_of_them = Comparison(), Comparison()
        for p, rate, c in [
            (F(20), F(1, 20), F(91, 15)),
            (F(20), F(1, 10), F(91, 15)),
            (F(3), F(1, 100), F(2)),
        ]:
            channel = krr.krr_channel(2, p)
            actual = [[float(h) for h in krr.worst_hockey_stick(channel, 4, rate, [c])]]
            ends.look(actual, np.array([known.b0(4, rate, p, c, [0, 3])]))
            all_of_them.below(actual, np.array([known.b0(4, rate, p, c)]))
        assert ends.above == 3
        assert ends.largest > 1.2

    def test_everybody_is_not_bounded_by_the_two_law_game(self):
        """K = n: the spread of n - 1 others protects, not that of n slots; others one at x and one at x', c = 1."""
        worst = Comparison()
        for p, n, other in ((3.0, 3, 1.0345), (1.5, 3, 1.026), (3.0, 4, 1.031)):
            channel = np.array(krr.krr_channel(2, p))
            actual = rci.divergences(rci.ordered_sample(n, n), rci.constant_tree(channel, n), 2, n, [1.0])
            game = np.array([known.two_law_value(n, 0.0, 1.0, p) / n])
            ratio = np.max(np.asarray(actual, float)) / game[0]
            assert ratio == pytest.approx(other, abs=2e-3)
            worst.look(actual, game)
            # Total variation is a bound.
            assert np.max(np.asarray(actual, float)) <= profile_of(rci.clone_labels(p), n, n, [1.0])[0] * (
                1 + 1e-12
            )
        assert worst.above > 0

    def test_three_answers_are_not_one_bit(self):
        """3-ary randomized response in slots, in which the two-law game does not hold."""
        seen = Comparison()
        for p in (1.5, 4.0, 8.0):
            channel, cs = np.array(krr.krr_channel(3, p)), cs_of(p)
            for m in (1, 2, 3):
                # The dummy's record is the third.
                tree = rci.constant_tree(np.vstack([channel, channel[2:]]), m)
                actual = rci.divergences(rci.fixed_window(1, m, 0.7), tree, 3, 1, cs)
                bound = [0.7 / m * known.two_law_value(m, (m / 0.7 - m) * (1 - c), c, p) for c in cs]
                seen.look(actual, np.array(bound))
        assert seen.above > 0
        assert seen.largest > 1.1
