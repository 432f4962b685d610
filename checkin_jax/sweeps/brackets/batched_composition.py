"""Brackets of many rounds of one unit: `composition.search`, its kernels asked for many settings at once."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from checkin_jax.accounting.bounds.clones import Binary, ShuffledPureLDP, Ternary
from checkin_jax.accounting.bounds.unit import GaussianSum, ShuffledGaussian
from checkin_jax.accounting.composition.bracket import Bracket, ordered
from checkin_jax.accounting.composition.grids import SHRINK
from checkin_jax.accounting.composition.search import ENOUGH, BuildBoth, Search, reach
from checkin_jax.kernels import host
from checkin_jax.kernels.composition import composing, invert_profile, pld
from checkin_jax.kernels.execution.losses import padded
from checkin_jax.sweeps.brackets.requests import Asking, Held, Request
from checkin_jax.sweeps.brackets.static_shapes import cuts

_Kernel = Callable[..., Any]


class _Run(Search):
    """`repeats` rounds of one unit at delta, repeats > 1.

    Attributes:
      top: the largest loss of a round. profile: the kernel of its bound, which takes the answer to `upper`.
      more: what kernels take besides losses.
    """

    top: float
    profile: _Kernel
    more: tuple[Any, ...] = ()

    def __init__(self, repeats: int, delta: float) -> None:
        self.delta = delta
        self.counts = host([repeats])
        self.tops = [self.top]

    @abc.abstractmethod
    def upper(self) -> Request:
        """The parts of the bound."""

    @abc.abstractmethod
    def instances(self) -> list[tuple[str, Request, _Kernel, _Kernel]]:
        """Name and parts of each, and the kernels of lines that these give, and of laws that the lines give."""

    def ask(self, kernel: Callable[..., Any], columns: tuple[Any, ...], floats: int = 1) -> Asking[Any]:
        return (yield Request(kernel, columns, floats=floats))

    def bracket(self) -> Asking[Bracket]:
        """Both ends."""
        held = yield self.upper()

        def profile(losses: np.ndarray) -> Asking[np.ndarray]:
            return self._values(self.profile, held, losses)

        def build(losses: Sequence[np.ndarray]) -> Asking[pld.Atoms]:
            values = yield from profile(losses[0])
            return (yield from self.ask(composing.above, (losses[0], values)))

        self.reaches = [(yield from reach(profile, self.top, ENOUGH * self.delta / self.total))]
        best, found = yield from self.above(build, self.coarse())
        for name, parts, lines, join in self.instances():
            held = yield parts
            lower = yield from self.below(self._builder(lines, held, join), found.losses, best.upper)
            if lower > best.lower:
                best = dataclasses.replace(best, lower=lower, lower_method=name)
        return ordered(best)

    def _values(self, kernel: Callable[..., Any], held: Held, losses: np.ndarray) -> Asking[Any]:
        """What a kernel of `parts` finds at at most `kernels.execution.losses.MOST` losses."""
        columns = padded(losses), np.int32(len(losses)), *self.more
        found = yield Request(kernel, columns, held)
        return jax.tree.map(lambda values: values[: len(losses)], found)

    def _builder(self, lines: Callable[..., Any], held: Held, join: Callable[..., Any]) -> BuildBoth:
        def build(losses: Sequence[np.ndarray]) -> Asking[Sequence[pld.Atoms]]:
            at = losses[0] * SHRINK
            values = yield from self._values(lines, held, 0.5 * (at[1:] + at[:-1]))
            # `pld.side_lower` looks at every line at every knot.
            return (yield from self.ask(join, (at, *values), len(at) ** 2))

        return build


class _PureRun(_Run):
    """Of eps0-LDP messages."""

    def __init__(self, unit: ShuffledPureLDP, repeats: int, delta: float) -> None:
        self.unit, self.top, self.cuts = unit, unit.top, cuts(unit)
        self.profile, self.more = composing.profile(self.cuts.upper.table[1]), (host(unit.epsilon0),)
        super().__init__(repeats, delta)

    def _parts(self, kernel: _Kernel) -> Request:
        unit = self.unit
        numbers = (unit.num_clients, unit.rate, unit.epsilon0, unit.log_inverse_mass, self.delta, 0.0)
        return Request(kernel, (invert_profile.Lane(*map(host, numbers)),), keep=True)

    def upper(self) -> Request:
        return self._parts(composing.parts(self.cuts.upper, True))

    def instances(self) -> list[tuple[str, Request, _Kernel, _Kernel]]:
        found = []
        if self.cuts.ternary is not None:
            cut = self.cuts.ternary
            lines, parts = composing.ternary_lines(cut.table[1]), composing.parts(cut, False)
            found.append((Ternary.name, self._parts(parts), lines, composing.below_symmetric))
        if self.cuts.binary is not None:
            buckets, table = self.cuts.binary
            lines, parts = composing.binary_lines(table[1]), composing.binary_parts(buckets, table)
            found.append((Binary.name, self._parts(parts), lines, composing.below))
        return found


class _SummedRun(_Run):
    """Of sums of Gaussian messages."""

    top, profile = math.inf, staticmethod(composing.gaussian_profile)

    def __init__(self, unit: ShuffledGaussian, repeats: int, delta: float) -> None:
        self.unit = unit
        super().__init__(repeats, delta)

    def _parts(self, upper: bool) -> Request:
        *numbers, buckets = self.unit.arguments()
        return Request(composing.gaussian_parts(buckets, upper), tuple(numbers), keep=True)

    def upper(self) -> Request:
        return self._parts(True)

    def instances(self) -> list[tuple[str, Request, _Kernel, _Kernel]]:
        return [(GaussianSum.name, self._parts(False), composing.gaussian_lines, composing.below)]


def bracket(unit: ShuffledPureLDP | ShuffledGaussian, repeats: int, delta: float) -> Asking[Bracket]:
    """The bracket of more than one round at delta < 1: eps0 at least `composer`'s smallest loss, or Gaussian sums."""
    run = _PureRun if isinstance(unit, ShuffledPureLDP) else _SummedRun
    return run(unit, repeats, delta).bracket()  # type: ignore[arg-type]
