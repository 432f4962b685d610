"""Mixtures of binary randomized responses with several epsilons over a public label: witnesses for a given profile.

With p_i = e^{loss_i} the profile of the mixture is sum_i weight_i (p_i - c)_+ / (p_i + 1). Every piecewise linear
profile of a symmetric pair is such a sum, with one term for each kink p_i. `levels` computes the weights from a
profile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from checkin_jax.randomizers.randomizer import LabelLaws

# Loss that stands for infinite loss, that is, for revealing the record.
CERTAIN = 45.0
# Number of losses at which a profile is evaluated, the least value that is followed, and the largest loss.
_KNOTS, _LEAST, _FARTHEST = 128, 1e-30, 300.0
# Mass at infinite loss below this is negligible.
_CERTAINLY = 1e-30
# Largest loss of responses with a third record; their kernels do not cut off larger rare steps.
_MOST_AMONG_THREE = 12.0
# Relative margin: a profile has relative error 5e-12, which the extension of chords beyond the knots amplifies.
_BELOW = 1e-9


class Levels(NamedTuple):
    """Losses > 0 in nats and probabilities of the responses, [levels]; the remaining probability has loss 0."""

    losses: np.ndarray
    weights: np.ndarray


def _ends(function: Callable[[np.ndarray], np.ndarray], largest_loss: float) -> tuple[float, float]:
    """Largest loss that is followed, and the value there if the function is constant beyond."""
    far = min(largest_loss, _FARTHEST)
    losses = np.geomspace(1e-9 * far, far, 600)
    value = function(losses)
    left = float(value[-1]) if largest_loss > far and value[-1] > _CERTAINLY else 0.0
    enough = value - left <= max(_LEAST * float(value[0]), 1e-9 * left)
    return float(losses[np.argmax(enough)]) if enough.any() else far, left


def levels(function: Callable[[np.ndarray], np.ndarray], largest_loss: float) -> Levels:
    """Responses whose profile is a close lower bound of the given one; none if it is zero.

    Args:
      function: a privacy profile, relative error below 5e-12. largest_loss: loss from which on it is zero, or infinity.

    The extension of a chord of a convex function is a lower bound. Between two knots the extensions of both
    neighbouring chords are lower bounds, and so is the convex hull of their intersections.
    """
    from checkin_jax.numerics import convex

    end, left = _ends(function, largest_loss)
    losses = np.linspace(0.0, end, _KNOTS)
    above, value = np.expm1(losses), (function(losses) - left) * (1.0 - _BELOW)
    if not value[0] > 0.0:
        return Levels(np.zeros(0), np.zeros(0))
    slope = np.minimum(np.diff(value) / np.diff(above), 0.0)
    # Between knots i and i + 1: the chord before, extended from knot i, and the one after, extended back from knot i +
    # 1.
    before, after = slope[:-2], slope[2:]
    start, width = above[1:-2], np.diff(above)[1:-1]
    fall = value[1:-2] - value[2:-1] + after * width
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = fall / (after - before)
    along = np.clip(np.where(np.isnan(crossing), 0.5 * width, crossing), 0.0, width)
    height = np.maximum(value[1:-2] + before * along, value[2:-1] - after * (width - along))
    x = np.concatenate([[0.0], start + along])
    y = np.concatenate([[value[1] - slope[1] * above[1]], height])
    last = slope[-2] if slope[-2] < 0.0 else slope[slope < 0.0][-1]
    x, y = np.append(x, x[-1] - y[-1] / last), np.append(y, 0.0)
    kept = convex.hull(x, y)
    x, y = x[kept], y[kept]
    bend = np.diff(np.append(np.diff(y) / np.diff(x), 0.0))
    found, weights = np.log1p(x[1:]), (x[1:] + 2.0) * np.maximum(bend, 0.0)
    if left > 0.0:
        found, weights = np.append(found, max(CERTAIN, end)), np.append(weights, left * (1.0 - _BELOW))
    # The given function may exceed the profile of every single pair.
    return Levels(found, weights / max(float(weights.sum()) * (1.0 + 1e-12), 1.0))


def _laws(known: Levels, name: str, *, third: bool) -> LabelLaws:
    """Labels of the two records at every level, of a third one if `third`, and a label without information."""
    ratio = np.exp(-known.losses)
    high = known.weights / (1.0 + (2.0 if third else 1.0) * ratio)
    low, gap = high * ratio, -high * np.expm1(-known.losses)
    none = np.zeros(0)
    target, other = [high, low, low if third else none], [low, high, low if third else none]
    rest = 1.0 - float(np.sum(target[0]) + np.sum(target[1]) + np.sum(target[2]))
    silent = np.full(1 if rest > 0.0 else 0, rest)
    apart = np.concatenate([gap, -gap, 0.0 * target[2], 0.0 * silent])
    others = np.concatenate([low, low, high, silent]) if third else None
    return LabelLaws(np.concatenate([*target, silent]), np.concatenate([*other, silent]), name, others, apart)


def responses(known: Levels, name: str, *, third: bool = True) -> tuple[LabelLaws, ...]:
    """Label laws of these levels: all others at one of the two records, and at a third one if `third`.

    Rare large losses are hard to follow in sums, so there is another law without them.

    A 3-ary response with the probabilities (p, 1, 1) / (p + 2) has the profile of a binary response that is sent with a
    probability smaller by the factor (p + 1) / (p + 2). So 3-ary responses are sent with larger probabilities, the
    largest losses first, up to a total probability of 1.
    """
    known = Levels(*(part[known.weights > 0.0] for part in known))
    found = [_laws(known, f"{name}, all others at one of the two records", third=False)]
    low = Levels(*(part[known.losses <= _MOST_AMONG_THREE] for part in known))
    if low.losses.size and known.losses.max() >= CERTAIN:
        found.append(_laws(low, f"{name}, large losses left out, all others at one record", third=False))
    if not third or not low.losses.size:
        return tuple(found)
    order = np.argsort(-low.losses)
    ratio = np.exp(-low.losses[order])
    wanted = low.weights[order] * (1.0 + 2.0 * ratio) / (1.0 + ratio)
    before = np.cumsum(wanted) - wanted
    among = Levels(low.losses[order], np.clip(1.0 - before, 0.0, wanted) * (1.0 - 1e-12))
    among = Levels(*(part[among.weights > 0.0] for part in among))
    return (_laws(among, f"{name}, all others at a third record", third=True), *found)
