"""Windows all of whose other clients collude, with messages of a few letters: what colluders know of them is little.

A colluder's message may be the same letter as the client's, and then nobody knows whose is in the slot. Every policy of
others is tried: records of colluders, and of dummies, that depend on all that was seen in earlier slots.
"""

import itertools
import math

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING

import checkin_jax as cj

pytestmark = pytest.mark.usefixtures("x64")


def throws(window: int, meant: int) -> dict[tuple[int, ...], float]:
    """How many of the other clients of 2 window - 1 are in each slot that is shown."""
    law = {(0,) * window: 1.0}
    for client in range(2 * window - 1):
        if client == meant:
            continue
        after: dict[tuple[int, ...], float] = {}
        for held, mass in law.items():
            for slot in range(client, client + window):
                inside = slot - (window - 1)
                now = list(held)
                if 0 <= inside < window:
                    now[inside] += 1
                place = tuple(now)
                after[place] = after.get(place, 0.0) + mass / window
        law = after
    return law


def most(held: tuple[int, ...], slot: int, masses: np.ndarray, u: float, c: float) -> np.ndarray:
    """The largest divergence from this slot on, for each [..., both records, slot of the client] of masses."""
    if slot == len(held):
        first, second = np.moveaxis(masses.sum(axis=-1), -1, 0)
        return np.maximum(first - c * second, 0.0)
    count, best = held[slot], np.zeros(())
    # An empty slot shows a dummy of either record, which nobody knows.
    for record in itertools.combinations_with_replacement((u, 1.0 - u), max(count, 1)):
        seen = []
        for sent in itertools.product((0, 1), repeat=count):
            known = math.prod(p if one else 1.0 - p for p, one in zip(record, sent))
            for shown in (0, 1):
                without = sent.count(shown) / count if count else (record[0] if shown else 1.0 - record[0])
                chances = np.full(masses.shape[-2:], known * without)
                for mine, ones in zip(chances, (u, 1.0 - u)):
                    mine[slot] = known * (sent.count(shown) + (ones if shown else 1.0 - ones)) / (count + 1)
                seen.append(chances)
        after = masses[..., None, :, :] * np.array(seen)
        best = np.maximum(best, most(held, slot + 1, after, u, c).sum(axis=-1))
    return best


def leak(window: int, meant: int, u: float, c: float) -> float:
    """The largest divergence for one client; the other order is this one with letters renamed, as policies may do."""
    shown = [window - 1 <= slot < 2 * window - 1 for slot in range(meant, meant + window)]
    place = np.zeros(window + 1)
    for offset, seen in enumerate(shown):
        place[meant + offset - (window - 1) if seen else window] += 1.0 / window
    both = np.stack([place, place])
    return sum(mass * float(most(held, 0, both, u, c)) for held, mass in throws(window, meant).items())


@pytest.mark.parametrize("epsilon0", [0.3, 1.0])
def test_lower_ends_are_below_what_colluders_who_send_letters_know(epsilon0):
    window, delta = 3, 3e-3
    u = 1.0 / (1.0 + math.exp(-epsilon0))
    run = cj.SlidingWindow(num_clients=2 * window - 1, window=window, num_colluding=2 * window - 2)
    g = cj.account(run, cj.KaryResponse(epsilon0=epsilon0, num_values=2), delta=delta)
    truth = max(leak(window, meant, u, math.exp(g.lower)) for meant in range(2 * window - 1))
    assert truth * (1.0 + ORACLE_ROUNDING) >= delta, (g.lower, truth)
    # No oracle that is too small: nor is any larger than what is certified above.
    above = max(leak(window, meant, u, math.exp(g.epsilon)) for meant in range(2 * window - 1))
    assert above <= delta * (1.0 + ORACLE_ROUNDING)
