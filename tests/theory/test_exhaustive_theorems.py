"""Brute force of the theorems on random check-ins (docs/theory.md) against the actual algorithms.

Random channels (extremal, rotated, atomic, smooth; adapting to all earlier outputs), all small data sets, eps of both
signs. The default run is a sample; `slow` is the large one. A failure means that a theorem or an oracle is wrong.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING
from oracles import krr, pairs, windows
from oracles import random_check_ins as rci
from oracles.comparison import Comparison, sizes

F = Fraction
CS = [F(c) for c in ("1/3", "9/10", "1", "11/10", "5/4", "3/2", "2", "12/5")]
KINDS = ["extremal", "rotated", "atomic", "smooth"]


def random_setting(rng):
    """(p, number of records, c values of both signs)."""
    p = float(np.exp(rng.choice([0.1, 0.5, 1.0, 2.0, 4.0]) * rng.uniform(0.8, 1.2)))
    return p, int(rng.integers(2, 4)), p ** np.array([-0.6, -0.1, 0.0, 0.1, 0.4, 0.8, 0.99])


def channels_of(rng, num_records, p):
    """A function that draws one of a handful of random channels, all with the same outputs."""
    kind = KINDS[rng.integers(len(KINDS))]
    pool = [rci.random_channel(rng, num_records, p, kind) for _ in range(6)]
    return lambda: pool[rng.integers(len(pool))]


def trees_of(rng, num_records, num_slots, p):
    """An adaptive randomizer with hidden dummies (last row), and one with visible empty slots."""
    draw = channels_of(rng, num_records + 1, p)
    return rci.random_tree(draw, num_slots), rci.random_tree(lambda: rci.flag_empty(draw()), num_slots)


def below_largest_ratio(p, num_slots, rho):
    """A c between the two largest values of P/Q in T2's pair."""
    largest, second = ((1 - rho + share * p) / (1 - rho + share) for share in (rho, rho - rho / num_slots))
    return (largest + second) / 2


@pytest.mark.parametrize("gamma", [F(1, 5), F(1)])
def test_two_adaptive_rounds_are_dominated_by_the_composed_pair(gamma):
    p, n = F(2), 3
    one = pairs.exact_pair(pairs.t1_labels(p, gamma), n)
    composed = [(a * x, b * y) for a, b in one for x, y in one]
    binary = krr.krr_channel(2, p)
    separating = [binary[0], binary[1], binary[1]]
    ignoring = [binary[0], binary[1], binary[0]]
    cs = [F(1, 2), F(1), F(3, 2), F(9, 5), F(3)]
    bound = [pairs.exact_profile(composed, c) for c in cs]

    def second(seen):
        return separating if seen[0] > seen[1] else ignoring

    for pair in krr.neighbouring_data_sets(3, n, ((0, 1), (1, 0), (0, 2))):
        laws = [krr.two_round_law(records, krr.krr_channel(3, p), second, gamma) for records in pair]
        assert all(krr.hockey_stick(*laws, c) <= b for c, b in zip(cs, bound))


class TestTheoremU:
    @sizes(400, 20000)
    def test_ordered_samples_of_every_size(self, trials):
        rng, seen = np.random.default_rng(10), Comparison()
        for _ in range(trials):
            p, num_records, cs = random_setting(rng)
            n = int(rng.integers(1, 5))
            k = int(rng.integers(1, n + 1))
            tree = rci.random_tree(channels_of(rng, num_records, p), k)
            bound = pairs.profile(rci.slots_pair(rci.clone_labels(p), k, k / n), cs)
            seen.below(rci.divergences(rci.ordered_sample(n, k), tree, num_records, n, cs), bound, cs)
        seen.was_close(trials)

    @pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (4, 2), (4, 4)])
    def test_attained(self, n, k):
        """Binary randomized response: exactly Psi_K near the largest likelihood ratio, at c = 1 too for K < n."""
        p = F(4)
        tree, atoms = (
            rci.constant_tree(krr.krr_channel(2, p), k),
            rci.exact_slots_pair(rci.clone_labels(p), k, F(k, n)),
        )
        for c in [(1 + 3 * p) / 4] if k == n else [1, below_largest_ratio(p, k, F(k, n))]:
            rows = rci.divergences(rci.ordered_sample(n, k), tree, 2, n, [c])
            assert max(rows) == [pairs.exact_profile(atoms, c)]


class TestHexagon:
    @sizes(150, 6000)
    def test_t1_plus_and_its_form_for_t2(self, trials):
        """Theorem U with K < n, and A_fix with hidden dummies; never above the bounds they sharpen."""
        rng, fewer, slots = np.random.default_rng(15), Comparison(), Comparison()
        for _ in range(trials):
            p, num_records, cs = random_setting(rng)
            cs, labels = cs[cs >= 1], rci.clone_labels(p)
            n = int(rng.integers(2, 5))
            k = int(rng.integers(1, n))
            tree = rci.random_tree(channels_of(rng, num_records, p), k)
            sharp = np.array([rci.hexagon_value(k, (n - k) * (1 - c), c, p) / n for c in cs])
            assert (sharp <= pairs.profile(rci.slots_pair(labels, k, k / n), cs) * (1 + 1e-11) + 1e-15).all()
            fewer.below(rci.divergences(rci.ordered_sample(n, k), tree, num_records, n, cs), sharp, cs)
            n, m, p0 = int(rng.integers(1, 4)), int(rng.integers(1, 5)), float(rng.choice([0.3, 0.7, 1.0]))
            tree, _ = trees_of(rng, num_records, m, p)
            sharp = np.array([p0 / m * rci.hexagon_value(m, (m / p0 - m) * (1 - c), c, p) for c in cs])
            assert (sharp <= pairs.profile(rci.slots_pair(labels, m, p0), cs) * (1 + 1e-11) + 1e-15).all()
            slots.below(rci.divergences(rci.fixed_window(n, m, p0), tree, num_records, n, cs), sharp, cs)
        fewer.was_close(trials)
        slots.was_close(trials)


class TestFixedWindow:
    @sizes(400, 15000)
    def test_t2_hidden_and_t2_prime_visible(self, trials):
        rng, t2, t2_prime = np.random.default_rng(11), Comparison(), Comparison()
        for _ in range(trials):
            p, num_records, cs = random_setting(rng)
            n, m, p0 = int(rng.integers(1, 5)), int(rng.integers(1, 5)), float(rng.choice([0.3, 0.7, 1.0]))
            hidden, visible = trees_of(rng, num_records, m, p)
            used, labels = rci.fixed_window(n, m, p0), rci.clone_labels(p)
            prime = pairs.profile(rci.occupied_pair(labels, n, rci.occupancy(n, m, p0)), cs)
            simple = pairs.profile(rci.slots_pair(labels, min(m, n), min(m, n) / n), cs)
            assert (prime <= simple * (1 + ORACLE_ROUNDING)).all()
            actual = rci.divergences(used, hidden, num_records, n, cs)
            t2.below(actual, pairs.profile(rci.slots_pair(labels, m, p0), cs), cs)
            t2_prime.below(actual, prime, cs)
            t2_prime.below(rci.divergences(used, visible, num_records, n, cs), prime, cs)
        t2.was_close(trials)
        t2_prime.was_close(trials)

    @sizes(60, 3000)
    def test_t2_whatever_the_other_clients_do(self, trials):
        """Others with their own rates: T2 asks nothing of them (the target's own rate is rho)."""
        rng, seen = np.random.default_rng(12), Comparison()
        for _ in range(trials):
            p, num_records, cs = random_setting(rng)
            n, m = int(rng.integers(2, 4)), int(rng.integers(1, 4))
            rates = tuple(rng.choice([0.0, 0.1, 0.5, 1.0], n).tolist())
            used = rci.one_of_each_slot(rci.fixed_window_choices(n, m, rates), range(m))
            tree, _ = trees_of(rng, num_records, m, p)
            bound = pairs.profile(rci.slots_pair(rci.clone_labels(p), m, max(rates)), cs)
            seen.below(rci.divergences(used, tree, num_records, n, cs, exchangeable=False), bound, cs)
        seen.was_close(trials, 0.5)

    def test_t2_is_attained_by_a_lone_client(self):
        p, m, p0 = F(4), 3, F(7, 10)
        binary = krr.krr_channel(2, p)
        tree = rci.constant_tree([*binary, binary[1]], m)
        p_law, q_law = (rci.output_law(rci.fixed_window(1, m, p0), (x,), tree) for x in (0, 1))
        c = below_largest_ratio(p, m, p0)
        bound = pairs.exact_profile(rci.exact_slots_pair(rci.clone_labels(p), m, p0), c)
        assert rci.hockey_stick(p_law, q_law, c) == bound > 0

    @pytest.mark.parametrize("p0", [F(3, 10), F(1)])
    @pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 1), (3, 2), (2, 3), (4, 2)])
    def test_lower_witnesses_are_the_mechanism(self, n, m, p0):
        """Exact rationals: others and dummy at one record; hidden and visible empty slots."""
        p = F(5, 2)
        use, counts, used = (
            rci.fixed_window_use(n, m, p0),
            rci.occupancy(n, m, p0),
            rci.fixed_window(n, m, p0),
        )
        for labels, base in ((rci.krr3_slot_labels(p), 2), (rci.binary_slot_labels(p), 1)):
            channel = krr.krr_channel(base + 1, p)
            rows = [*channel, channel[base]]
            for tree, atoms in (
                (rci.constant_tree(rows, m), rci.exact_slots_pair(labels, m, use)),
                (rci.constant_tree(rci.flag_empty(rows), m), rci.exact_occupied_pair(labels, n, counts)),
            ):
                p_law, q_law = (rci.output_law(used, (*[base] * (n - 1), x), tree) for x in (0, 1))
                swapped = [(b, a) for a, b in atoms]
                for c in CS:
                    assert rci.hockey_stick(p_law, q_law, c) == pairs.exact_profile(atoms, c)
                    assert rci.hockey_stick(q_law, p_law, c) == pairs.exact_profile(swapped, c)


class TestSlidingWindow:
    @sizes(150, 5000)
    def test_t2_with_the_slots_that_are_seen(self, trials):
        rng, seen = np.random.default_rng(13), Comparison()
        for _ in range(trials):
            p, num_records, cs = random_setting(rng)
            n = int(rng.integers(2, 6 - (num_records == 3)))
            window = int(rng.integers(1, n + 1))
            v = rci.sliding_window_slots(n, window)
            tree, _ = trees_of(rng, num_records, n - window + 1, p)
            labels = rci.clone_labels(p)
            bound = pairs.profile(rci.slots_pair(labels, v, v / window), cs)
            assert (bound <= pairs.profile(rci.slots_pair(labels, window, 1.0), cs) * (1 + 1e-12)).all()
            used = rci.sliding_window(n, window)
            seen.below(rci.divergences(used, tree, num_records, n, cs, exchangeable=False), bound, cs)
        seen.was_close(trials)

    @pytest.mark.parametrize(("n", "window"), [(3, 1), (4, 2), (5, 3), (4, 3), (6, 4)])
    def test_lower_witnesses_are_the_mechanism(self, n, window):
        """The client with most visible slots, n < 2 window - 1 included."""
        p = F(5, 2)
        v, use, used = (
            rci.sliding_window_slots(n, window),
            rci.sliding_window_use(n, window),
            rci.sliding_window(n, window),
        )
        for labels, base in ((rci.krr3_slot_labels(p), 2), (rci.binary_slot_labels(p), 1)):
            channel = krr.krr_channel(base + 1, p)
            tree = rci.constant_tree([*channel, channel[base]], n - window + 1)
            atoms = rci.exact_slots_pair(labels, v, use)
            data = [base] * n
            laws = [rci.output_law(used, (*data[: window - 1], x, *data[window:]), tree) for x in (0, 1)]
            for c in CS:
                assert rci.hockey_stick(*laws, c) == pairs.exact_profile(atoms, c)
                assert rci.hockey_stick(*laws[::-1], c) == pairs.exact_profile([(b, a) for a, b in atoms], c)


class TestAveragedUpdates:
    @sizes(60, 3000)
    def test_t1_at_p0(self, trials):
        rng, seen = np.random.default_rng(14), Comparison()
        for _ in range(trials):
            p, num_records, cs = random_setting(rng)
            n, m, p0 = int(rng.integers(1, 4)), int(rng.integers(1, 4)), float(rng.choice([0.3, 0.7, 1.0]))
            draw, drawn = channels_of(rng, num_records, p), {}

            def channel_after(prefix, draw=draw, drawn=drawn):
                if prefix not in drawn:
                    drawn[prefix] = draw().tolist()
                return drawn[prefix]

            choices = rci.fixed_window_choices(n, m, p0)
            laws = {}
            for data, other in rci.neighbours(num_records, n):
                for key in (data, other):
                    key = tuple(sorted(key))
                    if key not in laws:
                        laws[key] = rci.averaged_law(choices, key, m, channel_after)
                p_law, q_law = laws[tuple(sorted(data))], laws[tuple(sorted(other))]
                bound = pairs.profile(pairs.enumerate_pair(pairs.t1_labels(p, p0), n), cs)
                seen.below([krr.hockey_stick(p_law, q_law, c) for c in cs], bound, cs)
        seen.was_close(trials)

    @pytest.mark.parametrize("p0", [F(3, 10), F(1)])
    @pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 3), (3, 2)])
    def test_lower_witnesses_are_the_mechanism(self, n, m, p0):
        """L1 at p0: the slots of equal messages tell nothing more."""
        p, choices = F(5, 2), rci.fixed_window_choices(n, m, p0)
        for labels, base in ((pairs.krr3_labels(p, p0), 2), (pairs.binary_rr_labels(p, p0), 1)):
            channel, atoms = krr.krr_channel(base + 1, p), pairs.exact_pair(labels, n)
            laws = [
                rci.averaged_law(choices, (*[base] * (n - 1), x), m, lambda seen, channel=channel: channel)
                for x in (0, 1)
            ]
            for c in CS:
                assert krr.hockey_stick(*laws, c) == pairs.exact_profile(atoms, c)
                assert krr.hockey_stick(*laws[::-1], c) == pairs.exact_profile([(b, a) for a, b in atoms], c)


class TestOccupiedSlots:
    @pytest.mark.parametrize(("n", "m", "p0"), [(40, 25, 0.6), (25, 40, 1.0), (200, 60, 1.0)])
    def test_bernstein_with_the_exact_variance(self, n, m, p0):
        """Both tails of K, a sum of independent indicators."""
        empty, both = (1 - p0 / m) ** n, (1 - 2 * p0 / m) ** n
        mean, variance = m * (1 - empty), m * empty + m * (m - 1) * both - (m * empty) ** 2
        values, law = windows.occupancy_window(n, m, p0)
        for t in np.linspace(0.5, 6, 12) * variance**0.5:
            bound = np.exp(-(t**2) / (2 * (variance + t / 3)))
            assert law[values >= mean + t].sum() <= bound
            assert law[values <= mean - t].sum() <= bound

    def test_a_stochastic_upper_bound_may_be_used(self):
        p, cs = 3.0, np.array([1.0, 1.2, 2.0, 2.9])
        law = np.array(rci.occupancy(4, 3, 0.8))
        raised = np.array([law[0] / 2, law[1], law[2], law[3] + law[0] / 2])
        low, high = (pairs.profile(rci.occupied_pair(rci.clone_labels(p), 4, k), cs) for k in (law, raised))
        assert (low <= high).all()


class TestWrongVariants:
    """Each is an upper bound that looks right, and by how much the algorithm exceeds it (figures of docs/theory.md)."""

    P = F(5)
    BINARY = krr.krr_channel(2, 5)

    def ratio(self, used, data, rows, tree_of, bound, c):
        """Largest divergence of the two orders over the claimed bound at c."""
        num_slots = len(next(iter(used)))
        tree = rci.constant_tree(tree_of(rows), num_slots)
        laws = [rci.output_law(used, (*data, x), tree) for x in (0, 1)]
        actual = max(rci.hockey_stick(*laws, c), rci.hockey_stick(*laws[::-1], c))
        return actual / pairs.exact_profile(bound, c)

    def test_t2_with_visible_empty_slots(self):
        n, m, p0, c = 1, 4, F(1, 2), F(13, 5)
        used, rows = rci.fixed_window(n, m, p0), [*self.BINARY, self.BINARY[0]]
        t2 = rci.exact_slots_pair(rci.clone_labels(self.P), m, p0)
        assert self.ratio(used, (), rows, np.array, t2, c) <= 1
        assert self.ratio(used, (), rows, rci.flag_empty, t2, c) == F(648, 5)

    def test_the_probability_of_being_used_instead_of_rho(self):
        """E[1/(C+1)] in T2: wrong with visible empty slots, and with hidden ones if the dummy is another record."""
        n, m = 2, 4
        use = rci.fixed_window_use(n, m, F(1, 2))
        bound = rci.exact_slots_pair(rci.clone_labels(self.P), m, use)
        used, rows = rci.fixed_window(n, m, F(1, 2)), [*self.BINARY, self.BINARY[0]]
        assert self.ratio(used, (0,), rows, rci.flag_empty, bound, F(13, 5)) > 294
        p, n, m = F(50), 2, 2
        binary = krr.krr_channel(2, p)
        use = rci.fixed_window_use(n, m, F(1))
        bound = rci.exact_slots_pair(rci.clone_labels(p), m, use)
        used, rows = rci.fixed_window(n, m, F(1)), [*binary, binary[1]]
        assert self.ratio(used, (0,), rows, np.array, bound, F(152, 5)) > 17

    def test_t2_prime_of_a_sliding_window(self):
        """Clients of different windows are not exchangeable: with windows of one slot everybody is named."""
        n, c = 4, F(4)
        used = rci.sliding_window(n, 1)
        prime = rci.exact_slots_pair(rci.clone_labels(self.P), n, F(1))
        assert self.ratio(used, (1,) * 3, [*self.BINARY, self.BINARY[0]], np.array, prime, c) == F(216, 125)
        n, window, c = 4, 2, F(3)
        slots = n - window + 1
        prime = rci.exact_slots_pair(rci.clone_labels(self.P), slots, F(slots, n))
        used = rci.sliding_window(n, window)
        rows = [*self.BINARY, self.BINARY[0]]
        assert self.ratio(used, (1,) * 3, rows, rci.flag_empty, prime, c) == F(9, 7)

    def test_t1_without_the_number_of_messages(self):
        """8.6 times too small at a delta of 0.16, and 50^4 times near the edge."""
        p, n, binary = F(50), 5, krr.krr_channel(2, 50)
        gamma, c = F(9, 10), F(353, 10)
        (true,) = krr.worst_hockey_stick(binary, n, gamma, [c], replaced=((0, 1),))
        assert true > F(86, 10) * pairs.exact_profile(pairs.exact_pair(pairs.trap_labels(p, gamma), n), c)
        gamma, c = F(1, 100), F(99, 2)
        (true,) = krr.worst_hockey_stick(binary, n, gamma, [c], replaced=((0, 1),))
        assert true == p**4 * pairs.exact_profile(pairs.exact_pair(pairs.trap_labels(p, gamma), n), c)

    def test_t2_prime_at_the_largest_of_unequal_rates(self):
        """The others hardly ever come."""
        n, m, c = 3, 2, F(5, 2)
        choices = rci.fixed_window_choices(n, m, (F(1, 100), F(1, 100), F(1, 2)))
        used = rci.one_of_each_slot(choices, range(m))
        prime = rci.exact_occupied_pair(rci.clone_labels(self.P), n, rci.occupancy(n, m, F(1, 2)))
        assert self.ratio(used, (0, 0), [*self.BINARY, self.BINARY[0]], rci.flag_empty, prime, c) > 6.7

    def test_personal_randomizers(self):
        """T1, everybody in: whose message it is shows in its alphabet."""
        n, c = 3, F(4)
        apart = [[F(1, 6), F(5, 6), 0, 0], [F(5, 6), F(1, 6), 0, 0], [0, 0, F(1, 2), F(1, 2)]]
        laws = [krr.histogram_law((2, 2, x), apart, F(1)) for x in (0, 1)]
        bound = pairs.exact_profile(pairs.exact_pair(pairs.t1_labels(self.P, F(1)), n), c)
        assert krr.hockey_stick(*laws, c) / bound == F(36, 25)

    def test_visible_participants(self):
        """T1 when the names of those who checked in are seen."""
        n, gamma, c = 3, F(1, 10), F(3)
        laws = []
        for x in (0, 1):
            law = {}
            for present in product((0, 1), repeat=n):
                data = [r for r, here in zip((1, 1, x), present) if here]
                chance = gamma ** len(data) * (1 - gamma) ** (n - len(data))
                for seen, mass in krr.histogram_law(data, self.BINARY, F(1)).items():
                    law[present, seen] = chance * mass
            laws.append(law)
        bound = pairs.exact_profile(pairs.exact_pair(pairs.t1_labels(self.P, gamma), n), c)
        actual = max(krr.hockey_stick(*laws, c), krr.hockey_stick(*laws[::-1], c))
        assert actual / bound > 44
