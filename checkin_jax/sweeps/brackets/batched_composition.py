"""Brackets of many rounds of one unit: `composition.search`, its kernels asked for many settings at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from checkin_jax.accounting.bounds.clones import Binary, ShuffledPureLDP, Ternary
from checkin_jax.accounting.composition.bracket import Bracket, ordered
from checkin_jax.accounting.composition.search import ENOUGH, SHRINK, BuildBoth, Search, reach
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import composing, invert_profile, pld
from checkin_jax.kernels.execution.losses import padded
from checkin_jax.sweeps.brackets.requests import Asking, Held, Request
from checkin_jax.sweeps.brackets.static_shapes import cuts

_Kernel = Callable[..., Any]


class _Run(Search):
    """`repeats` rounds of one unit at delta, repeats > 1."""

    def __init__(self, unit: ShuffledPureLDP, repeats: int, delta: float) -> None:
        self.unit, self.delta = unit, delta
        self.counts = host([repeats])
        self.cuts = cuts(unit)
        self.tops = [unit.top]

    def ask(self, kernel: Callable[..., Any], columns: tuple[Any, ...], floats: int = 1) -> Asking[Any]:
        return (yield Request(kernel, columns, floats=floats))

    def bracket(self) -> Asking[Bracket]:
        """Both ends."""
        exact = self.cuts.upper.table[1]
        held = yield self._parts(composing.parts(self.cuts.upper, True))

        def profile(losses: np.ndarray) -> Asking[np.ndarray]:
            return self._values(composing.profile(exact), held, losses)

        def build(losses: Sequence[np.ndarray]) -> Asking[pld.Atoms]:
            values = yield from profile(losses[0])
            return (yield from self.ask(composing.above, (losses[0], values)))

        self.reaches = [(yield from reach(profile, self.unit.top, ENOUGH * self.delta / self.total))]
        best, found = yield from self.above(build, self.coarse())
        for name, tabulate, lines, join in self._instances():
            held = yield self._parts(tabulate)
            lower = yield from self.below(self._builder(lines, held, join), found.losses, best.upper)
            if lower > best.lower:
                best = dataclasses.replace(best, lower=lower, lower_method=name)
        return ordered(best)

    def _parts(self, kernel: Callable[..., Any]) -> Request:
        unit = self.unit
        numbers = (unit.num_clients, unit.rate, unit.epsilon0, unit.log_inverse_mass, self.delta, 0.0)
        return Request(kernel, (invert_profile.Lane(*map(host, numbers)),), keep=True)

    def _values(self, kernel: Callable[..., Any], held: Held, losses: np.ndarray) -> Asking[Any]:
        """What a kernel of `parts` finds at at most `kernels.execution.losses.MOST` losses."""
        columns = padded(losses), np.int32(len(losses)), host(self.unit.epsilon0)
        found = yield Request(kernel, columns, held)
        return jax.tree.map(lambda values: values[: len(losses)], found)

    def _instances(self) -> list[tuple[str, _Kernel, _Kernel, _Kernel]]:
        """Name, and the kernels of its parts, of the lines that these give, and of the laws that the lines give."""
        found = []
        if self.cuts.ternary is not None:
            cut = self.cuts.ternary
            lines = composing.ternary_lines(cut.table[1])
            found.append((Ternary.name, composing.parts(cut, False), lines, composing.below_symmetric))
        if self.cuts.binary is not None:
            buckets, table = self.cuts.binary
            lines = composing.binary_lines(table[1])
            found.append((Binary.name, composing.binary_parts(buckets, table), lines, composing.below))
        return found

    def _builder(self, lines: Callable[..., Any], held: Held, join: Callable[..., Any]) -> BuildBoth:
        def build(losses: Sequence[np.ndarray]) -> Asking[Sequence[pld.Atoms]]:
            at = losses[0] * SHRINK
            values = yield from self._values(lines, held, 0.5 * (at[1:] + at[:-1]))
            # `pld.side_lower` looks at every line at every knot.
            return (yield from self.ask(join, (at, *values), len(at) ** 2))

        return build


def bracket(unit: ShuffledPureLDP, repeats: int, delta: float) -> Asking[Bracket]:
    """The bracket of more than one round at delta < 1, eps0 at least `composer`'s smallest loss."""
    return _Run(unit, repeats, delta).bracket()
