"""Classes of mechanisms: all with pure or approximate local differential privacy, one-bit ones, or a known profile.

Their witnesses are mixtures of binary randomized responses with several epsilons over a public label. With p_i =
e^{loss_i} the profile of such a mixture is sum_i weight_i (p_i - c)_+ / (p_i + 1). Every piecewise linear profile of a
symmetric pair is such a sum, with one term for each kink p_i. `levels` computes the weights from a profile.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from checkin_jax import _validate
from checkin_jax._rounding import down
from checkin_jax._suggest import legal
from checkin_jax.randomizers.randomizer import (
    BINARY,
    MAX_EPSILON0,
    TERNARY,
    LabelLaws,
    LocallyPrivate,
    Randomizer,
    check_profile,
)
from checkin_jax.randomizers.step_sets import StepSet, one_bit_steps

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


def pure_profile(epsilon0: float, loss: np.ndarray) -> np.ndarray:
    """(p - c)_+ / (p + 1) at c = e^loss, p = e^epsilon0: the profile of randomized response, which dominates."""
    room = -np.expm1(np.minimum(np.asarray(loss, dtype=np.float64) - epsilon0, 0.0))
    return room / (1.0 + math.exp(-epsilon0))


class MechanismClass(Randomizer):
    """A class of mechanisms, whose messages and sums may be those of any of them."""

    messages_differ = True
    sum_reveals_counts = True
    dummy_may_equal_any_record = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class PureLDP(MechanismClass, LocallyPrivate):
    """Any randomizer with pure local differential privacy: the worst of all mechanisms with this epsilon0.

    Attributes:
      epsilon0: local privacy parameter of one message in nats, in [0, 50], replace-one.
      total_variation: upper bound on the total variation distance between the laws of a message at two records, in (0,
        1]. Leave it out if unknown; values from tanh(epsilon0 / 2) on are no constraint.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    total_variation: float = 1.0  # type: ignore[assignment]

    _legal = legal(epsilon0=(_validate.real, 0, MAX_EPSILON0), total_variation=(_validate.real, 0, 1, "(]"))

    @property
    def _share(self) -> float:
        """Total variation as a share of the largest one that epsilon0 permits."""
        most = math.tanh(0.5 * self.epsilon0)
        return self.total_variation / most if self.total_variation < most else 1.0

    @property
    def description(self) -> str:
        known = f" at a total variation of {down(self.total_variation)}" if self._share < 1.0 else ""
        return f"{down(self.epsilon0)}-LDP messages{known}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        if self._share == 1.0:
            return ()
        return (
            f"the laws of a message at any two records have a total variation of at most {down(self.total_variation)}",
        )

    def profile(self, loss: np.ndarray) -> np.ndarray:
        # Convex in c, at most total_variation at c = 1 and zero at e^epsilon0, hence below the chord.
        return self._share * pure_profile(self.epsilon0, loss)

    @property
    def included_mechanisms(self) -> frozenset[str]:
        return frozenset((BINARY, TERNARY)) if self._share == 1.0 else frozenset()

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """Randomized response that is sent with some probability, else no information."""
        if self._share == 1.0:
            return ()
        known = Levels(np.array([self.epsilon0]), np.array([self._share]))
        return responses(known, "randomized response with that total variation")


class OneBitMessage(LocallyPrivate):
    """A message of one bit and public coins; two records' bits differ with probability `differ` at most."""

    differ = 1.0

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return self.differ * pure_profile(self.epsilon0, loss)

    @property
    def one_bit(self) -> float:
        return self.differ

    @property
    def step_set(self) -> StepSet:
        return one_bit_steps(self.epsilon0, self.differ)

    @property
    def included_mechanisms(self) -> frozenset[str]:
        return frozenset((BINARY,)) if self.differ == 1.0 else frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneBit(MechanismClass, OneBitMessage):
    """Any message of one bit and public coins: given the coins, whose law does not depend on the record, an eps0-LDP
    bit.

    Examples: the l2 mechanism (`L2Mechanism`); binary randomized response of a yes-or-no question, of a random
    coordinate's sign, or of a random Hadamard coefficient.

    Attributes:
      epsilon0: of one message in nats, in (0, 50], replace-one.
      differ: upper bound in (0, 1] on the probability, over the coins, that the bits of two records differ before they
        are randomized; 1/2 for one Hadamard coefficient.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    differ: float = 1.0

    _legal = legal(differ=(_validate.real, 0, 1, "(]"))

    @property
    def description(self) -> str:
        told = f"{down(self.epsilon0)}-LDP messages of one bit and public coins"
        if self.differ == 1.0:
            return told
        return f"{told}, which two records change with probability at most {down(self.differ)}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        coins = "every message has fresh public coins, whose law does not depend on the record, and one further bit"
        if self.differ == 1.0:
            return (coins,)
        return (
            coins,
            f"the bits of any two records differ with probability at most {down(self.differ)} over the coins",
        )

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """Randomized response, with coins that reveal whether the two records' bits differ."""
        if self.differ == 1.0:
            return ()
        known = Levels(np.array([self.epsilon0]), np.array([self.differ]))
        return responses(known, "one bit and coins that tell whether it matters", third=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApproximateLDP(MechanismClass, LocallyPrivate):
    """Any randomizer with (epsilon0, delta0)-local differential privacy, by the largest such profile [KOV15].

    Attributes:
      epsilon0: in nats, in [0, 50], replace-one. delta0: in [0, 1).

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    delta0: float

    _legal = legal(epsilon0=(_validate.real, 0, MAX_EPSILON0), delta0=(_validate.real, 0, 1, "[)"))

    @property
    def description(self) -> str:
        return f"({down(self.epsilon0)}, {down(self.delta0)})-LDP messages"

    @property
    def largest_loss(self) -> float:
        return math.inf if self.delta0 > 0 else self.epsilon0

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return self.delta0 + (1.0 - self.delta0) * pure_profile(self.epsilon0, loss)

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """Randomized response that reveals the record with probability delta0; and this event by itself."""
        if self.delta0 == 0.0:
            return ()
        known = Levels(np.array([self.epsilon0, CERTAIN]), np.array([1.0 - self.delta0, self.delta0]))
        known = Levels(*(part[known.losses > 0.0] for part in known))
        marked = np.array([self.delta0, 1.0 - self.delta0])
        shown = LabelLaws(marked, np.array([0.0, 1.0]), "a message that shows the record")
        return (*responses(known, "randomized response that may show the record"), shown)

    @property
    def included_mechanisms(self) -> frozenset[str]:
        return frozenset((BINARY, TERNARY)) if self.delta0 == 0.0 else frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownProfile(MechanismClass):
    """A mechanism whose privacy profile is given as a function, which is checked at sample losses.

    Attributes:
      function: D at e^loss for an array of losses >= 0 in nats, relative error below 5e-12: an upper bound on the
        hockey-stick divergence between the laws of a message at any two records, in both orders.
      largest_loss: loss in nats from which on the function is zero, or infinity.
      name: description of the messages, in words.

    Raises:
      TypeError: no function. ValueError: some value is not in [0, 1], or the function increases or is not convex in
        e^loss.
    """

    function: Callable[[np.ndarray], np.ndarray]
    largest_loss: float = math.inf  # type: ignore[assignment]
    name: str = "messages of a given privacy profile"

    _legal = legal(largest_loss=(_validate.real, 0.0, math.inf, "(]"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise _validate.type_error("a function of an array of losses", function=self.function)
        check_profile("function", self.function, self.largest_loss)

    @property
    def description(self) -> str:
        return self.name

    @functools.cached_property
    def label_laws(self) -> tuple[LabelLaws, ...]:  # type: ignore[override]
        """Mixture of randomized responses over a public label, whose profile is this one or slightly smaller."""
        known = levels(self.profile, self.largest_loss)
        return responses(known, "randomized responses of that profile") if known.losses.size else ()

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return np.asarray(self.function(np.asarray(loss)), dtype=np.float64)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            f"the given profile of {self.name} bounds the divergence of a message's laws at any two records",
        )
