"""Dummy updates, step sizes and risk bounds of random check-ins [RCI]; no privacy bounds. Arguments broadcast."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike

from checkin_jax import _validate
from checkin_jax.accounting.published import formula
from checkin_jax.accounting.published.formula import PublishedBound

_RISK = (
    "the order is the paper's; the constants are those of Shamir and Zhang (2013), Theorem 2, "
    "for steps c/sqrt(i) and the last iterate"
)
_SMOOTH_RISK = (
    "the constants are those of Bubeck (2015), Theorem 6.3, for a constant step and the averaged iterate, "
    "with m p s^2 / n + L^2 as the variance"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Stochastic convex optimisation on a set of the given diameter, as in the papers' utility theorems.

    Attributes:
      diameter: R > 0. lipschitz: L > 0, of every client's loss. dimension: p >= 1.
      noise: s >= 0, standard deviation of a message's noise per coordinate.

    Raises:
      ValueError, TypeError: an attribute outside its range.
    """

    diameter: float = 1.0
    lipschitz: float = 1.0
    dimension: int = 1
    noise: float = 0.0

    def __post_init__(self) -> None:
        _validate.real(0, math.inf, "()", diameter=self.diameter)
        _validate.real(0, math.inf, "()", lipschitz=self.lipschitz)
        _validate.integer(1, dimension=self.dimension)
        _validate.real(0, math.inf, "[)", noise=self.noise)

    def moment(self, share: np.ndarray | float = 1.0) -> np.ndarray:
        """Bound on the second moment of an update whose noise variance is `share` of a message's."""
        return np.asarray(share * self.dimension * self.noise**2 + self.lipschitz**2)


def _dummies(value: np.ndarray, label: str) -> PublishedBound:
    quantity = "expected dummies"
    return PublishedBound(value=value, label=label, source=formula.RCI, quantity=quantity, direction="exact")


def fixed_window_dummies(
    num_clients: ArrayLike, num_slots: ArrayLike, check_in_prob: ArrayLike = 1.0
) -> PublishedBound:
    """[RCI] Proposition 3.4: expected dummies of A_fix, m (1 - p_0/m)^n (the exponent's place is misprinted).

    Args:
      num_clients: n, 1 to 1e12. num_slots: m, 1 to 1e12. check_in_prob: p_0 in (0, 1].

    Raises:
      ValueError, TypeError: an argument outside its range, or shapes that do not broadcast.
    """
    n, m = formula.clients(num_clients), formula.wholes(1, formula.MAX_CLIENTS, num_slots=num_slots)
    p0 = formula.reals(0, 1, "(]", check_in_prob=check_in_prob)
    formula.broadcast(num_clients=n, num_slots=m, check_in_prob=p0)
    with np.errstate(divide="ignore"):
        value = m * np.exp(n * np.log1p(-p0 / m))
    return _dummies(value, "Proposition 3.4")


def sliding_window_dummies(num_clients: ArrayLike, num_slots: ArrayLike) -> PublishedBound:
    """[RCI] Proposition 4.4: expected dummy updates of A_sldw, (n - m + 1)(1 - 1/m)^m, at most (n - m + 1)/e.

    Args:
      num_clients: n, 1 to 1e12. num_slots: the window m, at most n.

    Raises:
      ValueError, TypeError: an argument outside its range, m > n, or shapes that do not broadcast.
    """
    n, m = formula.clients(num_clients), formula.wholes(1, formula.MAX_CLIENTS, num_slots=num_slots)
    formula.broadcast(num_clients=n, num_slots=m)
    if (m > n).any():
        raise _validate.error(f"at most num_clients={float(n.min())!r}", num_slots=float(m.max()))
    with np.errstate(divide="ignore"):
        value = (n - m + 1) * np.exp(m * np.log1p(-1 / m))
    return _dummies(value, "Proposition 4.4")


def fixed_window_steps(
    num_clients: ArrayLike,
    num_slots: ArrayLike,
    check_in_prob: ArrayLike,
    problem: Problem,
    *,
    step: ArrayLike,
) -> np.ndarray:
    """[RCI] Theorem 3.5: the step size R (1 - 2 e^{-n p_0/m}) / sqrt((p s^2 + L^2) i) of A_fix at step i.

    Args:
      num_clients, num_slots, check_in_prob: n, m, p_0 with n p_0 > m log 2 (otherwise the theorem has no step).
      problem: R, L, p and s. step: i, from 1.

    Raises:
      ValueError, TypeError: an argument outside its range.
    """
    n, m = formula.clients(num_clients), formula.wholes(1, formula.MAX_CLIENTS, num_slots=num_slots)
    p0 = formula.reals(0, 1, "(]", check_in_prob=check_in_prob)
    i = formula.wholes(1, formula.MAX_CLIENTS, step=step)
    formula.broadcast(num_clients=n, num_slots=m, check_in_prob=p0, step=i)
    _validate.instance(Problem, problem=problem)
    share = 1 - 2 * np.exp(-n * p0 / m)
    if (share <= 0).any():
        load = float(np.min(n * p0 / m))
        raise ValueError(f"num_clients * check_in_prob / num_slots={load:g}: expected above log 2")
    return problem.diameter * share / np.sqrt(problem.moment() * i)


def averaged_updates_steps(
    num_clients: ArrayLike, num_slots: ArrayLike, problem: Problem, *, step: ArrayLike
) -> np.ndarray:
    """[RCI] Theorem 4.2: the step size R sqrt(n) / sqrt((m p s^2 + n L^2) i) of A_avg at step i.

    Arguments and errors as `fixed_window_steps`.
    """
    n, m = formula.clients(num_clients), formula.wholes(1, formula.MAX_CLIENTS, num_slots=num_slots)
    i = formula.wholes(1, formula.MAX_CLIENTS, step=step)
    formula.broadcast(num_clients=n, num_slots=m, step=i)
    _validate.instance(Problem, problem=problem)
    return problem.diameter / np.sqrt(problem.moment(m / n) * i)


def _last_iterate(m: np.ndarray, problem: Problem, first_step: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """(R^2/c + c G^2) (2 + log m) / sqrt(m): [SZ13] Theorem 2 with steps c/sqrt(i) and E|update|^2 <= G^2."""
    return (problem.diameter**2 / first_step + first_step * moment) * (2 + np.log(m)) / np.sqrt(m)


def _risk(value: np.ndarray, label: str, reason: str) -> PublishedBound:
    return PublishedBound(
        value=value,
        label=label,
        source=formula.RCI,
        quantity="excess risk",
        validity="estimate",
        reason=reason,
    )


def fixed_window_risk(
    num_clients: ArrayLike, num_slots: ArrayLike, check_in_prob: ArrayLike, problem: Problem
) -> PublishedBound:
    """Excess risk of A_fix's last iterate under Theorem 3.5's steps, O(R sqrt(p s^2 + L^2) log m / sqrt(m)).

    A slot gets a dummy with probability (1 - p_0/m)^n. One minus this scales the expected gradient, so the risk is
    divided by it. The paper gives the order; see `reason` for the constants. Arguments and errors as
    `fixed_window_steps`.
    """
    first = fixed_window_steps(num_clients, num_slots, check_in_prob, problem, step=1)
    n, m, p0 = (np.asarray(v, dtype=np.float64) for v in (num_clients, num_slots, check_in_prob))
    with np.errstate(divide="ignore"):
        used = -np.expm1(n * np.log1p(-p0 / m))
    return _risk(_last_iterate(m, problem, first, problem.moment()) / used, "Theorem 3.5", _RISK)


def averaged_updates_risk(num_clients: ArrayLike, num_slots: ArrayLike, problem: Problem) -> PublishedBound:
    """Excess risk of A_avg's last iterate under Theorem 4.2's steps, R sqrt(m p s^2 + n L^2) log(m)/sqrt(n m).

    The second moment of an averaged update is taken as m p s^2 / n + L^2, as the step size does. The paper gives the
    order; see `reason` for the constants. Arguments and errors as `fixed_window_steps`.
    """
    first = averaged_updates_steps(num_clients, num_slots, problem, step=1)
    n, m = np.asarray(num_clients, dtype=np.float64), np.asarray(num_slots, dtype=np.float64)
    return _risk(_last_iterate(m, problem, first, problem.moment(m / n)), "Theorem 4.2", _RISK)


def averaged_updates_smooth_risk(
    num_clients: ArrayLike, num_slots: ArrayLike, problem: Problem, *, smoothness: float
) -> PublishedBound:
    """Excess risk of A_avg's averaged iterate when losses are beta-smooth: R G / sqrt(m) + beta R^2 / (2 m).

    With G^2 = m p s^2 / n + L^2 and the constant step 1 / (beta + G sqrt(m) / R): no log m. Arguments and errors as
    `fixed_window_steps`; smoothness: beta >= 0.
    """
    beta = _validate.real(0, math.inf, "[)", smoothness=smoothness)
    n, m = formula.clients(num_clients), formula.wholes(1, formula.MAX_CLIENTS, num_slots=num_slots)
    formula.broadcast(num_clients=n, num_slots=m)
    size = problem.diameter
    value = size * np.sqrt(problem.moment(m / n) / m) + beta * size**2 / (2 * m)
    return _risk(value, "Theorem 4.2, smooth losses", _SMOOTH_RISK)
