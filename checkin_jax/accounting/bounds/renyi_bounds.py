"""Renyi moments of one unit whose bound is a mixture of clones' counts, by `kernels.composition.moments`."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from checkin_jax.accounting.bounds import clones_bounds
from checkin_jax.accounting.bounds.clones_bounds import SPREADS, Mixture
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import moments
from checkin_jax.kernels.mixture_profiles import Buckets, buckets_upper

# Orders that move the law by as many standard deviations as this, or by as many times two, share their nodes.
_TILT = 3.0
# Nodes: up to so many standard deviations beyond the farthest tilt, so many of them apart.
_BEYOND, _APART = 10.0, 0.1
_NODES = (160, 320, 640, 1280)
# Buckets of the number of labels, which keep their part of the error near that of the nodes.
_BUCKETS = (16, 32, 48, 64, 96, 128, 192)
_LAST_BUCKETS = 256
# Masses that may be left out, as -log; the last is the least that float64 holds.
_MASSES = (100.0, 300.0, 690.0)


@runtime_checkable
class Mixed(Protocol):
    """A bound on a unit that is one mixture."""

    @property
    def mixture(self) -> Mixture: ...


def mixture_of(bound: object) -> Mixture | None:
    """The mixture that a bound is, if it is one of a single law: what the kernel takes."""
    found = bound.mixture if isinstance(bound, Mixed) else None
    return found if found is not None and found.law.n.size == 1 else None


def left_out(orders: np.ndarray, epsilon0: float) -> np.ndarray:
    """-log of the mass that a unit may leave out, where it counts with the largest loss, for each order."""
    wanted = np.searchsorted(_MASSES[:-1], orders * epsilon0 + 30.0)
    return np.array(_MASSES)[wanted]


class Plan(NamedTuple):
    """Orders of a unit that are bounded on the same nodes: their places, and what the kernel needs."""

    where: np.ndarray
    lane: moments.Lane
    choice: moments.Choice


def plans(mixture: Mixture, orders: np.ndarray) -> list[Plan]:
    """Groups the orders; what is chosen for one does not depend on the others."""
    law, epsilon0 = mixture.law, mixture.epsilon0
    n, special, absent, _, always, *_, each = (float(np.ravel(part)[0]) for part in law)
    mean = 1.0 + (n - 1.0) * special
    ratio = (always + (n - 1.0) * (1.0 - special) * absent * each) / mean
    spread = -math.expm1(-epsilon0) / (1.0 + math.exp(-epsilon0) * (1.0 + 2.0 * ratio)) / math.sqrt(mean)
    # How many standard deviations an order moves the law.
    tilt = np.minimum((2.0 * orders - 1.0) * spread, 1e300)
    step = np.ceil(np.maximum(np.log2(tilt / _TILT), 0.0))
    masses = left_out(orders, epsilon0)
    many = 2700.0 / math.sqrt(mean)
    found = []
    for mass, power in sorted(set(zip(masses.tolist(), step.tolist()))):
        where = np.flatnonzero((masses == mass) & (step == power))
        tilted = _TILT * 2.0 ** min(power, 900.0)
        fine = min((tilted + _BEYOND) * spread, 0.45 * epsilon0)
        # A moment of e^size needs no more than size / 1000.
        size = max(0.5 * tilted * min(tilted, epsilon0 / spread), 1.0)
        wanted = fine / spread / min(_APART, math.sqrt(0.02 * size) / tilted)
        cut = clones_bounds.cut(n, n * special, mass, mixture.drift, True, absent=absent > 0.0)
        buckets = next((count for count in _BUCKETS if count >= many), _LAST_BUCKETS) if cut.buckets else 0
        offsets = min(cut.offsets, SPREADS[1][1], key=len)
        nodes = next((count for count in _NODES if count >= wanted), _NODES[-1])
        given = moments.Lane(law, *map(host, (epsilon0, mass, tilted + _BEYOND, fine, orders[where])))
        found.append(Plan(where, given, moments.Choice(buckets, cut.absences, offsets, nodes)))
    return found


def log_moments(mixture: Mixture, orders: np.ndarray) -> np.ndarray:
    """log A of one unit at each order, from above; nats, [orders]. Compiles nothing on the host."""
    found = np.empty(len(orders))
    made: dict[tuple[object, ...], Buckets] = {}
    for plan in plans(mixture, orders):
        lane, choice = plan.lane, plan.choice
        key = float(lane.log_inverse_mass), choice.buckets, choice.offsets
        if choice.buckets and key not in made:
            made[key] = buckets_upper(lane.law, lane.log_inverse_mass, choice.buckets, choice.offsets)
        found[plan.where] = moments.log_moments(lane, choice, made.get(key))
    return found
