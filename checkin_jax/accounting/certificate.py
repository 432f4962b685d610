"""Certificates: data with which the independent program `checkin_jax.verify` checks both ends of a guarantee.

A certificate has the dominating profile of each unit at the knots of its composition, the numbers of units, and for the
lower end concrete pairs with profiles that are not above theirs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from checkin_jax._version import __version__
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.interface import (
    LocalMessages,
    LocalOnly,
    LocalPureLDP,
    Minimum,
    UnitBound,
    Values,
    Witness,
    neg_log_tail,
)
from checkin_jax.accounting.bounds.label_pairs import LabelSum, label_sum
from checkin_jax.accounting.bounds.messages.cover import Shuffled, UniformSlot
from checkin_jax.accounting.bounds.messages.one_step_bounds import (
    KaryBound,
    TotalVariationBound,
    most_total_variation,
)
from checkin_jax.accounting.bounds.profiles import Profile
from checkin_jax.accounting.bounds.select import whole_run
from checkin_jax.accounting.bounds.unequal.unequal_witness import UnequalScores
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.bracket import name_at
from checkin_jax.accounting.composition.search import SHRINK, Found, sides_above
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.kernels.execution.devices import float64
from checkin_jax.randomizers import (
    FiniteMechanism,
    HadamardResponse,
    KaryResponse,
    Laplace,
    OneBit,
    PureLDP,
    Rappor,
)

FORMAT = "checkin-jax certificate 2"
# Relative difference up to which a composed end counts as the guarantee's.
_SAME = 1e-12
# Bound on the rounding of a closed form; share of delta that all units may hold at infinite loss.
_EXACT, _NOTHING = 1e-14, 2.0**-36
# Bounds that are never below the exact profile of those of a kind, on the same unit.
_WEAKER: dict[type, tuple[type, ...]] = {
    KaryBound: (TotalVariationBound, Clones, LocalMessages, LocalPureLDP),
    TotalVariationBound: (Clones, LocalPureLDP),
    Clones: (LocalPureLDP,),
    LocalMessages: (LocalPureLDP,),
    LocalPureLDP: (),
}
# Margins of a lower end, and of profiles from below, for the rounding of their evaluation.
_SHOWN, _LOWERED = 1e-5, 1e-6
# Spacing where only the divergence at loss 0 counts.
_ANY = 1e-3
# Most multiples of the spacing up to the last knot that verify takes.
_MOST_PLACES = (1 << 19) - 1
Units = list[tuple[UnitBound, int]]


def certificate(guarantee: Guarantee) -> dict[str, Any]:
    """Certificate of the guarantee's ends, for `json.dump` and `checkin verify`.

    Numbers are float64 as hexadecimal text, exact. Profiles are those of the compositions, at multiples of one spacing.
    `model` names the pair if verify sums it itself; otherwise verify trusts the profile. The lower end may be below the
    guarantee's, up to what the pairs in `below` show. docs/guarantees.md lists the checks.

    Args:
      guarantee: a result of `account`.

    Raises:
      TypeError: `guarantee` is no Guarantee.
      ValueError: not a result of `account`; no finite epsilon; or the end was not found by composing profiles on a
        grid, so that they do not prove it.
    """
    if not isinstance(guarantee, Guarantee):
        raise TypeError(f"guarantee={type(guarantee).__name__}: expected a Guarantee")
    g = guarantee
    if g.asked is None or g.validity != "certified":
        raise ValueError("guarantee: expected one that `account` returned")
    if not math.isfinite(g.epsilon):
        raise ValueError(f"guarantee.epsilon={g.epsilon}: expected a finite one; there is nothing to check")
    how = {"relation": g.neighboring_relation, "client_rate": g.client_rate, "before": g.before}
    run = whole_run(g.protocol, g.randomizer, g.view, g.delta, bounds=g.bounds, **how)
    with float64():
        for units in (run.units, run.local_caps):
            composed = _composed(
                [(one, count) for one, count in units if one.largest_loss > 0 and count > 0], g
            )
            if composed is not None:
                lower, below = _below(run.units, g)
                claim = _claim(g, composed, lower)
                return {"format": FORMAT, "version": __version__, "claim": claim, **composed, **below}
    raise ValueError(
        f"guarantee.method={g.method!r}: expected an end found by composing profiles; "
        "this one is proved otherwise, and has no certificate"
    )


def _length(witness: Witness) -> int:
    """Length of the name: the name of one witness may begin with that of another."""
    return len(witness.name)


def _places(found: Found) -> float:
    return max(float(losses[-1] / losses[1]) for losses in found.losses)


def _claim(g: Guarantee, composed: dict[str, Any], lower: float) -> dict[str, Any]:
    return {
        "words": f"epsilon <= {g.epsilon!r} at delta {g.delta!r}, {g.neighboring_relation}, view {g.view!r}: "
        f"{g.protocol!r}, {g.randomizer!r}",
        "epsilon": g.epsilon.hex(),
        "lower": lower.hex(),
        "delta": float(g.delta).hex(),
        "units": sum(unit["count"] for unit in composed["units"]),
        "method": g.method,
        "lower_method": g.lower_method,
        "assumptions": list(g.assumptions),
    }


def _composed(units: Units, g: Guarantee) -> dict[str, Any] | None:
    """Spacing and units on the knots of the accountant; None if these do not prove the guarantee's end."""
    if not units:
        return None
    found = _knots(units, g)
    if found is None:
        return None
    spacing, indices = found
    described = []
    for (one, count), index in zip(units, indices):
        losses = np.array([_down(int(i) * Fraction(spacing)) for i in index])
        if isinstance(one, LocalPureLDP):
            # The accountant composes such units exactly, without the rounding margin of their profile.
            forward = np.array([one.rate * math.tanh(0.5 * one.epsilon0) * (1.0 + _EXACT), 0.0])
            backward = forward
        else:
            plus, minus = sides_above(one, losses)
            forward = _profile(losses, plus.far, float(plus.lost))
            backward = forward if minus is plus else _profile(losses, minus.far, float(minus.lost))
        # Smaller values are raised to this.
        least = g.delta * _NOTHING / sum(count for _, count in units)
        forward, backward = np.maximum(forward, least), np.maximum(backward, least)
        described.append(
            _described(name_at(one, losses), _model(one, losses, least), count, index, (forward, backward))
        )
    return {"spacing": float(spacing).hex(), "units": described}


def _described(
    name: str, model: dict[str, Any], count: int, index: np.ndarray, sides: Sequence[np.ndarray]
) -> dict[str, Any]:
    forward, backward = (_hexadecimal(side.tolist()) for side in sides)
    return {
        "bound": name,
        "model": _hexadecimal(model),
        "count": int(count),
        "knots": index.tolist(),
        "forward": forward,
        "backward": backward,
    }


def _hexadecimal(value: Any) -> Any:
    if isinstance(value, list):
        return [_hexadecimal(each) for each in value]
    if isinstance(value, dict):
        return {name: _hexadecimal(each) for name, each in value.items()}
    return value.hex() if isinstance(value, float) else value


def _below(units: Units, g: Guarantee) -> tuple[float, dict[str, Any]]:
    """Lower end, and the composition of concrete pairs that shows it; the guarantee's end, and none, without a grid.

    The end of the pairs may be below the guarantee's, whose events are finer.
    """
    named = [
        (
            max((each for each in one.witnesses if each.name in g.lower_method), key=_length, default=None),
            count,
        )
        for one, count in units
    ]
    used = sum(count for witness, count in named if witness is not None)
    if not used or not 0.0 < g.lower < math.inf:
        return float(g.lower), {}
    tail = neg_log_tail(used, g.delta)
    witnesses = [
        (label_sum(witness, tail) or witness, count) for witness, count in named if witness is not None
    ]
    found, reverse = compose.knots_below(witnesses, g.delta)
    if _places(found) > _MOST_PLACES:
        witnesses = [
            (
                dataclasses.replace(one, follows_outcomes=False)
                if isinstance(one, LabelSum | UnequalScores)
                else one,
                count,
            )
            for one, count in witnesses
        ]
        found, reverse = compose.knots_below(witnesses, g.delta)
    lower = min(float(g.lower), found.epsilon * (1.0 - _SHOWN))
    if not lower > 0.0 or _places(found) > _MOST_PLACES:
        return float(g.lower), {}
    spacing = float(found.losses[0][1]) * SHRINK
    described = []
    for (one, count), at, masses in zip(witnesses, found.losses, np.asarray(found.atoms.masses)):
        last = len(at) - 1
        near, far = masses[last + 1 :], masses[:last][::-1]
        sides = [
            _profile(at * SHRINK, near * np.exp(-at[1:] * SHRINK), 0.0) * (1.0 - _LOWERED),
            _profile(at * SHRINK, far, 0.0) * (1.0 - _LOWERED),
        ]
        model = one.model(reverse) if isinstance(one, LabelSum) else {"kind": "trusted"}
        index = np.rint(at * SHRINK / spacing).astype(np.int64)
        described.append(_described(one.name, model, count, index, sides))
    return lower, {"below": {"spacing": spacing.hex(), "units": described}}


def _knots(units: Units, g: Guarantee) -> tuple[float, list[np.ndarray]] | None:
    """Spacing, and the multiples of it that are the knots of each unit; None if there is no grid."""
    if all(isinstance(one, LocalPureLDP) and one == units[0][0] for one, _ in units):
        if compose.upper_end(units, g.delta).upper > g.epsilon * (1.0 + _SAME):
            return None
        # The profile is linear in e^loss up to the largest loss: two knots suffice.
        return units[0][0].largest_loss, [np.arange(2)] * len(units)
    if sum(count for _, count in units) == 1:
        one = units[0][0]
        if float(np.max(np.asarray(one.upper(np.full(32, g.epsilon))))) > g.delta:
            return None
        return g.epsilon or _ANY, [np.arange(2)]
    best, losses = compose.knots(units, g.delta)
    if best.upper > g.epsilon * (1.0 + _SAME):
        return None
    if best.method == "total variation":
        # Divergences at loss 0, of which the other knot shows nothing, add up to less than delta.
        return _ANY, [np.arange(2)] * len(units)
    indices = [np.rint(at / losses[0][1]).astype(np.int64) for at in losses]
    # Of no last knot below the accountant's, at which the profile may be that of the largest loss, 0.
    spacing = max(_up(Fraction(at[-1]) / int(index[-1])) for at, index in zip(losses, indices))
    on_grid = all(
        np.allclose(index * spacing, at, rtol=1e-12, atol=0.0) for index, at in zip(indices, losses)
    )
    return (spacing, indices) if on_grid else None


def _down(exact: Fraction) -> float:
    """Largest float64 that is not above the number."""
    found = float(exact)
    return found if Fraction(found) <= exact else math.nextafter(found, 0.0)


def _up(exact: Fraction) -> float:
    """Smallest float64 that is not below the number."""
    found = float(exact)
    return found if Fraction(found) >= exact else math.nextafter(found, math.inf)


def _profile(losses: np.ndarray, far: Values, lost: float) -> np.ndarray:
    """Convex profile, at the knots, of masses under the second measure, and of one under the first at infinite loss."""
    slopes = np.cumsum(np.asarray(far)[::-1])[::-1]
    falls = slopes * np.exp(losses[:-1]) * np.expm1(np.diff(losses))
    return np.append(lost + np.cumsum(falls[::-1])[::-1], lost)


def _model(one: UnitBound, losses: np.ndarray, least: float) -> dict[str, Any]:
    """Description of a pair that is below the bound, or below `least`, at all losses, if verify can sum its profile."""
    if isinstance(one, LocalOnly):
        return _model(one.local, losses, least)
    bounds = one.bounds if isinstance(one, Minimum) else (one,)
    for kind, weaker in _WEAKER.items():
        model = next((_exact(each) for each in bounds if isinstance(each, kind)), None)
        if model is None:
            continue
        known = [i for i, each in enumerate(bounds) if isinstance(each, (kind, *weaker))]
        if not isinstance(one, Minimum) or len(known) == len(bounds):
            return model
        values = np.maximum(one.values(losses), least)
        if (values[known].min(axis=0) <= values.min(axis=0)).all():
            return model
    return {"kind": "trusted"}


def _exact(one: UnitBound) -> dict[str, Any] | None:
    """The pair whose profile the bound is; None for others."""
    if isinstance(one, LocalPureLDP):
        return _clones(Shuffled(1, one.rate), one.epsilon0, 2)
    if isinstance(one, LocalMessages):
        return _one_message(one.profile, one.rate)
    if not isinstance(one, KaryBound | TotalVariationBound | Clones):
        return None
    cover = one.cover if isinstance(one, Clones) else one.step_cover
    # Covers that are made of these have sums of their own.
    if not isinstance(cover, Shuffled | UniformSlot) or type(cover) not in (Shuffled, UniformSlot):
        return None
    if isinstance(one, TotalVariationBound) and one.total_variation < most_total_variation(one.epsilon0):
        model = _clones(cover, one.epsilon0, 2) | {"total_variation": one.total_variation}
        return model | {"kind": "total variation"} if model["rate"] == 1.0 else None
    return _clones(cover, one.epsilon0, one.num_values if isinstance(one, KaryBound) else 2)


def _one_message(profile: Profile, rate: float) -> dict[str, Any] | None:
    """The pair of one message of a known law, sent at this rate."""
    randomizer = getattr(profile, "randomizer", None)
    if isinstance(randomizer, KaryResponse):
        return _clones(Shuffled(1, rate), randomizer.epsilon0, randomizer.num_values)
    if isinstance(randomizer, FiniteMechanism):
        laws = [{"masses": list(row)} for row in randomizer.probabilities]
        return {"kind": "laws", "rate": rate, "laws": laws}
    if isinstance(randomizer, Laplace):
        return {"kind": "Laplace", "rate": rate, "epsilon0": randomizer.epsilon0}
    if isinstance(randomizer, HadamardResponse | OneBit | PureLDP | Rappor):
        # Binary randomized response, sent more rarely, has the same profile.
        share = float(randomizer.profile(np.zeros(1))[0]) / math.tanh(0.5 * randomizer.epsilon0)
        return _clones(Shuffled(1, rate * share), randomizer.epsilon0, 2)
    return None


def _clones(cover: Shuffled | UniformSlot, epsilon0: float, values: int) -> dict[str, Any]:
    shuffled = isinstance(cover, Shuffled)
    return {
        "kind": "clones",
        "draws": int(cover.num_clients if shuffled else cover.slots),
        "rate": cover.rate if shuffled else 1.0,
        "used": cover.use_prob,
        "epsilon0": epsilon0,
        "values": values,
    }
