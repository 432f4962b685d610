"""Concrete mechanisms: for updates, for one of many values, for a number; all but Gaussian noise are epsilon0-LDP."""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from typing import ClassVar

import numpy as np

from checkin_jax import _validate
from checkin_jax._rounding import down, up
from checkin_jax._suggest import legal
from checkin_jax.randomizers.named import OneBitMessage, pure_profile
from checkin_jax.randomizers.randomizer import (
    BINARY,
    MAX_EPSILON0,
    FreeVariable,
    LabelLaws,
    LocallyPrivate,
    Randomizer,
)
from checkin_jax.randomizers.step_sets import LONGEST, SHORTEST, StepSet, laplace_steps, steps_of


class _Labelled(LocallyPrivate):
    """A mechanism of few kinds of labels, by their odds at two records and at further ones."""

    sum_reveals_counts = True
    dummy_may_equal_any_record = True
    _words: ClassVar[str]

    @property
    @abc.abstractmethod
    def _odds(self) -> tuple[list, float, float, np.ndarray]:
        """Odds of labels as powers of one number, [records, labels].

        Returns:
          The powers, the logarithm of the number, and the probability of a label of power 0; and how many labels of
          each kind there are, [labels].
        """

    def _among(self, third: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Kinds of labels: log likelihood ratios of two records over this one, and probabilities under it."""
        powers, log_odds, rare, labels = self._odds
        kinds, at = np.unique(np.array(powers[:2]) - powers[third], axis=1, return_inverse=True)
        masses = np.bincount(at, rare * labels * np.exp(log_odds * np.array(powers[third])))
        there = masses > 0.0
        return log_odds * kinds[0, there], log_odds * kinds[1, there], masses[there]

    @property
    def step_set(self) -> StepSet:
        """Steps with all other clients at a further record, or at one of the two."""
        others = reversed(range(len(self._odds[0])))
        return steps_of(*(list(zip(*map(np.ndarray.tolist, self._among(third)))) for third in others))

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """Labels, all other clients at the third record, or at one of the two."""
        found = []
        for third, name in ((2, "a third record"), (1, "one of the two records")):
            first, second, masses = self._among(third)
            target, other = masses * np.exp(first), masses * np.exp(second)
            apart = other * np.expm1(first - second)
            name = f"{self._words}, all others at {name}"
            found.append(LabelLaws(target, other, name, None if third == 1 else masses, apart))
        return tuple(found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class L2Mechanism(OneBitMessage):
    """The l2 mechanism of LDP-SGD [DJW18]: a random direction, and one randomized bit, the update's side of it.

    The trainer uses it for eps0-LDP updates in every dimension. In dimension one it is binary randomized response.

    Attributes:
      epsilon0: of one message in nats, in (0, 50], replace-one.

    Raises:
      ValueError, TypeError: epsilon0 outside its range or not a number.
    """

    messages_differ = True
    fair_coin_at_zero = True

    @property
    def description(self) -> str:
        return f"{down(self.epsilon0)}-LDP messages of the l2 mechanism"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KaryResponse(_Labelled):
    """k-ary randomized response: the true one of k values, or one of the others, with equal probabilities.

    Attributes:
      epsilon0: of one message in nats, in (0, 50], replace-one.
      num_values: number of values (k), from 2 to 1e12.

    Raises:
      ValueError, TypeError: an argument outside its range or not a number.
    """

    num_values: int

    _words = "k-ary randomized response"
    _legal = legal(num_values=(_validate.integer, 2, 10**12))

    @property
    def description(self) -> str:
        return f"{down(self.epsilon0)}-LDP messages of {self.num_values:,}-ary randomized response"

    @property
    def kary(self) -> int | None:
        return self.num_values if self.num_values > 2 else None

    @property
    def one_bit(self) -> float | None:
        return 1.0 if self.num_values == 2 else None

    @property
    def _odds(self) -> tuple[list, float, float, np.ndarray]:
        """The labels of two or three records, and all others."""
        records, rare = min(self.num_values, 3), 1.0 / (math.expm1(self.epsilon0) + self.num_values)
        labels = np.append(np.ones(records), self.num_values - float(records))
        return np.eye(records, records + 1).tolist(), self.epsilon0, rare, labels

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        return super().label_laws if self.num_values > 2 else ()

    def profile(self, loss: np.ndarray) -> np.ndarray:
        # (p - c)_+ / (p + k - 1), divided through by p: never above 1.
        room = -np.expm1(np.minimum(np.asarray(loss, dtype=np.float64) - self.epsilon0, 0.0))
        return room / (1.0 + (self.num_values - 1.0) * math.exp(-self.epsilon0))

    @property
    def included_mechanisms(self) -> frozenset[str]:
        return frozenset((BINARY,)) if self.num_values == 2 else frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HadamardResponse(_Labelled):
    """Hadamard response [ASZ19]: the half of the labels that belongs to the value has odds e^epsilon0.

    Any two halves share a quarter of the labels. There are at least three values, which lower ends use. In sums of
    messages labels are one-hot vectors.

    Attributes:
      epsilon0: of one message in nats, in (0, 50], replace-one.

    Raises:
      ValueError, TypeError: epsilon0 outside its range or not a number.
    """

    _words = "Hadamard response"

    @property
    def description(self) -> str:
        return f"{down(self.epsilon0)}-LDP messages of Hadamard response"

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return 0.5 * pure_profile(self.epsilon0, loss)

    @property
    def _odds(self) -> tuple[list, float, float, np.ndarray]:
        """Quarters of the labels, by membership in the two records' halves.

        Any third record is a mixture of two: the record whose half is where the two records' halves agree, and the one
        with the complement of that half.
        """
        halves = [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]]
        return halves, self.epsilon0, 0.5 / (1.0 + math.exp(self.epsilon0)), np.ones(4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rappor(_Labelled):
    """Symmetric RAPPOR [EPK14]: a one-hot vector, each bit of which passes randomized response with epsilon0 / 2.

    The vector has at least three bits, which lower ends use.

    Attributes:
      epsilon0: of one message in nats, in (0, 50], replace-one.

    Raises:
      ValueError, TypeError: epsilon0 outside its range or not a number.
    """

    sum_reveals_counts = False
    _words = "RAPPOR"

    @property
    def description(self) -> str:
        return f"{down(self.epsilon0)}-LDP messages of symmetric RAPPOR"

    def profile(self, loss: np.ndarray) -> np.ndarray:
        # Only the bits of the two records differ: (p - c)_+ / (1 + e^(epsilon0 / 2))^2.
        room = -np.expm1(np.minimum(np.asarray(loss, dtype=np.float64) - self.epsilon0, 0.0))
        return room / (1.0 + math.exp(-0.5 * self.epsilon0)) ** 2

    @property
    def bit_epsilon0(self) -> float:
        return 0.5 * self.epsilon0

    @property
    def _odds(self) -> tuple[list, float, float, np.ndarray]:
        """The bits of three records: how many are as the record sets them."""
        half, bits = 0.5 * self.epsilon0, list(itertools.product((0, 1), repeat=3))
        powers = [
            [sum(map(int.__eq__, label, record)) for label in bits]
            for record in np.eye(3, dtype=int).tolist()
        ]
        return powers, half, 1.0 / (1.0 + math.exp(half)) ** 3, np.ones(8)

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """Those of three bits, and those by the counts of the two bits in which the records differ, or of one."""
        half = 0.5 * self.epsilon0
        bit = np.array([1.0 / (1.0 + math.exp(-half)), 1.0 / (1.0 + math.exp(half))])
        apart = math.tanh(0.5 * half) * np.array([1.0, -1.0])
        three, two = super().label_laws
        # The labels of `two`, in which the bits differ or agree.
        others = np.array([bit.prod(), bit @ bit, bit.prod()])
        sums = two._replace(
            name="two bits of RAPPOR, all others at a third record", others=others, of_sums=True
        )
        of_bit = LabelLaws(
            bit, bit[::-1], "a bit of RAPPOR, all others without it", None, apart, of_sums=True
        )
        return three, sums, two, of_bit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Laplace(LocallyPrivate):
    """A number clipped to an interval, plus Laplace noise.

    A dummy, the zero update, may be any number of the interval. Lower ends with hidden dummies put it at an end.

    Attributes:
      epsilon0: length of the interval over the noise's scale, in nats, in (0, 50]: the epsilon0 of one message.

    Raises:
      ValueError, TypeError: epsilon0 outside its range or not a number.
    """

    _CELLS: ClassVar[int] = 128

    messages_differ = True
    dummy_may_equal_any_record = True

    @property
    def description(self) -> str:
        return f"Laplace noise on an interval of {down(self.epsilon0)} scales"

    def profile(self, loss: np.ndarray) -> np.ndarray:
        return -np.expm1(0.5 * np.minimum(np.asarray(loss, dtype=np.float64) - self.epsilon0, 0.0))

    @property
    def laplace_scales(self) -> float | None:
        return self.epsilon0

    @property
    def step_set(self) -> StepSet | None:
        """Laws of all records of the interval, for intervals of 0.05 to 4 scales; None for others."""
        return laplace_steps(self.epsilon0) if SHORTEST <= self.epsilon0 <= LONGEST else None

    @property
    def label_laws(self) -> tuple[LabelLaws, ...]:
        """The two ends of the interval as records; labels are cells between them and the two rays outside."""
        edges = np.linspace(0.0, self.epsilon0, self._CELLS - 1)
        # Cell masses for noise around 0, in units of its scale, from the nearer tail: nothing cancels.
        inside = 0.5 * np.exp(-edges[:-1]) * -np.expm1(-np.diff(edges))
        other = np.concatenate([[0.5], inside, [0.5 * math.exp(-self.epsilon0)]])
        # Privacy losses of the cells: a cell and its mirror image have the masses of the two records.
        loss = edges[:-1] + edges[1:] - self.epsilon0
        ray = 0.5 * math.expm1(-self.epsilon0)
        apart = np.concatenate([[ray], inside * np.expm1(loss), [-ray]])
        words = "Laplace messages, all others at one end of the interval"
        return (LabelLaws(other[::-1].copy(), other, words, None, apart),)


# Added to profiles that underflow, on the safe side.
_TINY = 1e-304


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian(Randomizer):
    """Gaussian messages: each client clips its update to norm C and adds N(0, (noise_multiplier C)^2 I).

    Replacing a record moves the clipped update by at most 2C, so one message is a Gaussian mechanism with
    mu = 2 / noise_multiplier (not 1 / noise_multiplier, which is the add-or-remove figure).

    Attributes:
      noise_multiplier: noise standard deviation over the clip norm, per client and coordinate, > 0.

    Raises:
      ValueError, TypeError: noise_multiplier not a finite positive number.
    """

    noise_multiplier: float

    variable = FreeVariable("noise_multiplier", 1e-4, 1e9, -1.0)

    _legal = legal(noise_multiplier=(_validate.real, 0, math.inf, "()"))

    messages_differ = True

    @property
    def mu(self) -> float:
        """Replacement sensitivity over noise standard deviation of one message: 2 / noise_multiplier."""
        return 2.0 / self.noise_multiplier

    @property
    def gaussian_mu(self) -> float:
        return self.mu

    @property
    def description(self) -> str:
        return f"Gaussian noise of {up(self.noise_multiplier)} clip norms per message"

    @property
    def largest_loss(self) -> float:
        return math.inf

    def profile(self, loss: np.ndarray) -> np.ndarray:
        from checkin_jax.kernels import gaussian_profile
        from checkin_jax.kernels.execution.devices import float64

        with float64():
            return np.exp(gaussian_profile.log_profile(self.mu, np.asarray(loss, dtype=np.float64))) + _TINY

    @classmethod
    def from_local(cls, *, epsilon0: float, delta0: float) -> Gaussian:
        """Least noise with which one message is (epsilon0, delta0)-LDP, by the exact Gaussian profile.

        The returned noise is rounded up: the message's delta at epsilon0 never exceeds delta0.

        Raises:
          ValueError, TypeError: epsilon0 not in [0, 50] or delta0 not in (0, 1); or both are so small that no noise
            multiplier below 2e9 meets them.
        """
        from checkin_jax.kernels import gaussian_profile

        epsilon0 = _validate.real(0, MAX_EPSILON0, epsilon0=epsilon0)
        delta0 = _validate.real(0, 1, "()", delta0=delta0)
        mu = gaussian_profile.largest_mu(epsilon0, delta0)
        if not mu:
            raise ValueError(
                f"epsilon0={epsilon0!r}, delta0={delta0!r}: expected larger ones, which a noise below 2e9 meets"
            )
        return cls(noise_multiplier=2.0 / mu)
