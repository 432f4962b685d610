"""T-fold composition of a pair: exact for small cases, else a lower bound on delta."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from .pairs import Pair


@dataclass(frozen=True)
class LossLaw:
    """Law of the privacy loss log(P/Q) under P, losses increasing; mass where Q = 0 kept apart."""

    losses: np.ndarray
    masses: np.ndarray
    infinite: float = 0.0

    def delta(self, epsilon: float) -> float:
        """Hockey-stick divergence at e^epsilon."""
        above = self.losses > epsilon
        return float(self.infinite - self.masses[above] @ np.expm1(epsilon - self.losses[above]))

    def epsilon(self, delta: float) -> float:
        """The epsilon at which the divergence equals `delta` (0 if it is below there already)."""
        if self.delta(0.0) <= delta:
            return 0.0
        if self.infinite > delta:
            return np.inf
        return float(brentq(lambda eps: self.delta(eps) - delta, 0.0, self.losses[-1], xtol=1e-12))


def merge(losses: np.ndarray, masses: np.ndarray, tolerance: float = 1e-14) -> tuple[np.ndarray, np.ndarray]:
    """Sort and add up masses of losses that differ by at most `tolerance` from their predecessor."""
    order = np.argsort(losses)
    losses, masses = losses[order], masses[order]
    starts = np.flatnonzero(np.concatenate([[True], np.diff(losses) > tolerance]))
    return losses[starts], np.add.reduceat(masses, starts)


def loss_law(pair: Pair) -> LossLaw:
    """One round's privacy loss distribution, atoms merged only when identical to 1e-14."""
    both = (pair.p > 0) & (pair.q > 0)
    losses, masses = merge(np.log(pair.p[both] / pair.q[both]), pair.p[both])
    return LossLaw(losses, masses, float(pair.p[pair.q <= 0].sum()))


def compose_exactly(law: LossLaw, rounds: int) -> LossLaw:
    """T-fold sum of independent losses by brute convolution; for few atoms and few rounds."""
    losses, masses, finite = np.zeros(1), np.ones(1), 1.0
    for _ in range(rounds):
        losses, masses = merge(
            np.add.outer(losses, law.losses).ravel(), np.multiply.outer(masses, law.masses).ravel()
        )
        finite *= 1 - law.infinite
    return LossLaw(losses, masses, 1 - finite)


def compose_on_grid(law: LossLaw, rounds: int, interval: float) -> LossLaw:
    """T-fold composition by one FFT of losses rounded down to a grid: a lower bound on delta.

    Up to FFT noise (about 1e-15 absolute) and the mass beyond 30 standard deviations.
    """
    cell = np.floor(law.losses / interval).astype(int)
    lowest = cell.min()
    index = cell - lowest
    grid = np.bincount(index, law.masses)
    points = np.arange(len(grid)) + lowest
    mean = grid @ points / grid.sum()
    spread = np.sqrt(grid @ (points - mean) ** 2 / grid.sum())
    size = int(min(rounds * (len(grid) - 1) + 1, 60 * np.sqrt(rounds) * spread + len(grid)))
    size = 1 << size.bit_length()
    start = int(np.round(rounds * mean)) - size // 2 if size <= rounds * (len(grid) - 1) else rounds * lowest
    folded = np.bincount(np.arange(len(grid)) % size, grid, minlength=size)
    composed = np.fft.irfft(np.fft.rfft(folded) ** rounds, size)
    composed = np.roll(composed, -((start - rounds * lowest) % size))
    return LossLaw(
        (start + np.arange(size)) * interval, composed, float(-np.expm1(rounds * np.log1p(-law.infinite)))
    )
