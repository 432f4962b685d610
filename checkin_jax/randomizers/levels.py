"""Mixtures of randomized responses of several epsilons, which a public coin chooses from: witnesses of a profile.

With p_i = e^{loss_i} the profile of the mixture is sum_i weight_i (p_i - c)_+ / (p_i + 1), and every profile of a
symmetric pair is such a sum, as a kink at p_i is one term. `levels` goes the way back, from a function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from checkin_jax.numerics import convex
from checkin_jax.randomizers.randomizer import LabelLaws

# What is shown for certain counts as a response of this loss, which as little is ever seen to contradict.
CERTAIN = 45.0
# Losses at which a function is asked, and how far it is followed down.
_KNOTS, _LEAST, _FARTHEST = 128, 1e-30, 300.0
# Less than this for certain never matters.
_CERTAINLY = 1e-30
# Losses of responses with a third record are followed up to here: rare steps that are larger are not cut off.
_MOST_AMONG_THREE = 12.0
# Relative: a profile is good to 5e-12, and chords are longer beyond the knots than between them.
_BELOW = 1e-9


class Levels(NamedTuple):
    """Losses > 0 in nats and how likely each response is, [levels]; what is missing to 1 tells nothing."""

    losses: np.ndarray
    weights: np.ndarray


def _ends(function: Callable[[np.ndarray], np.ndarray], largest_loss: float) -> tuple[float, float]:
    """How far the function is followed, and what is left there of what does not fall any more."""
    far = min(largest_loss, _FARTHEST)
    losses = np.geomspace(1e-9 * far, far, 600)
    value = function(losses)
    left = float(value[-1]) if largest_loss > far and value[-1] > _CERTAINLY else 0.0
    enough = value - left <= max(_LEAST * float(value[0]), 1e-9 * left)
    return float(losses[np.argmax(enough)]) if enough.any() else far, left


def levels(function: Callable[[np.ndarray], np.ndarray], largest_loss: float) -> Levels:
    """Responses whose profile is below a given one, and near it; none where the function is zero.

    Args:
      function: a privacy profile, relative error below 5e-12. largest_loss: from where on it is zero, or infinity.

    A chord of a convex function, drawn on beyond its ends, is below the function: between two knots both chords beside
    are, and so is the convex hull of the points in which these meet.
    """
    end, left = _ends(function, largest_loss)
    losses = np.linspace(0.0, end, _KNOTS)
    above, value = np.expm1(losses), (function(losses) - left) * (1.0 - _BELOW)
    if not value[0] > 0.0:
        return Levels(np.zeros(0), np.zeros(0))
    slope = np.minimum(np.diff(value) / np.diff(above), 0.0)
    # Between knots i and i + 1: the chord before, from knot i on, and the one after, from knot i + 1 back.
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
    # A function may be above all profiles of one pair.
    return Levels(found, weights / max(float(weights.sum()) * (1.0 + 1e-12), 1.0))


def _laws(known: Levels, name: str, *, third: bool) -> LabelLaws:
    """Labels of the two records at every level, of a third one if there is one, and silence."""
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
    """Witnesses of these levels: all others at one of the two records, and at a third one where that may be.

    Of losses that are rarely met and large there is a witness more, without them: sums of such are hard to follow.

    A response among three, (p, 1, 1) / (p + 2), has the profile of one among two that is sent (p + 1) / (p + 2) times
    as often: it is sent more often, the largest losses first, as far as probabilities go.
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
