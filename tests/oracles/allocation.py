"""The random allocation pair by quadrature: one Gaussian message in one of m slots, and averaged slots.

Q = N(0, I_m), P = (1-rho) Q + (rho/m) sum_i N(mu e_i, I). For m <= 3 all coordinates but the last are integrated by
Gauss-Legendre panels that shrink towards the sharp bend, the last one in closed form. For more slots by the
characteristic function of a sum of lognormals.
"""

import math
from itertools import product

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom


def _call(shift: np.ndarray, weight: float, mu: float) -> np.ndarray:
    """E(shift + weight L)_+ for L = e^{mu x - mu^2/2}, weight > 0."""
    with np.errstate(divide="ignore"):
        edge = np.where(shift < 0, np.log(np.where(shift < 0, -shift, 1.0) / weight), -np.inf) / mu
    return shift * ndtr(-edge - 0.5 * mu) + weight * ndtr(-edge + 0.5 * mu)


def _put(shift: np.ndarray, weight: float, mu: float) -> np.ndarray:
    """E(shift - weight L)_+."""
    with np.errstate(divide="ignore"):
        edge = np.where(shift > 0, np.log(np.where(shift > 0, shift, 1.0) / weight), -np.inf) / mu
    return np.where(shift > 0, shift * ndtr(edge + 0.5 * mu) - weight * ndtr(edge - 0.5 * mu), 0.0)


def _panels(edge: float, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on panels that shrink towards `edge`, where the integrand bends sharply."""
    steps = np.concatenate([[0.0], np.geomspace(1e-7, high - low, 40)])
    cuts = np.unique(
        np.clip(np.concatenate([edge - steps, edge + steps, np.linspace(low, high, 40)]), low, high)
    )
    node, weight = np.polynomial.legendre.leggauss(12)
    middle, half = 0.5 * (cuts[1:] + cuts[:-1]), 0.5 * np.diff(cuts)
    return (middle[:, None] + half[:, None] * node).ravel(), (half[:, None] * weight).ravel()


def profiles(slots: int, used: float, mu: float, c: float) -> tuple[float, float]:
    """(H_c(P||Q), H_c(Q||P)) for m = 1 or 2 (3 takes a minute), to about 1e-11 absolute."""
    return mixed([(used / slots, mu)] * slots, c)


def mixed(kinds: list[tuple[float, float]], c: float) -> tuple[float, float]:
    """The same for dP/dQ = 1 + sum_i w_i (L_i - 1), L_i of shift mu_i; kinds: (w_i, mu_i) of 1 or 2 slots."""

    def given(rest: np.ndarray, left: int) -> np.ndarray:
        """Both profiles, [2, size of rest], given all but `left` slots."""
        share, mu = kinds[left - 1]
        low, high = -9.0 - mu, 9.0 + 2.0 * mu
        if left == 1:
            return np.stack([_call(rest - c, share, mu), _put(1.0 - c * rest, c * share, mu)])
        total = np.empty((2, rest.size))
        for side, level in enumerate((c, 1.0 / c)):
            for i, here in enumerate(rest):
                # The rest of the sum reaches the threshold by itself at this x.
                edge = math.log(max((level - here) / share, 1e-30)) / mu + 0.5 * mu
                x, weight = _panels(edge, low, high)
                mass = weight * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
                total[side, i] = given(here + share * np.exp(mu * x - 0.5 * mu * mu), left - 1)[side] @ mass
        return total

    forward, backward = given(np.asarray([1.0 - sum(share for share, _ in kinds)]), len(kinds))[:, 0]
    return float(forward), float(backward)


def by_characteristic_function(
    slots: int, used: float, mu: float, cs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(H_c(P||Q), H_c(Q||P)), mu <= 1 and m >= 10, to about 1e-8 absolute.

    E|X| = (2 / pi) int_0^inf (1 - Re E e^{itX}) / t^2 dt; E X_+ = (E|X| + E X) / 2.
    """
    sd = np.sqrt(np.expm1(mu * mu) / slots)
    # In units of one standard deviation of Y = (1/m) sum L; the integrand beyond the last t is 1 / t^2.
    t = np.linspace(0.0, 60.0, 24_001)[1:] / sd
    z = np.linspace(-9.0, 9.0 + mu, 801)
    weight = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) * (z[1] - z[0])
    step = np.exp(mu * z - 0.5 * mu * mu) - 1.0
    phi = np.concatenate([np.exp(1j * np.outer(part, step) / slots) @ weight for part in np.split(t, 40)])
    log_phi = slots * np.log(phi)
    spacing = t[1] - t[0]

    def mean_positive(shift: float) -> float:
        inside = (1.0 - np.real(np.exp(log_phi + 1j * t * shift))) / t**2
        variance = np.expm1(mu * mu) / slots + shift * shift
        ends = 0.5 * (0.5 * variance) - 0.5 * inside[-1]
        size = 2.0 / np.pi * (spacing * (inside.sum() + ends) + 1.0 / t[-1])
        return 0.5 * (size + shift)

    forward = np.array([used * mean_positive((1.0 - c) / used) for c in cs])
    # 1 - c Y' = c used ((1 / c - 1) / used - (Y - 1)), and E(-X)_+ = E X_+ - E X.
    backward = np.array([mean_positive(-(1.0 / c - 1.0) / used) + (1.0 / c - 1.0) / used for c in cs])
    return forward, used * cs * backward


def replaced(slots: int, base: tuple[float, ...], target: float, other: float, c: float) -> float:
    """H_c of a message at `target` against one at `other`, noise 1, in one of two slots whose means are `base` else."""
    assert slots == 2
    x = np.linspace(-9.0, 9.0, 1801) + 0.5 * (target + other)
    density = {mean: np.exp(-0.5 * (x - mean) ** 2) for mean in {*base, target, other}}

    def law(record: float) -> np.ndarray:
        first, second = (density[base[0]], density[base[1]])
        mine = density[record]
        return 0.5 * (np.outer(mine, second) + np.outer(first, mine)) / (2.0 * np.pi) * (x[1] - x[0]) ** 2

    return float(np.maximum(law(target) - c * law(other), 0.0).sum())


def window(records: tuple[float, ...], slots: int, prob: float, noise: float) -> np.ndarray:
    """A_fix with hidden dummies: the law of all outputs, [cells] ** slots; slots at most 2.

    Outputs are merged into cells, which lowers hockey-stick divergences (by less than 1e-3 of them).

    Every client takes part with probability `prob` and picks a slot; a slot shows one of its clients, uniformly drawn,
    or the dummy 0; records are in [-1, 1].
    """
    weights: dict[tuple[float, ...], float] = {}
    for picks in product(range(slots + 1), repeat=len(records)):
        chance = math.prod(1.0 - prob if pick == slots else prob / slots for pick in picks)
        members = [[r for r, pick in zip(records, picks) if pick == slot] or [0.0] for slot in range(slots)]
        for shown in product(*members):
            share = chance / math.prod(len(each) for each in members)
            weights[shown] = weights.get(shown, 0.0) + share
    edges = np.linspace(-1.0 - 6.0 * noise, 1.0 + 6.0 * noise, 1000 if slots == 2 else 20_000)
    law = np.zeros((edges.size + 1,) * slots)
    for shown, share in weights.items():
        rows = [np.diff(ndtr((edges - mean) / noise), prepend=0.0, append=1.0) for mean in shown]
        law += share * (rows[0] if slots == 1 else np.outer(*rows))
    return law


def hockey_stick(p: np.ndarray, q: np.ndarray, c: float) -> float:
    """H_c of two laws on one grid."""
    return float(np.maximum(p - c * q, 0.0).sum())


def averaged(
    records: tuple[float, ...], target: float, other: float, slots: int, std: float, c: float
) -> float:
    """H_c of A_avg with p_0 = 1 in the aggregate view: each slot's average, its noise and which slots are empty.

    The loads are not seen. `records`: of the other clients, at most 2; slots at most 2.
    """
    x = np.linspace(-9.0 * std, 9.0 * std, 1201)
    dx = x[1] - x[0]
    laws = []
    for mine in (target, other):
        everyone = (*records, mine)
        law: dict[tuple[bool, ...], np.ndarray | float] = {}
        for picks in product(range(slots), repeat=len(everyone)):
            joint = np.ones(1)
            seen = []
            for slot in range(slots):
                members = [r for r, pick in zip(everyone, picks) if pick == slot]
                seen.append(bool(members))
                if members:
                    spread = std / np.sqrt(len(members))
                    row = (
                        np.exp(-0.5 * ((x - np.mean(members)) / spread) ** 2)
                        / (spread * np.sqrt(2 * np.pi))
                        * dx
                    )
                    joint = np.outer(joint, row).ravel()
            law[tuple(seen)] = law.get(tuple(seen), 0.0) + joint / slots ** len(everyone)
        laws.append(law)
    return float(sum(np.maximum(laws[0][seen] - c * laws[1][seen], 0.0).sum() for seen in laws[0]))


def averaged_bound(num_clients: int, slots: int, prob: float, mu: float, epsilon: float) -> float:
    """G4 by its definition."""
    k = np.arange(1, num_clients + 1)
    shift = mu / np.sqrt(k)
    delta = ndtr(shift / 2 - epsilon / shift) - np.exp(epsilon) * ndtr(-shift / 2 - epsilon / shift)
    return float(prob * binom.pmf(k - 1, num_clients - 1, prob / slots) @ delta)
