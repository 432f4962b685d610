"""Kernels that answer the requests of `accounting.composition.search`, for one setting or for many in lanes.

Atoms are stacked [events, atoms], counts are [events]; those that build laws return stacks of one event.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax import Array

from checkin_jax.kernels import binary_response, clones, conversions, mixtures, tails
from checkin_jax.kernels.clones import Cut
from checkin_jax.kernels.composition import invert_profile, pld
from checkin_jax.kernels.composition.invert_profile import Lane
from checkin_jax.kernels.elementary import log1p
from checkin_jax.kernels.execution.engine import xp
from checkin_jax.kernels.execution.losses import in_blocks
from checkin_jax.kernels.messages import subsampled_gaussian
from checkin_jax.kernels.messages.subsampled_gaussian import GaussianBuckets
from checkin_jax.kernels.round_off import UNIT

Parts = tuple[mixtures.Buckets, tails.Tables]
BinaryParts = tuple[binary_response.Messages, tails.Tables, tails.Tables]
Lines = tuple[Array, Array]


@functools.cache
def parts(cut: Cut, upper: bool) -> Callable[[Lane], Parts]:
    """A kernel: `invert_profile.tabulated`, for T1 (upper) or 3-ary randomized response."""
    return lambda lane: invert_profile.tabulated(lane, cut, upper)


@functools.cache
def binary_parts(buckets: int, table: tuple[int, bool]) -> Callable[[Lane], BinaryParts]:
    """A kernel: the messages of binary randomized response and the tables of both directions."""

    def kernel(lane: Lane) -> BinaryParts:
        mix = binary_response.check_in_messages(
            lane.num_clients, lane.rate, lane.epsilon0, lane.log_inverse_mass, buckets
        )
        forward, backward = (
            binary_response.tabulate(mix, lane.epsilon0, lane.log_inverse_mass, table, reverse)
            for reverse in (False, True)
        )
        return mix, forward, backward

    return kernel


@functools.cache
def profile(exact: bool) -> Callable[..., Array]:
    """A kernel (parts, losses, count, epsilon0): `clones.profile_upper`."""
    return functools.partial(clones.profile_upper, exact=exact)


@functools.cache
def ternary_lines(exact: bool) -> Callable[..., Lines]:
    """A kernel (parts, losses, count, epsilon0): `clones.lines_lower`."""
    return functools.partial(clones.lines_lower, exact=exact)


@functools.cache
def binary_lines(exact: bool) -> Callable[..., tuple[Lines, Lines]]:
    """A kernel (parts, losses, count, epsilon0): `binary_response.lines_lower` of P||Q and of Q||P."""

    def kernel(
        mix: binary_response.Messages,
        forward: tails.Tables,
        backward: tails.Tables,
        losses: Array,
        count: Array,
        epsilon0: Array,
    ) -> tuple[Lines, Lines]:
        plus, minus = (
            binary_response.lines_lower(mix, tables, losses, count, epsilon0, exact, reverse)
            for tables, reverse in ((forward, False), (backward, True))
        )
        return plus, minus

    return kernel


@functools.cache
def gaussian_parts(buckets: int, upper: bool) -> Callable[..., tuple[GaussianBuckets]]:
    """A kernel (n, rate, mu, log_inverse_mass): the buckets of a Gaussian sum, above or below."""
    cut = subsampled_gaussian.buckets_upper if upper else subsampled_gaussian.buckets_lower
    return lambda n, rate, mu, mass: (cut(n, rate, mu, mass, buckets, True),)


def gaussian_profile(mix: GaussianBuckets, losses: Array, count: Array) -> Array:
    """A kernel: `subsampled_gaussian.profile_upper`."""
    return in_blocks(lambda some: (subsampled_gaussian.profile_at(mix, some),), losses, count)[0]


def gaussian_lines(mix: GaussianBuckets, losses: Array, count: Array) -> tuple[Lines, Lines]:
    """A kernel: `subsampled_gaussian.lines_lower` of P||Q and of Q||P."""

    def both(some: Array) -> tuple[Array, ...]:
        forward, backward = (subsampled_gaussian.lines_at(mix, some, way) for way in (False, True))
        return *forward, *backward

    first, second, third, fourth = in_blocks(both, losses, count)
    return (first, second), (third, fourth)


def _stacked(atoms: pld.Atoms) -> pld.Atoms:
    return pld.Atoms(*(part[None] for part in atoms))


def above(losses: Array, profile: Array) -> pld.Atoms:
    """The law of the loss of a round from its profile at the knots, from above."""
    side = pld.side_upper(losses, profile)
    return _stacked(pld.join(losses, side, side, True))


def below(losses: Array, plus: Lines, minus: Lines) -> tuple[pld.Atoms, pld.Atoms]:
    """The laws of the loss of P||Q and of Q||P, from below; lines at the middles of the knots' intervals."""
    sides = pld.side_lower(losses, *plus), pld.side_lower(losses, *minus)
    forward, backward = (pld.join(losses, *pair, False) for pair in (sides, sides[::-1]))
    return _stacked(forward), _stacked(backward)


def below_symmetric(losses: Array, difference: Array, far: Array) -> tuple[pld.Atoms]:
    """`below` for a pair that is the same in both directions."""
    side = pld.side_lower(losses, difference, far)
    return (_stacked(pld.join(losses, side, side, False)),)


class Scales(NamedTuple):
    """Inputs of a grid.

    far_order, far_log_mgf: Chernoff's at the delta asked for. bare_variance: of all rounds, at order 0. means,
    variances, bare_variances: of one round of every event, tilted and at order 0; [events].
    """

    far_order: Array
    far_log_mgf: Array
    bare_variance: Array
    means: Array
    variances: Array
    bare_variances: Array


def scales(atoms: pld.Atoms, counts: Array, log_delta: Array, order: Array) -> Scales:
    """See `Scales`."""
    far = pld.chernoff_tilt(atoms, counts, log_delta)

    each = pld.rounds_at(atoms, xp.stack([xp.zeros(()), order]))
    (bare, variances), means = each.variance, each.mean[1]
    return Scales(far.order, far.log_mgf, counts @ bare, means, variances, bare)


class End(NamedTuple):
    """An end of the bracket on one grid, the numerical part of its delta, and the tilted law's moments."""

    epsilon: Array
    error: Array
    mean: Array
    variance: Array


@functools.cache
def end(points: int, upper: bool) -> Callable[..., End]:
    """A kernel (atoms, index, counts, spacing, order, first, delta): the end of the composed law on that grid."""

    def kernel(
        atoms: pld.Atoms,
        index: Array,
        counts: Array,
        spacing: Array,
        order: Array,
        first: Array,
        delta: Array,
    ) -> End:
        tilt = pld.tilt_at(atoms, counts, order)
        composed = pld.compose(atoms, index, counts, spacing, tilt, first, points, upper)
        found = (_smallest if upper else _largest)(composed, delta)
        return End(*found, tilt.mean, tilt.variance)

    return kernel


@functools.cache
def curve(points: int, upper: bool) -> Callable[..., pld.Composed]:
    """A kernel with `end`'s arguments but for delta: the whole profile of the composed law on that grid."""

    def kernel(
        atoms: pld.Atoms, index: Array, counts: Array, spacing: Array, order: Array, first: Array
    ) -> pld.Composed:
        tilt = pld.tilt_at(atoms, counts, order)
        return pld.compose(atoms, index, counts, spacing, tilt, first, points, upper)

    return kernel


def _smallest(composed: pld.Composed, delta: Array) -> tuple[Array, Array]:
    """Smallest epsilon of the grid's piecewise linear (in e^epsilon) delta that meets the target, and its error."""
    epsilon, value, error = composed
    above = ~(value <= delta)
    count = value.shape[0]
    i = xp.max(xp.where(above, xp.arange(count) + 1, 0))
    here, before = xp.minimum(i, count - 1), xp.maximum(i - 1, 0)
    share = (delta - value[here]) / (value[before] - value[here])
    back = log1p(share * xp.expm1(epsilon[before] - epsilon[here]))
    # Where all of the grid meets the target, so does its first point.
    found = xp.maximum(xp.where(i == 0, epsilon[0], epsilon[here] + back), 0.0)
    unknown = i == count
    return xp.where(unknown, xp.inf, found), xp.where(unknown, 0.0, error[here])


def _largest(composed: pld.Composed, delta: Array) -> tuple[Array, Array]:
    """Largest epsilon at which even the lower delta reaches the target; 0 if there is none.

    The law's losses are on the grid: between two points its delta is linear in e^epsilon, so bounds at both give one.
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


def renyi(atoms: pld.Atoms, counts: Array, log_delta: Array) -> tuple[Array, Array]:
    """(epsilon, order) by RDP of the pairs; log_delta: of what infinite losses leave."""
    orders = pld.chernoff_tilt(atoms, counts, log_delta).order * _AROUND
    moments = pld.log_moments(atoms, counts, orders)
    epsilon = conversions.epsilon_from_log_moments(orders + 1.0, moments, log_delta)
    epsilon = epsilon + 64.0 * UNIT * xp.sum(counts) / orders  # rounding of a log moment, each round
    best = xp.argmin(epsilon)
    return epsilon[best], orders[best] + 1.0
