"""Lower ends of hidden messages: all other clients at one of two records, the target at either.

Call inside `devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.accounting.bounds.hidden_sums import HiddenSum
from checkin_jax.accounting.bounds.profiles import GaussianProfile
from checkin_jax.accounting.bounds.unit import Lines, UnitBound
from checkin_jax.kernels import gaussian, host
from checkin_jax.kernels.messages import hidden_messages_lower
from checkin_jax.randomizers import LabelLaws

# Cells of a Gaussian message on either side of where both records are equally likely, and the least mu for which their
# places are accurate enough.
_CELL_COUNT, _LEAST_MU = 128, 1e-3
# Gauss-Legendre on [0, 1], for what is analytic on a cell.
_NODES, _WEIGHTS = (
    0.5 * (part + shift) for part, shift in zip(np.polynomial.legendre.leggauss(16), (1.0, 0.0))
)


@jax.jit
def _cells(mu: Array, farthest: Array) -> tuple[hidden_messages_lower.Cells, hidden_messages_lower.Cells]:
    """Cells of one Gaussian message, everybody else at x'; with Z - 1, and with 1 - Z, to the right.

    farthest: where the last cell begins, in standard deviations.
    """

    def side(sign: float) -> tuple[Array, Array]:
        # Outwards from where Z = 1; the last cell has no end. Masses from the tail that the cells are in.
        step = (farthest + mu) / _CELL_COUNT
        edges = 0.5 * mu + sign * step * jnp.arange(_CELL_COUNT, dtype=jnp.float64)
        base = jax.scipy.special.ndtr(-sign * edges)
        # Z - 1 has one sign on a cell: its mean there by quadrature keeps the digits that differences of tails lose
        # where Z is near 1.
        along = step * (jnp.arange(_CELL_COUNT, dtype=jnp.float64)[:, None] + _NODES[None, :])
        within = step * _NODES[None, :]
        density = _WEIGHTS[None, :] * jnp.exp(-within * (sign * edges[:, None] + 0.5 * within))
        place = jnp.sum(density * jnp.expm1(sign * mu * along), axis=1) / jnp.sum(density, axis=1)
        # Beyond the last edge e the ratio of both masses is e^{mu (e - mu/2)} times that of Mills' ratio at e - mu to
        # that at e; its logarithm has the slope x - hazard.
        ahead = gaussian.hazard_beyond(sign * (edges[-1] - mu * _NODES)) @ _WEIGHTS
        last = jnp.expm1(sign * mu * (step * (_CELL_COUNT - 1) + ahead))
        return sign * place.at[-1].set(last), base - jnp.append(base[1:], 0.0)

    right, left = side(1.0), side(-1.0)
    return hidden_messages_lower.Cells(*right, *left), hidden_messages_lower.Cells(*left, *right)


def _label_cells(laws: LabelLaws) -> tuple[hidden_messages_lower.Cells, hidden_messages_lower.Cells]:
    """As `_cells`, of labels; labels that are equally likely under both records tell nothing and are left out."""
    target, other = (np.asarray(part, dtype=np.float64) for part in laws[:2])

    def side(sign: float) -> tuple[Array, Array]:
        apart = sign * (target - other)
        mass = other[apart > 0]
        place = apart[apart > 0] / mass
        order = np.argsort(place, kind="stable")
        # Cells without mass at the last place: kernels compile once.
        room = (0, max(_CELL_COUNT - order.size, 0))
        return host(np.pad(place[order], room, mode="edge")), host(np.pad(mass[order], room))

    right, left = side(1.0), side(-1.0)
    return hidden_messages_lower.Cells(*right, *left), hidden_messages_lower.Cells(*left, *right)


@dataclasses.dataclass(frozen=True, eq=False)
class _OneRecord(abc.ABC):
    """Messages with all other clients (and dummies) at x'; the target holds x or x'.

    messages: the sum that they are, its losses and its scale. Its `clients` over-estimated by a rounding is safe here.
    """

    scale: UnitBound
    messages: HiddenSum

    symmetric = False
    # Whether single messages must be seen, not sums of them.
    single: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def _both_cells(self) -> tuple[hidden_messages_lower.Cells, hidden_messages_lower.Cells]:
        """Cells of one message with Z - 1, and with 1 - Z, to the right."""

    @functools.cached_property
    def _lines(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """(P(A) - Q(A), Q(A)) for events A at some losses, in both orders."""
        seen = self.messages
        clients, count, rate = seen.terms
        if clients != count:
            clients *= 1.0 + 4e-15
        forward, backward = self._both_cells
        arguments = host(count), host(rate), host(seen.steps[2])
        loss = seen.losses if rate < 1.0 else seen.grid(True)
        loss = np.append(loss[1:], 0.5 * (loss[1:] + loss[:-1]))
        # P||Q: 1 + W/n > c. Q||P: 1 > c (1 + W/n), with P as the second measure.
        up = hidden_messages_lower.lines_lower(*arguments, forward, host(clients * np.expm1(loss)))
        down = hidden_messages_lower.lines_lower(*arguments, backward, host(-clients * np.expm1(-loss)))
        difference, mass = np.asarray(down[0]) / clients, np.asarray(down[1])
        return (np.asarray(up[0]) / clients, np.asarray(up[1])), (
            difference,
            (mass - difference) * (1.0 + 1e-15),
        )

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        above = np.expm1(loss)

        def best(difference: np.ndarray, mass: np.ndarray) -> Lines:
            at = np.argmax(difference - above[:, None] * mass, axis=1)
            return difference[at], mass[at]

        forward, backward = self._lines
        return best(*forward), best(*backward)


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianMessages(_OneRecord):
    """Gaussian messages in one dimension."""

    mu: float

    name = "Gaussian messages, all others at one of the two records"

    @property
    def _both_cells(self) -> tuple[hidden_messages_lower.Cells, hidden_messages_lower.Cells]:
        farthest = min(max(9.0, math.sqrt(2.0 * self.messages.log_inverse_mass)), 30.0)
        return _cells(host(self.mu), host(farthest))


@dataclasses.dataclass(frozen=True, eq=False)
class LabelMessages(_OneRecord):
    """Messages of any randomizer, seen through labels of finitely many values."""

    laws: LabelLaws

    @property
    def name(self) -> str:
        return self.laws.name

    @property
    def _both_cells(self) -> tuple[hidden_messages_lower.Cells, hidden_messages_lower.Cells]:
        return _label_cells(self.laws)


def hidden_instances(messages: HiddenSum, scale: UnitBound) -> tuple[GaussianMessages, ...]:
    """The instance of Gaussian messages, where its cells are accurate enough; `scale` as in `Instance`."""
    profile = messages.profile
    if not isinstance(profile, GaussianProfile) or profile.mu < _LEAST_MU:
        return ()
    return (GaussianMessages(scale, messages, profile.mu),)
