"""Laws of a message's likelihood ratios, from which an adversary chooses, and a law that dominates them.

A step is z - c z', centred and in units of p - 1, where z and z' are the likelihood ratios of x and x' over
the record that takes their place, and c >= 1. [docs/theory.md, T1+; docs/theory_mechanisms.md, B]
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax import Array

from checkin_jax.kernels.execution.backend import quietly, xp


class OwnLaws(NamedTuple):
    """Laws of a mechanism's own step at every loss.

    at: places, centred and in units of p - 1, [losses, values]. laws: probabilities of all places except
    zero; the last law is above the others in convex order, [losses, laws, values]. alone: upper bound on the
    divergence of one message, [losses].
    """

    at: Array
    laws: Array
    alone: Array


class Message(NamedTuple):
    """Parameters of a message: float64 scalars.

    epsilon0: of the randomizer, nats. differ: for one-bit messages, an upper bound on the probability that
    the bits of two records differ (1 in the worst case); unused by other messages. own: laws of the
    mechanism, used in `own_game` only.
    """

    epsilon0: Array
    differ: Array
    own: OwnLaws | None = None

    def alone(self, loss: Array) -> Array:
        """Upper bound on the divergence of one message at this loss."""
        if self.own is not None:
            return self.own.alone
        p = xp.exp(self.epsilon0)
        return xp.maximum(xp.exp(loss) * xp.expm1(self.epsilon0 - loss), 0.0) / (p + 1.0)


class Game(NamedTuple):
    """A game.

    places: all values of a step, [..., values], from c - 1 [...] and a message. laws: their probabilities, [laws,
    values] or one such array for each c; the adversary chooses among all but the last, which is above the others in
    convex order. candidates: mixtures of the first laws, tried as the main part of a stage's law. largest_variance:
    of a step at c = 1. stages: number of stages of the early steps; any number gives a bound.
    """

    places: Callable[[Array, Message], Array]
    laws: Callable[[Message], Array]
    candidates: tuple[tuple[float, ...], ...]
    largest_variance: Callable[[Message], Array]
    stages: int


def _hexagon_places(c_minus_1: Array, message: Message) -> Array:
    """Places at the corners (p,1), (1,p), (p,p), (1/p,1/p), (1,1/p), (1/p,1), and (0,0)."""
    per_p, one = xp.exp(-message.epsilon0), xp.ones_like(c_minus_1)
    c, origin = 1.0 + c_minus_1, c_minus_1 / xp.expm1(message.epsilon0)
    return xp.stack([one, -c, -c_minus_1, c_minus_1 * per_p, c * per_p, -per_p * one, origin], axis=-1)


def _hexagon_laws(message: Message) -> Array:
    """The five extreme laws with mean (1, 1), and T1's law.

    As seen from (1, 1) the corners lie at 0, 90, 45, 225, 270 and 180 degrees: three antipodal pairs, and two
    triples around the centre. So there are five extreme laws for every p.
    """
    q = xp.exp(-message.epsilon0)
    zero, pair, far = xp.zeros_like(q), q / (1.0 + q), 1.0 / (1.0 + q)
    three, inverse = 1.0 / (1.0 + 2.0 * q), 1.0 / (2.0 + q)
    rows = [
        [q * three, q * three, zero, three, zero, zero, zero],
        [pair, zero, zero, zero, zero, far, zero],
        [zero, pair, zero, zero, far, zero, zero],
        [zero, zero, q * inverse, zero, inverse, inverse, zero],
        [zero, zero, pair, far, zero, zero, zero],
        [pair, pair, zero, zero, zero, zero, -xp.expm1(-message.epsilon0) * far],
    ]
    return xp.stack([xp.stack(row) for row in rows])


@quietly
def _hexagon_variance(message: Message) -> Array:
    """Variance of 3-ary or binary randomized response."""
    p = xp.exp(message.epsilon0)
    return xp.maximum(2.0 / (p + 2.0), 1.0 / p)


# Any eps0-LDP message. The first three laws: 3-ary randomized response, binary, and its mirror image.
HEXAGON = Game(
    _hexagon_places,
    _hexagon_laws,
    (
        (1.0, 0.0, 0.0),
        (0.0, 0.5, 0.5),
        (0.0, 0.6, 0.4),
        (0.0, 0.75, 0.25),
        (0.0, 0.9, 0.1),
        (0.0, 1.0, 0.0),
        (0.5, 0.25, 0.25),
        (0.5, 0.5, 0.0),
    ),
    _hexagon_variance,
    7,
)


def one_bit_places(c_minus_1: Array, message: Message) -> Array:
    """Places of B0's terms, all others at x' (X) or x (Y): of X, of Y, of -(c - 1) xi, and the
    fourth of t*; [..., values].
    """
    c, per_p = 1.0 + c_minus_1, xp.exp(-message.epsilon0)
    one = xp.ones_like(c)
    fourth = c_minus_1 / xp.expm1(message.epsilon0)
    return xp.stack([one, -per_p * one, -c, c * per_p, -c_minus_1, c_minus_1 * per_p, fourth], axis=-1)


def one_bit_laws(message: Message) -> Array:
    """X, Y, and t*_beta with beta = differ (p - 1)/(p + 1)."""
    p_minus_1, nu = xp.expm1(message.epsilon0), message.differ
    rare = 1.0 / (p_minus_1 + 2.0)
    usual, zero = 1.0 - rare, xp.zeros_like(rare)
    same = [(1.0 - nu) * rare, (1.0 - nu) * usual, zero]
    pair, high = nu * rare, (1.0 - nu) / (p_minus_1 + 1.0)
    rows = [
        [pair, nu * usual, zero, zero, *same],
        [zero, zero, pair, nu * usual, *same],
        [pair, zero, pair, zero, high, zero, 1.0 - 2.0 * pair - high],
    ]
    return xp.stack([xp.stack(row) for row in rows])


def _own_candidates(count: int) -> tuple[tuple[float, ...], ...]:
    """Each of the first laws, and mixtures of two and of three of them."""
    first = min(count, 4)
    rows = [np.eye(count)[i] for i in range(first)]
    for i, j in itertools.product(range(first), repeat=2):
        if j < i:
            for share in (0.5, 0.25, 0.75):
                rows.append(share * np.eye(count)[i] + (1.0 - share) * np.eye(count)[j])
    rows.append(np.append(np.full(3, 1.0 / 3.0), np.zeros(count - 3)))
    return tuple(tuple(float(share) for share in row) for row in rows)


def _own(message: Message) -> OwnLaws:
    assert message.own is not None
    return message.own


def _own_places(_: Array, message: Message) -> Array:
    return _own(message).at


def _own_laws(message: Message) -> Array:
    return _own(message).laws


def _own_variance(message: Message) -> Array:
    """Variance at the first of the losses, which is 0."""
    own = _own(message)
    return xp.max(own.laws[0, :-1] @ xp.square(own.at[0]))


@functools.lru_cache(maxsize=16)
def own_game(count: int) -> Game:
    """The game of `count` >= 3 laws, which `Message.own` holds."""
    return Game(_own_places, _own_laws, _own_candidates(count), _own_variance, 10)
