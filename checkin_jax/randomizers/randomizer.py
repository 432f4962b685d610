"""The interface of local randomizers: privacy profile, facts that sharpen the bounds, and words for statements."""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple

import numpy as np

from checkin_jax._suggest import ByName
from checkin_jax._variables import FreeVariable
from checkin_jax.randomizers.step_sets import StepSet

MAX_EPSILON0 = 50.0

BINARY, TERNARY = "binary randomized response", "3-ary randomized response"


class LabelLaws(NamedTuple):
    """A concrete pair of records, seen through labels: a post-processing of the message with finitely many values.

    target: probabilities of the labels when the client holds the one record, [labels]. other: when it holds the other
    record, [labels], positive. name: what it is, in words. others: when any other client holds its record, [labels],
    positive; `other` if None. apart: target - other, where more digits of it are known; else None. of_sums: whether the
    sum of all messages tells that of apart / others, and so as much.
    """

    target: np.ndarray
    other: np.ndarray
    name: str
    others: np.ndarray | None = None
    apart: np.ndarray | None = None
    of_sums: bool = False

    @property
    def difference(self) -> np.ndarray:
        """target - other, [labels]: `apart` where that is known."""
        if self.apart is not None:
            return np.asarray(self.apart, dtype=np.float64)
        return np.asarray(self.target, dtype=np.float64) - np.asarray(self.other, dtype=np.float64)


class Randomizer(ByName, abc.ABC):
    """A local randomizer, applied to an update before it leaves the device: subclass it for another mechanism.

    Subclasses are frozen dataclasses whose fields are plain public values. Two things must be said, `words` and the
    privacy profile (`profile` and `largest_loss`); everything else sharpens bounds, or lower ends, where it is known.
    What the class states is believed: name what nobody has proved in `assumptions`, which every statement prints.
    """

    # The field that `calibrate` may search.
    variable: ClassVar[FreeVariable | None] = None
    # True if the description covers messages of which no two are ever equal, such as those that carry a long tag.
    # Clients who collude can then tell whose message they see. Responses with few values are equal now and then.
    messages_differ: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def words(self) -> str:
        """The messages in words, such as "2-LDP messages"."""

    @property
    @abc.abstractmethod
    def largest_loss(self) -> float:
        """The largest privacy loss of one message in nats, replace-one; infinity if there is none."""

    @abc.abstractmethod
    def profile(self, loss: np.ndarray) -> np.ndarray:
        """The largest hockey-stick divergence at e^loss, loss >= 0 in nats, any shape, over pairs of records.

        A true privacy profile bounded from above: in [0, 1], nonincreasing, convex in e^loss, zero from `largest_loss`
        on; relative error below 5e-12.
        """

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Statements about the mechanism that this package has not proved; printed with every guarantee."""
        return ()

    @property
    def gaussian_mu(self) -> float | None:
        """Replacement sensitivity over the standard deviation, if a message is an update plus Gaussian noise.

        Updates lie in a ball around zero of half the sensitivity as its radius, as clipping makes them.
        """
        return None

    @property
    def total_variation(self) -> float:
        """The largest total variation distance between the laws of a message for two records, from above."""
        return float(self.profile(np.zeros(1))[0])

    @property
    def one_bit(self) -> float | None:
        """True if a message is made of one bit and of public coins whose law does not depend on the record.

        The largest probability, over the coins, that two records' bits differ at all (1 if unknown); None: not so.
        """
        return None

    @property
    def kary(self) -> int | None:
        """The number of values k, if a message is k-ary randomized response (with labels of any names); else None."""
        return None

    @property
    def step_set(self) -> StepSet | None:
        """Laws that are together above all steps of this very mechanism in convex order; None if none are known.

        All records count, the one behind a dummy too, and all ordered pairs of the target's records.
        """
        return None

    @property
    def attains(self) -> frozenset[str]:
        """Concrete mechanisms that the description covers: BINARY, TERNARY at epsilon0 = `largest_loss`."""
        return frozenset()

    @property
    def sums_tell(self) -> bool:
        """True if sums of such messages may tell how many of each there are, as those of one-hot vectors do."""
        return False

    @property
    def dummy_anywhere(self) -> bool:
        """True if the dummy of an empty slot may hold any record, such as the one that all others hold.

        A dummy is the zero update, privatised: for the l2 mechanism a fair bit, which no record is. Where it has a
        place of its own, lower ends that put it at another record would be false: there are none for hidden dummies.
        """
        return False

    @property
    def fair_at_zero(self) -> bool:
        """True if a dummy, and the message of a client whose update is zero, is a fair bit of a one-bit message.

        And sums tell by how many messages one side prevails (in one dimension, say). Lower ends of hidden dummies and
        of sums are made from that.
        """
        return False

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """Concrete pairs of records that no analysis can go below; each is tried as a lower end."""
        return ()
