"""E+ for nearly eps0-LDP messages, evaluated: links and floors against exact rounds, and what it is used for."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from checkin_jax.accounting.bounds.interface import Witness
from checkin_jax.accounting.composition import compose
from checkin_jax.numerics import left_out_clones as ours

pytestmark = pytest.mark.usefixtures("x64")
MASS = 31.0


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


def link(clients: int, pools: tuple[int, ...], epsilon0: float, delta0: float, hexagon: bool):
    messages = ours._NearlyPrivate(epsilon0, delta0, MASS)
    return ours.NearlyPrivateLink(messages, clients, pools, messages.kinds[hexagon])


@pytest.mark.parametrize("hexagon", [False, True])
@pytest.mark.parametrize("delta0", [1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize(
    ("epsilon0", "clients", "pools"),
    [(0.3, 80, (1,)), (0.3, 80, (20, 1)), (1.0, 120, (30, 5, 1)), (1.0, 120, (20,)), (2.0, 60, ())],
)
def test_a_link_is_above_exact_rounds(epsilon0, clients, pools, delta0, hexagon):
    p = math.exp(epsilon0)
    bound, reached = link(clients, pools, epsilon0, delta0, hexagon), 0.0
    first, second = shown_or_response(clients, p, delta0, clients - 1)
    for share in (0.0, 0.01, 0.1, 0.5, 0.95):
        above = share * (p - 1.0)
        c = 1.0 + above
        (value,), floor = bound.values(np.array([above])), bound.floor
        truth = max(np.maximum(a - c * b, 0.0).sum() for a, b in ((first, second), (second, first)))
        assert value + c * floor >= truth * (1.0 - 1e-9)
        assert value + bound.largest_floor >= truth * (1.0 - 1e-9)
        reached = max(reached, truth / (value + c * floor))
    # Beyond p the divergence is at most delta0.
    beyond = np.maximum(first - 1.01 * p * second, 0.0).sum()
    assert 0.9 * delta0 <= beyond <= delta0 * (1.0 + 1e-9) <= bound.floor * p * (1.0 + 1e-6)
    assert reached > 0.1


def test_without_a_floor_exact_rounds_are_above():
    p, delta0 = math.e, 1e-4
    bound = link(120, (30, 1), 1.0, delta0, False)
    first, second = shown_or_response(120, p, delta0, 119)
    c = 1.0 + 0.9 * (p - 1.0)
    assert np.maximum(first - c * second, 0.0).sum() > 2.0 * bound.values(np.array([c - 1.0]))[0]


def test_floors_do_not_grow_with_the_number_of_clients():
    """It is that of cutting all messages, of which there are n, where no chain is used."""
    floors = []
    for clients in (10**4, 10**6, 10**8):
        found = ours.nearly_private(clients, MASS, 1.0, 2e-8)
        assert found is not None
        floors.append(found.floor)
    assert max(floors) < 20 * 2e-8
    assert link(10**4, (), 1.0, 2e-8, False).floor > 1e-4


def test_no_chain_serves_where_the_messages_show_more_than_delta():
    delta = math.exp(17.0 - MASS)
    assert ours.nearly_private(10**6, MASS, 1.0, 0.1 * delta) is not None
    assert ours.nearly_private(10**6, MASS, 1.0, delta) is None


def test_bad_numbers_are_refused():
    for arguments in (
        (1, MASS, 1.0, 1e-9),
        (10, 0.0, 1.0, 1e-9),
        (10, MASS, -1.0, 1e-9),
        (10, MASS, 1.0, 0.0),
    ):
        with pytest.raises(ValueError, match="expected"):
            ours.nearly_private(*arguments)


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
