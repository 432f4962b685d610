"""Kernels of `accounting.composition.search`: scales of a composed law, its ends and profile on a grid, its RDP.

Atoms are stacked [events, atoms], and counts are [events].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jax import Array

from checkin_jax.kernels import conversions
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.backend import quietly, xp
from checkin_jax.kernels.round_off import UNIT


class Scales(NamedTuple):
    """Inputs of a grid.

    far_order, far_log_mgf: order of Chernoff's bound at the target delta, and log moment there. bare_variance: variance
    of all rounds without tilt. means, variances: of one round of every event under the tilt, [events]. bare_variances:
    of one round of every event without tilt, [events].
    """

    far_order: Array
    far_log_mgf: Array
    bare_variance: Array
    means: Array
    variances: Array
    bare_variances: Array


@quietly
def scales(atoms: pld.Atoms, counts: Array, log_delta: Array, order: Array) -> Scales:
    """`Scales` of the composed law at this tilting order."""
    far = pld.chernoff_tilt(atoms, counts, log_delta)

    each = pld.rounds_at(atoms, xp.stack([xp.zeros(()), order]))
    (bare, variances), means = each.variance, each.mean[1]
    return Scales(far.order, far.log_mgf, counts @ bare, means, variances, bare)


@quietly
def smallest(composed: pld.Composed, delta: Array) -> tuple[Array, Array]:
    """Smallest epsilon at which delta, linear in e^epsilon between grid points, meets the target; and its error."""
    epsilon, value, error = composed
    above = ~(value <= delta)
    count = value.shape[0]
    i = xp.max(xp.where(above, xp.arange(count) + 1, 0))
    here, before = xp.minimum(i, count - 1), xp.maximum(i - 1, 0)
    share = (delta - value[here]) / (value[before] - value[here])
    back = log1p(share * xp.expm1(epsilon[before] - epsilon[here]))
    # If the first grid point meets the target, it is the result.
    found = xp.maximum(xp.where(i == 0, epsilon[0], epsilon[here] + back), 0.0)
    unknown = i == count
    return xp.where(unknown, xp.inf, found), xp.where(unknown, 0.0, error[here])


@quietly
def largest(composed: pld.Composed, delta: Array) -> tuple[Array, Array]:
    """Largest epsilon at which the lower bound on delta reaches the target; 0 if there is none.

    The law's losses are grid points, so its delta is linear in e^epsilon between them, and so is the lower bound.
    """
    epsilon, value, _ = composed
    count = value.shape[0]
    last = xp.max(xp.where(value > delta, xp.arange(count), -1))
    here, after = xp.maximum(last, 0), xp.minimum(last + 1, count - 1)
    fall = value[here] - value[after]
    share = xp.where((after > here) & xp.isfinite(fall) & (fall > 0), (value[here] - delta) / fall, 0.0)
    forth = log1p(share * xp.expm1(epsilon[after] - epsilon[here])) * (1.0 - 1e-12)
    found = xp.where(last >= 0, xp.maximum(epsilon[here] + forth, 0.0), 0.0)
    return found, xp.zeros_like(found)


_AROUND = np.geomspace(0.25, 4.0, 65)


@quietly
def renyi(atoms: pld.Atoms, counts: Array, log_delta: Array) -> tuple[Array, Array]:
    """(epsilon, order) by RDP of the pairs; log_delta: log of delta minus the mass at infinite loss."""
    orders = pld.chernoff_tilt(atoms, counts, log_delta).order * _AROUND
    moments = pld.log_moments(atoms, counts, orders)
    epsilon = conversions.epsilon_from_log_moments(orders + 1.0, moments, log_delta)
    epsilon = epsilon + 64.0 * UNIT * xp.sum(counts) / orders  # rounding of one log moment per round
    best = xp.argmin(epsilon)
    return epsilon[best], orders[best] + 1.0
