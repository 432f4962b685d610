"""Brute force of shuffled check-in with finite local randomizers (adversary sees all messages).

Each of n clients checks in independently; one that does sends a single output of its local channel.
The adversary sees the multiset of messages, that is the histogram of outputs with its total. The
functions enumerate the law of that histogram on actual data sets and compare neighbouring ones
(one record replaced). With rational channels, check-in probabilities and c the results are exact
`Fraction`s; with floats they are sums of positive terms, accurate to about n * 1e-16 relative in
each probability.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, permutations, product
from math import fsum

import numpy as np

Number = Fraction | float
Channel = Sequence[Sequence[Number]]  # row x: the law of the output on record x
Law = dict[tuple, Number]  # what the adversary sees -> its probability


def krr_channel(num_records: int, p: Number) -> Channel:
    """k-ary randomized response, likelihood ratio p = e^eps0; exact when p is an int or a Fraction."""
    p = Fraction(p) if isinstance(p, int) else p
    total = p + num_records - 1
    return [[(p if x == y else 1) / total for y in range(num_records)] for x in range(num_records)]


def random_extremal_channel(rng: np.random.Generator, num_records: int, p: float) -> Channel:
    """A random channel whose columns are multiples of patterns in {1, p}^k.

    Every vector with entries within a factor p of each other is a conic combination of these
    patterns, so every channel with likelihood ratios <= p is a post-processing of a channel of
    this form. Drawn as a random mixture of two vertices of the polytope of such channels.
    """
    patterns = np.array(list(product([1.0, float(p)], repeat=num_records)))[1:-1]
    vertices = []
    while len(vertices) < 2:
        columns = patterns[rng.choice(len(patterns), num_records, replace=False)]
        if abs(np.linalg.det(columns)) < 1e-9:
            continue
        weights = np.linalg.solve(columns.T, np.ones(num_records))
        if (weights >= 0).all():
            vertices.append((columns * weights[:, None]).T)
    mix = rng.beta(0.5, 0.5)
    return np.hstack([mix * vertices[0], (1 - mix) * vertices[1]]).tolist()


def add_client(law: Mapping[tuple, Number], row: Sequence[Number], check_in_prob: Number) -> Law:
    """The histogram's law after one more client, whose message (if any) has law `row`."""
    out: Law = {}
    for seen, mass in law.items():
        out[seen] = out.get(seen, 0) + (1 - check_in_prob) * mass
        for y, prob in enumerate(row):
            key = (*seen[:y], seen[y] + 1, *seen[y + 1 :])
            out[key] = out.get(key, 0) + check_in_prob * prob * mass
    return out


def histogram_law(records: Iterable[int], channel: Channel, check_in_prob: Number) -> Law:
    """Law of the histogram of messages on the data set `records`."""
    law: Law = {(0,) * len(channel[0]): Fraction(1)}
    for record in records:
        law = add_client(law, channel[record], check_in_prob)
    return law


def two_round_law(
    records: Sequence[int],
    first: Channel,
    second: Callable[[tuple], Channel],
    check_in_prob: Number,
) -> Law:
    """Law of both rounds' histograms; the second round's channel may depend on the first histogram."""
    out: Law = {}
    for seen, mass in histogram_law(records, first, check_in_prob).items():
        for then, prob in histogram_law(records, second(seen), check_in_prob).items():
            out[seen, then] = mass * prob
    return out


def neighbouring_data_sets(
    num_records: int, num_clients: int, replaced: Iterable[tuple[int, int]] | None = None
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All ordered neighbouring pairs, up to the order of the clients; the last record is the replaced one.

    `replaced` limits the pairs (x, x'); for k-ary randomized response ((0, 1),) covers everything by
    symmetry, the reversed direction included.
    """
    for x, x_other in permutations(range(num_records), 2) if replaced is None else replaced:
        for others in combinations_with_replacement(range(num_records), num_clients - 1):
            yield (*others, x), (*others, x_other)


def neighbouring_laws(
    channel: Channel,
    num_clients: int,
    check_in_prob: Number,
    replaced: Iterable[tuple[int, int]] | None = None,
) -> Iterator[tuple[Law, Law]]:
    """The pairs of one-round laws of all ordered neighbouring pairs of data sets."""
    for data, neighbour in neighbouring_data_sets(len(channel), num_clients, replaced):
        yield histogram_law(data, channel, check_in_prob), histogram_law(neighbour, channel, check_in_prob)


def hockey_stick(p_law: Mapping[tuple, Number], q_law: Mapping[tuple, Number], c: Number) -> Number:
    """sum (P - c Q)_+ over everything the adversary may see; exact for Fractions."""
    terms = [max(p_law.get(key, 0) - c * q_law.get(key, 0), 0) for key in p_law.keys() | q_law.keys()]
    return fsum(terms) if any(isinstance(term, float) for term in terms) else sum(terms)


def worst_hockey_stick(
    channel: Channel,
    num_clients: int,
    check_in_prob: Number,
    cs: Sequence[Number],
    replaced: Iterable[tuple[int, int]] | None = None,
) -> list[Number]:
    """For each c the largest one-round hockey-stick divergence over all neighbouring data sets."""
    worst: list[Number] = [0] * len(cs)
    for p_law, q_law in neighbouring_laws(channel, num_clients, check_in_prob, replaced):
        worst = [max(w, hockey_stick(p_law, q_law, c)) for w, c in zip(worst, cs)]
    return worst
