"""Windows all of whose other clients collude, with messages of a few letters: what colluders know of them is little.

A colluder's message may be the same letter as the client's, and then nobody knows whose is in the slot. Every policy of
others is tried: slots of colluders; their letters, and records of dummies, by all that was seen in earlier slots.
"""

import math

import numpy as np
import pytest
from conftest import ORACLE_ROUNDING

import checkin_jax as cj

pytestmark = pytest.mark.usefixtures("x64")


def throws(window: int, meant: int) -> set[tuple[int, ...]]:
    """How many of the other clients of 2 window - 1 may be in each slot that is shown."""
    found = {(0,) * window}
    for client in range(2 * window - 1):
        if client == meant:
            continue
        places = range(client - window + 1, client + 1)
        found = {
            tuple(count + (slot == place) for slot, count in enumerate(held))
            for held in found
            for place in places
        }
    return found


def most(held: tuple[int, ...], slot: int, masses: np.ndarray, u: float, c: float) -> np.ndarray:
    """The largest divergence from this slot on, for each [..., both records, slot of the client] of masses."""
    if slot == len(held):
        first, second = np.moveaxis(masses.sum(axis=-1), -1, 0)
        return np.maximum(first - c * second, 0.0)
    count, best = held[slot], np.zeros(())
    # An empty slot shows a dummy of either record, which nobody knows; else so many colluders send ones.
    for ones in range(count + 1) if count else (u, 1.0 - u):
        without = ones / max(count, 1)
        seen = []
        for shown in (0, 1):
            alike = without if shown else 1.0 - without
            chances = np.full(masses.shape[-2:], alike)
            for mine, often in zip(chances, (u, 1.0 - u)):
                mine[slot] = (count * alike + (often if shown else 1.0 - often)) / (count + 1)
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
    return max(float(most(held, 0, both, u, c)) for held in throws(window, meant))


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
