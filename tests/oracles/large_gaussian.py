"""G1 for any number of clients: its float64 profile on a grid."""

import numpy as np
from scipy.special import ndtr

from .gaussian import View
from .large import binomial_window


def g1_profile_on_grid(
    num_clients: int, check_in_prob: float, mu: float, losses: np.ndarray, view: View
) -> np.ndarray:
    """G1 at c = e^loss for losses of both signs, float64, absolute error about 1e-16."""
    magnitudes, total = np.abs(losses), np.zeros(len(losses))
    for k, mass in zip(*binomial_window(num_clients, check_in_prob, cut=1e-25)):
        if k > 0:
            share, mu_k = k / num_clients, mu / np.sqrt(k) if view == "aggregate" else mu
            inner = np.log1p(np.expm1(magnitudes) / share)
            upper = ndtr(mu_k / 2 - inner / mu_k)
            total += mass * share * (upper - np.exp(inner) * ndtr(-mu_k / 2 - inner / mu_k))
    return np.where(losses >= 0, total, -np.expm1(losses) + np.exp(losses) * total)
