"""Grids for the composition: spacing, window, and the knots of every event."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import MAX_LOSS
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.composition.composing import Scales

_POINTS = tuple(2**k for k in (13, 15, 17, 19, 21))
# Grid points per standard deviation of one unit: discretization adds (1/15)^2 / 6 to its variance. For sharp bounds
# _FINER times as many, up to _FINER_POINTS in the transform.
_POINTS_PER_ROUND_SD = 15.0
_FINER, _FINER_POINTS = 4.0, 2**19
# The same factor and size for laws of few outcomes, with knots beside their losses alone; and the most outcomes.
_BESIDE, _BESIDE_POINTS, MOST_KINKS = 64.0, 2**17, 170
_WINDOW_SDS = 9.0
# Windows end where Chernoff's bound is e^-16 delta.
FAR = 16.0
_TAIL_KNOTS = 256
# Sizes of the knots; the reach of most units is 70 to 130 grid points.
_KNOT_LADDER = (16, 64, 128, 512, 1024, 4096)
# Numbers of atoms of the composed laws.
_ATOMS = tuple(2 * size + 1 for size in _KNOT_LADDER if size >= 512)
# Factor of the spacing for lower bounds: an atom at the largest loss then stays above its knot, for any rounding of its
# two masses.
SHRINK = 1.0 - 4.0 * ROUNDING


class Events(NamedTuple):
    """Facts of the composed units that its grid depends on, as in `Search`; `total`: number of units."""

    delta: float
    total: float
    tops: Sequence[float]
    reaches: Sequence[float]
    sharp: bool
    kinks: Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Grid:
    """Knots of every event on one spacing, their signed indices, and the FFT's window."""

    spacing: float
    losses: list[np.ndarray]
    index: np.ndarray
    first: int
    points: int


def grid(events: Events, scales: Scales, tilt: pld.Tilt, upper: bool) -> Grid | None:
    """The grid of a window up to where Chernoff's bound is 1e-7 delta, resolved on the scale of one unit.

    The scale is that of the law or of the tilted law, whichever is finer: heavy tails widen the tilted law, bounded
    losses narrow it. None if the loss is constant, or if the grid would reach beyond the largest float64 loss.
    """
    high = (float(scales.far_log_mgf) - math.log(events.delta) + FAR) / float(scales.far_order)
    plain_sd, sd = math.sqrt(float(scales.bare_variance)), math.sqrt(float(tilt.variance))
    # P[L <= -x] <= e^-x Q[L <= -x], so there is less mass below -high than above high.
    low = float(tilt.mean) - _WINDOW_SDS * sd
    if sd < 1.5 * plain_sd:
        high = max(high, float(tilt.mean) + (4.0 if upper else _WINDOW_SDS) * sd)
    low = max(low, -high)
    scale = max(min(sd, plain_sd), 0.05 * plain_sd)
    wanted = (high - low) / max(scale, 1e-300) * _POINTS_PER_ROUND_SD * math.sqrt(events.total)
    if not (scale > 0 and 0 < wanted < math.inf):
        return None
    kinks = () if upper else events.kinks
    if kinks:
        wanted = max(wanted, min(_BESIDE * wanted, _BESIDE_POINTS - 2.0))
    elif events.sharp:
        wanted = max(wanted, min(_FINER * wanted, _FINER_POINTS - 2.0))
    # Few sizes, since each compiles once; a longer window costs little.
    points = next((p for p in _POINTS if p >= wanted + 2), _POINTS[-1])
    spacing = (high - low) / min(wanted, points - 2)
    farthest = max(events.reaches)
    if not spacing > 1e-13 * farthest:
        return None
    largest = max(filter(math.isfinite, events.tops), default=math.inf)
    if math.isfinite(largest):
        # An atom at the largest loss is then on the grid; rounded so that the window does not shrink.
        spacing = largest / max(math.floor(largest / spacing), 1)
    if kinks:
        beside = [_beside(spacing * SHRINK, each) for each in kinks]
        size = next(s for s in _KNOT_LADDER if s >= max(map(len, beside)))
        # Padding: the profile is zero beyond the largest loss.
        rows = [np.append(row, row[-1] + 1 + np.arange(size + 1 - len(row))) for row in beside]
        return _placed(rows, spacing, low, points)
    uniform = 0
    for mean, variance, bare in zip(scales.means, scales.variances, scales.bare_variances):
        width = math.sqrt(min(float(variance), 2.0 * float(bare)))
        uniform = max(uniform, math.ceil((max(float(mean), 0.0) + 9.0 * width) / spacing) + 8)
    # At most one knot for each multiple of the spacing below the largest reach.
    knots = min(uniform + _TAIL_KNOTS, math.ceil(farthest / spacing))
    size = next((s for s in _KNOT_LADDER if s >= knots), _KNOT_LADDER[-1])
    if size * spacing > MAX_LOSS + 10.0:
        return None
    uniform = max(min(uniform, size - _TAIL_KNOTS), 1)
    rows = [_knots(spacing, uniform, reach, size) for reach in events.reaches]
    return _placed(rows, spacing, low, points)


def filled(atoms: pld.Atoms, index: np.ndarray) -> tuple[pld.Atoms, np.ndarray]:
    """Atoms padded to few sizes with mass zero at loss zero, since each size compiles with every length of the FFT."""
    size = next(size for size in _ATOMS if size >= index.shape[1])
    losses, masses, index = (
        np.pad(np.asarray(part), ((0, 0), (0, size - index.shape[1])))
        for part in (atoms.losses, atoms.masses, index)
    )
    return pld.Atoms(host(losses), host(masses), atoms.infinite), index


def _placed(rows: Sequence[np.ndarray], spacing: float, low: float, points: int) -> Grid:
    """The grid with these multiples of the spacing as knots, event by event."""
    index = np.stack(rows)
    both = np.concatenate([-index[:, :0:-1], index], axis=1)
    return Grid(spacing, [row * spacing for row in index], both, math.floor(low / spacing), points)


def _beside(spacing: float, kinks: np.ndarray) -> np.ndarray:
    """Multiples of the spacing, increasing: 0, 1, and for every kink two below and one above."""
    below = np.floor(kinks / spacing).astype(np.int64)
    # All values are lowered by the last positive one: the second knot below the largest loss makes that small.
    return np.unique(np.concatenate([[0, 1], np.maximum(below - 1, 0), below, below + 1]))


def _knots(spacing: float, uniform: int, reach: float, size: int) -> np.ndarray:
    """size + 1 multiples of the spacing: all up to `uniform`, then geometrically spaced ones up to `reach`."""
    last = math.ceil(reach / spacing - 1e-9)
    if last <= size:
        return np.arange(size + 1)
    uniform = min(uniform, size - 1)
    growth = np.rint(np.geomspace(uniform, last, size - uniform + 1))[1:]
    # Strictly increasing, even if the geometric steps are below one.
    tail = np.maximum(growth, uniform + 1.0 + np.arange(growth.size))
    return np.concatenate([np.arange(uniform + 1), tail]).astype(np.int64)
