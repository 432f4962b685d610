"""Tilted FFTs of sums against the sums themselves: every window, where lattices leave nothing to round."""

import math

import numpy as np
import pytest

from checkin_jax.kernels import round_off
from checkin_jax.numerics import tilted_sums
from checkin_jax.numerics.tilted_sums import Steps, Sum

# Own rounding of the truth; what is smaller than any delta.
_OWN, _TINY = 1e-13, 1e-300


def _convolved(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    law = np.zeros(first.size + second.size - 1, dtype=np.longdouble)
    for i, mass in enumerate(second):
        law[i : i + first.size] += mass * first
    return law


def _law(total: Sum) -> np.ndarray:
    law = np.ones(1, dtype=np.longdouble)
    for steps, number in total.kinds:
        for _ in range(int(number)):
            law = _convolved(law, steps.masses.astype(np.longdouble))
    return law


def _tails(total: Sum, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pr[S > x] and E(S - x)_+ at lattice points x >= the least sum; sums of positive terms from the small end."""
    law = _law(total)
    above = np.append(np.cumsum(law[::-1])[::-1][1:], np.longdouble(0))
    excess = np.cumsum(above[::-1])[::-1] * np.longdouble(total.spacing)
    at = np.minimum(index, law.size - 1)
    return above[at], excess[at]


def _sum(name: str) -> Sum:
    rng = np.random.default_rng(5)
    flat = rng.random(9)
    fall = np.exp(-0.9 * np.arange(40))
    if name == "even":
        return Sum(((Steps(-4.0, 1.0, flat / flat.sum()), 40.0),))
    if name == "falling":
        return Sum(((Steps(0.0, 0.25, fall / fall.sum()), 12.0),))
    if name == "one":
        return Sum(((Steps(0.0, 0.25, fall / fall.sum()), 1.0),))
    return Sum(
        ((Steps(-4.0, 0.5, flat / flat.sum()), 20.0), (Steps(-0.5, 0.5, np.asarray([0.9, 0.1])), 30.0))
    )


@pytest.mark.parametrize("stride", [1, 4, 16])
@pytest.mark.parametrize("most", [16, 64, 1024])
@pytest.mark.parametrize("name", ["even", "falling", "one", "two kinds"])
def test_every_window_is_on_its_side(name, most, stride):
    total = _sum(name)
    sd = total.about(0.0)[1]
    for order in np.geomspace(0.05, 30.0, 14) / sd:
        for upper in (True, False):
            found = tilted_sums._tilted(total, float(min(order, total.strongest)), 0, most, stride, upper)
            above, excess = _tails(total, found.first + stride * np.arange(found.value.size))
            if upper:
                assert np.all(found.value >= excess * (1 - _OWN) - _TINY)
            else:
                assert np.all(found.value <= excess * (1 + _OWN) + _TINY)
                assert np.all(found.mass_lower <= above * (1 + _OWN) + _TINY)
                assert np.all(found.mass_upper >= above * (1 - _OWN) - _TINY)


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("name", ["even", "falling", "two kinds"])
def test_ends_nearly_meet_at_the_mean_of_a_tilt(name, stride):
    total = _sum(name)
    order = 3.0 / total.about(0.0)[1]
    lower, upper = (tilted_sums._tilted(total, order, 0, 1024, stride, side) for side in (False, True))
    place = round((total.about(order)[0] - total.least) / total.spacing)
    index = (place - upper.first) // stride
    assert lower.first == upper.first
    assert 0 < lower.value[index] <= upper.value[index] <= lower.value[index] * (1 + 1e-7)
    assert lower.mass_lower[index] <= lower.mass_upper[index] <= lower.mass_lower[index] * (1 + 1e-7)


def _sides_hold(total: Sum, order: float, most: int, stride: int) -> None:
    lower, upper = (tilted_sums._tilted(total, order, 0, most, stride, side) for side in (False, True))
    above, excess = _tails(total, upper.first + stride * np.arange(upper.value.size))
    assert np.all(upper.value >= excess * (1 - _OWN) - _TINY)
    assert np.all(lower.value <= excess * (1 + _OWN) + _TINY)
    assert np.all(lower.mass_lower <= above * (1 + _OWN) + _TINY)
    assert np.all(lower.mass_upper >= above * (1 - _OWN) - _TINY)


@pytest.mark.parametrize("name", ["even", "falling", "two kinds"])
def test_powers_left_out_are_counted(name, monkeypatch):
    """So many are left out here that it shows."""
    monkeypatch.setattr(tilted_sums, "_LEFT_OUT", 0.1)
    total = _sum(name)
    for order in np.geomspace(0.5, 16.0, 6) / total.about(0.0)[1]:
        _sides_hold(total, float(order), 1024, 1)


@pytest.mark.parametrize("name", ["even", "falling", "two kinds"])
def test_round_off_of_transforms_is_counted(name, monkeypatch):
    """Transforms that are a million times as wrong, half as much as they may be."""
    monkeypatch.setattr(round_off, "_FFT", 14.0 * 2**20)
    monkeypatch.setattr(tilted_sums, "_LEFT_OUT", 60.0)
    exact, rng = np.fft.rfft, np.random.default_rng(3)

    def wrong(values: np.ndarray, points: int) -> np.ndarray:
        turn = np.exp(2j * math.pi * rng.random(points // 2 + 1))
        turn[0] = turn[-1] = -1.0
        return exact(values, points) + 0.5 * round_off.of_fft(points) * np.sum(values) * turn

    monkeypatch.setattr(np.fft, "rfft", wrong)
    total = _sum(name)
    for order in np.geomspace(0.5, 16.0, 6) / total.about(0.0)[1]:
        _sides_hold(total, float(order), 1024, 1)
