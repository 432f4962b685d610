"""moments: Renyi moments of a unit whose bound is one mixture of clones' counts (`kernels.composition.moments`)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds import clones_bounds
from checkin_jax.accounting.bounds.clones_bounds import SPREADS, Mixture
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import moments
from checkin_jax.kernels.mixture_profiles import Buckets, buckets_upper

# Orders share nodes if they tilt the law by at most this many standard deviations, or the same power of two times it.
_TILT = 3.0
# Nodes, in standard deviations: reach beyond the farthest tilt, and spacing.
_BEYOND, _APART = 10.0, 0.1
_NODES = (160, 320, 640, 1280)
# Buckets of the number of labels: their error is near that of the nodes.
_BUCKETS = (16, 32, 48, 64, 96, 128, 192)
_LAST_BUCKETS = 256
# -log of masses that may be dropped; the last is the smallest mass in float64.
_MASSES = (100.0, 300.0, 690.0)


def mixture_of(bound: object) -> Mixture | None:
    """The mixture of a bound, if it has a single part, as the kernel needs; else None."""
    found = getattr(bound, "mixture", None)
    return found if isinstance(found, Mixture) and found.law.n.size == 1 else None


def left_out(orders: np.ndarray, epsilon0: float) -> np.ndarray:
    """-log of the mass that may be dropped at each order, if it is charged the largest loss."""
    wanted = np.searchsorted(_MASSES[:-1], orders * epsilon0 + 30.0)
    return np.array(_MASSES)[wanted]


class SharedNodes(NamedTuple):
    """Orders that share nodes: their indices, and arguments of the kernel."""

    where: np.ndarray
    lane: moments.Lane
    choice: moments.Discretization


def plans(mixture: Mixture, orders: np.ndarray) -> list[SharedNodes]:
    """Groups of orders; the nodes of an order do not depend on the other orders."""
    law, epsilon0 = mixture.law, mixture.epsilon0
    n, special, absent, _, always, *_, each = (float(np.ravel(part)[0]) for part in law)
    mean = 1.0 + (n - 1.0) * special
    ratio = (always + (n - 1.0) * (1.0 - special) * absent * each) / mean
    spread = -math.expm1(-epsilon0) / (1.0 + math.exp(-epsilon0) * (1.0 + 2.0 * ratio)) / math.sqrt(mean)
    # Standard deviations by which an order tilts the law.
    tilt = np.minimum((2.0 * orders - 1.0) * spread, 1e300)
    step = np.ceil(np.maximum(np.log2(tilt / _TILT), 0.0))
    masses = left_out(orders, epsilon0)
    many = 2700.0 / math.sqrt(mean)
    found = []
    for mass, power in sorted(set(zip(masses.tolist(), step.tolist()))):
        where = np.flatnonzero((masses == mass) & (step == power))
        tilted = _TILT * 2.0 ** min(power, 900.0)
        fine = min((tilted + _BEYOND) * spread, 0.45 * epsilon0)
        # A moment of e^size needs an absolute error of its log of size / 1000.
        size = max(0.5 * tilted * min(tilted, epsilon0 / spread), 1.0)
        wanted = fine / spread / min(_APART, math.sqrt(0.02 * size) / tilted)
        cut = clones_bounds.cut(n, n * special, mass, mixture.drift, True, absent=absent > 0.0)
        buckets = next((count for count in _BUCKETS if count >= many), _LAST_BUCKETS) if cut.buckets else 0
        offsets = min(cut.offsets, SPREADS[1][1], key=len)
        nodes = next((count for count in _NODES if count >= wanted), _NODES[-1])
        given = moments.Lane(law, *map(host, (epsilon0, mass, tilted + _BEYOND, fine, orders[where])))
        found.append(SharedNodes(where, given, moments.Discretization(buckets, cut.absences, offsets, nodes)))
    return found


def log_moments(mixture: Mixture, orders: np.ndarray) -> np.ndarray:
    """Upper bounds on log A of one unit at each order; nats, [orders]. Compiles nothing on the host."""
    found = np.empty(len(orders))
    made: dict[tuple[object, ...], Buckets] = {}
    for plan in plans(mixture, orders):
        lane, choice = plan.lane, plan.choice
        key = float(lane.neg_log_tail), choice.buckets, choice.offsets
        if choice.buckets and key not in made:
            made[key] = buckets_upper(lane.law, lane.neg_log_tail, choice.buckets, choice.offsets)
        found[plan.where] = moments.log_moments(lane, choice, made.get(key))
    return found
