"""Concrete pairs of lower ends for certificates: laws of a sum of whole scores of the labels of all draws.

A sum of scores is a post-processing of the messages, so no other argument about the mechanism is needed. Call inside
`devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from checkin_jax.accounting.bounds.interface import EqualDraws, Lines, OwnEvents, Witness
from checkin_jax.randomizers import LabelLaws

# Places of the law of a sum, and most of them, where scores are coarsest; standard deviations and
# largest scores that these hold.
_PLACES, _MOST_PLACES, _DEVIATIONS, _MOST_SCORES = 1 << 16, 1 << 18, 28.0, 16.0
# Largest multiple of the least score in laws whose scores are whole multiples, and their relative rounding.
_MULTIPLES, _WHOLE = 64, 1e-9
# Rounding of a transform of some 2^19 places, 4 units for each of its levels, as a share of the sum of absolute values:
# for each draw, and in all; and of every mass, per unit of what its logarithm is made of and at least.
_NOISE_DRAW, _NOISE, _OF_LOG, _ROUNDED = 1e-14, 2e-14, 1e-14, 1e-12
# Most expected messages whose sums are evaluated for rare large steps, in standard deviations of the sum.
_MANY, _RARE = 4000.0, 3.0
# Expected number of messages that are few, and the share of the sum of their likelihood ratios in scores.
_FEW, _MIXED = 30.0, 0.3137
# Logarithm of a large moment of a move, whose exponential is not formed.
_LARGE = 300.0
# Standard deviations of the sum between the tilts at which its law is evaluated, and of the window beside them; share
# of the negligible mass, as -log, up to which there are tilts; most growth, as log, of a mass between two tilts.
_TILT_STEP, _WIDTH, _FAR, _GROWTH = 2.0, 4.0, 60.0, 1.0


class ScoreSum(OwnEvents, abc.ABC):
    """Witness: a sum of whole scores of labels.

    The target's label has the law `target` or `other`, all others' the law `others`.

    Attributes of subclasses:
      name: of the witness. laws: of labels. neg_log_tail: -log of the negligible mass.
      expected: number of messages, approximately. places: of the law of a sum.
    """

    name: str
    laws: LabelLaws
    neg_log_tail: float
    follows_outcomes: bool
    places: ClassVar[int] = _PLACES

    @property
    @abc.abstractmethod
    def expected(self) -> float: ...

    @property
    @abc.abstractmethod
    def _sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Masses of outcomes under Q, P - Q, and bounds on their errors, [outcomes], and on the mass elsewhere."""

    @functools.cached_property
    def _others(self) -> np.ndarray:
        return np.asarray(self.laws.other if self.laws.others is None else self.laws.others, dtype=np.float64)

    @functools.cached_property
    def scores(self) -> np.ndarray:
        """About proportional to the difference of the likelihood ratios, of few messages to another mixture; [labels].

        The sum of few messages' scores then tells all labels apart.
        """
        apart, others = self.laws.difference, self._others
        few = self.laws.others is not None and self.expected < _FEW
        numerator = apart + (_MIXED * (apart + 2.0 * (np.asarray(self.laws.other) - others)) if few else 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(numerator == 0.0, 0.0, numerator / others)
        size = np.abs(ratio[ratio != 0.0])
        multiples = ratio / size.min()
        if (
            not few
            and np.all(np.abs(multiples - np.rint(multiples)) < _WHOLE)
            and np.abs(multiples).max() <= _MULTIPLES
        ):
            return np.rint(multiples).astype(np.int64)
        most = float(size[np.isfinite(size)].max())
        ratio = np.clip(ratio, -2.0 * most, 2.0 * most)
        deviation = math.sqrt(self.expected * float(np.sum(others * np.square(ratio))))
        scale = max(self.places / (_DEVIATIONS * deviation + _MOST_SCORES * most), 1.0 / most)
        return np.rint(ratio * scale).astype(np.int64)

    @property
    def has_rare_steps(self) -> bool:
        """True if one of few messages may move the sum by more than _RARE standard deviations, which contours miss."""
        return self.expected <= _MANY and float(np.abs(self.scores).max()) > _RARE * self.spread

    @property
    def spread(self) -> float:
        """Standard deviation of the sum, for others."""
        return math.sqrt(self.expected * float(np.sum(self._others * np.square(self.scores))))

    @functools.cached_property
    def scored(self) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        """The least score, at most 0, and the laws by scores of `others`, `target` - `other` and `other`, [scores]."""
        low = min(int(self.scores.min()), 0)
        size = max(int(self.scores.max()), 0) - low + 1
        parts = self._others, self.laws.difference, np.asarray(self.laws.other)
        others, apart, other = (np.bincount(self.scores - low, part, size) for part in parts)
        return low, others, apart, other

    @functools.cached_property
    def _events(self) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]:
        """For P||Q and Q||P: losses of all sums, decreasing, and P - Q and Q of so many sums from the first on.

        P - Q is rounded down, Q rounded up.
        """
        second, apart, noise, beyond = self._sums
        found = []
        for difference, mass in ((apart, second), (-apart, second + apart)):
            kept = difference + mass > 0.0
            difference, mass = difference[kept], np.maximum(mass[kept], 0.0)
            with np.errstate(divide="ignore"):
                losses = np.log1p(difference / mass)
            order = np.argsort(-losses, kind="stable")
            difference, mass = difference - noise[kept], mass + noise[kept]
            first = (-beyond, beyond)
            seen = (np.cumsum(np.append(*part)) for part in zip(first, (difference[order], mass[order])))
            found.append((losses[order], *seen))
        return tuple(found)

    @property
    def loss_support(self) -> np.ndarray:
        losses = np.abs(self._events[0][0])
        return losses if self.follows_outcomes and np.isfinite(losses).all() else np.zeros(0)

    @property
    def largest_loss(self) -> float:  # type: ignore[override]
        return max((float(losses[0]) for losses, _, _ in self._events if losses.size), default=0.0)

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        def lines(losses: np.ndarray, apart: np.ndarray, mass: np.ndarray) -> Lines:
            event = np.searchsorted(-losses, -np.asarray(loss))
            return apart[event], mass[event]

        forward, backward = (lines(*each) for each in self._events)
        return forward, backward


@dataclasses.dataclass(frozen=True, eq=False)
class LabelSum(ScoreSum):
    """Witness: the sum of whole scores of all labels.

    Each of `draws` draws is sent with probability `rate`. With probability `used` one of them is the target's.
    follows_outcomes: False for grids that do not follow the losses of few outcomes, which have fewer places.
    """

    name: str
    draws: int
    rate: float
    used: float
    laws: LabelLaws
    neg_log_tail: float
    follows_outcomes: bool = True

    @property
    def expected(self) -> float:
        return self.draws * self.rate

    @functools.cached_property
    def _sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:  # type: ignore[override]
        low, *parts = self.scored
        others, apart, second = (self.rate * part for part in parts)
        others[-low] += 1.0 - self.rate
        second[-low] += 1.0 - self.rate
        apart, second = self.used * apart, self.used * second + (1.0 - self.used) * others
        rest, noise, beyond = _power(others, self.draws - 1, self.neg_log_tail)
        both = np.abs(apart) + second
        return _convolved(rest, second), _convolved(rest, apart), _convolved(noise, both), beyond

    def model(self, reverse: bool) -> dict[str, Any]:
        """Description of the pair, or of (Q, P), for verify."""
        first, apart = (
            (self.laws.target, -self.laws.difference) if reverse else (self.laws.other, self.laws.difference)
        )
        return {
            "kind": "labels",
            "draws": self.draws,
            "rate": self.rate,
            "used": self.used,
            "scores": [int(each) for each in self.scores],
            "others": self._others.tolist(),
            "other": np.asarray(first, dtype=np.float64).tolist(),
            "apart": apart.tolist(),
        }


def _convolved(rest: np.ndarray, law: np.ndarray) -> np.ndarray:
    """Law of the sum with one more score; few scores have a mass."""
    found = np.zeros(rest.size + law.size - 1)
    for place in np.flatnonzero(law):
        found[place : place + rest.size] += law[place] * rest
    return found


def _power(law: np.ndarray, count: int, neg_log_tail: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Law of the sum of so many scores in a window, bounds on its rounding, and on the mass beyond the window.

    The law is made of transforms of tilted laws; for each sum the tilt whose bound by Chernoff is least serves.
    """
    if count == 0 or np.count_nonzero(law) == 1:
        return np.ones(1), np.full(1, _ROUNDED), 0.0
    usual = int(law.argmax())
    moves = np.flatnonzero(law)
    moves = moves[moves != usual] - usual
    masses = law[moves + usual]
    tilts, beyond = [_tilted(masses, moves, count, 0.0)], 0.0
    for sign in (1.0, -1.0):
        here = tilts[0]
        far, end = here.mean + sign * _PLACES, count * sign * max(float((sign * moves).max()), 0.0)
        while (
            abs(end - here.mean) > 0.5
            and here.rarity < neg_log_tail + _FAR
            and sign * (far - here.mean) > 0.0
        ):
            step = min(_TILT_STEP / here.deviation, _GROWTH / max(float((sign * moves).max()), 1.0))
            here = _tilted(masses, moves, count, here.order + sign * step)
            tilts.append(here)
        if abs(end - here.mean) > 0.5:
            beyond += 2.0 * math.exp(-here.rarity)
    low = max(min(here.mean - _WIDTH * here.deviation for here in tilts), count * min(moves.min(), 0))
    high = min(max(here.mean + _WIDTH * here.deviation for here in tilts), count * max(moves.max(), 0))
    sums = np.arange(math.floor(low), math.ceil(high) + 1)
    size = 1 << int(sums.size + np.ptp(moves)).bit_length()
    best, found, noise = np.full(sums.size, np.inf), np.zeros(sums.size), np.zeros(sums.size)
    for tilt in tilts:
        step = np.fft.rfft(np.bincount(moves % size, tilt.masses, size)) - tilt.masses.sum()
        # A zero of the transform has no logarithm.
        some = step != -1.0
        power = np.where(some, _power_of(np.where(some, step, 0.0), count), 0.0)
        here = np.fft.irfft(power, size)[sums % size]
        bound = tilt.log_total - tilt.order * sums
        rounded = _ROUNDED + _OF_LOG * (count * tilt.size + np.abs(tilt.order * sums))
        chosen, scale = bound < best, np.exp(np.minimum(bound, 0.0))
        unclear = (_NOISE + _NOISE_DRAW * count * tilt.masses.sum()) * float(here.max()) + rounded * here
        # Where there is as much noise, the sum is left out: then all of it is noise.
        clear = here > 4.0 * unclear
        found = np.where(chosen, np.where(clear, scale * here, 0.0), found)
        noise = np.where(chosen, scale * unclear * np.where(clear, 1.0, 5.0), noise)
        best = np.where(chosen, bound, best)
    return found, noise, beyond


def _power_of(step: np.ndarray, count: int) -> np.ndarray:
    """(1 + step)^count for complex steps, its logarithm relative to the step: NumPy's is relative to one."""
    along, across = np.real(step), np.imag(step)
    size, near = np.hypot(1.0 + along, across), np.abs(step) < 0.5
    moved = np.where(near, 2.0 * along + np.square(along) + np.square(across), 0.0)
    # Far from one nothing is lost, and near zero the square would be.
    log_size = np.where(near, 0.5 * np.log1p(moved), np.log(np.where(size > 0.0, size, 1.0)))
    return np.where(size > 0.0, np.exp(count * (log_size + 1j * np.arctan2(across, 1.0 + along))), 0.0)


class _Tilted(NamedTuple):
    """The law of a sum reweighted by e^(order sum - log_total), and the masses of one draw's moves there.

    size: of the terms that one draw adds to log_total, in absolute value.
    """

    order: float
    log_total: float
    masses: np.ndarray
    mean: float
    deviation: float
    size: float

    @property
    def rarity(self) -> float:
        """Chernoff's bound, as -log, on the probability of sums that are farther out than the mean of this law."""
        return self.order * self.mean - self.log_total


def _tilted(masses: np.ndarray, moves: np.ndarray, count: int, order: float) -> _Tilted:
    most = max(float((order * moves).max()), 0.0)
    if most < _LARGE:
        log_one = math.log1p(float(masses @ np.expm1(order * moves)))
    else:
        moved = most + math.log(float(masses @ np.exp(order * moves - most)))
        log_one = float(np.logaddexp(moved, math.log1p(-float(masses.sum()))))
    half = np.exp(0.5 * (order * moves - log_one))  # the whole could overflow beside a tiny mass
    tilted = masses * half * half
    mean = float(tilted @ moves)
    variance = float(tilted @ np.square(moves - mean)) + max(1.0 - float(tilted.sum()), 0.0) * mean**2
    size = most + abs(log_one) + float(tilted @ np.abs(order * moves))
    if most < _LARGE:
        size += float(masses @ np.abs(np.expm1(order * moves))) * math.exp(-log_one)
    return _Tilted(order, count * log_one, tilted, count * mean, math.sqrt(count * variance), size)


def told(laws: LabelLaws) -> bool:
    """True if scores tell the labels apart; False where some mass is missing, which is of equal odds."""
    whole = max(abs(float(np.sum(law)) - 1.0) for law in laws[:2]) <= _WHOLE
    return whole and not laws.revealed and bool(np.any(laws.difference))


def label_sum(witness: Witness, neg_log_tail: float) -> LabelSum | None:
    """The witness as a sum of scores; None where it is none of equal draws, of few labels or of few enough draws."""
    drawn: EqualDraws | None = getattr(witness, "equal_draws", None)
    if drawn is None or not told(drawn.laws):
        return None
    found = LabelSum(witness.name, *drawn, neg_log_tail)
    return found if found.spread * _DEVIATIONS < _MOST_PLACES else None
