"""Local randomizers as public descriptions: what is known of a message that leaves the device.

A randomizer states facts: its privacy profile, whether it is one bit, how its noise adds up. Theorems ask for these
facts, never for a class, so a new randomizer is a new subclass of `Randomizer` and nothing else. The accountant reads
descriptions; `checkin_jax.training` draws from the mechanisms registered for them. Both see the same object, so the
report cannot disagree with the run.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import numpy as np

from checkin_jax import _validate
from checkin_jax._variables import FreeVariable
from checkin_jax.kernels import gaussian

MAX_EPSILON0 = 50.0
# Added to profiles that underflow, on the safe side.
_TINY = 1e-304

BINARY, TERNARY = "binary randomized response", "3-ary randomized response"


class LabelLaws(NamedTuple):
    """A concrete pair of records, seen through labels: a post-processing of the message with finitely many values.

    target: probabilities of the labels when the client holds the one record, [labels]. other: when it, or any other
    client, holds the other record, [labels], positive. name: what it is, in words.
    """

    target: np.ndarray
    other: np.ndarray
    name: str


class Randomizer(abc.ABC):
    """What a client does to its update before it leaves the device: subclass it to account for another mechanism.

    Subclasses are frozen dataclasses whose fields are plain public values. Two things must be said, `words` and the
    privacy profile (`profile` and `largest_loss`); everything else sharpens bounds, or lower ends, where it is known.
    What the class states is believed: name what nobody has proved in `assumptions`, which every statement prints.
    """

    # The field that `calibrate` may search.
    variable: ClassVar[FreeVariable | None] = None

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
        """What is stated about the mechanism but not proved by this package; printed with every guarantee."""
        return ()

    @property
    def gaussian_mu(self) -> float | None:
        """Replacement sensitivity over the standard deviation, if a message is an update plus Gaussian noise."""
        return None

    @property
    def total_variation(self) -> float:
        """The largest total variation distance between the laws of a message for two records, from above."""
        return float(self.profile(np.zeros(1))[0])

    @property
    def one_bit(self) -> float | None:
        """Whether a message is made of one bit and of public coins whose law does not depend on the record.

        The largest probability, over the coins, that two records' bits differ at all (1 if unknown); None: not so.
        """
        return None

    @property
    def kary(self) -> int | None:
        """k, if a message is k-ary randomized response, its labels renamed as one likes."""
        return None

    @property
    def attains(self) -> frozenset[str]:
        """Concrete mechanisms that the description covers: BINARY, TERNARY at epsilon0 = `largest_loss`."""
        return frozenset()

    @property
    def sums_tell(self) -> bool:
        """Whether sums of such messages may tell how many of each there are, as those of one-hot vectors do."""
        return False

    @property
    def dummy_anywhere(self) -> bool:
        """Whether the dummy of an empty slot may hold any record, such as the one that all others hold.

        A dummy is the zero update, privatised: for the l2 mechanism a fair bit, which no record is. Where it has a
        place of its own, lower ends that put it at another record would be false: there are none for hidden dummies.
        """
        return False

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """Concrete pairs of records that no analysis can go below; each is tried as a lower end."""
        return ()


def pure_profile(epsilon0: float, loss: np.ndarray) -> np.ndarray:
    """(p - c)_+ / (p + 1) at c = e^loss, p = e^epsilon0: the profile of randomized response, the worst of its kind."""
    room = -np.expm1(np.minimum(np.asarray(loss, dtype=np.float64) - epsilon0, 0.0))
    return room / (1.0 + math.exp(-epsilon0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PureLDP(Randomizer):
    """Any randomizer with pure local differential privacy: the worst of all mechanisms with this epsilon0.

    Attributes:
      epsilon0: local privacy parameter of one message in nats, in [0, 50], replace-one.

    Raises:
      ValueError, TypeError: epsilon0 outside its range or not a number.
    """

    epsilon0: float

    variable = FreeVariable("epsilon0", 1e-9, MAX_EPSILON0, 1.3)

    @property
    def sums_tell(self) -> bool:
        return True

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon0", _validate.real(0, MAX_EPSILON0, epsilon0=self.epsilon0))

    @property
    def dummy_anywhere(self) -> bool:
        return True

    @property
    def words(self) -> str:
        return f"{self.epsilon0:.6g}-LDP messages"

    @property
    def largest_loss(self) -> float:
        return self.epsilon0

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return pure_profile(self.epsilon0, loss)

    @property
    def attains(self) -> frozenset[str]:
        return frozenset((BINARY, TERNARY))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pure(Randomizer):
    """A concrete mechanism with pure local differential privacy.

    Attributes:
      epsilon0: in nats, in (0, 50], replace-one.
    """

    epsilon0: float

    variable = FreeVariable("epsilon0", 1e-9, MAX_EPSILON0, 1.3)

    def __post_init__(self) -> None:
        value = _validate.real(0, MAX_EPSILON0, open_low=True, epsilon0=self.epsilon0)
        object.__setattr__(self, "epsilon0", value)

    @property
    def largest_loss(self) -> float:
        return self.epsilon0


@dataclasses.dataclass(frozen=True, kw_only=True)
class L2Mechanism(_Pure):
    """The l2 mechanism of LDP-SGD [DJW18]: a random direction, and one randomized bit: the update's side of it.

    What the trainer runs for eps0-LDP updates, in every dimension (in one, binary randomized response).

    Attributes:
      epsilon0: of one message in nats, in (0, 50], replace-one.

    Raises:
      ValueError, TypeError: epsilon0 outside its range or not a number.
    """

    @property
    def words(self) -> str:
        return f"{self.epsilon0:.6g}-LDP messages of the l2 mechanism"

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return pure_profile(self.epsilon0, loss)

    @property
    def one_bit(self) -> float:
        return 1.0

    @property
    def attains(self) -> frozenset[str]:
        return frozenset((BINARY,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class KaryResponse(_Pure):
    """k-ary randomized response: the true one of k values, or another one, each of these as likely.

    Attributes:
      epsilon0: of one message in nats, in (0, 50], replace-one.
      num_values: k, whole, from 2 to 1e12.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    num_values: int

    @property
    def sums_tell(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "num_values", _validate.integer(2, 10**12, num_values=self.num_values))

    @property
    def dummy_anywhere(self) -> bool:
        return True

    @property
    def words(self) -> str:
        return f"{self.epsilon0:.6g}-LDP messages of {self.num_values:,}-ary randomized response"

    @property
    def kary(self) -> int:
        return self.num_values

    def profile(self, loss: np.ndarray) -> np.ndarray:
        p_minus_1 = math.expm1(self.epsilon0)
        above = math.exp(self.epsilon0) * -np.expm1(np.minimum(np.asarray(loss) - self.epsilon0, 0.0))
        return above / (p_minus_1 + self.num_values)

    @property
    def attains(self) -> frozenset[str]:
        return frozenset((BINARY,)) if self.num_values == 2 else frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HadamardResponse(_Pure):
    """Hadamard response [ASZ19]: a value's half of all labels with odds e^epsilon0, any two halves sharing one half.

    Attributes:
      epsilon0: of one message in nats, in (0, 50], replace-one.

    Raises:
      ValueError, TypeError: epsilon0 outside its range or not a number.
    """

    @property
    def words(self) -> str:
        return f"{self.epsilon0:.6g}-LDP messages of Hadamard response"

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return 0.5 * pure_profile(self.epsilon0, loss)

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """Which of the two records' halves a label is in."""
        high, low = 0.5 / (1.0 + math.exp(-self.epsilon0)), 0.5 / (1.0 + math.exp(self.epsilon0))
        target, other = np.array([high, low, high, low]), np.array([low, high, high, low])
        return (LabelLaws(target, other, "Hadamard response, all others at one of the two records"),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rappor(_Pure):
    """Symmetric RAPPOR [EPK14]: a one-hot vector, every bit of it flipped by randomized response of epsilon0 / 2.

    Attributes:
      epsilon0: of one message in nats, in (0, 50], replace-one.

    Raises:
      ValueError, TypeError: epsilon0 outside its range or not a number.
    """

    @property
    def words(self) -> str:
        return f"{self.epsilon0:.6g}-LDP messages of symmetric RAPPOR"

    def profile(self, loss: np.ndarray) -> np.ndarray:
        # The bits of both records show: (p - c)_+ / (1 + e^(epsilon0 / 2))^2.
        room = -np.expm1(np.minimum(np.asarray(loss, dtype=np.float64) - self.epsilon0, 0.0))
        return room / (1.0 + math.exp(-0.5 * self.epsilon0)) ** 2

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """The two bits in which the records differ."""
        kept, flipped = (
            1.0 / (1.0 + math.exp(-0.5 * self.epsilon0)),
            1.0 / (1.0 + math.exp(0.5 * self.epsilon0)),
        )
        same = 2.0 * kept * flipped
        target, other = np.array([kept**2, same, flipped**2]), np.array([flipped**2, same, kept**2])
        return (LabelLaws(target, other, "RAPPOR, all others at one of the two records"),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian(Randomizer):
    """Clip to norm C and add N(0, (noise_multiplier C)^2 I) per client.

    Replacing a record moves the clipped update by at most 2C, so one message is a Gaussian mechanism with
    mu = 2 / noise_multiplier (not 1 / noise_multiplier, which is the add-or-remove figure).

    Attributes:
      noise_multiplier: noise standard deviation over the clip norm, per client and coordinate, > 0.

    Raises:
      ValueError, TypeError: noise_multiplier not a finite positive number.
    """

    noise_multiplier: float

    variable = FreeVariable("noise_multiplier", 1e-4, 1e9, -1.0)

    def __post_init__(self) -> None:
        value = _validate.real(
            0, math.inf, open_low=True, open_high=True, noise_multiplier=self.noise_multiplier
        )
        object.__setattr__(self, "noise_multiplier", value)

    @property
    def mu(self) -> float:
        """Replacement sensitivity over noise standard deviation of one message: 2 / noise_multiplier."""
        return 2.0 / self.noise_multiplier

    @property
    def gaussian_mu(self) -> float:
        return self.mu

    @property
    def words(self) -> str:
        return f"Gaussian noise of {self.noise_multiplier:.6g} clip norms per message"

    @property
    def largest_loss(self) -> float:
        return math.inf

    def profile(self, loss: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.exp(gaussian.log_profile(self.mu, np.asarray(loss, dtype=np.float64))) + _TINY

    @classmethod
    def from_local(cls, *, epsilon0: float, delta0: float) -> Gaussian:
        """The least noise whose single message is (epsilon0, delta0)-LDP, by the exact Gaussian profile.

        The returned noise is rounded up: the message's delta at epsilon0 never exceeds delta0.

        Raises:
          ValueError, TypeError: epsilon0 not in [0, 50] or delta0 not in (0, 1); or both are so small that no noise
            multiplier below 2e9 meets them.
        """
        epsilon0 = _validate.real(0, MAX_EPSILON0, epsilon0=epsilon0)
        delta0 = _validate.real(0, 1, open_low=True, open_high=True, delta0=delta0)
        mu = gaussian.largest_mu(epsilon0, delta0)
        if not mu:
            raise ValueError(
                f"epsilon0={epsilon0!r}, delta0={delta0!r}: expected larger ones, which a noise below 2e9 meets"
            )
        return cls(noise_multiplier=2.0 / mu)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Laplace(_Pure):
    """A number clipped to an interval, plus Laplace noise.

    Attributes:
      epsilon0: length of the interval over the noise's scale, in nats, in (0, 50]: the epsilon0 of one message.

    Raises:
      ValueError, TypeError: epsilon0 outside its range or not a number.
    """

    _CELLS: ClassVar[int] = 128

    @property
    def words(self) -> str:
        return f"Laplace noise on an interval of {self.epsilon0:.6g} scales"

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return -np.expm1(0.5 * np.minimum(np.asarray(loss, dtype=np.float64) - self.epsilon0, 0.0))

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """The two ends of the interval, the line cut into cells between them and its two rays."""
        edges = np.linspace(0.0, self.epsilon0, self._CELLS - 1)
        # Of noise around 0, in units of its scale, by the tail that a cell is in: nothing cancels.
        inside = 0.5 * np.exp(-edges[:-1]) * -np.expm1(-np.diff(edges))
        other = np.concatenate([[0.5], inside, [0.5 * math.exp(-self.epsilon0)]])
        return (
            LabelLaws(other[::-1].copy(), other, "Laplace messages, all others at one end of the interval"),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApproximateLDP(Randomizer):
    """Any randomizer with (epsilon0, delta0)-local differential privacy, by the worst of their profiles [KOV15].

    Attributes:
      epsilon0: in nats, in [0, 50], replace-one. delta0: in [0, 1).

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    epsilon0: float
    delta0: float

    variable = FreeVariable("epsilon0", 1e-9, MAX_EPSILON0, 1.3)

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon0", _validate.real(0, MAX_EPSILON0, epsilon0=self.epsilon0))
        object.__setattr__(self, "delta0", _validate.real(0, 1, open_high=True, delta0=self.delta0))

    @property
    def dummy_anywhere(self) -> bool:
        return True

    @property
    def words(self) -> str:
        return f"({self.epsilon0:.6g}, {self.delta0:.6g})-LDP messages"

    @property
    def largest_loss(self) -> float:
        return math.inf if self.delta0 > 0 else self.epsilon0

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return self.delta0 + (1.0 - self.delta0) * pure_profile(self.epsilon0, loss)

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """Randomized response that shows the record with probability delta0, what it shows counted as the response."""
        if self.delta0 == 0.0:
            return ()
        high = self.delta0 + (1.0 - self.delta0) / (1.0 + math.exp(-self.epsilon0))
        low = (1.0 - self.delta0) / (1.0 + math.exp(self.epsilon0))
        name = "randomized response that may show the record, all others at one record"
        return (LabelLaws(np.array([high, low]), np.array([low, high]), name),)

    @property
    def attains(self) -> frozenset[str]:
        return frozenset((BINARY, TERNARY)) if self.delta0 == 0.0 else frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownProfile(Randomizer):
    """A mechanism whose privacy profile is given as a function; refused where samples show that it is none.

    Attributes:
      function: D at e^loss for an array of losses >= 0 in nats, relative error below 5e-12: an upper bound on the
        hockey-stick divergence between the laws of a message for any two records, in both orders.
      largest_loss: the loss in nats from which on the function is zero; else infinity.
      name: what the messages are, in words.

    Raises:
      ValueError: some value is not in [0, 1], or the function increases or is not convex in e^loss.
    """

    function: Callable[[np.ndarray], np.ndarray]
    largest_loss: float = math.inf  # type: ignore[assignment]
    name: str = "messages of a given privacy profile"

    def __post_init__(self) -> None:
        largest = _validate.real(0.0, math.inf, open_low=True, largest_loss=self.largest_loss)
        object.__setattr__(self, "largest_loss", largest)
        end = min(self.largest_loss, 60.0)
        losses = np.concatenate([[0.0], end * np.geomspace(1e-9, 1.0, 1025)])
        value = np.asarray(self.function(losses))
        if value.shape != losses.shape or not np.all((value >= 0) & (value <= 1)):
            raise ValueError("function: expected values in [0, 1], one for each loss")
        # What float64 may do to the differences of values that are right to 5e-12.
        slack = 1e-11 * value[:-1]
        falls = (value[:-1] - value[1:] + slack) / np.expm1(np.diff(losses)) / np.exp(losses[:-1])
        least = (
            np.maximum((value[:-1] - value[1:] - slack), 0.0)
            / np.expm1(np.diff(losses))
            / np.exp(losses[:-1])
        )
        if np.any(np.diff(value) > slack):
            raise ValueError("function: a privacy profile does not increase")
        if np.any(falls[:-1] < least[1:]):
            raise ValueError("function: a privacy profile is convex in e^loss")
        if math.isfinite(self.largest_loss) and value[-1] > 0:
            raise ValueError(
                f"largest_loss={self.largest_loss!r}: expected the function to be zero there, not {value[-1]!r}"
            )

    @property
    def words(self) -> str:
        return self.name

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return np.asarray(self.function(np.asarray(loss)), dtype=np.float64)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (f"no two records' messages differ by more than the given profile of {self.name} says",)
