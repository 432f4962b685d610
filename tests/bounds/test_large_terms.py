"""Cut weights where terms have heavy tails: T*'s law by quadrature, events of the messages, all one-sided."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from oracles.t_star import gaussian_profile
from scipy.special import ndtr

from checkin_jax.accounting.bounds.messages import left_out_chain
from checkin_jax.accounting.bounds.messages.left_out_chain import CutWeights, Terms
from checkin_jax.accounting.bounds.profiles import GaussianProfile

pytestmark = pytest.mark.usefixtures("x64")
MASS = math.log(1e6) + 17.0
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
Function = Callable[[np.ndarray], np.ndarray]


def log_bend(mu: float, loss: np.ndarray) -> np.ndarray:
    """log of the profile's second derivative at c = e^loss, exp(-(mu/2 + loss/mu)^2 / 2) / (sqrt(2 pi) c mu)."""
    return -0.5 * (0.5 * mu + loss / mu) ** 2 - 0.5 * math.log(2.0 * math.pi) - loss - math.log(mu)


def integral(f: Function, low: float, high: float, log_density: Function, width: float) -> float:
    if high <= low:
        return 0.0
    ends = np.linspace(low, high, math.ceil((high - low) / width) + 1)
    half = 0.5 * np.diff(ends)[:, None]
    at = ends[:-1, None] + half * (1.0 + NODES)
    return float((f(at) * np.exp(log_density(at)) * half * WEIGHTS).sum())


def mean(f: Function, mu: float, c: float, kinks: list[float], width: float) -> float:
    """E f(tau) 1{tau > kinks[0]}, kinks[0] >= 0, rising: T*'s law by second derivatives, and its atom at c - 1."""
    top, far = math.log(c), mu * (0.5 * mu + 38.0)
    # tau < c - 1, tau = c (1 - e^-l): (c - k) D(c / (c - k)) bends by D''(e^l) e^2l / (c - k).
    inside = [-math.log1p(-k / c) for k in kinks if k < c - 1.0] + [top]
    # tau > c - 1, tau = e^l - 1: D''(1 + k).
    outside = [max(math.log1p(kinks[0]), top), *(math.log1p(k) for k in kinks[1:] if k > c - 1.0)]
    outside.append(max(outside[-1], min(top + far, 600.0)))
    total = sum(
        integral(lambda l: f(-c * np.expm1(-l)), a, b, lambda l: log_bend(mu, l) + 2.0 * l, width)
        for a, b in pairwise(inside)
    )
    total += sum(
        integral(lambda l: f(np.expm1(l)), a, b, lambda l: log_bend(mu, l) + l, width)
        for a, b in pairwise(outside)
    )
    if kinks[0] < c - 1.0:
        atom = float(gaussian_profile(mu)(np.array(c))) + (c - 1.0) * float(ndtr(-0.5 * mu - top / mu))
        total += atom * float(f(np.array([c - 1.0]))[0])
    return total


def mean_below(f: Function, mu: float, c: float, width: float) -> float:
    """E f(-tau) 1{tau < 0}: c D(1 + k/c) bends by D''(1 + k/c) / c; -tau = c (e^l - 1)."""
    far = min(mu * (0.5 * mu + 38.0), 300.0)
    return integral(lambda l: f(c * np.expm1(l)), 0.0, far, lambda l: log_bend(mu, l) + l, width)


def growing(tilt: float, rho: float, top: float = math.inf) -> Function:
    """g(tilt min(rho u, top)), g(u) = e^u - 1 - u."""

    def g(u: np.ndarray) -> np.ndarray:
        v = tilt * np.minimum(rho * u, top)
        small = np.clip(v, -1e-3, 1e-3)
        series = 0.5 * small**2 * (1.0 + small / 3.0 + small**2 / 12.0)
        return np.where(np.abs(v) < 1e-3, series, np.expm1(v) - v)

    return g


def weighed(mu: float, y: float) -> Function:
    """u D(y/u), one message told."""
    delta = GaussianProfile(mu).delta

    def f(u: np.ndarray) -> np.ndarray:
        b = y / u
        told = delta(np.abs(np.log(b)))
        return u * np.where(b >= 1.0, told, 1.0 - b + b * told)

    return f


CASES = [
    (mu, c)
    for mu in (0.1, 0.5, 2.0, 8.0, 16.0)
    for c in (1.0 + 1e-7, 1.02, 3.0, math.exp(20.0))
    if mu > 1.0 or c < 2.0
]


def terms(mu: float, c: float) -> tuple[Terms, float]:
    """Terms at this c, and a width for quadrature."""
    far = min(mu * (0.5 * mu + 9.0), 250.0)
    return Terms.of(GaussianProfile(mu), np.array([c]), math.exp(far)), min(mu, 1.0) / 8.0


@pytest.mark.parametrize(("mu", "c"), CASES)
@pytest.mark.thorough(but=4)
def test_one_large_term_is_above_quadrature(mu, c):
    made, width = terms(mu, c)
    total = mean(lambda u: u, mu, c, [1e-18], width)
    assert math.isclose(total, mean_below(lambda u: u, mu, c, width), rel_tol=1e-6)
    assert total * (1.0 - 1e-12) <= made.at_zero[0] <= total * (1.0 + 1e-6)
    tight = []
    for y in (0.5, 4.0, 300.0):
        f = weighed(mu, y)
        value = made.one(f(made.places)[None, :])[0]
        for place in range(10, len(made.places) - 1, max(len(made.places) // 6, 1)):
            truth = mean(f, mu, c, [float(made.places[place])], width)
            assert value[place] >= truth * (1.0 - 1e-7)
            if truth > 1e-9:
                tight.append(value[place] / truth)
    assert np.median(tight) < 1.2


@pytest.mark.parametrize(("mu", "c"), CASES)
@pytest.mark.thorough(but=4)
def test_growth_is_above_quadrature_for_every_smaller_weight(mu, c):
    made, width = terms(mu, c)
    smaller = np.append(1.0, np.exp(-np.linspace(0.0999, 12.0, 6)))
    tight = []
    for row in range(0, len(left_out_chain._TILTS), 5):
        a = left_out_chain._TILTS[row]
        for place in range(15, len(made.places), max(len(made.places) // 4, 1)):
            largest = 0.0
            for rho in smaller / made.places[place]:
                right = mean(growing(a, rho, 1.0), mu, c, [1e-18, 1.0 / rho], width)
                left = mean_below(growing(-a, rho), mu, c, width)
                largest = max(largest, (right + left) / rho)
            # At the place itself and just below it the step's factor is room.
            assert made.growth[row, 0, place] >= largest * (1.0 + 1e-4)
            tight.append(made.growth[row, 0, place] / largest)
    assert min(tight) < 1.3


def cells(at: float, edges: np.ndarray) -> np.ndarray:
    """Masses of N(at, 1) between edges, and beyond them."""
    low, high = ndtr(edges - at), ndtr(at - edges)
    inner = np.where(edges[:-1] > at, high[:-1] - high[1:], low[1:] - low[:-1])
    return np.concatenate([low[:1], inner, high[-1:]])


def events(a: np.ndarray, b: np.ndarray, others: list[np.ndarray], counts: list[int], c: float) -> float:
    """H_c, from below, of a sum over the messages modulo 2^14: of their terms, rounded and cut, any order of them."""
    size, n = 2**14, sum(counts) + 1
    h = sum(count * law for count, law in zip(counts, others)) / (n - 1)
    term = (a - c * b) / np.maximum(h, 1e-300) + c - 1.0
    far = n * (c - 1.0)
    deviation = math.sqrt(n * float(h @ np.clip(term, -far, far) ** 2))
    cut = 1.5 * far + 4.0 * deviation
    shown = np.rint(np.clip(term, -cut, cut) * size / (2.0 * cut + 12.0 * deviation)).astype(int) % size
    target, other, *rest = (np.fft.rfft(np.bincount(shown, law, size)) for law in (a, b, *others))
    whole = np.prod([each**count for each, count in zip(rest, counts)], axis=0)
    p, q = (np.fft.irfft(each * whole, size) for each in (target, other))
    # Rounding of the transforms.
    return float(np.maximum(p - c * q - 1e-15 * (1.0 + c), 0.0).sum())


@pytest.mark.parametrize(
    ("n", "mu", "whole"),
    [(2, 3.2, 0), (11, 4.0, 0), (11, 4.0, 11 * 2**20), (215, 4.0, 0), (6075, 0.21, 0), (6075, 1.4, 2**20)],
)
@pytest.mark.thorough(but=3)
def test_links_are_above_events_wherever_the_others_are(n, mu, whole):
    """All at one record, half at each, and across: a link of its own, and one of a longer chain."""
    link = CutWeights(n, GaussianProfile(mu), MASS, whole=whole)
    edges = np.linspace(-0.5 * mu - 6.0, 0.5 * mu + 6.0, 200)
    a, b = cells(0.5 * mu, edges), cells(-0.5 * mu, edges)
    near, across = np.linspace(-0.5 * mu - 5.0, 0.5 * mu + 5.0, 40), np.linspace(-5.0, 0.5 * mu + 5.0, 30)
    plane = [
        np.outer(cells(x, near), cells(y, across)).ravel()
        for x, y in ((0.5 * mu, 0.0), (-0.5 * mu, 0.0), (0.0, 0.5 * mu))
    ]
    m = n - 1
    views = [
        (a, b, [b], [m]),
        (a, b, [a], [m]),
        (a, b, [a, b], [m // 2, m - m // 2]),
        (*plane[:2], plane[2:], [m]),
    ]
    ratios = []
    for loss in np.geomspace(0.002 if mu < 1.0 else 0.3, 0.05 if mu < 1.0 else 3.0, 6):
        value = float(link.upper(np.array([loss]))[0])
        for p, q, others, counts in views:
            for pair in ((p, q), (q, p)):
                ratios.append(events(*pair, others, counts, math.exp(loss)) / value)
    assert max(ratios) <= 1.0
    if n < 1000:
        assert max(ratios) > 0.5
        # Wrong neighbour: the same with fifty times as many clients.
        more = float(CutWeights(10**6, GaussianProfile(0.5 * mu), MASS).upper(np.array([1.0]))[0])
        assert more < events(a, b, [a], [m], math.e)
