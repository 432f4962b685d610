"""gaussian-cover (T**): each other client's Gaussian message is dominated by a mixture of two laws.

T* dominates all choices of another client's record at once, at about twice the variance of any one of them. For
Gaussian messages each choice is below a mixture of two laws in convex order. They are near the laws of clients at one
record and at the other [docs/theory_gaussian.md, 1b]. Call inside `devices.float64()`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np

from checkin_jax.accounting.bounds.full_participation import HiddenBesideDummies
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMessages, HiddenMixture
from checkin_jax.accounting.bounds.messages.profile_cover_sums import HiddenSum
from checkin_jax.accounting.bounds.profiles import GaussianProfile, WithoutDummies
from checkin_jax.kernels import ROUNDING, host
from checkin_jax.kernels.messages import hidden_messages, two_point_sums
from checkin_jax.numerics import two_point_laws as laws

# Fewer messages a round than this gain too little.
_LEAST_MESSAGES = 2.0
# Largest range of the knots in standard deviations; -log of the mass beyond them, relative to delta over the rounds.
_MOST_KNOT_RANGE, _TAIL = 14.0, 7.0


def gains(num_clients: int, rate: float, mu: float) -> bool:
    """True if T** is worth its time: a rate below 1, a mu in range, and enough messages a round."""
    return rate < 1.0 and serves(num_clients * rate, mu)


def serves(messages: float, mu: float) -> bool:
    """True if mu is in the range of the two laws, and there are enough messages to gain by them."""
    return laws.LEAST_MU <= mu <= laws.MOST_MU and messages >= _LEAST_MESSAGES


class _TwoLaws(HiddenSum):
    """A sum of Gaussian messages' terms by T** where that is smaller than by T*."""

    @property
    def _mu(self) -> float:
        assert isinstance(self.profile, GaussianProfile)
        return self.profile.mu

    @property
    @abc.abstractmethod
    def _star(self) -> HiddenSum:
        """The same sum by T*."""

    @functools.cached_property
    def knot_range(self) -> float:
        """Range of the laws' knots, in whole standard deviations, so that settings share laws."""
        exponent = max(self.neg_log_tail - 17.0 + _TAIL, 8.0)
        return min(float(math.ceil(math.sqrt(2.0 * exponent))), _MOST_KNOT_RANGE)

    def hidden(self) -> np.ndarray:
        found, losses = self._star.values, self.losses
        # Smaller values of T* are negligible.
        least = 1e-2 * math.exp(17.0 - self.neg_log_tail)
        matters = (found > least) & np.isfinite(found) & (losses < math.log(laws.C_NODES[-1]))
        if not matters.any():
            return found
        knots = laws.knots_of(self._mu, self.knot_range)
        (_, count, rate), deviation = self.terms, self.steps[2]
        arguments = [host(each) for each in (*self.sums, rate, deviation, knots)]
        # A ceiling of 0 stops refinement. T* bounds each term of a mixture only together with the others.
        others = found[:, None] if len(self.sums[0]) == 1 else self.ceilings(losses)
        ceilings, value = np.where(matters[:, None], others, 0.0), np.full_like(found, math.inf)
        for orders, groups in self.together(losses, np.log(laws.C_NODES).tolist()):
            groups = [(start, stop) for start, stop in groups if matters[start:stop].any()]
            if not groups:
                continue
            made = self._laws(np.exp(losses[np.array(groups) - [0, 1]]))
            right, left = (side[0] for side in made[len(made) // 2])
            at = host(np.broadcast_to(knots, right.shape))
            middle = hidden_messages.StepTransforms(at, host(right), at, host(left))
            paths = hidden_messages.paths_of(host(rate), host(count), host(orders), middle)
            for (start, stop), both in zip(groups, made):
                value[start:stop] = two_point_sums.profile_upper(
                    *arguments, paths, losses[start:stop], host(ceilings[start:stop]), *both
                )
        value = value + self._rest * self._seldom(losses) * (1.0 + ROUNDING)
        return np.where(matters, np.minimum(found, value), found)

    def _laws(self, c: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Transforms of X, Y and their maximum, which is above T*'s, to the right and to the left; [2, 3, knots] each.

        c: [any, 2], pairs that each lie between two successive C_NODES.
        """
        nodes = np.asarray(laws.C_NODES)
        # The middle decides, since an end at a node may be rounded to either side.
        interval = np.clip(np.searchsorted(nodes, c.mean(axis=1), "right") - 1, 0, len(nodes) - 2)
        needed = np.unique(interval)
        with ThreadPoolExecutor(len(needed)) as pool:
            made = dict(
                zip(
                    needed,
                    pool.map(functools.partial(laws.dominating, self._mu, self.knot_range), needed.tolist()),
                )
            )
        found = []
        for pair, at in zip(c, interval):
            share = np.clip((pair - nodes[at]) / (nodes[at + 1] - nodes[at]), 0.0, 1.0)[:, None, None]
            sides = ((1.0 - share) * side[0] + share * side[1] for side in (made[at].right, made[at].left))
            right, left = (
                np.concatenate([side, np.max(side, axis=1, keepdims=True)], axis=1) * (1.0 + 1e-12)
                for side in sides
            )
            found.append((host(right), host(left)))
        return found


@dataclasses.dataclass(frozen=True)
class TwoLawMessages(_TwoLaws, HiddenMessages):
    """`HiddenMessages` of Gaussian noise by T** where that is smaller than T*. Its arguments must satisfy `gains`.

    All clients use one randomizer, not adaptive within the round.
    """

    includes: ClassVar[tuple[str, ...]] = (*HiddenMessages.includes, "T*")

    @property
    def name(self) -> str:
        return "gaussian-cover"

    @functools.cached_property
    def _star(self) -> HiddenSum:  # type: ignore[override]
        known = self.num_clients, self.rate, self.profile, self.neg_log_tail
        return HiddenMessages(*known, self.everybody)


@dataclasses.dataclass(frozen=True, eq=False)
class TwoLawMixture(_TwoLaws, HiddenMixture):
    """`HiddenMixture` of Gaussian noise by T** where that is smaller than T*; arguments that `serves` allows.

    Each client's message is one of at most one slot, and none depends on another one.
    """

    @property
    def _star(self) -> HiddenSum:
        known = self.masses, self.slots, self.use_probs, self.profile
        return HiddenMixture(*known, self.neg_log_tail)


@dataclasses.dataclass(frozen=True)
class TwoLawBesideDummies(_TwoLaws, HiddenBesideDummies):
    """`HiddenBesideDummies` of Gaussian noise by T** where that is smaller than T*; arguments that `serves` allows.

    No message may depend on another of its round. The stop-loss transforms of the step of a message without dummies, at
    k, are at most 1/(1 - b) times those of the message's step at (1 - s_A b') k [docs/theory_shuffle.md].
    """

    profile: WithoutDummies  # type: ignore[assignment]

    @property
    def _mu(self) -> float:
        assert isinstance(self.profile.profile, GaussianProfile)
        return self.profile.profile.mu

    @property
    def _star(self) -> HiddenSum:
        known = self.num_clients, self.rate, self.profile, self.neg_log_tail
        return HiddenBesideDummies(*known, self.everybody)

    def _laws(self, c: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        knots, found = np.asarray(laws.knots_of(self._mu, self.knot_range)), []
        nearer = knots * (1.0 - self.profile.most * self.profile.dense) * (1.0 - 1e-14)
        for both in super()._laws(c):
            moved = (
                np.apply_along_axis(lambda row: np.interp(nearer, knots, row), -1, side) for side in both
            )
            right, left = (host(each / (1.0 - self.profile.share) * (1.0 + 1e-12)) for each in moved)
            found.append((right, left))
        return found
