"""Many rounds of shuffled eps0-LDP messages: what `accounting.composer` asks of one setting, as kernels of one lane."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.kernels import binary_response, check_in, conversions, crossing, lattice, tails
from checkin_jax.kernels.crossing import Cut, Lane

Parts = tuple[check_in.Buckets, tails.Tables]
BinaryParts = tuple[binary_response.Messages, tails.Tables, tails.Tables]
Plans = tuple[tuple[int, bool], tuple[int, bool]]


@functools.cache
def parts(cut: Cut, upper: bool) -> Callable[[Lane], Parts]:
    """A kernel: the mixture and its tables, for T1 (upper) or 3-ary randomized response."""

    def kernel(lane: Lane) -> Parts:
        mix = crossing.mixture(lane, cut, upper)
        return mix, crossing.signs(mix, lane, cut, upper)

    return kernel


@functools.cache
def binary_parts(buckets: int, plans: Plans) -> Callable[[Lane], BinaryParts]:
    """A kernel: the messages of binary randomized response and the tables of both directions."""

    def kernel(lane: Lane) -> BinaryParts:
        mix = binary_response.check_in_messages(
            lane.num_clients, lane.rate, lane.epsilon0, lane.log_inverse_mass, buckets
        )
        forward, backward = (
            binary_response.tabulate(mix, lane.epsilon0, lane.log_inverse_mass, plan, reverse)
            for plan, reverse in zip(plans, (False, True))
        )
        return mix, forward, backward

    return kernel


@functools.cache
def reach(exact: bool) -> Callable[..., Array]:
    """A kernel (parts, epsilon0, grid [512], enough): the first loss of the grid with a profile of at most `enough`."""

    def kernel(mix: check_in.Buckets, tables: tails.Tables, epsilon0: Array, grid: Array, enough: Array):
        rough = grid[15::16]
        low = jnp.argmax(check_in.profile_at(mix, tables, rough, epsilon0, exact) <= enough)
        some = jax.lax.dynamic_slice(grid, (16 * low,), (16,))
        return some[jnp.argmax(check_in.profile_at(mix, tables, some, epsilon0, exact) <= enough)]

    return kernel


@functools.cache
def upper_atoms(exact: bool) -> Callable[..., lattice.Atoms]:
    """A kernel (parts, losses, epsilon0): the law of the loss of a round, from above."""

    def kernel(mix: check_in.Buckets, tables: tails.Tables, losses: Array, epsilon0: Array):
        (profile,) = check_in.in_blocks(
            lambda some: (check_in.profile_at(mix, tables, some, epsilon0, exact),), losses
        )
        side = lattice.side_upper(losses, profile)
        return lattice.join(losses, side, side, True)

    return kernel


def _middles(losses: Array) -> Array:
    return 0.5 * (losses[1:] + losses[:-1])


@functools.cache
def ternary_atoms(exact: bool) -> Callable[..., tuple[lattice.Atoms]]:
    """A kernel (parts, losses, epsilon0): the law from below for 3-ary randomized response, a symmetric pair."""

    def kernel(mix: check_in.Buckets, tables: tails.Tables, losses: Array, epsilon0: Array):
        lines = check_in.in_blocks(
            lambda some: check_in.lines_at(mix, tables, some, epsilon0, exact), _middles(losses)
        )
        side = lattice.side_lower(losses, *lines)
        return (lattice.join(losses, side, side, False),)

    return kernel


@functools.cache
def binary_atoms(exact: tuple[bool, bool]) -> Callable[..., tuple[lattice.Atoms, lattice.Atoms]]:
    """A kernel (parts, losses, epsilon0): the laws from below of P||Q and Q||P for binary randomized response."""

    def kernel(
        mix: binary_response.Messages,
        forward: tails.Tables,
        backward: tails.Tables,
        losses: Array,
        epsilon0: Array,
    ):
        sides = []
        for tables, flat, reverse in zip((forward, backward), exact, (False, True)):
            lines = check_in.in_blocks(
                lambda some, tables=tables, flat=flat, reverse=reverse: binary_response.lines_at(
                    mix, tables, some, epsilon0, flat, reverse
                ),
                _middles(losses),
            )
            sides.append(lattice.side_lower(losses, *lines))
        plus, minus = sides
        return lattice.join(losses, plus, minus, False), lattice.join(losses, minus, plus, False)

    return kernel


def _stacked(atoms: lattice.Atoms) -> lattice.Atoms:
    return lattice.Atoms(*(part[None] for part in atoms))


def chernoff(atoms: lattice.Atoms, rounds: Array, log_delta: Array) -> lattice.Tilt:
    """`lattice.chernoff_tilt` of one pair."""
    return lattice.chernoff_tilt(_stacked(atoms), rounds[None], log_delta)


def saddle(atoms: lattice.Atoms, rounds: Array, epsilon: Array) -> lattice.Tilt:
    """`lattice.saddle_tilt` of one pair."""
    return lattice.saddle_tilt(_stacked(atoms), rounds[None], epsilon)


def tame(atoms: lattice.Atoms, rounds: Array) -> lattice.Tilt:
    """`lattice.tame_tilt` of one pair."""
    return lattice.tame_tilt(_stacked(atoms), rounds[None])


class Scales(NamedTuple):
    """What a grid is made from: Chernoff's order and log moment at delta e^-16, and one round at order 0 and tilted."""

    far_order: Array
    far_log_mgf: Array
    bare_variance: Array
    mean: Array
    variance: Array


def scales(atoms: lattice.Atoms, rounds: Array, log_delta: Array, order: Array) -> Scales:
    """See `Scales`; rounds is 1 of the variances and of the mean."""
    stacked = _stacked(atoms)
    far = lattice.chernoff_tilt(stacked, rounds[None], log_delta - 16.0)
    one = jnp.ones(1)
    bare, tilted = lattice.tilt_at(stacked, one, jnp.zeros(())), lattice.tilt_at(stacked, one, order)
    return Scales(far.order, far.log_mgf, bare.variance, tilted.mean, tilted.variance)


class End(NamedTuple):
    """An end of the bracket on one grid, the numerical part of its delta, and the tilted law's moments."""

    epsilon: Array | float
    error: Array | float
    mean: Array | float
    variance: Array | float


@functools.cache
def end(points: int, upper: bool) -> Callable[..., End]:
    """A kernel (atoms, index, rounds, spacing, order, first, delta): the end of the composed law on that grid."""

    def kernel(
        atoms: lattice.Atoms,
        index: Array,
        rounds: Array,
        spacing: Array,
        order: Array,
        first: Array,
        delta: Array,
    ) -> End:
        stacked, counts = _stacked(atoms), rounds[None]
        tilt = lattice.tilt_at(stacked, counts, order)
        composed = lattice.compose(stacked, index[None], counts, spacing, tilt, first, points, upper)
        found = (_smallest if upper else _largest)(composed, delta)
        return End(*found, tilt.mean, tilt.variance)

    return kernel


def _smallest(composed: lattice.Composed, delta: Array) -> tuple[Array, Array]:
    """Smallest epsilon of the grid's piecewise linear (in e^epsilon) delta that meets the target, and its error."""
    epsilon, value, error = composed
    above = ~(value <= delta)
    count = value.shape[0]
    i = jnp.max(jnp.where(above, jnp.arange(count) + 1, 0))
    here, before = jnp.minimum(i, count - 1), jnp.maximum(i - 1, 0)
    share = (delta - value[here]) / (value[before] - value[here])
    back = jnp.log1p(share * jnp.expm1(epsilon[before] - epsilon[here]))
    inside = jnp.maximum(epsilon[here] + back, 0.0)
    unknown = (i == count) | ((i == 0) & (epsilon[0] > 0))
    found = jnp.where(unknown, jnp.inf, jnp.where(i == 0, 0.0, inside))
    return found, jnp.where(unknown, 0.0, error[here])


def _largest(composed: lattice.Composed, delta: Array) -> tuple[Array, Array]:
    """Largest epsilon of the grid at which even the lower delta exceeds the target; 0 if there is none."""
    above = composed.delta > delta
    last = jnp.max(jnp.where(above, jnp.arange(above.shape[0]), -1))
    found = jnp.where(last >= 0, jnp.maximum(composed.epsilon[jnp.maximum(last, 0)], 0.0), 0.0)
    return found, jnp.zeros_like(found)


_AROUND = np.geomspace(0.25, 4.0, 65)


def renyi(atoms: lattice.Atoms, rounds: Array, log_delta: Array) -> tuple[Array, Array]:
    """(epsilon, order) by RDP of the pair; log_delta: of what infinite losses leave."""
    stacked, counts = _stacked(atoms), rounds[None]
    orders = lattice.chernoff_tilt(stacked, counts, log_delta).order * _AROUND
    moments = lattice.log_moments(stacked, counts, orders)
    epsilon = conversions.epsilon_from_log_moments(orders + 1.0, moments, log_delta)
    epsilon = epsilon + 64.0 * lattice.UNIT * rounds / orders  # rounding of a log moment, each round
    best = jnp.argmin(epsilon)
    return epsilon[best], orders[best] + 1.0
