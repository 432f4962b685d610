"""Random check-ins' dummy updates, step sizes and risk bounds; no privacy here.

Convex losses, L-Lipschitz, on a set of diameter R in p dimensions; a message carries Gaussian noise of standard deviation s
per coordinate. Arguments broadcast; plain float64 arrays and `PublishedBound`s come back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from checkin_jax.accounting.published import record
from checkin_jax.accounting.published.record import PublishedBound

_RISK = (
    "the order is the paper's; the constants are those of Shamir and Zhang (2013), Theorem 2, "
    "for steps c/sqrt(i) and the last iterate"
)


def _positive(**value: ArrayLike) -> np.ndarray:
    return record.reals(0, np.inf, open_low=True, open_high=True, **value)


def _noise(**value: ArrayLike) -> np.ndarray:
    return record.reals(0, np.inf, open_high=True, **value)


def fixed_window_dummies(
    num_clients: ArrayLike, num_slots: ArrayLike, check_in_prob: ArrayLike = 1.0
) -> PublishedBound:
    """[RCI] Proposition 3.4 (P12): expected dummy updates of A_fix, m (1 - p_0/m)^n (the exponent's place is misprinted).

    Args:
      num_clients: n, 1 to 1e12. num_slots: m, 1 to 1e12. check_in_prob: p_0 in (0, 1].

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    n, m = record.clients(num_clients), record.wholes(1, record.MAX_CLIENTS, num_slots=num_slots)
    p0 = record.reals(0, 1, open_low=True, check_in_prob=check_in_prob)
    record.broadcast(num_clients=n, num_slots=m, check_in_prob=p0)
    with np.errstate(divide="ignore"):
        value = m * np.exp(n * np.log1p(-p0 / m))
    return PublishedBound(
        value=value, label="Proposition 3.4", source=record.RCI, quantity="expected dummies", direction="exact"
    )


def sliding_window_dummies(num_clients: ArrayLike, num_slots: ArrayLike) -> PublishedBound:
    """[RCI] Proposition 4.4 (P12): expected dummy updates of A_sldw, (n - m + 1)(1 - 1/m)^m, at most (n - m + 1)/e.

    Args:
      num_clients: n, 1 to 1e12. num_slots: the window m, at most n.

    Raises:
      ValueError, TypeError: an argument outside its range, m > n, or shapes that do not broadcast.
    """
    n, m = record.clients(num_clients), record.wholes(1, record.MAX_CLIENTS, num_slots=num_slots)
    record.broadcast(num_clients=n, num_slots=m)
    if (m > n).any():
        raise ValueError(f"num_slots={float(m.max())!r}: expected at most num_clients={float(n.min())!r}")
    with np.errstate(divide="ignore"):
        value = (n - m + 1) * np.exp(m * np.log1p(-1 / m))
    return PublishedBound(
        value=value, label="Proposition 4.4", source=record.RCI, quantity="expected dummies", direction="exact"
    )


def fixed_window_steps(
    num_clients: ArrayLike,
    num_slots: ArrayLike,
    check_in_prob: ArrayLike,
    *,
    step: ArrayLike,
    diameter: ArrayLike = 1.0,
    lipschitz: ArrayLike = 1.0,
    dimension: ArrayLike = 1.0,
    noise: ArrayLike = 0.0,
) -> np.ndarray:
    """[RCI] Theorem 3.5 (P12): the step size R (1 - 2 e^{-n p_0/m}) / sqrt((p s^2 + L^2) i) of A_fix at step i >= 1.

    Args:
      num_clients, num_slots, check_in_prob: n, m, p_0 with n p_0 > m log 2 (otherwise the theorem has no step).
      step: i, 1 to m. diameter, lipschitz, dimension: R, L, p > 0. noise: s >= 0.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """
    n, m = record.clients(num_clients), record.wholes(1, record.MAX_CLIENTS, num_slots=num_slots)
    p0 = record.reals(0, 1, open_low=True, check_in_prob=check_in_prob)
    i = record.wholes(1, record.MAX_CLIENTS, step=step)
    share = 1 - 2 * np.exp(-n * p0 / m)
    if (share <= 0).any():
        load = float(np.min(n * p0 / m))
        raise ValueError(f"num_clients * check_in_prob / num_slots={load:g}: expected above log 2")
    size = _positive(dimension=dimension) * _noise(noise=noise) ** 2 + _positive(lipschitz=lipschitz) ** 2
    return _positive(diameter=diameter) * share / np.sqrt(size * i)


def averaged_updates_steps(
    num_clients: ArrayLike,
    num_slots: ArrayLike,
    *,
    step: ArrayLike,
    diameter: ArrayLike = 1.0,
    lipschitz: ArrayLike = 1.0,
    dimension: ArrayLike = 1.0,
    noise: ArrayLike = 0.0,
) -> np.ndarray:
    """[RCI] Theorem 4.2 (P12): the step size R sqrt(n) / sqrt((m p s^2 + n L^2) i) of A_avg at step i >= 1.

    Arguments and errors as `fixed_window_steps`.
    """
    n, m = record.clients(num_clients), record.wholes(1, record.MAX_CLIENTS, num_slots=num_slots)
    i = record.wholes(1, record.MAX_CLIENTS, step=step)
    noisy = m * _positive(dimension=dimension) * _noise(noise=noise) ** 2
    return _positive(diameter=diameter) * np.sqrt(n / ((noisy + n * _positive(lipschitz=lipschitz) ** 2) * i))


def _last_iterate(num_slots: np.ndarray, diameter: np.ndarray, first_step: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """(R^2/c + c G^2) (2 + log m) / sqrt(m): [SZ13] Theorem 2 with steps c/sqrt(i) and E|gradient|^2 <= G^2."""
    return (diameter**2 / first_step + first_step * moment) * (2 + np.log(num_slots)) / np.sqrt(num_slots)


def fixed_window_risk(
    num_clients: ArrayLike,
    num_slots: ArrayLike,
    check_in_prob: ArrayLike,
    *,
    diameter: ArrayLike = 1.0,
    lipschitz: ArrayLike = 1.0,
    dimension: ArrayLike = 1.0,
    noise: ArrayLike = 0.0,
) -> PublishedBound:
    """Excess risk of A_fix's last iterate under Theorem 3.5's steps (P12), O(R sqrt(p s^2 + L^2) log m / sqrt(m)).

    A slot moves by a dummy with probability (1 - p_0/m)^n, which scales the expected gradient by the rest; that rest divides.
    The paper gives the order; see `reason` for the constants. Arguments and errors as `fixed_window_steps`.
    """
    shared = dict(diameter=diameter, lipschitz=lipschitz, dimension=dimension, noise=noise)
    first = fixed_window_steps(num_clients, num_slots, check_in_prob, step=1, **shared)
    n, m, p0 = (np.asarray(v, dtype=np.float64) for v in (num_clients, num_slots, check_in_prob))
    with np.errstate(divide="ignore"):
        used = -np.expm1(n * np.log1p(-p0 / m))
    moment = np.asarray(dimension) * np.square(noise) + np.square(lipschitz)
    value = _last_iterate(m, np.asarray(diameter), first, moment) / used
    return PublishedBound(
        value=value,
        label="Theorem 3.5",
        source=f"{record.RCI}; {record.SZ}",
        quantity="excess risk",
        validity="estimate",
        reason=_RISK,
    )


def averaged_updates_risk(
    num_clients: ArrayLike,
    num_slots: ArrayLike,
    *,
    diameter: ArrayLike = 1.0,
    lipschitz: ArrayLike = 1.0,
    dimension: ArrayLike = 1.0,
    noise: ArrayLike = 0.0,
) -> PublishedBound:
    """Excess risk of A_avg's last iterate under Theorem 4.2's steps (P12), O(R sqrt(m p s^2 + n L^2) log m / sqrt(n m)).

    The second moment of an averaged update is taken as m p s^2 / n + L^2, as the step size does. The paper gives the
    order; see `reason` for the constants. Arguments and errors as `fixed_window_steps`.
    """
    shared = dict(diameter=diameter, lipschitz=lipschitz, dimension=dimension, noise=noise)
    first = averaged_updates_steps(num_clients, num_slots, step=1, **shared)
    n, m = np.asarray(num_clients, dtype=np.float64), np.asarray(num_slots, dtype=np.float64)
    moment = m * np.asarray(dimension) * np.square(noise) / n + np.square(lipschitz)
    return PublishedBound(
        value=_last_iterate(m, np.asarray(diameter), first, moment),
        label="Theorem 4.2",
        source=f"{record.RCI}; {record.SZ}",
        quantity="excess risk",
        validity="estimate",
        reason=_RISK,
    )
