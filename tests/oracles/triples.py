"""Other clients' Gaussian messages against two records, by plain quadrature; accurate, on neither side.

A client at y, records x and x', noise of unit variance: under y's law z = e^{u.W - |u|^2/2} and z' likewise with
v, u = x - y and v = x' - y. The centred term is d = (z - 1) - c (z' - 1).
"""

import numpy as np
from scipy.special import ndtr


def transforms(u: np.ndarray, v: np.ndarray, c: float, knots: np.ndarray, points: int = 4001) -> np.ndarray:
    """E(d - k)_+ and E(-d - k)_+ at the knots; [2, knots]. u and v must not be parallel."""
    b = float(np.linalg.norm(v))
    p = float(u @ v) / b
    q = float(np.sqrt(u @ u - p * p))
    omega = np.linspace(-12.0, 12.0 + b + abs(p), points)
    mass = np.exp(-0.5 * omega**2)
    mass /= mass.sum()
    forward, other = np.exp(p * omega - 0.5 * p * p), np.exp(b * omega - 0.5 * b * b)

    def call(strike: np.ndarray) -> np.ndarray:
        safe = np.where(strike > 0, strike, 1.0)
        at = np.log(forward / safe) / q + 0.5 * q
        inside = forward * ndtr(at) - safe * ndtr(at - q)
        return np.where(strike > 0, inside, forward - strike) @ mass

    def put(strike: np.ndarray) -> np.ndarray:
        safe = np.where(strike > 0, strike, 1.0)
        at = np.log(forward / safe) / q + 0.5 * q
        return np.where(strike > 0, safe * ndtr(q - at) - forward * ndtr(-at), 0.0) @ mass

    right = np.array([call(c * other + k + 1.0 - c) for k in knots])
    left = np.array([put(c * other + 1.0 - c - k) for k in knots])
    return np.stack([right, left])


def triangle(mu: float, a: float, b: float) -> tuple[np.ndarray, np.ndarray]:
    """u and v of the triangle of circumradius mu/2 with angles a at x and b at x', degrees."""
    a, b = np.radians(a), np.radians(b)
    long, short = mu * np.sin(b), mu * np.sin(a)
    return np.array([long, 0.0]), short * np.array([-np.cos(a + b), np.sin(a + b)])


def lattice_law(knots: np.ndarray, value: np.ndarray, step: float, low: int, high: int) -> np.ndarray:
    """Masses on step * (low .. high) of the law with E(d - k)_+ = value at these k, between them kept in the mean."""
    falls = np.diff(value) / np.diff(knots)
    assert np.allclose(knots, step * np.arange(low, high + 1))
    return np.diff(np.concatenate([[-1.0], falls, [0.0]]))


def sum_above(laws: list[tuple[np.ndarray, int]], low: int, rate: float, step: float, x: float) -> float:
    """E(x + S)_+, S a sum of independent terms: each of `laws` so many times, with probability rate, else 0."""
    size = 2**15
    total = np.ones(size, dtype=complex)
    for law, count in laws:
        wrapped = np.zeros(size)
        wrapped[np.arange(low, low + law.size) % size] = rate * law
        wrapped[0] += 1.0 - rate
        total *= np.fft.fft(wrapped) ** count
    mass = np.fft.ifft(total).real
    at = step * np.fft.fftfreq(size, 1.0 / size)
    return float(np.maximum(x + at, 0.0) @ mass)
