"""moments: Renyi moments of a unit whose bound is one mixture of clones' counts (`kernels.composition.moments`)."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.clones_bounds import SPREADS, Mixture
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import moments
from checkin_jax.kernels.mixture_profiles import SMALL, Buckets, MixtureLaw, buckets_upper

# Orders share nodes if they tilt the law by at most this many standard deviations, or the same power of two times it.
_TILT = 3.0
# Nodes, in standard deviations: reach beyond the farthest tilt, and spacing.
_BEYOND, _APART = 10.0, 0.1
_NODES = (160, 320, 640, 1280)
# Buckets of the number of labels: their error is near that of the nodes.
_BUCKETS = (16, 32, 48, 64, 96, 128, 192, 256)
# Support points of the number of absent clients, from each drift on; the most of `SPREADS` gain nothing here.
_DRIFTS, _OFFSETS = (SPREADS[2][0], SPREADS[1][0]), ((), SPREADS[2][1], SPREADS[1][1])
# -log of masses that may be dropped; the last is the smallest mass in float64.
_MASSES = (100.0, 300.0, 690.0)


def mixture_of(bound: object) -> Mixture | None:
    """The mixture of a bound, if it has a single part, as the kernel needs; else None."""
    found = getattr(bound, "mixture", None)
    return found if isinstance(found, Mixture) and found.law.n.size == 1 else None


def left_out(orders: np.ndarray, epsilon0: np.ndarray | float) -> np.ndarray:
    """-log of the mass that may be dropped at each order, if it is charged the largest loss."""
    wanted = np.searchsorted(_MASSES[:-1], orders * epsilon0 + 30.0)
    return np.array(_MASSES)[wanted]


class Lanes(NamedTuple):
    """Lanes of the kernel, of one discretization: orders of one setting each that share nodes.

    Attributes:
      choice: the discretization.
      lane: arguments of the kernel, [lanes, ...]; the last order of a lane is repeated up to the longest lane.
      where: indices of the orders, [lanes, orders], repeated likewise.
    """

    choice: moments.Discretization
    lane: moments.Lane
    where: np.ndarray


def lanes(
    law: MixtureLaw,
    epsilon0: np.ndarray,
    drift: np.ndarray,
    setting: np.ndarray,
    orders: np.ndarray,
    longest: int = sys.maxsize,
) -> list[Lanes]:
    """Lanes of all orders; the nodes of an order do not depend on the other orders.

    Args:
      law: of each setting, [settings]. epsilon0, drift: likewise.
      setting: index of the setting of each order.
      longest: most orders of a lane.
    """
    n, special, absent, _, always, *_, each = law
    mean = 1.0 + (n - 1.0) * special
    ratio = (always + (n - 1.0) * (1.0 - special) * absent * each) / mean
    spread = -np.expm1(-epsilon0) / (1.0 + np.exp(-epsilon0) * (1.0 + 2.0 * ratio)) / np.sqrt(mean)
    # Standard deviations by which an order tilts the law.
    tilt = np.minimum((2.0 * orders - 1.0) * spread[setting], 1e300)
    power = np.minimum(np.ceil(np.maximum(np.log2(tilt / _TILT), 0.0)), 900.0)
    mass = left_out(orders, epsilon0[setting])
    first, count, rows = alike(np.stack([setting, mass, power]), longest)
    place = np.minimum(np.arange(count.max(initial=1)), count[:, None] - 1)
    where = rows[first[:, None] + place]
    head = where[:, 0]
    s, tilted = setting[head], _TILT * 2.0 ** power[head]
    spread, epsilon0, n = spread[s], epsilon0[s], n[s]
    fine = np.minimum((tilted + _BEYOND) * spread, 0.45 * epsilon0)
    # A moment of e^size needs an absolute error of its log of size / 1000.
    size = np.maximum(0.5 * tilted * np.minimum(tilted, epsilon0 / spread), 1.0)
    wanted = fine / spread / np.minimum(_APART, np.sqrt(0.02 * size) / tilted)
    few = n <= SMALL
    choices = np.stack(
        [
            np.where(few, 0, _next(2700.0 / np.sqrt(mean[s]), _BUCKETS)),
            np.where(few & (absent[s] > 0.0), SMALL, 1),
            np.where(few, 0, np.searchsorted(_DRIFTS, drift[s])),
            _next(wanted, _NODES),
        ]
    )
    found = []
    begin, size, order = alike(choices)
    for start, end in zip(begin, begin + size):
        here = order[start:end]
        buckets, absences, offsets, nodes = choices[:, here[0]].tolist()
        columns = (epsilon0, mass[head], tilted + _BEYOND, fine)
        lane = moments.Lane(
            MixtureLaw(*(host(part[s[here], None]) for part in law)),
            *(host(column[here]) for column in columns),
            orders=host(orders[where[here]]),
        )
        choice = moments.Discretization(buckets, absences, _OFFSETS[offsets], nodes)
        found.append(Lanes(choice, lane, where[here]))
    return found


def alike(keys: np.ndarray, longest: int = sys.maxsize) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First places and sizes of groups of equal keys [., rows], at most `longest` each, and the rows in their order."""
    rows = np.lexsort(keys[::-1])
    keys, place = keys[:, rows], np.arange(len(rows))
    new = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(rows)]
    begun = np.maximum.accumulate(np.where(new, place, 0))
    first = np.flatnonzero((place - begun) % longest == 0)
    return first, np.diff(np.append(first, len(rows))), rows


def _next(wanted: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Least size that is large enough, or the last one."""
    return np.array(sizes)[np.minimum(np.searchsorted(sizes, wanted), len(sizes) - 1)]


def log_moments(mixture: Mixture, orders: np.ndarray) -> np.ndarray:
    """Upper bounds on log A of one unit at each order; nats, [orders]. Compiles nothing on the host."""
    found = np.empty(len(orders))
    made: dict[tuple[object, ...], Buckets] = {}
    law = MixtureLaw(*(host(np.ravel(part)) for part in mixture.law))
    about = np.array([mixture.epsilon0]), np.array([mixture.drift]), np.zeros(len(orders), dtype=np.int64)
    for choice, lane, where in lanes(law, *about, orders):
        for i, here in enumerate(where):
            one = moments.Lane(MixtureLaw(*(part[i] for part in lane.law)), *(part[i] for part in lane[1:]))
            key = float(one.neg_log_tail), choice.buckets, choice.offsets
            if choice.buckets and key not in made:
                made[key] = buckets_upper(one.law, one.neg_log_tail, choice.buckets, choice.offsets)
            # Repeated orders come last.
            alone = len(np.unique(here))
            one = one._replace(orders=one.orders[:alone])
            found[here[:alone]] = moments.log_moments(one, choice, made.get(key))
    return found
