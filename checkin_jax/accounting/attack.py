"""Attack terms of a guarantee: true positive rates, advantage, mu and posterior beliefs, certified from both sides.

The attacker distinguishes two neighboring data sets by the view. Its best trade-off of true against false positives is
the convex dual of the privacy profile, in both orders of the pair [DRS22]. So bounds on the profile from both sides are
bounds on every attack.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from checkin_jax import _validate
from checkin_jax._rounding import down, up
from checkin_jax._serialize import finite
from checkin_jax.accounting.bounds.interface import Exact, UnitBound
from checkin_jax.accounting.composition import privacy_profile as curve
from checkin_jax.accounting.composition.bracket import Bracket
from checkin_jax.accounting.composition.privacy_profile import Curve, Sides
from checkin_jax.kernels.execution.backend import bisected

# Rates and priors of statements.
SHOWN_FPRS, SHOWN_PRIORS = (0.001, 0.01, 0.1), (0.01, 0.1, 0.5)
# Relative rounding, outwards, of a few operations.
_SLACK = 1e-13
_MOST_MU = 1e4
# The largest delta down to which a profile is followed; the trivial bracket.
_MOST_DELTA, _NOTHING = 0.5, Bracket(0.0, math.inf, "")


class Ends(NamedTuple):
    """lower <= value of the best attack <= upper: no attack on any such randomizer exceeds upper, some attack on one
    of them reaches lower."""

    lower: float
    upper: float

    def __str__(self) -> str:
        return f"between {down(self.lower)} and {up(self.upper)}"


@dataclasses.dataclass(frozen=True, eq=False)
class AttackTerms:
    """A run's guarantee in an attacker's terms; made by `Guarantee.attack` and `CheckInAccountant.attack`.

    Every upper end holds for every attack, with any side knowledge, on any two neighboring data sets and any such
    randomizer. Every lower end is reached by an attack on concrete ones. Both are rounded outwards.

    Attributes:
      curve: the privacy profile.
      delta: delta of the guarantee.
    """

    curve: Curve
    delta: float

    @property
    def advantage(self) -> Ends:
        """Largest true positive rate minus false positive rate: the total variation distance, delta at epsilon 0."""
        lower = max((float(np.max([s.forward[0], s.backward[0]])) for s in self.curve.lower), default=0.0)
        # Both orders have the same value at loss 0.
        upper = float(min(self.curve.upper.forward[0], self.curve.upper.backward[0]))
        return Ends(lower, max(upper, lower))

    def tpr(self, fpr: float) -> Ends:
        """Largest true positive rate of an attack with this false positive rate in [0, 1].

        "Positive" is either of the two neighboring data sets, whichever is better for the attacker. At rates far below
        delta the upper end is not much below delta, since the profile is followed only to about delta.

        Raises:
          TypeError, ValueError: fpr is no number in [0, 1].
        """
        fpr = _validate.real(0, 1, fpr=fpr)
        lower, upper = self.trade_off(np.array([fpr]))
        return Ends(float(lower[0]), float(upper[0]))

    def trade_off(self, fprs: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both ends of `tpr` at many rates in [0, 1]; arrays of the rates' shape [rates].

        Raises:
          ValueError: a rate outside of [0, 1].
        """
        rates = _validate.array("fprs", fprs)
        if rates.ndim != 1 or not np.all((rates >= 0.0) & (rates <= 1.0)):
            raise _validate.error("a list of numbers in [0, 1]", fprs=fprs)
        c = np.exp(self.curve.losses)
        orders = _both(self.curve.upper)
        upper = np.array([max(_most_tpr(c, each, rate) for each in orders) for rate in rates])
        pairs = [each for sides in self.curve.lower for each in _both(sides)]
        lower = np.array([max((_least_tpr(c, each, rate) for each in pairs), default=rate) for rate in rates])
        upper = np.minimum(np.maximum(upper * (1.0 + _SLACK), rates), 1.0)
        return np.minimum(np.maximum(lower * (1.0 - _SLACK), rates), upper), upper

    @functools.cached_property
    def mu(self) -> Ends:
        """Least mu with which the run is mu-Gaussian differentially private [DRS22] up to the guarantee's delta.

        At every false positive rate the true positive rate is at most that of distinguishing N(0, 1) from N(mu, 1),
        plus delta; equivalently, the profile is at most the Gaussian's plus delta. Without delta, rare large losses
        would determine mu, which would be that of named messages. Infinite if no mu below 1e4 was found.
        """
        losses = self.curve.losses
        upper = np.maximum(self.curve.upper.forward, self.curve.upper.backward)
        kept = np.flatnonzero(upper > self.delta)
        end = int(kept[-1]) + 2 if kept.size else 0
        if end == 0:
            return Ends(0.0, 0.0)
        if end > losses.size:
            high = math.inf
        else:
            high = _bisect(lambda mu: _gaussian_above(mu, losses[:end], upper[:end] - self.delta))
        known = [side for sides in self.curve.lower for side in (sides.forward, sides.backward)]
        best = np.max(known, axis=0) - self.delta if known else np.zeros_like(losses)
        some = best > 0
        low = _bisect(lambda mu: _gaussian_reaches(mu, losses[some], best[some]), above=False)
        return Ends(min(low, high), high)

    def posterior(self, prior: float) -> Ends:
        """Largest posterior belief that one of two neighboring data sets was used, from a prior in (0, 1).

        The belief that is exceeded with probability at most delta under that data set: sigmoid(logit(prior) + loss),
        the loss being exceeded with probability at most delta. The upper end holds for all pairs. Some pair exceeds the
        lower end with probability above delta.

        Raises:
          TypeError, ValueError: prior is no number in (0, 1).
        """
        prior = _validate.real(0, 1, "()", prior=prior)
        low, high = self._losses
        return Ends(_belief(prior, low) * (1.0 - _SLACK), min(_belief(prior, high) * (1.0 + _SLACK), 1.0))

    @functools.cached_property
    def _losses(self) -> Ends:
        """Loss that is exceeded with probability at most delta.

        With H the profile and c = e^l, P[L > l] (1 - x / c) <= H(x) for x < c. H is convex with slope -Q[L > l] at c,
        so P[L > l] >= H(c) + c (H(c) - H(x)) / (x - c) for x > c.
        """
        losses = self.curve.losses
        upper = np.maximum(self.curve.upper.forward, self.curve.upper.backward)
        below = upper < self.delta
        with np.errstate(divide="ignore"):
            high = np.min(
                losses[below] - np.log1p(-upper[below] / self.delta), initial=self.curve.largest_loss
            )
        known = [side for sides in self.curve.lower for side in (sides.forward, sides.backward)]
        low = max((_last_exceeded(losses, side, upper, self.delta) for side in known), default=0.0)
        high = float(high) * (1.0 + 1e-12)
        return Ends(min(low, high), high)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, {"lower", "upper"} each; infinity as None."""

        def plain(ends: Ends) -> dict[str, Any]:
            return finite(ends._asdict())

        return {
            "advantage": plain(self.advantage),
            "mu": {**plain(self.mu), "delta": self.delta},
            "tpr": [{"fpr": fpr, **plain(self.tpr(fpr))} for fpr in SHOWN_FPRS],
            "posterior": [
                {"prior": p, "delta": self.delta, **plain(self.posterior(p))} for p in SHOWN_PRIORS
            ],
        }

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Lines of a statement: name and two ends of each attack term."""
        return (
            ("advantage", f"{self.advantage}: true minus false positive rate of the best attack"),
            *(
                (f"fpr {fpr:g}", f"true positive rate of the best attack {self.tpr(fpr)}")
                for fpr in SHOWN_FPRS
            ),
            (
                "mu",
                f"{self.mu}: as hard to attack as telling N(0, 1) from N(mu, 1), except with "
                f"probability {self.delta!r}",
            ),
            *(
                (
                    f"prior {p:g}",
                    f"becomes a belief {self.posterior(p)}, except in a share {self.delta!r} of the runs",
                )
                for p in SHOWN_PRIORS
            ),
        )

    def __str__(self) -> str:
        return "\n".join(f"  {name:<10} {text}" for name, text in self.lines)


def attack_terms(
    units: Sequence[tuple[UnitBound, int]],
    delta: float,
    found: Bracket,
    local_caps: Sequence[tuple[Exact, int]] = (),
) -> AttackTerms:
    """Attack terms of units whose bracket at delta is `found`; arguments as of `privacy_profile.curve`."""
    if delta > _MOST_DELTA:
        return AttackTerms(curve.curve(units, _MOST_DELTA, _NOTHING, local_caps), delta)
    return AttackTerms(curve.curve(units, delta, found, local_caps), delta)


def largest_advantage(
    units: Sequence[tuple[UnitBound, int]], delta: float, local_caps: Sequence[tuple[Exact, int]] = ()
) -> float:
    """Upper end of `AttackTerms.advantage`, in half the time of both ends."""
    found = curve.curve(units, min(delta, _MOST_DELTA), _NOTHING, local_caps, False)
    return AttackTerms(found, delta).advantage.upper


def _both(sides: Sides) -> tuple[Sides, ...]:
    if sides.forward is sides.backward:
        return (sides,)
    return sides, Sides(sides.backward, sides.forward)


def _most_tpr(c: np.ndarray, sides: Sides, fpr: float) -> float:
    """Upper bound on P(A) at Q(A) = fpr: inf_c c fpr + H_c(P||Q), H_c(P||Q) = 1 - c + c H_{1/c}(Q||P)."""
    above = np.min(c * fpr + sides.forward)
    # In terms of 1 / c, which avoids cancellation near 1.
    below = 1.0 - np.max((1.0 - sides.backward - fpr) / c)
    return float(min(above, below + 4e-16))


def _least_tpr(c: np.ndarray, sides: Sides, fpr: float) -> float:
    """Lower bound on inf_c c fpr + H_c(P||Q), the P(A) of the best A with Q(A) = fpr; each interval from below."""
    above = np.min(c * fpr + np.append(sides.forward[1:], 0.0))
    below = np.min(fpr / c[1:] + 1.0 - (1.0 - sides.backward[:-1]) / c[:-1])
    # H_c >= 1 - c for smaller c.
    return float(min(above, below - 4e-16, 1.0 - (1.0 - fpr) / c[-1] - 4e-16))


def _last_exceeded(losses: np.ndarray, lower: np.ndarray, upper: np.ndarray, delta: float) -> float:
    """Largest loss proved to be exceeded with probability delta, by a pair with a profile between the two."""
    mass = lower.copy()
    for step in 2 ** np.arange(int(math.log2(losses.size))):
        fall = (lower[:-step] - upper[step:]) / np.expm1(losses[step:] - losses[:-step])
        mass[:-step] = np.maximum(mass[:-step], lower[:-step] + fall)
    exceeded = np.flatnonzero(mass * (1.0 - 1e-9) > delta)
    return float(losses[exceeded[-1]]) if exceeded.size else 0.0


def _gaussian(mu: float, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Profile of N(mu, 1) against N(0, 1), its negative slope in e^loss, and a bound on the profile's rounding."""
    first = np.exp(scipy.special.log_ndtr(0.5 * mu - losses / mu))
    log_far = scipy.special.log_ndtr(-0.5 * mu - losses / mu)
    return first - np.exp(losses + log_far), np.exp(log_far), 1e-12 * first


def _gaussian_above(mu: float, losses: np.ndarray, wanted: np.ndarray) -> bool:
    """True if the Gaussian profile is at least the chords of `wanted`, by its tangents between the points."""
    value, far, error = _gaussian(mu, losses)
    value, far = value - error, far * (1.0 + 1e-12)
    steps = np.exp(losses[:-1]) * np.expm1(np.diff(losses))
    # Distance from the left point at which value - far t and value' + far' (steps - t) cross.
    bend = np.maximum(far[:-1] - far[1:], 1e-300)
    place = np.clip((value[:-1] - value[1:] - far[1:] * steps) / bend, 0.0, steps)
    # The lower tangent there, since rounding may have missed the crossing.
    tangent = np.minimum(value[:-1] - far[:-1] * place, value[1:] + far[1:] * (1.0 - 4e-12) * (steps - place))
    chord = wanted[:-1] + (wanted[1:] - wanted[:-1]) * (place / steps)
    return bool(np.all(value >= wanted) and np.all(tangent >= chord))


def _gaussian_reaches(mu: float, losses: np.ndarray, wanted: np.ndarray) -> bool:
    """True if the Gaussian profile, rounded up, is at least `wanted` at the points."""
    value, _, error = _gaussian(mu, losses)
    return bool(np.all(value + error >= wanted))


def _bisect(enough: Any, above: bool = True) -> float:
    """Least mu that is `enough` (above), or largest that is not; to a relative 1e-9, on that side."""
    low, high = 0.0, 1e-6
    while not enough(high):
        low, high = high, 4.0 * high
        if high > _MOST_MU:
            return math.inf if above else low
    if low == 0.0 and not above:
        return 0.0
    low, high = bisected(lambda mu: not enough(mu), low, high, 60)
    return float(high if above else low)


def _belief(prior: float, loss: float) -> float:
    return float(scipy.special.expit(math.log(prior) - math.log1p(-prior) + loss))
