"""Certificates: data with which the independent program `checkin_jax.verify` checks the upper end of a guarantee.

A certificate has the dominating profile of each unit at the knots of its composition, and the numbers of units.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from checkin_jax._version import __version__
from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.interface import LocalOnly, LocalPureLDP, UnitBound
from checkin_jax.accounting.bounds.messages.cover import Shuffled, UniformSlot
from checkin_jax.accounting.bounds.select import whole_run
from checkin_jax.accounting.composition import compose
from checkin_jax.accounting.composition.laws import sides_above
from checkin_jax.accounting.composition.single import name_at
from checkin_jax.accounting.guarantee import Guarantee
from checkin_jax.kernels.composition import pld
from checkin_jax.kernels.execution.devices import float64

FORMAT = "checkin-jax certificate 1"
# Relative difference up to which an end on a grid counts as the guarantee's.
_SAME = 1e-12
# Bound on the rounding of a closed form; share of delta that all units may hold at infinite loss.
_EXACT, _NOTHING = 1e-14, 2.0**-36
Units = list[tuple[UnitBound, int]]


def certificate(guarantee: Guarantee) -> dict[str, Any]:
    """Certificate of the guarantee's upper end, for `json.dump` and `checkin verify`.

    Numbers are float64 as hexadecimal text, exact. Profiles are those of the composition, at multiples of one spacing.
    `model` names the pair if verify sums it itself; otherwise verify trusts the bound. docs/guarantees.md lists its
    checks.

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
                return {"format": FORMAT, "version": __version__, "claim": _claim(g, composed), **composed}
    raise ValueError(
        f"guarantee.method={g.method!r}: expected an end found by composing profiles on a grid; "
        "this one is proved otherwise, and has no certificate"
    )


def _claim(g: Guarantee, composed: dict[str, Any]) -> dict[str, Any]:
    return {
        "words": f"epsilon <= {g.epsilon!r} at delta {g.delta!r}, {g.neighboring_relation}, view {g.view!r}: "
        f"{g.protocol!r}, {g.randomizer!r}",
        "epsilon": g.epsilon.hex(),
        "lower": float(g.lower).hex(),
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
        losses = np.array([_below(int(i) * Fraction(spacing)) for i in index])
        if isinstance(one, LocalPureLDP):
            # The accountant composes such units exactly, without the rounding margin of their profile.
            forward = np.array([one.rate * math.tanh(0.5 * one.epsilon0) * (1.0 + _EXACT), 0.0])
            backward = forward
        else:
            plus, minus = sides_above(one, losses)
            forward = _profile(losses, plus)
            backward = forward if minus is plus else _profile(losses, minus)
        # Smaller values are raised to this.
        least = g.delta * _NOTHING / sum(count for _, count in units)
        forward, backward = np.maximum(forward, least), np.maximum(backward, least)
        described.append(
            {
                "bound": name_at(one, losses),
                "model": _model(one),
                "count": int(count),
                "knots": [int(i) for i in index],
                "forward": [float(value).hex() for value in forward],
                "backward": [float(value).hex() for value in backward],
            }
        )
    return {"spacing": float(spacing).hex(), "units": described}


def _knots(units: Units, g: Guarantee) -> tuple[float, list[np.ndarray]] | None:
    """Spacing, and the multiples of it that are the knots of each unit; None if there is no grid."""
    if all(isinstance(one, LocalPureLDP) and one == units[0][0] for one, _ in units):
        # The profile is linear in e^loss up to the largest loss: two knots suffice.
        return units[0][0].largest_loss, [np.arange(2)] * len(units)
    if sum(count for _, count in units) == 1:
        one = units[0][0]
        spacing = g.epsilon if g.epsilon > 0 else 1e-3
        if float(np.max(np.asarray(one.upper(np.full(32, g.epsilon))))) > g.delta:
            return None
        return spacing, [np.arange(2)]
    best, losses = compose.knots(units, g.delta)
    if best.upper > g.epsilon * (1.0 + _SAME) or best.method == "total variation":
        return None
    spacing = float(losses[0][1])
    indices = [np.rint(at / spacing).astype(np.int64) for at in losses]
    on_grid = all(
        np.allclose(index * spacing, at, rtol=1e-12, atol=0.0) for index, at in zip(indices, losses)
    )
    return (spacing, indices) if on_grid else None


def _below(exact: Fraction) -> float:
    """Largest float64 that is not above the number."""
    found = float(exact)
    return found if Fraction(found) <= exact else math.nextafter(found, 0.0)


def _profile(losses: np.ndarray, side: pld.Side) -> np.ndarray:
    """Convex profile, at the knots, of the masses of the composition."""
    slopes = np.cumsum(np.asarray(side.far)[::-1])[::-1]
    falls = slopes * np.exp(losses[:-1]) * np.expm1(np.diff(losses))
    lost = float(side.lost)
    return np.append(lost + np.cumsum(falls[::-1])[::-1], lost)


def _model(one: UnitBound) -> dict[str, Any]:
    """Description of the pair whose exact profile the bound is, if verify knows it."""
    if isinstance(one, LocalOnly):
        return _model(one.local)
    cover = one.cover if isinstance(one, Clones) else None
    if isinstance(one, Clones) and isinstance(cover, Shuffled):
        model: dict[str, Any] = {"kind": "shuffled", "clients": int(cover.num_clients), "rate": cover.rate}
        model["epsilon0"] = one.epsilon0
    elif isinstance(one, Clones) and isinstance(cover, UniformSlot):
        model = {"kind": "slots", "slots": int(cover.slots), "used": cover.use_prob, "epsilon0": one.epsilon0}
    elif isinstance(one, LocalPureLDP):
        # One client alone.
        model = {"kind": "shuffled", "clients": 1, "rate": one.rate, "epsilon0": one.epsilon0}
    else:
        model = {"kind": "trusted"}
    return {name: value.hex() if isinstance(value, float) else value for name, value in model.items()}
