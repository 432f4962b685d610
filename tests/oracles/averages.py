"""Averaged slots with Gaussian noise, loads and averages seen: the algorithm by enumeration, and T*' by its definition.

Every client takes part with one probability, picks a slot uniformly, and adds noise of standard deviation `std` to its
record in [-1, 1]; the adversary sees each slot's average and load.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from scipy.stats import poisson

from .t_star import Profile, gaussian_profile

Strength = Callable[[int], float]  # of a slot's average, by its load


def divergence(
    records: tuple[float, ...],
    target: float,
    other: float,
    slots: int,
    probs: float | tuple[float, ...],
    std: float,
    c: float,
) -> float:
    """H_c of the averages of one or two slots, the target's record replaced by `other`; probs: one, or of each, the
    target's last.
    """
    each = probs if isinstance(probs, tuple) else (probs,) * (len(records) + 1)
    edges = np.linspace(-1.0 - 8.0 * std, 1.0 + 8.0 * std, 801 if slots == 1 else 251)
    width = edges[1] - edges[0]

    def density(members: list[float]) -> np.ndarray:
        spread = std / math.sqrt(len(members))
        return (
            np.exp(-0.5 * ((edges - np.mean(members)) / spread) ** 2)
            * width
            / (spread * math.sqrt(2.0 * math.pi))
        )

    laws: list[dict[tuple[int, ...], np.ndarray]] = [{}, {}]
    for law, mine in zip(laws, (target, other)):
        everyone = (*records, mine)
        for picks in product((None, *range(slots)), repeat=len(everyone)):
            share = math.prod(1.0 - p if pick is None else p / slots for p, pick in zip(each, picks))
            members = [[r for r, pick in zip(everyone, picks) if pick == slot] for slot in range(slots)]
            joint = np.ones(1)
            for there in members:
                joint = np.outer(joint, density(there)).ravel() if there else joint
            loads = tuple(map(len, members))
            law[loads] = law.get(loads, 0.0) + share * joint
    return float(sum(np.maximum(laws[0][k] - c * laws[1][k], 0.0).sum() for k in laws[0]))


def statement(n: int, slots: int, prob: float, strength: Strength, c: float, everybody: bool = True) -> float:
    """T*' for n clients in one or two slots; without the event that all take part if not `everybody`."""
    found = prob**n * float(gaussian_profile(strength(1))(np.array(c))) if everybody else 0.0
    for loads in product(range(n + 1), repeat=slots):
        count = sum(loads)
        if count >= n:
            continue
        ways = math.factorial(n) / math.prod(map(math.factorial, (*loads, n - count)))
        chance = ways * (prob / slots) ** count * (1.0 - prob) ** (n - count)
        steps = [
            (load * places, masses)
            for load in loads
            if load
            for places, masses in [step(gaussian_profile(strength(load)), c)]
        ]
        places, masses = np.array([n * (1.0 - c)]), np.ones(1)
        for more, weights in steps:
            places = np.add.outer(places, more).ravel()
            masses = np.multiply.outer(masses, weights).ravel()
        found += chance * float(np.maximum(places, 0.0) @ masses) / n
    return found


def pooled(
    others: Sequence[float], rate: float, theta: float, slots: int, strength: Strength, c: float
) -> float:
    """T*'h for a target of this rate, at most theta, beside others of these rates."""
    sizes = np.ones(1)
    for p in others:
        member = min(p / theta, (1.0 - p) / (1.0 - theta))
        sizes = np.convolve(sizes, [1.0 - member, member])
    each = [statement(size + 1, slots, theta, strength, c) for size in range(sizes.size)]
    return rate / theta * float(sizes @ np.array(each))


def step(profile: Profile, c: float, knots: int = 800) -> tuple[np.ndarray, np.ndarray]:
    """Places and masses of the centred T* at c, its mass moved outwards to knots: a little too much."""
    side = np.concatenate([np.linspace(0.0, 4.0, knots // 2), np.geomspace(4.01, 2000.0, knots // 4)])
    places = np.unique(np.concatenate([-side, side]))
    value = centred(profile, c, places)
    slopes = np.concatenate([[-1.0], np.diff(value) / np.diff(places), [0.0]])
    masses = np.maximum(np.diff(slopes), 0.0)
    return places, masses / masses.sum()


def centred(profile: Profile, c: float, places: np.ndarray) -> np.ndarray:
    """E(T* + c - 1 - place)_+ ."""
    t = places - (c - 1.0)
    size = np.maximum(-t, 0.0)
    return np.where(t >= 0, profile(c + np.maximum(t, 0.0)), (1.0 + size) * profile(c / (1.0 + size)))


def poisson_loads(
    clients: float, slots: int, load: float, mu: float, c: float, size: float, points: int
) -> float:
    """(1/clients) E(-clients (c - 1) + sum over slots of L tau_L)_+, L Poisson of mean `load`, on a lattice."""
    at = (np.arange(points + 1) - points // 2) * size
    value = np.zeros(points + 1)
    for k in range(1, int(load + 12.0 * math.sqrt(load) + 12.0)):
        scaled = k * centred(gaussian_profile(mu / math.sqrt(k)), c, at / k)
        value += poisson.pmf(k, load) * (scaled + np.minimum(at, 0.0))
    value[value < 1e-13] = 0.0
    masses = np.diff(value, n=2) / size
    law = np.zeros(points)
    np.add.at(law, np.rint(at[1:-1] / size).astype(int) % points, np.maximum(masses, 0.0))
    law[0] += max(1.0 - law.sum(), 0.0)
    law /= law.sum()
    total = np.fft.irfft(np.fft.rfft(law) ** slots, points)
    places = np.fft.fftfreq(points, 1.0 / points) * size
    return float(np.maximum(places - clients * (c - 1.0), 0.0) @ total) / clients
