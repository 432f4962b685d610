"""The interface of local randomizers: privacy profile, facts that sharpen the bounds, and words for statements."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from checkin_jax import _validate
from checkin_jax._suggest import ByName, legal
from checkin_jax.randomizers.step_sets import StepSet


class FreeVariable(NamedTuple):
    """A field that `calibrate` may search.

    Attributes:
      name: of the field.
      low, high: range of the search.
      power: epsilon is about proportional to this power of the value; its sign gives the feasible side.
      whole: True if values are whole numbers.
    """

    name: str
    low: float
    high: float
    power: float
    whole: bool = False


MAX_EPSILON0 = 50.0

BINARY, TERNARY = "binary randomized response", "3-ary randomized response"


class LabelLaws(NamedTuple):
    """A concrete pair of records, observed through labels: a post-processing of the message with finitely many values.

    target, other: label probabilities at the client's two records, [labels]; `other` is positive, unless the law counts
    by the labels that only the first record has (`revealed`). name: description, in words. others: label probabilities
    at the record of all other clients, [labels], positive likewise; None: `other`. apart: target - other if known with
    more digits; else None. of_sums: True if the sum of all messages determines the sum of apart / others, so that the
    law also applies to sums.
    """

    target: np.ndarray
    other: np.ndarray
    name: str
    others: np.ndarray | None = None
    apart: np.ndarray | None = None
    of_sums: bool = False

    @property
    def revealed(self) -> float:
        """Probability of labels that only a message of the first record has."""
        others = self.other if self.others is None else self.others
        return float(np.sum(self.target, where=(np.asarray(self.other) == 0.0) & (np.asarray(others) == 0.0)))

    @property
    def difference(self) -> np.ndarray:
        """target - other, [labels]: `apart` where that is known."""
        if self.apart is not None:
            return np.asarray(self.apart, dtype=np.float64)
        return np.asarray(self.target, dtype=np.float64) - np.asarray(self.other, dtype=np.float64)


def check_profile(
    name: str, profile: Callable[[np.ndarray], np.ndarray], largest_loss: float, points: int = 1025
) -> None:
    """Raises ValueError, which names the function, if it is no privacy profile at sample losses."""
    _validate.real(0.0, math.inf, largest_loss=largest_loss)
    losses = np.concatenate([[0.0], min(largest_loss, 60.0) * np.geomspace(1e-9, 1.0, points)])
    value = np.asarray(profile(losses))
    if value.shape != losses.shape or not np.all((value >= 0) & (value <= 1)):
        raise ValueError(f"{name}: expected values in [0, 1], one for each loss")
    # Rounding of differences of values with relative error 5e-12.
    slack, widths = 1e-11 * value[:-1], np.expm1(np.diff(losses)) * np.exp(losses[:-1])
    if np.any(np.diff(value) > slack):
        raise ValueError(f"{name}: a privacy profile does not increase")
    falls = value[:-1] - value[1:]
    if np.any((falls + slack)[:-1] * widths[1:] < (falls - slack)[1:] * widths[:-1]):
        raise ValueError(f"{name}: a privacy profile is convex in e^loss")
    if math.isfinite(largest_loss) and value[-1] > 0:
        raise ValueError(f"{name}: expected zero at largest_loss={largest_loss!r}, not {value[-1].item()!r}")


def check_label_laws(name: str, randomizer: Randomizer, points: int) -> None:
    """Raises ValueError, which names the class, if its label laws are none or exceed its profile at sample losses."""
    losses = np.concatenate([[0.0], np.geomspace(1e-6, 60.0, points)])
    most = np.asarray(randomizer.profile(losses)) * (1.0 + 1e-9) + 1e-12
    for law in randomizer.label_laws:
        target, other = (np.asarray(each, dtype=np.float64) for each in (law.target, law.other))
        others = other if law.others is None else np.asarray(law.others, dtype=np.float64)
        for each in (target, other, others):
            if each.shape != target.shape or not np.all(each >= 0.0) or not abs(np.sum(each) - 1.0) <= 1e-9:
                raise ValueError(f"{name}.label_laws, {law.name!r}: expected probabilities that add up to 1")
        for apart, base in ((law.difference, other), (-law.difference, target)):
            leak = np.sum(np.maximum(apart[:, None] - base[:, None] * np.expm1(losses), 0.0), axis=0)
            if not np.all(leak <= most):
                raise ValueError(
                    f"{name}.label_laws, {law.name!r}: expected laws that leak no more than the profile"
                )


class Randomizer(ByName, abc.ABC):
    """A local randomizer, applied to an update before it leaves the device: subclass it for another mechanism.

    Subclasses are frozen dataclasses whose fields are plain public values. `description`, `profile` and `largest_loss`
    are required; all other facts sharpen bounds or lower ends. Facts are believed, though profile and label laws are
    compared at sample losses: list unproved ones in `assumptions`, which every statement prints.
    """

    # The field that `calibrate` may search.
    variable: ClassVar[FreeVariable | None] = None
    # True if the description includes mechanisms no two messages of which are equal, such as with a long random tag.
    # Colluding clients then recognise the messages of others. Responses with few values are sometimes equal.
    messages_differ: ClassVar[bool] = False
    # True if sums of messages may reveal the count of each message, as with one-hot vectors.
    sum_reveals_counts: ClassVar[bool] = False
    # True if the dummy of an empty slot may hold any record, such as the record of all others. A dummy is the
    # randomized zero update. Under the l2 mechanism it is a fair coin, a law that no record has. If False, lower ends
    # with the dummy at another record would be false, so there are none for hidden dummies.
    dummy_may_equal_any_record: ClassVar[bool] = False
    # True if a dummy, and the message of a zero update, is a fair coin among one-bit messages, whose probabilities
    # are in [1/(p+1), p/(p+1)] for every record, p = e^epsilon0. Sums must then also reveal the difference of the two
    # counts of bits, as in one dimension. Lower ends with hidden dummies, and of sums, use all of this; upper ends in
    # windows with hidden dummies all but the sums.
    fair_coin_at_zero: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """The messages in words, such as "2-LDP messages"."""

    @property
    @abc.abstractmethod
    def largest_loss(self) -> float:
        """Largest privacy loss of one message in nats, replace-one; infinity if unbounded."""

    @abc.abstractmethod
    def profile(self, loss: np.ndarray) -> np.ndarray:
        """Upper bound on the hockey-stick divergence at e^loss between any two records; loss >= 0 in nats, any shape.

        In [0, 1], nonincreasing, convex in e^loss, zero from `largest_loss` on; relative error below 5e-12.
        """

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Statements about the mechanism that this package has not proved; printed with every guarantee."""
        return ()

    @property
    def gaussian_mu(self) -> float | None:
        """Replacement sensitivity over the standard deviation, if a message is an update plus Gaussian noise.

        Updates are clipped to a ball around zero, whose radius is half the sensitivity.
        """
        return None

    @property
    def laplace_scales(self) -> float | None:
        """Length of an interval in scales of the noise, if a message is a number of it plus Laplace noise; else None.

        Sums of messages are then sums of numbers, and a dummy may be any number of the interval.
        """
        return None

    @property
    def total_variation(self) -> float:
        """Upper bound on the total variation distance between the laws of a message at two records."""
        return float(self.profile(np.zeros(1))[0])

    @property
    def one_bit(self) -> float | None:
        """For messages of one bit and public coins, whose law does not depend on the record; None for others.

        The value is an upper bound on the probability, over the coins, that two records' bits differ (1 if unknown).
        """
        return None

    @property
    def bit_epsilon0(self) -> float | None:
        """epsilon0 of a bit, if a message is independent bits, each by randomized response; None for others.

        Any two records differ in two bits at most; a sum of messages tells each bit's count, and no more.
        """
        return None

    @property
    def kary(self) -> int | None:
        """Number of values k if a message is k-ary randomized response, with labels of any names; else None."""
        return None

    @property
    def step_set(self) -> StepSet | None:
        """Laws that together dominate all steps of this mechanism in convex order; None if unknown.

        They cover all records of another client, the dummy's record, and all ordered pairs of the target's records.
        """
        return None

    @property
    def included_mechanisms(self) -> frozenset[str]:
        """Concrete mechanisms that the description covers: BINARY, TERNARY at epsilon0 = `largest_loss`."""
        return frozenset()

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """Concrete pairs of records for lower ends: no valid bound is below them."""
        return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocallyPrivate(Randomizer):
    """A description of mechanisms with a local privacy parameter.

    Attributes:
      epsilon0: in nats, in (0, 50], replace-one.
    """

    epsilon0: float

    variable = FreeVariable("epsilon0", 1e-9, MAX_EPSILON0, 1.3)
    _legal = legal(epsilon0=(_validate.real, 0, MAX_EPSILON0, "(]"))

    @property
    def largest_loss(self) -> float:
        return self.epsilon0
