"""everybody: all clients send, one record is replaced; by cut laws (G2), or with a few dummies (E+).

Proofs: docs/theory_gaussian.md, docs/theory_shuffle.md.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from checkin_jax.accounting.bounds.clones_bounds import Clones
from checkin_jax.accounting.bounds.interface import LocalGaussian, LocalMessages, UnitBound, Witness
from checkin_jax.accounting.bounds.messages.cover import Shuffled
from checkin_jax.accounting.bounds.messages.equal_records import hidden_witnesses
from checkin_jax.accounting.bounds.messages.largest_message import largest_message, singles_matter
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMessages, mixtures
from checkin_jax.accounting.bounds.messages.subsampling import ShuffledGaussian
from checkin_jax.accounting.bounds.profiles import MOST_HIDDEN_MU, GaussianProfile, Profile, dummy_profile
from checkin_jax.accounting.bounds.windows.mixtures import PublicMixture
from checkin_jax.kernels import ROUNDING, gaussian_profile
from checkin_jax.numerics import convex
from checkin_jax.numerics.counts import chernoff
from checkin_jax.randomizers import MAX_EPSILON0

# Allowed total cost of cutting, as exponents below exp(17 - neg_log_tail), which is about delta over the rounds.
_ALLOWED = (1.0, 3.0, 6.0, 10.0)
# Losses at which the bound is computed: evenly near zero, in standard deviations, then geometrically.
_NEAR, _FAR, _SPACING = 40, 87, 0.1
# Beside the others' dummies: expected numbers of dummies, shares of the others not left, and of those left that may
# own a dummy.
_DUMMIES, _LEFT_OUT = np.geomspace(1.0, 60.0, 24), np.array([3e-3, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.5, 0.7])
_KEPT = np.array([0.99, 0.97, 0.9, 0.7, 0.1, 0.01, 1e-3])
# Weight of one message by itself, in messages that a single client hides; it only chooses.
_ALONE = 0.01


class TabulatedMessages(abc.ABC):
    """A symmetric upper bound, convex in e^loss and at most `alone`, the bound on one message."""

    alone: UnitBound

    @property
    def largest_loss(self) -> float:
        return self.alone.largest_loss

    @abc.abstractmethod
    def _table(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Increasing losses and upper bounds there; None if only the profile of one message is known."""

    @functools.cached_property
    def _profile(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Losses and values of the lower convex hull of the table."""
        table = self._table()
        if table is None:
            return None
        losses, value = table
        value = np.minimum.accumulate(np.minimum(value, self._alone(losses)))
        kept = convex.hull(np.expm1(losses), value)
        return losses[kept], value[kept]

    def _alone(self, losses: np.ndarray) -> np.ndarray:
        return np.asarray(self.alone.upper(losses))

    def upper(self, loss: np.ndarray) -> np.ndarray:
        loss = np.asarray(loss, dtype=np.float64)
        alone = self._alone(loss)
        if self._profile is None:
            return alone
        return np.minimum(convex.held_chords(*self._profile, loss), alone)


class CutMessages(TabulatedMessages):
    """Messages of a known profile D, cut to eps0-LDP messages, that hide each other as clones do; symmetric.

    For every eps0, with p = e^eps0 and a bound B(eps0) on eps0-LDP messages that uses only the ratios of the target's
    two laws and what the others' have in common with them (T1, T1h, T2'h),

        H_c <= B(eps0) + (1 + c) D(p) (use_prob + 2 others / p) :

    laws are cut where their likelihood ratio leaves [1/p, p]. The least of a few eps0 at every c, and of one message by
    itself [docs/theory_gaussian.md, 1a].

    Attributes:
      alone: bound on one message by itself, D. neg_log_tail: masses up to exp(-neg_log_tail) do not matter.
      use_prob: probability that the target's message is sent, from above.
      others: expected number of the others' messages, from above.
    """

    alone: LocalGaussian | LocalMessages  # type: ignore[assignment]
    neg_log_tail: float
    use_prob: float
    others: float
    witnesses: tuple[Witness, ...] = ()

    name = "everybody"

    @abc.abstractmethod
    def clones(self, epsilon0: float) -> UnitBound:
        """B(eps0)."""

    def _log_cost(self, epsilon0: np.ndarray) -> np.ndarray:
        """log of D(p) (use_prob + 2 others / p)."""
        if isinstance(self.alone, LocalGaussian):
            log_profile = gaussian_profile.log_profile(self.alone.mu, epsilon0)
        else:
            log_profile = np.log(self._alone(epsilon0))
        return log_profile + np.log(self.use_prob + 2.0 * self.others * np.exp(-epsilon0))

    def cut(self, allowed: float) -> float | None:
        """Approximately the least eps0 at which cutting costs at most exp(-allowed); None if it is out of range."""
        low, high = 0.0, MAX_EPSILON0
        for _ in range(3):
            grid = np.linspace(low, high, 512)
            enough = np.flatnonzero(self._log_cost(grid) <= -allowed)
            if not enough.size:
                return None
            low, high = float(grid[max(int(enough[0]) - 1, 0)]), float(grid[enough[0]])
        return high if high > 0 else None

    @functools.cached_property
    def _cuts(self) -> list[float]:
        allowed = [max(self.neg_log_tail - 17.0, 0.0) + more for more in _ALLOWED]
        return [epsilon0 for epsilon0 in map(self.cut, allowed) if epsilon0 is not None]

    def _table(self) -> tuple[np.ndarray, np.ndarray] | None:
        found = self._cuts
        if not found:
            return None
        deviation = self.use_prob * math.sqrt(2.0 * math.expm1(min(found)) / (self.others + 1.0))
        near = _SPACING * deviation * np.arange(_NEAR + 1.0)
        far = deviation * (2.0 * math.sqrt(2.0 * self.neg_log_tail) + 4.0)
        losses = np.log1p(np.concatenate([near, np.geomspace(near[-1], far, _FAR + 1)[1:]]))
        return losses, functools.reduce(np.minimum, (self._with_cut(epsilon0, losses) for epsilon0 in found))

    def _with_cut(self, epsilon0: float, losses: np.ndarray) -> np.ndarray:
        value = np.asarray(self.clones(epsilon0).upper(losses))
        cost = math.exp(float(self._log_cost(np.asarray(epsilon0))))
        return (value + (1.0 + np.exp(losses)) * cost) * (1.0 + ROUNDING)


@dataclasses.dataclass(frozen=True)
class AllCut(CutMessages):
    """G2: messages of a known profile, all clients' (gamma = 1, or averaged updates with p_0 = 1), view `messages`.

    Attributes:
      num_clients: n, from 1 to 1e12. alone, neg_log_tail: as in `CutMessages`.
    """

    num_clients: int
    alone: LocalGaussian | LocalMessages
    neg_log_tail: float

    use_prob = 1.0

    @property
    def others(self) -> float:  # type: ignore[override]
        return self.num_clients - 1.0

    def clones(self, epsilon0: float) -> UnitBound:
        return Clones(Shuffled(self.num_clients, 1.0), epsilon0, self.neg_log_tail)

    @functools.cached_property
    def _witnesses(self) -> tuple[Witness, ...]:
        if not isinstance(self.alone, LocalGaussian):
            return ()
        n, mu, mass = self.num_clients, self.alone.mu, self.neg_log_tail
        summed = ShuffledGaussian(n, 1.0, mu, False, mass).witnesses
        if singles_matter(n, mu, mass - 17.0):
            summed = (*summed, largest_message(n, 1.0, mu))
        if mu > MOST_HIDDEN_MU:
            return summed
        return (*hidden_witnesses(HiddenMessages(n, 1.0, GaussianProfile(mu), mass), self), *summed)

    @property
    def witnesses(self) -> tuple[Witness, ...]:  # type: ignore[override]
        return self._witnesses


@dataclasses.dataclass(frozen=True)
class BesideDummies:
    """E+: eps0-LDP messages, all clients', a few of which are dummies that depend on no record.

    Every message is a dummy with the same probability, whoever sends it; what is left is a sample of the clients.

    Attributes:
      hidden: bound on the messages left, in the event that there is a dummy. all_sent: bound if there is none.
      none_prob: upper bound on the probability of that.
    """

    hidden: UnitBound
    all_sent: UnitBound
    none_prob: float
    witnesses: tuple[Witness, ...] = ()

    name = "everybody"

    @property
    def largest_loss(self) -> float:
        return max(self.hidden.largest_loss, self.all_sent.largest_loss)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        rest = self.none_prob * np.asarray(self.all_sent.upper(loss))
        return (np.asarray(self.hidden.upper(loss)) + rest) * (1.0 + ROUNDING)


def beside_others_dummies(
    clients: int,
    profile: Profile,
    alone: LocalGaussian | LocalMessages,
    neg_log_tail: float,
    prices: Sequence[float],
) -> list[BesideDummies]:
    """E+' for messages far apart: a few of the others' are dummies, draws of noise alone if Gaussian, else of a record.

    No message depends on another one of its round. Of the clients left, those that may own a dummy hide the target's
    message. They are a given share at least but for an event of a known probability, at every share of a few; below
    the last one, the target's message counts by itself [docs/theory_shuffle.md, 4].

    Args:
      profile: of a message. alone: bound on one message by itself.
      prices: of that event's probability, against the logarithm of a number of clients; each only chooses how many are
        dummies.

    Returns:
      A bound for each price at which there is one.
    """
    if clients == 1:
        return []
    others, rarely = clients - 1.0, np.array([neg_log_tail])
    least = np.concatenate([chernoff.fewest(others, 1.0 - each, rarely) for each in _LEFT_OUT.tolist()])
    # Of the share of dummies, and of clients not left; then of clients that may own a dummy, too.
    share, theta = np.meshgrid(_DUMMIES / others, _LEFT_OUT, indexing="ij")
    share = np.minimum(share, theta)
    # Mass of the dummies' law that is too far from a client's.
    far = dummy_profile(profile).delta(np.log(theta / share) * (1.0 - 1e-14)) * (1.0 + 1e-12)
    none = np.exp(others * np.log1p(-share * (1.0 - far)) * (1.0 - 1e-12)) + math.exp(-neg_log_tail)
    kept = _KEPT[:, None, None]
    hiding = np.floor(kept * (1.0 + least) * (1.0 - 1e-15)) * np.ones_like(share)
    # Rounded up, `far` may exceed 1 where messages show their record.
    fewer = np.minimum(kept / (1.0 - kept) * far / np.maximum(1.0 - far, 1e-300) * (1.0 + 1e-9), 1.0)
    not_before = np.concatenate([np.ones_like(fewer[:1]), fewer[:-1]])
    masses = not_before - fewer
    alone_prob = (fewer + none) * (1.0 + 1e-9)
    squares = np.cumsum(masses / np.maximum(hiding, 1.0), axis=0) + _ALONE * alone_prob
    found = []
    for price in prices:
        cost = np.where(hiding >= 1.0, price * alone_prob + np.log(squares), math.inf)
        last, *best = np.unravel_index(np.argmin(cost), cost.shape)
        if not (hiding[last, *best] >= 1.0 and alone_prob[last, *best] < 1.0):
            continue
        some = masses[: last + 1, *best] > 0.0
        parts = masses[: last + 1, *best][some], hiding[: last + 1, *best][some], np.ones(int(some.sum()))
        hidden = PublicMixture(tuple((1.0, one) for _, one in mixtures(*parts, profile, neg_log_tail)))
        found.append(BesideDummies(hidden, alone, float(alone_prob[last, *best])))
    return found


@dataclasses.dataclass(frozen=True)
class HiddenBesideDummies(HiddenMessages):
    """E+ for messages of a known profile: T* for the messages that are no dummies, `profile` being theirs."""

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return ()

    @property
    def name(self) -> str:
        return f"everybody ({self.profile.name} messages)"
