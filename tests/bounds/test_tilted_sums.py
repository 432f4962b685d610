"""Tilted FFTs of sums against the sums themselves: every window, where lattices leave nothing to round."""

import math

import numpy as np
import pytest

from checkin_jax.kernels import elementary
from checkin_jax.numerics import tilted_sums
from checkin_jax.numerics.tilted_sums import LatticeSteps, Sum

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
        return Sum(((LatticeSteps(-4.0, 1.0, flat / flat.sum()), 40.0),))
    if name == "falling":
        return Sum(((LatticeSteps(0.0, 0.25, fall / fall.sum()), 12.0),))
    if name == "one":
        return Sum(((LatticeSteps(0.0, 0.25, fall / fall.sum()), 1.0),))
    return Sum(
        (
            (LatticeSteps(-4.0, 0.5, flat / flat.sum()), 20.0),
            (LatticeSteps(-0.5, 0.5, np.asarray([0.9, 0.1])), 30.0),
        )
    )


def _on_its_side(total: Sum, order: float, most: int, stride: int, upper: bool) -> None:
    found = tilted_sums._tilted(total, order, 0, most, stride, upper)
    above, excess = _tails(total, found.first + stride * np.arange(found.value.size))
    if upper:
        assert np.all(found.value >= excess * (1 - _OWN) - _TINY)
    else:
        assert np.all(found.value <= excess * (1 + _OWN) + _TINY)
        assert np.all(found.mass_lower <= above * (1 + _OWN) + _TINY)
        assert np.all(found.mass_upper >= above * (1 - _OWN) - _TINY)


def _sides_hold(total: Sum, order: float, most: int, stride: int) -> None:
    for upper in (True, False):
        _on_its_side(total, order, most, stride, upper)


@pytest.mark.parametrize("stride", [1, 4, 16])
@pytest.mark.parametrize("most", [16, 64, 1024])
@pytest.mark.parametrize("name", ["even", "falling", "one", "two kinds"])
def test_every_window_is_on_its_side(name, most, stride):
    total = _sum(name)
    sd = total.about(0.0)[1]
    for order in np.geomspace(0.05, 30.0, 14) / sd:
        _sides_hold(total, float(min(order, total.strongest)), most, stride)


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
    monkeypatch.setattr(elementary, "_FFT", 14.0 * 2**20)
    monkeypatch.setattr(tilted_sums, "_LEFT_OUT", 60.0)
    exact, rng = np.fft.rfft, np.random.default_rng(3)

    def wrong(values: np.ndarray, points: int) -> np.ndarray:
        turn = np.exp(2j * math.pi * rng.random(points // 2 + 1))
        turn[0] = turn[-1] = -1.0
        return exact(values, points) + 0.5 * elementary.of_fft(points) * np.sum(values) * turn

    monkeypatch.setattr(np.fft, "rfft", wrong)
    total = _sum(name)
    for order in np.geomspace(0.5, 16.0, 6) / total.about(0.0)[1]:
        _sides_hold(total, float(order), 1024, 1)


@pytest.mark.parametrize("name", ["even", "falling", "two kinds"])
def test_rounding_of_every_step_is_counted(name, monkeypatch):
    """Tilted masses that are all off by as much as they may be, with a unit so large that it shows."""
    unit = 2.0**-30
    monkeypatch.setattr(tilted_sums, "UNIT", unit)
    off, exact = 63.0 * unit, LatticeSteps.tilted
    total = _sum(name)
    for order in np.geomspace(0.5, 6.0, 5) / total.about(0.0)[1]:
        for upper in (True, False):
            wrong = 1.0 - off if upper else 1.0 + off
            with monkeypatch.context() as patch:
                patch.setattr(
                    LatticeSteps,
                    "tilted",
                    lambda steps, at, by=wrong: (by * exact(steps, at)[0], exact(steps, at)[1]),
                )
                _on_its_side(total, float(order), 1024, 1, upper)


@pytest.mark.parametrize("stride", [1, 4])
def test_errors_of_all_frequencies_may_add_up(stride):
    """A transform whose every error has the phase that is the worst at the first place."""
    points = 64
    kept, rng = np.arange(points // 2 + 1), np.random.default_rng(4)
    weights = rng.normal(size=kept.size) + 1j * rng.normal(size=kept.size)
    weights[[0, -1]] = weights[[0, -1]].real
    wrong = rng.random(kept.size)
    spectrum = tilted_sums._Spectrum(points, kept, wrong * np.exp(-1j * np.angle(weights)), wrong, 0.0)
    value, bound = tilted_sums._summed(spectrum, weights, 1.0, 0, stride)
    assert abs(value[0]) == pytest.approx(np.max(np.abs(value)))
    assert 0.999 * bound <= abs(value[0]) <= bound


def _counted_too_much(total: Sum, order: float, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By how much sums around the circle of `index` exceed E e^{-order (S-x)} 1{S > x} and E (S-x) e^{-order (S-x)}_+.

    For one step with spacing 1, whose law is tilted by e^{order s}.
    """
    (steps, _), *_ = total.kinds
    weight = steps.masses * np.exp(order * (steps.at - steps.at[-1]))
    weight /= weight.sum()
    ahead = np.arange(weight.size)[:, None] - index
    once = (ahead - 1) % index.size + 1.0
    turns = [once + index.size * turn for turn in range(60)]
    mass = np.exp(-order * once) / -math.expm1(-order * index.size)
    value = sum(away * np.exp(-order * away) for away in turns)
    counted = np.where(ahead > 0, np.exp(-order * np.maximum(ahead, 0)), 0.0)
    return weight @ (mass - counted), weight @ (value - np.maximum(ahead, 0) * counted)


def test_sums_elsewhere_are_bounded(monkeypatch):
    """A few atoms in a few wide cells of a circle that leaves some out and is not long: much is counted too much."""
    monkeypatch.setattr(tilted_sums, "_CELLS", 3)
    rng = np.random.default_rng(0)
    for trial in range(500):
        monkeypatch.setattr(tilted_sums, "_BEYOND", 25.0 if trial % 2 else 0.5)
        monkeypatch.setattr(tilted_sums, "_FADES", (0.5, 2.0)[trial // 2 % 2])
        masses = np.full(rng.integers(20, 120), 1e-12)
        masses[rng.integers(masses.size, size=rng.integers(1, 4))] += rng.random()
        total = Sum(((LatticeSteps(0.0, 1.0, masses / masses.sum()), 1.0),))
        tilt = tilted_sums._Tilt.of(total, float(np.exp(rng.uniform(-3.0, 0.5))))
        span = tilted_sums._Span.of(total, tilt, 128 if trial % 3 else 16, 1)
        index = span.first + np.arange(span.points)
        bounds = tilted_sums._elsewhere(total, tilt, span, index.astype(float))
        for true, bound in zip(_counted_too_much(total, tilt.order, index), bounds):
            assert np.all(true <= bound * (1 + 1e-9) + 1e-12)


@pytest.mark.parametrize("order", [2.0, 4.0])
def test_what_is_below_the_circle_is_taken_off(monkeypatch, order):
    """The circle begins where the tilted law is far from nothing."""
    monkeypatch.setattr(tilted_sums, "_BEYOND", 0.5)
    total = _sum("even")
    _sides_hold(total, order / total.about(0.0)[1], 64, 1)


def test_a_turn_around_the_circle_is_its_length(monkeypatch):
    """Nearly all mass at the first place of a circle of sixteen: its bound a turn later is sharp."""
    monkeypatch.setattr(tilted_sums, "_CELLS", 1)
    monkeypatch.setattr(tilted_sums, "_FADES", 0.5)
    masses = np.full(12, 1e-12)
    masses[0] = 1.0 - masses[1:].sum()
    total = Sum(((LatticeSteps(0.0, 1.0, masses), 1.0),))
    tilt = tilted_sums._Tilt.of(total, 1.0)
    span = tilted_sums._Span.of(total, tilt, 16, 1)
    index = np.arange(16)
    assert (span.first, span.points) == (0, 16)
    (true_mass, true_value) = _counted_too_much(total, 1.0, index)
    mass, value = tilted_sums._elsewhere(total, tilt, span, index.astype(float))
    assert np.all(true_mass <= mass)
    assert np.all(mass <= true_mass * 1.001 + 1e-7)
    assert np.all(true_value <= value)


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("name", ["even", "falling", "two kinds"])
def test_the_best_of_several_tilts_is_on_its_side(name, upper):
    total = _sum(name)
    mean, sd = total.about(0.0)
    found = tilted_sums.tail_of(total, (mean, mean + 6.0 * sd), False, 1024, upper)
    x = found.start + found.spacing * np.arange(found.value.size)
    above, excess = _tails(total, np.rint((x - total.least) / total.spacing).astype(int))
    if upper:
        assert np.all(found.value >= excess * (1 - _OWN))
        assert np.all(found.value <= excess * (1 + 1e-6) + _TINY)
        return
    assert np.all(found.value <= excess * (1 + _OWN))
    assert np.all(found.mass_lower <= above * (1 + _OWN))
    assert np.all(found.mass_upper >= above * (1 - _OWN))
    # Chernoff's bounds on mass outside the window cost little inside the interval.
    assert np.all(found.value[1:-1] >= 0.99 * excess[1:-1])


@pytest.mark.parametrize("lack", [-30.0, -15.0, -5.0, 2.0])
def test_a_large_term_outweighs_the_others_at_most_as_often(lack):
    """The probability that 40 centred terms exceed `lack`, from below; nearly certain far below the mean."""
    fall = np.exp(-0.9 * np.arange(40))
    fall /= fall.sum()
    centred = LatticeSteps(-0.25 * float(fall @ np.arange(40)), 0.25, fall)
    law = np.asarray(_law(Sum(((centred, 40.0),))), dtype=float)
    exact = float(law[40.0 * centred.start + 0.25 * np.arange(law.size) > lack].sum())
    found = tilted_sums.outweighs(centred, 41.0, 1.0, 2.0 - lack, 1.5)
    assert found <= exact * (1 + _OWN)
    assert found >= 0.99 * (lack <= -15.0)
