"""Where a privacy profile crosses delta, for one setting inside jit: both ends of a bracket of one round."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from checkin_jax.kernels import binary_response, clones, mixtures, tails
from checkin_jax.kernels.clones import Cut

# Relative width to which a crossing is enclosed, and how far beyond an estimate the next point is put.
TOLERANCE = 1e-9
_PUSH = 0.4 * TOLERANCE
# Losses below this part of the largest are not looked at.
_FLOOR = 1e-13
_STEPS = 200


class _Search(NamedTuple):
    """Losses known to be above delta (low) and not above it (high), log(value / delta) there, steps made."""

    low: Array
    high: Array
    at_low: Array
    at_high: Array
    step: Array


def enclose(value: Callable[[Array], Array], delta: Array, guess: Array, top: Array) -> tuple[Array, Array]:
    """(low, high) with value(low) > delta >= value(high) and high - low <= 1e-9 high.

    Every end was evaluated, whatever shape the values have. Both are 0 where value(0) <= delta; low is 0 where the
    crossing is below 1e-13 top; high is infinity, low = top, where even value(top) > delta.

    Args:
      value: nonincreasing but for rounding, of losses [1]. guess: where to look first, anywhere in (0, top).
    """
    log_delta = jnp.log(delta)

    def excess(loss: Array) -> Array:
        found = value(loss[None])[0]
        # Written so that NaN is not below delta; for a lower end `_line` leaves none.
        below = found <= delta
        log = jnp.log(jnp.maximum(found, 2.3e-308)) - log_delta
        return jnp.where(below, jnp.minimum(log, 0.0), jnp.where(log > 0, log, 1e-300))

    floor = _FLOOR * top

    def unfinished(at: _Search) -> Array:
        wide = jnp.isinf(at.high) | ((at.high - at.low > TOLERANCE * at.high) & (at.high > floor))
        return wide & (at.step < _STEPS)

    def advance(at: _Search) -> _Search:
        middle = jnp.sqrt(jnp.maximum(at.low, floor)) * jnp.sqrt(at.high)
        near = at.high < 4.0 * at.low
        middle = jnp.where(near, 0.5 * (at.low + at.high), middle)
        known = (at.low > 0) & jnp.isfinite(at.at_high)
        share = at.at_low / jnp.where(known, at.at_low - at.at_high, 1.0)
        line = at.low + (at.high - at.low) * jnp.clip(share, 0.0, 1.0)
        # Beyond the estimate, so that the next end is on its other side (the projection of ITP).
        line = jnp.where(share < 0.5, line * (1.0 + _PUSH), line * (1.0 - _PUSH))
        away = jnp.where(at.low > 0, jnp.minimum(8.0 * at.low, middle), jnp.maximum(0.125 * at.high, floor))
        x = jnp.where(known, jnp.where(at.step % 6 == 5, middle, line), away)
        x = jnp.where(at.step == 2, guess, x)
        x = jnp.where((x > at.low) & (x < at.high), x, middle)
        # Both ends of the range come first, by the same code: every copy of it would be compiled.
        x = jnp.where(at.step == 0, 0.0, jnp.where(at.step == 1, top, x))
        here = excess(x)
        up = here > 0
        # Illinois: the end that stays counts half.
        return _Search(
            jnp.where(up, x, at.low),
            jnp.where(up, at.high, x),
            jnp.where(up, here, jnp.where(known, 0.5 * at.at_low, at.at_low)),
            jnp.where(up, jnp.where(known, 0.5 * at.at_high, at.at_high), here),
            jnp.where(up & (at.step == 1), _STEPS, at.step + 1),
        )

    zero, unknown = jnp.zeros_like(delta), jnp.full_like(delta, -jnp.inf)
    first = _Search(zero, zero + jnp.inf, unknown, unknown, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(unfinished, advance, first)[:2]


class Lane(NamedTuple):
    """One setting: scalars. guess: of epsilon."""

    num_clients: Array
    rate: Array
    epsilon0: Array
    log_inverse_mass: Array
    delta: Array
    guess: Array


def tabulated(lane: Lane, cut: Cut, upper: bool) -> tuple[mixtures.Buckets, tails.Tables]:
    """`clones.tabulated` of T1's law, or of that of 3-ary randomized response."""
    law = (clones.upper_law if upper else clones.lower_law)(lane.num_clients, lane.rate, lane.epsilon0)
    return clones.tabulated(law, lane.log_inverse_mass, cut, upper)


@functools.cache
def upper_end(cut: Cut) -> Callable[[Lane], Array]:
    """A kernel: the least loss found at which T1's profile is at most delta; 0 if it is at once."""

    def kernel(lane: Lane) -> Array:
        mix, tables = tabulated(lane, cut, True)

        def value(loss: Array) -> Array:
            return clones.profile_at(mix, tables, loss, lane.epsilon0, cut.table[1])

        return enclose(value, lane.delta, lane.guess, lane.epsilon0)[1]

    return kernel


def _line(difference: Array, far: Array, loss: Array) -> Array:
    value = difference - jnp.expm1(loss) * far
    # What is not a number proves nothing.
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


@functools.cache
def ternary_end(cut: Cut) -> Callable[[Lane], Array]:
    """A kernel: the largest loss found at which 3-ary randomized response leaks more than delta; 0 if none."""

    def kernel(lane: Lane) -> Array:
        mix, tables = tabulated(lane, cut, False)

        def value(loss: Array) -> Array:
            return _line(*clones.lines_at(mix, tables, loss, lane.epsilon0, cut.table[1]), loss)

        return enclose(value, lane.delta, lane.guess, lane.epsilon0)[0]

    return kernel


@functools.cache
def binary_end(buckets: int, table: tuple[int, bool]) -> Callable[[Lane], Array]:
    """A kernel: the same for binary randomized response, the better of P||Q and Q||P; table: of the tables."""

    def kernel(lane: Lane) -> Array:
        mix = binary_response.check_in_messages(
            lane.num_clients, lane.rate, lane.epsilon0, lane.log_inverse_mass, buckets
        )
        best = jnp.zeros_like(lane.delta)
        for reverse in (False, True):
            tables = binary_response.tabulate(mix, lane.epsilon0, lane.log_inverse_mass, table, reverse)

            def value(loss: Array, tables=tables, reverse=reverse) -> Array:
                lines = binary_response.lines_at(mix, tables, loss, lane.epsilon0, table[1], reverse)
                return _line(*lines, loss)

            best = jnp.maximum(best, enclose(value, lane.delta, lane.guess, lane.epsilon0)[0])
        return best

    return kernel
