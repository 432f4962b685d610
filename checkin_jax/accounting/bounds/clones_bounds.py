"""clones: eps0-LDP messages behind a shuffler (T1) or in slots (T2, T2'), and their witnesses (L1, L2).

A cover gives the count laws, for `kernels.clones`, of one unit of its protocol [docs/theory.md, 4 to 7]. Numbers of
buckets and of support points affect sharpness only.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from checkin_jax.accounting.bounds.interface import (
    EqualDraws,
    Lines,
    UnitBound,
    Values,
    Witness,
    binary_laws,
    bucket_count,
)
from checkin_jax.accounting.bounds.messages.cover import StepCover, equal_draws, largest_loss
from checkin_jax.kernels import binomial, clones, host
from checkin_jax.kernels.execution.devices import at_losses
from checkin_jax.numerics.counts import occupancy
from checkin_jax.randomizers import BINARY, TERNARY, KaryResponse, LabelLaws

# (least `drift`, support points of the number of absent clients in standard deviations): more for a larger drift.
SPREADS = (
    (5e-4, (0.4, 0.8, 1.2, 1.7, 2.2, 2.8, 3.5, 4.3, 5.2, 6.5)),
    (1e-4, (0.8, 1.7, 2.7, 3.8, 5.0, 6.5)),
    (6e-6, (2.2, 4.5)),
)
# Binary randomized response may leak more than 3-ary below epsilon0 = log 2, or where few messages show either label.
BINARY_UP_TO, TERNARY_FROM = 0.75, 0.65
FEW_MESSAGES, BINARY_UP_TO_IF_FEW = 60.0, 4.0
# Below this fixed number of messages the losses of binary randomized response are listed.
FEW_OUTCOMES = 170
# Buckets of the number of messages under binary randomized response, if it is random.
MESSAGE_BUCKETS = 64


def tried(messages: float, epsilon0: float) -> tuple[bool, bool]:
    """(3-ary, binary): whether each randomized response is worth trying with about this many messages."""
    few = 2.0 * messages < FEW_MESSAGES * (1.0 + math.exp(epsilon0))
    return few or epsilon0 >= TERNARY_FROM, epsilon0 <= (BINARY_UP_TO_IF_FEW if few else BINARY_UP_TO)


def cut(
    most: float,
    mean: float,
    neg_log_tail: float,
    drift: float,
    upper: bool,
    *,
    absent: bool,
    parts: int = 1,
    finest: int = 256,
    coarsest: int = 16,
) -> clones.Cut:
    """Buckets, support points and tables for at most `most` draws, `mean` of which show label 0 or 1.

    drift: scale of the contribution of absent clients to the spread. absent: whether clients can be absent. finest,
    coarsest: most buckets (unless the drift matters) and fewest.
    """
    table = binomial.table_size(min(mean + occupancy.deviation(mean, neg_log_tail) + 2.0, most), neg_log_tail)
    if most <= clones.SMALL:
        return clones.Cut(0, clones.SMALL if absent else 1, (), table)
    offsets = next((points for least, points in SPREADS if upper and drift > least), ())
    buckets = min(bucket_count(mean), finest)
    if parts > 1 or table[0] > binomial.POINTS[0]:
        # Finer buckets gain nothing: the parts, or tables of this size, differ by more.
        buckets = min(buckets, 128)
    buckets = max(buckets, coarsest)
    if offsets and table[1]:
        buckets = max(buckets, 128)  # one choice fewer: each compiles for seconds
    return clones.Cut(buckets, 1, offsets, table)


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """A law of `kernels.clones`, in buckets rounded up for `upper` and down for `lower`."""

    law: clones.MixtureLaw
    epsilon0: float
    neg_log_tail: float
    drift: float = 0.0
    finest: int = 256
    coarsest: int = 16

    def _tabulated(self, upper: bool) -> tuple[clones.Buckets, binomial.Tables, bool]:
        """Buckets of the law, tables of its signs, and whether the tables are exact."""
        n, special = np.asarray(self.law.n), np.asarray(self.law.special)
        mass, absent = self.neg_log_tail, bool(np.asarray(self.law.absent).any())
        most, mean = float(n.max()), float((n * special).max())
        finer = {"absent": absent, "parts": len(n), "finest": self.finest}
        chosen = cut(most, mean, mass, self.drift, upper, **finer, coarsest=self.coarsest)
        return *clones.tabulated(self.law, host(mass), chosen, upper), chosen.table[1]

    @functools.cached_property
    def _above(self) -> tuple[clones.Buckets, binomial.Tables, bool]:
        return self._tabulated(True)

    @functools.cached_property
    def _below(self) -> tuple[clones.Buckets, binomial.Tables, bool]:
        return self._tabulated(False)

    def upper(self, loss: np.ndarray) -> np.ndarray:
        mix, tables, exact = self._above
        epsilon0 = host(self.epsilon0)
        return at_losses(lambda some: clones.profile_upper(mix, tables, some, epsilon0, exact), loss)

    def lower(self, loss: np.ndarray) -> Lines:
        mix, tables, exact = self._below
        epsilon0 = host(self.epsilon0)
        return at_losses(lambda some: clones.lines_lower(mix, tables, some, epsilon0, exact), loss)


@dataclasses.dataclass(frozen=True, eq=False)
class OfMixture:
    """Witness whose two directions are both those of one mixture.

    needs, single, equal_draws: as in `Witness`.
    """

    grid_bound: UnitBound
    mixture: Mixture
    name: str
    needs: str | None = None
    single: bool = False
    equal_draws: EqualDraws | None = None

    symmetric = True

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        lines = self.mixture.lower(loss)
        return lines, lines


def third_record_laws(epsilon0: float, values: int) -> LabelLaws:
    """Labels of k-ary randomized response, k > 2, all others at a third record."""
    laws = KaryResponse(epsilon0=epsilon0, num_values=values).label_laws
    return next(law for law in laws if law.others is not None)


THIRD_RECORD = "3-ary randomized response, all others at a third record"


@dataclasses.dataclass(frozen=True, eq=False)
class Binary:
    """Witness: binary randomized response, all other clients (and dummies) at one of the two records."""

    grid_bound: UnitBound
    messages: clones.BinaryMessages
    epsilon0: float
    neg_log_tail: float
    # True if the number of messages is fixed.
    known: bool = False
    equal_draws: EqualDraws | None = None

    name = "binary randomized response, all others at one of the two records"
    needs, single = BINARY, True
    symmetric = False

    @functools.cached_property
    def loss_support(self) -> np.ndarray:
        """Losses of all outcomes, k of m messages showing the label: |log(1 + kappa ((p + 1) k - m))|; or empty."""
        weight = np.asarray(self.messages.weight)
        number, kappa = (
            float(np.asarray(v)[weight.argmax()]) for v in (self.messages.number, self.messages.kappa)
        )
        if not self.known or number >= FEW_OUTCOMES:
            return np.zeros(0)
        shown = (math.exp(self.epsilon0) + 1.0) * np.arange(number + 1.0) - number
        return np.abs(np.log1p(kappa * shown))

    @functools.cached_property
    def _tables(self) -> tuple[tuple[binomial.Tables, binomial.Tables], bool]:
        """Tables of both directions, and whether they are exact."""
        most = float(np.asarray(self.messages.number).max())
        table = binomial.table_size(most, self.neg_log_tail, 1.0 / (1.0 + math.exp(self.epsilon0)))
        epsilon0, mass = host(self.epsilon0), host(self.neg_log_tail)
        forward, backward = (
            clones.binary_tables(self.messages, epsilon0, mass, table, reverse) for reverse in (False, True)
        )
        return (forward, backward), table[1]

    def lower(self, loss: np.ndarray) -> tuple[Lines, Lines]:
        (tables, exact), epsilon0 = self._tables, host(self.epsilon0)

        def lines(reverse: bool) -> Lines:
            given = epsilon0, exact, reverse
            return at_losses(
                lambda some: clones.binary_lines_lower(self.messages, tables[reverse], some, *given), loss
            )

        return lines(False), lines(True)


@dataclasses.dataclass(frozen=True)
class Clones:
    """clones of any eps0-LDP message, in a cover (T1, T2, T2'). Witnesses: L1, L2.

    removal: True for add-or-remove, of which 3-ary randomized response is no witness.
    """

    cover: StepCover
    epsilon0: float
    neg_log_tail: float
    removal: bool = False

    name = "clones"

    @property
    def largest_loss(self) -> float:
        return largest_loss(self.epsilon0, self.cover.use_prob)

    def _mixture(self, upper: bool) -> Mixture:
        law = self.cover.clones(self.epsilon0, self.neg_log_tail, upper)
        return Mixture(law, self.epsilon0, self.neg_log_tail, self.cover.drift, self.cover.finest)

    @functools.cached_property
    def mixture(self) -> Mixture:
        return self._mixture(True)

    def upper(self, loss: np.ndarray) -> Values:
        return np.where(loss >= self.largest_loss, 0.0, self.mixture.upper(loss))

    @functools.cached_property
    def _found(self) -> tuple[Witness, ...]:
        ternary, binary = tried(self.cover.number, self.epsilon0)
        found: list[Witness] = []
        if not self.removal and ternary:
            found.append(self.ternary())
        if self.removal or binary:
            found.append(self.binary())
        return tuple(found)

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        return self._found

    def ternary(self) -> OfMixture:
        """Witness: 3-ary randomized response, all other clients (and dummies) at a third record."""
        labels = None
        if self.epsilon0 > 0.0:
            labels = equal_draws(self.cover, third_record_laws(self.epsilon0, 3), self.neg_log_tail)
        return OfMixture(self, self._mixture(False), THIRD_RECORD, TERNARY, True, labels)

    def binary(self) -> Binary:
        mass = self.neg_log_tail
        messages = self.cover.messages(self.epsilon0, mass, MESSAGE_BUCKETS)
        labels = equal_draws(self.cover, binary_laws(self.epsilon0), mass)
        return Binary(self, messages, self.epsilon0, mass, self.cover.known, labels)
